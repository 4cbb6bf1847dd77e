//! What can be wrong with a graph, its inputs, or what surrounds it.

use std::fmt;

/// The condition, without its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A graph reads a name that the environment lacks.
    #[error(
        "the graph reads `{0}`, and no value has that name; pass it as an input or output it from an earlier graph"
    )]
    NoInput(String),
    /// A weight source lacks a weight.
    #[error("weight `{name}` {scope} is used but not loaded; load a checkpoint that has it")]
    NoWeight {
        /// Name in the spec.
        name: String,
        /// `of the model` or `of layer 3`.
        scope: String,
    },
    /// Something depends on the layer where no layer runs.
    #[error("{0} depends on the layer, but this graph runs outside the layers; move it into the layer loop")]
    NoLayer(String),
    /// A name that leads nowhere.
    #[error("{what} `{name}` does not exist; known: {known}")]
    Unknown {
        /// What was looked for: `block`, `cache kind`, ….
        what: &'static str,
        /// The name.
        name: String,
        /// Names that exist, joined with commas.
        known: String,
    },
    /// A constraint of `docs/ops.md` is broken.
    #[error("{rule} does not hold: {facts}; see {rule} in docs/ops.md")]
    Rule {
        /// Operation and label, such as `linear C2`.
        rule: &'static str,
        /// The facts in conflict.
        facts: String,
    },
    /// A value that came from outside has another shape or dtype than the graph says.
    #[error("{what} is {got}, but the graph declares {wanted}; give it that shape and dtype")]
    Mismatch {
        /// What came: `input x`, `weight q`, `the injected value`, ….
        what: String,
        /// Its type.
        got: String,
        /// The declared type.
        wanted: String,
    },
    /// The graph contradicts itself.
    #[error("the graph is inconsistent: {0}; run the level's verifier and compile the spec again")]
    Graph(String),
    /// The cache refused a row.
    #[error("the cache of kind `{kind}` has no place for {what}; check the step's rows and page tables")]
    Cache {
        /// Cache kind.
        kind: String,
        /// What was asked of it.
        what: String,
    },
}

impl Fault {
    /// A stable code for the condition.
    pub fn code(&self) -> &'static str {
        match self {
            Fault::NoInput(_) => "I0101",
            Fault::NoWeight { .. } => "I0102",
            Fault::NoLayer(_) => "I0103",
            Fault::Unknown { .. } => "I0104",
            Fault::Rule { .. } => "I0201",
            Fault::Mismatch { .. } => "I0202",
            Fault::Graph(_) => "I0203",
            Fault::Cache { .. } => "I0301",
        }
    }
}

/// A fault and the value at which it showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpError {
    /// The condition.
    pub fault: Fault,
    /// The value being computed, as `%7 (q)`.
    pub value: Option<String>,
    /// The layer that ran.
    pub layer: Option<usize>,
}

impl InterpError {
    /// Adds the place, unless an inner one is known already.
    pub(crate) fn at(mut self, value: impl FnOnce() -> String, layer: Option<usize>) -> Self {
        if self.value.is_none() {
            self.value = Some(value());
            self.layer = layer;
        }
        self
    }
}

impl From<Fault> for InterpError {
    fn from(fault: Fault) -> Self {
        InterpError { fault, value: None, layer: None }
    }
}

impl fmt::Display for InterpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault.code())?;
        if let Some(value) = &self.value {
            write!(f, " at {value}")?;
        }
        if let Some(layer) = self.layer {
            write!(f, " in layer {layer}")?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for InterpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

/// A broken constraint of `docs/ops.md`.
pub(crate) fn broken(rule: &'static str, facts: impl Into<String>) -> InterpError {
    Fault::Rule { rule, facts: facts.into() }.into()
}

/// A graph that contradicts itself.
pub(crate) fn inconsistent(facts: impl Into<String>) -> InterpError {
    Fault::Graph(facts.into()).into()
}

//! What can be wrong with a checkpoint: problems, collected and told together.

use super::header::HeaderFault;
use ir::DType;
use std::collections::BTreeSet;
use std::fmt;

/// One thing that is wrong. Messages are one line; [`Problem::help`] says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing that could be a checkpoint.
    #[error("W0101: `{dir}` holds neither `{single}` nor `{index}`")]
    NoWeights {
        /// Directory.
        dir: String,
        /// Name of a checkpoint in one file.
        single: &'static str,
        /// Name of the index of a sharded one.
        index: &'static str,
    },
    /// The system refused.
    #[error("W0102: `{file}` cannot be read: {fact}")]
    Unreadable {
        /// File.
        file: String,
        /// The system's words.
        fact: String,
    },
    /// The index is no index.
    #[error("W0103: `{file}` is not an index of shards: {fact}")]
    Index {
        /// File.
        file: String,
        /// What is wrong.
        fact: String,
    },
    /// A shard name that may lead out of the directory.
    #[error("W0104: `{file}` puts tensor `{tensor}` into `{shard}`, which is not a plain file name")]
    ShardName {
        /// Index.
        file: String,
        /// Tensor.
        tensor: String,
        /// Name of the shard.
        shard: String,
    },
    /// A shard is not there.
    #[error("W0105: `{shard}` is missing; `{file}` says that it holds {tensors} tensors, such as `{example}`")]
    ShardMissing {
        /// Index.
        file: String,
        /// Shard.
        shard: String,
        /// How many tensors are lost with it.
        tensors: usize,
        /// One of them.
        example: String,
    },
    /// The index and a shard contradict each other.
    #[error("W0106: tensor `{tensor}` is in `{shard}` according to `{file}`, but {fact}")]
    NotInShard {
        /// Index.
        file: String,
        /// Tensor.
        tensor: String,
        /// Shard named by the index.
        shard: String,
        /// Where it is instead.
        fact: String,
    },
    /// A shard has a tensor that the index does not know.
    #[error("W0107: tensor `{tensor}` is in `{shard}`, but `{file}` {fact}")]
    NotInIndex {
        /// Index.
        file: String,
        /// Tensor.
        tensor: String,
        /// Shard that has it.
        shard: String,
        /// What the index says instead.
        fact: String,
    },
    /// The header of a file is damaged.
    #[error("{}: `{file}`: {fault}", fault.code())]
    Header {
        /// File.
        file: String,
        /// What is wrong.
        fault: HeaderFault,
    },
    /// No form of a weight is present.
    #[error("W0301: {weight} is missing: `{looked_for}` is not in the checkpoint{hint}")]
    Missing {
        /// Weight.
        weight: String,
        /// Tensors looked for.
        looked_for: String,
        /// The nearest name there is, or how many parts are present.
        hint: String,
    },
    /// A tensor of codes without one that they need.
    #[error(
        "W0301: {weight} is missing: `{looked_for}` is not in the checkpoint, and `{tensor}` in `{file}` is stored as {found}: codes that mean nothing without it"
    )]
    Alone {
        /// Weight.
        weight: String,
        /// Tensor looked for.
        looked_for: String,
        /// The tensor of codes.
        tensor: String,
        /// Its file.
        file: String,
        /// Its format.
        found: String,
    },
    /// No number of inputs or cached rows.
    #[error(
        "W0314: {weight} is the number that {what} are divided by before they become codes, and {absent} of {total} tensors that hold it are not in the checkpoint: `{looked_for}`"
    )]
    NoNumber {
        /// Weight.
        weight: String,
        /// What is divided.
        what: Divided,
        /// How many tensors are not there.
        absent: usize,
        /// How many there should be.
        total: usize,
        /// The first that is not there, or its alternatives.
        looked_for: String,
    },
    /// A number of cached rows that nobody would divide by.
    #[error(
        "W0315: `{tensor}` in `{file}` says that cached rows are codes under {number}, and the artifact keeps them as codes without a number"
    )]
    Unread {
        /// Tensor.
        tensor: String,
        /// Its file.
        file: String,
        /// The number.
        number: String,
    },
    /// Another shape than the recipe's.
    #[error("W0302: `{tensor}` in `{file}` has shape {found:?}, {weight} needs {expected:?}")]
    Shape {
        /// Weight.
        weight: String,
        /// Tensor.
        tensor: String,
        /// File.
        file: String,
        /// Shape in the file.
        found: Vec<u64>,
        /// Shape of the recipe.
        expected: Vec<u64>,
    },
    /// A format that is not read.
    #[error("W0303: `{tensor}` in `{file}` is stored as {found}, {weight} is read from {expected}")]
    Format {
        /// Weight.
        weight: String,
        /// Tensor.
        tensor: String,
        /// File.
        file: String,
        /// Format in the file.
        found: String,
        /// Formats that it is read from, in words.
        expected: String,
    },
    /// A matrix in codes and scales where a wider weight is kept.
    #[error(
        "W0310: `{tensor}` in `{file}` is stored as {found} codes with scales, {weight} is resident as {resident}: a wider format"
    )]
    Stored {
        /// Weight.
        weight: String,
        /// Tensor.
        tensor: String,
        /// File.
        file: String,
        /// Format in the file.
        found: String,
        /// Format while the model runs.
        resident: DType,
    },
    /// Numbers that must be one are not.
    #[error(
        "W0311: {weight} is one number for products that share their input, but `{one}` is {of_one} and `{other}` is {of_other}"
    )]
    Different {
        /// Weight.
        weight: String,
        /// Tensor.
        one: String,
        /// Its number.
        of_one: String,
        /// Another tensor.
        other: String,
        /// Its number.
        of_other: String,
    },
    /// A scale that nothing can be scaled by.
    #[error("W0312: number {at} of `{tensor}` in `{file}` is {number}, and {weight} needs {wanted} there")]
    Scale {
        /// Weight.
        weight: String,
        /// Tensor.
        tensor: String,
        /// Its file.
        file: String,
        /// Place of the number, counted from 0.
        at: usize,
        /// The number.
        number: String,
        /// What it must be, in words.
        wanted: &'static str,
    },
    /// An element that is infinite or no number.
    #[error(
        "W0313: element {at} of `{tensor}` in `{file}` is {number}, stored as {found}, and {weight} needs a finite number of {kept} there"
    )]
    Element {
        /// Weight.
        weight: String,
        /// Tensor.
        tensor: String,
        /// Its file.
        file: String,
        /// Place of the element, counted from 0 in row-major order.
        at: usize,
        /// What stands there.
        number: String,
        /// Format in the file.
        found: String,
        /// Format of the weight.
        kept: DType,
    },
    /// A conversion that loses bits and was not asked for.
    #[error(
        "W0304: `{tensor}` in `{file}` is stored as {found}, {weight} is resident as {resident}: a narrower format"
    )]
    Narrowing {
        /// Weight.
        weight: String,
        /// Tensor.
        tensor: String,
        /// File.
        file: String,
        /// Format in the file.
        found: String,
        /// Format while the model runs.
        resident: DType,
    },
    /// Two forms are present.
    #[error("W0305: {weight} is there twice: as `{one}` and as `{other}`")]
    Ambiguous {
        /// Weight.
        weight: String,
        /// Tensor of one form.
        one: String,
        /// Tensor of the other.
        other: String,
    },
    /// A tensor that no recipe wants.
    #[error("W0306: `{tensor}` ({dtype} {shape:?}) in `{file}` belongs to no weight of the model")]
    Extra {
        /// Tensor.
        tensor: String,
        /// File.
        file: String,
        /// Its format.
        dtype: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A recipe that means nothing.
    #[error("W0307: the artifact's recipe does not hold together: {fact}")]
    Recipe {
        /// Both facts.
        fact: String,
    },
    /// Not enough memory.
    #[error("W0308: the weights take {bytes} bytes of memory, more than this machine gives")]
    Memory {
        /// Bytes wanted.
        bytes: u64,
    },
    /// A weight was asked for that no recipe describes.
    #[error("W0309: {weight} was asked for, but the artifact has no recipe for it")]
    Unknown {
        /// Weight.
        weight: String,
    },
}

/// What becomes codes under a number of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divided {
    /// What products take in.
    Inputs,
    /// Keys and values that are cached.
    CachedRows,
}

impl fmt::Display for Divided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Divided::Inputs => "inputs",
            Divided::CachedRows => "cached rows",
        })
    }
}

impl Problem {
    /// The code, such as `W0302`.
    pub fn code(&self) -> &'static str {
        match self {
            Problem::NoWeights { .. } => "W0101",
            Problem::Unreadable { .. } => "W0102",
            Problem::Index { .. } => "W0103",
            Problem::ShardName { .. } => "W0104",
            Problem::ShardMissing { .. } => "W0105",
            Problem::NotInShard { .. } => "W0106",
            Problem::NotInIndex { .. } => "W0107",
            Problem::Header { fault, .. } => fault.code(),
            Problem::Missing { .. } | Problem::Alone { .. } => "W0301",
            Problem::Shape { .. } => "W0302",
            Problem::Format { .. } => "W0303",
            Problem::Narrowing { .. } => "W0304",
            Problem::Ambiguous { .. } => "W0305",
            Problem::Extra { .. } => "W0306",
            Problem::Recipe { .. } => "W0307",
            Problem::Memory { .. } => "W0308",
            Problem::Unknown { .. } => "W0309",
            Problem::Stored { .. } => "W0310",
            Problem::Different { .. } => "W0311",
            Problem::Scale { .. } => "W0312",
            Problem::Element { .. } => "W0313",
            Problem::NoNumber { .. } => "W0314",
            Problem::Unread { .. } => "W0315",
        }
    }

    /// What to do about it.
    pub fn help(&self) -> &'static str {
        match self {
            Problem::NoWeights { .. } => "name the checkpoint's directory, or one of its weight files",
            Problem::Unreadable { .. } => "check that the file exists and may be read",
            Problem::Index { .. }
            | Problem::ShardName { .. }
            | Problem::ShardMissing { .. }
            | Problem::NotInShard { .. }
            | Problem::NotInIndex { .. }
            | Problem::Header { .. } => {
                "fetch the checkpoint again; compare the sizes of its files with the original's"
            }
            Problem::Missing { .. } | Problem::Shape { .. } | Problem::Extra { .. } => {
                "artifact and checkpoint must be of one model: compile the spec that `beamc import` makes of this checkpoint's config.json"
            }
            Problem::Format { .. } => {
                "compile the spec that `beamc import` makes of this checkpoint, which says what is stored how; formats that no target reads need another checkpoint"
            }
            Problem::Stored { .. } => {
                "compile the spec that `beamc import` makes of this checkpoint for a target that runs its format, or pass --widen, which multiplies codes and scales out"
            }
            Problem::Different { .. } => {
                "compile with `--unpack` and the name of the weight whose number differs, which then quantises its input on its own"
            }
            Problem::Scale { .. } => "quantise the checkpoint anew, or calibrate it on inputs that reach every module",
            Problem::Element { .. } => {
                "fetch the checkpoint again and compare its files with the original's; if the original is so, quantise or train it anew"
            }
            Problem::Alone { .. } => {
                "fetch the checkpoint again, or quantise it anew in a format that is read: codes come with all their scales"
            }
            Problem::NoNumber { what: Divided::Inputs, .. } => {
                "if the checkpoint keeps inputs as they are, compile its own directory, or with inputs = \"plain\" in [stored], which quantises weights only; else quantise it with `--calibrate`, which finds these numbers"
            }
            Problem::NoNumber { what: Divided::CachedRows, .. } => {
                "compile the checkpoint's own directory, or without kv in [stored] if it has no such numbers; or quantise it with `--kv-scales`, which finds them"
            }
            Problem::Unread { .. } => {
                "compile the spec that `beamc import` makes of this checkpoint, whose config must tell of scales for cached rows, or for a target that keeps cached rows wider"
            }
            Problem::Narrowing { .. } => {
                "compile for a target that keeps f32 (cpu-f32), or pass --narrow, which rounds the weight and may change the model"
            }
            Problem::Ambiguous { .. } => "remove one of the two forms from the checkpoint",
            Problem::Recipe { .. } | Problem::Unknown { .. } => "compile the spec again",
            Problem::Memory { .. } => "use a machine with more memory, or a target with a narrower format",
        }
    }

    /// Order of telling: what explains other problems comes first.
    fn rank(&self) -> u8 {
        match self {
            Problem::Recipe { .. } | Problem::Memory { .. } | Problem::Unknown { .. } => 0,
            Problem::NoWeights { .. } | Problem::Unreadable { .. } | Problem::Index { .. } => 1,
            Problem::ShardName { .. } | Problem::ShardMissing { .. } | Problem::Header { .. } => 2,
            Problem::NotInShard { .. } | Problem::NotInIndex { .. } => 3,
            Problem::Format { .. }
            | Problem::Shape { .. }
            | Problem::Stored { .. }
            | Problem::Alone { .. }
            | Problem::Scale { .. }
            | Problem::Element { .. } => 4,
            Problem::Missing { .. }
            | Problem::NoNumber { .. }
            | Problem::Different { .. }
            | Problem::Unread { .. }
            | Problem::Ambiguous { .. } => 5,
            Problem::Narrowing { .. } => 6,
            Problem::Extra { .. } => 7,
        }
    }
}

/// Everything that is wrong, most important first. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadErrors {
    problems: Vec<Problem>,
}

impl LoadErrors {
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(Problem::rank);
        LoadErrors { problems }
    }

    /// All problems.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl From<Problem> for LoadErrors {
    fn from(problem: Problem) -> Self {
        LoadErrors { problems: vec![problem] }
    }
}

/// How many problems are told in full.
const SHOWN: usize = 20;

impl fmt::Display for LoadErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.problems.iter().take(SHOWN);
        for problem in shown.clone() {
            writeln!(f, "{problem}")?;
        }
        if let more @ 1.. = self.problems.len().saturating_sub(SHOWN) {
            writeln!(f, "and {more} more")?;
        }
        let helps: BTreeSet<&str> = shown.map(Problem::help).collect();
        let helps: Vec<String> = helps.iter().map(|help| format!("  help: {help}")).collect();
        f.write_str(&helps.join("\n"))
    }
}

impl std::error::Error for LoadErrors {}

/// Text from a file as messages quote it: one line, not endless.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 160;
    let clean: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST).collect();
    if text.chars().nth(MOST).is_some() { format!("{clean}…") } else { clean }
}

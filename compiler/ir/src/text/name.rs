//! Names and axis lengths as the text form writes them.

use super::lex::is_word_char;
use crate::{Axis, Extent, Graph, TensorType, Type};
use indexmap::IndexMap;
use std::collections::HashMap;
use std::fmt;

/// A name: bare where it is one word, otherwise a JSON string.
pub(super) struct Name<'a>(pub(super) &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.chars().all(is_word_char) {
            f.write_str(self.0)
        } else {
            write!(f, "{}", serde_json::Value::from(self.0))
        }
    }
}

/// Names between brackets.
pub(super) fn name_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<String> = names.into_iter().map(|n| Name(n).to_string()).collect();
    format!("[{}]", words.join(", "))
}

/// Whether a value name would read as a number.
pub(super) fn is_number(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_digit())
}

/// A length as text: a number, or `rows`.
pub(super) fn extent_text(extent: Extent) -> String {
    match extent {
        Extent::Fixed(n) => n.to_string(),
        Extent::Rows => "rows".to_owned(),
    }
}

/// The lengths that axes have where a type does not say otherwise.
#[derive(Clone, Debug, Default)]
pub(super) struct Extents(pub(super) HashMap<String, Extent>);

impl Extents {
    /// Those of the header.
    pub(super) fn of_dims(dims: &IndexMap<String, u64>) -> Self {
        Extents(dims.iter().map(|(name, n)| (name.clone(), Extent::Fixed(*n))).collect())
    }

    /// Adds the axes of a graph at their first occurrence; returns those that the graph has to declare.
    pub(super) fn of_graph(&self, graph: &Graph) -> (Extents, Vec<Axis>) {
        let mut first: IndexMap<&str, Extent> = IndexMap::new();
        for id in graph.ids() {
            collect_axes(&graph.node(id).ty, &mut first);
        }
        let mut extents = self.clone();
        let mut declared = Vec::new();
        for (name, extent) in first {
            if self.0.get(name) != Some(&extent) {
                declared.push(Axis { name: name.to_owned(), extent });
                extents.0.insert(name.to_owned(), extent);
            }
        }
        (extents, declared)
    }

    /// One axis.
    pub(super) fn axis(&self, axis: &Axis) -> String {
        if self.0.get(&axis.name) == Some(&axis.extent) {
            Name(&axis.name).to_string()
        } else {
            format!("{}={}", Name(&axis.name), extent_text(axis.extent))
        }
    }

    /// Axes between brackets.
    pub(super) fn axes(&self, axes: &[Axis]) -> String {
        let words: Vec<String> = axes.iter().map(|a| self.axis(a)).collect();
        format!("[{}]", words.join(", "))
    }

    /// A tensor type.
    pub(super) fn tensor(&self, ty: &TensorType) -> String {
        let target = ty.indexes.as_deref().map(|t| format!("<{}>", Name(t))).unwrap_or_default();
        format!("{}{target}{}", ty.dtype, self.axes(&ty.axes))
    }

    /// A type.
    pub(super) fn ty(&self, ty: &Type) -> String {
        match ty {
            Type::Tensor(t) => self.tensor(t),
            Type::Cache => "cache".to_owned(),
            Type::Tuple(items) => {
                let words: Vec<String> = items.iter().map(|t| self.ty(t)).collect();
                format!("({})", words.join(", "))
            }
        }
    }
}

fn collect_axes<'a>(ty: &'a Type, found: &mut IndexMap<&'a str, Extent>) {
    match ty {
        Type::Tensor(t) => {
            for axis in &t.axes {
                found.entry(&axis.name).or_insert(axis.extent);
            }
        }
        Type::Cache => {}
        Type::Tuple(items) => items.iter().for_each(|t| collect_axes(t, found)),
    }
}

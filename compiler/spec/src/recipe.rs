//! Where a fact of an `[import]` table comes from: paths of a config, tried in order, then perhaps a fixed value.
//!
//! `"a.b"` is a dotted path, `"a / b"` the quotient of two numbers; in a list the first that is not null counts, and a
//! number or truth value in it stands for itself.

use crate::document::{Kind, Node};
use serde_json::Value;

/// One way to get the value.
enum Source {
    Path(String),
    Quotient(String, String),
    Fixed(Value),
}

fn sources(node: &Node) -> Vec<Source> {
    let items: Vec<&Node> = node.array().map_or_else(|| vec![node], |a| a.iter().collect());
    items
        .into_iter()
        .filter_map(|item| match (&item.kind, item.text()) {
            (_, Some(text)) => Some(match text.split_once(" / ") {
                Some((a, b)) => Source::Quotient(a.trim().to_owned(), b.trim().to_owned()),
                None => Source::Path(text.trim().to_owned()),
            }),
            (Kind::Bool(b), _) => Some(Source::Fixed(Value::Bool(*b))),
            (Kind::Integer(n), _) => Some(Source::Fixed(Value::from(*n))),
            _ => item.number().map(|x| Source::Fixed(Value::from(x))),
        })
        .collect()
}

/// The first path that the recipe names, for messages.
pub(crate) fn main_path(node: &Node) -> String {
    sources(node)
        .into_iter()
        .find_map(|s| match s {
            Source::Path(p) | Source::Quotient(p, _) => Some(p),
            Source::Fixed(_) => None,
        })
        .unwrap_or_default()
}

/// The path that gave the value (for a fixed value the first one) and the value; null if every source is null.
/// Every path of the recipe is asked for, so that all of them count as understood.
pub(crate) fn find(node: &Node, get: &mut dyn FnMut(&str) -> Value) -> (String, Value) {
    let mut found: Option<(String, Value)> = None;
    for source in sources(node) {
        let (path, value) = match source {
            Source::Path(path) => {
                let value = get(&path);
                (path, value)
            }
            Source::Quotient(a, b) => {
                let value = match (get(&a).as_u64(), get(&b).as_u64()) {
                    (Some(x), Some(y)) if y > 0 && x % y == 0 => Value::from(x / y),
                    _ => Value::Null,
                };
                (a, value)
            }
            Source::Fixed(value) => (main_path(node), value),
        };
        if found.is_none() && !value.is_null() {
            found = Some((path, value));
        }
    }
    found.unwrap_or_else(|| (main_path(node), Value::Null))
}

/// Whether a value is one of the literals in `a | b`: null, truth values, numbers, lists, or bare words.
pub(crate) fn is_one_of(value: &Value, literals: &str) -> bool {
    literals.split('|').any(|text| literal(text.trim()) == *value)
}

fn literal(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// The literals as a person reads them: `false or null`.
pub(crate) fn describe(literals: &str) -> String {
    literals.split('|').map(|text| literal(text.trim()).to_string()).collect::<Vec<_>>().join(" or ")
}

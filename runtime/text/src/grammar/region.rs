//! Text that ends where a pattern says, as a terminal: what must not be in it is not, and its end is the first.

use super::pieces::{Part, Parts, first_control, plain, written};
use super::writer::{Writer, slashed};

/// Any text, with something in it.
pub(crate) const SOME: &str = "/(?s:.+)/";
/// Any text.
pub(crate) const ANY: &str = "/(?s:.*)/";

/// What a text may be, as an expression over terminals; of any text if absent.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub language: Option<String>,
    /// Whether it may be empty.
    pub may_be_empty: bool,
}

impl Text {
    /// Any text.
    pub fn any() -> Text {
        Text { language: None, may_be_empty: true }
    }
}

/// A text of that language without any match of `avoid` in it, as content of a rule; empty where it must be.
pub(crate) fn open_text(writer: &mut Writer, text: &Text, avoid: &[String]) -> String {
    let mut terms = vec![text.language.as_ref().map_or(SOME.to_owned(), |language| format!("({language})"))];
    if text.language.is_some() && text.may_be_empty {
        terms.push(SOME.to_owned());
    }
    if !avoid.is_empty() {
        terms.push(format!("~({ANY} ({}) {ANY})", either(avoid)));
    }
    let name = writer.terminal(&terms.join(" & "));
    if text.may_be_empty { format!("{name}?") } else { name }
}

/// Such a text and what ends it, as content of a rule. `None` where an end begins with text and goes on with a control
/// token.
pub(crate) fn ended_text(writer: &mut Writer, text: &Text, avoid: &[String], end: &Parts) -> Option<String> {
    if first_control(end).is_some() {
        let before = open_text(writer, text, avoid);
        let end = written(writer, end);
        return Some(format!("{before} {end}"));
    }
    let end = slashed(&plain(end)?);
    let language = text.language.clone().unwrap_or_else(|| ANY.to_owned());
    let mut terms = vec![format!("(({language}) {end})")];
    if !avoid.is_empty() {
        // Nothing of it may end before the end.
        terms.push(format!("~({ANY} ({}) {SOME})", either(avoid)));
    }
    Some(writer.terminal(&terms.join(" & ")))
}

/// Alternatives of expressions.
pub(crate) fn either(regexes: &[String]) -> String {
    let all: Vec<String> = regexes.iter().map(|regex| slashed(regex)).collect();
    all.join(" | ")
}

/// Parts behind other parts.
pub(crate) fn joined(first: &[Part], then: &[Part]) -> Parts {
    super::pieces::merged(first.iter().chain(then).cloned().collect())
}

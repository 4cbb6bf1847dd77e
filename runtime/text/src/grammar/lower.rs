//! From what a request asks for to the text of a grammar.

use super::compiler::{Grammar, first_line};
use super::tokens::Vocabulary;
use super::writer::{Writer, slashed};
use super::{GrammarError, GrammarSpec, Matcher};
use crate::response::ResponseTemplate;
use serde_json::json;
use std::sync::Arc;

/// Most ways in which a text's control tokens are read.
const READINGS: usize = 10_000;

/// Text that is common and quick to admit: masks are kept for it.
pub(crate) fn slices(_template: Option<&ResponseTemplate>) -> Vec<String> {
    [r"[ \t\r\n]+", r#"[^"\\\x00-\x1F\x7F]{1,10}"#, r#"[^"\\\x00-\x1F\x7F]{1,30}"#, r#"[^"\\\x00-\x1F\x7F]+"#]
        .map(str::to_owned)
        .to_vec()
}

/// Compiles a request's wish with what compiles a Lark text.
pub(crate) fn compiled(
    vocabulary: &Arc<Vocabulary>,
    spec: &GrammarSpec,
    limit_bytes: usize,
    grammar: &mut dyn FnMut(String) -> Result<Arc<Grammar>, String>,
) -> Result<Arc<Grammar>, GrammarError> {
    let mut writer = Writer::new(Arc::clone(vocabulary), limit_bytes);
    let place = place(spec);
    let start = lowered(&mut writer, spec)?;
    grammar(writer.finish(&start)?).map_err(|error| GrammarError::bad(place, first_line(&error), "correct it"))
}

/// What a field of that kind is called.
fn place(spec: &GrammarSpec) -> &'static str {
    match spec {
        GrammarSpec::JsonSchema { .. } => "schema",
        GrammarSpec::JsonObject => "json_object",
        GrammarSpec::Regex(_) => "regex",
        GrammarSpec::Lark(_) => "lark",
        GrammarSpec::Ebnf(_) => "ebnf",
        GrammarSpec::Choice(_) => "choice",
        GrammarSpec::StructuralTag(_) => "structural_tag",
        GrammarSpec::Turn(_) => "tools",
    }
}

/// Content of a rule.
fn lowered(writer: &mut Writer, spec: &GrammarSpec) -> Result<String, GrammarError> {
    Ok(match spec {
        GrammarSpec::JsonSchema { schema, strict } => writer.json(schema, *strict),
        GrammarSpec::JsonObject => writer.json(&json!({"type": "object"}), false),
        GrammarSpec::Regex(regex) => writer.terminal(&slashed(regex)),
        GrammarSpec::Lark(text) => writer.rule(&format!("%lark {{\n{text}\n}}")),
        GrammarSpec::Choice(texts) => {
            let texts: Vec<String> = texts.iter().map(|text| super::writer::quoted(text)).collect();
            texts.join(" | ")
        }
        GrammarSpec::Ebnf(_) | GrammarSpec::StructuralTag(_) | GrammarSpec::Turn(_) => {
            return Err(GrammarError::bad(place(spec), "is not in this build", "leave it out"));
        }
    })
}

/// Whether some tokens that spell the text lead to the grammar's end.
pub(crate) fn admits(vocabulary: &Vocabulary, matcher: &mut Matcher, text: &str) -> Result<bool, GrammarError> {
    let mut readings = READINGS;
    from_here(vocabulary, matcher, text, &mut readings)
}

fn from_here(
    vocabulary: &Vocabulary,
    matcher: &mut Matcher,
    text: &str,
    left: &mut usize,
) -> Result<bool, GrammarError> {
    let Some(fewer) = left.checked_sub(1) else { return Ok(false) };
    *left = fewer;
    let Some((at, len, id)) = vocabulary.first_control(text) else {
        return taken(vocabulary, matcher, text, |matcher| Ok(matcher.accepting()));
    };
    let (before, after) = (text.get(..at).unwrap_or(""), text.get(at + len..).unwrap_or(""));
    taken(vocabulary, matcher, before, |matcher| {
        // As the token.
        if matcher.advance_all(&[id])? == 1 {
            if matcher.ended() && after.is_empty() {
                return Ok(true);
            }
            let admitted = !matcher.ended() && from_here(vocabulary, matcher, after, left)?;
            matcher.rollback(1)?;
            if admitted {
                return Ok(true);
            }
        }
        // As text: its first character alone is no control token.
        let spelt = text.get(at..at + len).unwrap_or("");
        taken(vocabulary, matcher, spelt, |matcher| from_here(vocabulary, matcher, after, left))
    })
}

/// Runs `then` behind the text, if that is admitted; leaves the matcher where it was.
fn taken(
    vocabulary: &Vocabulary,
    matcher: &mut Matcher,
    text: &str,
    then: impl FnOnce(&mut Matcher) -> Result<bool, GrammarError>,
) -> Result<bool, GrammarError> {
    let tokens = vocabulary.spelt(text.as_bytes());
    let count = matcher.advance_all(&tokens)?;
    let admitted = if count == tokens.len() { then(matcher)? } else { false };
    matcher.rollback(count)?;
    Ok(admitted)
}

//! Whether a grammar admits a text, whatever tokens spell it.

use super::tokens::Vocabulary;
use super::{GrammarError, Matcher};

/// Most ways in which a text's control tokens are read.
const READINGS: usize = 10_000;

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

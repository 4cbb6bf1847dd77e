//! What is refused before it is compiled: expressions and schemas whose compiling would cost far more than their length says.

use super::GrammarError;
use super::ecma::translated;
use super::patterns::reason;
use super::writer::Writer;
use regex_automata::nfa::thompson::{Config, NFA};
use serde_json::Value;

/// Most bytes that the automata of a request's expressions and patterns may take together: how long they are built grows with
/// them.
const AUTOMATON_BYTES: usize = 4 << 20;
/// Longest expression.
const EXPRESSION_BYTES: usize = 1 << 16;
/// Most values in a request's schemas.
const SCHEMA_VALUES: usize = 50_000;
/// Most pairs of properties of one object, in all a request's schemas: optional ones may follow each other in any choice, so that
/// work grows with their square.
const PROPERTY_PAIRS: usize = 16_000_000;
/// Deepest nesting of a schema.
const SCHEMA_DEPTH: usize = 100;

/// Most rules of a grammar: compilers follow names from rule to rule on the stack, so this bounds the longest chain.
const RULES: usize = 2_000;
/// Deepest brackets of a grammar.
const BRACKETS: usize = 100;

/// Whether a grammar's rules are few enough.
pub(crate) fn rules(place: &str, count: usize) -> Result<(), GrammarError> {
    match count {
        0..=RULES => Ok(()),
        _ => Err(GrammarError::TooLarge {
            place: place.to_owned(),
            what: "the grammar's rules are".to_owned(),
            found: count.to_string(),
            limit: RULES.to_string(),
        }),
    }
}

/// Most texts of a choice.
const CHOICES: usize = 4_000;

/// Whether a choice has few enough texts.
pub(crate) fn choice(place: &str, count: usize) -> Result<(), GrammarError> {
    match count {
        0..=CHOICES => Ok(()),
        _ => Err(GrammarError::TooLarge {
            place: place.to_owned(),
            what: "the texts to choose from are".to_owned(),
            found: count.to_string(),
            limit: CHOICES.to_string(),
        }),
    }
}

/// Whether a Lark text can be read without deep recursion. Brackets and colons inside texts and expressions count as well;
/// nobody writes thousands.
pub(crate) fn lark(place: &str, text: &str) -> Result<(), GrammarError> {
    rules(place, text.lines().filter(|line| line.contains(':')).count())?;
    let (mut depth, mut deepest) = (0usize, 0);
    for c in text.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > BRACKETS {
        return Err(GrammarError::TooLarge {
            place: place.to_owned(),
            what: "the grammar nests".to_owned(),
            found: deepest.to_string(),
            limit: BRACKETS.to_string(),
        });
    }
    Ok(())
}

/// The tokens that a Lark text names by themselves, such as `<|a|>` or `<[1-5]>`: not those in its texts, expressions and comments.
fn named_tokens(text: &str) -> Vec<&str> {
    let (mut names, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(['"', '/', '<']) {
        let (sign, behind) = rest.get(at..).and_then(|found| found.split_at_checked(1)).unwrap_or(("", ""));
        let mut is_escaped = false;
        let mut ends = |c: char| {
            let is_end = sign.starts_with(c) && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        };
        let len = match sign {
            "/" if behind.starts_with('/') => behind.find('\n'),
            "<" => behind.find(|c: char| c == '>' || c == '<' || c.is_whitespace()),
            _ => behind.find(&mut ends),
        };
        let Some(len) = len else { break };
        let is_name = sign == "<" && behind.get(len..).is_some_and(|end| end.starts_with('>'));
        names.extend(rest.get(at..at + len + 2).filter(|_| is_name));
        // What is no name may begin with the next sign.
        rest = behind.get(if sign == "<" && !is_name { len } else { len + 1 }..).unwrap_or("");
    }
    names
}

/// Whether the ids in `<[…]>` have one of these: numbers and ranges, all but those behind `^`, or `*` for all.
fn has_id(ids: &str, of: &[u32]) -> bool {
    let (listed, is_but) = ids.strip_prefix('^').map_or((ids, false), |but| (but, true));
    let is_listed = |id: u32| {
        listed.split(',').any(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            part.trim() == "*"
                || from.trim().parse().is_ok_and(|n: u32| n <= id) && to.trim().parse().is_ok_and(|n: u32| id <= n)
        })
    };
    of.iter().any(|id| is_listed(*id) != is_but)
}

/// Refuses a Lark text that names a token that it may not: one that ends the answer, for nothing can come behind it, and a grammar
/// ends by itself; in a turn any control token, for those tell where its regions and calls begin and end.
pub(crate) fn tokens(place: &str, text: &str, writer: &Writer) -> Result<(), GrammarError> {
    let vocabulary = writer.vocabulary();
    let (stop, controls) = (vocabulary.stop(), vocabulary.controls());
    let is_named = |name: &str, of: &[u32]| match name.strip_prefix("<[").and_then(|ids| ids.strip_suffix("]>")) {
        Some(ids) => has_id(ids, of),
        None => vocabulary.first_control(name).is_some_and(|(_, len, id)| len == name.len() && of.contains(&id)),
    };
    for name in named_tokens(text) {
        if is_named(name, &stop) {
            return Err(token(place, name, true));
        }
        if writer.in_turn && is_named(name, &controls) {
            return Err(token(place, name, false));
        }
    }
    Ok(())
}

/// A token that must not be named there.
pub(crate) fn token(place: &str, name: &str, ends: bool) -> GrammarError {
    let why = if ends { "which ends the answer" } else { "by which the parts of a turn are told" };
    let problem = format!("names the token {name}, {why}");
    GrammarError::bad(
        place,
        problem,
        "leave it out, or put it in quotes of a `lark` or `ebnf` grammar if its text is meant",
    )
}

/// How many bytes the expression's automaton takes, of at most `most_bytes`.
fn automaton(place: &str, regex: &str, most_bytes: usize) -> Result<usize, GrammarError> {
    let too_large = |what: &str, found: String, limit: usize| {
        let (what, limit) = (what.to_owned(), limit.to_string());
        Err(GrammarError::TooLarge { place: place.to_owned(), what, found, limit })
    };
    if regex.len() > EXPRESSION_BYTES {
        return too_large("the expression has bytes:", regex.len().to_string(), EXPRESSION_BYTES);
    }
    let hir = regex_syntax::parse(regex).map_err(|error| {
        GrammarError::bad(place, reason(&error), "use the syntax without look-around and references back")
    })?;
    let config = Config::new().nfa_size_limit(Some(most_bytes));
    match NFA::compiler().configure(config).build_from_hir(&hir) {
        Ok(nfa) => Ok(nfa.memory_usage().max(regex.len())),
        Err(_) => too_large("the automaton needs bytes:", format!("more than {most_bytes}"), most_bytes),
    }
}

/// What the schemas and expressions of one wish may still cost, all together.
pub(crate) struct Left {
    values: usize,
    property_pairs: usize,
    automaton_bytes: usize,
}

impl Default for Left {
    fn default() -> Self {
        Left { values: SCHEMA_VALUES, property_pairs: PROPERTY_PAIRS, automaton_bytes: AUTOMATON_BYTES }
    }
}

impl Left {
    /// Whether the expression can be compiled at a reasonable cost.
    pub fn expression(&mut self, place: &str, regex: &str) -> Result<(), GrammarError> {
        let bytes = automaton(place, regex, self.automaton_bytes)?;
        self.automaton_bytes = self.automaton_bytes.saturating_sub(bytes);
        Ok(())
    }

    /// Whether a schema is of a reasonable size, with all its patterns.
    pub fn schema(&mut self, place: &str, schema: &Value) -> Result<(), GrammarError> {
        self.walk(place, schema, SCHEMA_DEPTH)
    }

    fn walk(&mut self, place: &str, value: &Value, depth: usize) -> Result<(), GrammarError> {
        let limit = |what: &str, limit: usize| GrammarError::TooLarge {
            place: place.to_owned(),
            what: what.to_owned(),
            found: format!("more than {limit}"),
            limit: limit.to_string(),
        };
        self.values = self.values.checked_sub(1).ok_or_else(|| limit("the schema's values are", SCHEMA_VALUES))?;
        let depth = depth.checked_sub(1).ok_or_else(|| limit("the schema nests", SCHEMA_DEPTH))?;
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.walk(place, item, depth)),
            Value::Object(map) => map.iter().try_for_each(|(key, value)| {
                match (key.as_str(), value) {
                    // An expression that does not parse is ignored or refused where it is used.
                    ("properties", Value::Object(of)) => {
                        let pairs = of.len().saturating_mul(of.len());
                        let left = self.property_pairs.checked_sub(pairs);
                        self.property_pairs =
                            left.ok_or_else(|| limit("the schema's pairs of properties are", PROPERTY_PAIRS))?;
                    }
                    ("pattern", Value::String(regex)) => self.heavy(place, regex)?,
                    ("patternProperties", Value::Object(of)) => {
                        of.keys().try_for_each(|regex| self.heavy(place, regex))?
                    }
                    _ => {}
                }
                self.walk(place, value, depth)
            }),
            _ => Ok(()),
        }
    }

    fn heavy(&mut self, place: &str, regex: &str) -> Result<(), GrammarError> {
        match translated(regex).map(|read| self.expression(place, &read.text)) {
            Ok(Err(error @ GrammarError::TooLarge { .. })) => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_named_outside_of_texts() {
        let text = "start: \"<|a|>\\\"<b>\" <|c|> /<d>\\/<e>/ <[7]> // <f>\nx: < <g>";
        assert_eq!(named_tokens(text), ["<|c|>", "<[7]>", "<g>"]);
        for (ids, is_so) in [("7", true), ("1-6", false), ("1-6,7-9", true), ("^7", false), ("^1", true), ("*", true)] {
            assert_eq!(has_id(ids, &[7]), is_so, "{ids}");
        }
    }
}

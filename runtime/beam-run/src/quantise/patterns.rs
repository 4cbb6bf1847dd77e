//! Modules that stay as they are, by the forms that public quantisers know.

use super::matrices::Found;
use crate::failure::Failure;
use fancy_regex::Regex;

/// One pattern.
enum Pattern {
    /// A module's name, or a dotted end of it.
    Name(String),
    /// `*` stands for anything; the whole name or one whole part of it.
    Glob(String),
    /// Matches from the start of the name.
    Expression(String, Box<Regex>),
}

/// All patterns of the command line.
pub struct Patterns(Vec<Pattern>);

/// Whether a text matches a pattern in which `*` stands for anything.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

impl Pattern {
    fn text(&self) -> &str {
        match self {
            Pattern::Name(text) | Pattern::Glob(text) | Pattern::Expression(text, _) => text,
        }
    }

    fn matches(&self, module: &str) -> Result<bool, Failure> {
        Ok(match self {
            Pattern::Name(name) => {
                module.strip_suffix(name.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
            Pattern::Glob(pattern) => glob(pattern, module) || module.split('.').any(|part| glob(pattern, part)),
            Pattern::Expression(text, regex) => regex.is_match(module).map_err(|e| {
                Failure::usage(format!(
                    "R0710: `--ignore {text}` could not be decided for `{module}`: {e}; write it simpler"
                ))
            })?,
        })
    }
}

impl Patterns {
    /// Reads the patterns.
    pub fn new(texts: &[String]) -> Result<Patterns, Failure> {
        let pattern = |text: &String| match text.strip_prefix("re:") {
            Some(expression) => match Regex::new(&format!(r"\A(?:{expression})")) {
                Ok(regex) => Ok(Pattern::Expression(text.clone(), Box::new(regex))),
                Err(e) => {
                    Err(Failure::usage(format!("R0710: `--ignore {text}` is no regular expression: {e}; correct it")))
                }
            },
            None if text.contains('*') => Ok(Pattern::Glob(text.clone())),
            None => Ok(Pattern::Name(text.clone())),
        };
        texts.iter().map(pattern).collect::<Result<_, _>>().map(Patterns)
    }

    /// Moves what is matched to the modules that stay. The configuration then says the pattern where the format knows such ones,
    /// `globs` or else expressions, and names otherwise. A pattern that matches nothing is an error.
    pub fn leave(&self, found: &mut Found, globs: bool) -> Result<(), Failure> {
        for pattern in &self.0 {
            let (mut stay, mut go) = (Vec::new(), Vec::new());
            let mut known = false;
            for module in &found.plain {
                known |= pattern.matches(module)?;
            }
            for matrix in std::mem::take(&mut found.matrices) {
                if pattern.matches(&matrix.module)? { stay.push(matrix.module) } else { go.push(matrix) }
            }
            if stay.is_empty() && !known {
                return Err(Failure::usage(format!(
                    "R0711: `--ignore {}` matches none of {} modules, such as `{}`; correct or remove it",
                    pattern.text(),
                    found.plain.len() + go.len(),
                    go.first().map(|m| &m.module).or(found.plain.first()).map_or("", String::as_str)
                )));
            }
            found.matrices = go;
            let sayable = match pattern {
                Pattern::Name(_) => false,
                Pattern::Glob(_) => globs,
                Pattern::Expression(..) => !globs,
            };
            if sayable {
                // What the pattern says need not be said by name as well.
                let mut said = Vec::new();
                for name in std::mem::take(&mut found.said) {
                    if !pattern.matches(&name)? {
                        said.push(name);
                    }
                }
                said.push(pattern.text().to_owned());
                found.said = said;
            } else {
                found.said.extend(stay.iter().cloned());
            }
            found.plain.extend(stay);
        }
        found.plain.sort();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantise::matrices::Matrix;

    fn matches(pattern: &str, module: &str) -> bool {
        Patterns::new(&[pattern.to_owned()]).unwrap().0[0].matches(module).unwrap()
    }

    #[test]
    fn forms_of_both_quantisers_are_known() {
        assert!(matches("a.b", "a.b") && matches("b", "a.b") && !matches("b", "a.bb") && !matches("b", "a.xb"));
        assert!(!matches("a", "a.b"), "a parent does not cover its children");
        assert!(matches("a.*.gate", "a.12.gate") && !matches("a.*.gate", "a.12.gate_up"));
        assert!(matches("*.0.x*", "a.0.x.q") && matches("k_*", "a.k_3.v") && !matches("k_*", "a.kk_3.v"));
        assert!(matches(r"re:.*x\.gate$", "a.x.gate") && !matches(r"re:.*x\.gate$", "a.x.gates"));
        assert!(!matches("re:b", "a.b"), "from the start");
        assert!(matches("re:(?!a)", "b.c") && !matches("re:(?!a)", "a.c"), "looks ahead");
        assert!(Patterns::new(&["re:(".to_owned()]).is_err());
    }

    #[test]
    fn what_stays_is_said_in_the_formats_own_words() {
        let matrix = |module: &str| Matrix {
            module: module.to_owned(),
            tensor: String::new(),
            first: 0,
            rows: 1,
            columns: 1,
            unit: 0,
            input: None,
        };
        let names = |list: &[&str]| list.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let leave = |patterns: &[&str], globs| {
            let mut found = Found { matrices: ["a.0.q", "a.0.k", "a.1.q"].map(matrix).into(), ..Found::default() };
            found.plain = names(&["a.0.pick", "head"]);
            found.said = found.plain.clone();
            Patterns::new(&names(patterns)).unwrap().leave(&mut found, globs).map(|()| found)
        };
        let found = leave(&["a.0*", r"re:a\.1"], true).unwrap();
        assert!(found.matrices.is_empty());
        assert_eq!(found.said, ["head", "a.0*", "a.1.q"]);
        assert_eq!(found.plain, ["a.0.k", "a.0.pick", "a.0.q", "a.1.q", "head"]);
        let found = leave(&["a.0*", r"re:a\.1"], false).unwrap();
        assert_eq!(found.said, ["a.0.pick", "head", "a.0.q", "a.0.k", r"re:a\.1"]);
        assert!(leave(&["head"], false).is_ok(), "what stays anyway may be named");
        assert!(leave(&["nothing"], false).unwrap_err().text.starts_with("R0711"));
    }
}

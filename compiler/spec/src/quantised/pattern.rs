//! Lists of module names in the two ways that quantisers write them.
//!
//! | | a plain entry names | a pattern |
//! |---|---|---|
//! | [`Style::Suffixes`] | the module, or every module that ends in `.` and the entry | `re:…`, a regular expression from the name's start |
//! | [`Style::Components`] | the module, or every module with that component | `*` stands for anything and `[01]` for one of them, in the whole name or in one component |
//!
//! A module does not stand for what is inside it: `a.b` does not name `a.b.c`.

use regex::{RegexSet, RegexSetBuilder};
use std::collections::HashSet;

/// Memory of all patterns of a list.
const MOST_BYTES: usize = 1 << 24;
/// Patterns of a list that look around, each with memory and steps of its own.
const MOST_AROUND: usize = 64;
/// Steps that a pattern which looks around may take on one name.
const MOST_STEPS: usize = 100_000;
/// Entries of a list; a model has no more modules.
const MOST_ENTRIES: usize = 1 << 20;

/// How entries are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Suffixes,
    Components,
}

/// A list of entries.
pub(crate) struct Patterns {
    style: Style,
    plain: HashSet<String>,
    patterns: RegexSet,
    /// Patterns that look around or refer back, with their entries.
    around: Vec<(String, fancy_regex::Regex)>,
    /// What is told of the first that took too many steps; no more are tried then.
    undecided: Option<String>,
    /// Plain entries that named something.
    hit: HashSet<String>,
}

impl Patterns {
    /// The list, or what is wrong with it.
    pub fn new(style: Style, entries: &[String]) -> Result<Patterns, String> {
        if entries.len() > MOST_ENTRIES {
            return Err(format!("{} entries, more than the {MOST_ENTRIES} that are read", entries.len()));
        }
        let pattern = |entry: &String| match style {
            Style::Suffixes => entry.strip_prefix("re:").map(|p| format!("^(?:{p})")),
            Style::Components => entry.contains(['*', '[']).then(|| format!("^(?s:{})$", glob(entry))),
        };
        let (mut plain, mut patterns, mut around) = (HashSet::new(), Vec::new(), Vec::new());
        for entry in entries {
            match pattern(entry) {
                Some(pattern) => {
                    // By itself, so that the message shows the one that is wrong.
                    match regex::RegexBuilder::new(&pattern).size_limit(MOST_BYTES).build() {
                        Ok(_) => patterns.push(pattern),
                        Err(_) if around.len() == MOST_AROUND => {
                            return Err(format!(
                                "`{entry}` is one more than the {MOST_AROUND} patterns that may look around"
                            ));
                        }
                        Err(e) => {
                            around.push((entry.clone(), looking_around(&pattern).ok_or_else(|| told(entry, &e))?))
                        }
                    }
                }
                None => drop(plain.insert(entry.clone())),
            }
        }
        let patterns = RegexSetBuilder::new(&patterns).size_limit(MOST_BYTES).build();
        let patterns = patterns.map_err(|e| told("the patterns together", &e))?;
        Ok(Patterns { style, plain, patterns, around, undecided: None, hit: HashSet::new() })
    }

    /// Whether an entry names the module.
    pub fn name(&mut self, module: &str) -> bool {
        let mut found = self.patterns.is_match(module) || self.around(module);
        match self.style {
            Style::Suffixes => {
                let dots = module.match_indices('.').map(|(at, _)| at + 1);
                for start in std::iter::once(0).chain(dots) {
                    found |= self.plainly(module.get(start..).unwrap_or(""));
                }
            }
            Style::Components => {
                found |= self.plainly(module);
                for component in module.split('.') {
                    found |= self.plainly(component) || self.patterns.is_match(component);
                }
            }
        }
        found
    }

    fn around(&mut self, module: &str) -> bool {
        if self.undecided.is_some() {
            return false;
        }
        for (entry, pattern) in &self.around {
            match pattern.is_match(module) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(e) => {
                    self.undecided = Some(format!("`{entry}` cannot be decided for `{module}`: {e}"));
                    return false;
                }
            }
        }
        false
    }

    /// Why a pattern was given up on, if one was.
    pub fn undecided(&self) -> Option<&str> {
        self.undecided.as_deref()
    }

    /// Whether an entry names the block that a module is one of many in. Only where lists speak of blocks.
    pub fn block(&mut self, name: &str) -> bool {
        self.style == Style::Components && self.name(name)
    }

    fn plainly(&mut self, name: &str) -> bool {
        let found = self.plain.contains(name);
        if found && !self.hit.contains(name) {
            self.hit.insert(name.to_owned());
        }
        found
    }

    /// Plain entries that named nothing so far, in alphabetical order.
    pub fn idle(&self) -> Vec<&str> {
        let mut idle: Vec<&str> = self.plain.iter().filter(|e| !self.hit.contains(*e)).map(String::as_str).collect();
        idle.sort_unstable();
        idle
    }
}

/// A glob as a regular expression: `*` for anything, `[01]` for one of some characters, all else for itself.
fn glob(entry: &str) -> String {
    let mut out = String::new();
    let mut rest = entry;
    while let Some(at) = rest.find(['*', '[']) {
        let (before, special) = rest.split_at(at);
        out += &regex::escape(before);
        rest = special.get(1..).unwrap_or("");
        if special.starts_with('*') {
            out += ".*";
            continue;
        }
        match rest.split_once(']') {
            Some((set, behind)) if !set.is_empty() => {
                let (not, set) = set.strip_prefix('!').map_or(("", set), |set| ("^", set));
                // A range keeps its dash.
                out += &format!("[{not}{}]", regex::escape(set).replace("\\-", "-"));
                rest = behind;
            }
            _ => out += "\\[",
        }
    }
    out + &regex::escape(rest)
}

/// A pattern that only backtracking can decide, within bounds of memory and steps.
fn looking_around(pattern: &str) -> Option<fancy_regex::Regex> {
    let mut builder = fancy_regex::RegexBuilder::new(pattern);
    builder.backtrack_limit(MOST_STEPS).delegate_size_limit(MOST_BYTES).build().ok()
}

/// The words of the regular expressions' own error, on one line.
fn told(entry: &str, error: &regex::Error) -> String {
    let why = match error {
        regex::Error::CompiledTooBig(most) => format!("it takes more than {most} bytes"),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or("").trim();
            last.strip_prefix("error: ").unwrap_or(last).to_owned()
        }
    };
    format!("`{entry}` is no pattern that is understood: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(style: Style, entries: &[&str], module: &str) -> bool {
        let entries: Vec<String> = entries.iter().map(|e| (*e).to_owned()).collect();
        Patterns::new(style, &entries).unwrap_or_else(|e| panic!("{e}")).name(module)
    }

    #[test]
    fn plain_entries_and_expressions() {
        let is = |entry: &str, module: &str| names(Style::Suffixes, &[entry], module);
        assert!(is("head", "head") && is("a.b", "m.a.b") && is("b", "m.a.b"));
        assert!(!is("head", "lm_head") && !is("m.a", "m.a.b") && !is("a.b", "ma.b") && !is("a.b", "xa.b"));
        assert!(is(r"re:.*mlp\.gate$", "m.3.mlp.gate") && !is(r"re:.*mlp\.gate$", "m.3.mlp.gate_proj"));
        assert!(is("re:m", "m.a") && !is("re:a", "m.a"), "from the start, not to the end");
        assert!(is("re:x|m", "m") && !is("re:x|a", "m.a"), "alternatives are anchored together");
        assert!(!is("*", "a"), "no glob here");
        assert!(is(r"re:(?!.*mlp).*proj", "m.attn.proj") && !is(r"re:(?!.*mlp).*proj", "m.mlp.proj"), "looks ahead");
        assert!(is(r"re:.*(?<!gate)_proj", "m.up_proj") && !is(r"re:.*(?<!gate)_proj$", "m.gate_proj"), "and behind");
    }

    #[test]
    fn patterns_that_take_too_long_are_given_up() {
        let mut list = Patterns::new(Style::Suffixes, &[r"re:(?=a)(a|aa)*b".to_owned()]).unwrap();
        assert!(!list.name(&"a".repeat(64)));
        assert!(list.undecided().is_some_and(|why| why.contains("cannot be decided")));
        assert!(!list.name("aab"), "no more are tried");
    }

    #[test]
    fn globs_take_whole_names_or_components() {
        let is = |entry: &str, module: &str| names(Style::Components, &[entry], module);
        assert!(is("m.*.mlp.gate", "m.3.mlp.gate") && !is("m.*.mlp.gate", "m.3.mlp.gate_proj"));
        assert!(is("m.0.attn*", "m.0.attn.q") && !is("m.0.attn*", "m.10.attn.q") && !is("m.1*.attn", "m.1.2.attn.q"));
        assert!(is("attn", "m.0.attn.q") && is("at*", "m.0.attn.q") && !is("tt*", "m.0.attn.q"));
        assert!(!is("m.0.attn", "m.0.attn.q"), "a parent does not stand for its children");
        assert!(is("m.[01].attn*", "m.1.attn.q") && !is("m.[01].attn*", "m.2.attn.q") && !is("m.[!1].*", "m.1.q"));
        assert!(is("m.[0-2].q", "m.1.q") && is("m[", "m[") && !is("m.[].q", "m.1.q"));
        assert!(is("m.0*", "m.00.x") && !is("m.0.*", "mx0.x"), "a dot is a dot");
    }

    #[test]
    fn what_is_no_pattern_is_told_and_bounded() {
        let new = |entry: &str| Patterns::new(Style::Suffixes, &[entry.to_owned()]).err().unwrap_or_default();
        assert!(new("re:(").contains("`re:(` is no pattern that is understood: unclosed group"), "{}", new("re:("));
        assert!(new("re:(?<=a*b").contains("is no pattern"), "{}", new("re:(?<=a*b"));
        assert!(new("re:(((a{100}){100}){100}){100}").contains("bytes"), "{}", new("re:(((a{100}){100}){100}){100}"));
        let mut list = Patterns::new(Style::Suffixes, &["b".to_owned(), "a".to_owned(), "re:c".to_owned()]).unwrap();
        list.name("m.a");
        assert_eq!(list.idle(), ["b"]);
    }
}

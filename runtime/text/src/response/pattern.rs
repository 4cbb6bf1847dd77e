//! One pattern of a template, compiled: a literal, or a regular expression without assertions.
//!
//! A look-ahead may stand where nothing follows it. Its text is then matched like any other, and a marker group
//! remembers where the match really ends.

use super::ResponseError;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::nfa::thompson::{self, NFA, State};
use regex_automata::util::primitives::{PatternID, StateID};
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Class, Hir, HirKind, Repetition};

/// Most bytes that the automaton of one pattern may take.
const AUTOMATON_BYTES: usize = 1 << 20;
/// Longest pattern.
const PATTERN_BYTES: usize = 1 << 14;
/// Deepest nesting of a pattern.
const NESTING: u32 = 50;
/// Begins the names of marker groups.
const MARKER: &str = "ahead__";

/// A compiled pattern that matches no empty text.
#[derive(Debug)]
pub(crate) struct Pattern {
    hir: Hir,
    nfa: NFA,
    groups: PikeVM,
    /// States that wait for a match's first byte, the preferred first.
    start: Vec<StateID>,
    /// Bytes that a match can begin with.
    pub first: [bool; 256],
    names: Vec<String>,
    markers: Vec<usize>,
}

/// What a match caught.
pub(crate) struct Caught {
    /// Length of the match without what was only looked at.
    pub len: usize,
    /// Named groups.
    pub groups: Vec<(String, String)>,
}

impl Pattern {
    /// A text that stands for itself.
    pub fn literal(place: &str, text: &str) -> Result<Pattern, ResponseError> {
        Pattern::compile(place, &Hir::literal(text.as_bytes().to_vec()))
    }

    /// A regular expression.
    pub fn regex(place: &str, text: &str) -> Result<Pattern, ResponseError> {
        Pattern::compile(place, &parse(place, text, false)?)
    }

    /// Compiles an expression.
    pub fn compile(place: &str, hir: &Hir) -> Result<Pattern, ResponseError> {
        let wrong = |problem: String, next: &str| Err(ResponseError::pattern(place, problem, next));
        if hir.properties().minimum_len().is_none_or(|len| len == 0) {
            return wrong("can match empty text".into(), "write at least one character that must be there");
        }
        if !hir.properties().look_set().is_empty() {
            return wrong(
                "has an assertion such as `^`, `$` or `\\b`, which depends on text around it".into(),
                "leave the assertion out",
            );
        }
        let config = thompson::Config::new().nfa_size_limit(Some(AUTOMATON_BYTES));
        let nfa = match NFA::compiler().configure(config).build_from_hir(hir) {
            Ok(nfa) => nfa,
            Err(error) => return wrong(format!("is too large: {error}"), "shorten its repetitions"),
        };
        let groups = match PikeVM::new_from_nfa(nfa.clone()) {
            Ok(groups) => groups,
            Err(error) => return wrong(format!("cannot be run: {error}"), "simplify it"),
        };
        let all: Vec<String> =
            nfa.group_info().pattern_names(PatternID::ZERO).map(|name| name.unwrap_or_default().to_owned()).collect();
        let markers = (0..all.len()).filter(|i| all.get(*i).is_some_and(|n| n.starts_with(MARKER))).collect();
        let names = all.into_iter().filter(|n| !n.is_empty() && !n.starts_with(MARKER)).collect();
        let mut pattern =
            Pattern { hir: hir.clone(), nfa, groups, start: Vec::new(), first: [false; 256], names, markers };
        let mut seen = vec![0; pattern.states()];
        let mut reached = Vec::new();
        pattern.close(pattern.nfa.start_anchored(), 0, 1, &mut seen, &mut reached, &mut Vec::new());
        pattern.start = reached.into_iter().map(|(state, _)| state).collect();
        for byte in 0..=255u8 {
            pattern.first[usize::from(byte)] = pattern.start.iter().any(|s| pattern.step(*s, byte).is_some());
        }
        Ok(pattern)
    }

    /// The expression, with a marker group where text is only looked at.
    pub fn hir(&self) -> &Hir {
        &self.hir
    }

    /// Whether a group marks where text is only looked at.
    pub fn is_marker(group: &str) -> bool {
        group.starts_with(MARKER)
    }

    /// Names of the groups.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many states the automaton has.
    pub fn states(&self) -> usize {
        self.nfa.states().len()
    }

    /// States that wait for a match's first byte.
    pub fn start(&self) -> &[StateID] {
        &self.start
    }

    /// Whether the state is the end of a match.
    pub fn is_match(&self, state: StateID) -> bool {
        matches!(self.nfa.state(state), State::Match { .. })
    }

    /// Where a byte leads from a state.
    pub fn step(&self, state: StateID, byte: u8) -> Option<StateID> {
        match self.nfa.state(state) {
            State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
            State::Sparse(sparse) => sparse.matches_byte(byte),
            State::Dense(dense) => dense.matches_byte(byte),
            _ => None,
        }
    }

    /// Adds the states that are reached from `state` without reading, the preferred first; `seen` holds the round in
    /// which each state was added last.
    pub fn close(
        &self,
        state: StateID,
        start: usize,
        round: u32,
        seen: &mut [u32],
        reached: &mut Vec<(StateID, usize)>,
        stack: &mut Vec<StateID>,
    ) {
        stack.clear();
        stack.push(state);
        while let Some(state) = stack.pop() {
            match seen.get_mut(state.as_usize()) {
                Some(last) if *last != round => *last = round,
                _ => continue,
            }
            match self.nfa.state(state) {
                State::Union { alternates } => stack.extend(alternates.iter().rev()),
                State::BinaryUnion { alt1, alt2 } => stack.extend([*alt2, *alt1]),
                State::Capture { next, .. } | State::Look { next, .. } => stack.push(*next),
                State::Fail => {}
                _ => reached.push((state, start)),
            }
        }
    }

    /// Groups of a match, which is the whole of `text`.
    pub fn caught(&self, text: &str) -> Caught {
        let mut caught = Caught { len: text.len(), groups: Vec::new() };
        if self.names.is_empty() && self.markers.is_empty() {
            return caught;
        }
        let mut found = self.groups.create_captures();
        let input = Input::new(text).anchored(Anchored::Yes);
        self.groups.captures(&mut self.groups.create_cache(), input, &mut found);
        for marker in &self.markers {
            if let Some(span) = found.get_group(*marker) {
                caught.len = span.start;
            }
        }
        for name in &self.names {
            if let Some(group) = found.get_group_by_name(name).and_then(|span| text.get(span.start..span.end)) {
                caught.groups.push((name.clone(), group.to_owned()));
            }
        }
        caught
    }
}

/// Patterns that compete at the same place.
#[derive(Debug)]
pub(crate) struct PatternSet {
    pub patterns: Vec<Pattern>,
    /// Bytes that some match can begin with.
    pub first: [bool; 256],
}

impl PatternSet {
    /// A set; the order decides between matches of the same text.
    pub fn new(patterns: Vec<Pattern>) -> Self {
        let mut first = [false; 256];
        for byte in 0..=255u8 {
            first[usize::from(byte)] = patterns.iter().any(|p| p.first[usize::from(byte)]);
        }
        PatternSet { patterns, first }
    }
}

/// Parses a regular expression.
fn parse(place: &str, text: &str, dot_matches_newline: bool) -> Result<Hir, ResponseError> {
    if text.len() > PATTERN_BYTES {
        let problem = format!("has {} bytes, the limit is {PATTERN_BYTES}", text.len());
        return Err(ResponseError::pattern(place, problem, "shorten it"));
    }
    let marked = mark_look_aheads(place, text)?;
    regex_syntax::ParserBuilder::new()
        .dot_matches_new_line(dot_matches_newline)
        .nest_limit(NESTING)
        .build()
        .parse(&marked)
        .map_err(|error| {
            let (kind, at) = match &error {
                regex_syntax::Error::Parse(e) => (e.kind().to_string(), e.span().start.offset),
                regex_syntax::Error::Translate(e) => (e.kind().to_string(), e.span().start.offset),
                _ => (error.to_string(), 0),
            };
            let next =
                "use groups, classes, alternatives and repetitions; references back and looking back do not exist";
            ResponseError::pattern(place, format!("does not parse near byte {at}: {kind}"), next)
        })
}

/// Writes `(?=X)` as a marker group followed by X, where nothing follows X.
fn mark_look_aheads(place: &str, text: &str) -> Result<String, ResponseError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut class = false;
    let mut count = 0;
    while let Some(c) = rest.chars().next() {
        if !class && rest.starts_with("(?=") {
            let at = text.len() - rest.len();
            if !ends_everything(rest) {
                let problem = format!("has a look-ahead at byte {at} with more behind it");
                return Err(ResponseError::pattern(place, problem, "put the look-ahead last"));
            }
            out.push_str(&format!("(?:(?P<{MARKER}{count}>)"));
            count += 1;
            rest = rest.get(3..).unwrap_or("");
            continue;
        }
        let mut len = c.len_utf8();
        match c {
            '\\' => len += rest.chars().nth(1).map_or(0, char::len_utf8),
            '[' => class = true,
            ']' => class = false,
            _ => {}
        }
        out.push_str(rest.get(..len).unwrap_or(""));
        rest = rest.get(len..).unwrap_or("");
    }
    Ok(out)
}

/// Whether nothing can follow the group that `text` begins with: only closing brackets, and other alternatives.
fn ends_everything(text: &str) -> bool {
    let (mut depth, mut class, mut escaped) = (0i32, false, false);
    // The group itself; then, at its level or further out: just closed, or inside another alternative.
    let (mut closed, mut alternative) = (false, false);
    for c in text.chars() {
        if closed && !alternative && !matches!(c, ')' | '|') {
            return false;
        }
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' if alternative && depth > 0 => depth -= 1,
            ')' => {
                depth -= 1;
                if depth <= 0 {
                    (closed, alternative, depth) = (true, false, 0);
                }
            }
            '|' if closed => alternative = true,
            _ => {}
        }
    }
    true
}

/// A pattern for elements, in two halves.
pub(crate) struct Halves {
    /// From the start to the value; has the group `key`.
    pub opener: Pattern,
    /// What ends the value.
    pub terminator: Pattern,
}

/// Cuts `… (?P<key>…) … (?P<value>.*?) …` at its value. Such a match is the opener's, then the first of the
/// terminator's, which is what makes it possible to read a value before it ends.
pub(crate) fn halves(place: &str, text: &str) -> Result<Halves, ResponseError> {
    let hir = parse(place, text, true)?;
    let wrong = |problem: &str| {
        let next = "write it as `…(?P<key>…)…(?P<value>.*?)…`, with text before and behind the value";
        Err(ResponseError::pattern(place, problem, next))
    };
    let HirKind::Concat(parts) = hir.kind() else { return wrong("is not a sequence with a group `value`") };
    let is_value = |part: &Hir| matches!(part.kind(), HirKind::Capture(c) if c.name.as_deref() == Some("value"));
    let Some(at) = parts.iter().position(is_value) else { return wrong("has no group `value` at its top level") };
    let lazy_any = match parts.get(at).map(Hir::kind) {
        Some(HirKind::Capture(c)) => matches!(c.sub.kind(), HirKind::Repetition(r) if is_lazy_any(r)),
        _ => false,
    };
    if !lazy_any {
        return wrong("has a group `value` other than `.*?`");
    }
    let (before, after) = (parts.get(..at).unwrap_or(&[]), parts.get(at + 1..).unwrap_or(&[]));
    let opener = Pattern::compile(place, &Hir::concat(before.to_vec()))?;
    let terminator = Pattern::compile(place, &Hir::concat(after.to_vec()))?;
    if !opener.names().iter().any(|name| name == "key") {
        return wrong("has no group `key` before its value");
    }
    Ok(Halves { opener, terminator })
}

fn is_lazy_any(repetition: &Repetition) -> bool {
    let any = match repetition.sub.kind() {
        HirKind::Class(Class::Unicode(class)) => {
            matches!(class.ranges(), [range] if range.start() == '\0' && range.end() == char::MAX)
        }
        _ => false,
    };
    any && repetition.min == 0 && repetition.max.is_none() && !repetition.greedy
}

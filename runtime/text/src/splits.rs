//! Cuts a text into words before the vocabulary's merges join them, as `tokenizer.json` says, in time linear in its length.
//!
//! The tokenizer library's own splitter backtracks. On a run of a million spaces it gives up without a word and leaves the
//! rest of the text in one piece, which then has other tokens. Expressions as byte-level vocabularies have them look ahead
//! in one place only, and without it an automaton finds the same words. Any other expression that looks around runs as the
//! library runs it, but says so when it gives up.

use regex_automata::meta::Regex;
use regex_automata::{Input, PatternID};
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, Result, SplitDelimiterBehavior};

/// How such an expression ends: white space, but the last of it only where no word follows.
const SPACES: &str = r"|\s+(?!\S)|\s+";
/// The expression of a byte-level step that has none of its own.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The steps that cut a text.
pub(crate) struct Splits(Vec<Step>);

enum Step {
    /// Cuts at an expression.
    Cut {
        words: Words,
        behavior: SplitDelimiterBehavior,
        invert: bool,
        /// A space is put before each text that begins with none.
        leading_space: bool,
    },
    /// As the library does it.
    Own(PreTokenizerWrapper),
}

/// Finds words.
enum Words {
    /// Without looking around; behind that the last space of a run is left to the word that follows, where the second of
    /// two expressions matched.
    Linear(Regex),
    Backtracking(Box<fancy_regex::Regex>),
}

impl Splits {
    /// The steps of a tokenizer.
    pub fn of(own: &PreTokenizerWrapper) -> Result<Splits> {
        let mut steps = Vec::new();
        add(own, &mut steps)?;
        Ok(Splits(steps))
    }
}

fn add(own: &PreTokenizerWrapper, steps: &mut Vec<Step>) -> Result<()> {
    match own {
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().try_for_each(|one| add(one, steps))?,
        PreTokenizerWrapper::Split(Split { pattern: SplitPattern::Regex(regex), behavior, invert, .. }) => {
            let (words, behavior, invert) = (Words::new(regex)?, *behavior, *invert);
            steps.push(Step::Cut { words, behavior, invert, leading_space: false });
        }
        PreTokenizerWrapper::ByteLevel(level) if level.use_regex => {
            let (words, behavior) = (Words::new(BYTE_LEVEL)?, SplitDelimiterBehavior::Isolated);
            steps.push(Step::Cut { words, behavior, invert: false, leading_space: level.add_prefix_space });
            let bytes = ByteLevel::new(false, level.trim_offsets, false);
            steps.push(Step::Own(PreTokenizerWrapper::ByteLevel(bytes)));
        }
        other => steps.push(Step::Own(other.clone())),
    }
    Ok(())
}

impl PreTokenizer for Splits {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        self.0.iter().try_for_each(|step| match step {
            Step::Own(own) => own.pre_tokenize(text),
            Step::Cut { words, behavior, invert, leading_space } => text.split(|_, mut piece| {
                if *leading_space && !piece.get().starts_with(' ') {
                    piece.prepend(" ");
                }
                match invert {
                    true => piece.split(Invert(words), *behavior),
                    false => piece.split(words, *behavior),
                }
            }),
        })
    }
}

impl Words {
    fn new(regex: &str) -> Result<Words> {
        let (before, spaced) = match regex.strip_suffix(SPACES) {
            Some(before) => (before, true),
            None => (regex, false),
        };
        let never_empty = |hir: regex_syntax::hir::Hir| hir.properties().minimum_len().is_some_and(|len| len > 0);
        if regex_syntax::parse(before).is_ok_and(never_empty) {
            let both = [before, r"\s+"];
            let patterns = both.get(..1 + usize::from(spaced)).unwrap_or(&both);
            if let Ok(regex) = Regex::new_many(patterns) {
                return Ok(Words::Linear(regex));
            }
        }
        Ok(Words::Backtracking(Box::new(fancy_regex::Regex::new(regex)?)))
    }
}

/// The end of the run without its last character, if there is something before that.
fn without_last(run: &str) -> Option<usize> {
    run.char_indices().next_back().map(|(at, _)| at).filter(|at| *at > 0)
}

impl Pattern for &Words {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        let regex = match self {
            Words::Linear(regex) if !inside.is_empty() => regex,
            Words::Linear(_) => return Ok(vec![((0, 0), false)]),
            Words::Backtracking(regex) => {
                let regex: &fancy_regex::Regex = regex;
                return regex.find_matches(inside);
            }
        };
        let mut pieces = Vec::new();
        let mut at = 0;
        while let Some(found) = regex.find(Input::new(inside).span(at..inside.len())) {
            let (start, mut end) = (found.start(), found.end());
            // Only white space that a word follows ends before the end.
            if found.pattern() == PatternID::must(1) && end < inside.len() {
                end = inside.get(start..end).and_then(without_last).map_or(end, |len| start + len);
            }
            if at < start {
                pieces.push(((at, start), false));
            }
            pieces.push(((start, end), true));
            at = end;
        }
        if at < inside.len() {
            pieces.push(((at, inside.len()), false));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use tokenizers::pre_tokenizers::sequence::Sequence;
    use tokenizers::{OffsetReferential, OffsetType};

    /// Public expressions of well-known vocabularies, one without look-around, one with another, and the built-in one.
    const PATTERNS: [&str; 6] = [
        BYTE_LEVEL,
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\p{L}+|\p{N}+",
        r"\p{L}+(?= )|\s+",
        r"a*",
    ];

    fn cut(splitter: &impl PreTokenizer, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        splitter.pre_tokenize(&mut cut).unwrap();
        let pieces = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(piece, offsets, _)| format!("{piece} {offsets:?}")).collect()
    }

    fn splitters() -> Vec<PreTokenizerWrapper> {
        use SplitDelimiterBehavior::{Isolated, MergedWithNext, Removed};
        let mut all = Vec::new();
        for pattern in PATTERNS {
            for (behavior, invert) in [(Isolated, false), (Removed, true), (MergedWithNext, false)] {
                let split = Split::new(SplitPattern::Regex(pattern.into()), behavior, invert).unwrap();
                let bytes = ByteLevel::new(false, true, false);
                all.push(PreTokenizerWrapper::Sequence(Sequence::new(vec![split.into(), bytes.into()])));
            }
        }
        all.extend([true, false].map(|prefix| ByteLevel::new(prefix, true, true).into()));
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Default::default() })]
        #[test]
        fn words_are_those_of_the_library(text in r"([ \t\r\n]{0,4}|[a-cA-Z]{1,3}|'(s|T|re|x)|[0-9]{1,4}|[.,!/<|>]{1,3}|[é東\u{301}\u{a0}\u{3000}\u{85}👩]){0,12}") {
            thread_local!(static ALL: Vec<(PreTokenizerWrapper, Splits)> =
                splitters().into_iter().map(|own| (own.clone(), Splits::of(&own).unwrap())).collect());
            ALL.with(|all| {
                for (own, splits) in all {
                    assert_eq!(cut(splits, &text), cut(own, &text), "{own:?}");
                }
            });
        }
    }

    #[test]
    fn long_runs_are_cut_or_refused_but_never_left_whole() {
        let text = format!("{} a b", " ".repeat(2_000_000));
        let of = |pattern: &str| {
            let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false);
            Splits::of(&split.unwrap().into()).unwrap()
        };
        for pattern in &PATTERNS[..3] {
            let pieces = cut(&of(pattern), &text);
            assert_eq!(pieces.len(), 3, "{pattern}");
            assert!(pieces[1].starts_with(" a ") && pieces[2].starts_with(" b "), "{:?}", &pieces[1..]);
        }
        let looks_around = of(r"\s+(?=x)|\s|\S");
        let error = looks_around.pre_tokenize(&mut PreTokenizedString::from(text.as_str())).unwrap_err();
        assert!(error.to_string().contains("exceeded"), "{error}");
    }
}

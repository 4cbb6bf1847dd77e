//! Stop strings over text that comes in pieces: nothing of a match leaks, and how the text was cut does not matter.

/// Searches for strings that end an answer. The match that is complete first counts; of several complete at the same
/// place, the longest.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    strings: Vec<String>,
    /// The longest suffix seen so far that may begin a stop string.
    held: String,
}

impl StopStrings {
    /// Stop strings; empty ones are left out.
    pub fn new(strings: Vec<String>) -> Self {
        StopStrings { strings: strings.into_iter().filter(|s| !s.is_empty()).collect(), held: String::new() }
    }

    /// Whether there are none, so that nothing is ever held back.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Takes text; returns what is certainly before any stop string, and the stop string if one is complete. What
    /// follows a match is dropped.
    pub fn push(&mut self, text: &str) -> (String, Option<String>) {
        let mut all = std::mem::take(&mut self.held);
        all.push_str(text);
        let matches = self
            .strings
            .iter()
            .filter_map(|stop| all.find(stop.as_str()).map(|start| (start + stop.len(), start, stop)));
        if let Some((_, start, stop)) = matches.min_by_key(|(end, start, _)| (*end, *start)) {
            let stop = stop.clone();
            all.truncate(start);
            return (all, Some(stop));
        }
        self.held = all.split_off(self.certain(&all));
        (all, None)
    }

    /// What was held back, at the end of the answer.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the text before its longest suffix that is the beginning of a stop string.
    fn certain(&self, text: &str) -> usize {
        let longest = self.strings.iter().map(String::len).max().unwrap_or(0);
        let nearby = text.len().saturating_sub(longest);
        let may_begin = |start: usize| {
            let suffix = text.get(start..)?;
            self.strings.iter().any(|stop| stop.starts_with(suffix)).then_some(start)
        };
        (nearby..text.len()).find_map(may_begin).unwrap_or(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut search = StopStrings::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = Vec::new();
        for piece in pieces {
            let (text, stop) = search.push(piece);
            out.push(text);
            if stop.is_some() {
                return (out, stop);
            }
        }
        out.push(search.finish());
        (out, None)
    }

    #[test]
    fn a_match_over_pieces_never_leaks_its_beginning() {
        assert_eq!(run(&["END"], &["aE", "N", "Dx"]), (vec!["a".into(), "".into(), "".into()], Some("END".into())));
        assert_eq!(run(&["END"], &["aE", "N", "x"]), (vec!["a".into(), "".into(), "ENx".into(), "".into()], None));
        assert_eq!(run(&["END"], &["aEN"]), (vec!["a".into(), "EN".into()], None));
        assert_eq!(run(&["éé"], &["xé", "é"]), (vec!["x".into(), "".into()], Some("éé".into())));
        assert_eq!(run(&["aab"], &["aa", "ab"]), (vec!["".into(), "a".into()], Some("aab".into())));
    }

    #[test]
    fn the_match_that_is_complete_first_counts() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), (vec!["xa".into()], Some("bc".into())));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), (vec!["x".into()], Some("abc".into())));
        assert_eq!(run(&[], &["x"]), (vec!["x".into(), "".into()], None));
        assert_eq!(run(&[""], &["x"]), (vec!["x".into(), "".into()], None));
    }

    proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Default::default() })]
        #[test]
        fn cuts_do_not_matter(text in "[abé]{0,20}", stops in proptest::collection::vec("[abé]{1,4}", 0..4), cuts: [bool; 20]) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let whole = run(&stops, &[&text]);
            let mut pieces = vec![String::new()];
            for (c, cut) in text.chars().zip(cuts) {
                pieces.last_mut().unwrap().push(c);
                if cut {
                    pieces.push(String::new());
                }
            }
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let cut = run(&stops, &pieces);
            prop_assert_eq!(whole.0.concat(), cut.0.concat());
            prop_assert_eq!(&whole.1, &cut.1);
            if let Some(stop) = whole.1 {
                prop_assert!(text.starts_with(&(whole.0.concat() + &stop)));
            } else {
                prop_assert_eq!(whole.0.concat(), text);
            }
        }
    }
}

//! One choice's place in a grammar, as the engine follows it; it must not hold the engine up.

use engine::{Constraint, TokenMask, Verdict};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use text::grammar::{Grammar, Matcher};

/// Time that the masks of one request may take at first: some states are worked out once and kept.
const TIME_AT_FIRST: Duration = Duration::from_secs(1);
/// Time that a token of each of its answers adds to it.
const TIME_PER_TOKEN: Duration = Duration::from_millis(5);

/// One choice's place in a grammar. All choices of a step wait for each other's masks, so a request whose masks take too long
/// ends.
pub(crate) struct Following {
    matcher: Matcher,
    words: usize,
    left: Arc<Mutex<Left>>,
}

/// Time that is left to all choices of a request.
#[derive(Clone, Copy, Debug)]
struct Left {
    time: Duration,
    choices: u32,
}

impl Left {
    fn new(choices: usize) -> Left {
        Left { time: TIME_AT_FIRST, choices: u32::try_from(choices).unwrap_or(u32::MAX).max(1) }
    }

    /// Takes what a mask took.
    fn spend(&mut self, took: Duration) -> Result<(), String> {
        self.time = self.time.checked_sub(took).ok_or_else(|| {
            let (first, each) = (TIME_AT_FIRST.as_millis(), TIME_PER_TOKEN.as_millis());
            format!(
                "X0310: following the grammar took {} ms too long, {first} ms and {each} ms a token are allowed to all answers together; simplify the schema or grammar",
                (took - self.time).as_millis()
            )
        })?;
        Ok(())
    }

    /// A token was chosen.
    fn earn(&mut self) {
        self.time = TIME_AT_FIRST.min(self.time + TIME_PER_TOKEN / self.choices);
    }
}

impl Following {
    /// Choices of one request at the beginning of a grammar.
    pub fn choices(grammar: &Arc<Grammar>, choices: usize) -> impl Iterator<Item = Following> {
        Following::each(std::iter::repeat_n(grammar.clone(), choices).collect())
    }

    /// Choices of one request, each at the beginning of its grammar.
    pub fn each(grammars: Vec<Arc<Grammar>>) -> impl Iterator<Item = Following> {
        let left = Arc::new(Mutex::new(Left::new(grammars.len())));
        let one = move |grammar: Arc<Grammar>| Following {
            matcher: grammar.matcher(),
            words: grammar.vocab().div_ceil(32),
            left: left.clone(),
        };
        grammars.into_iter().map(one)
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timed<T>(&mut self, work: impl FnOnce(&mut Matcher, usize) -> Result<T, String>) -> Result<T, String> {
        let begun = Instant::now();
        let outcome = work(&mut self.matcher, self.words)?;
        self.left().spend(begun.elapsed())?;
        Ok(outcome)
    }
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a grammar's state")
    }
}

impl Constraint for Following {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        self.timed(|matcher, words| {
            let mut mask = vec![0; words];
            matcher.mask(&mut mask).map_err(|error| error.to_string())?;
            Ok(Some(mask))
        })
    }

    fn masks(&mut self, run: &[u32]) -> Result<Vec<Option<TokenMask>>, String> {
        self.timed(|matcher, words| {
            let masks = matcher.masks(run, words).map_err(|error| error.to_string())?;
            Ok(masks.into_iter().map(Some).collect())
        })
    }

    fn advance(&mut self, token: u32) -> Result<Verdict, String> {
        self.matcher.advance(token).map_err(|error| error.to_string())?;
        self.left().earn();
        Ok(if self.matcher.ended() { Verdict::Complete } else { Verdict::Open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_may_be_slow_now_and_then_and_not_always() {
        let mut left = Left::new(1);
        left.spend(TIME_AT_FIRST - TIME_PER_TOKEN).unwrap();
        // As much as each token earns goes on for ever.
        for _ in 0..1000 {
            left.earn();
            left.spend(TIME_PER_TOKEN).unwrap();
        }
        left.spend(TIME_PER_TOKEN).unwrap();
        let error = left.spend(Duration::from_millis(3)).unwrap_err();
        assert!(error.contains("took 3 ms too long"), "{error}");
        // Nothing is saved up beyond what there was at first.
        (0..10_000).for_each(|_| left.earn());
        assert!(left.spend(TIME_AT_FIRST).is_ok() && left.spend(Duration::from_nanos(1)).is_err());
        // Choices share what a token of each brings.
        let mut left = Left::new(5);
        left.spend(TIME_AT_FIRST).unwrap();
        (0..5).for_each(|_| left.earn());
        assert!(left.spend(TIME_PER_TOKEN).is_ok() && left.spend(Duration::from_nanos(1)).is_err());
    }
}

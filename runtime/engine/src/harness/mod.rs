//! A deterministic harness: the real scheduler, cache, tree and host tier under random load, with every book checked at
//! every step.
//!
//! A seed makes a [`Script`]: a setting and a list of actions. The same script always does the same. What it checks: the
//! books ([`Engine::check_books`]), that every answer is what the model says alone, that no prefix comes from another
//! namespace or from nowhere, that every request ends and holds nothing then. A failing script is shortened, and its
//! text is Rust-like data that a person can read and [`Script::parse`] reads back.

mod run;
mod script;

pub use run::{Outcome, run};
pub use script::{Action, Script, Setting};

/// Runs a seed; the error is the shortest failing script that was found, with what went wrong.
pub fn try_seed(seed: u64, actions: usize) -> Result<Outcome, String> {
    let script = Script::from_seed(seed, actions);
    match run(&script) {
        Ok(outcome) => Ok(outcome),
        Err(_) => {
            let short = shorten(script);
            let error = run(&short).err().unwrap_or_default();
            Err(format!("seed {seed}: {error}\n{short}"))
        }
    }
}

/// Leaves out actions as long as the script still fails.
pub fn shorten(mut script: Script) -> Script {
    let mut size = script.actions.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < script.actions.len() {
            let mut shorter = script.clone();
            shorter.actions.drain(at..(at + size).min(script.actions.len()));
            if run(&shorter).is_err() {
                script = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_read_back() {
        for seed in 0..50 {
            let script = Script::from_seed(seed, 40);
            assert_eq!(Script::parse(&script.to_string()), Ok(script));
        }
    }

    fn hold(seeds: std::ops::Range<u64>, expected: Outcome) {
        let mut sum = Outcome::default();
        for seed in seeds {
            match try_seed(seed, 150) {
                Ok(outcome) => sum.add(&outcome),
                Err(text) => panic!("{text}"),
            }
        }
        // Whoever changes what is kept, evicted, moved or preempted sees it here, and means it.
        assert_eq!(sum, expected);
    }

    /// A few seeds by themselves: whoever looks for faults one by one finds most of them here.
    #[test]
    fn the_first_seeds_hold() {
        let expected = Outcome {
            steps: 26_861,
            requests: 1_961,
            cached_tokens: 17_877,
            preempted: 217,
            forked: 144,
            evicted: 10_751,
            moved: 4_183,
            backed_up: 3_630,
            loaded: 109,
            joined: 9,
            verified: 885,
            accepted: 748,
        };
        hold(0..30, expected);
    }

    /// Every book at every step, under everything that can happen; and everything did happen.
    #[test]
    fn seeds_hold_every_invariant() {
        let expected = Outcome {
            steps: 290_147,
            requests: 24_901,
            cached_tokens: 193_772,
            preempted: 2_256,
            forked: 1_864,
            evicted: 124_999,
            moved: 31_718,
            backed_up: 35_348,
            loaded: 1_594,
            joined: 180,
            verified: 14_485,
            accepted: 12_688,
        };
        hold(30..400, expected);
    }
}

//! One choice's place in a grammar, as the engine follows it; it must not hold the engine up.

use super::Params;
use engine::{Constraint, TokenMask, Verdict};
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use text::grammar::{Grammar, GrammarError, Matcher};

/// Time that the masks of one request may take at first: some states are worked out once and kept.
const TIME_AT_FIRST: Duration = Duration::from_secs(1);
/// Time that a token of each of its answers adds to it.
const TIME_PER_TOKEN: Duration = Duration::from_millis(5);

/// Time that one look ahead may take: with it, masks of drafts hold a step up no longer than a token's may.
const TIME_AHEAD: Duration = TIME_PER_TOKEN;

/// One choice's place in a grammar. All choices of a step wait for each other's masks, so a request whose masks take too long
/// ends.
pub(crate) struct Following {
    matcher: Matcher,
    words: usize,
    left: Arc<Mutex<Left>>,
    fault: Fault,
    least: Least,
    /// Tokens so far.
    taken: usize,
}

/// How long an answer goes on at least, as far as its grammar admits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Least {
    /// So many tokens.
    pub tokens: usize,
    /// Tokens that end it all the same.
    pub stops: Vec<u32>,
}

impl Least {
    /// What a request says.
    pub fn of(params: &Params) -> Least {
        let tokens = if params.ignores_end { usize::MAX } else { params.min_tokens };
        Least { tokens, stops: params.stop_tokens.clone() }
    }
}

/// Why a grammar could not be followed to its end, where the request's grammar is the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fault(Arc<OnceLock<String>>);

impl Fault {
    /// The reason, once there is one.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// An error's text. Only limits that the grammar exceeds are the request's; all else is this server's own defect.
    fn note(&self, error: GrammarError) -> String {
        let text = error.to_string();
        if matches!(error, GrammarError::Failed { .. }) {
            self.0.get_or_init(|| text.clone());
        }
        text
    }
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
    pub fn choices(grammar: &Arc<Grammar>, choices: usize, least: Least) -> impl Iterator<Item = Following> {
        Following::each(std::iter::repeat_n((grammar.clone(), least), choices).collect())
    }

    /// Choices of one request, each at the beginning of its grammar.
    pub fn each(grammars: Vec<(Arc<Grammar>, Least)>) -> impl Iterator<Item = Following> {
        let left = Arc::new(Mutex::new(Left::new(grammars.len())));
        let one = move |(grammar, least): (Arc<Grammar>, Least)| Following {
            matcher: grammar.matcher(),
            words: grammar.vocab().div_ceil(32),
            left: left.clone(),
            fault: Fault::default(),
            least,
            taken: 0,
        };
        grammars.into_iter().map(one)
    }

    /// Where it tells why it could not go on.
    pub fn fault(&self) -> Fault {
        self.fault.clone()
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time that this thread has computed for: others that take its core meanwhile are not the request's doing.
fn computed() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a grammar's state")
    }
}

impl Constraint for Following {
    fn mask(&mut self) -> Result<Option<TokenMask>, String> {
        Ok(self.masks(&[])?.into_iter().next().flatten())
    }

    fn masks(&mut self, run: &[u32]) -> Result<Vec<Option<TokenMask>>, String> {
        let begun = computed();
        let (taken, least) = (self.taken, &self.least);
        // Only the first mask is paid for, as without drafts: of those behind it nobody knows yet whether they are used.
        let mut first = Duration::ZERO;
        let masks = self.matcher.masks_with(run, self.words, |matcher, ahead, mask| {
            if taken.saturating_add(ahead) < least.tokens {
                matcher.keep_open(mask, &least.stops)?;
            }
            let took = computed().saturating_sub(begun);
            if ahead == 0 {
                first = took;
            }
            Ok(took.saturating_sub(first) < TIME_AHEAD)
        });
        let masks = masks.map_err(|error| self.fault.note(error))?;
        let spent = self.left().spend(first);
        if let Err(text) = &spent {
            self.fault.0.get_or_init(|| text.clone());
        }
        spent?;
        Ok(masks.into_iter().map(Some).collect())
    }

    fn advance(&mut self, token: u32) -> Result<Verdict, String> {
        self.matcher.advance(token).map_err(|error| self.fault.note(error))?;
        self.taken += 1;
        self.left().earn();
        Ok(if self.matcher.ended() { Verdict::Complete } else { Verdict::Open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::grammar::{Compiler, GrammarSpec, Limits};

    #[test]
    fn what_other_threads_compute_is_not_counted() {
        let some = Duration::from_millis(20);
        let (tell, told) = std::sync::mpsc::channel();
        let begun = computed();
        std::thread::spawn(move || {
            let own = computed();
            while computed() - own < some {}
            tell.send(()).unwrap();
        });
        told.recv().unwrap();
        assert!(computed() - begun < some);
    }

    #[test]
    fn masks_ahead_of_drafts_are_not_paid_for() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/beam-nano");
        let tokenizer = Arc::new(text::Tokenizer::load(&dir.join("tokenizer.json")).unwrap());
        let limits = Limits { time: Duration::from_secs(600), ..Limits::default() };
        let compiler = Compiler::new(tokenizer.clone(), &[2046], limits).unwrap();
        let list = "[\"東京 a\", \"b\\n\", \"c d e\", \"123\", \"é!\", \"x\"]";
        let ids = tokenizer.encode(list, false).unwrap();
        let schema = serde_json::json!({"type": "array", "items": {"type": "string", "pattern": "^[^q]{1,40}$"}});
        let spec = GrammarSpec::JsonSchema { schema, strict: true };
        let grammar = compiler.compile(&spec).unwrap();
        let mut following = Following::choices(&grammar, 1, Least::default()).next().unwrap();
        let begun = computed();
        let masks = following.masks(&ids).unwrap().len();
        let took = computed() - begun;
        let spent = TIME_AT_FIRST - following.left().time;
        // The first mask was worked out when the grammar was compiled; all others take their time here.
        assert!(masks > 4 && spent < took / 2, "{spent:?} of {took:?} were paid for, {masks} masks");
    }

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

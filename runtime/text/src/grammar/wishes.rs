//! What was wished for lately: a wish that comes again finds its grammar without being lowered to text, so that it needs no
//! place among those who compile; one that took too long is known, too, and takes no second one for a while.

use super::{Grammar, GrammarSpec};
use crate::response::ResponseTemplate;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What tells a wish from others.
pub(crate) type Identity = [u64; 2];

/// Tells wishes apart by keys that nobody outside knows, so that no two can be made that look the same.
#[derive(Default)]
pub(crate) struct Identities([RandomState; 2]);

impl Identities {
    /// The identity of a wish; takes as long as reading it.
    pub fn of(&self, spec: &GrammarSpec) -> Identity {
        let mut hashing = Hashing(self.0.each_ref().map(BuildHasher::build_hasher));
        // Hashing refuses nothing.
        let _ = spec.write_identity(&mut hashing);
        hashing.0.each_ref().map(Hasher::finish)
    }
}

/// The last wishes.
pub(crate) struct Wishes {
    all: VecDeque<Wish>,
    most: usize,
}

struct Wish {
    identity: Identity,
    /// Bound to this template, whose address is part of the identity.
    _template: Option<Arc<ResponseTemplate>>,
    became: Became,
}

enum Became {
    Grammar(Weak<Grammar>),
    /// It took too long, so many times; it is not tried again before.
    Slow {
        until: Instant,
        times: u32,
    },
}

/// How long a wish that took too long is refused at once: then the machine may be less busy. Twice as long each time.
const PAUSE: Duration = Duration::from_secs(10);
/// Times after which it gets no longer.
const MOST_TIMES: u32 = 6;

/// What became of a wish.
pub(crate) enum Found {
    /// Its grammar.
    Grammar(Arc<Grammar>),
    /// It took too long, so many times, and has to wait.
    Slow(u32),
}

impl Wishes {
    /// Keeps the last `most`.
    pub fn new(most: usize) -> Wishes {
        Wishes { all: VecDeque::new(), most: most.max(1) }
    }

    /// What became of a wish. `None` if it is not known, or may be tried again.
    pub fn find(&mut self, identity: Identity) -> Option<Found> {
        let at = self.all.iter().position(|wish| wish.identity == identity)?;
        let wish = self.all.remove(at)?;
        let found = match &wish.became {
            Became::Slow { until, times } => (Instant::now() < *until).then_some(Found::Slow(*times)),
            Became::Grammar(grammar) => grammar.upgrade().filter(|grammar| !grammar.is_spoilt()).map(Found::Grammar),
        };
        // What is wished for again is not the next to be forgotten.
        self.all.push_back(wish);
        found
    }

    /// A wish was compiled.
    pub fn met(&mut self, identity: Identity, spec: &GrammarSpec, grammar: &Arc<Grammar>) {
        self.add(identity, spec, Became::Grammar(Arc::downgrade(grammar)));
    }

    /// A wish took too long, unless it was met at the last moment; how many times so far. Who waited and who compiled both
    /// say so, and it counts once.
    pub fn gave_up(&mut self, identity: Identity, spec: &GrammarSpec) -> u32 {
        match self.find(identity) {
            Some(Found::Slow(times)) => times,
            Some(Found::Grammar(_)) => 1,
            None => {
                let known = self.all.iter().find(|wish| wish.identity == identity);
                let before = known.map_or(0, |wish| match wish.became {
                    Became::Slow { times, .. } => times,
                    Became::Grammar(_) => 0,
                });
                let (times, now) = (before.saturating_add(1).min(MOST_TIMES), Instant::now());
                let pause = PAUSE.saturating_mul(1 << (times - 1));
                self.add(identity, spec, Became::Slow { until: now.checked_add(pause).unwrap_or(now), times });
                times
            }
        }
    }

    pub fn forget(&mut self) {
        self.all.clear();
    }

    fn add(&mut self, identity: Identity, spec: &GrammarSpec, became: Became) {
        self.all.retain(|wish| wish.identity != identity);
        while self.all.len() >= self.most {
            self.all.pop_front();
        }
        self.all.push_back(Wish { identity, _template: spec.template().cloned(), became });
    }
}

/// Hashes what is written.
struct Hashing([DefaultHasher; 2]);

impl fmt::Write for Hashing {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.iter_mut().for_each(|hasher| hasher.write(text.as_bytes()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_slow_waits_longer_each_time() {
        let spec = GrammarSpec::Regex("a".to_owned());
        let (mut wishes, identity) = (Wishes::new(4), [1, 2]);
        for times in 1..=MOST_TIMES + 1 {
            let times = times.min(MOST_TIMES);
            assert!(wishes.find(identity).is_none());
            let begun = Instant::now();
            assert_eq!(wishes.gave_up(identity, &spec), times);
            // Told twice, it counts once.
            assert_eq!(wishes.gave_up(identity, &spec), times);
            assert!(matches!(wishes.find(identity), Some(Found::Slow(known)) if known == times));
            let Some(Became::Slow { until, .. }) = wishes.all.back_mut().map(|wish| &mut wish.became) else {
                unreachable!("it is the last that was asked for")
            };
            assert!(*until >= begun + PAUSE * (1 << (times - 1)));
            *until = begun;
        }
    }
}

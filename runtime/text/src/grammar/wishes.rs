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
    /// It took too long; it is not tried again before.
    Slow {
        until: Instant,
    },
}

/// How long a wish that took too long is refused at once: then the machine may be less busy.
const PAUSE: Duration = Duration::from_secs(10);

impl Wishes {
    /// Keeps the last `most`.
    pub fn new(most: usize) -> Wishes {
        Wishes { all: VecDeque::new(), most: most.max(1) }
    }

    /// What became of a wish: its grammar, or that it took too long. `None` if it is not known.
    pub fn find(&mut self, identity: Identity) -> Option<Option<Arc<Grammar>>> {
        let at = self.all.iter().position(|wish| wish.identity == identity)?;
        let wish = self.all.remove(at)?;
        let found = match &wish.became {
            Became::Slow { until } => (Instant::now() < *until).then_some(None),
            Became::Grammar(grammar) => grammar.upgrade().filter(|grammar| !grammar.is_spoilt()).map(Some),
        };
        // What is wished for again is not the next to be forgotten.
        self.all.push_back(wish);
        found
    }

    /// A wish was compiled.
    pub fn met(&mut self, identity: Identity, spec: &GrammarSpec, grammar: &Arc<Grammar>) {
        self.add(identity, spec, Became::Grammar(Arc::downgrade(grammar)));
    }

    /// A wish took too long, unless it was met at the last moment.
    pub fn gave_up(&mut self, identity: Identity, spec: &GrammarSpec) {
        if self.find(identity).flatten().is_none() {
            let now = Instant::now();
            self.add(identity, spec, Became::Slow { until: now.checked_add(PAUSE).unwrap_or(now) });
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

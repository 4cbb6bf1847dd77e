//! Masks, kept in part: in a state of the lexer most tokens stay inside one lexeme, whatever the parser stands at. Which they
//! are depends on that state alone, so they are found once; only the others are tried against the parser each time.
//!
//! Long free text needs this: its states come again and again, and each would cost a walk over the whole vocabulary.

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most states of one grammar that are kept.
const STATES: usize = 48;
/// A state whose mask takes longer is worth keeping.
const SLOW: Duration = Duration::from_micros(100);
/// A state is kept if at most one in so many tokens must be tried against the parser.
const SHARE: usize = 8;

/// Makes the masks of one grammar.
pub(crate) struct MaskKeeper {
    slicer: Arc<SlicedBiasComputer>,
    /// All tokens, ordered by their bytes.
    sorted: Arc<[u32]>,
    kept: Mutex<HashMap<StateID, Kept>>,
}

enum Kept {
    /// Was slow once.
    Slow,
    /// Keeping it is not worth its place.
    Whole,
    /// Tokens that stay inside a lexeme, and those that must be tried.
    Split(Arc<(SimpleVob, Vec<u32>)>),
}

impl MaskKeeper {
    pub fn new(slicer: Arc<SlicedBiasComputer>, sorted: Arc<[u32]>) -> MaskKeeper {
        MaskKeeper { slicer, sorted, kept: Mutex::new(HashMap::new()) }
    }

    /// Bytes that the kept masks take.
    pub fn bytes(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |kept: &Kept| match kept {
            Kept::Split(split) => 4 * (split.0.as_slice().len() + split.1.len()),
            Kept::Slow | Kept::Whole => 0,
        };
        kept.values().map(of).sum()
    }

    /// Tokens ordered by their bytes.
    pub fn sorted(trie: &TokTrie) -> Arc<[u32]> {
        let mut all: Vec<u32> = (0..trie.vocab_size() as u32).filter(|id| !trie.token(*id).is_empty()).collect();
        all.sort_by(|a, b| trie.token(*a).cmp(trie.token(*b)));
        all.into()
    }

    /// Splits the tokens at the recogniser's state.
    fn split(&self, rec: &mut ParserRecognizer<'_>) -> (SimpleVob, Vec<u32>) {
        let trie = self.slicer.trie();
        let (mut inside, mut rest) = (trie.alloc_token_set(), Vec::new());
        // The kind of step that stays inside a lexeme. Its type has no public name, so it is known by how it prints.
        let mut staying = None;
        rec.trie_started("split");
        let mut walk = Walk::default();
        for id in self.sorted.iter() {
            let word = trie.token(*id);
            let stays = walk.along(rec, word, |rec, byte| {
                let state = rec.lexer_state();
                let step = rec.lexer_mut().advance(state, byte, false, &None);
                if staying.is_none() && format!("{step:?}").starts_with("State(") {
                    staying = Some(discriminant(&step));
                }
                staying == Some(discriminant(&step)) && rec.try_push_byte(byte)
            });
            match stays {
                true => inside.allow_token(*id),
                false => rest.push(*id),
            }
        }
        rec.pop_bytes(walk.depth);
        rec.trie_finished();
        (inside, rest)
    }

    /// Adds those of the ordered tokens that the parser admits.
    fn tried(&self, rec: &mut ParserRecognizer<'_>, tokens: &[u32], set: &mut SimpleVob) {
        let trie = self.slicer.trie();
        rec.trie_started("tried");
        let mut walk = Walk::default();
        for id in tokens {
            if walk.along(rec, trie.token(*id), |rec, byte| rec.try_push_byte(byte)) {
                set.allow_token(*id);
            }
        }
        rec.pop_bytes(walk.depth);
        rec.trie_finished();
    }
}

/// A walk along ordered words; what two neighbours share is walked once.
#[derive(Default)]
struct Walk<'a> {
    word: &'a [u8],
    /// Bytes of the word that are pushed.
    depth: usize,
}

impl<'a> Walk<'a> {
    /// Whether the whole word can be pushed; `push` pushes a byte or refuses it.
    fn along(
        &mut self,
        rec: &mut ParserRecognizer<'_>,
        word: &'a [u8],
        mut push: impl FnMut(&mut ParserRecognizer<'_>, u8) -> bool,
    ) -> bool {
        let shared = self.word.iter().zip(word).take_while(|(a, b)| a == b).count();
        if shared > self.depth {
            // The word before was refused in what they share.
            return false;
        }
        rec.pop_bytes(self.depth - shared);
        (self.word, self.depth) = (word, shared);
        while let Some(byte) = word.get(self.depth) {
            if !push(rec, *byte) {
                return false;
            }
            self.depth += 1;
        }
        true
    }
}

impl BiasComputer for MaskKeeper {
    fn compute_bias(&self, rec: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() {
            return self.slicer.compute_bias(rec, start);
        }
        let state = rec.lexer_state();
        let (slow, full) = {
            let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            match kept.get(&state) {
                Some(Kept::Split(split)) => {
                    let split = Arc::clone(split);
                    drop(kept);
                    let mut set = split.0.clone();
                    self.tried(rec, &split.1, &mut set);
                    return set;
                }
                Some(Kept::Slow) => (true, false),
                Some(Kept::Whole) => (false, true),
                None => (false, kept.len() >= STATES),
            }
        };
        if slow {
            let (mut set, rest) = self.split(rec);
            let split = Arc::new((set.clone(), rest));
            self.tried(rec, &split.1, &mut set);
            let worth = split.1.len() * SHARE <= self.sorted.len();
            self.keep(state, if worth { Kept::Split(split) } else { Kept::Whole });
            return set;
        }
        let begun = Instant::now();
        let set = self.slicer.compute_bias(rec, start);
        if !full && begun.elapsed() > SLOW {
            self.keep(state, Kept::Slow);
        }
        set
    }

    fn trie(&self) -> &TokTrie {
        self.slicer.trie()
    }
}

impl MaskKeeper {
    fn keep(&self, state: StateID, what: Kept) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(state, what);
    }
}

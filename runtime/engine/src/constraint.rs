//! What an answer may say, token by token: the engine's view of a grammar.
//!
//! The engine knows no grammar. It asks for the tokens that may come next before a step, tells which one was chosen after
//! it, and ends the request, and only that one, when the constraint cannot go on.

use std::fmt::Debug;

/// Tokens by bit, one per id in words of 32, lowest first.
pub type TokenMask = Vec<u32>;

/// Where an answer stands after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// More may follow.
    Open,
    /// The answer ends here, whatever the request says about its ending tokens.
    Complete,
}

/// The state of one answer under a grammar.
pub trait Constraint: Send + Debug {
    /// Tokens that may come next; `None` admits all. The text of an error says why none can be told.
    fn mask(&mut self) -> Result<Option<TokenMask>, String>;

    /// Masks for a run of tokens that is only proposed, such as a draft to verify: the one before each of its tokens, and
    /// the one behind the last. They end with the first that does not admit its token, for nothing behind that can be
    /// chosen. Changes nothing: what is chosen comes by [`Constraint::advance`].
    ///
    /// A constraint that cannot look ahead gives the first alone, so that one token a step is chosen.
    fn masks(&mut self, run: &[u32]) -> Result<Vec<Option<TokenMask>>, String> {
        let _ = run;
        Ok(vec![self.mask()?])
    }

    /// Takes the chosen token. The text of an error says why it cannot stand here.
    fn advance(&mut self, token: u32) -> Result<Verdict, String>;
}

/// Whether a mask admits a token; without a mask all are.
pub fn admits(mask: Option<&[u32]>, token: u32) -> bool {
    mask.is_none_or(|words| words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1))
}

/// A mask that admits the ids below `len` of a vocabulary of `vocab`.
pub fn mask_below(len: usize, vocab: usize) -> TokenMask {
    let word = |first: usize| match len.saturating_sub(first) {
        0 => 0,
        left if left < 32 => (1 << left) - 1,
        _ => u32::MAX,
    };
    (0..vocab).step_by(32).map(word).collect()
}

/// Takes ids out of a mask.
pub fn forbid(mask: &mut [u32], ids: &[u32]) {
    for id in ids {
        if let Some(word) = mask.get_mut(*id as usize / 32) {
            *word &= !(1 << (id % 32));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_words_of_32_ids_lowest_first() {
        assert_eq!(mask_below(33, 70), [u32::MAX, 1, 0]);
        assert_eq!(mask_below(70, 70), [u32::MAX, u32::MAX, 0b11_1111]);
        assert_eq!(mask_below(0, 5), [0]);
        let mut mask = mask_below(40, 40);
        forbid(&mut mask, &[0, 31, 33, 4000]);
        assert_eq!(mask, [!(1 | 1 << 31), 0b1111_1101]);
        assert_eq!(
            [0, 1, 32, 33, 39, 40, 64].map(|id| admits(Some(&mask), id)),
            [false, true, true, false, true, false, false]
        );
        assert!(admits(None, 64));
    }
}

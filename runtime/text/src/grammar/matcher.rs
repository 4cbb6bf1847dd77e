//! One sequence that follows a grammar.

use super::GrammarError;
use super::compiler::Grammar;
use llguidance::api::StopReason;
use std::sync::Arc;

/// Follows one sequence through a grammar. A clone goes its own way from where it was made, so that several
/// continuations of one prefix can be looked at; [`Matcher::rollback`] does the same at less cost.
#[derive(Clone)]
pub struct Matcher {
    grammar: Arc<Grammar>,
    inner: llguidance::Matcher,
    /// Tokens so far, which rollback can take back.
    taken: Vec<u32>,
    /// Whether the last token ended the answer.
    ended: bool,
}

impl Matcher {
    pub(crate) fn new(grammar: Arc<Grammar>, inner: llguidance::Matcher) -> Matcher {
        Matcher { grammar, inner, taken: Vec::new(), ended: false }
    }

    /// Writes the tokens that may come next, one bit per id in words of 32, lowest first. Words and bits beyond the
    /// tokenizer's vocabulary become 0, so `words` may cover a padded one. Where the grammar may end, tokens that end an
    /// answer are among them; where it must, they are all.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), GrammarError> {
        let vocab = self.grammar.vocab();
        let needed = vocab.div_ceil(32);
        if words.len() < needed {
            return Err(GrammarError::MaskSize { words: words.len(), needed, vocab });
        }
        words.fill(0);
        if self.finished() {
            self.grammar.stop().iter().for_each(|id| set(words, *id));
            return Ok(());
        }
        let mask = self.inner.compute_mask_or_eos();
        let mask = mask.map_err(|error| self.failed(error))?;
        for (word, bits) in words.iter_mut().zip(mask.as_slice()) {
            *word = *bits;
        }
        if let (Some(last), true) = (words.get_mut(needed - 1), !vocab.is_multiple_of(32)) {
            *last &= u32::MAX >> (32 - vocab % 32);
        }
        Ok(())
    }

    /// The next token of the sequence. A token that the grammar does not admit is an error that changes nothing.
    pub fn advance(&mut self, token: u32) -> Result<(), GrammarError> {
        if self.grammar.stop().contains(&token) {
            if !self.accepting() {
                return Err(GrammarError::Refused { token });
            }
            self.ended = true;
            self.taken.push(token);
            return Ok(());
        }
        if self.ended || token as usize >= self.grammar.vocab() {
            return Err(GrammarError::Refused { token });
        }
        match self.inner.try_consume_tokens(&[token]) {
            Ok(1) => {
                self.taken.push(token);
                Ok(())
            }
            Ok(_) => Err(GrammarError::Refused { token }),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Takes the longest beginning of `tokens` that the grammar admits; returns its length. What comes after a token that
    /// ends the answer is not taken.
    pub fn advance_all(&mut self, tokens: &[u32]) -> Result<usize, GrammarError> {
        for (taken, token) in tokens.iter().enumerate() {
            match self.advance(*token) {
                Ok(()) if self.ended => return Ok(taken + 1),
                Ok(()) => {}
                Err(GrammarError::Refused { .. }) => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
        Ok(tokens.len())
    }

    /// Masks for a run of tokens: the mask before each of them and the one behind the last, as far as the grammar admits
    /// them. `change` gets each mask, with how many of the tokens come before it, and the matcher that stands there, which stays
    /// where it is; it says whether the next one is still wanted.
    pub fn masks_with(
        &mut self,
        tokens: &[u32],
        words: usize,
        mut change: impl FnMut(&mut Matcher, usize, &mut [u32]) -> Result<bool, GrammarError>,
    ) -> Result<Vec<Vec<u32>>, GrammarError> {
        let mut masks = Vec::with_capacity(tokens.len() + 1);
        let mut taken = 0;
        let outcome = loop {
            let mut mask = vec![0; words];
            let goes_on = match self.mask(&mut mask).and_then(|()| change(self, taken, &mut mask)) {
                Ok(goes_on) => goes_on,
                Err(error) => break Err(error),
            };
            masks.push(mask);
            let Some(token) = tokens.get(taken).filter(|_| goes_on) else { break Ok(()) };
            match self.advance(*token) {
                Ok(()) => taken += 1,
                Err(GrammarError::Refused { .. }) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        outcome?;
        self.rollback(taken)?;
        Ok(masks)
    }

    /// Takes out of a mask what ends the sequence: tokens that end an answer but those in `kept`, and control tokens and ends of
    /// closing texts behind which nothing else could come. A mask that would have nothing left stays as it is.
    pub fn keep_open(&mut self, words: &mut [u32], kept: &[u32]) -> Result<(), GrammarError> {
        let grammar = Arc::clone(&self.grammar);
        let mut open = words.to_vec();
        grammar.stop().iter().filter(|id| !kept.contains(id)).for_each(|id| unset(&mut open, *id));
        let closing = self.closing();
        let all = grammar.controls().iter().chain(&closing).copied();
        for id in all.filter(|id| !grammar.stop().contains(id) && is_set(words, *id)) {
            match self.advance(id) {
                Ok(()) => {}
                Err(GrammarError::Refused { .. }) => continue,
                Err(error) => return Err(error),
            }
            let ends = self.only_ends();
            self.rollback(1)?;
            if ends? {
                unset(&mut open, id);
            }
        }
        if open.iter().any(|word| *word != 0) {
            words.copy_from_slice(&open);
        }
        Ok(())
    }

    /// Whether nothing but the end can follow. Behind text that shows only in the mask.
    fn only_ends(&mut self) -> Result<bool, GrammarError> {
        if self.finished() || self.grammar.closers().is_empty() {
            return Ok(self.finished());
        }
        let mut mask = vec![0; self.grammar.vocab().div_ceil(32)];
        self.mask(&mut mask)?;
        self.grammar.stop().iter().for_each(|id| unset(&mut mask, *id));
        Ok(mask.iter().all(|word| *word == 0))
    }

    /// Tokens that would complete a text that closes the answer.
    fn closing(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for closer in self.grammar.closers() {
            all.extend(&closer.ending);
            let mut tail: Vec<u8> = Vec::new();
            for bytes in self.taken.iter().rev().map_while(|id| self.grammar.vocabulary().bytes(*id)) {
                tail.splice(..0, bytes.iter().copied());
                if tail.len() >= closer.text.len() {
                    break;
                }
            }
            for at in 1..closer.text.len() {
                let rest = closer.text.split_at_checked(at).filter(|(begun, _)| tail.ends_with(begun));
                all.extend(rest.and_then(|(_, rest)| self.grammar.vocabulary().token(rest)));
            }
        }
        all
    }

    /// Takes the last tokens back.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), GrammarError> {
        let mut tokens = tokens.min(self.taken.len());
        self.taken.truncate(self.taken.len() - tokens);
        if self.ended && tokens > 0 {
            self.ended = false;
            tokens -= 1;
        }
        self.inner.rollback(tokens).map_err(|error| self.failed(error))
    }

    /// Whether the sequence may end here.
    pub fn accepting(&mut self) -> bool {
        self.finished() || self.inner.is_accepting().unwrap_or(false)
    }

    /// Whether nothing but a token that ends the answer can come.
    pub fn finished(&self) -> bool {
        self.ended || matches!(self.inner.stop_reason(), StopReason::NoExtension | StopReason::NoExtensionBias)
    }

    /// Whether the last token ended the answer.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Tokens that must come next, as the tokenizer itself would write their text; often none. They are not taken.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.finished() { Vec::new() } else { self.inner.compute_ff_tokens() }
    }

    fn failed(&self, error: impl std::fmt::Display) -> GrammarError {
        self.grammar.spoil();
        let text = error.to_string();
        broken_off(&text)
    }
}

/// What the library's last words mean: that a limit was hit, or that it broke off.
fn broken_off(text: &str) -> GrammarError {
    let problem = text.lines().next().unwrap_or("it is too complex").trim().to_owned();
    match problem.strip_prefix("panic: ") {
        Some(problem) => GrammarError::Broken { problem: problem.to_owned() },
        None => GrammarError::Failed { problem },
    }
}

fn is_set(words: &[u32], id: u32) -> bool {
    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
}

fn unset(words: &mut [u32], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word &= !(1 << (id % 32));
    }
}

fn set(words: &mut [u32], id: u32) {
    if let Some(word) = words.get_mut(id as usize / 32) {
        *word |= 1 << (id % 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_defect_is_told_from_a_limit() {
        assert_eq!(broken_off("panic: index\n<non-verbose/>"), GrammarError::Broken { problem: "index".into() });
        assert!(matches!(broken_off("Parser Error: too many items\n"), GrammarError::Failed { .. }));
    }
}

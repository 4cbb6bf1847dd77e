//! The text of one answer: detokenised, and cut at the first stop string.

use crate::{Detokenizer, StopStrings, Text, TextError};
use std::sync::Arc;

/// What a token adds to the visible text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// New text, possibly empty.
    pub text: String,
    /// The stop string that ends the answer here. Nothing comes after it.
    pub stop: Option<String>,
}

/// The state of one answer.
pub struct OutputText {
    text: Arc<Text>,
    detokenizer: Detokenizer,
    stops: StopStrings,
    /// Set by a stop string.
    ended: bool,
}

impl OutputText {
    /// An empty answer.
    pub fn new(text: Arc<Text>, stops: Vec<String>, skip_special: bool) -> Self {
        let (detokenizer, stops) = (Detokenizer::new(skip_special), StopStrings::new(stops));
        OutputText { text, detokenizer, stops, ended: false }
    }

    /// Takes a token.
    pub fn push(&mut self, id: u32) -> Result<Piece, TextError> {
        if self.ended {
            return Ok(Piece::default());
        }
        let new = self.detokenizer.push(&self.text.tokenizer, id)?;
        Ok(self.search(&new))
    }

    /// What was held back, at the end of the answer. A character that was never finished may still complete a
    /// stop string.
    pub fn finish(&mut self) -> Result<Piece, TextError> {
        if self.ended {
            return Ok(Piece::default());
        }
        let rest = self.detokenizer.finish(&self.text.tokenizer)?;
        let mut piece = self.search(&rest);
        if piece.stop.is_none() {
            piece.text.push_str(&self.stops.finish());
        }
        self.ended = true;
        Ok(piece)
    }

    fn search(&mut self, new: &str) -> Piece {
        let (text, stop) = self.stops.push(new);
        self.ended = stop.is_some();
        Piece { text, stop }
    }
}

//! The cursor over the tokens: looking, taking, expecting.

use super::MAX_DEPTH;
use crate::Diagnostic;
use crate::ast::Ident;
use crate::lexer::Token;
use crate::stop::{Res, Stop, refuse};
use ir::{DType, Span};

/// A position in the tokens of one text.
pub(super) struct Parser {
    pub(super) tokens: Vec<(Token, Span)>,
    pub(super) at: usize,
    pub(super) depth: usize,
    pub(super) errors: Vec<Diagnostic>,
}

impl Parser {
    pub(super) fn new(tokens: Vec<(Token, Span)>) -> Self {
        Parser { tokens, at: 0, depth: 0, errors: Vec::new() }
    }

    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    pub(super) fn span(&self) -> Span {
        self.tokens[self.at].1
    }

    pub(super) fn next(&mut self) -> (Token, Span) {
        let item = self.tokens[self.at].clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        item
    }

    pub(super) fn previous_end(&self) -> u32 {
        self.tokens[self.at.saturating_sub(1)].1.end
    }

    pub(super) fn since(&self, start: Span) -> Span {
        Span { end: self.previous_end().max(start.start), ..start }
    }

    pub(super) fn breaks(&mut self) {
        while *self.peek() == Token::Break {
            self.next();
        }
    }

    pub(super) fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(n) if n == word)
    }

    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Res<T> {
        refuse(
            Diagnostic::error("B0103", format!("{wanted} is expected, and here is {}", self.peek().describe()))
                .at(self.span(), format!("expected {wanted}"))
                .help("docs/language.md has the grammar on one page"),
        )
    }

    pub(super) fn expect(&mut self, sign: &str) -> Res<Span> {
        if self.is(sign) { Ok(self.next().1) } else { self.unexpected(&format!("`{sign}`")) }
    }

    pub(super) fn ident(&mut self, wanted: &str) -> Res<Ident> {
        match self.peek() {
            Token::Name(text) => {
                let text = text.clone();
                let span = self.next().1;
                Ok(Ident { text, span })
            }
            _ => self.unexpected(wanted),
        }
    }

    /// As [`Self::unexpected`], with the place of what waits for its end.
    pub(super) fn unclosed<T>(&self, wanted: &str, opened: Span) -> Res<T> {
        refuse(
            Diagnostic::error("B0103", format!("{wanted} is expected, and here is {}", self.peek().describe()))
                .at(self.span(), format!("expected {wanted}"))
                .note(Some(opened), "to end what begins here")
                .help("write the missing `)`"),
        )
    }

    /// One level down in nested text.
    pub(super) fn deeper(&mut self) -> Res<()> {
        self.depth += 1;
        if self.depth <= MAX_DEPTH {
            return Ok(());
        }
        refuse(
            Diagnostic::error("B0104", format!("the text is nested more than {MAX_DEPTH} levels deep"))
                .at(self.span(), "too deep")
                .help("give an inner part a name of its own"),
        )
    }

    /// Keeps a finding; what follows from an earlier one is not told again.
    pub(super) fn tell(&mut self, stop: Stop) {
        if let Stop::New(d) = stop {
            self.errors.push(*d);
        }
    }

    /// Whether `fn name(` or its like starts here, which no expression contains.
    pub(super) fn starts_item(&self) -> bool {
        let then = |k: usize| self.tokens.get(self.at + k).map(|(t, _)| t);
        let keyword = ["fn", "def", "entry"].iter().any(|w| self.is_word(w));
        keyword && matches!(then(1), Some(Token::Name(_))) && matches!(then(2), Some(Token::Sign("(")))
    }
}

/// A dtype by its word.
pub(super) fn dtype(word: &str, span: Span) -> Res<DType> {
    word.parse().map_err(|_| {
        Diagnostic::error("B0105", format!("`{word}` is not a dtype"))
            .at(span, "unknown")
            .nearest(word, DType::ALL.map(DType::word))
            .into()
    })
}

//! The small rules inside TOML texts: a layer's kind from its index, conditions on kinds, config filters.

use crate::lexer::{Token, tokens};
use ir::When;
use std::collections::HashMap;

/// Evaluates `kind if condition else kind` for one layer; `numbers` holds `l` and the dims.
pub(crate) fn schedule_kind(rule: &str, numbers: &HashMap<String, f64>) -> Result<String, String> {
    let mut parser =
        Rule { tokens: tokens(rule, 0, 0).into_iter().map(|(t, _)| t).collect(), at: 0, numbers, depth: 0 };
    let kind = parser.choice()?;
    match parser.peek() {
        Token::End => Ok(kind),
        other => Err(format!("{} is left over", other.describe())),
    }
}

struct Rule<'a> {
    tokens: Vec<Token>,
    at: usize,
    numbers: &'a HashMap<String, f64>,
    depth: usize,
}

impl Rule<'_> {
    fn peek(&self) -> &Token {
        &self.tokens[self.at]
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Name(n) if n == word);
        if found {
            self.next();
        }
        found
    }

    fn sign(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Token::Sign(s) if *s == sign);
        if found {
            self.next();
        }
        found
    }

    /// One level down; a rule nested without end would exhaust the stack.
    fn deeper<T>(&mut self, inside: fn(&mut Self) -> Result<T, String>) -> Result<T, String> {
        self.depth += 1;
        let result = if self.depth > 64 { Err("the rule is nested too deep".to_owned()) } else { inside(self) };
        self.depth -= 1;
        result
    }

    fn choice(&mut self) -> Result<String, String> {
        self.deeper(Self::choice_inside)
    }

    fn choice_inside(&mut self) -> Result<String, String> {
        let kind = match self.next() {
            Token::Name(kind) => kind,
            other => return Err(format!("a kind is expected, and here is {}", other.describe())),
        };
        if !self.word("if") {
            return Ok(kind);
        }
        let condition = self.or()?;
        if !self.word("else") {
            return Err(format!("`else` is expected, and here is {}", self.peek().describe()));
        }
        let other = self.choice()?;
        Ok(if condition { kind } else { other })
    }

    fn or(&mut self) -> Result<bool, String> {
        let mut value = self.and()?;
        while self.word("or") {
            value |= self.and()?;
        }
        Ok(value)
    }

    fn and(&mut self) -> Result<bool, String> {
        let mut value = self.not()?;
        while self.word("and") {
            value &= self.not()?;
        }
        Ok(value)
    }

    fn not(&mut self) -> Result<bool, String> {
        self.deeper(Self::not_inside)
    }

    fn not_inside(&mut self) -> Result<bool, String> {
        if self.word("not") {
            return self.not().map(|b| !b);
        }
        let left = self.sum()?;
        for (sign, test) in [
            ("==", (|a, b| a == b) as fn(f64, f64) -> bool),
            ("!=", |a, b| a != b),
            ("<=", |a, b| a <= b),
            (">=", |a, b| a >= b),
            ("<", |a, b| a < b),
            (">", |a, b| a > b),
        ] {
            if self.sign(sign) {
                let right = self.sum()?;
                return Ok(test(left, right));
            }
        }
        Err(format!("a comparison is expected, and here is {}", self.peek().describe()))
    }

    fn sum(&mut self) -> Result<f64, String> {
        let mut value = self.product()?;
        loop {
            if self.sign("+") {
                value += self.product()?;
            } else if self.sign("-") {
                value -= self.product()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.factor()?;
        loop {
            if self.sign("*") {
                value *= self.factor()?;
            } else if self.sign("%") {
                let by = self.factor()?;
                if by == 0.0 {
                    return Err("a remainder by zero".to_owned());
                }
                value = value.rem_euclid(by);
            } else {
                return Ok(value);
            }
        }
    }

    fn factor(&mut self) -> Result<f64, String> {
        self.deeper(Self::factor_inside)
    }

    fn factor_inside(&mut self) -> Result<f64, String> {
        match self.next() {
            Token::Number(x) => Ok(x),
            Token::Name(name) => self.numbers.get(&name).copied().ok_or_else(|| format!("`{name}` is no dimension")),
            Token::Sign("(") => {
                let value = self.sum()?;
                if self.sign(")") { Ok(value) } else { Err("`)` is missing".to_owned()) }
            }
            other => Err(format!("a number is expected, and here is {}", other.describe())),
        }
    }
}

/// Reads `column == kind`.
pub(crate) fn when(text: &str) -> Option<When> {
    let (column, kind) = text.split_once("==")?;
    let (column, kind) = (column.trim(), kind.trim());
    let word = |w: &str| !w.is_empty() && w.chars().all(|c| c.is_alphanumeric() || c == '_');
    (word(column) && word(kind)).then(|| When { column: column.to_owned(), kind: kind.to_owned() })
}

//! The small rules inside TOML texts: a layer's kind from its index, conditions on kinds, config filters.

use crate::lexer::{Token, tokens};
use ir::When;
use std::collections::HashMap;

/// Why a rule was refused.
#[derive(Debug)]
pub(crate) struct RuleError {
    /// What stands in the way.
    pub why: String,
    /// The name that has no number, if that is it.
    pub unknown: Option<String>,
}

impl From<String> for RuleError {
    fn from(why: String) -> Self {
        RuleError { why, unknown: None }
    }
}

/// Evaluates `kind if condition else kind` for one layer; `numbers` holds `l` and the dims.
pub(crate) fn schedule_kind(rule: &str, numbers: &HashMap<String, f64>) -> Result<String, RuleError> {
    let mut parser = Rule::new(rule, numbers);
    let result = parser.choice();
    parser.finished(result)
}

/// Evaluates a condition; `numbers` holds dims, values and members of groups (`group.member`).
pub(crate) fn condition(rule: &str, numbers: &HashMap<String, f64>) -> Result<bool, RuleError> {
    let mut parser = Rule::new(rule, numbers);
    let result = parser.or();
    parser.finished(result)
}

/// Names that a rule reads, groups with their members.
pub(crate) fn names(rule: &str) -> Vec<String> {
    let numbers = HashMap::new();
    let mut parser = Rule::new(rule, &numbers);
    let mut found = Vec::new();
    while *parser.peek() != Token::End {
        if let Token::Name(name) = parser.next()
            && !["and", "or", "not", "if", "else"].contains(&name.as_str())
        {
            found.push(parser.dotted(name));
        }
    }
    found
}

struct Rule<'a> {
    tokens: Vec<Token>,
    at: usize,
    numbers: &'a HashMap<String, f64>,
    depth: usize,
    unknown: Option<String>,
}

impl<'a> Rule<'a> {
    fn new(rule: &str, numbers: &'a HashMap<String, f64>) -> Self {
        let tokens = tokens(rule, 0, 0).into_iter().map(|(t, _)| t).collect();
        Rule { tokens, at: 0, numbers, depth: 0, unknown: None }
    }

    /// The result, if the rule ends behind it.
    fn finished<T>(mut self, result: Result<T, String>) -> Result<T, RuleError> {
        let unknown = self.unknown.take();
        let value = result.map_err(|why| RuleError { why, unknown })?;
        match self.peek() {
            Token::End => Ok(value),
            other => Err(format!("{} is left over", other.describe()).into()),
        }
    }

    /// `name` or `name.member`.
    fn dotted(&mut self, name: String) -> String {
        match (self.peek(), self.tokens.get(self.at + 1)) {
            (Token::Sign("."), Some(Token::Name(member))) => {
                let whole = format!("{name}.{member}");
                self.at += 2;
                whole
            }
            _ => name,
        }
    }

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
            Token::Name(name) => {
                let name = self.dotted(name);
                self.numbers.get(&name).copied().ok_or_else(|| {
                    self.unknown = Some(name.clone());
                    format!("`{name}` is no number")
                })
            }
            Token::Sign("-") => self.factor().map(|x| -x),
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

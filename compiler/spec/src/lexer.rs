//! Block text to tokens. Never fails: what it cannot read becomes a token that the parser refuses by name.

use ir::Span;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    Name(String),
    Number(f64),
    /// Punctuation and operators.
    Sign(&'static str),
    /// End of a statement: a line break or `;`.
    Break,
    /// Something that is no token, with the reason.
    Bad(String),
    End,
}

impl Token {
    /// How an error names the token.
    pub fn describe(&self) -> String {
        match self {
            Token::Name(n) => format!("`{n}`"),
            Token::Number(x) => format!("the number {x}"),
            Token::Sign(s) => format!("`{s}`"),
            Token::Break => "the end of the line".to_owned(),
            Token::Bad(why) => why.clone(),
            Token::End => "the end of the text".to_owned(),
        }
    }
}

/// Longest first, so that `**` is not read as two `*`.
const SIGNS: [&str; 26] = [
    "**", "->", "..", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ":", "=", "+", "-", "*", "/", "%",
    "<", ">", ".", "|", "'",
];

/// Tokens of `text`, whose first byte is byte `start` of file `file`.
pub(crate) fn tokens(text: &str, file: u32, start: u32) -> Vec<(Token, Span)> {
    let mut out = Vec::new();
    let mut open: Vec<char> = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (token, len) = match c {
            // Inside round or square brackets a line break is a blank.
            '\n' if matches!(open.last(), Some('(' | '[')) => (None, 1),
            '\n' | ';' => (Some(Token::Break), 1),
            '#' => (None, rest.find('\n').unwrap_or(rest.len())),
            _ if c.is_whitespace() => (None, c.len_utf8()),
            _ if c.is_ascii_digit() => number(rest),
            _ if c.is_alphabetic() || c == '_' => {
                let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                (Some(Token::Name(rest[..len].to_owned())), len)
            }
            _ => match SIGNS.iter().find(|s| rest.starts_with(*s)) {
                Some(sign) => (Some(Token::Sign(sign)), sign.len()),
                None => (Some(Token::Bad(format!("the character `{c}`"))), c.len_utf8()),
            },
        };
        match c {
            '(' | '[' | '{' => open.push(c),
            ')' | ']' | '}' => {
                open.pop();
            }
            _ => {}
        }
        if let Some(token) = token {
            out.push((token, Span { file, start: start + at as u32, end: start + (at + len) as u32 }));
        }
        at += len;
    }
    let end = start + text.len() as u32;
    out.push((Token::End, Span { file, start: end, end }));
    out
}

/// A decimal number: digits, an optional fraction, an optional exponent. `1..` is a number and a range.
fn number(rest: &str) -> (Option<Token>, usize) {
    let bytes = rest.as_bytes();
    let digits = |mut i: usize| {
        while bytes.get(i).is_some_and(u8::is_ascii_digit) {
            i += 1;
        }
        i
    };
    let mut len = digits(0);
    if bytes.get(len) == Some(&b'.') && bytes.get(len + 1).is_some_and(u8::is_ascii_digit) {
        len = digits(len + 1);
    }
    if matches!(bytes.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
        if bytes.get(len + 1 + sign).is_some_and(u8::is_ascii_digit) {
            len = digits(len + 1 + sign);
        }
    }
    let text = &rest[..len];
    match text.parse::<f64>() {
        Ok(x) if x.is_finite() => (Some(Token::Number(x)), len),
        _ => (Some(Token::Bad(format!("the number `{text}`, which is too large"))), len),
    }
}

//! Tokens of the text form, and the error that points into it.

/// A text that is not a module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("V0101: line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The condition, with what was found and what may stand there.
    pub message: String,
}

/// One token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Letters, digits, `_`, `.`, `#`: names, keywords and unsigned numbers.
    Word(String),
    /// A quoted name.
    Text(String),
    /// One character.
    Sign(char),
    /// `->`.
    Arrow,
    /// The end of the text.
    End,
}

impl Token {
    /// The token as an error shows it.
    pub(super) fn shown(&self) -> String {
        match self {
            Token::Word(w) => format!("`{w}`"),
            Token::Text(t) => format!("the quoted name {}", serde_json::Value::from(t.as_str())),
            Token::Sign(c) => format!("`{c}`"),
            Token::Arrow => "`->`".to_owned(),
            Token::End => "the end of the text".to_owned(),
        }
    }
}

pub(super) fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '#')
}

/// The error for a byte position of the text.
pub(super) fn error_at(source: &str, at: usize, message: impl Into<String>) -> ParseError {
    let before = source.get(..at).unwrap_or(source);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    ParseError { line, column, message: message.into() }
}

/// Cuts a text into tokens, each with its byte position; the last is [`Token::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>, ParseError> {
    let mut list = Vec::new();
    let mut chars = source.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let token = match c {
            c if c.is_whitespace() => continue,
            ';' => {
                while chars.next_if(|(_, c)| *c != '\n').is_some() {}
                continue;
            }
            '"' => Token::Text(quoted(source, at, &mut chars)?),
            '-' if chars.next_if(|(_, c)| *c == '>').is_some() => Token::Arrow,
            '-' | '+' | '*' | '/' | '%' | ':' | '=' | ',' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' => {
                Token::Sign(c)
            }
            c if is_word_char(c) => {
                let mut word = c.to_string();
                while let Some((next_at, c)) = chars.peek().copied() {
                    // `1e-6` is one word; a minus elsewhere is not part of it.
                    let exponent = c == '-' && ends_in_exponent(&word) && followed_by_digit(source, next_at);
                    if !is_word_char(c) && !exponent {
                        break;
                    }
                    word.push(c);
                    chars.next();
                }
                Token::Word(word)
            }
            other => return Err(error_at(source, at, format!("`{}` has no meaning here", other.escape_debug()))),
        };
        list.push((token, at));
    }
    list.push((Token::End, source.len()));
    Ok(list)
}

fn ends_in_exponent(word: &str) -> bool {
    word.strip_suffix('e').is_some_and(|digits| {
        digits.starts_with(|c: char| c.is_ascii_digit()) && digits.chars().all(|c| c.is_ascii_digit() || c == '.')
    })
}

fn followed_by_digit(source: &str, at: usize) -> bool {
    source.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit)
}

/// A quoted name whose opening quote stands at `start`: the escapes are JSON's.
fn quoted(
    source: &str,
    start: usize,
    chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
) -> Result<String, ParseError> {
    let mut escaped = false;
    for (at, c) in chars.by_ref() {
        match c {
            '\n' => break,
            '"' if !escaped => {
                let text = source.get(start..=at).unwrap_or("");
                return serde_json::from_str(text).map_err(|_| {
                    error_at(source, start, "the quoted name has an escape that JSON strings do not have")
                });
            }
            _ => escaped = c == '\\' && !escaped,
        }
    }
    Err(error_at(source, start, "the quoted name does not end on its line; close it with `\"`"))
}

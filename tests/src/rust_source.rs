//! Rust text as the rules of the house look at it: without comments, without tests, function by function.

/// A file's code. Bytes of what is left out are blanks, so offsets and lines stay.
#[derive(Clone, Debug)]
pub struct RustSource {
    /// Code with its literals.
    pub code: String,
    /// Code with the insides of literals blanked: what may be searched for braces and words of the language.
    pub bare: String,
}

/// A function with a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Name.
    pub name: String,
    /// Line of `fn`, from 1.
    pub line: usize,
    /// Lines from `fn` to the closing brace.
    pub lines: usize,
}

impl RustSource {
    /// Takes comments out.
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let (mut code, mut bare) = (bytes.to_vec(), bytes.to_vec());
        let mut at = 0;
        while at < bytes.len() {
            let (end, kind) = token(bytes, at);
            match kind {
                Kind::Code => {}
                Kind::Comment => {
                    blank(&mut code[at..end]);
                    blank(&mut bare[at..end]);
                }
                Kind::Literal => blank(&mut bare[at..end]),
            }
            at = end;
        }
        let text = |bytes| String::from_utf8(bytes).expect("whole tokens were blanked");
        RustSource { code: text(code), bare: text(bare) }
    }

    /// Takes every item under `#[cfg(test)]` out: up to the end of its braces, or its semicolon.
    pub fn without_tests(mut self) -> Self {
        const MARK: &str = "#[cfg(test)]";
        let mut from = 0;
        while let Some(start) = self.bare[from..].find(MARK).map(|at| from + at) {
            let end = item_end(&self.bare, start + MARK.len()).unwrap_or(self.bare.len());
            let blanked = |text: &str| {
                let mut bytes = text.as_bytes().to_vec();
                blank(&mut bytes[start..end]);
                String::from_utf8(bytes).expect("a whole item was blanked")
            };
            (self.code, self.bare) = (blanked(&self.code), blanked(&self.bare));
            from = end;
        }
        self
    }

    /// Functions with bodies, inner ones too.
    pub fn functions(&self) -> Vec<Function> {
        let bare = &self.bare;
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let mut found = Vec::new();
        for (start, _) in bare.match_indices("fn ") {
            let name: String = bare[start + 3..].trim_start().chars().take_while(|c| word(*c)).collect();
            if name.is_empty() || bare[..start].ends_with(word) {
                continue;
            }
            let Some(end) = item_end(bare, start).filter(|end| bare[..*end].ends_with('}')) else { continue };
            let line = bare[..start].matches('\n').count() + 1;
            found.push(Function { name, line, lines: bare[start..end].matches('\n').count() + 1 });
        }
        found
    }
}

enum Kind {
    Code,
    Comment,
    Literal,
}

/// End of the token at `at`. Code goes byte by byte, a name or number at once (so that `r` of `for"` starts no literal).
fn token(bytes: &[u8], at: usize) -> (usize, Kind) {
    let rest = &bytes[at..];
    let until = |n: Option<usize>| n.map_or(bytes.len(), |n| at + n);
    if rest.starts_with(b"//") {
        return (until(rest.iter().position(|b| *b == b'\n')), Kind::Comment);
    }
    if rest.starts_with(b"/*") {
        return (until(block_comment(rest)), Kind::Comment);
    }
    if let Some((prefix, hashes)) = raw_string(rest) {
        let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
        let inside = rest[prefix..].windows(close.len()).position(|w| w == close);
        return (until(inside.map(|n| prefix + n + close.len())), Kind::Literal);
    }
    match rest[0] {
        b'"' => (until(quoted(rest, b'"')), Kind::Literal),
        b'\'' if character(rest) => (until(quoted(rest, b'\'')), Kind::Literal),
        b if b.is_ascii_alphanumeric() || b == b'_' => {
            let end = rest.iter().position(|b| !(b.is_ascii_alphanumeric() || *b == b'_'));
            // `b"…"` and `c"…"`: the prefix is a word of its own, what follows it a literal.
            (until(end), Kind::Code)
        }
        _ => (at + 1, Kind::Code),
    }
}

/// Length of `r##"` or `br##"` and its number of hashes.
fn raw_string(rest: &[u8]) -> Option<(usize, usize)> {
    let r = rest.iter().take(2).position(|b| *b == b'r')?;
    if r == 1 && !matches!(rest[0], b'b' | b'c') {
        return None;
    }
    let hashes = rest[r + 1..].iter().take_while(|b| **b == b'#').count();
    (rest.get(r + 1 + hashes) == Some(&b'"')).then_some((r + hashes + 2, hashes))
}

/// Whether a quote begins a character and no lifetime.
fn character(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        Some(b) if b.is_ascii() => rest.get(2) == Some(&b'\''),
        Some(_) => true,
        None => false,
    }
}

fn quoted(rest: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b if b == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

fn block_comment(rest: &[u8]) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += 1;
        }
    }
    None
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
}

/// End of the item that begins at `from`: behind the braces of its body, or behind its semicolon.
fn item_end(bare: &str, from: usize) -> Option<usize> {
    let (mut braces, mut others) = (0usize, 0usize);
    for (at, b) in bare.bytes().enumerate().skip(from) {
        match b {
            b'(' | b'[' => others += 1,
            b')' | b']' => others = others.checked_sub(1)?,
            b'{' => braces += 1,
            b'}' => {
                braces = braces.checked_sub(1)?;
                if braces == 0 && others == 0 {
                    return Some(at + 1);
                }
            }
            b';' if braces == 0 && others == 0 => return Some(at + 1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r####"//! Head. fn no() {}
fn url() -> &'static str { "https://example.org/q" } // gone
#[cfg(test)]
mod tests { fn t() { let _ = '}'; let _ = "}"; } }
/* a /* nested */ { */
fn after<'a>(x: [u8; 4], f: fn(u8) -> u8) -> char {
    let _ = r#"a " { "#;
    '\''
}
#[cfg(test)]
#[path = "x.rs"]
mod other;
trait T { fn declared(&self); }
"####;

    #[test]
    fn comments_and_tests_go_and_literals_stay() {
        let source = RustSource::new(TEXT).without_tests();
        assert!(source.code.contains("https://example.org/q") && !source.bare.contains("https"));
        for gone in ["Head", "gone", "nested", "mod tests", "mod other", "x.rs", "fn t"] {
            assert!(!source.code.contains(gone), "{gone}: {}", source.code);
        }
        assert!(source.code.contains("fn after") && source.code.contains("trait T"));
        assert_eq!(source.code.lines().count(), TEXT.lines().count());
    }

    #[test]
    fn functions_are_measured_from_head_to_brace() {
        let found = RustSource::new(TEXT).without_tests().functions();
        let found: Vec<(&str, usize, usize)> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(found, [("url", 2, 1), ("after", 6, 4)]);
    }
}

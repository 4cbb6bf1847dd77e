//! Expressions as schemas write them, in the syntax of ECMA 262, brought into the one that automata are made from. What is read
//! twice says the same.

use super::patterns::reason;
use regex_syntax::hir::Hir;
use std::iter::Peekable;
use std::str::Chars;

/// An expression in the other syntax.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Translated {
    /// The expression; what cannot be held stands there as a group or as nothing, so that it shows whether all else is right.
    pub text: String,
    /// The same, read.
    pub hir: Hir,
    /// What of it no automaton holds.
    pub unheld: Option<String>,
}

/// Characters that `\d` and `\w` mean, and those that are blanks for `\s`.
const DIGITS: &[(u32, u32)] = &[(0x30, 0x39)];
const WORDS: &[(u32, u32)] = &[(0x30, 0x39), (0x41, 0x5a), (0x5f, 0x5f), (0x61, 0x7a)];
const BLANKS: &[(u32, u32)] = &[
    (0x9, 0xd),
    (0x20, 0x20),
    (0xa0, 0xa0),
    (0x1680, 0x1680),
    (0x2000, 0x200a),
    (0x2028, 0x2029),
    (0x202f, 0x202f),
    (0x205f, 0x205f),
    (0x3000, 0x3000),
    (0xfeff, 0xfeff),
];
/// The last character of all.
const LAST: u32 = 0x10_ffff;

/// Line ends, which `.` does not mean.
const LINE_ENDS: &[(u32, u32)] = &[(0xa, 0xa), (0xd, 0xd), (0x2028, 0x2029)];
/// Properties of characters that have values.
const VALUED: &[&str] = &["General_Category", "gc", "Script", "sc", "Script_Extensions", "scx"];

/// The expression in the other syntax; what is wrong if it is none of ECMA 262, whatever other syntaxes make of it.
pub(crate) fn translated(pattern: &str) -> Result<Translated, String> {
    let mut reading = Reading::of(pattern);
    while let Some(c) = reading.rest.next() {
        reading.part(c);
    }
    let Reading { out, unheld, wrong, .. } = reading;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    let hir = regex_syntax::parse(&out).map_err(|error| reason(&error))?;
    Ok(Translated { text: out, hir, unheld })
}

/// What was read last, as what repeats it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Nothing that is of the same alternative.
    Nothing,
    /// What can be repeated.
    Atom,
    /// What is repeated already.
    Repeated,
    Assertion,
}

/// What an escape stands for.
enum Escape {
    Char(u32),
    /// All of these, or all but these.
    Set(&'static [(u32, u32)], bool),
    /// As it stands, in both syntaxes.
    Same(String),
}

struct Reading<'a> {
    rest: Peekable<Chars<'a>>,
    out: String,
    last: Last,
    unheld: Option<String>,
    wrong: Option<String>,
}

impl<'a> Reading<'a> {
    fn of(pattern: &'a str) -> Reading<'a> {
        let (rest, out) = (pattern.chars().peekable(), String::new());
        Reading { rest, out, last: Last::Nothing, unheld: None, wrong: None }
    }

    fn cannot(&mut self, what: impl Into<String>) {
        self.unheld.get_or_insert_with(|| what.into());
    }

    fn is_wrong(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    /// Reads what begins with that character.
    fn part(&mut self, c: char) {
        self.last = match c {
            '\\' if matches!(self.rest.peek(), Some('b' | 'B')) => {
                self.escape();
                Last::Assertion
            }
            '\\' => {
                self.escape();
                Last::Atom
            }
            '[' => {
                self.class();
                Last::Atom
            }
            '(' => {
                self.group();
                Last::Nothing
            }
            '{' => return self.brace(),
            '*' | '+' | '?' => return self.repeat(c.to_string()),
            '.' => {
                self.set(LINE_ENDS, true);
                Last::Atom
            }
            ']' | '}' => {
                self.out.extend(['\\', c]);
                Last::Atom
            }
            other => {
                self.out.push(other);
                match other {
                    '^' | '$' => Last::Assertion,
                    '|' => Last::Nothing,
                    _ => Last::Atom,
                }
            }
        }
    }

    /// What repeats the part before it.
    fn repeat(&mut self, mut sign: String) {
        match self.last {
            Last::Atom => {}
            Last::Nothing => self.is_wrong(format!("`{sign}` has nothing before it that it repeats")),
            Last::Assertion => self.is_wrong(format!("`{sign}` repeats an assertion, which ECMA 262 does not have")),
            Last::Repeated => self.is_wrong(format!(
                "`{sign}` repeats what is repeated already, which ECMA 262 does not have but for a group `(?:…)`"
            )),
        }
        if self.take("?") {
            sign.push('?');
        }
        self.out.push_str(&sign);
        self.last = Last::Repeated;
    }

    /// What comes next, if it is that.
    fn take(&mut self, text: &str) -> bool {
        let mut ahead = self.rest.clone();
        let is_so = text.chars().all(|c| ahead.next() == Some(c));
        if is_so {
            self.rest = ahead;
        }
        is_so
    }

    /// As many digits of that base as come next, if they are at least `least` and no more than `most` are taken.
    fn digits(&mut self, base: u32, least: usize, most: usize) -> Option<u32> {
        let mut ahead = self.rest.clone();
        let (mut value, mut count) = (0u32, 0);
        while let Some(digit) = ahead.peek().and_then(|c| c.to_digit(base)).filter(|_| count < most) {
            value = value.saturating_mul(base).saturating_add(digit);
            count += 1;
            ahead.next();
        }
        if count < least {
            return None;
        }
        self.rest = ahead;
        Some(value)
    }

    /// A byte of at most three digits, of which one is read.
    fn octal(&mut self, first: char) -> u32 {
        let mut value = first.to_digit(8).unwrap_or(0);
        for _ in 0..2 {
            let next = self.rest.peek().and_then(|c| c.to_digit(8)).map(|digit| value * 8 + digit);
            let Some(next) = next.filter(|next| *next <= 0xff) else { break };
            value = next;
            self.rest.next();
        }
        value
    }

    /// A code point in braces.
    fn braced(&mut self) -> Option<u32> {
        if !self.take("{") {
            return None;
        }
        let code = self.digits(16, 1, usize::MAX);
        match code.filter(|_| self.take("}")) {
            Some(code) if code <= LAST => Some(code),
            Some(_) => {
                self.is_wrong(format!("`\\u{{…}}` names a character beyond `\\u{{{LAST:X}}}`, the last one"));
                Some(LAST)
            }
            None => {
                self.is_wrong("`\\u{` has no number of a character and `}` behind it");
                Some(LAST)
            }
        }
    }

    /// Four digits behind `\u`, or the two halves of a character.
    fn unit(&mut self) -> Option<u32> {
        let high = self.digits(16, 4, 4)?;
        let before = self.rest.clone();
        if (0xd800..0xdc00).contains(&high) && self.take("\\u") {
            match self.digits(16, 4, 4) {
                Some(low) if (0xdc00..0xe000).contains(&low) => {
                    return Some(0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00));
                }
                _ => self.rest = before,
            }
        }
        Some(high)
    }

    /// What stands behind a backslash.
    fn escaped(&mut self, in_class: bool) -> Escape {
        let Some(c) = self.rest.next() else { return Escape::Same("\\".to_owned()) };
        let before = self.rest.clone();
        let code = match c {
            'd' | 'D' => return Escape::Set(DIGITS, c == 'D'),
            'w' | 'W' => return Escape::Set(WORDS, c == 'W'),
            's' | 'S' => return Escape::Set(BLANKS, c == 'S'),
            'b' if in_class => Some(8),
            'b' | 'B' if !in_class => return Escape::Same(format!("\\{c}")),
            't' => Some(9),
            'n' => Some(10),
            'v' => Some(11),
            'f' => Some(12),
            'r' => Some(13),
            'c' => match self.rest.next() {
                Some(letter) if letter.is_ascii_alphabetic() => Some(u32::from(letter) % 32),
                // A backslash, then, and what follows it.
                _ => {
                    self.rest = before;
                    self.out.push_str("\\\\");
                    Some(u32::from('c'))
                }
            },
            '0'..='7' if in_class || c == '0' => Some(self.octal(c)),
            '1'..='9' if !in_class => {
                self.digits(10, 0, 9);
                self.cannot("a reference back");
                return Escape::Same("(?:)".to_owned());
            }
            'x' if self.rest.peek() == Some(&'{') => {
                self.cannot("`\\x{` (a character by its number is `\\u{…}`)");
                None
            }
            'x' => self.digits(16, 2, 2),
            'u' => self.braced().or_else(|| self.unit()),
            'p' | 'P' => return self.property(c),
            'k' if self.rest.peek() == Some(&'<') => {
                self.rest.by_ref().find(|c| *c == '>');
                self.cannot("a reference back");
                return Escape::Same("(?:)".to_owned());
            }
            _ => None,
        };
        if code.is_none() && c.is_ascii_alphanumeric() && !matches!(c, 'x' | 'u' | 'k') {
            // Some read it as the letter, some as something of their own.
            self.cannot(format!("`\\{c}`"));
        }
        Escape::Char(code.unwrap_or(u32::from(c)))
    }

    /// A property of characters; automata know fewer of them, and under more spellings.
    fn property(&mut self, c: char) -> Escape {
        if !self.take("{") {
            self.cannot(format!("`\\{c}`"));
            return Escape::Char(u32::from(c));
        }
        let name: String = std::iter::from_fn(|| self.rest.next_if(|c| *c != '}')).collect();
        let is_closed = self.take("}");
        let text = format!("\\{c}{{{name}}}");
        let is_known = |text: &str| regex_syntax::parse(text).is_ok();
        let has_value = |key: &str, value: &str| is_known(&format!("\\p{{{key}={value}}}"));
        let is_word = |word: &str| {
            let is_sign = |c: char| c.is_ascii_alphanumeric() || c == '_';
            word.starts_with(|c: char| c.is_ascii_uppercase()) && !word.starts_with("Is") && word.chars().all(is_sign)
        };
        let is_here = match name.split_once('=') {
            Some((key, value)) => VALUED.contains(&key) && is_word(value),
            // Scripts have no names of their own.
            None => is_word(&name) && (has_value("gc", &name) || !has_value("sc", &name)),
        };
        if is_closed && is_here && is_known(&text) {
            return Escape::Same(text);
        }
        self.cannot(format!("`{text}`"));
        Escape::Char(u32::from(c))
    }

    fn escape(&mut self) {
        match self.escaped(false) {
            Escape::Char(code) => self.char(code),
            Escape::Set(set, is_but) => self.set(set, is_but),
            Escape::Same(text) => self.out.push_str(&text),
        }
    }

    /// One character of a set.
    fn set(&mut self, set: &[(u32, u32)], is_but: bool) {
        self.out.push('[');
        set_text(&mut self.out, set, is_but);
        self.out.push(']');
    }

    /// A character by its code.
    fn char(&mut self, code: u32) {
        let is_half = char::from_u32(code).is_none();
        if is_half {
            self.cannot(format!("the lone surrogate `\\u{code:X}`, half of a character"));
        }
        char_text(&mut self.out, if is_half { 0xfffd } else { code });
    }

    /// What stands in brackets, in which this syntax knows no brackets and no signs that put sets together.
    fn class(&mut self) {
        let is_but = self.take("^");
        if self.take("]") {
            // Nothing, or anything.
            set_text_between(&mut self.out, !is_but);
            return;
        }
        self.out.push_str(if is_but { "[^" } else { "[" });
        while let Some(c) = self.rest.next() {
            if c == ']' {
                self.out.push(']');
                return;
            }
            let Some(from) = self.member(c) else { continue };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && ahead.peek().is_some_and(|c| *c != ']');
            self.char(from);
            if !is_range {
                continue;
            }
            self.rest = ahead;
            let Some(next) = self.rest.next() else { break };
            let at = self.out.len();
            match self.member(next) {
                Some(to) => {
                    self.out.push('-');
                    self.char(to);
                }
                // A sign between a character and a set is itself.
                None => self.out.insert_str(at, "\\-"),
            }
        }
        // It has no end, which shows when it is parsed.
    }

    /// A member of a class: a character, or a set that is written at once.
    fn member(&mut self, c: char) -> Option<u32> {
        if c != '\\' {
            return Some(u32::from(c));
        }
        match self.escaped(true) {
            Escape::Char(code) => return Some(code),
            Escape::Set(set, is_but) => set_text(&mut self.out, set, is_but),
            Escape::Same(text) => self.out.push_str(&text),
        }
        if self.take("-") {
            self.out.push_str("\\-");
        }
        None
    }

    fn group(&mut self) {
        for (look, what) in [("?=", "look-ahead"), ("?!", "look-ahead"), ("?<=", "look-behind"), ("?<!", "look-behind")]
        {
            if self.take(look) {
                self.cannot(what);
                self.out.push_str("(?:");
                return;
            }
        }
        if !self.take("?") {
            self.out.push('(');
            return;
        }
        self.out.push_str("(?:");
        let mut begin = String::from("(?");
        // Names of groups may have signs here that they have not there.
        if self.take("<") {
            let is_sign = |c: &char| c.is_alphanumeric() || matches!(c, '$' | '_' | '\u{200c}' | '\u{200d}');
            let name: String = std::iter::from_fn(|| self.rest.next_if(is_sign)).collect();
            if !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && self.take(">") {
                return;
            }
            begin += &format!("<{name}");
        } else {
            begin.extend(std::iter::from_fn(|| self.rest.next_if(|c| c.is_ascii_alphabetic() || *c == '-')));
        }
        let is_modifier = begin.chars().skip(2).all(|c| matches!(c, 'i' | 'm' | 's' | '-'));
        let next = self.rest.next();
        begin.extend(next);
        match (begin.as_str(), next) {
            ("(?:", _) => {}
            (_, Some(':')) if is_modifier => self.cannot(format!("the modifiers `{begin}`")),
            _ => self.is_wrong(format!("`{begin}` begins no group of ECMA 262, such as `(?:…)` and `(?<name>…)`")),
        }
    }

    /// A count, or a brace.
    fn brace(&mut self) {
        let mut ahead = self.rest.clone();
        let mut count = String::new();
        while let Some(c) = ahead.next_if(|c| c.is_ascii_digit() || *c == ',') {
            count.push(c);
        }
        let is_count = ahead.next() == Some('}')
            && count.starts_with(|c: char| c.is_ascii_digit())
            && count.matches(',').count() <= 1;
        match is_count {
            true => {
                self.rest = ahead;
                self.repeat(format!("{{{count}}}"));
            }
            false => {
                self.out.push_str("\\{");
                self.last = Last::Atom;
            }
        }
    }
}

/// A character as it stands in both syntaxes, inside and outside of classes.
fn char_text(out: &mut String, code: u32) {
    match char::from_u32(code) {
        Some(c) if c.is_alphanumeric() && code < 0x2000 => out.push(c),
        _ => out.push_str(&format!("\\u{{{code:x}}}")),
    }
}

fn set_text(out: &mut String, set: &[(u32, u32)], is_but: bool) {
    let mut range = |from: u32, to: u32| {
        char_text(out, from);
        if from != to {
            out.push('-');
            char_text(out, to);
        }
    };
    if !is_but {
        return set.iter().for_each(|(from, to)| range(*from, *to));
    }
    let mut next = 0;
    for (from, to) in set {
        if next < *from {
            range(next, from - 1);
        }
        next = to + 1;
    }
    range(next, LAST);
}

/// A class of no character, or of every one.
fn set_text_between(out: &mut String, is_none: bool) {
    out.push_str(if is_none { NONE } else { ANY });
}

/// Any character.
const ANY: &str = r"[\u{0}-\u{10ffff}]";
/// No character.
pub(crate) const NONE: &str = r"[^\u{0}-\u{10ffff}]";

#[cfg(test)]
mod tests {
    use super::*;
    use regex_automata::nfa::thompson::pikevm::PikeVM;

    /// Whether the pattern finds something in the text; `None` if it cannot be held.
    fn finds(pattern: &str, text: &str) -> Option<bool> {
        let once = translated(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}"));
        if once.unheld.is_some() {
            return None;
        }
        let twice = translated(&once.text).unwrap_or_else(|e| panic!("{pattern} became {}: {e}", once.text));
        assert_eq!(
            (&once.hir, &None),
            (&twice.hir, &twice.unheld),
            "{pattern} became {} and {}",
            once.text,
            twice.text
        );
        let vm = PikeVM::new(&once.text).unwrap();
        Some(vm.is_match(&mut vm.create_cache(), text))
    }

    #[test]
    fn escapes_are_those_of_schemas() {
        for (pattern, yes, no) in [
            (r"^\cA$", "\u{1}", "A"),
            (r"^\cj\cZ$", "\n\u{1a}", "jZ"),
            (r"^\c!$", r"\c!", "!"),
            (r"^\0$", "\0", "0"),
            (r"^\012$", "\n", "\u{0}12"),
            (r"^[\101\7]+$", "A\u{7}", "1"),
            (r"^\x41\x4$", "Ax4", "A"),
            (r"^\u0041\u{1F600}$", "A😀", "A"),
            (r"^\uD83D\uDE00$", "😀", "x"),
            (r"^[\uD83D\uDE00-\uD83D\uDE02]$", "😁", "😀😀"),
            (r"^\d\D\w\W$", "1a_ ", "٣aéé"),
            (r"^\s\S$", "\u{feff}x", "\u{85}x"),
            (r"^[\s\d]+$", "1 \u{a0}", "a"),
            (r"^[^\S\D]?$", "", "1"),
            (r"^[\W]$", "é", "e"),
            (r"^[\b]$", "\u{8}", "b"),
            (r"^\-\/\@\_\<\>\é$", "-/@_<>é", "-/@_"),
            (r"^[[a]$", "[", "x"),
            (r"^[a&&b~~c-]+$", "&~-abc", "d"),
            (r"^[+--]$", ",", "/"),
            (r"^[\d-x]+$", "1-x", "y"),
            (r"^[a-\d]+$", "a-1", "b"),
            (r"^[]$", "none", ""),
            (r"^[^]$", "\n", "ab"),
            (r"^a{,3}{$", "a{,3}{", "aaa"),
            (r"^(?:a{2,3}){1}$", "aaa", "a"),
            (r"^a+?b*?c??d{2}?$", "abcdd", "d"),
            (r"^.$", "\u{85}", "\r"),
            (r"^a.c$", "a東c", "a\u{2028}c"),
            (r"^()*(|a)+$", "a", "b"),
            (r"^[a-z.*+?{(|]{2}$", ".+", ".]"),
            (r"^a]}$", "a]}", "a"),
            (r"^}]$", "}]", "}"),
            (r"^(?<na$me>a)\f\v\t\r\n$", "a\u{c}\u{b}\t\r\n", "a"),
            (r"^\p{Lu}\P{L}\p{Script=Greek}$", "A1α", "aaa"),
            (r"^[\p{Lu}\-x]+$", "A-x", "y"),
            (r"^\u{00000000041}\p{ASCII}\p{sc=Greek}$", "Aaα", "Aéα"),
        ] {
            let is_never = pattern == "^[]$";
            assert_eq!(finds(pattern, yes), Some(!is_never), "{pattern} {yes:?}");
            assert_eq!(finds(pattern, no), Some(false), "{pattern} {no:?}");
        }
    }

    #[test]
    fn what_no_automaton_holds_is_told() {
        for (pattern, what) in [
            (r"(?=a)", "look-ahead"),
            (r"(?!a)b", "look-ahead"),
            (r"(?<=a)", "look-behind"),
            (r"(?<!a)", "look-behind"),
            (r"(a)\1", "a reference back"),
            (r"(?<n>a)\k<n>", "a reference back"),
            (r"\uD800", r"the lone surrogate `\uD800`, half of a character"),
            (r"[\uDC00]", r"the lone surrogate `\uDC00`, half of a character"),
            (r"\u{dfff}", r"the lone surrogate `\uDFFF`, half of a character"),
            (r"\a", r"`\a`"),
            (r"\Aa", r"`\A`"),
            (r"a\z", r"`\z`"),
            (r"a\Z", r"`\Z`"),
            (r"[\A]", r"`\A`"),
            (r"\x{41}", r"`\x{` (a character by its number is `\u{…}`)"),
            (r"[\x{41}]", r"`\x{` (a character by its number is `\u{…}`)"),
            (r"(?i:a)b", "the modifiers `(?i:`"),
            (r"(?s-m:.)", "the modifiers `(?s-m:`"),
            (r"\p{RGI_Emoji}", r"`\p{RGI_Emoji}`"),
            // Spellings that this syntax does not have.
            (r"\p{greek}", r"`\p{greek}`"),
            (r"\p{^Lu}", r"`\p{^Lu}`"),
            (r"\p{sc!=Greek}", r"`\p{sc!=Greek}`"),
            (r"\p{Age=3}", r"`\p{Age=3}`"),
            (r"\p{Greek}", r"`\p{Greek}`"),
            (r"\p{IsGreek}", r"`\p{IsGreek}`"),
            (r"\pL", r"`\p`"),
            (r"[\P{lu}]", r"`\P{lu}`"),
        ] {
            let unheld = translated(pattern).unwrap_or_else(|e| panic!("{pattern}: {e}")).unheld;
            assert_eq!(unheld.as_deref(), Some(what), "{pattern}");
        }
    }

    #[test]
    fn what_is_wrong_in_this_syntax_is_told() {
        for pattern in ["(", "[a", "[b-a]", "(?=", "\\", "a{3,2}", ")", "(?", "[\\u{61}-\\u{5a}]"] {
            assert!(translated(pattern).is_err(), "{pattern}: {:?}", translated(pattern));
        }
        for (pattern, what) in [
            (r"(?i)a", "`(?i)` begins no group"),
            (r"a(?x) b", "`(?x)` begins no group"),
            (r"(?x: a)", "`(?x:` begins no group"),
            (r"(?U)a", "`(?U)` begins no group"),
            (r"(?P<x>a)", "`(?P<` begins no group"),
            (r"(?P=x)", "`(?P=` begins no group"),
            (r"(?>a)", "`(?>` begins no group"),
            (r"(?#a)", "`(?#` begins no group"),
            (r"(?|a)", "`(?|` begins no group"),
            (r"(?<n", "`(?<n` begins no group"),
            (r"(?<>a)", "`(?<>` begins no group"),
            (r"(?<1a>a)", "`(?<1a>` begins no group"),
            (r"a++", "`+` repeats what is repeated already"),
            (r"a*+b", "`+` repeats what is repeated already"),
            (r"a?+", "`+` repeats what is repeated already"),
            (r"a**", "`*` repeats what is repeated already"),
            (r"a+??", "`?` repeats what is repeated already"),
            (r"a{2}{3}", "`{3}` repeats what is repeated already"),
            (r"a{2,3}+", "`+` repeats what is repeated already"),
            (r"^*a", "`*` repeats an assertion"),
            (r"a\b+", "`+` repeats an assertion"),
            (r"a$?", "`?` repeats an assertion"),
            (r"*a", "`*` has nothing before it"),
            (r"(+a)", "`+` has nothing before it"),
            (r"a|{2}", "`{2}` has nothing before it"),
            (r"\u{110000}", r"`\u{…}` names a character beyond `\u{10FFFF}`"),
            (r"[\u{1000000000000}]", r"`\u{…}` names a character beyond `\u{10FFFF}`"),
            (r"\u{}", r"`\u{` has no number"),
            (r"\u{zz}", r"`\u{` has no number"),
        ] {
            let problem = translated(pattern).expect_err(pattern);
            assert!(problem.starts_with(what), "{pattern}: {problem}");
        }
    }
}

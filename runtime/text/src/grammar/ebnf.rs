//! Grammars of rules `name ::= …`, as other servers take them: read, checked, and written as Lark.
//!
//! Such a grammar knows no words, only characters. If no rule refers to itself, all of it is one expression. Otherwise
//! every character becomes a terminal of its own, because a lexer would take the longest word where the grammar means a
//! shorter one.

use super::writer::{Writer, quoted, slashed};
use super::{GrammarError, guard};
use std::collections::{HashMap, HashSet};

/// Longest grammar that is read, in bytes.
const BYTES: usize = 1 << 18;
/// Longest expression that a grammar without recursion becomes.
const EXPRESSION_BYTES: usize = 1 << 16;
/// Deepest nesting.
const DEPTH: usize = 64;
/// Most marks of repetition behind one part.
const MARKS: usize = 8;
/// Most repetitions that are counted.
const REPEATS: u32 = 10_000;

/// A part of a rule.
#[derive(Clone, Debug)]
enum Node {
    Text(String),
    /// A class of characters, as an expression.
    Class(String),
    Name(String),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// Content of a rule for the grammar's `root`.
pub(crate) fn lowered(writer: &mut Writer, text: &str) -> Result<String, GrammarError> {
    let rules = read(text)?;
    guard::rules("ebnf", rules.len())?;
    let mut stack = Vec::new();
    let mut size = 0;
    if let Some(regex) = expression("root", &rules, &mut stack, &mut size) {
        writer.left.expression("ebnf", &regex)?;
        return Ok(terminal_or_nothing(writer, &regex));
    }
    let mut names = HashMap::new();
    for name in rules.keys() {
        names.insert(name.as_str(), writer.forward());
    }
    for (name, node) in &rules {
        let content = written(writer, node, &names);
        if let Some(name) = names.get(name.as_str()) {
            writer.fill(name, &content);
        }
    }
    Ok(names.get("root").cloned().unwrap_or_default())
}

/// The grammar as one expression, if no rule refers to itself.
pub(crate) fn regex(text: &str) -> Option<String> {
    expression("root", &read(text).ok()?, &mut Vec::new(), &mut 0)
}

fn terminal_or_nothing(writer: &mut Writer, regex: &str) -> String {
    let empty = regex_syntax::parse(regex).is_ok_and(|hir| hir.properties().minimum_len() == Some(0));
    match empty {
        true => format!("{}?", writer.terminal(&format!("{} & /(?s:.+)/", slashed(regex)))),
        false => writer.terminal(&slashed(regex)),
    }
}

fn expression<'a>(
    name: &'a str,
    rules: &'a HashMap<String, Node>,
    stack: &mut Vec<&'a str>,
    size: &mut usize,
) -> Option<String> {
    if stack.contains(&name) || stack.len() > DEPTH {
        return None;
    }
    stack.push(name);
    let regex = of_node(rules.get(name)?, rules, stack, size);
    stack.pop();
    regex
}

fn of_node<'a>(
    node: &'a Node,
    rules: &'a HashMap<String, Node>,
    stack: &mut Vec<&'a str>,
    size: &mut usize,
) -> Option<String> {
    let mut all = |nodes: &'a [Node], joint: &str, size: &mut usize| -> Option<String> {
        let each: Option<Vec<String>> = nodes.iter().map(|node| of_node(node, rules, stack, size)).collect();
        each.map(|each| each.join(joint))
    };
    let regex = match node {
        Node::Text(text) => regex_syntax::escape(text),
        Node::Class(class) => class.clone(),
        Node::Name(name) => format!("(?:{})", expression(name, rules, stack, size)?),
        Node::Sequence(nodes) => all(nodes, "", size)?,
        Node::Either(nodes) => format!("(?:{})", all(nodes, "|", size)?),
        Node::Repeat(node, least, most) => {
            let most = most.map_or(String::new(), |most| most.to_string());
            format!("(?:{}){{{least},{most}}}", of_node(node, rules, stack, size)?)
        }
    };
    *size += regex.len();
    (*size <= EXPRESSION_BYTES).then_some(regex)
}

/// Content of a rule, character by character.
fn written(writer: &mut Writer, node: &Node, names: &HashMap<&str, String>) -> String {
    match node {
        Node::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Node::Text(text) => text.chars().map(|c| quoted(&c.to_string())).collect::<Vec<_>>().join(" "),
        Node::Class(class) => writer.terminal(&slashed(class)),
        Node::Name(name) => names.get(name.as_str()).cloned().unwrap_or_default(),
        Node::Sequence(nodes) if nodes.is_empty() => "\"\"".to_owned(),
        Node::Sequence(nodes) => nodes.iter().map(|n| written(writer, n, names)).collect::<Vec<_>>().join(" "),
        Node::Either(nodes) => {
            let each: Vec<String> = nodes.iter().map(|n| written(writer, n, names)).collect();
            format!("({})", each.join(" | "))
        }
        Node::Repeat(node, least, most) => {
            let inner = written(writer, node, names);
            match (least, most) {
                (_, Some(0)) => "\"\"".to_owned(),
                (0, Some(1)) => format!("({inner})?"),
                (0, None) => format!("({inner})*"),
                (1, None) => format!("({inner})+"),
                (least, Some(most)) => format!("({inner}){{{least},{most}}}"),
                (least, None) => format!("({inner}){{{least},}}"),
            }
        }
    }
}

/// Reads the rules; every name is defined, `root` among them.
fn read(text: &str) -> Result<HashMap<String, Node>, GrammarError> {
    if text.len() > BYTES {
        return Err(GrammarError::TooLarge {
            place: "ebnf".to_owned(),
            what: "the grammar has bytes:".to_owned(),
            found: text.len().to_string(),
            limit: BYTES.to_string(),
        });
    }
    let mut reader = Reader { text, at: 0, used: HashSet::new() };
    let mut rules = HashMap::new();
    reader.space(true);
    while reader.at < text.len() {
        let name = reader.name().ok_or_else(|| reader.wrong("a rule's name is missing", "write `name ::= …`"))?;
        reader.space(false);
        if !reader.take("::=") {
            return Err(reader.wrong(&format!("`::=` is missing behind `{name}`"), "write `name ::= …`"));
        }
        reader.space(true);
        let node = reader.either(0)?;
        if rules.insert(name.clone(), node).is_some() {
            return Err(reader.wrong(&format!("`{name}` is defined twice"), "give rules different names"));
        }
        reader.space(true);
    }
    reader.used.insert("root".to_owned());
    if let Some(name) = reader.used.iter().find(|name| !rules.contains_key(*name)) {
        return Err(GrammarError::bad("ebnf", format!("has no rule `{name}`"), "define it"));
    }
    Ok(rules)
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    used: HashSet<String>,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn wrong(&self, problem: &str, next: &str) -> GrammarError {
        let before = self.text.get(..self.at).unwrap_or("");
        let line = before.matches('\n').count() + 1;
        GrammarError::bad("ebnf", format!("line {line}: {problem}"), next)
    }

    /// Skips white space and comments, and with `lines` line ends.
    fn space(&mut self, lines: bool) {
        loop {
            match self.rest().chars().next() {
                Some(' ' | '\t' | '\r') => self.at += 1,
                Some('\n') if lines => self.at += 1,
                Some('#') => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                // A line that goes on with another alternative belongs to the rule.
                Some('\n') if self.rest().trim_start().starts_with('|') => self.at += 1,
                _ => return,
            }
        }
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn name(&mut self) -> Option<String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        let len = self.rest().find(|c| !is_name(c)).unwrap_or(self.rest().len());
        let name = self.rest().get(..len).filter(|name| !name.is_empty())?.to_owned();
        self.at += len;
        Some(name)
    }

    fn either(&mut self, depth: usize) -> Result<Node, GrammarError> {
        if depth > DEPTH {
            return Err(self.wrong(&format!("nests deeper than {DEPTH}"), "split the rule"));
        }
        let mut options = vec![self.sequence(depth)?];
        while self.take("|") {
            self.space(true);
            options.push(self.sequence(depth)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Node::Either(options) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, GrammarError> {
        let mut nodes = Vec::new();
        loop {
            self.space(depth > 0);
            let node = match self.rest().chars().next() {
                Some('"' | '\'') => Node::Text(self.literal()?),
                Some('[') => Node::Class(self.class()?),
                Some('.') => {
                    self.at += 1;
                    Node::Class("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.at += 1;
                    self.space(true);
                    let inner = self.either(depth + 1)?;
                    self.space(true);
                    if !self.take(")") {
                        return Err(self.wrong("`)` is missing", "close the group"));
                    }
                    inner
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                    let before = self.at;
                    let name = self.name().unwrap_or_default();
                    let after = self.at;
                    self.space(false);
                    if self.rest().starts_with("::=") {
                        // The next rule begins here.
                        self.at = before;
                        break;
                    }
                    self.at = after;
                    self.used.insert(name.clone());
                    Node::Name(name)
                }
                _ => break,
            };
            nodes.push(self.repeated(node)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Sequence(nodes) })
    }

    fn repeated(&mut self, mut node: Node) -> Result<Node, GrammarError> {
        for marks in 0.. {
            let (length, least, most) = match self.rest().chars().next() {
                Some('*') => (1, 0, None),
                Some('+') => (1, 1, None),
                Some('?') => (1, 0, Some(1)),
                Some('{') => self.counted()?,
                _ => break,
            };
            if marks == MARKS {
                return Err(self.wrong(&format!("more than {MARKS} repetitions of one part"), "group what repeats"));
            }
            self.at += length;
            node = Node::Repeat(Box::new(node), least, most);
        }
        Ok(node)
    }

    /// Length of `{n}`, `{n,}` or `{n,m}`, and what it says.
    fn counted(&self) -> Result<(usize, u32, Option<u32>), GrammarError> {
        let wrong = |reader: &Self| reader.wrong("a repetition is not `{n}`, `{n,}` or `{n,m}`", "write one of these");
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let end = self.rest().find('}').ok_or_else(|| wrong(self))?;
        let inner: String = self.rest().get(1..end).unwrap_or("").chars().filter(|c| !c.is_whitespace()).collect();
        let many = inner.split(',').find(|text| is_number(text) && text.parse().map_or(true, |n: u32| n > REPEATS));
        if let Some(many) = many {
            return Err(self.wrong(
                &format!("a part is repeated {many} times, at most {REPEATS} are counted"),
                "repeat it less often, or leave the end open",
            ));
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|_| is_number(text));
        let (least, most) = match inner.split_once(',') {
            None => (number(&inner), Some(number(&inner))),
            Some((least, "")) => (number(least), None),
            Some(("", most)) => (Some(0), Some(number(most))),
            Some((least, most)) => (number(least), Some(number(most))),
        };
        let (Some(least), false) = (least, most == Some(None)) else { return Err(wrong(self)) };
        let most = most.flatten();
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong(
                &format!("a repetition is `{{{inner}}}`, with more at least than at most"),
                "write the lower number first",
            ));
        }
        Ok((end + 1, least, most))
    }

    fn literal(&mut self) -> Result<String, GrammarError> {
        let quote = self.rest().chars().next().unwrap_or('"');
        self.at += 1;
        let mut out = String::new();
        loop {
            match self.rest().chars().next() {
                None | Some('\n') => return Err(self.wrong("a text is not closed", "close it with a quote")),
                Some(c) if c == quote => {
                    self.at += 1;
                    return Ok(out);
                }
                Some('\\') => out.push(self.escape()?),
                Some(c) => {
                    self.at += c.len_utf8();
                    out.push(c);
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        self.at += 1;
        let c = self.rest().chars().next().unwrap_or(' ');
        self.at += c.len_utf8();
        let digits = match c {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c if c.is_ascii_punctuation() => return Ok(c),
            c => {
                return Err(
                    self.wrong(&format!("`\\{c}` is no escape"), "write `\\\\`, `\\\"`, `\\n`, `\\x41` or the like")
                );
            }
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok()).and_then(char::from_u32);
        let code = code.ok_or_else(|| self.wrong("an escape names no character", "write its code in hexadecimal"))?;
        self.at += digits;
        Ok(code)
    }

    /// A class, as an expression.
    fn class(&mut self) -> Result<String, GrammarError> {
        self.at += 1;
        let mut out = String::from(if self.take("^") { "[^" } else { "[" });
        let mut any = false;
        loop {
            let c = match self.rest().chars().next() {
                None | Some('\n') => return Err(self.wrong("a class is not closed", "close it with `]`")),
                Some(']') => {
                    self.at += 1;
                    out.push(']');
                    break;
                }
                Some('-') if any && !self.rest().starts_with("-]") => {
                    self.at += 1;
                    out.push('-');
                    continue;
                }
                Some('\\') => self.escape()?,
                Some(c) => {
                    self.at += c.len_utf8();
                    c
                }
            };
            any = true;
            out.push_str(&format!("\\x{{{:x}}}", u32::from(c)));
        }
        let fine = any && regex_syntax::parse(&out).is_ok();
        if fine { Ok(out) } else { Err(self.wrong("a class is empty or out of order", "write it like `[a-z_]`")) }
    }
}

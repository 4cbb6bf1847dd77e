//! TOML with spans: a tree in which every key and value knows its bytes.

use crate::Diagnostic;
use indexmap::IndexMap;
use ir::Span;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of a spec file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub kind: Kind,
    pub span: Span,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Table(Table),
    Array(Vec<Node>),
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    /// Something without meaning, told already.
    Bad,
}

/// A table: key → (key's place, value), in file order.
pub(crate) type Table = IndexMap<String, (Span, Node)>;

impl Node {
    pub fn table(&self) -> Option<&Table> {
        match &self.kind {
            Kind::Table(t) => Some(t),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(t) => Some(t),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&[Node]> {
        match &self.kind {
            Kind::Array(a) => Some(a),
            _ => None,
        }
    }

    pub fn number(&self) -> Option<f64> {
        match self.kind {
            Kind::Integer(i) => Some(i as f64),
            Kind::Float(f) => Some(f),
            _ => None,
        }
    }

    /// What a person would call this kind of value.
    pub fn what(&self) -> &'static str {
        match self.kind {
            Kind::Table(_) => "a table",
            Kind::Array(_) => "a list",
            Kind::Text(_) => "a text",
            Kind::Integer(_) => "an integer",
            Kind::Float(_) => "a number",
            Kind::Bool(_) => "a truth value",
            Kind::Bad => "without meaning",
        }
    }
}

/// Parses the text of a file.
pub(crate) fn parse(file: u32, text: &str, out: &mut Vec<Diagnostic>) -> Option<Node> {
    match DeTable::parse(text) {
        Ok(table) => {
            let span = to_span(file, table.span());
            let mut node = Node { kind: Kind::Table(convert_table(file, table.into_inner(), out)), span };
            node.span.end = node.span.end.max(node.span.start);
            Some(node)
        }
        Err(e) => {
            let span = to_span(file, e.span().unwrap_or(0..0));
            let message = e.message().lines().next().unwrap_or("not TOML").to_owned();
            out.push(
                Diagnostic::error("B0002", format!("this is not TOML: {message}"))
                    .at(span, "here")
                    .help("block text stands between ''' and ''', everything else is TOML 1.0"),
            );
            None
        }
    }
}

fn to_span(file: u32, range: std::ops::Range<usize>) -> Span {
    Span { file, start: range.start as u32, end: range.end as u32 }
}

fn convert_table(file: u32, table: DeTable<'_>, out: &mut Vec<Diagnostic>) -> Table {
    table
        .into_iter()
        .map(|(key, value)| {
            let span = to_span(file, key.span());
            (key.into_inner().into_owned(), (span, convert(file, value, out)))
        })
        .collect()
}

fn convert(file: u32, value: Spanned<DeValue<'_>>, out: &mut Vec<Diagnostic>) -> Node {
    let span = to_span(file, value.span());
    let bad = |out: &mut Vec<Diagnostic>, what: String| {
        out.push(
            Diagnostic::error("B0003", format!("{what} has no meaning in a spec"))
                .at(span, "here")
                .help("write a number, a text, a truth value, a list or a table"),
        );
        Kind::Bad
    };
    let kind = match value.into_inner() {
        DeValue::String(s) => Kind::Text(s.into_owned()),
        DeValue::Boolean(b) => Kind::Bool(b),
        DeValue::Integer(i) => match i64::from_str_radix(i.as_str(), i.radix()) {
            Ok(n) => Kind::Integer(n),
            Err(_) => bad(out, format!("the integer `{}`", i.as_str())),
        },
        DeValue::Float(f) => match f.as_str().parse::<f64>() {
            Ok(x) if x.is_finite() => Kind::Float(x),
            _ => bad(out, format!("the number `{}`", f.as_str())),
        },
        DeValue::Array(items) => Kind::Array(items.into_iter().map(|v| convert(file, v, out)).collect()),
        DeValue::Table(table) => Kind::Table(convert_table(file, table, out)),
        DeValue::Datetime(_) => bad(out, "a date".to_owned()),
    };
    Node { kind, span }
}

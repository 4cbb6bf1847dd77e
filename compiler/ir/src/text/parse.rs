//! Parsing of the graph level: cursor, types, entries and graphs.

use super::lex::{ParseError, Token, error_at, tokens};
use super::name::{Extents, is_number};
use super::parse_facts::Header;
use crate::{Axis, Class, DType, Entry, Extent, Graph, GraphBuilder, Instance, LayerKinds, Module, Op};
use crate::{TensorType, Type, ValueId};
use std::collections::HashMap;

/// Deepest nesting of a type or of a constant expression; a bound, so that no text exhausts the stack.
pub(super) const MAX_DEPTH: usize = 100;

/// Most layers in a text; a bound, so that a range such as `0-99999999999` is an error and not a full memory.
pub(super) const MAX_LAYERS: usize = 1 << 16;

/// Reads a module from its text form.
pub fn parse_module(source: &str) -> Result<Module, ParseError> {
    let mut parser = Parser::new(source)?;
    let Header { facts, sharding, relaxations } = parser.header()?;
    let extents = Extents::of_dims(&facts.dims);
    let mut entries = Vec::new();
    while parser.eat_word("entry") {
        entries.push(parser.entry(&extents)?);
    }
    match parser.peek() {
        Token::End => Ok(Module { facts, sharding, relaxations, entries }),
        other => {
            let shown = other.shown();
            Err(parser.error(format!("{shown} starts no statement; entries follow the header and end the text")))
        }
    }
}

/// How a value is named in the text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum ValueKey {
    Number(String),
    Name(String),
}

impl ValueKey {
    pub(super) fn shown(&self) -> String {
        match self {
            ValueKey::Number(n) => format!("%{n}"),
            ValueKey::Name(n) => format!("%{n}"),
        }
    }
}

/// Inputs and outputs of a graph, with the places of their names in the text.
pub(super) struct Signature {
    inputs: Vec<(ValueKey, usize)>,
    outputs: Vec<(String, ValueKey, usize)>,
}

/// One value: its name, type, operation and operands, with the places of their names in the text.
pub(super) struct Line {
    pub(super) key: ValueKey,
    ty: Type,
    op: Op,
    operands: Vec<(ValueKey, usize)>,
}

pub(super) struct Parser<'a> {
    source: &'a str,
    tokens: Vec<(Token, usize)>,
    next: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(source: &'a str) -> Result<Self, ParseError> {
        Ok(Parser { source, tokens: tokens(source)?, next: 0 })
    }
}

impl Parser<'_> {
    pub(super) fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(t, _)| t)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.source.len(), |(_, at)| *at)
    }

    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        error_at(self.source, self.at(), message)
    }

    pub(super) fn expected<T>(&self, what: &str) -> Result<T, ParseError> {
        Err(self.error(format!("expected {what}, found {}", self.peek().shown())))
    }

    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    pub(super) fn eat_sign(&mut self, sign: char) -> bool {
        let found = *self.peek() == Token::Sign(sign);
        self.next += usize::from(found);
        found
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(w) if w == word);
        self.next += usize::from(found);
        found
    }

    pub(super) fn sign(&mut self, sign: char) -> Result<(), ParseError> {
        if self.eat_sign(sign) { Ok(()) } else { self.expected(&format!("`{sign}`")) }
    }

    pub(super) fn keyword(&mut self, word: &str) -> Result<(), ParseError> {
        if self.eat_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    /// A name, bare or quoted.
    pub(super) fn name(&mut self) -> Result<String, ParseError> {
        match self.peek() {
            Token::Word(w) | Token::Text(w) => {
                let name = w.clone();
                self.advance();
                Ok(name)
            }
            _ => self.expected("a name"),
        }
    }

    /// An unsigned number that fits the type asked for.
    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Result<T, ParseError> {
        match self.peek() {
            Token::Word(w) if is_number(w) => match w.parse() {
                Ok(n) => {
                    self.advance();
                    Ok(n)
                }
                Err(_) => Err(self.error(format!("`{w}` is too large here"))),
            },
            _ => self.expected("an unsigned number"),
        }
    }

    /// `start` or `start-end`, both included; the length is bounded.
    pub(super) fn layer_range(&mut self) -> Result<std::ops::Range<usize>, ParseError> {
        let start: usize = self.number()?;
        let last = if self.eat_sign('-') { self.number()? } else { start };
        if last < start || last - start >= MAX_LAYERS || last == usize::MAX {
            return Err(self.error(format!("layers {start}-{last} are not a range of at most {MAX_LAYERS} layers")));
        }
        Ok(start..last + 1)
    }

    /// Items between `open` and `close`, separated by commas.
    pub(super) fn list<T>(
        &mut self,
        open: char,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        self.sign(open)?;
        let mut items = Vec::new();
        while !self.eat_sign(close) {
            if !items.is_empty() {
                self.sign(',')?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    pub(super) fn dtype(&mut self) -> Result<DType, ParseError> {
        match self.peek() {
            Token::Word(w) => match w.parse() {
                Ok(dtype) => {
                    self.advance();
                    Ok(dtype)
                }
                Err(message) => Err(self.error(message)),
            },
            _ => self.expected("a dtype"),
        }
    }

    fn extent(&mut self) -> Result<Extent, ParseError> {
        if self.eat_word("rows") { Ok(Extent::Rows) } else { Ok(Extent::Fixed(self.number()?)) }
    }

    pub(super) fn axis(&mut self, extents: &Extents) -> Result<Axis, ParseError> {
        let at = self.at();
        let name = self.name()?;
        if self.eat_sign('=') {
            return Ok(Axis { name, extent: self.extent()? });
        }
        match extents.0.get(&name) {
            Some(extent) => Ok(Axis { name, extent: *extent }),
            None => Err(error_at(
                self.source,
                at,
                format!("axis `{name}` has no length; add it to `axes`, or write `{name}=…`"),
            )),
        }
    }

    pub(super) fn axes(&mut self, extents: &Extents) -> Result<Vec<Axis>, ParseError> {
        self.list('[', ']', |p| p.axis(extents))
    }

    fn ty(&mut self, extents: &Extents, depth: usize) -> Result<Type, ParseError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("the type is nested deeper than {MAX_DEPTH}")));
        }
        if *self.peek() == Token::Sign('(') {
            return Ok(Type::Tuple(self.list('(', ')', |p| p.ty(extents, depth + 1))?));
        }
        if self.eat_word("cache") {
            return Ok(Type::Cache);
        }
        let dtype = self.dtype()?;
        let mut indexes = None;
        if self.eat_sign('<') {
            indexes = Some(self.name()?);
            self.sign('>')?;
        }
        Ok(Type::Tensor(TensorType { dtype, axes: self.axes(extents)?, indexes }))
    }

    /// `column = kind, …`, possibly nothing.
    pub(super) fn kinds(&mut self, close: Option<char>) -> Result<LayerKinds, ParseError> {
        let mut kinds = LayerKinds::new();
        let starts_pair = |p: &Self| matches!(p.tokens.get(p.next + 1), Some((Token::Sign('='), _)));
        while starts_pair(self) {
            let column = self.name()?;
            self.sign('=')?;
            let kind = self.name()?;
            if kinds.insert(column.clone(), kind).is_some() {
                return Err(self.error(format!("column `{column}` stands twice")));
            }
            if !self.eat_sign(',') {
                break;
            }
        }
        if let Some(close) = close {
            self.sign(close)?;
        }
        Ok(kinds)
    }

    fn entry(&mut self, extents: &Extents) -> Result<Entry, ParseError> {
        let name = self.name()?;
        self.sign('{')?;
        self.keyword("graph")?;
        self.keyword("first")?;
        let first = self.graph(extents)?;
        let mut classes: Vec<Class> = Vec::new();
        while self.eat_word("class") {
            let name = self.name()?;
            if classes.iter().any(|c| c.name == name) {
                return Err(self.error(format!("class `{name}` stands twice")));
            }
            self.sign('{')?;
            let kinds = self.kinds(Some('}'))?;
            let graph = self.graph(extents)?;
            classes.push(Class { name, kinds, graph });
        }
        let mut instances = Vec::new();
        while self.eat_word("instances") {
            let range = self.layer_range()?;
            self.sign(':')?;
            let name = self.name()?;
            let Some(class) = classes.iter().position(|c| c.name == name) else {
                return Err(self.error(format!("there is no class `{name}` in this entry")));
            };
            if instances.len() + range.len() > MAX_LAYERS {
                return Err(self.error(format!("the entry has more than {MAX_LAYERS} instances")));
            }
            instances.extend(range.map(|layer| Instance { layer, class }));
        }
        self.keyword("graph")?;
        self.keyword("last")?;
        let last = self.graph(extents)?;
        self.sign('}')?;
        Ok(Entry { name, first, classes, instances, last })
    }

    fn value_key(&mut self) -> Result<ValueKey, ParseError> {
        self.sign('%')?;
        let key = match self.peek() {
            Token::Word(w) if is_number(w) => ValueKey::Number(w.clone()),
            Token::Word(w) | Token::Text(w) => ValueKey::Name(w.clone()),
            _ => return self.expected("the name or number of a value"),
        };
        self.advance();
        Ok(key)
    }

    fn graph(&mut self, outer: &Extents) -> Result<Graph, ParseError> {
        let (signature, extents) = self.graph_open(outer)?;
        let mut builder = GraphBuilder::new();
        let mut known: HashMap<ValueKey, ValueId> = HashMap::new();
        while !self.eat_sign('}') {
            self.value_line(&extents, &mut builder, &mut known)?;
        }
        self.graph_close(builder, &signature, &known)
    }

    /// Signature, opening brace and axes of a graph.
    pub(super) fn graph_open(&mut self, outer: &Extents) -> Result<(Signature, Extents), ParseError> {
        let inputs = self.list('(', ')', |p| Ok((p.value_key()?, p.at())))?;
        if *self.peek() != Token::Arrow {
            return self.expected("`->` and the outputs");
        }
        self.advance();
        let outputs = self.list('(', ')', |p| {
            let name = p.name()?;
            p.sign('=')?;
            Ok((name, p.value_key()?, p.at()))
        })?;
        self.sign('{')?;
        let mut extents = outer.clone();
        if self.eat_word("axes") {
            loop {
                let name = self.name()?;
                self.sign('=')?;
                let extent = self.extent()?;
                extents.0.insert(name, extent);
                if !self.eat_sign(',') {
                    break;
                }
            }
        }
        Ok((Signature { inputs, outputs }, extents))
    }

    /// The graph, once all its values are known.
    pub(super) fn graph_close(
        &self,
        builder: GraphBuilder,
        signature: &Signature,
        known: &HashMap<ValueKey, ValueId>,
    ) -> Result<Graph, ParseError> {
        let find = |key: &ValueKey, at: usize| {
            let missing = || error_at(self.source, at, format!("the graph defines no {}", key.shown()));
            known.get(key).copied().ok_or_else(missing)
        };
        let mut graph = builder.finish();
        for (key, at) in &signature.inputs {
            let id = find(key, *at)?;
            graph.inputs.push(id);
        }
        for (name, key, at) in &signature.outputs {
            let id = find(key, *at)?;
            graph.outputs.push((name.clone(), id));
        }
        Ok(graph)
    }

    fn value_line(
        &mut self,
        extents: &Extents,
        builder: &mut GraphBuilder,
        known: &mut HashMap<ValueKey, ValueId>,
    ) -> Result<(), ParseError> {
        let line = self.line(extents)?;
        if known.contains_key(&line.key) {
            return Err(self.error(format!("{} is defined twice", line.key.shown())));
        }
        let id = self.define(&line, builder, known)?;
        known.insert(line.key, id);
        Ok(())
    }

    /// One value as its line says it.
    pub(super) fn line(&mut self, extents: &Extents) -> Result<Line, ParseError> {
        let key = self.value_key()?;
        self.sign(':')?;
        let ty = self.ty(extents, 0)?;
        self.sign('=')?;
        let op: Op = self.op()?;
        let mut operands = Vec::new();
        if !op.is_leaf() {
            operands = self.list('(', ')', |p| {
                let at = p.at();
                Ok((p.value_key()?, at))
            })?;
        }
        Ok(Line { key, ty, op, operands })
    }

    /// Adds a value whose operands are known.
    pub(super) fn define(
        &self,
        line: &Line,
        builder: &mut GraphBuilder,
        known: &HashMap<ValueKey, ValueId>,
    ) -> Result<ValueId, ParseError> {
        let operand = |(key, at): &(ValueKey, usize)| {
            let missing = || error_at(self.source, *at, format!("{} is not defined above", key.shown()));
            known.get(key).copied().ok_or_else(missing)
        };
        let operands = line.operands.iter().map(operand).collect::<Result<Vec<_>, _>>()?;
        let id = builder.add(line.op.clone(), &operands, line.ty.clone(), None);
        if let ValueKey::Name(name) = &line.key {
            builder.name(id, name);
        }
        Ok(id)
    }
}

//! Parsing of the kernel level.

use super::lex::{ParseError, Token};
use super::name::Extents;
use super::parse::{Line, MAX_LAYERS, Parser, ValueKey};
use super::parse_facts::Header;
use crate::{GraphBuilder, Instance, KernelEntry, KernelGraph, KernelKind, KernelModule, LayerKinds, Layout, Region};
use crate::{ValueId, WeightLayout};
use std::collections::{BTreeMap, HashMap};

/// Reads a module at kernel level from its text form.
pub fn parse_kernels(source: &str) -> Result<KernelModule, ParseError> {
    let mut parser = Parser::new(source)?;
    let Header { facts, sharding, relaxations } = parser.header()?;
    let extents = Extents::of_dims(&facts.dims);
    let mut layouts = Vec::new();
    while parser.eat_word("layout") {
        layouts.push(parser.layout()?);
    }
    let mut entries = Vec::new();
    while parser.eat_word("entry") {
        entries.push(parser.kernel_entry(&extents)?);
    }
    match parser.peek() {
        Token::End => Ok(KernelModule { facts, sharding, relaxations, layouts, entries }),
        other => {
            let shown = other.shown();
            Err(parser
                .error(format!("{shown} starts no statement; layouts and entries follow the header and end the text")))
        }
    }
}

/// The values of a graph, by number, as their lines say them.
#[derive(Default)]
struct Lines {
    lines: BTreeMap<u32, Line>,
    known: HashMap<ValueKey, ValueId>,
}

impl Parser<'_> {
    fn layout(&mut self) -> Result<WeightLayout, ParseError> {
        let weight = self.weight_ref(0)?;
        self.sign(':')?;
        let layout = if self.eat_word("row_major") {
            Layout::RowMajor
        } else if self.eat_word("interleaved") {
            let parts = self.number()?;
            self.keyword("by")?;
            Layout::Interleaved { parts, granule: self.number()? }
        } else {
            return self.expected("`row_major` or `interleaved`");
        };
        Ok(WeightLayout { weight, layout })
    }

    fn kernel_entry(&mut self, extents: &Extents) -> Result<KernelEntry, ParseError> {
        let name = self.name()?;
        self.sign('{')?;
        let mut graphs = Vec::new();
        while self.eat_word("graph") {
            graphs.push(self.kernel_graph(extents)?);
        }
        let mut instances = Vec::new();
        while self.eat_word("instances") {
            let range = self.layer_range()?;
            self.sign(':')?;
            let name = self.name()?;
            let numbered = || name.strip_prefix("class ").and_then(|n| n.parse().ok());
            let found = graphs.iter().skip(1).position(|g: &KernelGraph| g.name == name);
            let Some(class) = found.or_else(numbered) else {
                return Err(self.error(format!("there is no graph `{name}` in this entry")));
            };
            if instances.len() + range.len() > MAX_LAYERS {
                return Err(self.error(format!("the entry has more than {MAX_LAYERS} instances")));
            }
            instances.extend(range.map(|layer| Instance { layer, class }));
        }
        self.sign('}')?;
        Ok(KernelEntry { name, graphs, instances })
    }

    fn kernel_graph(&mut self, outer: &Extents) -> Result<KernelGraph, ParseError> {
        let name = self.name()?;
        let kinds = if self.eat_sign('{') { self.kinds(Some('}'))? } else { LayerKinds::new() };
        let (signature, extents) = self.graph_open(outer)?;
        let mut lines = Lines::default();
        while !matches!(self.peek(), Token::Word(w) if w == "region") && *self.peek() != Token::Sign('}') {
            self.numbered_line(&extents, &mut lines)?;
        }
        let mut regions = Vec::new();
        while self.eat_word("region") {
            let name = self.name()?;
            let kind = self.kernel_kind()?;
            self.sign('{')?;
            let mut values = Vec::new();
            while !self.eat_sign('}') {
                values.push(self.numbered_line(&extents, &mut lines)?);
            }
            regions.push(Region { name, kind, values });
        }
        self.sign('}')?;
        let mut builder = GraphBuilder::new();
        let mut known = HashMap::new();
        for (expected, (number, line)) in lines.lines.iter().enumerate() {
            if *number as usize != expected {
                return Err(self.error(format!("graph `{name}` has a value {number} and no value {expected}")));
            }
            let id = self.define(line, &mut builder, &known)?;
            known.insert(line.key.clone(), id);
        }
        let graph = self.graph_close(builder, &signature, &known)?;
        Ok(KernelGraph { name, kinds, graph, regions })
    }

    /// A value with its number: what `at` says, else what an unnamed value is called by, else the number of the line.
    fn numbered_line(&mut self, extents: &Extents, lines: &mut Lines) -> Result<ValueId, ParseError> {
        let given: Option<u32> = if self.eat_word("at") { Some(self.number()?) } else { None };
        let line = self.line(extents)?;
        let called = match &line.key {
            ValueKey::Number(n) => Some(n.parse().map_err(|_| self.error(format!("`{n}` is too large here")))?),
            ValueKey::Name(_) => None,
        };
        let number = given.or(called).unwrap_or(lines.lines.len() as u32);
        if lines.known.insert(line.key.clone(), ValueId(number)).is_some() {
            return Err(self.error(format!("{} is defined twice", line.key.shown())));
        }
        if lines.lines.insert(number, line).is_some() {
            return Err(self.error(format!("two values have the number {number}")));
        }
        Ok(ValueId(number))
    }

    fn kernel_kind(&mut self) -> Result<KernelKind, ParseError> {
        match KernelKind::ALL.into_iter().find(|k| self.eat_word(k.word())) {
            Some(kind) => Ok(kind),
            None => self.expected("a kind of kernel"),
        }
    }
}

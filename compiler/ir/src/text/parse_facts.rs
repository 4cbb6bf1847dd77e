//! Parsing of a module's header.

use super::lex::{ParseError, Token};
use super::name::Extents;
use super::parse::{MAX_LAYERS, Parser};
use crate::{Capture, DiskForm, Extent, Facts, KvKind, Mesh, PlacedWeight, Placement, RuntimeFacts, Scope, Sharding};
use crate::{Weight, When};
use indexmap::IndexMap;
use std::fmt::Display;
use std::hash::Hash;

/// What precedes the entries.
pub(super) struct Header {
    pub(super) facts: Facts,
    pub(super) sharding: Option<Sharding>,
    pub(super) relaxations: Vec<String>,
}

impl Parser<'_> {
    /// Everything before the entries. Statements may come in any order, but lengths before axes that use them, and the mesh
    /// before what lies on it.
    pub(super) fn header(&mut self) -> Result<Header, ParseError> {
        self.keyword("module")?;
        let name = self.name()?;
        self.keyword("act")?;
        let mut facts = Facts {
            name,
            act: self.dtype()?,
            dims: IndexMap::new(),
            products: IndexMap::new(),
            shard: IndexMap::new(),
            options: IndexMap::new(),
            schedule: Vec::new(),
            weights: Vec::new(),
            kv: Vec::new(),
            stored: None,
            captures: Vec::new(),
            exports: Vec::new(),
            runtime: RuntimeFacts::default(),
            files: Vec::new(),
        };
        let mut extents = Extents::default();
        let (mut sharding, mut relaxations) = (None, Vec::new());
        while let Token::Word(word) = self.peek() {
            let word = word.clone();
            if word == "entry" || word == "layout" {
                break;
            }
            self.advance();
            match word.as_str() {
                "mesh" if sharding.is_none() => {
                    sharding = Some(Sharding { mesh: self.mesh()?, ..Sharding::default() });
                }
                "mesh" => return Err(self.error("the text has two meshes")),
                "place" => match &mut sharding {
                    Some(sharding) => self.place(sharding)?,
                    None => return Err(self.error("a placement needs the mesh before it")),
                },
                "relaxed" => relaxations.push(self.name()?),
                _ => self.statement(&word, &mut facts, &mut extents)?,
            }
        }
        Ok(Header { facts, sharding, relaxations })
    }

    fn mesh(&mut self) -> Result<Mesh, ParseError> {
        let axes = self.list('[', ']', |p| Ok((p.left_side()?, p.number()?)))?;
        Mesh::new(axes).map_err(|e| self.error(e.0))
    }

    fn place(&mut self, sharding: &mut Sharding) -> Result<(), ParseError> {
        if self.eat_word("weight") {
            let (scope, name) = (self.scope()?, self.name()?);
            let axes = self.placement()?;
            sharding.weights.push(PlacedWeight { scope, name, axes });
        } else if self.eat_word("kv") {
            let (kind, axes) = (self.name()?, self.placement()?);
            self.insert_once(&mut sharding.kv, kind, axes)?;
        } else if self.eat_word("rows") {
            sharding.rows = self.placement()?;
        } else {
            return self.expected("`weight`, `kv` or `rows`");
        }
        Ok(())
    }

    /// `: axis over [tp], …`
    fn placement(&mut self) -> Result<Placement, ParseError> {
        self.sign(':')?;
        let mut placement = Placement::new();
        loop {
            let (axis, over) = (self.name()?, self.mesh_axes()?);
            self.insert_once(&mut placement, axis, over)?;
            if !self.eat_sign(',') {
                return Ok(placement);
            }
        }
    }

    fn scope(&mut self) -> Result<Scope, ParseError> {
        if self.eat_word("model") {
            Ok(Scope::Model)
        } else if self.eat_word("layer") {
            Ok(Scope::Layer)
        } else {
            self.expected("`model` or `layer`")
        }
    }

    fn statement(&mut self, word: &str, facts: &mut Facts, extents: &mut Extents) -> Result<(), ParseError> {
        match word {
            "file" => facts.files.push(self.name()?),
            "dim" => {
                let (name, n) = (self.left_side()?, self.number()?);
                extents.0.insert(name.clone(), Extent::Fixed(n));
                self.insert_once(&mut facts.dims, name, n)?;
            }
            "product" => {
                let (name, factors) = (self.left_side()?, self.list('[', ']', Self::name)?);
                self.insert_once(&mut facts.products, name, factors)?;
            }
            "shard" => {
                let (name, mesh) = (self.left_side()?, self.list('[', ']', Self::name)?);
                self.insert_once(&mut facts.shard, name, mesh)?;
            }
            "option" => {
                let (name, choice) = (self.left_side()?, self.name()?);
                self.insert_once(&mut facts.options, name, choice)?;
            }
            "layers" => {
                let range = self.layer_range()?;
                if range.start != facts.schedule.len() || range.end > MAX_LAYERS {
                    let next = facts.schedule.len();
                    let message =
                        format!("layers start at {}, the next layer is {next} of at most {MAX_LAYERS}", range.start);
                    return Err(self.error(message));
                }
                self.sign(':')?;
                let kinds = self.kinds(None)?;
                facts.schedule.extend(range.map(|_| kinds.clone()));
            }
            "kv" => facts.kv.push(self.kv_kind(extents)?),
            "weight" => facts.weights.push(self.weight(extents)?),
            "capture" => facts.captures.push(self.capture()?),
            "export" => facts.exports.push(self.capture()?),
            "stored" if facts.stored.is_none() => facts.stored = Some(self.stored()?),
            "stored" => return Err(self.error("the text has two statements `stored`")),
            "context" => facts.runtime.context = Some(self.number()?),
            "stop" => facts.runtime.stop = self.list('[', ']', Self::number)?,
            "start" => facts.runtime.start = Some(self.number()?),
            "pad" => facts.runtime.pad = Some(self.number()?),
            other => {
                let known = "file, dim, product, shard, option, layers, kv, weight, stored, capture, export, context, stop, start, pad, mesh, place, relaxed, entry";
                return Err(self.error(format!("`{other}` is no statement of the header; known are {known}")));
            }
        }
        Ok(())
    }

    fn left_side(&mut self) -> Result<String, ParseError> {
        let name = self.name()?;
        self.sign('=')?;
        Ok(name)
    }

    fn insert_once<K: Hash + Eq + Clone + Display, V>(
        &self,
        map: &mut IndexMap<K, V>,
        key: K,
        value: V,
    ) -> Result<(), ParseError> {
        match map.insert(key.clone(), value) {
            None => Ok(()),
            Some(_) => Err(self.error(format!("`{key}` is declared twice"))),
        }
    }

    fn kv_kind(&mut self, extents: &Extents) -> Result<KvKind, ParseError> {
        let name = self.name()?;
        self.sign(':')?;
        self.keyword("k")?;
        let k = self.axes(extents)?;
        self.keyword("v")?;
        let v = self.axes(extents)?;
        let window = if self.eat_word("window") { Some(self.number()?) } else { None };
        self.keyword("layers")?;
        let layers = self.list('[', ']', Self::number)?;
        let lives_in = if self.eat_word("lives") { Some(self.name()?) } else { None };
        let shared_slots = if self.eat_word("slots") { self.number()? } else { 0 };
        Ok(KvKind { name, layers, k, v, window, lives_in, shared_slots })
    }

    fn capture(&mut self) -> Result<Capture, ParseError> {
        let name = self.name()?;
        self.sign(':')?;
        let value = self.name()?;
        let entry = self.after("of")?;
        self.keyword("layers")?;
        Ok(Capture { name, entry, value, layers: self.layer_list()? })
    }

    fn weight(&mut self, extents: &Extents) -> Result<Weight, ParseError> {
        let scope = self.scope()?;
        let name = self.name()?;
        self.sign(':')?;
        let dtype = self.dtype()?;
        let axes = self.list('[', ']', |p| {
            let mut group = Vec::new();
            while !matches!(p.peek(), Token::Sign(',' | ']')) {
                group.push(p.axis(extents)?);
            }
            Ok(group)
        })?;
        let pinned = self.eat_word("pinned");
        let quant = self.eat_word("quant");
        let mut when = None;
        if self.eat_word("when") {
            let column = self.left_side()?;
            when = Some(When { column, kind: self.name()? });
        }
        let only = if self.eat_word("only") { Some(self.layer_list()?) } else { None };
        let absent = if self.eat_word("absent") { Some(self.f32()?) } else { None };
        let borrowed = self.eat_word("borrowed");
        let mut disk = Vec::new();
        while self.eat_word("disk") {
            disk.push(self.disk_form()?);
        }
        Ok(Weight { name, scope, axes, dtype, pinned, when, only, absent, disk, quant, borrowed, span: None })
    }

    fn disk_form(&mut self) -> Result<DiskForm, ParseError> {
        let tensor = self.name()?;
        let spread = if self.eat_word("spread") { self.list('[', ']', Self::name)? } else { Vec::new() };
        let mut slice = None;
        if self.eat_word("slice") {
            slice = Some(self.list('[', ']', |p| {
                let start = p.number()?;
                p.sign('+')?;
                Ok([start, p.number()?])
            })?);
        }
        self.keyword("shape")?;
        let shape = self.list('[', ']', Self::number)?;
        Ok(DiskForm { tensor, spread, slice, shape, layout: self.disk_layout()? })
    }
}

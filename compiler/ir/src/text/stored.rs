//! How the text form says what a checkpoint keeps in narrow formats.
//!
//! ```text
//! stored fp8 inputs token codes weight scale weight_scale
//!   plain head
//!   plain o layers [3, 5-7]
//!   cached k ["layers.{l}.k_scale"] v ["layers.{l}.v_scale"]
//! weight layer q.codes: e4m3[wide, hidden] pinned only [0-2, 4]
//!   disk "layers.{l}.q.weight" shape [64, 64]
//! weight layer q.scale: f32[wide] pinned absent 1.0
//!   disk "layers.{l}.q.weight" shape [64, 64] as row_scales
//! ```

use super::lex::ParseError;
use super::name::{Name, name_list};
use super::parse::{MAX_LAYERS, Parser};
use super::print::put;
use crate::{DiskLayout, Stored, StoredFormat, StoredInputs, StoredKv, StoredNames, StoredPlain};
use std::fmt::Write;

/// The statement `stored`.
pub(super) fn print_stored(out: &mut String, stored: &Stored) {
    let names = &stored.names;
    let mut line = format!("stored {} inputs {}", stored.format.word(), stored.inputs.word());
    let _ = write!(line, " codes {} scale {}", Name(&names.codes), Name(&names.scale));
    for (word, name) in [("global", &names.global), ("input", &names.input)] {
        if let Some(name) = name {
            let _ = write!(line, " {word} {}", Name(name));
        }
    }
    if stored.some_numbers {
        line += " numbers some";
    }
    put!(out, "{line}");
    for plain in &stored.plain {
        let layers = plain.layers.as_ref().map(|l| format!(" layers {}", layers_text(l))).unwrap_or_default();
        put!(out, "  plain {}{layers}", Name(&plain.weight));
    }
    if let Some(kv) = &stored.kv {
        let list = |names: &[String]| name_list(names.iter().map(String::as_str));
        put!(out, "  cached k {} v {}", list(&kv.k_scale), list(&kv.v_scale));
    }
}

/// Layers as a list of ranges.
pub(super) fn layers_text(layers: &[usize]) -> String {
    let runs = layers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let word = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(usize::to_string).collect(),
    };
    format!("[{}]", runs.map(word).collect::<Vec<_>>().join(", "))
}

/// What follows the shape of a form on disk.
pub(super) fn layout_text(layout: &DiskLayout) -> String {
    match layout {
        DiskLayout::Plain => String::new(),
        DiskLayout::Nibbles { scales } => format!(" as nibbles scales {}", serde_json::Value::from(scales.as_str())),
        DiskLayout::Number => " as number".to_owned(),
        DiskLayout::Largest { also } => format!(" as largest{}", also_text(also)),
        DiskLayout::Same { also } => format!(" as same{}", also_text(also)),
        DiskLayout::RowCodes => " as row_codes".to_owned(),
        DiskLayout::RowScales => " as row_scales".to_owned(),
    }
}

fn also_text(also: &[String]) -> String {
    if also.is_empty() { String::new() } else { format!(" also {}", name_list(also.iter().map(String::as_str))) }
}

impl Parser<'_> {
    /// The statement `stored`, behind its word.
    pub(super) fn stored(&mut self) -> Result<Stored, ParseError> {
        let format = self.one_of(&StoredFormat::ALL, |f| f.word())?;
        self.keyword("inputs")?;
        let inputs = self.one_of(&StoredInputs::ALL, |i| i.word())?;
        self.keyword("codes")?;
        let codes = self.name()?;
        self.keyword("scale")?;
        let scale = self.name()?;
        let global = if self.eat_word("global") { Some(self.name()?) } else { None };
        let input = if self.eat_word("input") { Some(self.name()?) } else { None };
        let some_numbers = self.eat_word("numbers");
        if some_numbers {
            self.keyword("some")?;
        }
        let mut plain = Vec::new();
        while self.eat_word("plain") {
            let weight = self.name()?;
            let layers = if self.eat_word("layers") { Some(self.layer_list()?) } else { None };
            plain.push(StoredPlain { weight, layers });
        }
        let mut kv = None;
        if self.eat_word("cached") {
            self.keyword("k")?;
            let k_scale = self.list('[', ']', Self::name)?;
            self.keyword("v")?;
            kv = Some(StoredKv { k_scale, v_scale: self.list('[', ']', Self::name)? });
        }
        let names = StoredNames { codes, scale, global, input };
        Ok(Stored { format, inputs, plain, kv, names, some_numbers, span: None })
    }

    /// One of a few words.
    pub(super) fn one_of<T: Copy>(&mut self, all: &[T], word: impl Fn(T) -> &'static str) -> Result<T, ParseError> {
        for item in all {
            if self.eat_word(word(*item)) {
                return Ok(*item);
            }
        }
        let known: Vec<String> = all.iter().map(|item| format!("`{}`", word(*item))).collect();
        self.expected(&known.join(" or "))
    }

    /// A list of layers and ranges of layers.
    pub(super) fn layer_list(&mut self) -> Result<Vec<usize>, ParseError> {
        let mut layers = Vec::new();
        for range in self.list('[', ']', Self::layer_range)? {
            if layers.len() + range.len() > MAX_LAYERS {
                return Err(self.error(format!("the list has more than {MAX_LAYERS} layers")));
            }
            layers.extend(range);
        }
        Ok(layers)
    }

    /// What follows the shape of a form on disk.
    pub(super) fn disk_layout(&mut self) -> Result<DiskLayout, ParseError> {
        if !self.eat_word("as") {
            return Ok(DiskLayout::Plain);
        }
        if self.eat_word("nibbles") {
            self.keyword("scales")?;
            return Ok(DiskLayout::Nibbles { scales: self.name()? });
        }
        if self.eat_word("largest") {
            return Ok(DiskLayout::Largest { also: self.also()? });
        }
        if self.eat_word("same") {
            return Ok(DiskLayout::Same { also: self.also()? });
        }
        let plain = [DiskLayout::Number, DiskLayout::RowCodes, DiskLayout::RowScales];
        for (layout, word) in plain.into_iter().zip(["number", "row_codes", "row_scales"]) {
            if self.eat_word(word) {
                return Ok(layout);
            }
        }
        self.expected("`nibbles`, `number`, `largest`, `same`, `row_codes` or `row_scales`")
    }

    fn also(&mut self) -> Result<Vec<String>, ParseError> {
        if self.eat_word("also") { self.list('[', ']', Self::name) } else { Ok(Vec::new()) }
    }
}

//! TOML facts to [`ir::Facts`]: dims, product axes, values, options, schedule, cache kinds, weights.

use crate::document::{Kind, Node, Table};
use crate::merge::Merged;
use crate::{Choices, Diagnostic, Sources, disk, rules};
use indexmap::IndexMap;
use ir::{Axis, DType, DiskForm, Facts, KvKind, LayerKinds, RuntimeFacts, Scope, Span, Weight, When};
use std::collections::HashMap;

/// Longest axis and largest weight a spec may have; far above any model, far below an overflow.
const MAX_DIM: i64 = 1 << 40;
const MAX_LAYERS: u64 = 4096;
const MAX_ELEMENTS: u64 = 1 << 60;

/// A named number of `[values]`, or `"none"`, or a group of numbers.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(f64),
    None,
    Group(IndexMap<String, f64>),
}

/// Everything TOML says, with places for errors about it.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub facts: Facts,
    pub values: IndexMap<String, (Span, Value)>,
    pub dim_spans: HashMap<String, Span>,
    /// Options: name → (place, alternatives).
    pub option_spans: IndexMap<String, (Span, Vec<String>)>,
    /// Where schedule columns and cache kinds are declared.
    pub column_spans: HashMap<String, Span>,
    pub kv_spans: HashMap<String, Span>,
    /// Entries that the tables themselves name: table and name.
    pub named_elsewhere: Vec<(&'static str, String)>,
    /// Whether the lint about narrowing names is on.
    pub lint_narrowing: bool,
    /// End of the user's file list, for "entry is missing".
    pub whole: Span,
}

/// Reads the tables of a merged spec.
pub(crate) fn resolve(
    merged: &Merged,
    choices: &Choices,
    sources: &Sources,
    out: &mut Vec<Diagnostic>,
) -> Option<Resolved> {
    let before = out.len();
    let mut reader = Reader {
        merged,
        out,
        numbers: HashMap::new(),
        dim_spans: HashMap::new(),
        refused_columns: Vec::new(),
        named_elsewhere: Vec::new(),
    };
    let (name, act) = reader.model(choices);
    let (mut dims, products) = reader.dims(choices);
    let values = reader.values();
    let (options, option_spans) = reader.options(choices);
    let mut schedule = reader.schedule(&dims);
    reader.keep_layers(choices, &mut dims, &mut schedule);
    let kv = reader.kv(&dims, &schedule, &values);
    let weights = reader.weights(&dims, act, &schedule);
    let shard = reader.shard(&dims);
    let runtime = reader.runtime();
    let lint_narrowing = reader.lints();
    let named_elsewhere = std::mem::take(&mut reader.named_elsewhere);
    let spans = |table: &str| -> HashMap<String, Span> {
        merged.table(table).into_iter().flatten().map(|(key, (span, _))| (key.clone(), *span)).collect()
    };
    let (column_spans, kv_spans) = (spans("schedule"), spans("kv"));
    let dim_spans = std::mem::take(&mut reader.dim_spans);
    if out.len() > before {
        return None;
    }
    let files = sources.names();
    let facts = Facts { name, act, dims, products, shard, options, schedule, weights, kv, runtime, files };
    Some(Resolved {
        facts,
        values,
        dim_spans,
        option_spans,
        column_spans,
        kv_spans,
        named_elsewhere,
        lint_narrowing,
        whole: merged.whole,
    })
}

struct Reader<'a> {
    merged: &'a Merged,
    out: &'a mut Vec<Diagnostic>,
    /// Dims and factors by name, for rules and slices.
    numbers: HashMap<String, f64>,
    dim_spans: HashMap<String, Span>,
    /// Columns whose rule or list was refused: conditions on them say nothing new.
    refused_columns: Vec<String>,
    named_elsewhere: Vec<(&'static str, String)>,
}

impl<'a> Reader<'a> {
    fn table(&self, name: &str) -> Option<&'a Table> {
        self.merged.table(name)
    }

    fn error(&mut self, d: Diagnostic) {
        self.out.push(d);
    }

    fn wrong(&mut self, node: &Node, wanted: &str) {
        if matches!(node.kind, Kind::Bad) {
            return;
        }
        let d = Diagnostic::error("B0010", format!("{wanted} is expected"));
        self.error(d.at(node.span, format!("this is {}", node.what())));
    }

    fn unknown_key(&mut self, table: &str, key: &str, span: Span, known: &[&str]) {
        let d = Diagnostic::error("B0011", format!("[{table}] has no key `{key}`"));
        self.error(d.at(span, "unknown").nearest(key, known.iter().copied()));
    }

    fn model(&mut self, choices: &Choices) -> (String, DType) {
        let (mut name, mut act) = ("unnamed".to_owned(), None);
        for (key, (span, node)) in self.table("model").into_iter().flatten() {
            match (key.as_str(), node.text()) {
                ("name", Some(text)) => name = text.to_owned(),
                ("act", Some(text)) => match text.parse::<DType>() {
                    Ok(d) if d.is_float() => act = Some(d),
                    _ => self.error(
                        Diagnostic::error("B0012", format!("`{text}` is no format that values can round to"))
                            .at(node.span, "the dtype of untyped names")
                            .help("write act = \"bf16\" or act = \"f32\""),
                    ),
                },
                ("name" | "act", None) => self.wrong(node, "a text"),
                ("hf", _) if node.table().is_some() => {}
                ("target", _) => self.error(
                    Diagnostic::error("B0090", "a spec that is compiled with a target spec is not supported yet")
                        .at(*span, "names the target")
                        .help("compile the target spec alone"),
                ),
                _ => self.unknown_key("model", key, *span, &["name", "act", "hf"]),
            }
        }
        if act.is_none() && !self.out.iter().any(|d| d.code == "B0012") {
            let span = self.merged.table_span("model");
            self.error(
                Diagnostic::error("B0012", "[model] does not say `act`, the dtype of untyped names")
                    .at(span, "no `act` here")
                    .help("write act = \"bf16\""),
            );
        }
        (name, choices.act.or(act).unwrap_or(DType::F32))
    }

    fn dims(&mut self, choices: &Choices) -> (IndexMap<String, u64>, IndexMap<String, Vec<String>>) {
        let mut dims = IndexMap::new();
        for (key, (span, node)) in self.table("dims").into_iter().flatten() {
            self.dim_spans.insert(key.clone(), *span);
            let chosen = choices.dims.get(key).and_then(|n| i64::try_from(*n).ok());
            match chosen.map_or_else(|| node.kind.clone(), Kind::Integer) {
                Kind::Integer(n) if (1..=MAX_DIM).contains(&n) => {
                    dims.insert(key.clone(), n as u64);
                    self.numbers.insert(key.clone(), n as f64);
                }
                Kind::Integer(n) => self.error(
                    Diagnostic::error(
                        "B0013",
                        format!("`{key}` is {n}, and a dimension is at least 1 and at most 2^40"),
                    )
                    .at(node.span, "out of range"),
                ),
                Kind::Text(ref text) => self.error(
                    Diagnostic::error(
                        "B0090",
                        format!("the dimension `{key}` is taken from `{text}`, which is not supported yet"),
                    )
                    .at(node.span, "not a number")
                    .help("write the number"),
                ),
                _ => self.wrong(node, "a whole number"),
            }
        }
        match dims.get("layers") {
            // A wrong number was told already.
            None if self.dim_spans.contains_key("layers") => {}
            None => self.error(
                Diagnostic::error("B0014", "[dims] does not say how many `layers` there are")
                    .at(self.merged.table_span("dims"), "no `layers` here")
                    .help("write layers = N"),
            ),
            Some(n) if *n > MAX_LAYERS => self.error(
                Diagnostic::error("B0013", format!("{n} layers are more than the {MAX_LAYERS} allowed"))
                    .at(self.dim_spans["layers"], "too many"),
            ),
            Some(_) => {}
        }
        let products = self.products(&mut dims);
        (dims, products)
    }

    /// Product axes: at most one factor may be new, and its length follows.
    fn products(&mut self, dims: &mut IndexMap<String, u64>) -> IndexMap<String, Vec<String>> {
        let mut products = IndexMap::new();
        for (key, (span, node)) in self.table("axes").into_iter().flatten() {
            let Some(text) = node.text() else {
                self.wrong(node, "a text such as \"groups.member\"");
                continue;
            };
            let Some(total) = dims.get(key).copied() else {
                let d = Diagnostic::error("B0015", format!("`{key}` is split into factors but is no dimension"));
                self.error(d.at(*span, "not in [dims]").nearest(key, dims.keys().map(String::as_str)));
                continue;
            };
            let factors: Vec<String> = text.split('.').map(|f| f.trim().to_owned()).collect();
            let mut known = 1u64;
            let mut fresh = None;
            for factor in &factors {
                if let Some(n) = factor.parse::<u64>().ok().or_else(|| dims.get(factor).copied()) {
                    known = known.saturating_mul(n);
                } else if fresh.replace(factor.clone()).is_some() {
                    known = 0;
                }
            }
            if known == 0 || factors.len() < 2 || factors.iter().any(String::is_empty) {
                self.error(
                    Diagnostic::error("B0016", format!("`{text}` does not say the factors of `{key}`"))
                        .at(node.span, "at most one factor may be new")
                        .help("write known and new factors joined by dots, the first outermost, such as \"groups.member\""),
                );
                continue;
            }
            let rest = total / known;
            if rest * known != total || (fresh.is_none() && rest != 1) || rest == 0 {
                self.error(
                    Diagnostic::error("B0017", format!("`{key}` has {total} entries, which {known} does not divide"))
                        .at(node.span, format!("the known factors make {known}"))
                        .note(self.dim_spans.get(key).copied(), format!("{total} entries"))
                        .help(format!("make `{key}` a multiple of {known}")),
                );
                continue;
            }
            for factor in &factors {
                let n = factor.parse::<u64>().unwrap_or(rest);
                if !dims.contains_key(factor) {
                    dims.insert(factor.clone(), n);
                    self.numbers.insert(factor.clone(), n as f64);
                    self.dim_spans.insert(factor.clone(), node.span);
                }
            }
            products.insert(key.clone(), factors);
        }
        products
    }

    fn values(&mut self) -> IndexMap<String, (Span, Value)> {
        let mut values = IndexMap::new();
        for (key, (span, node)) in self.table("values").into_iter().flatten() {
            if self.numbers.contains_key(key) {
                let d = Diagnostic::error("B0018", format!("`{key}` is a value and a dimension at once"));
                self.error(d.at(*span, "a value").note(self.dim_spans.get(key).copied(), "a dimension"));
                continue;
            }
            let value = match (&node.kind, node.number()) {
                (_, Some(x)) => Value::Number(x),
                (Kind::Text(t), _) if t == "none" => Value::None,
                (Kind::Table(t), _) if t.values().all(|(_, n)| n.number().is_some()) => {
                    Value::Group(t.iter().filter_map(|(k, (_, n))| Some((k.clone(), n.number()?))).collect())
                }
                _ => {
                    self.wrong(node, "a number, \"none\", or a table of numbers");
                    continue;
                }
            };
            values.insert(key.clone(), (*span, value));
        }
        values
    }

    #[allow(clippy::type_complexity)]
    fn options(&mut self, choices: &Choices) -> (IndexMap<String, String>, IndexMap<String, (Span, Vec<String>)>) {
        let (mut chosen, mut spans) = (IndexMap::new(), IndexMap::new());
        for (key, (span, node)) in self.table("options").into_iter().flatten() {
            let offered: Vec<String> =
                node.array().into_iter().flatten().filter_map(|n| n.text().map(str::to_owned)).collect();
            let Some(default) = offered.first() else {
                self.wrong(node, "a list of alternatives, the default first,");
                continue;
            };
            let wanted = choices.options.get(key).into_iter().flatten().find(|w| offered.contains(w));
            chosen.insert(key.clone(), wanted.unwrap_or(default).clone());
            spans.insert(key.clone(), (*span, offered));
        }
        (chosen, spans)
    }

    fn schedule(&mut self, dims: &IndexMap<String, u64>) -> Vec<LayerKinds> {
        let layers = dims.get("layers").copied().unwrap_or(0).min(MAX_LAYERS) as usize;
        let mut schedule = vec![LayerKinds::new(); layers];
        for (column, (span, node)) in self.table("schedule").into_iter().flatten() {
            if let Some(list) = node.array() {
                if list.len() != layers {
                    self.refused_columns.push(column.clone());
                    self.error(
                        Diagnostic::error(
                            "B0019",
                            format!("the schedule `{column}` has {} entries for {layers} layers", list.len()),
                        )
                        .at(node.span, format!("{} entries", list.len()))
                        .note(self.dim_spans.get("layers").copied(), format!("{layers} layers"))
                        .help("one kind per layer, or a rule in their place"),
                    );
                    continue;
                }
                for (layer, item) in list.iter().enumerate() {
                    match item.text() {
                        Some(kind) => drop(schedule[layer].insert(column.clone(), kind.to_owned())),
                        None => self.wrong(item, "the name of a kind"),
                    }
                }
            } else if let Some(rule) = node.text() {
                let words = rule.split(|c: char| !c.is_alphanumeric() && c != '_');
                self.named_elsewhere.extend(words.map(|w| ("dims", w.to_owned())));
                for (layer, kinds) in schedule.iter_mut().enumerate() {
                    self.numbers.insert("l".to_owned(), layer as f64);
                    match rules::schedule_kind(rule, &self.numbers) {
                        Ok(kind) => drop(kinds.insert(column.clone(), kind)),
                        Err(why) => {
                            self.refused_columns.push(column.clone());
                            self.error(
                                Diagnostic::error(
                                    "B0020",
                                    format!("the schedule rule of `{column}` cannot be read: {why}"),
                                )
                                .at(node.span, "this rule")
                                .note(Some(*span), "of this column")
                                .help("for example \"dense if l < 3 else sparse\""),
                            );
                            break;
                        }
                    }
                }
                self.numbers.remove("l");
            } else {
                self.wrong(node, "a rule or a list of kinds");
            }
        }
        schedule
    }

    /// The part of the schedule that is asked for; the index of a layer is its place in this part.
    fn keep_layers(&mut self, choices: &Choices, dims: &mut IndexMap<String, u64>, schedule: &mut Vec<LayerKinds>) {
        let Some(kept) = &choices.layers else { return };
        *schedule = kept.iter().filter_map(|l| schedule.get(*l).cloned()).collect();
        dims.insert("layers".to_owned(), schedule.len() as u64);
        self.numbers.insert("layers".to_owned(), schedule.len() as f64);
    }

    /// `column == kind`, checked against the schedule.
    fn when(&mut self, node: &Node, schedule: &[LayerKinds]) -> Option<When> {
        let text = node.text().unwrap_or("");
        let Some(when) = rules::when(text) else {
            self.error(
                Diagnostic::error("B0021", format!("`{text}` is no condition on a layer's kind"))
                    .at(node.span, "not understood")
                    .help("write \"column == kind\""),
            );
            return None;
        };
        if self.refused_columns.contains(&when.column) {
            return None;
        }
        if schedule.first().is_some_and(|k| !k.contains_key(&when.column)) {
            let d = Diagnostic::error("B0022", format!("the schedule has no column `{}`", when.column));
            let known: Vec<&str> = schedule[0].keys().map(String::as_str).collect();
            self.error(d.at(node.span, "unknown column").nearest(&when.column, known));
            return None;
        }
        Some(when)
    }

    fn axes(&mut self, node: &Node, dims: &IndexMap<String, u64>) -> Option<Vec<Vec<Axis>>> {
        let Some(text) = node.text() else {
            self.wrong(node, "a text of axis names");
            return None;
        };
        let mut groups = Vec::new();
        let mut total = 1u64;
        for group in text.split_whitespace() {
            let mut axes = Vec::new();
            for name in group.split('.') {
                let Some(n) = dims.get(name) else {
                    if self.dim_spans.contains_key(name) {
                        return None;
                    }
                    let d = Diagnostic::error("B0023", format!("`{name}` is no axis"));
                    self.error(d.at(node.span, "used here").nearest(name, dims.keys().map(String::as_str)));
                    return None;
                };
                total = total.saturating_mul(*n);
                axes.push(Axis::fixed(name, *n));
            }
            groups.push(axes);
        }
        let mut names: Vec<&str> = groups.iter().flatten().map(|a| a.name.as_str()).collect();
        names.sort_unstable();
        if total > MAX_ELEMENTS || groups.is_empty() {
            let d = Diagnostic::error("B0024", format!("the axes `{text}` make {total} elements"));
            self.error(d.at(node.span, "between 1 and 2^60 are allowed"));
            return None;
        }
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            self.error(
                Diagnostic::error("B0025", format!("the axis `{}` occurs twice", twice[0]))
                    .at(node.span, "in these axes")
                    .help("give one of them another name in [dims]"),
            );
            return None;
        }
        Some(groups)
    }

    fn kv(
        &mut self,
        dims: &IndexMap<String, u64>,
        schedule: &[LayerKinds],
        values: &IndexMap<String, (Span, Value)>,
    ) -> Vec<KvKind> {
        let mut kinds = Vec::new();
        for (name, (span, node)) in self.table("kv").into_iter().flatten() {
            let Some(table) = node.table() else {
                self.wrong(node, "a table with layers, k and v");
                continue;
            };
            let mut kind =
                KvKind { name: name.clone(), layers: Vec::new(), k: Vec::new(), v: Vec::new(), window: None };
            for (key, (key_span, item)) in table {
                match key.as_str() {
                    "layers" if item.text() == Some("all") => kind.layers = (0..schedule.len()).collect(),
                    "layers" => {
                        if let Some(when) = self.when(item, schedule) {
                            let has = |l: &usize| schedule[*l].get(&when.column) == Some(&when.kind);
                            kind.layers = (0..schedule.len()).filter(has).collect();
                        }
                    }
                    "k" => kind.k = self.axes(item, dims).unwrap_or_default().concat(),
                    "v" => kind.v = self.axes(item, dims).unwrap_or_default().concat(),
                    "window" => kind.window = self.window(item, values),
                    "lives_in" => self.error(
                        Diagnostic::error("B0090", "a cache kind inside another one's pages is not supported yet")
                            .at(*key_span, "not supported"),
                    ),
                    _ => self.unknown_key("kv", key, *key_span, &["layers", "k", "v", "window"]),
                }
            }
            if let (Some((_, window)), None, false) = (table.get("window"), kind.window, kind.layers.is_empty()) {
                let bounded = window.text().is_none_or(|name| values.contains_key(name));
                if bounded {
                    self.error(
                        Diagnostic::error(
                            "B0028",
                            format!("layers of the kind `{name}` have a window, and it is none"),
                        )
                        .at(window.span, "names the window")
                        .note(window.text().and_then(|n| Some(values.get(n)?.0)), "says none")
                        .help("give the window a number, or remove `window` from the kind to let it see everything"),
                    );
                }
            }
            if kind.k.len() != 2 || kind.v != kind.k {
                self.error(
                    Diagnostic::error("B0026", format!("the cache kind `{name}` needs k and v rows of two equal axes"))
                        .at(*span, "k and v of this kind")
                        .help("write k = \"heads elements\", v = \"heads elements\""),
                );
            }
            kinds.push(kind);
        }
        kinds
    }

    fn window(&mut self, node: &Node, values: &IndexMap<String, (Span, Value)>) -> Option<u64> {
        self.named_elsewhere.extend(node.text().map(|name| ("values", name.to_owned())));
        let number = match node.text() {
            None => node.number(),
            Some(name) => match values.get(name) {
                Some((_, Value::Number(x))) => Some(*x),
                Some((_, Value::None)) => return None,
                _ => {
                    let d = Diagnostic::error("B0027", format!("`{name}` is no value"));
                    self.error(d.at(node.span, "named as the window").nearest(name, values.keys().map(String::as_str)));
                    return None;
                }
            },
        };
        match number {
            Some(x) if x >= 1.0 && x.fract() == 0.0 && x < 1e15 => Some(x as u64),
            _ => {
                self.error(
                    Diagnostic::error("B0028", "a window is a whole number of positions, at least 1")
                        .at(node.span, "the query's own position counts")
                        .note(node.text().and_then(|n| Some(values.get(n)?.0)), "another number"),
                );
                None
            }
        }
    }

    fn weights(&mut self, dims: &IndexMap<String, u64>, act: DType, schedule: &[LayerKinds]) -> Vec<Weight> {
        let mut weights = Vec::new();
        for (name, (span, node)) in self.table("weights").into_iter().flatten() {
            weights.extend(self.weight(name, *span, node, Scope::Model, "", dims, act, schedule));
        }
        let Some(layer) = self.table("layer") else { return self.completed(weights) };
        let mut prefix = String::new();
        for (key, (span, node)) in layer {
            match (key.as_str(), node.text()) {
                ("prefix", Some(text)) => prefix = text.to_owned(),
                ("weights", _) => {}
                _ => self.unknown_key("layer", key, *span, &["prefix", "weights"]),
            }
        }
        for (name, (span, node)) in layer.get("weights").and_then(|(_, n)| n.table()).into_iter().flatten() {
            weights.extend(self.weight(name, *span, node, Scope::Layer, &prefix, dims, act, schedule));
        }
        self.completed(weights)
    }

    fn completed(&mut self, mut weights: Vec<Weight>) -> Vec<Weight> {
        disk::complete_shapes(weights.iter_mut().flat_map(|w| w.disk.iter_mut()));
        weights
    }

    /// One weight; `"none"` in a derived spec removes the base's.
    #[allow(clippy::too_many_arguments)]
    fn weight(
        &mut self,
        name: &str,
        span: Span,
        node: &Node,
        scope: Scope,
        prefix: &str,
        dims: &IndexMap<String, u64>,
        act: DType,
        schedule: &[LayerKinds],
    ) -> Option<Weight> {
        if node.text() == Some("none") {
            return None;
        }
        let Some(table) = node.table() else {
            self.wrong(node, "a table with axes and disk");
            return None;
        };
        let axes = match table.get("axes") {
            Some((_, axes)) => self.axes(axes, dims)?,
            None => {
                let d = Diagnostic::error("B0029", format!("the weight `{name}` has no `axes`"));
                self.error(d.at(span, "declared here").help("write axes = \"out in\""));
                return None;
            }
        };
        let mut weight = Weight {
            name: name.to_owned(),
            scope,
            axes,
            dtype: act,
            pinned: false,
            when: None,
            disk: Vec::new(),
            quant: true,
            span: Some(span),
        };
        for (key, (key_span, item)) in table {
            match key.as_str() {
                "axes" => {}
                "disk" => weight.disk = self.disk(item, prefix, &weight.axes),
                "when" => weight.when = self.when(item, schedule),
                "dtype" => match item.text().and_then(|t| t.parse::<DType>().ok()) {
                    Some(d) if d.is_float() => {
                        weight.dtype = d;
                        weight.pinned = true;
                        weight.quant = false;
                    }
                    _ => self.wrong(item, "a float dtype such as \"f32\""),
                },
                "quant" => match item.kind {
                    Kind::Bool(b) => weight.quant = b,
                    _ => self.wrong(item, "true or false"),
                },
                _ => self.unknown_key("weights", key, *key_span, &["axes", "disk", "when", "dtype", "quant"]),
            }
        }
        if weight.disk.is_empty() {
            let d = Diagnostic::error("B0029", format!("the weight `{name}` has no `disk` name"));
            self.error(d.at(span, "declared here").help("write disk = \"name.in.the.checkpoint\""));
        }
        if weight.scope == Scope::Layer && weight.disk.iter().any(|d| !d.tensor.contains("{l}")) {
            self.error(
                Diagnostic::error("B0030", format!("every layer would read `{name}` from the same tensor"))
                    .at(span, "its disk name has no `{l}`")
                    .help("set prefix = \"…{l}.\" in [layer]"),
            );
        }
        Some(weight)
    }

    fn disk(&mut self, node: &Node, prefix: &str, axes: &[Vec<Axis>]) -> Vec<DiskForm> {
        let items: Vec<&Node> = node.array().map_or_else(|| vec![node], |a| a.iter().collect());
        let mut forms = Vec::new();
        for item in items {
            let parsed = match item.text() {
                Some(text) => disk::parse(text, prefix, axes, &self.numbers),
                None => Err(format!("this is {}", item.what())),
            };
            match parsed {
                Ok(form) => forms.push(form),
                Err(why) => self.error(
                    Diagnostic::error("B0031", format!("the disk name cannot be read: {why}"))
                        .at(item.span, "this name")
                        .help("for example \"mlp.experts.{experts}.up.weight\" or \"packed[:, 0:width]\""),
                ),
            }
        }
        forms
    }

    /// Which axes a mesh may split, and over which of its axes.
    fn shard(&mut self, dims: &IndexMap<String, u64>) -> IndexMap<String, Vec<String>> {
        let mut shard = IndexMap::new();
        for (axis, (span, node)) in self.table("shard").into_iter().flatten() {
            if !dims.contains_key(axis) && axis != ir::TOKEN_ROWS {
                let d = Diagnostic::error("B0023", format!("`{axis}` is no axis"));
                self.error(d.at(*span, "sharded here").nearest(axis, dims.keys().map(String::as_str)));
            }
            let mesh = |n: &Node| n.text().map(str::to_owned);
            match node.array().and_then(|a| a.iter().map(mesh).collect::<Option<Vec<_>>>()) {
                Some(mesh) => drop(shard.insert(axis.clone(), mesh)),
                None => self.wrong(node, "a list of mesh axes"),
            }
        }
        shard
    }

    fn runtime(&mut self) -> RuntimeFacts {
        let mut facts = RuntimeFacts::default();
        for (key, (span, node)) in self.table("runtime").into_iter().flatten() {
            let id = |n: &Node| match n.kind {
                Kind::Integer(i) => u32::try_from(i).ok(),
                _ => None,
            };
            match key.as_str() {
                "context" => match node.kind {
                    Kind::Integer(n) if n > 0 => facts.context = Some(n as u64),
                    _ => self.wrong(node, "a number of tokens, at least 1,"),
                },
                "stop" => {
                    let list: Vec<&Node> = node.array().map_or_else(|| vec![node], |a| a.iter().collect());
                    match list.into_iter().map(id).collect::<Option<Vec<u32>>>() {
                        Some(ids) => facts.stop = ids,
                        None => self.wrong(node, "a token id or a list of them"),
                    }
                }
                "start" | "pad" => match id(node) {
                    Some(n) if key == "start" => facts.start = Some(n),
                    Some(n) => facts.pad = Some(n),
                    None => self.wrong(node, "a token id"),
                },
                _ => self.unknown_key("runtime", key, *span, &["context", "stop", "start", "pad"]),
            }
        }
        facts
    }

    fn lints(&mut self) -> bool {
        let mut on = true;
        for (key, (span, node)) in self.table("lints").into_iter().flatten() {
            match (key.as_str(), &node.kind) {
                ("narrowing", Kind::Bool(b)) => on = *b,
                ("narrowing", _) => self.wrong(node, "true or false"),
                _ => self.unknown_key("lints", key, *span, &["narrowing"]),
            }
        }
        on
    }
}

//! Printing of the graph level.

use super::name::{Extents, Name, extent_text, is_number, name_list};
use super::stored::{layers_text, layout_text, print_stored};
use crate::{Entry, Facts, Graph, Instance, KvRef, LayerKinds, Module, Op, Placement, ReduceOp, Scope, Sharding};
use crate::{Span, TopWhat, ValueId, Weight, WeightRef};
use std::fmt::Write;

/// Prints a whole module; with `spans`, every value and weight carries its place in the spec as a comment.
pub fn print_module(module: &Module, spans: bool) -> String {
    let mut out = String::new();
    print_facts(&mut out, &module.facts, spans);
    print_sharding(&mut out, module.sharding.as_ref(), &module.relaxations);
    for entry in &module.entries {
        out.push('\n');
        print_entry(&mut out, entry, &module.facts, spans);
    }
    out
}

/// Prints one graph, its values a line each, under the given heading (such as `first`).
pub fn print_graph(name: &str, graph: &Graph, facts: &Facts, spans: bool) -> String {
    let mut out = String::new();
    let printer = GraphPrinter::new(graph, facts, spans);
    printer.graph(&mut out, &format!("graph {}", Name(name)), "");
    out
}

// Writing into a `String` cannot fail; this keeps the code below free of results nobody reads.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}
pub(super) use put;

pub(super) fn print_facts(out: &mut String, facts: &Facts, spans: bool) {
    put!(out, "module {}", Name(&facts.name));
    put!(out, "act {}", facts.act);
    for file in &facts.files {
        put!(out, "file {}", serde_json::Value::from(file.as_str()));
    }
    for (name, n) in &facts.dims {
        put!(out, "dim {} = {n}", Name(name));
    }
    for (name, factors) in &facts.products {
        put!(out, "product {} = {}", Name(name), name_list(factors.iter().map(String::as_str)));
    }
    for (name, mesh) in &facts.shard {
        put!(out, "shard {} = {}", Name(name), name_list(mesh.iter().map(String::as_str)));
    }
    for (name, choice) in &facts.options {
        put!(out, "option {} = {}", Name(name), Name(choice));
    }
    let mut layer = 0;
    for run in facts.schedule.chunk_by(|a, b| a.iter().eq(b.iter())) {
        put!(out, "layers {}: {}", range(layer, run.len()), kinds_text(&run[0]));
        layer += run.len();
    }
    let extents = Extents::of_dims(&facts.dims);
    for kind in &facts.kv {
        let layers: Vec<String> = kind.layers.iter().map(usize::to_string).collect();
        let window = kind.window.map(|w| format!(" window {w}")).unwrap_or_default();
        let (k, v) = (extents.axes(&kind.k), extents.axes(&kind.v));
        let home = kind.lives_in.as_ref().map(|h| format!(" lives {}", Name(h))).unwrap_or_default();
        let slots = if kind.shared_slots > 0 { format!(" slots {}", kind.shared_slots) } else { String::new() };
        put!(out, "kv {}: k {k} v {v}{window} layers [{}]{home}{slots}", Name(&kind.name), layers.join(", "));
    }
    for weight in &facts.weights {
        print_weight(out, weight, facts, &extents, spans);
    }
    if let Some(stored) = &facts.stored {
        print_stored(out, stored);
    }
    for (word, captures) in [("capture", &facts.captures), ("export", &facts.exports)] {
        for capture in captures {
            let (entry, value) = (Name(&capture.entry), Name(&capture.value));
            put!(out, "{word} {}: {value} of {entry} layers {}", Name(&capture.name), layers_text(&capture.layers));
        }
    }
    let runtime = &facts.runtime;
    if let Some(n) = runtime.context {
        put!(out, "context {n}");
    }
    if !runtime.stop.is_empty() {
        let ids: Vec<String> = runtime.stop.iter().map(u32::to_string).collect();
        put!(out, "stop [{}]", ids.join(", "));
    }
    if let Some(id) = runtime.start {
        put!(out, "start {id}");
    }
    if let Some(id) = runtime.pad {
        put!(out, "pad {id}");
    }
}

/// The mesh, what lies where on it, and what was relaxed.
pub(super) fn print_sharding(out: &mut String, sharding: Option<&Sharding>, relaxations: &[String]) {
    if let Some(sharding) = sharding {
        let axes: Vec<String> = sharding.mesh.axes().map(|(name, n)| format!("{} = {n}", Name(name))).collect();
        put!(out, "mesh [{}]", axes.join(", "));
        for weight in &sharding.weights {
            let scope = scope_word(weight.scope);
            put!(out, "place weight {scope} {}: {}", Name(&weight.name), placement_text(&weight.axes));
        }
        for (kind, axes) in &sharding.kv {
            put!(out, "place kv {}: {}", Name(kind), placement_text(axes));
        }
        if !sharding.rows.is_empty() {
            put!(out, "place rows: {}", placement_text(&sharding.rows));
        }
    }
    for relaxation in relaxations {
        put!(out, "relaxed {}", Name(relaxation));
    }
}

fn placement_text(placement: &Placement) -> String {
    let words: Vec<String> =
        placement.iter().map(|(axis, over)| format!("{} over {}", Name(axis), mesh_axes(over))).collect();
    words.join(", ")
}

fn scope_word(scope: Scope) -> &'static str {
    match scope {
        Scope::Model => "model",
        Scope::Layer => "layer",
    }
}

fn print_weight(out: &mut String, weight: &Weight, facts: &Facts, extents: &Extents, spans: bool) {
    let groups: Vec<String> =
        weight.axes.iter().map(|group| group.iter().map(|a| extents.axis(a)).collect::<Vec<_>>().join(" ")).collect();
    let scope = scope_word(weight.scope);
    let mut line = format!("weight {scope} {}: {}[{}]", Name(&weight.name), weight.dtype, groups.join(", "));
    if weight.pinned {
        line.push_str(" pinned");
    }
    if weight.quant {
        line.push_str(" quant");
    }
    if let Some(when) = &weight.when {
        let _ = write!(line, " when {} = {}", Name(&when.column), Name(&when.kind));
    }
    if let Some(only) = &weight.only {
        let _ = write!(line, " only {}", layers_text(only));
    }
    if let Some(absent) = weight.absent {
        let _ = write!(line, " absent {}", f32_text(absent));
    }
    if weight.borrowed {
        line.push_str(" borrowed");
    }
    put!(out, "{line}{}", span_comment(weight.span, facts, spans));
    for form in &weight.disk {
        let mut line = format!("  disk {}", serde_json::Value::from(form.tensor.as_str()));
        if !form.spread.is_empty() {
            let _ = write!(line, " spread {}", name_list(form.spread.iter().map(String::as_str)));
        }
        if let Some(parts) = &form.slice {
            let parts: Vec<String> = parts.iter().map(|[start, len]| format!("{start}+{len}")).collect();
            let _ = write!(line, " slice [{}]", parts.join(", "));
        }
        let shape: Vec<String> = form.shape.iter().map(u64::to_string).collect();
        put!(out, "{line} shape [{}]{}", shape.join(", "), layout_text(&form.layout));
    }
}

fn print_entry(out: &mut String, entry: &Entry, facts: &Facts, spans: bool) {
    put!(out, "entry {} {{", Name(&entry.name));
    GraphPrinter::new(&entry.first, facts, spans).graph(out, "graph first", "  ");
    for class in &entry.classes {
        let head = format!("class {} {{{}}}", Name(&class.name), kinds_text(&class.kinds));
        GraphPrinter::new(&class.graph, facts, spans).graph(out, &head, "  ");
    }
    print_instances(out, &entry.instances, |class| {
        entry.classes.get(class).map_or_else(|| format!("\"class {class}\""), |c| Name(&c.name).to_string())
    });
    GraphPrinter::new(&entry.last, facts, spans).graph(out, "graph last", "  ");
    put!(out, "}}");
}

/// Runs of instances: consecutive layers of one class.
pub(super) fn print_instances(out: &mut String, instances: &[Instance], class: impl Fn(usize) -> String) {
    for run in instances.chunk_by(|a, b| a.class == b.class && a.layer.checked_add(1) == Some(b.layer)) {
        put!(out, "  instances {}: {}", range(run[0].layer, run.len()), class(run[0].class));
    }
}

fn range(start: usize, len: usize) -> String {
    if len == 1 { start.to_string() } else { format!("{start}-{}", start + len - 1) }
}

pub(super) fn kinds_text(kinds: &LayerKinds) -> String {
    let words: Vec<String> = kinds.iter().map(|(column, kind)| format!("{} = {}", Name(column), Name(kind))).collect();
    words.join(", ")
}

fn span_comment(span: Option<Span>, facts: &Facts, spans: bool) -> String {
    match span {
        Some(s) if spans => {
            let file = facts.files.get(s.file as usize).map_or("?", String::as_str);
            format!("  ; {} {}-{}", file.escape_debug(), s.start, s.end)
        }
        _ => String::new(),
    }
}

/// Prints the values of one graph.
pub(super) struct GraphPrinter<'a> {
    graph: &'a Graph,
    facts: &'a Facts,
    spans: bool,
    extents: Extents,
    declared: Vec<String>,
}

impl<'a> GraphPrinter<'a> {
    pub(super) fn new(graph: &'a Graph, facts: &'a Facts, spans: bool) -> Self {
        let (extents, declared) = Extents::of_dims(&facts.dims).of_graph(graph);
        let declared =
            declared.iter().map(|axis| format!("{} = {}", Name(&axis.name), extent_text(axis.extent))).collect();
        GraphPrinter { graph, facts, spans, extents, declared }
    }

    /// Heading, signature, axes and all values.
    pub(super) fn graph(&self, out: &mut String, heading: &str, indent: &str) {
        self.open(out, heading, indent);
        for id in self.graph.ids() {
            put!(out, "{indent}  {}", self.line(id));
        }
        put!(out, "{indent}}}");
    }

    /// Heading, signature and axes.
    pub(super) fn open(&self, out: &mut String, heading: &str, indent: &str) {
        let inputs: Vec<String> = self.graph.inputs.iter().map(|v| self.value(*v)).collect();
        let outputs: Vec<String> =
            self.graph.outputs.iter().map(|(name, v)| format!("{} = {}", Name(name), self.value(*v))).collect();
        put!(out, "{indent}{heading} ({}) -> ({}) {{", inputs.join(", "), outputs.join(", "));
        if !self.declared.is_empty() {
            put!(out, "{indent}  axes {}", self.declared.join(", "));
        }
    }

    /// A value as its users name it.
    pub(super) fn value(&self, id: ValueId) -> String {
        match &self.graph.node(id).name {
            Some(name) if is_number(name) => format!("%{}", serde_json::Value::from(name.as_str())),
            Some(name) => format!("%{}", Name(name)),
            None => id.to_string(),
        }
    }

    /// The line of a value.
    pub(super) fn line(&self, id: ValueId) -> String {
        let node = self.graph.node(id);
        let mut line = format!("{}: {} = {}", self.value(id), self.extents.ty(&node.ty), op_text(&node.op));
        if !node.op.is_leaf() {
            let operands: Vec<String> = self.graph.operands(id).into_iter().map(|v| self.value(v)).collect();
            let _ = write!(line, " ({})", operands.join(", "));
        }
        line.push_str(&span_comment(node.span, self.facts, self.spans));
        line
    }
}

/// An operation with its attributes, without operands.
pub(super) fn op_text(op: &Op) -> String {
    match op {
        Op::Input(name) => format!("input {}", Name(name)),
        Op::Weight(reference) => format!("weight {}", weight_text(reference)),
        Op::Literal(data) => {
            let words: Vec<String> = data.iter().map(|x| f32_text(*x)).collect();
            format!("literal [{}]", words.join(", "))
        }
        Op::Scalar(expr) => format!("scalar {expr}"),
        Op::Unary(f) => f.word().to_owned(),
        Op::Binary(f) => f.word().to_owned(),
        Op::Fma => "fma".to_owned(),
        Op::Select => "select".to_owned(),
        Op::Round(dtype) => format!("round {dtype}"),
        Op::BlockRound { over } => format!("block_round over {}", name_list(over.iter().map(String::as_str))),
        Op::Reduce { op, axis, order } => {
            let word = match op {
                ReduceOp::Sum => "sum",
                ReduceOp::Max => "max",
            };
            format!("reduce {word} over {} order {}", Name(axis), order)
        }
        Op::Top { k, axis, into, what } => {
            let word = match what {
                TopWhat::Values => "values",
                TopWhat::Ids => "ids",
            };
            format!("top {word} {k} over {} into {}", Name(axis), Name(into))
        }
        Op::InTop { k, axis } => format!("in_top {k} over {}", Name(axis)),
        Op::Gather { axis } => format!("gather over {}", Name(axis)),
        Op::Slice { axis, start, len, into } => {
            let into = into.as_deref().map(|n| format!(" into {}", Name(n))).unwrap_or_default();
            format!("slice {} from {start} len {len}{into}", Name(axis))
        }
        Op::Concat { into } => format!("concat into {}", Name(into)),
        Op::Split { axis } => format!("split {}", Name(axis)),
        Op::Merge { into } => format!("merge into {}", Name(into)),
        Op::Rename { from, to } => format!("rename {} to {}", Name(from), Name(to)),
        Op::Shift { axis, by } => format!("shift {} by {by}", Name(axis)),
        Op::Walk { what } => format!("walk {}", what.word()),
        Op::Probs => "probs".to_owned(),
        Op::Accept { rule, what } => format!("accept {} {}", rule.word(), what.word()),
        Op::Linear { contract, order } => {
            format!("linear over {} order {}", name_list(contract.iter().map(String::as_str)), order)
        }
        Op::Dot { axis, order } => format!("dot over {} order {}", Name(axis), order),
        Op::Store { kv, scratch } => format!("store {}{}", kv_text(kv), if *scratch { " scratch" } else { "" }),
        Op::Attend { kv, mask, scale, order } => {
            let mask = match mask {
                crate::Mask::Causal => "causal",
                crate::Mask::All => "all",
            };
            format!("attend {} mask {mask} scale {scale} order {}", kv_text(kv), order)
        }
        Op::AllReduce { over, order } => format!("all_reduce over {} order {order}", mesh_axes(over)),
        Op::AllGather { axis, over, into } => {
            format!("all_gather {} over {} into {}", Name(axis), mesh_axes(over), Name(into))
        }
        Op::ReduceScatter { axis, over, into } => {
            format!("reduce_scatter {} over {} into {}", Name(axis), mesh_axes(over), Name(into))
        }
        Op::Own { axis, over } => format!("own {} over {}", Name(axis), mesh_axes(over)),
        Op::Call(block) => format!("call {}", Name(block)),
        Op::Match { column, arms } => {
            let arms: Vec<String> =
                arms.iter().map(|(kind, block)| format!("{} = {}", Name(kind), Name(block))).collect();
            format!("match {} {{{}}}", Name(column), arms.join(", "))
        }
        Op::Layers { block, carried } => format!("layers {} carried {carried}", Name(block)),
        Op::Item(index) => format!("item {index}"),
    }
}

fn mesh_axes(axes: &[String]) -> String {
    name_list(axes.iter().map(String::as_str))
}

/// A weight as its reference names it.
pub(super) fn weight_text(reference: &WeightRef) -> String {
    match reference {
        WeightRef::Model(name) => format!("model {}", Name(name)),
        WeightRef::Layer(name) => format!("layer {}", Name(name)),
        WeightRef::FirstLayer(name) => format!("first {}", Name(name)),
        WeightRef::OfLayer { layer, name } => format!("of {layer} {}", Name(name)),
        WeightRef::Next { layer, last } => format!("next {} else {}", Name(layer), Name(last)),
        WeightRef::Packed { into, parts } => {
            let parts: Vec<String> = parts.iter().map(weight_text).collect();
            format!("packed into {} [{}]", Name(into), parts.join(", "))
        }
    }
}

fn kv_text(kv: &KvRef) -> String {
    match kv {
        KvRef::Kind(name) => format!("kind {}", Name(name)),
        KvRef::ByColumn(name) => format!("column {}", Name(name)),
    }
}

/// Shortest text that reads back to the same bits; a NaN as its bits.
fn f32_text(x: f32) -> String {
    if x.is_nan() { format!("0x{:08x}", x.to_bits()) } else { format!("{x:?}") }
}

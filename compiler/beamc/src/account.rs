//! What two compilations differ in, in the words of a reader: facts, weights, layers, operations, roundings, kernels,
//! bytes of a step.

use crate::check::grouped;
use crate::failure::Failure;
use indexmap::IndexMap;
use ir::{DType, Facts, Graph, KernelGraph, KernelKind, Module, Op};
use passes::Stages;
use serde_json::{Value, json};
use targets::cost::{Load, StepCost};
use targets::{Target, cost};

/// Positions of the sequence in the step whose bytes are compared.
const CONTEXT_TOKENS: u64 = 4096;

/// Names of a graph that are listed at most.
const MOST_NAMES: usize = 16;

/// One compilation and what is derived from it.
pub struct Side<'a> {
    stages: &'a Stages,
    rank_bytes: u64,
    /// Per entry the step of one row.
    steps: Vec<StepCost>,
    floors: Vec<Option<f64>>,
}

impl<'a> Side<'a> {
    /// Derives what is compared.
    pub fn new(stages: &'a Stages, target: &Target) -> Result<Side<'a>, Failure> {
        let recipes = artifact::recipes(&stages.kernels.facts);
        let memory = artifact::weight_memory(&stages.kernels, &recipes).map_err(|e| Failure::defect("C0008", e))?;
        let load = Load { tokens: 1, sequences: 1, wanted: 1, context: CONTEXT_TOKENS };
        let steps: Vec<StepCost> =
            stages.kernels.entries.iter().map(|entry| cost::step(&stages.kernels, entry, target, load)).collect();
        let floors = steps.iter().map(|s| s.floor(&target.hardware)).collect();
        Ok(Side { stages, rank_bytes: memory.bytes, steps, floors })
    }

    fn facts(&self) -> &Facts {
        &self.stages.kernels.facts
    }
}

/// Differences by topic, in the order of reading.
pub struct Account {
    topics: Vec<(&'static str, Vec<String>)>,
}

impl Account {
    /// As text: a line per difference under its topic, or that there is none.
    pub fn page(&self) -> String {
        if self.topics.iter().all(|(_, lines)| lines.is_empty()) {
            return "the compilations agree in facts, weights, layers, operations, kernels and bytes\n".to_owned();
        }
        let topics = self.topics.iter().filter(|(_, lines)| !lines.is_empty());
        topics.map(|(topic, lines)| format!("{topic}\n  {}\n", lines.join("\n  "))).collect()
    }

    /// As data: topic → lines.
    pub fn json(&self) -> Value {
        Value::Object(self.topics.iter().map(|(topic, lines)| ((*topic).to_owned(), json!(lines))).collect())
    }
}

/// What B differs in from A.
pub fn account(a: &Side<'_>, b: &Side<'_>) -> Account {
    let (modules, kernels) = ((&a.stages.module, &b.stages.module), (&a.stages.kernels, &b.stages.kernels));
    let mut operations = Vec::new();
    let mut launched = Vec::new();
    for name in union(&names(modules.0), &names(modules.1)) {
        operations.extend(graph_lines(&name, graph(modules.0, &name), graph(modules.1, &name)));
        launched.extend(kernel_lines(&name, kernel_graph(kernels.0, &name), kernel_graph(kernels.1, &name)));
    }
    let relaxations = |side: &Side<'_>| match side.stages.kernels.relaxations.as_slice() {
        [] => "none".to_owned(),
        names => names.join(", "),
    };
    Account {
        topics: vec![
            ("facts", fact_lines(a.facts(), b.facts())),
            ("weights", weight_lines(a.facts(), b.facts())),
            ("layers", layer_lines(modules.0, modules.1)),
            ("operations", operations),
            ("kernels", launched),
            ("relaxations", changed("relaxations", &relaxations(a), &relaxations(b)).into_iter().collect()),
            ("one row at 4,096 tokens, bytes of a rank", byte_lines(a, b)),
        ],
    }
}

/// `what: a -> b`, if they differ.
fn changed(what: &str, a: &str, b: &str) -> Option<String> {
    (a != b).then(|| format!("{what}: {a} -> {b}"))
}

/// The same for numbers, with the difference.
fn moved(what: &str, a: u64, b: u64) -> Option<String> {
    let sign = if b > a { '+' } else { '-' };
    (a != b).then(|| format!("{what}: {} -> {} ({sign}{})", grouped(a), grouped(b), grouped(a.abs_diff(b))))
}

/// Items of both lists, those of the first in their order.
fn union(a: &[String], b: &[String]) -> Vec<String> {
    let mut all = a.to_vec();
    all.extend(b.iter().filter(|name| !a.contains(name)).cloned());
    all
}

/// Entries of two maps that differ, by key.
fn map_lines<V: PartialEq>(
    what: &str,
    a: &IndexMap<String, V>,
    b: &IndexMap<String, V>,
    show: impl Fn(&V) -> String,
) -> Vec<String> {
    let keys = |map: &IndexMap<String, V>| map.keys().cloned().collect::<Vec<_>>();
    let shown = |value: Option<&V>| value.map_or_else(|| "absent".to_owned(), &show);
    let lines = union(&keys(a), &keys(b)).into_iter().filter_map(|key| {
        let (a, b) = (a.get(&key), b.get(&key));
        (a != b).then(|| format!("{what} {key}: {} -> {}", shown(a), shown(b)))
    });
    lines.collect()
}

fn fact_lines(a: &Facts, b: &Facts) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(changed("name", &a.name, &b.name));
    lines.extend(moved("parameters", a.parameters(), b.parameters()));
    lines.extend(changed("act", a.act.word(), b.act.word()));
    lines.extend(map_lines("dim", &a.dims, &b.dims, |n| grouped(*n)));
    lines.extend(map_lines("option", &a.options, &b.options, Clone::clone));
    lines.extend(map_lines("shard", &a.shard, &b.shard, |axes| axes.join(", ")));
    let kinds = |facts: &Facts| -> IndexMap<String, String> {
        let told = |kind: &ir::KvKind| {
            let window = kind.window.map_or_else(|| "no window".to_owned(), |w| format!("window {w}"));
            format!("{} layers, {window}", kind.layers.len())
        };
        facts.kv.iter().map(|kind| (kind.name.clone(), told(kind))).collect()
    };
    lines.extend(map_lines("cache", &kinds(a), &kinds(b), Clone::clone));
    lines
}

fn weight_lines(a: &Facts, b: &Facts) -> Vec<String> {
    let told = |facts: &Facts| -> IndexMap<String, String> {
        let weight = |w: &ir::Weight| {
            let layers = (0..facts.layers()).filter(|l| facts.layer_has(*l, w)).count();
            let copies = if w.scope == ir::Scope::Layer { format!(" in {layers} layers") } else { String::new() };
            let axes: Vec<String> =
                w.axes.iter().flatten().map(|axis| format!("{} {}", axis.name, length(axis))).collect();
            (format!("W.{}", w.name), format!("{} [{}]{copies}", w.dtype, axes.join(", ")))
        };
        facts.weights.iter().map(weight).collect()
    };
    let (a, b) = (told(a), told(b));
    let keys = |map: &IndexMap<String, String>| map.keys().cloned().collect::<Vec<_>>();
    let lines = union(&keys(&a), &keys(&b)).into_iter().filter_map(|name| match (a.get(&name), b.get(&name)) {
        (Some(a), None) => Some(format!("- {name}: {a}")),
        (None, Some(b)) => Some(format!("+ {name}: {b}")),
        (Some(a), Some(b)) if a != b => Some(format!("~ {name}: {a} -> {b}")),
        _ => None,
    });
    lines.collect()
}

fn length(axis: &ir::Axis) -> String {
    match axis.extent {
        ir::Extent::Fixed(n) => n.to_string(),
        ir::Extent::Rows => "rows".to_owned(),
    }
}

fn layer_lines(a: &Module, b: &Module) -> Vec<String> {
    let classes = |module: &Module| {
        let mut counts: IndexMap<String, u64> = IndexMap::new();
        for entry in &module.entries {
            for instance in &entry.instances {
                let class = entry.classes.get(instance.class).map_or("?", |c| c.name.as_str());
                *counts.entry(format!("{} {class}", entry.name)).or_default() += 1;
            }
        }
        counts
    };
    map_lines("layers", &classes(a), &classes(b), |n| grouped(*n))
}

/// Entry and graph of every graph.
fn names(module: &Module) -> Vec<String> {
    let of = |entry: &ir::Entry| entry.graphs().map(|(g, _)| format!("{} {g}", entry.name)).collect::<Vec<_>>();
    module.entries.iter().flat_map(of).collect()
}

fn graph<'m>(module: &'m Module, name: &str) -> Option<&'m Graph> {
    let (entry, graph) = name.split_once(' ')?;
    let entry = module.entries.iter().find(|e| e.name == entry)?;
    entry.graphs().find(|(g, _)| *g == graph).map(|(_, g)| g)
}

fn kernel_graph<'m>(kernels: &'m ir::KernelModule, name: &str) -> Option<&'m KernelGraph> {
    let (entry, graph) = name.split_once(' ')?;
    kernels.entries.iter().find(|e| e.name == entry)?.graphs.iter().find(|g| g.name == graph)
}

fn graph_lines(name: &str, a: Option<&Graph>, b: Option<&Graph>) -> Vec<String> {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (Some(a), None) => return vec![format!("- {name}: {} operations", operations(a))],
        (None, Some(b)) => return vec![format!("+ {name}: {} operations", operations(b))],
        (None, None) => return Vec::new(),
    };
    let mut lines: Vec<String> = Vec::new();
    lines.extend(moved(&format!("{name}, operations"), operations(a), operations(b)));
    lines.extend(moved(&format!("{name}, roundings"), roundings(a), roundings(b)));
    let (counts_a, counts_b) = (counts(a), counts(b));
    let keys = |map: &IndexMap<String, u64>| map.keys().cloned().collect::<Vec<_>>();
    for op in union(&keys(&counts_a), &keys(&counts_b)) {
        let of = |map: &IndexMap<String, u64>| map.get(&op).copied().unwrap_or(0);
        lines.extend(moved(&format!("{name}, {op}"), of(&counts_a), of(&counts_b)));
    }
    let (values_a, values_b) = (values(a), values(b));
    let mut named = map_lines(&format!("{name},"), &values_a, &values_b, Clone::clone);
    if named.len() > MOST_NAMES {
        let more = named.len() - MOST_NAMES;
        named.truncate(MOST_NAMES);
        named.push(format!("{name}: {more} more named values differ"));
    }
    lines.extend(named);
    lines
}

fn operations(graph: &Graph) -> u64 {
    graph.ids().filter(|v| !graph.node(*v).op.is_leaf()).count() as u64
}

/// Rounds to a narrower format than binary32.
fn roundings(graph: &Graph) -> u64 {
    graph.ids().filter(|v| matches!(graph.node(*v).op, Op::Round(d) if d != DType::F32)).count() as u64
}

/// Operations by what they are, attributes included.
fn counts(graph: &Graph) -> IndexMap<String, u64> {
    let mut counts = IndexMap::new();
    for id in graph.ids().filter(|v| !graph.node(*v).op.is_leaf()) {
        *counts.entry(word(&graph.node(id).op)).or_default() += 1;
    }
    counts
}

/// Values that the spec names, by name.
fn values(graph: &Graph) -> IndexMap<String, String> {
    let named = graph.ids().filter_map(|id| {
        let node = graph.node(id);
        let name = node.name.clone().filter(|_| !node.op.is_leaf())?;
        let lengths = node.ty.tensor().map_or_else(String::new, |ty| {
            let axes: Vec<String> = ty.axes.iter().map(|a| format!("{} {}", a.name, length(a))).collect();
            format!(" {}[{}]", ty.dtype, axes.join(", "))
        });
        Some((name, format!("{}{lengths}", word(&node.op))))
    });
    named.collect()
}

fn word(op: &Op) -> String {
    match op {
        Op::Unary(f) => f.word().to_owned(),
        Op::Binary(f) => f.word().to_owned(),
        Op::Round(dtype) => format!("round {dtype}"),
        Op::Reduce { op, axis, order } => match op {
            ir::ReduceOp::Sum => format!("sum over {axis}, order {order}"),
            ir::ReduceOp::Max => format!("max over {axis}"),
        },
        Op::Top { k, axis, .. } => format!("top {k} of {axis}"),
        Op::InTop { k, axis } => format!("in_top {k} of {axis}"),
        Op::Gather { axis } => format!("gather {axis}"),
        Op::Slice { axis, start, len, .. } => format!("slice {axis} {start}+{len}"),
        Op::Linear { contract, order } => format!("linear over {}, order {order}", contract.join(" ")),
        Op::Dot { axis, order } => format!("dot over {axis}, order {order}"),
        Op::Store { kv, .. } => format!("store {}", cache(kv)),
        Op::Attend { kv, mask, order, .. } => {
            let mask = if *mask == ir::Mask::Causal { "causal" } else { "all" };
            format!("attend {} {mask}, order {order}", cache(kv))
        }
        Op::AllReduce { over, order } => format!("all_reduce over {}, order {order}", over.join(" ")),
        Op::AllGather { axis, over, .. } => format!("all_gather {axis} over {}", over.join(" ")),
        Op::ReduceScatter { axis, over, .. } => format!("reduce_scatter {axis} over {}", over.join(" ")),
        Op::Own { axis, over } => format!("own {axis} over {}", over.join(" ")),
        Op::Fma => "fma".to_owned(),
        Op::Select => "select".to_owned(),
        Op::Concat { into } => format!("concat into {into}"),
        Op::Shift { axis, by } => format!("shift {axis} by {by}"),
        Op::Walk { .. } => "walk".to_owned(),
        Op::Probs => "probs".to_owned(),
        Op::Accept { rule, .. } => format!("accept {}", rule.word()),
        Op::Split { axis } => format!("split {axis}"),
        Op::Merge { into } => format!("merge {into}"),
        Op::Rename { from, to } => format!("rename {from} {to}"),
        _ => "other".to_owned(),
    }
}

fn cache(kv: &ir::KvRef) -> &str {
    match kv {
        ir::KvRef::Kind(name) | ir::KvRef::ByColumn(name) => name,
    }
}

fn kernel_lines(name: &str, a: Option<&KernelGraph>, b: Option<&KernelGraph>) -> Vec<String> {
    let (Some(a), Some(b)) = (a, b) else { return Vec::new() };
    let kernels = |graph: &KernelGraph| -> IndexMap<String, String> {
        let launched = graph.regions.iter().filter(|r| r.kind != KernelKind::View);
        let told = |r: &ir::Region| format!("{} of {} operations", r.kind.word(), r.values.len());
        let mut unnamed: IndexMap<&str, u64> = IndexMap::new();
        let kernel = |r: &ir::Region| {
            let kind = r.kind.word();
            // A kernel without a name of the spec is called after a value's number, which any edit moves.
            let number = r.name.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
            let name = match number {
                Some(n) if n.chars().all(|c| c.is_ascii_digit()) => {
                    let count = unnamed.entry(kind).or_default();
                    *count += 1;
                    format!("unnamed {kind} {count}")
                }
                _ => r.name.clone(),
            };
            (name, told(r))
        };
        launched.map(kernel).collect()
    };
    let (a, b) = (kernels(a), kernels(b));
    let mut lines: Vec<String> = Vec::new();
    lines.extend(moved(&format!("{name}, kernels"), a.len() as u64, b.len() as u64));
    lines.extend(map_lines(&format!("{name},"), &a, &b, Clone::clone));
    lines
}

fn byte_lines(a: &Side<'_>, b: &Side<'_>) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(moved("weights held", a.rank_bytes, b.rank_bytes));
    lines.extend(moved("arena", a.stages.plan.arena_bytes, b.stages.plan.arena_bytes));
    let both = a.stages.kernels.entries.iter().zip(&a.steps).zip(&a.floors);
    for ((entry, step), floor) in both {
        let Some(other) = b.stages.kernels.entries.iter().position(|e| e.name == entry.name) else { continue };
        let (Some(step_b), Some(floor_b)) = (b.steps.get(other), b.floors.get(other)) else { continue };
        let (x, y) = (step.work(), step_b.work());
        for (what, x, y) in [
            ("weights read", x.weight_bytes, y.weight_bytes),
            ("cached rows read", x.kv_read_bytes, y.kv_read_bytes),
            ("other values", x.read_bytes + x.written_bytes, y.read_bytes + y.written_bytes),
            ("sent to other ranks", x.sent_bytes, y.sent_bytes),
            ("operations", x.operations(), y.operations()),
            ("launches", x.launches, y.launches),
        ] {
            lines.extend(moved(&format!("{}, {what}", entry.name), x.round() as u64, y.round() as u64));
        }
        let told = |floor: &Option<f64>| floor.map_or_else(|| "unknown".to_owned(), |s| format!("{:.1} us", s * 1e6));
        lines.extend(changed(&format!("{}, floor", entry.name), &told(floor), &told(floor_b)));
    }
    lines
}

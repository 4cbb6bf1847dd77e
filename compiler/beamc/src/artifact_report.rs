//! The report that `beamc compile` puts into an artifact: kernels, bytes, floors, memory map, relaxations, as data.
//!
//! Everything is computed from the kernel level, the plan and the target's facts (`targets::cost`); nothing is measured.
//! `report_page.rs` prints it.

use crate::stored;
use artifact::{WeightMemory, WeightRecipe};
use indexmap::IndexMap;
use ir::{BucketPlan, KernelEntry, KernelGraph, KernelKind, KvLayout};
use passes::Stages;
use serde_json::{Value, json};
use targets::cost::{GraphCost, KernelCost, Load, StepCost, Work};
use targets::{Hardware, Target, cost};

/// Positions of each sequence in the steps that are reported, unless the model is made for fewer.
const CONTEXT_TOKENS: u64 = 4096;

/// What the compiler knows of an artifact, as data. Bytes are those of one rank unless they say otherwise.
pub fn build(stages: &Stages, target: &Target, recipes: &[WeightRecipe], memory: &WeightMemory) -> Value {
    let facts = &stages.kernels.facts;
    let whole: u64 =
        recipes.iter().filter_map(|r| Some(r.dtype.bytes_for(r.distinct_elements()?))).fold(0, u64::saturating_add);
    let context = facts.runtime.context.unwrap_or(CONTEXT_TOKENS).min(CONTEXT_TOKENS);
    let entries = stages.kernels.entries.iter().zip(&stages.plan.entries).map(|(kernels, plan)| {
        let steps: Vec<(&BucketPlan, StepCost)> = plan
            .buckets
            .iter()
            .map(|b| (b, cost::step(&stages.kernels, kernels, target, Load::fullest(&b.bucket, context))))
            .collect();
        entry(kernels, &steps, &target.hardware)
    });
    json!({
        "model": facts.name,
        "parameters": facts.parameters(),
        "target": target.name,
        "arch": target.arch,
        "mesh": memory.mesh,
        "ranks": memory.mesh.ranks(),
        "act": facts.act.word(),
        "options": facts.options,
        "weights": { "tensors": recipes.len(), "bytes": whole, "bytes_by_format": stored::bytes(facts), "rank_bytes": memory.bytes, "pieces": memory.pieces.len() },
        "kv": stages.plan.kv.iter().map(kv).collect::<Vec<_>>(),
        "arena_bytes": stages.plan.arena_bytes,
        "memory": memory_map(stages, target, memory, context),
        "entries": entries.collect::<Vec<_>>(),
        "relaxations": stages.kernels.relaxations,
        "computed": "by the compiler from the target's facts; nothing here is measured",
    })
}

fn kv(layout: &KvLayout) -> Value {
    json!({
        "kind": layout.kind, "layers": layout.layers.len(), "window": layout.window, "dtype": layout.dtype.word(),
        "page_tokens": layout.page_tokens, "page_bytes": layout.page_bytes(),
        "bytes_per_token": layout.page_bytes() / layout.page_tokens.max(1),
    })
}

/// What lies in the memory of one rank, and how many sequences the rest can cache.
fn memory_map(stages: &Stages, target: &Target, memory: &WeightMemory, context: u64) -> Value {
    let sequence: u64 = stages.plan.kv.iter().map(|k| pages(k, context).saturating_mul(k.page_bytes())).sum();
    let device = target.hardware.fact("memory_bytes").map(|bytes| bytes as u64);
    let used = memory.bytes.saturating_add(stages.plan.arena_bytes);
    let free = device.map(|bytes| bytes.saturating_sub(used));
    json!({
        "device_bytes": device,
        "weight_bytes": memory.bytes,
        "arena_bytes": stages.plan.arena_bytes,
        "free_bytes": free,
        "fits": device.map(|bytes| used <= bytes),
        "context_tokens": context,
        "cache_bytes_per_sequence": sequence,
        "sequences": free.and_then(|bytes| bytes.checked_div(sequence)),
    })
}

/// Pages of a kind that a sequence of this context needs: a window's tokens may straddle one page more.
fn pages(layout: &KvLayout, context: u64) -> u64 {
    let page = layout.page_tokens.max(1);
    let all = context.div_ceil(page);
    layout.window.map_or(all, |window| all.min(window.div_ceil(page) + 1))
}

fn entry(kernels: &KernelEntry, steps: &[(&BucketPlan, StepCost)], hardware: &Hardware) -> Value {
    let graphs: Vec<Value> = kernels.graphs.iter().map(graph).collect();
    let launches: u64 =
        steps.first().map_or(0, |(_, step)| step.graphs.iter().map(|g| g.kernels.len() as u64 * g.times).sum());
    let per_layer: IndexMap<&str, usize> = kernels.graphs.iter().map(|g| (g.name.as_str(), launched(g))).collect();
    let buckets: Vec<Value> = steps.iter().map(|(plan, step)| bucket(plan, step, hardware)).collect();
    json!({
        "entry": kernels.name,
        "graphs": graphs,
        "launches_per_step": launches,
        "launches_per_graph": per_layer,
        "buckets": buckets,
    })
}

fn launched(graph: &KernelGraph) -> usize {
    graph.regions.iter().filter(|r| r.kind != KernelKind::View).count()
}

fn graph(graph: &KernelGraph) -> Value {
    let mut kinds: IndexMap<&str, usize> = IndexMap::new();
    for region in &graph.regions {
        *kinds.entry(region.kind.word()).or_default() += 1;
    }
    json!({ "graph": graph.name, "regions": kinds })
}

fn bucket(plan: &BucketPlan, step: &StepCost, hardware: &Hardware) -> Value {
    let load = step.load;
    json!({
        "bucket": plan.bucket.to_string(),
        "tokens": plan.bucket.tokens,
        "arena_bytes": plan.arena_bytes,
        "load": {
            "tokens": load.tokens, "sequences": load.sequences, "wanted": load.wanted, "context_tokens": load.context,
        },
        "step": work(&step.work(), step.floor(hardware), step.estimate(hardware)),
        "graphs": step.graphs.iter().map(|g| graph_cost(g, hardware)).collect::<Vec<_>>(),
    })
}

fn graph_cost(graph: &GraphCost, hardware: &Hardware) -> Value {
    let kernel = |k: &KernelCost| {
        let floor = k.work.floor(hardware);
        let mut value = work(&k.work, floor.map(|(s, _)| s), floor.map(|(s, _)| s + k.work.latency(hardware)));
        value["kernel"] = k.name.clone().into();
        value["kind"] = k.kind.word().into();
        value["limit"] = floor.map(|(_, limit)| limit.word()).into();
        value
    };
    json!({
        "graph": graph.name,
        "times": graph.times,
        "floor_us": graph.floor(hardware).map(micros),
        "kernels": graph.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}

/// Whole bytes and operations; expected values of experts are rounded.
fn work(work: &Work, floor: Option<f64>, estimate: Option<f64>) -> Value {
    let whole = |x: f64| x.round() as u64;
    json!({
        "weight_bytes": whole(work.weight_bytes),
        "read_bytes": whole(work.read_bytes),
        "written_bytes": whole(work.written_bytes),
        "kv_read_bytes": whole(work.kv_read_bytes),
        "kv_written_bytes": whole(work.kv_written_bytes),
        "operations": whole(work.operations()),
        "sent_bytes": whole(work.sent_bytes),
        "launches": whole(work.launches),
        "exchanges": whole(work.exchanges),
        "floor_us": floor.map(micros),
        "estimate_us": estimate.map(micros),
    })
}

/// Microseconds with two decimals.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e8).round() / 100.0
}

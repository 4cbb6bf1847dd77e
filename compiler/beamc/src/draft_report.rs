//! What the report of an artifact says of its drafter: bytes, caches, and when drafting pays.
//!
//! A step that verifies blocks of `B` rows does more than one of single rows: it reads more of the experts' weights, which
//! `targets::cost` counts as the expected number of distinct ones, and it has a drafter beside it. It pays where it commits
//! more tokens a sequence than it costs single steps.

use artifact::Drafter;
use passes::{Note, Stages};
use serde_json::{Value, json};
use targets::Target;
use targets::cost::{self, Load, StepCost, Work};

/// Sequences of the steps that are compared.
const SEQUENCES: [u64; 6] = [1, 4, 8, 16, 32, 64];

/// Everything about a drafter.
pub fn build(target: &Stages, longest: &Stages, drafter: &Drafter, notes: &[Note], machine: &Target) -> Value {
    let facts = &longest.kernels.facts;
    let bytes = |recipes: &[artifact::WeightRecipe]| {
        let each = recipes.iter().filter_map(|r| Some(r.dtype.bytes_for(r.distinct_elements()?)));
        each.fold(0u64, u64::saturating_add)
    };
    let context = target.kernels.facts.runtime.context.unwrap_or(4096).min(4096);
    let captured = target.plan.entries.iter().flat_map(|e| &e.captures).map(|c| {
        let place = target.plan.entries.iter().flat_map(|e| &e.buckets).find_map(|b| b.shared.get(&c.place));
        json!({ "value": c.value, "layers": c.layers, "bytes": place.map(|p| p.bytes) })
    });
    let kv = longest.plan.kv.iter().map(|kind| {
        let why = notes.iter().find(|n| n.entry == format!("kv.{}", kind.kind)).map(|n| n.message.clone());
        let token = kind.dtype.bytes_for(kind.layer_stride * kind.layers.len() as u64) / kind.page_tokens.max(1);
        json!({
            "kind": kind.kind, "layers": kind.layers.len(), "window": kind.window, "bytes_per_token": token,
            "lives_in": kind.lives_in, "own_pages_because": why,
        })
    });
    let blocks: Vec<u64> = drafter.blocks.iter().map(|b| b.tokens).collect();
    let pays = blocks.iter().flat_map(|block| SEQUENCES.iter().map(|n| (*block, *n)));
    json!({
        "model": facts.name,
        "parameters": facts.parameters(),
        "blocks": blocks,
        "weight_bytes": bytes(&drafter.recipes),
        "copied_bytes": bytes(&drafter.copies),
        "rank_bytes": drafter.memory.bytes,
        "arena_bytes": longest.plan.arena_bytes,
        "captured": captured.collect::<Vec<_>>(),
        "kv": kv.collect::<Vec<_>>(),
        "context_tokens": context,
        "pays": pays.map(|(block, n)| pay(target, longest, machine, block, n, context)).collect::<Vec<_>>(),
    })
}

/// Cost of one cycle over that of a step of single rows. What the ratio says is how many tokens a sequence a cycle must
/// commit to be worth it.
fn pay(target: &Stages, drafter: &Stages, machine: &Target, block: u64, sequences: u64, context: u64) -> Value {
    let load = |rows: u64, wanted: u64| Load { tokens: sequences * rows, sequences, wanted, context };
    let plain = costs(target, machine, load(1, sequences));
    let verify = costs(target, machine, load(block, sequences * block));
    let draft = costs(drafter, machine, load(block, sequences));
    let bytes = |steps: &[StepCost]| steps.iter().map(|s| s.work()).fold(0.0, |n, w: Work| n + w.memory_bytes());
    let seconds = |steps: &[StepCost]| -> Option<f64> { steps.iter().map(|s| s.estimate(&machine.hardware)).sum() };
    let (one, many) = (bytes(&plain), bytes(&verify) + bytes(&draft));
    let times = seconds(&plain).zip(seconds(&verify).zip(seconds(&draft)).map(|(v, d)| v + d));
    let round = |x: f64| (x * 1000.0).round() / 1000.0;
    json!({
        "block": block,
        "sequences": sequences,
        "plain_bytes": one.round() as u64,
        "cycle_bytes": many.round() as u64,
        "pays_above_by_bytes": (one > 0.0).then(|| round(many / one)),
        "pays_above": times.filter(|(one, _)| *one > 0.0).map(|(one, many)| round(many / one)),
    })
}

/// Every entry of a model with one load.
fn costs(stages: &Stages, machine: &Target, load: Load) -> Vec<StepCost> {
    stages.kernels.entries.iter().map(|entry| cost::step(&stages.kernels, entry, machine, load)).collect()
}

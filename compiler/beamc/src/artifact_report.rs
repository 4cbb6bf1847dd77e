//! The report of an artifact: kernels, bytes, memory map, relaxations.

use crate::args::ReportArgs;
use crate::check::grouped;
use crate::failure::Failure;
use crate::input;
use artifact::{Artifact, WeightRecipe};
use indexmap::IndexMap;
use ir::{KernelEntry, KernelGraph, KernelKind, PlanEntry};
use passes::Stages;
use serde_json::{Value, json};
use std::fmt::Write;
use targets::Target;

/// What the compiler knows of an artifact, as data. Bytes are those of one device; nothing here is measured.
pub fn build(stages: &Stages, target: &Target, recipes: &[WeightRecipe]) -> Value {
    let facts = &stages.kernels.facts;
    let weight_bytes: u64 =
        recipes.iter().filter_map(|r| Some(r.elements()? * r.dtype.bytes() as u64)).fold(0, u64::saturating_add);
    let kv: Vec<Value> = stages
        .plan
        .kv
        .iter()
        .map(|k| {
            json!({
                "kind": k.kind, "layers": k.layers.len(), "window": k.window, "dtype": k.dtype.word(),
                "page_tokens": k.page_tokens, "page_bytes": k.page_bytes(),
                "bytes_per_token": k.page_bytes() / k.page_tokens.max(1),
            })
        })
        .collect();
    let entries: Vec<Value> =
        stages.kernels.entries.iter().zip(&stages.plan.entries).map(|(k, p)| entry(k, p)).collect();
    json!({
        "model": facts.name,
        "parameters": facts.parameters(),
        "target": target.name,
        "act": facts.act.word(),
        "options": facts.options,
        "weights": { "tensors": recipes.len(), "bytes": weight_bytes },
        "kv": kv,
        "arena_bytes": stages.plan.arena_bytes,
        "entries": entries,
        "relaxations": [],
    })
}

fn entry(kernels: &KernelEntry, plan: &PlanEntry) -> Value {
    let graphs: Vec<Value> = kernels.graphs.iter().map(graph).collect();
    let count = |g: &KernelGraph| g.regions.iter().filter(|r| r.kind != KernelKind::View).count();
    let layers: usize =
        kernels.instances.iter().map(|i| count(&kernels.graphs[KernelEntry::class_graph(i.class)])).sum();
    let step = count(kernels.first()) + layers + count(kernels.last());
    let buckets: Vec<Value> = plan
        .buckets
        .iter()
        .map(|b| json!({ "bucket": b.bucket.to_string(), "tokens": b.bucket.tokens, "arena_bytes": b.arena_bytes }))
        .collect();
    json!({ "entry": kernels.name, "graphs": graphs, "launches_per_step": step, "buckets": buckets })
}

fn graph(graph: &KernelGraph) -> Value {
    let mut kinds: IndexMap<&str, usize> = IndexMap::new();
    for region in &graph.regions {
        *kinds.entry(region.kind.word()).or_default() += 1;
    }
    json!({ "graph": graph.name, "regions": kinds })
}

/// Runs `beamc report`.
pub fn report(args: &ReportArgs) -> Result<String, Failure> {
    let artifact = Artifact::load(&args.artifact).map_err(|e| Failure {
        exit: crate::failure::INPUT,
        text: format!("error{}\n", input::bracketed(&e)),
        json: None,
    })?;
    let report = &artifact.report;
    if args.json {
        return Ok(format!("{report:#}\n"));
    }
    let number = |v: &Value| v.as_u64().map_or_else(|| "?".to_owned(), grouped);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} for {}: {} parameters, {} bytes of weights, arena {} bytes (computed by the compiler, not measured)",
        report["model"].as_str().unwrap_or("?"),
        report["target"].as_str().unwrap_or("?"),
        number(&report["parameters"]),
        number(&report["weights"]["bytes"]),
        number(&report["arena_bytes"]),
    );
    for kv in report["kv"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "cache {}: {} layers, pages of {} tokens, {} bytes a token",
            kv["kind"].as_str().unwrap_or("?"),
            number(&kv["layers"]),
            number(&kv["page_tokens"]),
            number(&kv["bytes_per_token"]),
        );
    }
    for entry in report["entries"].as_array().into_iter().flatten() {
        let _ = writeln!(
            out,
            "entry {}: {} launches a step",
            entry["entry"].as_str().unwrap_or("?"),
            number(&entry["launches_per_step"])
        );
        for graph in entry["graphs"].as_array().into_iter().flatten() {
            let kinds: Vec<String> =
                graph["regions"].as_object().into_iter().flatten().map(|(kind, n)| format!("{kind} {n}")).collect();
            let _ = writeln!(out, "  {}: {}", graph["graph"].as_str().unwrap_or("?"), kinds.join(", "));
        }
        for bucket in entry["buckets"].as_array().into_iter().flatten() {
            let name = bucket["bucket"].as_str().unwrap_or("?");
            let _ = writeln!(out, "  bucket {name}: {} bytes of arena", number(&bucket["arena_bytes"]));
        }
    }
    let _ = writeln!(
        out,
        "relaxations: {}",
        if artifact.manifest.relaxations.is_empty() {
            "none".to_owned()
        } else {
            artifact.manifest.relaxations.join(", ")
        }
    );
    Ok(out)
}

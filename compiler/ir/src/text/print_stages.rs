//! Printing of the model, kernel and plan levels, for reading.

use super::name::Name;
use super::print::{GraphPrinter, kinds_text, print_facts, print_instances, print_sharding, put, weight_text};
use crate::{
    Anatomy, BucketPlan, Buffer, Graph, KernelEntry, KernelGraph, KernelModule, Launch, Layout, Model, Place, Plan,
    Region, ValueId,
};
use std::fmt::Write;

/// Prints a model: facts, blocks, entries.
pub fn print_model(model: &Model, spans: bool) -> String {
    let mut out = String::new();
    print_facts(&mut out, &model.facts, spans);
    for (word, blocks) in [("block", &model.blocks), ("entry", &model.entries)] {
        for block in blocks {
            out.push('\n');
            GraphPrinter::new(&block.graph, &model.facts, spans).graph(
                &mut out,
                &format!("{word} {}", Name(&block.name)),
                "",
            );
        }
    }
    out
}

/// Prints a module at kernel level: per graph first the leaves, then one block per region.
pub fn print_kernels(module: &KernelModule, spans: bool) -> String {
    let mut out = String::new();
    print_facts(&mut out, &module.facts, spans);
    print_sharding(&mut out, module.sharding.as_ref(), &module.relaxations);
    for chosen in &module.layouts {
        let layout = match chosen.layout {
            Layout::RowMajor => "row_major".to_owned(),
            Layout::Interleaved { parts, granule } => format!("interleaved {parts} by {granule}"),
        };
        put!(out, "layout {}: {layout}", weight_text(&chosen.weight));
    }
    for entry in &module.entries {
        put!(out, "\nentry {} {{", Name(&entry.name));
        for graph in &entry.graphs {
            print_kernel_graph(&mut out, graph, module, spans);
        }
        print_instances(&mut out, &entry.instances, |class| match entry.graphs.get(KernelEntry::class_graph(class)) {
            Some(graph) => Name(&graph.name).to_string(),
            None => format!("\"class {class}\""),
        });
        put!(out, "}}");
    }
    out
}

fn print_kernel_graph(out: &mut String, graph: &KernelGraph, module: &KernelModule, spans: bool) {
    let printer = GraphPrinter::new(&graph.graph, &module.facts, spans);
    let kinds = if graph.kinds.is_empty() { String::new() } else { format!(" {{{}}}", kinds_text(&graph.kinds)) };
    printer.open(out, &format!("graph {}{kinds}", Name(&graph.name)), "  ");
    let mut line = 0;
    let mut text = |id: ValueId| {
        let moved = id.0 != line && graph.graph.node(id).name.is_some();
        line += 1;
        if moved { format!("at {} {}", id.0, printer.line(id)) } else { printer.line(id) }
    };
    for id in graph.graph.ids().filter(|v| graph.graph.node(*v).op.is_leaf()) {
        put!(out, "    {}", text(id));
    }
    for region in &graph.regions {
        put!(out, "    region {} {} {{{}", Name(&region.name), region.kind.word(), spaces(&graph.graph, region));
        for id in &region.values {
            put!(out, "      {}", text(*id));
        }
        put!(out, "    }}");
    }
    put!(out, "  }}");
}

/// The rows of a region of several operations, strand by strand, as a comment.
fn spaces(graph: &Graph, region: &Region) -> String {
    if region.values.len() < 2 {
        return String::new();
    }
    let Ok(anatomy) = Anatomy::of(graph, &region.values) else { return String::new() };
    let mut rows: Vec<String> = anatomy.strands.iter().map(|s| s.rows.join(", ").escape_debug().to_string()).collect();
    rows.dedup();
    let rows: Vec<String> = rows.iter().map(|r| format!("[{r}]")).collect();
    if rows.is_empty() { String::new() } else { format!("  ; rows {}", rows.join(" ")) }
}

/// Prints a plan: cache layouts, then per bucket the shared values, the memory map of each program and its launches.
/// `kernels` is the module that the plan was made from; it gives values and regions their names.
pub fn print_plan(plan: &Plan, kernels: &KernelModule) -> String {
    let mut out = String::new();
    put!(out, "plan {}", Name(&kernels.facts.name));
    put!(out, "arena {} bytes", plan.arena_bytes);
    for kv in &plan.kv {
        let window = kv.window.map(|w| format!(" window {w}")).unwrap_or_default();
        put!(out, "kv {}: {} heads {} elements {}{window}", Name(&kv.kind), kv.dtype, kv.heads, kv.head_elements);
        put!(
            out,
            "  page {} tokens, {} bytes; strides page {} layer {} token {} head {}, value {} after key",
            kv.page_tokens,
            kv.page_bytes(),
            kv.page_stride,
            kv.layer_stride,
            kv.token_stride,
            kv.head_stride,
            kv.v_offset
        );
        let layers: Vec<String> = kv.layers.iter().map(usize::to_string).collect();
        let home = kv.lives_in.as_ref().map(|h| format!(" from {} in pages of {}", kv.first, Name(h)));
        put!(out, "  layers [{}]{}", layers.join(", "), home.unwrap_or_default());
    }
    for (entry, kernel_entry) in plan.entries.iter().zip(&kernels.entries) {
        put!(out, "\nentry {} {{", Name(&entry.name));
        print_instances(&mut out, &entry.instances, |class| {
            match kernel_entry.graphs.get(KernelEntry::class_graph(class)) {
                Some(graph) => Name(&graph.name).to_string(),
                None => format!("\"class {class}\""),
            }
        });
        for captured in &entry.captures {
            let layers: Vec<String> = captured.layers.iter().map(usize::to_string).collect();
            let (place, value) = (Name(&captured.place), Name(&captured.value));
            put!(out, "  leaves {place}: {value} behind layers [{}]", layers.join(", "));
        }
        for bucket in &entry.buckets {
            print_bucket(&mut out, bucket, kernel_entry);
        }
        put!(out, "}}");
    }
    out
}

fn print_bucket(out: &mut String, plan: &BucketPlan, entry: &KernelEntry) {
    let b = &plan.bucket;
    put!(
        out,
        "  bucket {b}: tokens {}, sequences {}, wanted {}; {} bytes",
        b.tokens,
        b.sequences,
        b.wanted,
        plan.arena_bytes
    );
    for (name, buffer) in &plan.shared {
        put!(out, "    shared {}: {}", Name(name), buffer_text(buffer));
    }
    for (program, graph) in plan.programs.iter().zip(&entry.graphs) {
        put!(out, "    program {} {{", Name(&program.graph));
        // A damaged plan may speak of values that the graph does not have; they print as numbers.
        let value = |id: ValueId| match graph.graph.ids().nth(id.0 as usize) {
            Some(id) => graph.graph.node(id).name.as_ref().map_or_else(|| id.to_string(), |n| format!("%{}", Name(n))),
            None => id.to_string(),
        };
        for (number, launch) in program.launches.iter().enumerate() {
            match launch {
                Launch::Region { region, kernel, variant, reads, dependent } => {
                    let name = graph.regions.get(*region).map_or("?", |r| r.name.as_str());
                    let values = graph.regions.get(*region).map_or(&[][..], |r| &r.values);
                    let places: Vec<String> = values
                        .iter()
                        .filter_map(|v| match program.places.get(v.0 as usize) {
                            Some(Place::Arena(buffer)) => Some(format!("{} {}", value(*v), buffer_text(buffer))),
                            Some(Place::Alias(of)) => Some(format!("{} as {}", value(*v), value(*of))),
                            Some(Place::Inside) => None,
                            Some(Place::Elsewhere) | None => Some(format!("{} elsewhere", value(*v))),
                        })
                        .collect();
                    let variant =
                        if variant.word().is_empty() { String::new() } else { format!(" {}", variant.word()) };
                    let reads: Vec<String> = reads.iter().map(usize::to_string).collect();
                    let reads = if reads.is_empty() { String::new() } else { format!(" after {}", reads.join(" ")) };
                    let early = if *dependent { " early" } else { "" };
                    let head = format!("{}{variant} {}{reads}{early}", kernel.word(), Name(name));
                    put!(out, "      {number} {head} -> {}", places.join(", "));
                }
                Launch::Move { from, to } => put!(out, "      {number} move {} -> shared {}", value(*from), Name(to)),
            }
        }
        put!(out, "    }}");
    }
}

fn buffer_text(buffer: &Buffer) -> String {
    format!("{} @{}+{}", buffer.dtype, buffer.offset_bytes, buffer.bytes)
}

//! `beamc report`: the report of an artifact as a page for people.

use crate::args::ReportArgs;
use crate::check::grouped;
use crate::failure::{Failure, INPUT};
use artifact::Artifact;
use serde_json::Value;
use std::fmt::Write;

/// Runs the command. An artifact that misses kernels is read as well: that is what it is for.
pub fn report(args: &ReportArgs) -> Result<String, Failure> {
    let artifact = Artifact::read(&args.artifact).map_err(|e| Failure::artifact(INPUT, &e))?;
    let report = &artifact.report;
    if args.json {
        return Ok(format!("{report:#}\n"));
    }
    let mut out = head(&artifact);
    memory(report, &mut out);
    for entry in items(&report["entries"]) {
        steps(entry, &mut out);
        kernels(entry, args.bucket.as_deref(), &mut out)?;
    }
    drafter(&report["drafter"], &mut out);
    let relaxations = &artifact.manifest.relaxations;
    let names = if relaxations.is_empty() { "none".to_owned() } else { relaxations.join(", ") };
    let _ = writeln!(out, "\nrelaxations: {names}");
    if !artifact.manifest.complete {
        let _ = writeln!(out, "\nnot loadable, kernels that are not in this build:");
        for missing in &artifact.manifest.missing {
            let _ = writeln!(out, "  {missing}");
        }
    }
    Ok(out)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}

fn number(value: &Value) -> String {
    value.as_u64().map_or_else(|| "?".to_owned(), grouped)
}

/// Bytes or operations in the largest unit that leaves a whole digit.
fn scaled(value: &Value, unit: &str) -> String {
    let x = value.as_f64().unwrap_or(0.0);
    let steps = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match steps.into_iter().find(|(size, _)| x >= *size) {
        Some((size, prefix)) => format!("{:.3} {prefix}{unit}", x / size),
        None => format!("{x:.0} {unit}"),
    }
}

fn micros(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |us| format!("{us:.2}"))
}

fn head(artifact: &Artifact) -> String {
    let report = &artifact.report;
    let mesh = &artifact.manifest.mesh;
    let on = if mesh.is_single() { "one device".to_owned() } else { format!("{mesh}, {} ranks", mesh.ranks()) };
    let options: Vec<String> = artifact.manifest.options.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    let options = if options.is_empty() { "none".to_owned() } else { options.join(", ") };
    format!(
        "{} for {} ({}) on {on}: {} parameters, {} bytes of weights\noptions: {options}; computed by the compiler, not measured\n",
        text(&report["model"]),
        text(&report["target"]),
        artifact.manifest.target.arch,
        number(&report["parameters"]),
        number(&report["weights"]["bytes"]),
    )
}

fn memory(report: &Value, out: &mut String) {
    let map = &report["memory"];
    out.push_str("\nmemory of a rank, bytes\n");
    let mut row = |what: &str, value: &Value| {
        let _ = writeln!(out, "  {what:<28} {:>20}", number(value));
    };
    row("weights", &map["weight_bytes"]);
    row("arena", &map["arena_bytes"]);
    if !map["device_bytes"].is_null() {
        row("device", &map["device_bytes"]);
        row("left to caches", &map["free_bytes"]);
    }
    row("cache of one sequence", &map["cache_bytes_per_sequence"]);
    if map["fits"] == false {
        let _ = writeln!(out, "  the weights and the arena do not fit; use a larger mesh");
    } else if !map["sequences"].is_null() {
        let (n, context) = (number(&map["sequences"]), number(&map["context_tokens"]));
        let _ = writeln!(out, "  {n} sequences of {context} tokens fit");
    }
    for kv in items(&report["kv"]) {
        let window = kv["window"].as_u64().map_or_else(String::new, |w| format!(", window {w}"));
        let _ = writeln!(
            out,
            "  cache {}: {} layers, pages of {} tokens, {} bytes a token{window}",
            text(&kv["kind"]),
            number(&kv["layers"]),
            number(&kv["page_tokens"]),
            number(&kv["bytes_per_token"]),
        );
    }
}

/// The drafter: its bytes and caches, and how many tokens a sequence a cycle must commit to be worth it.
fn drafter(report: &Value, out: &mut String) {
    if report.is_null() {
        return;
    }
    let bytes = ["weight_bytes", "copied_bytes", "arena_bytes"].map(|key| number(&report[key]));
    let _ = writeln!(
        out,
        "\ndrafter {}: {} parameters, {} bytes of weights, {} of copies; arena {} bytes",
        text(&report["model"]),
        number(&report["parameters"]),
        bytes[0],
        bytes[1],
        bytes[2],
    );
    for captured in items(&report["captured"]) {
        let layers: Vec<String> = items(&captured["layers"]).map(number).collect();
        let (value, layers) = (text(&captured["value"]), layers.join(", "));
        let _ = writeln!(out, "  reads {value} behind layers {layers}: {} bytes", number(&captured["bytes"]));
    }
    for kv in items(&report["kv"]) {
        let home = match kv["lives_in"].as_str() {
            Some(home) => format!("in pages of {home}"),
            None => format!("in pages of its own: {}", text(&kv["own_pages_because"])),
        };
        let (kind, bytes) = (text(&kv["kind"]), number(&kv["bytes_per_token"]));
        let _ = writeln!(out, "  cache {kind}: {} layers, {bytes} bytes a token, {home}", number(&kv["layers"]));
    }
    let context = number(&report["context_tokens"]);
    let _ =
        writeln!(out, "  a block pays if a cycle commits more tokens a sequence than this, at {context} positions:");
    let _ = writeln!(out, "  {:>6} {:>10} {:>10} {:>10}", "block", "sequences", "by time", "by bytes");
    let ratio = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |x| format!("{x:.2}"));
    for row in items(&report["pays"]) {
        let (block, sequences) = (number(&row["block"]), number(&row["sequences"]));
        let (time, bytes) = (ratio(&row["pays_above"]), ratio(&row["pays_above_by_bytes"]));
        let _ = writeln!(out, "  {block:>6} {sequences:>10} {time:>10} {bytes:>10}");
    }
}

/// One line per bucket.
fn steps(entry: &Value, out: &mut String) {
    let _ = writeln!(out, "\nentry {}: {} launches a step", text(&entry["entry"]), number(&entry["launches_per_step"]));
    let per = |graphs: &Value| {
        let counts: Vec<String> =
            graphs.as_object().into_iter().flatten().map(|(graph, n)| format!("{graph} {n}")).collect();
        counts.join(", ")
    };
    let _ = writeln!(out, "launches per graph: {}", per(&entry["launches_per_graph"]));
    let mut rows = vec![
        [
            "bucket",
            "context",
            "weights",
            "cache read",
            "other",
            "operations",
            "sent",
            "floor us",
            "estimate us",
            "arena",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for bucket in items(&entry["buckets"]) {
        let step = &bucket["step"];
        rows.push(vec![
            text(&bucket["bucket"]).to_owned(),
            number(&bucket["load"]["context_tokens"]),
            scaled(&step["weight_bytes"], "B"),
            scaled(&step["kv_read_bytes"], "B"),
            scaled(&other(step), "B"),
            scaled(&step["operations"], "op"),
            scaled(&step["sent_bytes"], "B"),
            micros(&step["floor_us"]),
            micros(&step["estimate_us"]),
            scaled(&bucket["arena_bytes"], "B"),
        ]);
    }
    table(&rows, out);
}

/// Bytes besides weights and cached rows read.
fn other(work: &Value) -> Value {
    let of = |key: &str| work[key].as_u64().unwrap_or(0);
    Value::from(of("read_bytes") + of("written_bytes") + of("kv_written_bytes"))
}

/// One line per kernel of one bucket.
fn kernels(entry: &Value, wanted: Option<&str>, out: &mut String) -> Result<(), Failure> {
    let Some(bucket) = items(&entry["buckets"]).find(|b| wanted.is_none_or(|w| text(&b["bucket"]) == w)) else {
        let known: Vec<&str> = items(&entry["buckets"]).map(|b| text(&b["bucket"])).collect();
        let wanted = wanted.unwrap_or("");
        let failure = Failure::usage("C0007", format!("`{wanted}` is no bucket of the artifact"));
        return Err(match spec::nearest(wanted, known.iter().copied()) {
            Some(near) => failure.help(format!("did you mean `{near}`?")),
            None => failure.help(format!("it has {}", known.join(", "))),
        });
    };
    let _ = writeln!(out, "\nkernels of {}", text(&bucket["bucket"]));
    let mut rows = vec![
        ["kernel", "kind", "weights", "cache read", "other", "operations", "sent", "floor us", "limit"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for graph in items(&bucket["graphs"]) {
        let name = format!("{} × {}", text(&graph["graph"]), number(&graph["times"]));
        let mut line = vec![String::new(); 9];
        (line[0], line[7]) = (name, micros(&graph["floor_us"]));
        rows.push(line);
        for kernel in items(&graph["kernels"]) {
            rows.push(vec![
                format!("  {}", text(&kernel["kernel"])),
                text(&kernel["kind"]).to_owned(),
                scaled(&kernel["weight_bytes"], "B"),
                scaled(&kernel["kv_read_bytes"], "B"),
                scaled(&other(kernel), "B"),
                scaled(&kernel["operations"], "op"),
                scaled(&kernel["sent_bytes"], "B"),
                micros(&kernel["floor_us"]),
                kernel["limit"].as_str().unwrap_or("-").to_owned(),
            ]);
        }
    }
    table(&rows, out);
    Ok(())
}

/// Rows with their columns below each other: the first column to the left, the others to the right.
fn table(rows: &[Vec<String>], out: &mut String) {
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
    for row in rows {
        let cells = row.iter().enumerate().map(|(i, c)| {
            let w = width(i);
            if i == 0 { format!("{c:<w$}") } else { format!("{c:>w$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

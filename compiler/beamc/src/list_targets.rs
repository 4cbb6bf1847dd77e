//! `beamc targets`: what can be compiled for, and the hardware facts behind floors with their sources.

use crate::args::TargetsArgs;
use crate::failure::Failure;
use crate::input;
use serde_json::{Value, json};
use std::fmt::Write;
use targets::Target;

/// Runs the command.
pub fn targets(args: &TargetsArgs) -> Result<String, Failure> {
    if let Some(name) = &args.target {
        let target = input::target(name)?;
        return Ok(if args.json { format!("{:#}\n", data(&target)) } else { page(&target) });
    }
    let all = targets::names().into_iter().map(input::target).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        let list: Vec<Value> = all.iter().map(data).collect();
        return Ok(format!("{:#}\n", json!(list)));
    }
    Ok(all.iter().map(|t| format!("{:<14} {:<8} {}\n", t.name, t.arch, t.description)).collect())
}

fn data(target: &Target) -> Value {
    let facts = target.hardware.facts.iter().map(|(key, fact)| {
        let fact = json!({ "value": fact.value, "unit": fact.unit, "what": fact.what, "source": fact.source });
        ((*key).to_owned(), fact)
    });
    let options = target.options.iter().map(|o| json!({ "option": o.option, "split": o.split, "prefer": o.prefer }));
    json!({
        "name": target.name,
        "arch": target.arch,
        "description": target.description,
        "meshes": target.meshes,
        "relaxations": target.relaxations,
        "options": options.collect::<Vec<_>>(),
        "formats": {
            "fp8": target.formats.fp8.word(),
            "nvfp4": target.formats.nvfp4.word(),
            "assume": target.formats.assume.map(ir::StoredFormat::word),
            "convert": target.formats.convert,
        },
        "page_tokens": target.kv.page_tokens,
        "kv_dtype": kv_dtype(target),
        "buckets": target.buckets_of("forward").iter().map(ToString::to_string).collect::<Vec<_>>(),
        "hardware": facts.collect::<serde_json::Map<_, _>>(),
    })
}

fn page(target: &Target) -> String {
    let mut out = format!("{}: {}\narch {}\n", target.name, target.description, target.arch);
    let list = |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join("; ") };
    let meshes = list(target.meshes.iter().map(ToString::to_string).collect());
    let _ = writeln!(out, "meshes, the first that fits: {meshes}");
    let _ = writeln!(out, "relaxations allowed: {}", list(target.relaxations.clone()));
    for rule in &target.options {
        let when =
            if rule.split.is_empty() { String::new() } else { format!(" where {} is split", rule.split.join(" or ")) };
        let _ = writeln!(out, "option {}: {}{when}", rule.option, rule.prefer.join(", then "));
    }
    let formats = &target.formats;
    let _ = write!(out, "stored formats: fp8 {}, nvfp4 {}", formats.fp8.word(), formats.nvfp4.word());
    let _ = writeln!(out, "; assumed: {}", formats.assume.map_or("none", ir::StoredFormat::word));
    let _ = writeln!(out, "conversions while loading: {}", list(formats.convert.clone()));
    let buckets: Vec<String> =
        target.buckets_of("").iter().map(|b| b.to_string().trim_start_matches('-').to_owned()).collect();
    let _ = writeln!(
        out,
        "pages of {} tokens, rows in {}; buckets {}",
        target.kv.page_tokens,
        kv_dtype(target),
        buckets.join(", ")
    );
    for (key, fact) in &target.hardware.facts {
        let unit = if fact.unit == "1" { String::new() } else { format!(" {}", fact.unit) };
        let _ = writeln!(out, "{key} = {}{unit}\n    {} ({})", number(fact.value), fact.what, fact.source);
    }
    out
}

/// Format of cached rows; `act` for that of untyped names.
fn kv_dtype(target: &Target) -> &'static str {
    match target.kv.dtype {
        targets::KvDtype::Act => "act",
        targets::KvDtype::Fixed(dtype) => dtype.word(),
    }
}

/// A number as people read it: whole below a million, otherwise with an exponent.
fn number(value: f64) -> String {
    if (1.0..1e6).contains(&value) { format!("{value}") } else { format!("{value:e}") }
}

//! `beam-run doctor`: what this machine has and what is missing.

use crate::args::JsonArgs;
use crate::failure::Failure;
use serde_json::json;
use std::io::Write;

/// Runs the command.
pub fn doctor(args: &JsonArgs) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory = memory_bytes();
    let found = device::describe_device();
    let cuda = match &found {
        Ok((name, arch)) => format!("{name} ({arch})"),
        Err(fact) => format!("none: {fact}; artifacts for `cpu` run without it"),
    };
    let fuses = device::has_fused_multiply_add();
    let text = if args.json {
        let report = json!({
            "ok": true,
            "version": version,
            "processors": processors,
            "memory_bytes": memory,
            "executors": ["cpu", "cuda", "interp"],
            "cuda": {"found": found.is_ok(), "what": cuda},
            "fused_multiply_add": fuses,
            "missing": [],
        });
        format!("{report:#}\n")
    } else {
        let memory =
            memory.map_or("unknown".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64));
        let fuses = match fuses {
            true => "yes",
            false => "no: matrix products have the same bits, computed by a library and many times slower",
        };
        format!(
            "beam-run {version}\nprocessors: {processors}\nmemory: {memory}\nfused multiply-add: {fuses}\nexecutors: cpu, cuda, interp\nCUDA device: {cuda}\n"
        )
    };
    // A closed pipe is the reader's decision, not a fault.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Main memory, where the system tells it.
fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
}

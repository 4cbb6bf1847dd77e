//! `beamc doctor`: what this machine has and what is missing.

use crate::args::JsonArgs;
use crate::failure::Failure;
use serde_json::json;

/// Runs the command.
pub fn doctor(args: &JsonArgs) -> Result<String, Failure> {
    let targets = targets::names();
    let specs: Vec<String> = spec::Library::embedded().specs().map(|(n, _)| n.to_owned()).collect();
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    if args.json {
        let json = json!({
            "ok": true, "version": env!("CARGO_PKG_VERSION"), "processors": processors, "targets": targets,
            "specs": specs, "cuda_compiler": { "needed": false, "why": "this build has no CUDA target" },
        });
        return Ok(format!("{json:#}\n"));
    }
    Ok(format!(
        "beamc {}\nprocessors: {processors}\ntargets: {}\nbuilt-in specs: {}\nCUDA compiler: not needed, this build has no CUDA target\nnothing is missing\n",
        env!("CARGO_PKG_VERSION"),
        targets.join(", "),
        specs.join(", "),
    ))
}

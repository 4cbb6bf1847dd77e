//! `beamc doctor`: what this machine has and what is missing.

use crate::args::JsonArgs;
use crate::failure::Failure;
use serde_json::json;

/// Runs the command.
pub fn doctor(args: &JsonArgs) -> Result<String, Failure> {
    let targets = targets::names();
    let specs: Vec<String> = spec::Library::embedded().specs().map(|(n, _)| n.to_owned()).collect();
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let found = codegen::find();
    let compiler = match &found {
        Some(nvrtc) => match codegen::version(nvrtc) {
            Ok(version) => format!("NVRTC {version} in {}", nvrtc.library.display()),
            Err(fact) => format!("NVRTC in {}, which cannot be used: {fact}", nvrtc.library.display()),
        },
        None => format!("not found, needed for targets of `sm_` architectures; {}", codegen::HOW_TO_GET_IT),
    };
    let missing = if found.is_some() { "nothing is missing" } else { "all but CUDA targets can be compiled for" };
    if args.json {
        let json = json!({
            "ok": true, "version": env!("CARGO_PKG_VERSION"), "processors": processors, "targets": targets,
            "specs": specs, "cuda_compiler": { "found": found.is_some(), "what": compiler },
        });
        return Ok(format!("{json:#}\n"));
    }
    Ok(format!(
        "beamc {}\nprocessors: {processors}\ntargets: {}\nbuilt-in specs: {}\nCUDA compiler: {compiler}\n{missing}\n",
        env!("CARGO_PKG_VERSION"),
        targets.join(", "),
        specs.join(", "),
    ))
}

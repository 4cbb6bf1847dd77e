//! Kernels of CUDA targets: generated, translated by worker processes, and what of them is missing.

use crate::failure::Failure;
use artifact::DeviceCode;
use codegen::{Cache, Generated, HOW_TO_GET_IT, Machine, Missing, Pool, Tune};
use ir::{KernelModule, Plan};
use std::process::Command;
use targets::Target;

/// The hidden subcommand that makes this program a worker.
pub const WORKER: &str = "nvrtc-worker";

/// Whether an architecture takes CUDA kernels.
pub fn is_cuda(arch: &str) -> bool {
    arch.starts_with("sm_")
}

/// What was made for a device.
#[derive(Default)]
pub struct Made {
    /// Device code, if all of it could be made.
    pub code: Option<DeviceCode>,
    /// Sources of the kernels that could be written, by path inside the artifact, where there is no device code.
    pub sources: Vec<(String, String)>,
    /// What is missing, one line each.
    pub missing: Vec<String>,
}

/// Device code, or as much of it as there is.
pub fn compile(kernels: &KernelModule, plan: &Plan, target: &Target, tune: Tune<'_>) -> Result<Made, Failure> {
    let arch = target.arch.as_str();
    let generated: Generated = codegen::generate_tuned(kernels, plan, Machine::of(target), tune);
    if !generated.missing.is_empty() {
        // It cannot run, so there is nothing to translate for.
        let missing = generated.missing.iter().map(|m| line(m, arch)).collect();
        return Ok(Made { code: None, sources: sources(generated), missing });
    }
    let Some(nvrtc) = codegen::find() else {
        let missing = vec![format!("NVRTC, the CUDA compiler, is not on this machine: {HOW_TO_GET_IT}")];
        return Ok(Made { code: None, sources: sources(generated), missing });
    };
    let fault = |text: String| Failure::input("C0009", text).help(HOW_TO_GET_IT);
    let version = codegen::version(&nvrtc).map_err(fault)?;
    let program = std::env::current_exe().map_err(|e| fault(format!("this program has no path: {e}")))?;
    let pool = Pool {
        command: Box::new(move || {
            let mut command = Command::new(&program);
            command.arg(WORKER);
            command
        }),
        workers: std::thread::available_parallelism().map_or(1, |n| n.get()),
    };
    let compiler = format!("NVRTC {version}");
    let code = codegen::compile(&generated, arch, &compiler, &pool, &Cache::of_user());
    let code = code.map_err(|e| {
        let text = e.to_string();
        let (code, rest) = text.split_once(": ").unwrap_or(("C0009", &text));
        Failure::input(code, rest.to_owned()).help(e.help())
    })?;
    Ok(Made { code: Some(code), ..Made::default() })
}

/// What can be written for a device, translated by nobody, where an artifact cannot run there anyway.
pub fn written(kernels: &KernelModule, plan: &Plan, target: &Target) -> Made {
    let generated: Generated = codegen::generate(kernels, plan, Machine::of(target));
    let missing = generated.missing.iter().map(|m| line(m, &target.arch)).collect();
    Made { code: None, sources: sources(generated), missing }
}

/// Texts of kernels for people, where no machine code goes with them.
fn sources(generated: Generated) -> Vec<(String, String)> {
    generated.sources.into_iter().map(|s| (format!("kernels/{}.cu", s.name), s.text)).collect()
}

fn line(m: &Missing, arch: &str) -> String {
    format!("{} {}: {} ({}, {arch}): {}", m.entry, m.graph, m.region, m.kind.word(), m.fact)
}

/// Runs as a worker until the input ends.
pub fn worker() -> Result<String, Failure> {
    let fault = |text: String| Failure::input("C0009", text).help(HOW_TO_GET_IT);
    let nvrtc = codegen::find().ok_or_else(|| fault("NVRTC is not found".to_owned()))?;
    codegen::serve(&nvrtc, std::io::stdin().lock(), std::io::stdout().lock()).map_err(fault)?;
    Ok(String::new())
}

//! `beamc dump` and `beamc import`: text from a spec, a spec from a config.

use crate::args::{DumpArgs, ImportArgs};
use crate::drafter;
use crate::failure::Failure;
use crate::input;
use crate::kernels;
use crate::outputs;
use passes::{Stage, Stages};
use spec::{Choices, Library, Sources};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// The level of generated CUDA C++.
const CUDA: &str = "cuda";

/// Reads the name of a level of the IR.
pub fn stage(word: &str) -> Result<Stage, Failure> {
    word.parse::<Stage>().map_err(|_| {
        let names = ["model", "graph", "sharded", "kernel", "plan", "cuda"];
        Failure::usage("C0004", format!("there is no level `{word}`")).help(match spec::nearest(word, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("levels are {}", names.join(", ")),
        })
    })
}

/// Runs `beamc dump`.
pub fn dump(args: &DumpArgs) -> Result<String, Failure> {
    // The last level is no IR: text of kernels, made from the two levels before it.
    let stage = if args.stage == CUDA { None } else { Some(stage(&args.stage)?) };
    if stage.is_none() && args.spans {
        let message = "`--spans` adds places to the lines of a level, and `cuda` is the text of kernels, which have them in their heads";
        return Err(Failure::usage("C0004", message).help("leave `--spans` out, or name another level"));
    }
    if stage.is_none() && args.draft.is_some() {
        return Err(Failure::not_in_this_build("the kernels of a drafter on CUDA"));
    }
    let job = input::job(&args.spec, args.exact)?;
    let (stages, drafter) = match &args.draft {
        Some(draft) => {
            let paired = drafter::pair(&job, drafter::read(draft, &job, &[])?)?;
            (paired.target, paired.drafter.into_iter().next_back())
        }
        None => {
            let stages = Stages::compile(job.model.clone(), &job.compile());
            (stages.map_err(|e| input::pass_failure(&e, &job.checked))?, None)
        }
    };
    let text = match stage {
        Some(stage) => {
            let own = drafter.map_or_else(String::new, |d| format!("\n{}", d.text(stage, args.spans)));
            format!("{}{own}", stages.text(stage, args.spans))
        }
        None if kernels::is_cuda(&job.target.arch) => {
            codegen::generate(&stages.kernels, &stages.plan, codegen::Machine::of(&job.target)).text()
        }
        None => {
            let message =
                format!("target `{}` has no CUDA kernels, its kernels are part of the runtime", job.target.name);
            return Err(Failure::usage("C0004", message).help("name a target whose architecture begins with `sm_`"));
        }
    };
    if args.json {
        let json = serde_json::json!({ "stage": args.stage, "mesh": job.mesh, "text": text });
        return Ok(format!("{json:#}\n"));
    }
    Ok(text)
}

/// Files of a checkpoint beside its config, which may be read with it.
fn beside(config: &Path) -> Vec<PathBuf> {
    let dir = config.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.extension().is_some_and(|end| end == "json" || end == "safetensors")).collect()
}

/// Runs `beamc import`.
pub fn import(args: &ImportArgs) -> Result<String, Failure> {
    let config = if args.config.is_dir() { args.config.join("config.json") } else { args.config.clone() };
    let beside = beside(&config);
    let mut read = vec![("CONFIG", args.config.as_path())];
    read.extend(beside.iter().map(|file| ("CONFIG", file.as_path())));
    outputs::apart(&args.output, &read)?;
    let library = Library::embedded();
    let (mut sources, mut diagnostics) = (Sources::default(), Vec::new());
    let Some(imported) = spec::import(&config, &library, &mut sources, &mut diagnostics) else {
        return Err(Failure::findings(&diagnostics, &sources, 0));
    };
    std::fs::write(&args.output, &imported.toml).map_err(|e| {
        Failure::output("C0003", format!("`{}` cannot be written: {e}", args.output.display()))
            .help("name a file in a folder that exists and may be written to")
    })?;
    // What was written stays, to be mended by hand; what is wrong with it is told at the config's keys.
    let checked = spec::check_path(&config, &library, &Choices::default());
    if spec::has_errors(&checked.diagnostics) {
        eprintln!("{}: written, and refused by `beamc check`:", args.output.display());
        return Err(Failure::findings(&checked.diagnostics, &checked.sources, checked.hidden));
    }
    eprint!("{}", spec::render(&checked.diagnostics, &checked.sources, std::io::stderr().is_terminal()));
    if args.json {
        let json = serde_json::json!({ "ok": true, "spec": args.output.display().to_string(), "base": imported.base });
        return Ok(format!("{json:#}\n"));
    }
    Ok(format!("{}: extends {}\n", args.output.display(), imported.base))
}

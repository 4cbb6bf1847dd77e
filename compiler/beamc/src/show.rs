//! `beamc dump` and `beamc import`: text from a spec, a spec from a config.

use crate::args::{DumpArgs, ImportArgs};
use crate::failure::Failure;
use crate::input;
use passes::{Stage, Stages};
use spec::{Choices, Library, Sources};

/// Reads the name of a level.
pub fn stage(word: &str) -> Result<Stage, Failure> {
    match word {
        "cuda" => Err(Failure::not_in_this_build("the level `cuda`")),
        other => other.parse::<Stage>().map_err(|_| {
            let names = ["model", "graph", "sharded", "kernel", "plan", "cuda"];
            Failure::input("C0004", format!("there is no level `{other}`")).help(match spec::nearest(other, names) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("levels are {}", names.join(", ")),
            })
        }),
    }
}

/// Runs `beamc dump`.
pub fn dump(args: &DumpArgs) -> Result<String, Failure> {
    let stage = stage(&args.stage)?;
    let job = input::job(&args.spec, args.exact)?;
    let stages = Stages::compile(job.model.clone(), &job.compile());
    let text = stages.map_err(|e| input::pass_failure(&e, &job.checked))?.text(stage, args.spans);
    if args.json {
        let json = serde_json::json!({ "stage": args.stage, "mesh": job.mesh, "text": text });
        return Ok(format!("{json:#}\n"));
    }
    Ok(text)
}

/// Runs `beamc import`.
pub fn import(args: &ImportArgs) -> Result<String, Failure> {
    let config = if args.config.is_dir() { args.config.join("config.json") } else { args.config.clone() };
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
    if args.json {
        let json = serde_json::json!({ "ok": true, "spec": args.output.display().to_string(), "base": imported.base });
        return Ok(format!("{json:#}\n"));
    }
    Ok(format!("{}: extends {}\n", args.output.display(), imported.base))
}

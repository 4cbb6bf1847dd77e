//! `beamc compile`: the artifact.

use crate::args::CompileArgs;
use crate::artifact_report;
use crate::failure::{Failure, OUTPUT};
use crate::input;
use crate::verify;
use artifact::{Artifact, Manifest, Provenance};
use passes::{Compile, Stage, Stages};
use serde_json::Value;
use std::collections::BTreeMap;
use targets::Target;

/// Runs the command.
pub fn compile(args: &CompileArgs) -> Result<String, Failure> {
    for (given, what) in
        [(args.draft.is_some(), "--draft"), (args.tunable, "--tunable"), (args.tuning.is_some(), "--tuning")]
    {
        if given {
            return Err(Failure::not_in_this_build(what));
        }
    }
    let (mut model, target, checked) = input::model_for(&args.spec, args.json)?;
    if args.check {
        verify::check(&args.spec, &model, &target, &checked, args.json)?;
    }
    portable_file_names(&mut model.facts.files);
    let stages = Stages::compile(model, &Compile::one_device(&target)).map_err(|e| input::pass_failure(&e, &checked))?;
    // No pass of this build relaxes anything, so `--exact` holds by itself; the manifest says the same.
    let provenance = Provenance {
        compiler: env!("CARGO_PKG_VERSION").to_owned(),
        target: manifest_target(&target),
        relaxations: Vec::new(),
        missing: Vec::new(),
    };
    let recipes = artifact::recipes(&stages.kernels.facts);
    let texts = vec![
        (artifact::IR_MODEL.to_owned(), stages.text(Stage::Model, true)),
        (artifact::IR_GRAPH.to_owned(), stages.text(Stage::Graph, true)),
        (artifact::IR_KERNEL.to_owned(), stages.text(Stage::Kernel, true)),
        (artifact::IR_PLAN.to_owned(), stages.text(Stage::Plan, true)),
    ];
    let report = artifact_report::build(&stages, &target, &recipes);
    let artifact = Artifact {
        manifest: Manifest::new(&stages.kernels, provenance),
        kernels: stages.kernels,
        plan: stages.plan,
        recipes,
        report,
    };
    let manifest = artifact.write(&args.output, &texts).map_err(|e| Failure {
        exit: OUTPUT,
        text: format!("error{}\n", input::bracketed(&e)),
        json: None,
    })?;
    if args.json {
        let json = serde_json::json!({
            "ok": true,
            "artifact": args.output.display().to_string(),
            "manifest": manifest,
            "report": artifact.report,
        });
        return Ok(format!("{json:#}\n"));
    }
    let bytes: u64 = manifest.files.values().map(|f| f.bytes).sum();
    Ok(format!(
        "{}: {} for {}, {} files, {bytes} bytes\n",
        args.output.display(),
        manifest.model,
        target.name,
        manifest.files.len() + 1
    ))
}

/// Spans keep the last part of a path only, so that an artifact does not depend on where the spec lies.
fn portable_file_names(files: &mut [String]) {
    for file in files {
        if let Some(name) = file.rsplit('/').next() {
            *file = name.to_owned();
        }
    }
}

fn manifest_target(target: &Target) -> artifact::Target {
    let mut facts: BTreeMap<String, Value> = BTreeMap::new();
    facts.insert("page_tokens".to_owned(), target.kv.page_tokens.into());
    if let Some(act) = target.act {
        facts.insert("act".to_owned(), act.word().into());
    }
    artifact::Target { name: target.name.clone(), arch: target.arch.clone(), facts }
}

//! `beamc compile`: the artifact.

use crate::args::CompileArgs;
use crate::artifact_report;
use crate::failure::{Failure, OUTPUT};
use crate::{drafter, input, kernels, missing, verify};
use artifact::{Artifact, Manifest, Provenance};
use passes::{Stage, Stages};
use serde_json::Value;
use std::collections::BTreeMap;
use targets::Target;

/// Runs the command.
pub fn compile(args: &CompileArgs) -> Result<String, Failure> {
    for (given, what) in [(args.tunable, "--tunable"), (args.tuning.is_some(), "--tuning")] {
        if given {
            return Err(Failure::not_in_this_build(what));
        }
    }
    let mut job = input::job(&args.spec, args.exact)?;
    if drafter::is_drafter(&job.model) {
        return Err(Failure::not_in_this_build("an artifact of a drafter alone"));
    }
    if let Some(draft) = &args.draft {
        let model = drafter::read(draft, &job)?;
        passes::lower(&model).map_err(|e| input::pass_failure(&e, &job.checked))?;
        return Err(Failure::not_in_this_build(
            "an artifact of a model with its drafter (they fit each other; `--draft`)",
        ));
    }
    if args.check {
        verify::check(&args.spec, &job)?;
    }
    portable_file_names(&mut job.model.facts.files);
    let stages = Stages::compile(job.model.clone(), &job.compile());
    let mut stages = stages.map_err(|e| input::pass_failure(&e, &job.checked))?;
    let notes = std::mem::take(&mut stages.notes);
    let (artifact, texts) = build(stages, &job.target)?;
    let manifest = artifact.write(&args.output, &texts).map_err(|e| Failure::artifact(OUTPUT, &e))?;
    if args.json {
        let json = serde_json::json!({
            "ok": true,
            "artifact": args.output.display().to_string(),
            "manifest": manifest,
            "notes": input::notes_json(&notes),
            "report": artifact.report,
        });
        return Ok(format!("{json:#}\n"));
    }
    let bytes: u64 = manifest.files.values().map(|f| f.bytes).sum();
    let on = if manifest.mesh.is_single() { String::new() } else { format!(" on {}", manifest.mesh) };
    let mut out = format!(
        "{}: {} for {}{on}, {} files, {bytes} bytes\n",
        args.output.display(),
        manifest.model,
        job.target.name,
        manifest.files.len() + 1
    );
    if !manifest.complete {
        let (count, arch) = (manifest.missing.len(), &manifest.target.arch);
        out += &format!(
            "it is for reading only: {count} kernels for {arch} are not in this build; `beamc report` lists them\n"
        );
    }
    Ok(out + &input::notes(&notes))
}

/// The artifact with its readable texts.
fn build(stages: Stages, target: &Target) -> Result<(Artifact, Vec<(String, String)>), Failure> {
    let made = if kernels::is_cuda(&target.arch) {
        kernels::compile(&stages.kernels, &stages.plan, target)?
    } else {
        let missing = missing::kernels(&stages.kernels, &target.arch);
        kernels::Made { missing, ..kernels::Made::default() }
    };
    let provenance = Provenance {
        compiler: env!("CARGO_PKG_VERSION").to_owned(),
        target: manifest_target(target),
        missing: made.missing,
    };
    let recipes = artifact::recipes(&stages.kernels.facts);
    let placed = artifact::weight_memory(&stages.kernels, &recipes);
    let memory = placed.and_then(|memory| memory.check(&recipes).map(|()| memory)).map_err(|fact| {
        Failure::defect("C0008", fact).help("this is a defect of the compiler: report it together with the spec")
    })?;
    let mut texts = vec![
        (artifact::IR_MODEL.to_owned(), stages.text(Stage::Model, true)),
        (artifact::IR_GRAPH.to_owned(), stages.text(Stage::Graph, true)),
        (artifact::IR_KERNEL.to_owned(), stages.text(Stage::Kernel, true)),
        (artifact::IR_PLAN.to_owned(), stages.text(Stage::Plan, true)),
    ];
    texts.extend(made.sources);
    if stages.kernels.sharding.is_some() {
        texts.push((artifact::IR_SHARDED.to_owned(), stages.text(Stage::Sharded, true)));
    }
    let manifest = Manifest::new(&stages.kernels, provenance);
    let report = artifact_report::build(&stages, target, &recipes, &memory);
    Ok((
        Artifact { manifest, kernels: stages.kernels, plan: stages.plan, recipes, memory, device: made.code, report },
        texts,
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

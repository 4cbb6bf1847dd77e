//! `beamc compile`: the artifact.

use crate::args::{CompileArgs, SpecArgs};
use crate::artifact_report;
use crate::failure::{Failure, OUTPUT};
use crate::kernels::{self, Made};
use crate::outputs::{self, Read};
use crate::{draft_report, drafter, input, missing, verify};
use artifact::{Artifact, Manifest, Provenance, Tuning};
use codegen::Tune;
use passes::{Note, Paired, Stage, Stages};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use targets::Target;

/// Readable texts by their paths inside the artifact.
type Texts = Vec<(String, String)>;

/// Runs the command.
pub fn compile(args: &CompileArgs) -> Result<String, Failure> {
    outputs::apart(&args.output, &read(args))?;
    let mut job = input::job(&args.spec, args.exact)?;
    let tuning = tuning(args, &job.target)?;
    let tune = Tune { tuning: tuning.as_ref(), packs: args.tunable };
    if drafter::is_drafter(&job.model) {
        return Err(Failure::not_in_this_build("an artifact of a drafter alone"));
    }
    input::given(&job.checked)?;
    let draft = args.draft.as_ref().map(|path| drafter::read(path, &job, &args.draft_tokens)).transpose()?;
    if args.check {
        verify::check(&args.spec, &job)?;
        if let Some(path) = &args.draft {
            let spec = SpecArgs { spec: path.clone(), option: Vec::new(), ..args.spec.clone() };
            for own in drafter::jobs(path, &job, &args.draft_tokens)? {
                verify::check(&spec, &own)?;
            }
        }
    }
    portable_file_names(&mut job.model.facts.files);
    let (artifact, texts, notes) = match draft {
        Some(mut draft) => {
            draft.models.iter_mut().for_each(|m| portable_file_names(&mut m.facts.files));
            build_pair(drafter::pair(&job, draft)?)?
        }
        None => {
            let stages = Stages::compile(job.model.clone(), &job.compile());
            let mut stages = stages.map_err(|e| input::pass_failure(&e, &job.checked))?;
            let notes = std::mem::take(&mut stages.notes);
            let made = made(&stages, &job.target, tune)?;
            let (artifact, texts) = build(stages, &job.target, made)?;
            (artifact, texts, notes)
        }
    };
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

/// What is read.
fn read(args: &CompileArgs) -> Vec<Read<'_>> {
    let mut read = vec![("SPEC", args.spec.spec.as_path())];
    let target = Some(&args.spec.target).filter(|target| target.ends_with(".toml"));
    read.extend(target.map(|file| ("--target", Path::new(file))));
    read.extend(args.draft.iter().map(|path| ("--draft", path.as_path())));
    read.extend(args.tuning.iter().map(|file| ("--tuning", file.as_path())));
    read
}

/// The measurements that are given, if they are of the target's architecture.
fn tuning(args: &CompileArgs, target: &Target) -> Result<Option<Tuning>, Failure> {
    if (args.tunable || args.tuning.is_some()) && !kernels::is_cuda(&target.arch) {
        let flag = if args.tunable { "--tunable" } else { "--tuning" };
        let message =
            format!("`{flag}` is about kernels of CUDA devices, `{}` is compiled for {}", target.name, target.arch);
        return Err(Failure::usage("C0012", message)
            .help("leave it out, or name a target whose architecture begins with `sm_`"));
    }
    let read = |path: &PathBuf| {
        Tuning::read(path, &target.arch).map_err(|fact| {
            let help = "write it with `beam-run tune` on a device of the target's architecture";
            Failure::input("C0013", format!("`--tuning {}`: {fact}", path.display())).help(help)
        })
    };
    args.tuning.as_ref().map(read).transpose()
}

/// Kernels of a model alone.
fn made(stages: &Stages, target: &Target, tune: Tune<'_>) -> Result<Made, Failure> {
    if kernels::is_cuda(&target.arch) {
        return kernels::compile(&stages.kernels, &stages.plan, target, tune);
    }
    let missing = missing::kernels(&stages.kernels, &target.arch);
    Ok(Made { missing, ..Made::default() })
}

/// The artifact of a model and its drafter, with readable texts and notes.
fn build_pair(paired: Paired) -> Result<(Artifact, Texts, Vec<Note>), Failure> {
    let Paired { mut target, mut drafter, mut notes, machine } = paired;
    notes.append(&mut target.notes);
    drafter.last_mut().into_iter().for_each(|d| notes.append(&mut d.notes));
    let longest = drafter.last().cloned();
    let (part, own) = drafter::part(drafter, &target.kernels)?;
    let made = match &longest {
        Some(longest) => drafter::missing(&target, longest, &machine),
        None => Made::default(),
    };
    let report = longest.map(|longest| draft_report::build(&target, &longest, &part, &notes, &machine));
    let (mut artifact, mut texts) = build(target, &machine, made)?;
    artifact.report["drafter"] = report.unwrap_or_default();
    artifact.drafter = Some(part);
    texts.extend(own);
    Ok((artifact, texts, notes))
}

/// The artifact with its readable texts.
fn build(stages: Stages, target: &Target, made: Made) -> Result<(Artifact, Texts), Failure> {
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
    let (kernels, plan) = (stages.kernels, stages.plan);
    Ok((Artifact { manifest, kernels, plan, recipes, memory, device: made.code, drafter: None, report }, texts))
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

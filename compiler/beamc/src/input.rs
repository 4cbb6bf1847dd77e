//! From the command line to a model: target, mesh, choices, spec, diagnostics.

use crate::args::SpecArgs;
use crate::failure::{DEFECT, Failure};
use crate::unmet;
use indexmap::IndexMap;
use ir::{Facts, Mesh, Model, StoredFormat};
use passes::{Compile, Note};
use spec::{Checked, Choices, Diagnostic, Label, Library, Severity};
use std::io::IsTerminal;
use std::path::Path;
use targets::{BF16_TO_FP8, Target};

/// A spec that was read for a target and a mesh.
pub struct Job {
    /// The model.
    pub model: Model,
    /// Diagnostics and the places that spans point to.
    pub checked: Checked,
    /// The target.
    pub target: Target,
    /// The mesh asked for, or the target's choice.
    pub mesh: Mesh,
    /// Whether relaxations are forbidden.
    pub exact: bool,
    /// Weights whose inputs have scales of their own.
    pub unpack: Vec<String>,
    /// Of a drafter, what it drafts.
    pub drafts_for: Option<DraftsFor>,
}

/// What a drafter is compiled with.
pub struct DraftsFor {
    /// The model that checks what is drafted.
    pub target: Box<Model>,
    /// Rows of a block.
    pub tokens: u64,
}

impl Job {
    /// What target-dependent passes may ask.
    pub fn compile(&self) -> Compile<'_> {
        Compile { target: &self.target, mesh: &self.mesh, exact: self.exact, unpack: &self.unpack }
    }
}

/// Loads a target by name or path.
pub fn target(name: &str) -> Result<Target, Failure> {
    let target = Target::load(name).map_err(|e| Failure::target(&e))?;
    if [&target.name, &target.description].into_iter().all(|text| spec::is_plain(text)) {
        return Ok(target);
    }
    let message = format!("{name}: name and description of a target are one line of visible characters each");
    Err(Failure::input("T0105", message).help("write them without line breaks and control characters"))
}

/// What a target decides about a spec on a mesh; `options` of the command line, `name=alternative`, come first. `exact` takes a
/// checkpoint as it is and makes no codes of it.
pub fn choices(target: &Target, mesh: &Mesh, options: &[String], exact: bool) -> Choices {
    let mut wanted = target.options_on(mesh);
    for (name, alternative) in options.iter().filter_map(|o| o.split_once('=')) {
        wanted.insert(name.trim().to_owned(), vec![alternative.trim().to_owned()]);
    }
    Choices {
        act: target.act,
        options: wanted.into_iter().collect(),
        assume: target.formats.assume,
        convert: !exact && target.formats.assume == Some(StoredFormat::Fp8) && target.formats.converts(BF16_TO_FP8),
        ..Choices::default()
    }
}

/// Reads a spec; warnings go to the error stream, errors become the failure.
pub fn model(path: &Path, choices: &Choices) -> Result<(Model, Checked), Failure> {
    let mut checked = spec::check_path(path, &Library::embedded(), choices);
    let rendered = spec::render(&checked.diagnostics, &checked.sources, std::io::stderr().is_terminal());
    match checked.model.take() {
        Some(model) if !spec::has_errors(&checked.diagnostics) => {
            eprint!("{rendered}");
            Ok((model, checked))
        }
        _ => Err(Failure::findings(&checked.diagnostics, &checked.sources, checked.hidden)),
    }
}

/// Refuses to compile what still lacks a value that a checkpoint must give.
pub fn given(checked: &Checked) -> Result<(), Failure> {
    if checked.missing.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = checked.missing.iter().map(|name| format!("`{name}`")).collect();
    Err(Failure::input("B0307", format!("nothing gives {} yet, and no number stands for it", names.join(", ")))
        .help("name the directory of the checkpoint, or a spec that extends this one and gives the number"))
}

/// Reads a spec for its target and mesh.
pub fn job(args: &SpecArgs, exact: bool) -> Result<Job, Failure> {
    let mut target = target(&args.target)?;
    for name in &args.relax {
        target.allow(name).map_err(|e| Failure::target(&e).of_usage())?;
    }
    let mesh = match &args.mesh {
        Some(text) => mesh(text)?,
        None => own_mesh(&args.spec, &target, &args.option, exact),
    };
    let mut job = job_on(&args.spec, &target, mesh, &args.option, exact)?;
    job.unpack = unpacked(&job.model.facts, &args.unpack)?;
    let unmet = unmet::findings(&target, &job.model, &job.checked.offered);
    eprint!("{}", spec::render(&unmet, &job.checked.sources, std::io::stderr().is_terminal()));
    Ok(job)
}

/// Reads a spec for a target and this mesh.
pub fn job_on(spec: &Path, target: &Target, mesh: Mesh, options: &[String], exact: bool) -> Result<Job, Failure> {
    let (model, checked) = model(spec, &choices(target, &mesh, options, exact))?;
    offered(&checked.offered, options)?;
    Ok(Job { model, checked, target: target.clone(), mesh, exact, unpack: Vec::new(), drafts_for: None })
}

/// Weights that `--unpack` names, which the model must have.
fn unpacked(facts: &Facts, names: &[String]) -> Result<Vec<String>, Failure> {
    for name in names {
        if !facts.weights.iter().any(|w| w.name == *name) {
            let known: Vec<&str> = facts.weights.iter().map(|w| w.name.as_str()).collect();
            let failure =
                Failure::usage("C0010", format!("`--unpack` names `{name}`, which is no weight of the model"));
            return Err(failure.help(match spec::nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its weights are {}", known.join(", ")),
            }));
        }
    }
    Ok(names.to_vec())
}

/// Reads `tp=4,ep=1`.
pub fn mesh(text: &str) -> Result<Mesh, Failure> {
    Mesh::parse(text).map_err(|e| Failure::usage("C0002", e.0).help("write for example --mesh tp=4,ep=2"))
}

/// The mesh that the target has for the model. A spec with errors gets one device; reading it again says what they are.
fn own_mesh(spec: &Path, target: &Target, options: &[String], exact: bool) -> Mesh {
    if target.meshes.len() < 2 {
        return target.meshes.first().cloned().unwrap_or_default();
    }
    let probe = spec::check_path(spec, &Library::embedded(), &choices(target, &Mesh::single(), options, exact));
    probe.model.map_or_else(Mesh::single, |model| target.default_mesh(&model.facts))
}

/// Refuses options of the command line that the spec does not have, or has otherwise.
fn offered(offered: &IndexMap<String, Vec<String>>, options: &[String]) -> Result<(), Failure> {
    let refuse = |message: String, help: String| Err(Failure::usage("C0006", message).help(help));
    let mut chosen: IndexMap<&str, &str> = IndexMap::new();
    for option in options {
        let Some((name, word)) = option.split_once('=').map(|(name, word)| (name.trim(), word.trim())) else {
            return refuse(
                format!("`{option}` chooses nothing"),
                "write for example --option combine=library".to_owned(),
            );
        };
        let Some(words) = offered.get(name) else {
            let help = match spec::nearest(name, offered.keys().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if offered.is_empty() => "leave `--option` away: the spec has none".to_owned(),
                None => format!("its options are {}", offered.keys().cloned().collect::<Vec<_>>().join(", ")),
            };
            return refuse(format!("the spec has no option `{name}`"), help);
        };
        if !words.iter().any(|w| w == word) {
            let help = match spec::nearest(word, words.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its alternatives are {}", words.join(", ")),
            };
            return refuse(format!("the spec does not offer `{word}` for its option `{name}`"), help);
        }
        if let Some(first) = chosen.insert(name, word).filter(|first| *first != word) {
            let message = format!("`--option` chooses both `{first}` and `{word}` for `{name}`");
            return refuse(message, "keep one of them".to_owned());
        }
    }
    Ok(())
}

/// What passes left undone, a line each; the result is right without it.
pub fn notes(notes: &[Note]) -> String {
    notes.iter().map(|n| format!("note: {} left `{}` as it was: {}\n", n.pass, n.entry, n.message)).collect()
}

/// The same for programs.
pub fn notes_json(notes: &[Note]) -> serde_json::Value {
    let list = notes.iter().map(|n| serde_json::json!({ "pass": n.pass, "entry": n.entry, "message": n.message }));
    list.collect()
}

/// An error of a pass, at its place in the spec if it has one.
pub fn pass_failure(error: &passes::PassError, checked: &Checked) -> Failure {
    let primary = error.span.map(|span| Label { span, text: "this is meant".to_owned() });
    let finding = Diagnostic {
        severity: Severity::Error,
        code: error.code,
        message: error.message.clone(),
        primary,
        notes: Vec::new(),
        help: Some(error.help.clone()),
        fix: None,
    };
    let mut failure = Failure::findings(&[finding], &checked.sources, 0);
    if error.is_defect() {
        failure.exit = DEFECT;
    }
    failure
}

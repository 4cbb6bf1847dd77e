//! From the command line to a model: target, mesh, choices, spec, diagnostics.

use crate::args::SpecArgs;
use crate::failure::{DEFECT, Failure, INPUT};
use ir::{Mesh, Model};
use passes::{Compile, Note};
use spec::{Checked, Choices, Diagnostic, Label, Library, Severity};
use std::io::IsTerminal;
use std::path::Path;
use targets::Target;

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
}

impl Job {
    /// What target-dependent passes may ask.
    pub fn compile(&self) -> Compile<'_> {
        Compile { target: &self.target, mesh: &self.mesh, exact: self.exact }
    }
}

/// Loads a target by name or path.
pub fn target(name: &str) -> Result<Target, Failure> {
    Target::load(name).map_err(|e| Failure::input(e.code, format!("{}: {}", e.place, e.message)).help(e.help))
}

/// Errors of the libraries begin with their code; `error[CODE]: text` is the form of all of them.
pub fn bracketed(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    match text.split_once(": ") {
        Some((code, rest)) if code.len() == 5 && code.chars().skip(1).all(|c| c.is_ascii_digit()) => {
            format!("[{code}]: {rest}")
        }
        _ => format!(": {text}"),
    }
}

/// What a target decides about a spec on a mesh; `options` of the command line, `name=alternative`, come first.
pub fn choices(target: &Target, mesh: &Mesh, options: &[String]) -> Choices {
    let mut wanted = target.options_on(mesh);
    for (name, alternative) in options.iter().filter_map(|o| o.split_once('=')) {
        wanted.insert(name.trim().to_owned(), vec![alternative.trim().to_owned()]);
    }
    Choices { act: target.act, options: wanted.into_iter().collect(), ..Choices::default() }
}

/// Reads a spec; warnings go to the error stream, errors become the failure.
pub fn model(path: &Path, choices: &Choices, json: bool) -> Result<(Model, Checked), Failure> {
    let mut checked = spec::check_path(path, &Library::embedded(), choices);
    let rendered = spec::render(&checked.diagnostics, &checked.sources, std::io::stderr().is_terminal());
    match checked.model.take() {
        Some(model) if !spec::has_errors(&checked.diagnostics) => {
            eprint!("{rendered}");
            Ok((model, checked))
        }
        _ => {
            let listed = spec::render_json(&checked.diagnostics, &checked.sources);
            let hidden = checked.hidden;
            let json = json.then(|| serde_json::json!({ "ok": false, "diagnostics": listed, "hidden": hidden }));
            let more = if hidden > 0 { format!("{hidden} more findings are not shown\n") } else { String::new() };
            Err(Failure { exit: INPUT, text: format!("{}\n{more}", rendered.trim_end()), json })
        }
    }
}

/// Reads a spec for its target and mesh.
pub fn job(args: &SpecArgs, exact: bool, json: bool) -> Result<Job, Failure> {
    let mut target = target(&args.target)?;
    for name in &args.relax {
        let refused =
            |e: targets::TargetError| Failure::input(e.code, format!("{}: {}", e.place, e.message)).help(e.help);
        target.allow(name).map_err(refused)?;
    }
    let mesh = match &args.mesh {
        Some(text) => mesh(text)?,
        None => own_mesh(&args.spec, &target, &args.option),
    };
    job_on(&args.spec, &target, mesh, &args.option, exact, json)
}

/// Reads a spec for a target and this mesh.
pub fn job_on(
    spec: &Path,
    target: &Target,
    mesh: Mesh,
    options: &[String],
    exact: bool,
    json: bool,
) -> Result<Job, Failure> {
    let (model, checked) = model(spec, &choices(target, &mesh, options), json)?;
    offered(&model, options)?;
    Ok(Job { model, checked, target: target.clone(), mesh, exact })
}

/// Reads `tp=4,ep=1`.
pub fn mesh(text: &str) -> Result<Mesh, Failure> {
    Mesh::parse(text).map_err(|e| Failure::input("C0002", e).help("write for example --mesh tp=4,ep=2"))
}

/// The mesh that the target has for the model. A spec with errors gets one device; reading it again says what they are.
fn own_mesh(spec: &Path, target: &Target, options: &[String]) -> Mesh {
    if target.meshes.len() < 2 {
        return target.meshes.first().cloned().unwrap_or_default();
    }
    let probe = spec::check_path(spec, &Library::embedded(), &choices(target, &Mesh::single(), options));
    probe.model.map_or_else(Mesh::single, |model| target.default_mesh(&model.facts))
}

/// Refuses options of the command line that the spec does not have.
fn offered(model: &Model, options: &[String]) -> Result<(), Failure> {
    for option in options {
        let chosen = &model.facts.options;
        let Some((name, alternative)) = option.split_once('=') else {
            return Err(Failure::input("C0006", format!("`{option}` chooses nothing"))
                .help("write for example --option combine=library"));
        };
        match chosen.get(name.trim()) {
            Some(found) if found == alternative.trim() => {}
            Some(_) => {
                let message = format!("the spec does not offer `{alternative}` for its option `{name}`");
                return Err(Failure::input("C0006", message).help("`[options]` of the spec lists the alternatives"));
            }
            None => {
                let known: Vec<&str> = chosen.keys().map(String::as_str).collect();
                let failure = Failure::input("C0006", format!("the spec has no option `{name}`"));
                return Err(match spec::nearest(name, known.iter().copied()) {
                    Some(near) => failure.help(format!("did you mean `{near}`?")),
                    None if known.is_empty() => failure.help("leave `--option` away: the spec has none"),
                    None => failure.help(format!("its options are {}", known.join(", "))),
                });
            }
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
    let failure = Failure::finding(finding, &checked.sources, true);
    if error.is_defect() { Failure { exit: DEFECT, ..failure } } else { failure }
}

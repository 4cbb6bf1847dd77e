//! From the command line to a model: target, choices, spec, diagnostics.

use crate::args::SpecArgs;
use crate::failure::{Failure, INPUT};
use ir::Model;
use spec::{Checked, Choices, Diagnostic, Label, Library, Severity};
use std::io::IsTerminal;
use std::path::Path;
use targets::Target;

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

/// What a target decides about a spec.
pub fn choices(target: &Target) -> Choices {
    let options = target.options.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    Choices { act: target.act, options, ..Choices::default() }
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

/// Reads a spec for its target, refusing meshes that this build cannot compile for.
pub fn model_for(args: &SpecArgs, json: bool) -> Result<(Model, Target, Checked), Failure> {
    mesh(args.mesh.as_deref())?;
    let target = target(&args.target)?;
    let (model, checked) = model(&args.spec, &choices(&target), json)?;
    Ok((model, target, checked))
}

/// One device only: every axis of the mesh has size 1.
fn mesh(text: Option<&str>) -> Result<(), Failure> {
    for part in text.into_iter().flat_map(|t| t.split(',')) {
        let size = part.split_once('=').and_then(|(_, n)| n.trim().parse::<u64>().ok());
        match size {
            Some(1) => {}
            Some(n) if n > 1 => {
                return Err(Failure::not_in_this_build(&format!("a mesh of several devices (`{part}`)")));
            }
            _ => {
                return Err(Failure::input("C0002", format!("`{part}` is no mesh axis with its size"))
                    .help("write for example --mesh tp=1,ep=1"));
            }
        }
    }
    Ok(())
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
    Failure::finding(finding, &checked.sources, true)
}

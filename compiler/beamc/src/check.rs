//! `beamc check`: diagnostics, parameter count, layer classes.

use crate::args::CheckArgs;
use crate::failure::Failure;
use crate::{input, stored, unmet};
use indexmap::IndexMap;
use ir::Module;
use passes::{Compile, PassError};
use spec::Choices;
use std::io::IsTerminal;
use targets::Target;

/// The target that takes every stored format.
const WIDENS: &str = "cpu";

/// Runs the command.
pub fn check(args: &CheckArgs) -> Result<String, Failure> {
    let target = args.target.as_deref().map(input::target).transpose()?;
    let choices = target.as_ref().map_or_else(Choices::default, |t| input::choices(t, &ir::Mesh::single(), &[], false));
    let (model, mut checked) = input::model(&args.spec, &choices)?;
    if let Some(target) = &target {
        let unmet = unmet::findings(target, &model, &checked.offered);
        eprint!("{}", spec::render(&unmet, &checked.sources, std::io::stderr().is_terminal()));
        checked.diagnostics.extend(unmet);
    }
    let lowered = passes::lower(&model).map_err(|e| input::pass_failure(&e, &checked))?;
    let module = quantised(&lowered.module, target.as_ref()).map_err(|e| input::pass_failure(&e, &checked))?;
    let parameters = model.facts.parameters();
    let mut classes: IndexMap<String, usize> = IndexMap::new();
    // Every entry that runs the layers has the same classes.
    if let Some(entry) = module.entries.iter().find(|e| !e.instances.is_empty()) {
        for instance in &entry.instances {
            *classes.entry(entry.classes[instance.class].name.clone()).or_default() += 1;
        }
    }
    if args.json {
        let json = serde_json::json!({
            "ok": true,
            "model": model.facts.name,
            "parameters": parameters,
            "act": model.facts.act.word(),
            "layers": model.facts.layers(),
            "classes": classes,
            "options": model.facts.options,
            "stored": model.facts.stored.as_ref().map(|s| stored::line(&model.facts, s)),
            "weight_bytes": stored::bytes(&module.facts),
            "notes": input::notes_json(&lowered.notes),
            "diagnostics": spec::render_json(&checked.diagnostics, &checked.sources),
        });
        return Ok(format!("{json:#}\n"));
    }
    let listed: Vec<String> = classes.iter().map(|(name, n)| format!("{name} × {n}")).collect();
    let options: Vec<String> = model.facts.options.iter().map(|(k, v)| format!("{k} = {v}")).collect();
    Ok(format!(
        "{}: {} parameters in {} layers\nlayer classes: {}\nact = {}; options: {}\n{}{}\n{}",
        model.facts.name,
        grouped(parameters),
        model.facts.layers(),
        listed.join(", "),
        model.facts.act,
        if options.is_empty() { "none".to_owned() } else { options.join(", ") },
        model.facts.stored.as_ref().map_or_else(String::new, |s| stored::line(&model.facts, s) + "\n"),
        stored::bytes_line(&module.facts),
        input::notes(&lowered.notes),
    ))
}

/// The module as the checkpoint keeps it. Without a target as one that widens whatever is stored.
fn quantised(module: &Module, target: Option<&Target>) -> Result<Module, PassError> {
    match (target, Target::load(WIDENS)) {
        (Some(target), _) => passes::quantise::run(module, &Compile::one_device(target)),
        (None, Ok(target)) => passes::quantise::run(module, &Compile::one_device(&target)),
        (None, Err(_)) => Ok(module.clone()),
    }
}

/// A number with commas between thousands.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_grouped() {
        assert_eq!(super::grouped(501_267_612_352), "501,267,612,352");
        assert_eq!(super::grouped(7), "7");
    }
}

//! What a target names and a spec does not have. A target serves many specs, so an option, an alternative or an entry
//! that this one lacks is legal; told is what looks misspelt, and what leaves a choice of the target without effect.

use indexmap::IndexMap;
use ir::Model;
use spec::{Diagnostic, Severity};
use std::collections::HashSet;
use targets::Target;

/// Warnings about a target's options and buckets, as findings without a place.
pub fn findings(target: &Target, model: &Model, offered: &IndexMap<String, Vec<String>>) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for rule in &target.options {
        let name = rule.option.as_str();
        let Some(words) = offered.get(name) else {
            // An option of another spec, unless it is all but one of this spec.
            if let Some(near) = spec::nearest(name, offered.keys().map(String::as_str)) {
                let message =
                    format!("the target `{}` chooses for `{name}`, and the spec has no such option", target.name);
                found.push(warning(message, format!("did you mean `{near}`?")));
            }
            continue;
        };
        let known = || words.iter().map(String::as_str);
        let unknown = rule.prefer.iter().filter(|word| !words.contains(*word));
        let near = unknown.clone().find_map(|word| Some((word, spec::nearest(word, known())?)));
        if let Some((word, near)) = near {
            let message =
                format!("the target `{}` prefers `{word}` for `{name}`, which the spec does not offer", target.name);
            found.push(warning(message, format!("did you mean `{near}`?")));
        } else if words.len() > 1 && !rule.prefer.is_empty() && unknown.count() == rule.prefer.len() {
            // A spec with one alternative leaves nothing to choose.
            let wanted = rule.prefer.join(", ");
            let message = format!(
                "the target `{}` prefers {wanted} for `{name}`, and the spec offers {}",
                target.name,
                words.join(", ")
            );
            let default = words.first().map_or("", String::as_str);
            found.push(warning(
                message,
                format!("the spec's default `{default}` is taken; name one of its alternatives"),
            ));
        }
    }
    for entry in target.buckets.iter().filter_map(|bucket| bucket.entry.as_deref()) {
        if model.entries.iter().any(|have| have.name == entry) {
            continue;
        }
        let message =
            format!("the target `{}` has a bucket for `{entry}`, and the spec has no such entry", target.name);
        let have: Vec<&str> = model.entries.iter().map(|e| e.name.as_str()).collect();
        found.push(warning(
            message,
            match spec::nearest(entry, have.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("no plan is made for it; the entries are {}", have.join(", ")),
            },
        ));
    }
    let mut told = HashSet::new();
    found.retain(|d| told.insert(d.message.clone()));
    found
}

fn warning(message: String, help: String) -> Diagnostic {
    Diagnostic {
        severity: Severity::Warning,
        code: "T0106",
        message,
        primary: None,
        notes: Vec::new(),
        help: Some(help),
        fix: None,
    }
}

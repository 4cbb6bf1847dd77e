//! Which matrices a scheme leaves plain, layer by layer, by the names of their modules.

use super::{KEY, Scheme};
use crate::Diagnostic;
use ir::{DiskForm, Extent, Facts, Scope, StoredPlain, Weight};

/// Most entries that are told one by one.
const MOST_TOLD: usize = 5;

/// The plain matrices, in the order of the spec; nothing if the scheme does not fit it, which is told.
pub(crate) fn plain(scheme: &mut Scheme, facts: &Facts, out: &mut Vec<Diagnostic>) -> Option<Vec<StoredPlain>> {
    let before = out.len();
    let mut found = Vec::new();
    for weight in &facts.weights {
        let layers: Vec<Option<usize>> = match weight.scope {
            Scope::Model => vec![None],
            Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).map(Some).collect(),
        };
        let Some(form) = weight.quantised_form() else {
            kept(scheme, weight, &layers, facts, out);
            continue;
        };
        let mut plain = Vec::new();
        for layer in &layers {
            match quantised(scheme, weight, form, *layer, facts) {
                Ok(true) => {}
                Ok(false) => plain.push(*layer),
                Err(d) => {
                    out.push(*d);
                    break;
                }
            }
        }
        if !layers.is_empty() && plain.len() == layers.len() {
            found.push(StoredPlain { weight: weight.name.clone(), layers: None });
        } else if !plain.is_empty() {
            let layers = plain.into_iter().flatten().collect();
            found.push(StoredPlain { weight: weight.name.clone(), layers: Some(layers) });
        }
    }
    idle(scheme, out);
    out[before..].iter().all(|d| d.severity != crate::Severity::Error).then_some(found)
}

/// Whether the matrix is quantised: all the modules that it is spread over, or none.
fn quantised(
    scheme: &mut Scheme,
    weight: &Weight,
    form: &DiskForm,
    layer: Option<usize>,
    facts: &Facts,
) -> Result<bool, Box<Diagnostic>> {
    let modules = modules(weight, form, layer, facts);
    // A list may exclude the block that many modules are in.
    let block = (!form.spread.is_empty()).then(|| named(form.module(), layer)).and_then(|name| {
        let at = name.find(".{")?;
        name.get(..at).map(str::to_owned)
    });
    let block = block.is_some_and(|block| scheme.excluded.block(&block));
    let mut first: Option<(bool, String)> = None;
    for module in modules {
        let meant = scheme.targets.name(&module) || scheme.linear;
        let excluded = scheme.excluded.name(&module) || block;
        let own = meant && !excluded;
        match &first {
            None => first = Some((own, module)),
            Some((same, _)) if *same == own => {}
            Some((_, other)) => {
                let (narrow, wide) = if own { (&module, other) } else { (other, &module) };
                let message =
                    format!("`{narrow}` is quantised and `{wide}` is not, and both are parts of W.{}", weight.name);
                let d = Diagnostic::error("B0412", message).at(scheme.excluded_at, "decided by this list");
                return Err(Box::new(d.help("quantise all of them or none: a product reads them as one weight")));
            }
        }
    }
    Ok(first.is_some_and(|(own, _)| own))
}

/// Refuses a target that names a module which the spec does not let be quantised. All modules are asked for, so that the
/// lists know what they name.
fn kept(scheme: &mut Scheme, weight: &Weight, layers: &[Option<usize>], facts: &Facts, out: &mut Vec<Diagnostic>) {
    let of_form = |form| layers.iter().flat_map(move |layer| modules(weight, form, *layer, facts));
    let mut named = None;
    for module in weight.disk.iter().flat_map(of_form) {
        let excluded = scheme.excluded.name(&module);
        if scheme.targets.name(&module) && !excluded {
            named.get_or_insert(module);
        }
    }
    if let Some(module) = named {
        let message = format!("`{module}` is quantised, and the spec keeps W.{} in {}", weight.name, weight.dtype);
        let d = Diagnostic::error("B0413", message).at(scheme.at, "by the targets of this scheme");
        out.push(d.help("quantise matrices of products only, and leave this one out"));
    }
}

/// Names of the modules that hold a weight.
fn modules(weight: &Weight, form: &DiskForm, layer: Option<usize>, facts: &Facts) -> Vec<String> {
    let mut names = vec![named(form.module(), layer)];
    for axis in &form.spread {
        let own = weight.axes.iter().flatten().find(|a| a.name == *axis).map(|a| match a.extent {
            Extent::Fixed(n) => n,
            Extent::Rows => 1,
        });
        let length = own.or_else(|| facts.dims.get(axis).copied()).unwrap_or(0);
        let place = format!("{{{axis}}}");
        names = names.iter().flat_map(|n| (0..length).map(|i| n.replace(&place, &i.to_string()))).collect();
    }
    names
}

fn named(pattern: &str, layer: Option<usize>) -> String {
    layer.map_or_else(|| pattern.to_owned(), |l| pattern.replace("{l}", &l.to_string()))
}

/// Entries that name no module of the model: harmless if they are of a part that the model does not have.
fn idle(scheme: &Scheme, out: &mut Vec<Diagnostic>) {
    let idle = scheme.excluded.idle();
    if !idle.is_empty() {
        let shown: Vec<String> = idle.iter().take(MOST_TOLD).map(|e| format!("`{e}`")).collect();
        let more = idle.len().saturating_sub(MOST_TOLD);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let d = Diagnostic::warning(
            "B0305",
            format!("{KEY} excludes {}{more}, which no module is called", shown.join(", ")),
        );
        out.push(
            d.at(scheme.excluded_at, "this list").help("compare the names with those of the checkpoint's tensors"),
        );
    }
    if let Some(entry) = scheme.targets.idle().first() {
        let d = Diagnostic::error("B0411", format!("`{entry}` is to be quantised, and no module is called so"));
        out.push(
            d.at(scheme.at, "a target of this scheme")
                .help("write \"Linear\" for every linear module, or names of modules"),
        );
    }
}

//! Which matrices a scheme leaves plain, layer by layer, by the names of their modules and the formats of their tensors.

use super::tensors::{Tensors, codes_of};
use super::{FILE, KEY, Scheme};
use crate::Diagnostic;
use ir::{DiskForm, Extent, Facts, Scope, Span, StoredInputs, StoredNames, StoredPlain, Weight};
use std::collections::BTreeMap;

/// Most entries that are told one by one.
const MOST_TOLD: usize = 5;

/// Tensors that stand beside the config, and what quantisers call those of a module.
type Files<'a> = Option<(&'a Tensors, &'a StoredNames)>;

/// What a scheme comes to.
pub(crate) struct Decided {
    /// Matrices that stay, in the order of the spec.
    pub plain: Vec<StoredPlain>,
    /// Tensors of numbers that should be there and are not, with the place that says so.
    pub lacking: Vec<(String, Span)>,
}

/// Modules of which the files say something of their own.
#[derive(Default)]
struct Noted {
    /// Stored otherwise than the scheme says.
    otherwise: Vec<String>,
    /// Without the number of their inputs: the name of its tensor.
    lacking: Vec<String>,
}

/// Demands that two schemes exclude the same modules where both say which.
pub(crate) fn agree(own: &mut Scheme, beside: &mut Scheme, facts: &Facts, out: &mut Vec<Diagnostic>) -> bool {
    let Some((one, other)) = own.excludes.clone().zip(beside.excludes.clone()) else { return true };
    for weight in &facts.weights {
        let Some(form) = weight.quantised_form() else { continue };
        for layer in layers(weight, facts) {
            let blocks = [&mut *own, &mut *beside].map(|scheme| block(scheme, form, layer));
            for module in modules(weight, form, layer, facts) {
                let [a, b] = [(&mut *own, blocks[0]), (&mut *beside, blocks[1])]
                    .map(|(scheme, block)| said(scheme, &module, block));
                if a == b {
                    continue;
                }
                let (keeps, leaves) = if a { (&one, &other) } else { (&other, &one) };
                let message = format!("`{module}` is quantised by `{keeps}` and excluded by `{leaves}`");
                let d = Diagnostic::error("B0414", message).at(own.excluded_at, "one list");
                let d = d.note(Some(beside.excluded_at), "the other list");
                out.push(d.help("correct the one that is wrong, or remove it: one of the two files is enough"));
                return false;
            }
        }
    }
    true
}

/// The layers that have a weight; one that is none for a weight of the model.
fn layers(weight: &Weight, facts: &Facts) -> Vec<Option<usize>> {
    match weight.scope {
        Scope::Model => vec![None],
        Scope::Layer => (0..facts.layers()).filter(|l| facts.layer_has(*l, weight)).map(Some).collect(),
    }
}

/// Whether a list excludes the block that the modules of a weight are in.
fn block(scheme: &mut Scheme, form: &DiskForm, layer: Option<usize>) -> bool {
    let block = (!form.spread.is_empty()).then(|| named(form.module(), layer)).and_then(|name| {
        let at = name.find(".{")?;
        name.get(..at).map(str::to_owned)
    });
    block.is_some_and(|block| scheme.excluded.block(&block))
}

/// Whether a scheme says that a module is quantised.
fn said(scheme: &mut Scheme, module: &str, block: bool) -> bool {
    let meant = scheme.targets.name(module) || scheme.linear;
    let excluded = scheme.excluded.name(module) || block;
    meant && !excluded
}

/// What the scheme comes to; nothing if the scheme does not fit it, which is told.
pub(crate) fn plain(
    scheme: &mut Scheme,
    facts: &Facts,
    files: Files<'_>,
    out: &mut Vec<Diagnostic>,
) -> Option<Decided> {
    let before = out.len();
    let (mut found, mut noted) = (Vec::new(), Noted::default());
    for weight in &facts.weights {
        let layers = layers(weight, facts);
        let Some(form) = weight.quantised_form() else {
            kept(scheme, weight, &layers, facts, out);
            continue;
        };
        let mut plain = Vec::new();
        for layer in &layers {
            match quantised(scheme, weight, form, (*layer, facts), files, &mut noted) {
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
    undecided(scheme, out);
    differing(scheme, &noted.otherwise, out);
    let lacking = noted.lacking.into_iter().map(|name| (name, scheme.at)).collect();
    let decided = Decided { plain: found, lacking };
    out[before..].iter().all(|d| d.severity != crate::Severity::Error).then_some(decided)
}

/// Whether the matrix is quantised: all the modules that it is spread over, or none. `noted` gets those whose tensors are
/// not what the scheme says of them, and count.
fn quantised(
    scheme: &mut Scheme,
    weight: &Weight,
    form: &DiskForm,
    (layer, facts): (Option<usize>, &Facts),
    files: Files<'_>,
    noted: &mut Noted,
) -> Result<bool, Box<Diagnostic>> {
    let elsewhere = files.is_some_and(|(tensors, _)| tensors.elsewhere(weight, form, layer));
    let modules = modules(weight, form, layer, facts);
    // A list may exclude the block that many modules are in.
    let block = block(scheme, form, layer);
    let mut first: Option<(bool, String)> = None;
    for module in modules {
        let said = said(scheme, &module, block);
        let stored = files.and_then(|(tensors, names)| tensors.narrow(&module, scheme.format, names));
        let own = stored.unwrap_or(said && !elsewhere);
        if own != said {
            noted.otherwise.push(module.clone());
        }
        if own && scheme.inputs == StoredInputs::Block {
            noted.lacking.extend(files.and_then(|(tensors, names)| tensors.lacks_input(&module, names)));
        }
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

/// Refuses tensors in codes that no product could read: without scales, or in another format than the scheme's. What is
/// whole and only not described is told: it is read where codes and scales are multiplied out.
pub(crate) fn foreign(
    scheme: Option<&Scheme>,
    facts: &Facts,
    (tensors, names): (&Tensors, Option<&StoredNames>),
    at: Span,
    out: &mut Vec<Diagnostic>,
) -> bool {
    // By tensor, as two weights may lie in one: what is said of it, and whether it can be multiplied out.
    let mut found: BTreeMap<String, (String, bool)> = BTreeMap::new();
    for weight in &facts.weights {
        for layer in layers(weight, facts) {
            for form in &weight.disk {
                for tensor in spread(&form.tensor, weight, form, layer, facts) {
                    let Some(format) = tensors.codes(&tensor) else { continue };
                    let (own, may_be) = (weight.quantised_form(), tensors.has_scale(&tensor));
                    let (fact, is_wide) = match scheme.zip(names) {
                        None => (format!("and neither {KEY} of config.json nor {FILE} says how to read it"), may_be),
                        Some((scheme, names)) if own == Some(form) => {
                            let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
                            if tensors.narrow(module, scheme.format, names).is_some() {
                                continue;
                            }
                            let (said, scale) = (scheme.format.word(), &names.scale);
                            let codes = codes_of(scheme.format);
                            (format!("and {said}, as the config says, is {codes} beside `{scale}`"), false)
                        }
                        Some(_) if own.is_some() => {
                            (format!("and codes of W.{} are read from `….weight` alone", weight.name), may_be)
                        }
                        Some(_) => (format!("and the spec keeps W.{} in {}", weight.name, weight.dtype), may_be),
                    };
                    found.insert(tensor.clone(), (format!("`{tensor}` is stored as {format}, {fact}"), is_wide));
                }
            }
        }
    }
    let mut is_good = true;
    for is_wide in [false, true] {
        let alike: Vec<&String> = found.values().filter(|(_, wide)| *wide == is_wide).map(|(fact, _)| fact).collect();
        let Some(fact) = alike.first() else { continue };
        let more = match alike.len() - 1 {
            0 => String::new(),
            1 => " (1 more is like it)".to_owned(),
            more => format!(" ({more} more are like it)"),
        };
        let message = format!("{fact}{more}");
        out.push(if is_wide {
            let d = Diagnostic::warning("B0310", message).at(at, "said here");
            d.help("load it with `--widen`, which multiplies codes and scales out, or fetch the checkpoint again with its quantiser's config")
        } else {
            is_good = false;
            let d = Diagnostic::error("B0416", message).at(at, "said here");
            d.help("fetch the checkpoint again with its quantiser's config, or quantise it anew, all modules in one format")
        });
    }
    is_good
}

/// Names of the modules that hold a weight.
fn modules(weight: &Weight, form: &DiskForm, layer: Option<usize>, facts: &Facts) -> Vec<String> {
    spread(form.module(), weight, form, layer, facts)
}

/// The names that a pattern of a form stands for in a layer.
fn spread(pattern: &str, weight: &Weight, form: &DiskForm, layer: Option<usize>, facts: &Facts) -> Vec<String> {
    let mut names = vec![named(pattern, layer)];
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

pub(super) fn named(pattern: &str, layer: Option<usize>) -> String {
    layer.map_or_else(|| pattern.to_owned(), |l| pattern.replace("{l}", &l.to_string()))
}

/// Modules whose tensors are not what the scheme says.
fn differing(scheme: &Scheme, modules: &[String], out: &mut Vec<Diagnostic>) {
    let Some(first) = modules.first() else { return };
    let more = match modules.len() - 1 {
        0 => "is".to_owned(),
        more => format!("and {more} more are"),
    };
    let message = format!("`{first}` {more} stored otherwise than {KEY} says, and the tensors count");
    let d = Diagnostic::warning("B0306", message).at(scheme.excluded_at, "by this list");
    out.push(d.help("nothing needs to be done if the checkpoint is whole; else list what stays unquantised"));
}

/// A pattern that was given up on.
fn undecided(scheme: &Scheme, out: &mut Vec<Diagnostic>) {
    for (patterns, at) in [(&scheme.excluded, scheme.excluded_at), (&scheme.targets, scheme.at)] {
        if let Some(why) = patterns.undecided() {
            let d = Diagnostic::error("B0411", why.to_owned()).at(at, "in this list");
            out.push(d.help("list the modules by name, or write a pattern that is simpler"));
        }
    }
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

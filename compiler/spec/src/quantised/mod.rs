//! What a checkpoint says of its quantised weights, as `[stored]` of the imported spec.
//!
//! ```text
//! quantization_config, or hf_quant_config.json ─ compressed, modelopt ─► Scheme ─ decide ─► plain weights by layer ─► [stored]
//!                                                 headers of tensors ─ tensors ──┘
//! ```
//!
//! Read is what the public quantisers write for the formats of this build; anything else is refused by the name of the key
//! that says it. Which modules are meant is decided by the names that the base spec gives their tensors.

mod compressed;
mod decide;
mod files;
mod modelopt;
mod object;
mod pattern;
mod tensors;

use crate::config::Places;
use crate::merge::Merged;
use crate::source::read_text;
use crate::{Diagnostic, Library, Sources};
use ir::{Facts, Span, StoredFormat, StoredInputs};
use object::Object;
use pattern::Patterns;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

pub(crate) use files::tensor_files;
pub(crate) use tensors::Tensors;

/// Key of a `config.json` that describes quantised weights.
pub(crate) const KEY: &str = "quantization_config";
/// The file that some quantisers write beside it.
const FILE: &str = "hf_quant_config.json";

/// A quantised checkpoint, as its config describes it.
pub(crate) struct Scheme {
    pub format: StoredFormat,
    pub inputs: StoredInputs,
    /// Whether every linear module is quantised.
    pub linear: bool,
    /// Further modules that are quantised.
    pub targets: Patterns,
    /// Of all those, the ones that are not.
    pub excluded: Patterns,
    /// Whether cached rows have scales.
    pub kv: bool,
    /// What says format and inputs, unless nothing does.
    pub said: Option<String>,
    /// The key that lists exclusions, if there is one.
    pub excludes: Option<String>,
    /// Places of the whole, of the exclusions and of the scheme for cached rows.
    pub at: Span,
    pub excluded_at: Span,
    pub kv_at: Span,
}

/// A scheme, and what the file beside the config says where the config has one as well.
pub(crate) struct Schemes {
    pub own: Scheme,
    pub beside: Option<Scheme>,
}

/// What the files of a checkpoint say of it: nothing, or a scheme, unless it is refused.
pub(crate) enum Found {
    Nothing,
    Scheme(Box<Schemes>),
    Refused,
}

/// Reads `quantization_config` and the file beside the config. What only one of them says holds.
pub(crate) fn find(
    json: &Value,
    places: &Places,
    config: &Path,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Found {
    let value = json.get(KEY).filter(|v| !v.is_null());
    let path = config.with_file_name(FILE);
    let Some(value) = value else {
        if path.symlink_metadata().is_err() {
            return Found::Nothing;
        }
        let own = read_file(&path, None, sources, out);
        return own.map_or(Found::Refused, |own| Found::Scheme(Box::new(Schemes { own, beside: None })));
    };
    let Some(mut own) = read(&mut Object::new(value, KEY, places, out), None) else { return Found::Refused };
    if path.symlink_metadata().is_err() {
        return Found::Scheme(Box::new(Schemes { own, beside: None }));
    }
    let Some(mut beside) = read_file(&path, Some(&own), sources, out) else { return Found::Refused };
    if (own.format, own.inputs) != (beside.format, beside.inputs) {
        let said = beside.said.take().unwrap_or_default();
        out.push(disagreement(&own, &said).at(beside.at, "said here"));
        return Found::Refused;
    }
    if !own.kv && beside.kv {
        (own.kv, own.kv_at) = (true, beside.kv_at);
    }
    if own.excludes.is_none() && beside.excludes.is_some() {
        std::mem::swap(&mut own.excluded, &mut beside.excluded);
        (own.excluded_at, own.excludes) = (beside.excluded_at, beside.excludes.take());
    }
    Found::Scheme(Box::new(Schemes { own, beside: Some(beside) }))
}

/// What is told where the file beside a config says another format, or other inputs.
fn disagreement(own: &Scheme, said: &str) -> Diagnostic {
    let one = own.said.as_deref().unwrap_or("nothing");
    let d = Diagnostic::error("B0414", format!("in config.json {one}, and in {FILE} {said}"));
    d.note(Some(own.at), "said in config.json")
        .help("correct the one that is wrong, or remove it: one of them is enough")
}

/// Reads the file beside a config; `other` is what the config says.
fn read_file(path: &Path, other: Option<&Scheme>, sources: &mut Sources, out: &mut Vec<Diagnostic>) -> Option<Scheme> {
    let text = read_text(path).map_err(|d| out.push(*d)).ok()?;
    let file = sources.add(path.display().to_string(), text.clone());
    match serde_json::from_str::<Value>(&text) {
        Ok(value) => read(&mut Object::new(&value, "", &Places::read(&text, file), out), other),
        Err(e) => {
            let d = Diagnostic::error("B0401", format!("the quantisation config is not JSON: {e}"));
            let span = crate::import::line_column(&text, file, e.line(), e.column());
            out.push(d.at(span, "here").help("mend the file, or copy it from the checkpoint again"));
            None
        }
    }
}

fn read(object: &mut Object<'_>, other: Option<&Scheme>) -> Option<Scheme> {
    let scheme = match object.word("quant_method") {
        Some("compressed-tensors") => compressed::read(object),
        Some("modelopt" | "modelopt_fp4") => modelopt::read(object, other),
        // The file beside the config is of one quantiser alone.
        None if object.has("quantization") || object.has("quant_algo") => modelopt::read(object, other),
        _ => {
            let read = "what \"compressed-tensors\" and \"modelopt\" write is read";
            object.refuse("quant_method", read);
            None
        }
    };
    if scheme.is_some() {
        object.unread();
    }
    scheme.filter(|_| !object.failed())
}

/// Whether nothing beside a config without a scheme is in codes; what is, is refused, at the config's beginning.
pub(crate) fn none_in_codes(facts: &Facts, tensors: &Tensors, at: Span, out: &mut Vec<Diagnostic>) -> bool {
    decide::foreign(None, facts, (tensors, None), at, out)
}

/// A line of `[stored]` and the place that it comes from.
pub(crate) type Line = (Span, String);

/// An entry of `plain`.
fn entry(plain: &ir::StoredPlain) -> String {
    match &plain.layers {
        None => format!("{} = \"all\"", plain.weight),
        Some(layers) => {
            let layers: Vec<String> = layers.iter().map(usize::to_string).collect();
            format!("{} = [{}]", plain.weight, layers.join(", "))
        }
    }
}

/// The lines of `[stored]`; errors where the scheme does not fit the spec. `facts` are those of the spec without it.
pub(crate) fn lines(
    schemes: Schemes,
    facts: &Facts,
    base: &Merged,
    library: &Library,
    tensors: Option<&Tensors>,
    out: &mut Vec<Diagnostic>,
) -> Option<Vec<Line>> {
    let Schemes { own: mut scheme, beside } = schemes;
    if let Some(mut beside) = beside
        && !decide::agree(&mut scheme, &mut beside, facts, out)
    {
        return None;
    }
    let table = |name: &str| base.table(name);
    let mut lines = vec![(scheme.at, format!("format = \"{}\"", scheme.format.word()))];
    let written = library.written(scheme.format);
    if written.as_ref().is_some_and(|w| w.inputs != scheme.inputs) {
        lines.push((scheme.at, "inputs = \"plain\"".to_owned()));
    }
    let names = written.as_ref().map(|w| &w.names);
    if let Some(tensors) = tensors
        && !decide::foreign(Some(&scheme), facts, (tensors, names), scheme.at, out)
    {
        return None;
    }
    let files = tensors.zip(names);
    let decide::Decided { plain, mut lacking } = decide::plain(&mut scheme, facts, files, out)?;
    let entries: Vec<String> = plain.iter().map(entry).collect();
    // Also when it is empty: a base may say what is plain where nobody says more.
    let entries = if entries.is_empty() { String::new() } else { format!(" {} ", entries.join(", ")) };
    lines.push((scheme.excluded_at, format!("plain = {{{entries}}}")));
    if scheme.kv {
        let names = |of: &str| {
            let modules =
                table("import").and_then(|t| t.get("kv")).and_then(|(_, n)| n.table()).and_then(|t| t.get(of));
            let modules = modules.and_then(|(_, n)| n.array()).into_iter().flatten().filter_map(|n| n.text());
            let ends = library.cached(of);
            let name = |module: &str, end: &String| format!("{module}.{end}");
            let names: Vec<String> = modules.flat_map(|m| ends.iter().map(move |end| name(m, end))).collect();
            (!names.is_empty()).then_some(names)
        };
        let Some((k, v)) = names("k").zip(names("v")) else {
            let message = "the checkpoint keeps scales of cached keys and values, and the base spec does not name them";
            let d = Diagnostic::error("B0403", message).at(scheme.kv_at, "said here");
            out.push(
                d.help("write a spec of your own with [import.kv] k and v, the modules of a layer that have them"),
            );
            return None;
        };
        let list = |names: &[String]| names.iter().map(|n| crate::import::quoted(n)).collect::<Vec<_>>().join(", ");
        lines.push((scheme.kv_at, format!("kv = {{ k_scale = [{}], v_scale = [{}] }}", list(&k), list(&v))));
        let prefix = table("layer").and_then(|t| t.get("prefix")).and_then(|(_, n)| n.text()).unwrap_or("");
        if let Some(tensors) = tensors {
            let layers: BTreeSet<usize> = facts.kv.iter().flat_map(|kind| kind.layers.iter().copied()).collect();
            let alternatives = layers.into_iter().flat_map(|layer| {
                let full = |name: &String| decide::named(&format!("{prefix}{name}"), Some(layer));
                [&k, &v].map(|names| names.iter().map(full).collect::<Vec<String>>())
            });
            let absent = alternatives.filter(|names| !names.iter().any(|name| tensors.has(name)));
            lacking.extend(absent.filter_map(|names| names.into_iter().next()).map(|name| (name, scheme.kv_at)));
        }
    }
    if let Some((first, at)) = lacking.first() {
        let more = if lacking.len() > 1 { format!(" and {} more are", lacking.len() - 1) } else { " is".to_owned() };
        let message = format!("`{first}`{more} not in the checkpoint, and each counts as 1");
        let d = Diagnostic::warning("B0308", message).at(*at, "said here to have such numbers");
        out.push(d.help("nothing needs to be done if 1 is meant; else quantise it anew with what finds these numbers"));
        lines.push((scheme.at, "numbers = \"some\"".to_owned()));
    }
    Some(lines)
}

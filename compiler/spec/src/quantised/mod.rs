//! What a checkpoint says of its quantised weights, as `[stored]` of the imported spec.
//!
//! ```text
//! quantization_config, or hf_quant_config.json ─ compressed, modelopt ─► Scheme ─ decide ─► plain weights by layer ─► [stored]
//! ```
//!
//! Read is what the public quantisers write for the formats of this build; anything else is refused by the name of the key
//! that says it. Which modules are meant is decided by the names that the base spec gives their tensors.

mod compressed;
mod decide;
mod modelopt;
mod object;
mod pattern;

use crate::config::Places;
use crate::document::Table;
use crate::source::read_text;
use crate::{Diagnostic, Library, Sources};
use ir::{Facts, Span, StoredFormat, StoredInputs};
use object::Object;
use pattern::Patterns;
use serde_json::Value;
use std::path::Path;

pub(crate) use decide::plain;

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
    /// Places of the whole, of the exclusions and of the scheme for cached rows.
    pub at: Span,
    pub excluded_at: Span,
    pub kv_at: Span,
}

/// What the files of a checkpoint say of it: nothing, or a scheme, unless it is refused.
pub(crate) enum Found {
    Nothing,
    Scheme(Box<Scheme>),
    Refused,
}

/// Reads `quantization_config`, or the file beside the config where it has none.
pub(crate) fn find(
    json: &Value,
    places: &Places,
    config: &Path,
    sources: &mut Sources,
    out: &mut Vec<Diagnostic>,
) -> Found {
    if let Some(value) = json.get(KEY).filter(|v| !v.is_null()) {
        return read(&mut Object::new(value, KEY, places, out));
    }
    let path = config.with_file_name(FILE);
    if !path.is_file() {
        return Found::Nothing;
    }
    let text = match read_text(&path) {
        Ok(text) => text,
        Err(d) => {
            out.push(*d);
            return Found::Refused;
        }
    };
    let file = sources.add(path.display().to_string(), text.clone());
    match serde_json::from_str::<Value>(&text) {
        Ok(value) => read(&mut Object::new(&value, "", &Places::read(&text, file), out)),
        Err(e) => {
            let d = Diagnostic::error("B0401", format!("the quantisation config is not JSON: {e}"));
            let span = crate::import::line_column(&text, file, e.line(), e.column());
            out.push(d.at(span, "here").help("mend the file, or copy it from the checkpoint again"));
            Found::Refused
        }
    }
}

fn read(object: &mut Object<'_>) -> Found {
    let scheme = match object.word("quant_method") {
        Some("compressed-tensors") => compressed::read(object),
        Some("modelopt" | "modelopt_fp4") => modelopt::read(object),
        // The file beside the config is of one quantiser alone.
        None if object.has("quantization") || object.has("quant_algo") => modelopt::read(object),
        _ => {
            let read = "what \"compressed-tensors\" and \"modelopt\" write is read";
            object.refuse("quant_method", read);
            None
        }
    };
    if scheme.is_some() {
        object.unread();
    }
    match scheme {
        Some(scheme) if !object.failed() => Found::Scheme(Box::new(scheme)),
        _ => Found::Refused,
    }
}

/// A line of `[stored]` and the place that it comes from.
pub(crate) type Line = (Span, String);

/// The lines of `[stored]`; errors where the scheme does not fit the spec. `facts` are those of the spec without it.
pub(crate) fn lines(
    mut scheme: Scheme,
    facts: &Facts,
    import: &Table,
    library: &Library,
    out: &mut Vec<Diagnostic>,
) -> Option<Vec<Line>> {
    let mut lines = vec![(scheme.at, format!("format = \"{}\"", scheme.format.word()))];
    if library.written(scheme.format).is_some_and(|w| w.inputs != scheme.inputs) {
        lines.push((scheme.at, "inputs = \"plain\"".to_owned()));
    }
    let found = plain(&mut scheme, facts, out)?;
    let entries: Vec<String> = found
        .iter()
        .map(|p| match &p.layers {
            None => format!("{} = \"all\"", p.weight),
            Some(layers) => {
                let layers: Vec<String> = layers.iter().map(usize::to_string).collect();
                format!("{} = [{}]", p.weight, layers.join(", "))
            }
        })
        .collect();
    // Also when it is empty: a base may say what is plain where nobody says more.
    let entries = if entries.is_empty() { String::new() } else { format!(" {} ", entries.join(", ")) };
    lines.push((scheme.excluded_at, format!("plain = {{{entries}}}")));
    if scheme.kv {
        let names = |of: &str| {
            let modules = import.get("kv").and_then(|(_, n)| n.table()).and_then(|t| t.get(of));
            let modules = modules.and_then(|(_, n)| n.array()).into_iter().flatten().filter_map(|n| n.text());
            let ends = library.cached(of);
            let name = |module: &str, end: &String| crate::import::quoted(&format!("{module}.{end}"));
            let names: Vec<String> = modules.flat_map(|m| ends.iter().map(move |end| name(m, end))).collect();
            (!names.is_empty()).then(|| format!("{of}_scale = [{}]", names.join(", ")))
        };
        let Some((k, v)) = names("k").zip(names("v")) else {
            let message = "the checkpoint keeps scales of cached keys and values, and the base spec does not name them";
            let d = Diagnostic::error("B0403", message).at(scheme.kv_at, "said here");
            out.push(
                d.help("write a spec of your own with [import.kv] k and v, the modules of a layer that have them"),
            );
            return None;
        };
        lines.push((scheme.kv_at, format!("kv = {{ {k}, {v} }}")));
    }
    Some(lines)
}

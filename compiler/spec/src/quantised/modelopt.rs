//! ModelOpt, algorithm `NVFP4`: e2m1 codes, scales of 16, inputs in blocks or (`W4A16_NVFP4`) as they are.
//!
//! The same facts stand flat in `config.json`, or below `quantization` in `hf_quant_config.json`.

use super::Scheme;
use super::compressed::patterns;
use super::object::Object;
use super::pattern::{Patterns, Style};
use ir::{DType, StoredFormat, StoredInputs};
use serde_json::{Value, json};

/// Where exclusions stand; the first that is there counts.
const EXCLUDED: [&str; 3] = ["ignore", "modules_to_not_convert", "exclude_modules"];

/// Reads either form; `other` is what the config says of format and inputs, where this file need not.
pub(super) fn read(object: &mut Object<'_>, other: Option<&Scheme>) -> Option<Scheme> {
    object.skip(&["quant_method", "producer"]);
    let below = if object.has("quantization") { "quantization." } else { "" };
    let key = |name: &str| format!("{below}{name}");
    let algorithm = key("quant_algo");
    let is_silent = object.get(&algorithm).is_none();
    let (format, inputs) = match (object.word(&algorithm), other.filter(|_| is_silent)) {
        (_, Some(other)) => (other.format, other.inputs),
        (Some("NVFP4"), _) => (StoredFormat::Nvfp4, StoredInputs::Block),
        (Some("W4A16_NVFP4"), _) => (StoredFormat::Nvfp4, StoredInputs::Plain),
        _ => {
            match other {
                Some(other) => {
                    let said = object.said(&algorithm);
                    object.error(&algorithm, super::disagreement(other, &said), "said here");
                }
                None => object.refuse(&algorithm, "\"NVFP4\" and \"W4A16_NVFP4\" are read"),
            }
            return None;
        }
    };
    groups(object, &key("config_groups"), inputs);
    let of_group =
        object.keys(&key("config_groups")).first().map(|name| key(&format!("config_groups.{name}.weights.group_size")));
    let sized = [Some(key("group_size")), of_group].into_iter().flatten().find(|k| object.get(k).is_some());
    if let Some(sized) = sized {
        object.demand(&sized, &[json!(DType::BLOCK)]);
    }
    for name in ["pre_quant_scale", "has_zero_point"] {
        object.demand(&key(name), &[json!(false), Value::Null]);
    }
    let listed = EXCLUDED.iter().map(|name| key(name)).find(|k| object.get(k).is_some());
    let excluded_key = listed.unwrap_or_else(|| key("ignore"));
    EXCLUDED.iter().for_each(|name| object.skip(&[&key(name)]));
    let excluded = object.texts(&excluded_key)?;
    let excluded = patterns(object, &excluded_key, Style::Components, &excluded)?;
    let schemes = [key("kv_cache_scheme"), key("kv_cache_quant_algo")];
    let kv_key = schemes.iter().find(|k| object.get(k).is_some()).unwrap_or(&schemes[0]).clone();
    schemes.iter().for_each(|k| object.skip(&[k]));
    Some(Scheme {
        format,
        inputs,
        linear: true,
        targets: Patterns::new(Style::Components, &[]).ok()?,
        excluded,
        kv: cached(object, &kv_key),
        said: (!is_silent).then(|| object.said(&algorithm)),
        excludes: object.get(&excluded_key).is_some().then(|| object.path(&excluded_key)),
        at: object.span(&algorithm),
        excluded_at: object.span(&excluded_key),
        kv_at: object.span(&kv_key),
    })
}

/// Groups repeat what the algorithm says; one that says something else is refused.
fn groups(object: &mut Object<'_>, path: &str, inputs: StoredInputs) {
    for name in object.keys(path) {
        let group = format!("{path}.{name}");
        object.demand(&format!("{group}.targets"), &[json!(["Linear"]), Value::Null]);
        side(object, &format!("{group}.weights"));
        let inside = format!("{group}.input_activations");
        match (inputs, object.get(&inside).is_some()) {
            (StoredInputs::Plain, true) => object.refuse(&inside, "the algorithm keeps inputs in 16 bits"),
            (StoredInputs::Block, true) => side(object, &inside),
            (StoredInputs::Block, false) => object.refuse(&inside, "the algorithm quantises inputs"),
            _ => {}
        }
    }
}

fn side(object: &mut Object<'_>, path: &str) {
    object.demand(&format!("{path}.num_bits"), &[json!(4)]);
    object.demand(&format!("{path}.type"), &[json!("float")]);
    object.demand(&format!("{path}.group_size"), &[json!(DType::BLOCK), Value::Null]);
    object.demand(&format!("{path}.dynamic"), &[json!(false), Value::Null]);
}

/// Whether cached rows have scales: a scheme of e4m3 with a fixed number a layer, as an object or a word.
pub(super) fn cached(object: &mut Object<'_>, key: &str) -> bool {
    match object.get(key) {
        None => false,
        Some(Value::String(word)) => {
            if word != "FP8" {
                object.refuse(key, "\"FP8\" or nothing is read there");
            }
            true
        }
        Some(_) => {
            let below = |name: &str| format!("{key}.{name}");
            object.demand(&below("num_bits"), &[json!(8)]);
            object.demand(&below("type"), &[json!("float")]);
            object.demand(&below("dynamic"), &[json!(false), Value::Null]);
            object.demand(&below("symmetric"), &[json!(true), Value::Null]);
            object.demand(&below("strategy"), &[json!("tensor"), Value::Null]);
            true
        }
    }
}

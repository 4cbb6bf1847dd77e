//! compressed-tensors, format `float-quantized`: e4m3 codes with a scale per row, inputs per token or as they are.

use super::object::Object;
use super::pattern::{Patterns, Style};
use super::{Scheme, modelopt};
use crate::Diagnostic;
use ir::{StoredFormat, StoredInputs};
use serde_json::{Value, json};

/// The class of modules that a target may name instead of a module: every linear one.
const LINEAR: &str = "Linear";
const FLOAT: &str = "float-quantized";

/// Keys beside those that are read, which change nothing about the tensors.
const TOLD: [&str; 4] = ["quant_method", "global_compression_ratio", "version", "packed_modules_mapping"];
/// The same inside a group.
const TOLD_OF_PART: [&str; 4] = ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"];

pub(super) fn read(object: &mut Object<'_>) -> Option<Scheme> {
    object.skip(&TOLD);
    object.demand("format", &[json!(FLOAT)]);
    object.demand("quantization_status", &[json!("compressed"), Value::Null]);
    for key in ["linear_fp8_config", "transform_config"] {
        object.demand(key, &[Value::Null, json!({})]);
    }
    if object.has("sparsity_config") && object.get("sparsity_config") != Some(&json!({})) {
        object.demand("sparsity_config.format", &[json!("dense")]);
        object.skip(&["sparsity_config"]);
    }
    let names = object.keys("config_groups");
    if names.is_empty() {
        object.refuse("config_groups", "a group with its targets is read there");
        return None;
    }
    let (mut targets, mut all, mut inputs) = (Vec::new(), false, None);
    for name in &names {
        let group = format!("config_groups.{name}");
        let own = inputs_of(object, &group);
        if *inputs.get_or_insert(own) != own {
            object.refuse(
                &format!("{group}.input_activations"),
                "another group has other inputs; one kind is read for all groups",
            );
        }
        let mut listed = object.texts(&format!("{group}.targets"))?;
        if listed.is_empty() {
            object.refuse(&format!("{group}.targets"), "a list of what the group is for is read there");
        }
        all |= listed.iter().any(|t| t == LINEAR);
        listed.retain(|t| t != LINEAR);
        targets.extend(listed);
    }
    let first = names.first().map(|name| format!("config_groups.{name}.targets"))?;
    let targets = patterns(object, &first, Style::Suffixes, &targets)?;
    let excluded = object.texts("ignore")?;
    let excluded = patterns(object, "ignore", Style::Suffixes, &excluded)?;
    Some(Scheme {
        format: StoredFormat::Fp8,
        inputs: inputs.unwrap_or(StoredInputs::Token),
        linear: all,
        targets,
        excluded,
        kv: modelopt::cached(object, "kv_cache_scheme"),
        said: Some(object.said("format")),
        excludes: object.get("ignore").is_some().then(|| object.path("ignore")),
        at: object.span("format"),
        excluded_at: object.span("ignore"),
        kv_at: object.span("kv_cache_scheme"),
    })
}

/// What the products of a group take in, which says how its weights must be.
fn inputs_of(object: &mut Object<'_>, group: &str) -> StoredInputs {
    object.demand(&format!("{group}.format"), &[json!(FLOAT), Value::Null]);
    object.demand(&format!("{group}.output_activations"), &[Value::Null]);
    part(object, &format!("{group}.weights"), "channel", &[json!(false), Value::Null]);
    if object.get(&format!("{group}.input_activations")).is_none() {
        return StoredInputs::Plain;
    }
    part(object, &format!("{group}.input_activations"), "token", &[json!(true)]);
    StoredInputs::Token
}

/// A scheme of one side: e4m3 codes, a scale for each of what `strategy` says.
fn part(object: &mut Object<'_>, path: &str, strategy: &str, dynamic: &[Value]) {
    let key = |name: &str| format!("{path}.{name}");
    object.demand(&key("num_bits"), &[json!(8)]);
    object.demand(&key("type"), &[json!("float")]);
    object.demand(&key("symmetric"), &[json!(true), Value::Null]);
    object.demand(&key("strategy"), &[json!(strategy)]);
    object.demand(&key("dynamic"), dynamic);
    for name in ["group_size", "block_structure", "actorder"] {
        object.demand(&key(name), &[Value::Null]);
    }
    let told: Vec<String> = TOLD_OF_PART.iter().map(|name| key(name)).collect();
    object.skip(&told.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The patterns of a list; what is wrong with them is told at its key.
pub(super) fn patterns(object: &mut Object<'_>, key: &str, style: Style, entries: &[String]) -> Option<Patterns> {
    match Patterns::new(style, entries) {
        Ok(patterns) => Some(patterns),
        Err(why) => {
            let path = object.path(key);
            let d = Diagnostic::error("B0411", format!("`{path}`: {why}"));
            let d = d.help("list the modules by name, or mend the pattern");
            object.error(key, d, "this list");
            None
        }
    }
}

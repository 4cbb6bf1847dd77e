//! What the configuration says of a quantised checkpoint, in the public quantisers' words.

use super::matrices::Found;
use super::shown;
use crate::failure::Failure;
use device::checkpoint::ScaleFormat;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The model's configuration.
pub const CONFIG: &str = "config.json";
/// Where ModelOpt says the same once more.
pub const MODELOPT_CONFIG: &str = "hf_quant_config.json";
/// The release of compressed-tensors in whose layout FP8 is written.
const COMPRESSED_TENSORS: &str = "0.20.1";
/// Key of the configuration.
const KEY: &str = "quantization_config";

/// What is said beside the modules that stay.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// e4m3 with a scale for each row, as compressed-tensors says it; else nvfp4, as ModelOpt does.
    pub fp8: bool,
    /// Whether inputs of products are narrow.
    pub narrow_inputs: bool,
    /// Whether cached rows have scales.
    pub kv_scales: bool,
}

/// How weights are made narrow.
pub enum Scheme {
    /// e4m3 codes, scales of rows in this format.
    Rows(ScaleFormat),
    /// Blocks under a number of each matrix, in the order of the matrices.
    Blocks {
        numbers: Vec<f32>,
        /// Number of each input; none for inputs as they are.
        input_numbers: Vec<f32>,
    },
}

/// Reads the configuration of a checkpoint that is not quantised.
pub fn read(model: &Path) -> Result<Map<String, Value>, Failure> {
    let path = shown(model, CONFIG);
    let text = std::fs::read_to_string(model.join(CONFIG)).map_err(|e| {
        Failure::input(format!("R0701: `{path}` cannot be read: {e}; `--model` needs a model directory"))
    })?;
    let config: Map<String, Value> =
        serde_json::from_str(&text).map_err(|e| Failure::input(format!("R0701: `{path}` is no JSON object: {e}")))?;
    if config.get(KEY).is_some_and(|value| !value.is_null()) || model.join(MODELOPT_CONFIG).exists() {
        return Err(Failure::input(format!(
            "R0702: `{}` says that it is quantised already (`{KEY}` or `{MODELOPT_CONFIG}`); use the unquantised checkpoint",
            model.display()
        )));
    }
    Ok(config)
}

/// Writes the configurations into the new directory.
pub fn write(dir: &Path, config: &Map<String, Value>, found: &Found, said: Said) -> Result<(), Failure> {
    let mut config = config.clone();
    let section = if said.fp8 { compressed_tensors(&found.said, said) } else { modelopt(&found.said, said) };
    config.insert(KEY.to_owned(), section);
    put(dir, CONFIG, &Value::Object(config))?;
    if said.fp8 {
        return Ok(());
    }
    let cached = if said.kv_scales { json!("FP8") } else { Value::Null };
    let quantization = json!({
        "quant_algo": algorithm(said.narrow_inputs), "kv_cache_quant_algo": cached, "group_size": 16,
        "exclude_modules": found.said,
    });
    put(dir, MODELOPT_CONFIG, &json!({"producer": producer(), "quantization": quantization}))
}

fn put(dir: &Path, name: &str, value: &Value) -> Result<(), Failure> {
    let text = format!("{value:#}\n");
    std::fs::write(dir.join(name), text).map_err(|e| {
        Failure::output(format!("R0712: `{}` cannot be written: {e}; choose another `--out`", shown(dir, name)))
    })
}

/// e4m3 with channels' scales, as compressed-tensors says it.
fn compressed_tensors(ignore: &[String], said: Said) -> Value {
    let arguments = |strategy: &str, dynamic: bool, observer: Option<&str>| {
        let mut arguments = Map::new();
        arguments.insert("dynamic".to_owned(), json!(dynamic));
        arguments.insert("group_size".to_owned(), Value::Null);
        arguments.insert("num_bits".to_owned(), json!(8));
        arguments.extend(observer.map(|name| ("observer".to_owned(), json!(name))));
        arguments.insert("strategy".to_owned(), json!(strategy));
        arguments.insert("symmetric".to_owned(), json!(true));
        arguments.insert("type".to_owned(), json!("float"));
        Value::Object(arguments)
    };
    let inputs = if said.narrow_inputs { arguments("token", true, None) } else { Value::Null };
    let cached = if said.kv_scales { arguments("tensor", false, None) } else { Value::Null };
    json!({
        "config_groups": {"group_0": {
            "format": "float-quantized",
            "input_activations": inputs,
            "output_activations": null,
            "targets": ["Linear"],
            "weights": arguments("channel", false, Some("memoryless_minmax")),
        }},
        "format": "float-quantized",
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": cached,
        "moe_sparsity_config": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": COMPRESSED_TENSORS,
    })
}

fn algorithm(narrow_inputs: bool) -> &'static str {
    if narrow_inputs { "NVFP4" } else { "W4A16_NVFP4" }
}

fn producer() -> Value {
    json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")})
}

/// nvfp4, as ModelOpt says it.
fn modelopt(ignore: &[String], said: Said) -> Value {
    let arguments = json!({"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16});
    let mut group = Map::new();
    if said.narrow_inputs {
        group.insert("input_activations".to_owned(), arguments.clone());
    }
    group.insert("weights".to_owned(), arguments);
    group.insert("targets".to_owned(), json!(["Linear"]));
    let mut section = Map::new();
    section.insert("config_groups".to_owned(), json!({"group_0": group}));
    section.insert("ignore".to_owned(), json!(ignore));
    section.insert("quant_algo".to_owned(), json!(algorithm(said.narrow_inputs)));
    if said.kv_scales {
        section.insert("kv_cache_scheme".to_owned(), json!({"dynamic": false, "num_bits": 8, "type": "float"}));
    }
    section.insert("producer".to_owned(), producer());
    section.insert("quant_method".to_owned(), json!("modelopt"));
    Value::Object(section)
}

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
/// Key of the configuration.
const KEY: &str = "quantization_config";

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
pub fn write(
    dir: &Path,
    config: &Map<String, Value>,
    found: &Found,
    fp8: bool,
    narrow_inputs: bool,
) -> Result<(), Failure> {
    let mut config = config.clone();
    let section =
        if fp8 { compressed_tensors(&found.said, narrow_inputs) } else { modelopt(&found.said, narrow_inputs) };
    config.insert(KEY.to_owned(), section);
    put(dir, CONFIG, &Value::Object(config))?;
    if fp8 {
        return Ok(());
    }
    let quantization = json!({
        "quant_algo": algorithm(narrow_inputs), "kv_cache_quant_algo": null, "group_size": 16, "exclude_modules": found.said,
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
fn compressed_tensors(ignore: &[String], narrow_inputs: bool) -> Value {
    let arguments = |strategy: &str, dynamic: bool, observer: Value| {
        json!({
            "actorder": null, "block_structure": null, "dynamic": dynamic, "group_size": null, "num_bits": 8,
            "observer": observer, "observer_kwargs": {}, "strategy": strategy, "symmetric": true, "type": "float",
        })
    };
    let inputs = if narrow_inputs { arguments("token", true, Value::Null) } else { Value::Null };
    json!({
        "config_groups": {"group_0": {
            "format": "float-quantized",
            "input_activations": inputs,
            "output_activations": null,
            "targets": ["Linear"],
            "weights": arguments("channel", false, json!("minmax")),
        }},
        "format": "float-quantized",
        "global_compression_ratio": null,
        "ignore": ignore,
        "kv_cache_scheme": null,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    })
}

fn algorithm(narrow_inputs: bool) -> &'static str {
    if narrow_inputs { "NVFP4" } else { "W4A16_NVFP4" }
}

fn producer() -> Value {
    json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")})
}

/// nvfp4, as ModelOpt says it.
fn modelopt(ignore: &[String], narrow_inputs: bool) -> Value {
    let arguments = json!({"dynamic": false, "num_bits": 4, "type": "float", "group_size": 16});
    let mut group = Map::new();
    if narrow_inputs {
        group.insert("input_activations".to_owned(), arguments.clone());
    }
    group.insert("weights".to_owned(), arguments);
    group.insert("targets".to_owned(), json!(["Linear"]));
    json!({
        "config_groups": {"group_0": group},
        "ignore": ignore,
        "quant_algo": algorithm(narrow_inputs),
        "producer": producer(),
        "quant_method": "modelopt",
    })
}

//! Quantised checkpoints as users meet them: made by `beam-run quantise` of the example model and of seeded ones with odd
//! dimensions, imported, compiled, run, and compared with the same weights multiplied out.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use suites::safetensors_file::{Numbers, read};
use suites::{Programs, fixture, nano};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs `beam-run`, which must succeed.
fn run(args: &[&str]) -> String {
    let done = Programs::built().beam_run(args);
    assert_eq!(done.code, 0, "{args:?}: {}", done.err);
    done.out
}

/// A quantised copy of a model.
fn quantised(model: &Path, format: &str, work: &Path, more: &[&str]) -> PathBuf {
    let out = work.join(format!("model-{format}"));
    let mut args = vec!["quantise", "--model", text(model), "--format", format, "--out", text(&out)];
    args.extend(more);
    run(&args);
    out
}

fn tokens(work: &Path, body: &Value) -> PathBuf {
    let file = work.join("tokens.json");
    std::fs::write(&file, body.to_string()).expect("write");
    file
}

/// Logits of the tokens.
fn logits(artifact: &Path, model: &Path, tokens: &Path, more: &[&str]) -> Numbers {
    let out = artifact.with_file_name("logits.safetensors");
    let mut args = vec!["score", text(artifact), "--model", text(model), "--tokens", text(tokens), "--out", text(&out)];
    args.extend(more);
    run(&args);
    read(&out)["logits.0"].clone()
}

/// Dimensions that no power of two divides far, all contracted ones whole blocks.
fn odd_config() -> Value {
    let text = std::fs::read_to_string(fixture("beam-tiny-bf16").join("config.json")).expect("config");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    let dims = [
        ("hidden_size", 80),
        ("num_attention_heads", 5),
        ("num_key_value_heads", 1),
        ("head_dim", 48),
        ("intermediate_size", 112),
        ("moe_intermediate_size", 48),
        ("num_experts", 6),
        ("n_group", 3),
        ("topk_group", 2),
        ("num_experts_per_tok", 3),
        ("vocab_size", 97),
    ];
    dims.into_iter().for_each(|(key, n)| config[key] = json!(n));
    config
}

/// A checkpoint with seeded weights for a config, spread over shards tensor by tensor.
fn seeded(config: &Value, folder: &Path, seed: u64, shards: usize) {
    std::fs::create_dir_all(folder).expect("folder");
    std::fs::write(folder.join("config.json"), config.to_string()).expect("config");
    let work = tempfile::tempdir().expect("folder");
    let artifact = Programs::built().compile(folder, "cpu", work.path());
    let artifact = artifact::Artifact::load(&artifact).expect("artifact");
    let (mut files, mut map) = (vec![Vec::new(); shards], BTreeMap::new());
    for recipe in &artifact.recipes {
        let form = &recipe.forms[0];
        for i in 0..form.tensors().expect("few") {
            let name = form.tensor_name(i);
            let key = numerics::hash_name(&name);
            let (mean, spread) = match form.shape.as_slice() {
                [_] => (1.0, 0.25),
                shape => (0.0, 1.0 / (*shape.last().expect("a dimension") as f32).sqrt()),
            };
            let number = |i| mean + spread * numerics::synthetic(seed, key, i);
            let n = form.shape.iter().product::<u64>();
            let (dtype, bytes): (_, Vec<u8>) = match recipe.dtype {
                ir::DType::F32 => (safetensors::Dtype::F32, (0..n).flat_map(|i| number(i).to_le_bytes()).collect()),
                _ => {
                    let bits = |i| numerics::bf16_bits(number(i)).to_le_bytes();
                    (safetensors::Dtype::BF16, (0..n).flat_map(bits).collect())
                }
            };
            let shape: Vec<usize> = form.shape.iter().map(|n| *n as usize).collect();
            map.insert(name.clone(), map.len() % shards);
            files[map[&name]].push((name, dtype, shape, bytes));
        }
    }
    let file = |shard: usize| format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
    for (shard, tensors) in files.iter().enumerate() {
        let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
        });
        safetensors::serialize_to_file(views, None, &folder.join(file(shard))).expect("write");
    }
    let map: BTreeMap<String, String> = map.into_iter().map(|(name, shard)| (name, file(shard))).collect();
    let index = json!({"metadata": {"total_size": 0, "kept": "yes"}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).expect("index");
    std::fs::write(folder.join("tokenizer.json"), "{}").expect("tokenizer");
}

/// The same weights through codes and scales, and multiplied out while loading, give the same logits.
fn agree(plain: &Path, model: &Path, work: &Path, what: &str) {
    let ids: Vec<u64> = (0..23).map(|i| i * 31 % 97).collect();
    let file = tokens(work, &json!({ "tokens": [ids] }));
    let of_codes = Programs::built().compile(model, "cpu-f32", &fresh(work, "codes"));
    let found = logits(&of_codes, model, &file, &[]);
    let wide = Programs::built().compile(plain, "cpu-f32", &fresh(work, "wide"));
    let wanted = logits(&wide, model, &file, &["--widen"]);
    let worst = found.data.iter().zip(&wanted.data).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let largest = wanted.data.iter().fold(0f32, |m, x| m.max(x.abs()));
    // Ten times what two implementations in f32 differ by, relative to logits of 30 (the fixtures' table).
    assert!(
        found.data.len() == wanted.data.len() && worst <= 5e-4 / 30.0 * largest.max(1.0),
        "{what}: {worst} of {largest}"
    );
}

/// A folder of its own.
fn fresh(work: &Path, name: &str) -> PathBuf {
    let folder = work.join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("folder");
    folder
}

fn said(model: &Path) -> Value {
    let text = std::fs::read_to_string(model.join("config.json")).expect("config");
    serde_json::from_str::<Value>(&text).expect("JSON")["quantization_config"].clone()
}

#[test]
fn rows_of_odd_checkpoints_in_shards_with_expressions() {
    let work = tempfile::tempdir().expect("folder");
    let plain = work.path().join("plain");
    seeded(&odd_config(), &plain, 7, 3);
    let ignore = ["--ignore", r"re:model\.layers\.(0|3)\.self_attn\..*", "--ignore", "down_proj", "--scales", "f32"];
    let model = quantised(&plain, "fp8", work.path(), &ignore);
    let config = said(&model);
    let ignored: Vec<&str> = config["ignore"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(
        ignored.contains(&r"re:model\.layers\.(0|3)\.self_attn\..*") && ignored.contains(&"lm_head"),
        "{ignored:?}"
    );
    assert!(ignored.contains(&"model.layers.1.mlp.down_proj") && ignored.contains(&"model.layers.4.mlp.gate"));
    let index = std::fs::read_to_string(model.join("model.safetensors.index.json")).expect("index");
    let index: Value = serde_json::from_str(&index).expect("JSON");
    assert_eq!(index["metadata"]["kept"], "yes");
    let name = "model.layers.1.self_attn.q_proj.weight";
    assert_eq!(index["weight_map"][name], index["weight_map"][format!("{name}_scale")], "beside each other");
    assert!(model.join("tokenizer.json").is_file());
    agree(&plain, &model, work.path(), "fp8");
}

#[test]
fn cached_rows_of_either_format_have_numbers_of_their_largest() {
    let work = tempfile::tempdir().expect("folder");
    let plain = work.path().join("plain");
    seeded(&odd_config(), &plain, 13, 1);
    let ids: Vec<u64> = (0..20).map(|i| i * 29 % 97).collect();
    let file = tokens(work.path(), &json!({ "tokens": [ids] }));
    let artifact = Programs::built().compile(&plain, "cpu", work.path());
    let more = ["--artifact", text(&artifact), "--calibrate", text(&file), "--kv-scales"];
    let fp8 = quantised(&plain, "fp8", work.path(), &more);
    let nvfp4 = quantised(&plain, "nvfp4-weights", work.path(), &more);
    let of = |model: &Path, name: &str| {
        read(&model.join("model-00001-of-00001.safetensors")).get(name).cloned().expect("a number")
    };
    for layer in 0..7 {
        for (module, end) in [("k_proj", "k_scale"), ("v_proj", "v_scale")] {
            let rows = of(&fp8, &format!("model.layers.{layer}.self_attn.{end}"));
            let blocks = of(&nvfp4, &format!("model.layers.{layer}.self_attn.{module}.{end}"));
            assert_eq!((rows.shape.as_slice(), blocks.shape.as_slice()), (&[1][..], &[][..]));
            assert_eq!(rows.data[0], numerics::bf16_value(numerics::bf16_bits(blocks.data[0])), "{layer} {end}");
        }
    }
    for model in [&fp8, &nvfp4] {
        let kept = Programs::built().compile(model, "cpu-f32-kv8", &fresh(work.path(), "kept"));
        let wide = Programs::built().compile(model, "cpu-f32", &fresh(work.path(), "wide"));
        let (kept, wide) = (logits(&kept, model, &file, &[]), logits(&wide, model, &file, &[]));
        let rms = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
        let moved =
            rms(&mut kept.data.iter().zip(&wide.data).map(|(a, b)| a - b)) / rms(&mut wide.data.iter().copied());
        assert!(moved > 0.0 && moved < 0.25, "{moved}");
    }
}

#[test]
fn blocks_of_odd_checkpoints_with_patterns_and_calibrated_inputs() {
    let work = tempfile::tempdir().expect("folder");
    let plain = work.path().join("plain");
    seeded(&odd_config(), &plain, 11, 2);
    let ids: Vec<u64> = (0..40).map(|i| i * 13 % 97).collect();
    let file = tokens(work.path(), &json!({ "tokens": [ids] }));
    let artifact = Programs::built().compile(&plain, "cpu", work.path());
    let more = [
        "--artifact",
        text(&artifact),
        "--calibrate",
        text(&file),
        "--ignore",
        "model.layers.*.mlp.down_proj",
        "--ignore",
        "model.layers.1.self_attn*",
        "--kv-scales",
    ];
    let model = quantised(&plain, "nvfp4", work.path(), &more);
    let of = |name: &str| {
        (0..2).find_map(|i| read(&model.join(format!("model-{:05}-of-00002.safetensors", i + 1))).get(name).cloned())
    };
    // One number for what takes the same input.
    let number = |module: &str, end: &str| {
        of(&format!("model.layers.2.self_attn.{module}_proj.{end}")).expect("a number").data[0].to_bits()
    };
    for end in ["weight_scale_2", "input_scale"] {
        assert!(["k", "v", "gate"].iter().all(|m| number(m, end) == number("q", end)), "{end}");
        assert_ne!(number("o", end), number("q", end), "{end}");
    }
    assert!(of("model.layers.1.self_attn.q_proj.weight_scale").is_none());
    // Cached rows have numbers, also where the matrix that they come from stays as it is.
    assert_eq!(said(&model)["kv_cache_scheme"]["num_bits"], 8);
    for name in ["1.self_attn.k_proj.k_scale", "2.self_attn.v_proj.v_scale"] {
        let number = of(&format!("model.layers.{name}")).expect("a number");
        assert!(number.shape.is_empty() && number.data[0] > 0.0, "{name}");
    }
    let kept = Programs::built().compile(&model, "cpu-f32-kv8", &fresh(work.path(), "kept"));
    assert!(logits(&kept, &model, &file, &[]).data.iter().all(|x| x.is_finite()));
    agree(&plain, &model, work.path(), "nvfp4");
    // The second place of the same facts is enough.
    let mut config: Value =
        serde_json::from_str(&std::fs::read_to_string(model.join("config.json")).expect("config")).expect("JSON");
    config.as_object_mut().expect("an object").remove("quantization_config");
    std::fs::write(model.join("config.json"), config.to_string()).expect("config");
    agree(&plain, &model, work.path(), "nvfp4 by hf_quant_config.json");
    let native = Programs::built().compile(&model, "cpu-nvfp4", work.path());
    let found = logits(&native, &model, &file, &[]);
    assert!(found.data.iter().all(|x| x.is_finite()));
}

#[test]
fn packed_experts_come_apart_by_the_artifact() {
    let work = tempfile::tempdir().expect("folder");
    let plain = fixture("beam-tiny-bf16-packed");
    let out = work.path().join("refused");
    let done =
        Programs::built().beam_run(&["quantise", "--model", text(&plain), "--format", "fp8", "--out", text(&out)]);
    assert!(done.code == 1 && done.err.contains("R0709") && done.err.contains("--artifact"), "{}", done.err);
    assert!(!out.exists());
    let artifact = Programs::built().compile(&plain, "cpu", work.path());
    for format in ["fp8", "nvfp4-weights"] {
        let model = quantised(&plain, format, work.path(), &["--artifact", text(&artifact)]);
        agree(&plain, &model, work.path(), format);
    }
}

/// The example model's own answers to its recorded prompts.
fn answers(work: &Path) -> PathBuf {
    let golden = std::fs::read_to_string(nano().join("eval/golden.json")).expect("golden");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let (mut sequences, mut prompts) = (Vec::new(), Vec::new());
    for prompt in golden["prompts"].as_array().expect("prompts") {
        let list = |value: &Value| value.as_array().expect("ids").clone();
        let given = list(&prompt["prompt_ids"]);
        prompts.push(given.len());
        sequences.push(given.into_iter().chain(list(&prompt["bfloat16"]["ids"])).collect::<Vec<Value>>());
    }
    tokens(work, &json!({"tokens": sequences, "prompts": prompts}))
}

#[test]
fn the_example_model_keeps_its_losses() {
    let work = tempfile::tempdir().expect("folder");
    let plain = nano();
    let reference = Programs::built().compile(&plain, "cpu", work.path());
    let fp8 = quantised(&plain, "fp8", work.path(), &[]);
    let nvfp4 = quantised(&plain, "nvfp4", work.path(), &["--artifact", text(&reference), "--inputs", "plain"]);
    let native = Programs::built().compile(&fp8, "cpu-fp8", work.path());
    let weights = Programs::built().compile(&nvfp4, "cpu", &fresh(work.path(), "weights"));
    let file = answers(work.path());
    let args = [
        "score",
        text(&reference),
        "--model",
        text(&plain),
        "--tokens",
        text(&file),
        "--json",
        "--compare",
        text(&native),
        text(&fp8),
        "--compare",
        text(&weights),
        text(&nvfp4),
    ];
    let found: Value = serde_json::from_str(&run(&args)).expect("JSON");
    println!("{found:#}");
    let models = found["models"].as_array().expect("models");
    assert_eq!(models.len(), 3);
    let change = models[1]["nll_change"].as_f64().expect("a number");
    assert!(change.abs() <= 0.02, "the loss on its own answers changes by {change}");
    for model in &models[1..] {
        let errors: Vec<f64> =
            model["layer_errors"].as_array().expect("errors").iter().filter_map(Value::as_f64).collect();
        assert!(errors.len() == 8 && errors.iter().all(|e| *e > 0.0 && *e < 0.5), "{errors:?}");
    }
}

#[test]
fn what_cannot_be_quantised_is_refused_and_nothing_is_left() {
    let work = tempfile::tempdir().expect("folder");
    let out = work.path().join("out");
    let refused = |args: &[&str]| {
        let mut all = vec!["quantise", "--out", text(&out)];
        all.extend(args);
        let done = Programs::built().beam_run(&all);
        assert_eq!(std::fs::read_dir(work.path()).expect("folder").count(), 0, "{args:?}");
        (done.code, done.err)
    };
    let model = nano();
    let (code, err) = refused(&["--model", text(&model), "--format", "nvfp4"]);
    assert!(
        code == 2 && err.contains("R0704") && err.contains("--calibrate") && err.contains("--inputs plain"),
        "{err}"
    );
    let (code, err) = refused(&["--model", text(&model), "--format", "fp8", "--ignore", "re:nothing"]);
    assert!(code == 2 && err.contains("R0711"), "{err}");
    let (code, err) = refused(&["--model", text(&model), "--format", "fp8", "--ignore", "re:("]);
    assert!(code == 2 && err.contains("R0710"), "{err}");
    let (code, err) = refused(&["--model", text(&model), "--format", "fp8", "--ignore", "*"]);
    assert!(code == 2 && err.contains("R0705]: `--ignore` leaves all "), "{err}");
    for (format, flags, named) in [
        ("fp8-weights", &["--inputs", "narrow"][..], "--inputs narrow"),
        ("nvfp4-weights", &["--inputs", "narrow"], "--inputs narrow"),
        ("nvfp4-weights", &["--scales", "f32"], "--scales"),
        ("fp8", &["--own-numbers"], "--own-numbers"),
        ("fp8", &["--artifact", "a", "--calibrate", "t"], "--calibrate"),
        ("nvfp4", &["--inputs", "plain", "--artifact", "a", "--calibrate", "t"], "--calibrate"),
    ] {
        let (code, err) = refused(&[&["--model", text(&model), "--format", format], flags].concat());
        let told = [named, &format!("--format {format}"), "leave"].iter().all(|part| err.contains(part));
        assert!(code == 2 && err.starts_with("error[R0721]") && told, "{err}");
    }
    let (code, err) = refused(&["--model", text(&fixture("beam-tiny-fp8")), "--format", "fp8"]);
    assert!(code == 1 && err.contains("R0702"), "{err}");
    let (code, err) = refused(&["--model", "/nowhere", "--format", "fp8"]);
    assert!(code == 1 && err.contains("R0701"), "{err}");
    let (code, _) = refused(&["--model", text(&model), "--format", "int4"]);
    assert_eq!(code, 2);
}

/// A checkpoint and an artifact are only read, so nothing is written into their directories.
#[test]
fn nothing_is_written_into_what_is_read() {
    let work = tempfile::tempdir().expect("folder");
    let model = work.path().join("model");
    seeded(&odd_config(), &model, 3, 1);
    let before = std::fs::read_dir(&model).expect("folder").count();
    let beside = model.join("../model/deep/../out");
    for out in [&model, &model.join("out"), &model.join("deep/out"), &beside] {
        let args = ["quantise", "--model", text(&model), "--format", "fp8", "--out", text(out)];
        let done = Programs::built().beam_run(&args);
        assert!(done.code == 2 && done.err.starts_with("error[R0722]"), "{out:?}: {}", done.err);
    }
    assert_eq!(std::fs::read_dir(&model).expect("folder").count(), before);
    let out = work.path().join("model-fp8");
    run(&["quantise", "--model", text(&model), "--format", "fp8", "--out", text(&out)]);
}

/// A model without any matrix in a numbered layer: no flag is at fault.
#[test]
fn a_checkpoint_without_layers_says_so() {
    let work = tempfile::tempdir().expect("folder");
    let model = work.path().join("model");
    std::fs::create_dir(&model).expect("folder");
    std::fs::write(model.join("config.json"), "{}").expect("config");
    let bytes = vec![0u8; 32];
    let tensor = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, vec![4, 4], &bytes).expect("a tensor");
    safetensors::serialize_to_file([("embed.weight", tensor)], None, &model.join("model.safetensors")).expect("write");
    let out = work.path().join("out");
    let done =
        Programs::built().beam_run(&["quantise", "--model", text(&model), "--format", "fp8", "--out", text(&out)]);
    let told = ["R0705", "has no matrix to quantise", "--artifact"].iter().all(|part| done.err.contains(part));
    assert!(done.code == 1 && told && !done.err.contains("--ignore"), "{}", done.err);
}

/// The only file of a checkpoint.
const ONLY: &str = "model-00001-of-00001.safetensors";

/// Changes the bytes of a tensor.
fn damage(model: &Path, tensor: &str, change: impl FnOnce(&mut [u8])) {
    let path = model.join(ONLY);
    let mut bytes = std::fs::read(&path).expect("file");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize + 8;
    let header: Value = serde_json::from_slice(&bytes[8..length]).expect("header");
    let at = |i: usize| header[tensor]["data_offsets"][i].as_u64().expect("a tensor") as usize + length;
    change(&mut bytes[at(0)..at(1)]);
    std::fs::write(&path, bytes).expect("file");
}

/// Codes and elements that are no numbers end in an error with the tensor and the place, not in logits.
#[test]
fn elements_that_are_no_numbers_are_refused_by_name() {
    let work = tempfile::tempdir().expect("folder");
    let plain = work.path().join("plain");
    seeded(&odd_config(), &plain, 5, 1);
    let fp8 = quantised(&plain, "fp8", work.path(), &[]);
    let nvfp4 = quantised(&plain, "nvfp4-weights", work.path(), &[]);
    let file = tokens(work.path(), &json!({"tokens": [[1, 2, 3]]}));
    let out = work.path().join("logits.safetensors");
    let score = |artifact: &Path, model: &Path, more: &[&str]| {
        let args = ["score", text(artifact), "--model", text(model), "--tokens", text(&file), "--out", text(&out)];
        let done = Programs::built().beam_run(&[&args, more].concat());
        assert!(!out.exists(), "written");
        (done.code, done.err)
    };
    let converting = Programs::built().compile(&plain, "cpu-fp8", &fresh(work.path(), "converting"));
    let wide = Programs::built().compile(&plain, "cpu", &fresh(work.path(), "wide"));
    let native = Programs::built().compile(&fp8, "cpu-fp8", &fresh(work.path(), "native"));
    // Another format than the one that floats are made into is no second form of it.
    let (code, err) = score(&converting, &nvfp4, &[]);
    assert!(code == 1 && err.starts_with("error[W0303]") && err.contains("is stored as U8"), "{err}");
    assert!(!err.contains("W0305"), "{err}");
    let weight = "model.layers.1.self_attn.o_proj.weight";
    damage(&fp8, weight, |bytes| bytes[5] = 0xff);
    for (artifact, more) in [(&native, &[][..]), (&converting, &[]), (&wide, &["--widen"])] {
        let (code, err) = score(artifact, &fp8, more);
        let told = format!("error[W0313]: element 5 of `{weight}` in `{ONLY}` is NaN, stored as F8_E4M3");
        assert!(code == 1 && err.starts_with(&told), "{err}");
    }
    damage(&plain, weight, |bytes| bytes[6..8].copy_from_slice(&[0x80, 0x7f]));
    for artifact in [&converting, &wide] {
        let (code, err) = score(artifact, &plain, &[]);
        let told = format!("error[W0313]: element 3 of `{weight}` in `{ONLY}` is inf, stored as BF16");
        assert!(code == 1 && err.starts_with(&told), "{err}");
    }
    // Nor are they quantised, or copied beside what is.
    let copy = work.path().join("copy");
    let refused = |flags: &[&str]| {
        let args = ["quantise", "--model", text(&plain), "--format", "fp8", "--out", text(&copy)];
        let done = Programs::built().beam_run(&[&args, flags].concat());
        assert!(!copy.exists() && done.code == 1, "{}", done.err);
        done.err
    };
    let told = format!("error[R0707]: element 3 of `{weight}` is inf");
    for flags in [&[][..], &["--ignore", "re:.*o_proj"]] {
        let err = refused(flags);
        assert!(err.starts_with(&told), "{err}");
    }
    // An artifact that has narrow weights already does not tell which ones to make so.
    let err = refused(&["--artifact", text(&native)]);
    assert!(err.starts_with("error[R0705]") && err.contains("keeps weights in e4m3 already"), "{err}");
}

/// A checkpoint without numbers of inputs is one of weights; compiled from its own directory, what its config says counts.
#[test]
fn numbers_of_inputs_that_are_missing_are_asked_for() {
    let work = tempfile::tempdir().expect("folder");
    let plain = work.path().join("plain");
    seeded(&odd_config(), &plain, 17, 1);
    let file = tokens(work.path(), &json!({"tokens": [[1, 2, 3]]}));
    let artifact = Programs::built().compile(&plain, "cpu", work.path());
    let calibrated = ["--artifact", text(&artifact), "--calibrate", text(&file)];
    let w4a4 = quantised(&plain, "nvfp4", work.path(), &calibrated);
    let w4a16 = quantised(&plain, "nvfp4-weights", work.path(), &[]);
    let native = Programs::built().compile(&w4a4, "cpu-nvfp4", &fresh(work.path(), "native"));
    let out = work.path().join("logits.safetensors");
    let args = ["score", text(&native), "--model", text(&w4a16), "--tokens", text(&file), "--out", text(&out)];
    let done = Programs::built().beam_run(&args);
    let told = ["W0314", "input_scale", "inputs = \"plain\"", "--calibrate"].iter().all(|part| done.err.contains(part));
    assert!(done.code == 1 && told, "{}", done.err);
    // Of its own directory: inputs stay as they are.
    let own = Programs::built().compile(&w4a16, "cpu-nvfp4", &fresh(work.path(), "own"));
    assert!(logits(&own, &w4a16, &file, &[]).data.iter().all(|x| x.is_finite()));
    // With a config that says that there are numbers: they are 1, and that is told.
    std::fs::copy(w4a4.join("config.json"), w4a16.join("config.json")).expect("config");
    std::fs::remove_file(w4a16.join("hf_quant_config.json")).expect("config");
    let done = Programs::built().beamc(&[
        "compile",
        text(&w4a16),
        "--target",
        "cpu-nvfp4",
        "-o",
        text(&work.path().join("told")),
    ]);
    assert!(done.code == 0 && done.err.contains("warning[B0308]") && done.err.contains("input_scale"), "{}", done.err);
    let found = logits(&work.path().join("told"), &w4a16, &file, &[]);
    assert!(found.data.iter().all(|x| x.is_finite()));
}

/// Logits that are no numbers are no result: the place is named, and what was asked for is there to be looked at.
#[test]
fn logits_that_are_not_finite_end_badly() {
    let work = tempfile::tempdir().expect("folder");
    let (good, bad) = (work.path().join("good"), work.path().join("bad"));
    seeded(&odd_config(), &good, 7, 1);
    seeded(&odd_config(), &bad, 7, 1);
    // About the largest number there is: rows become infinite in either direction, and what is summed over them no number.
    damage(&bad, "model.norm.weight", |bytes| match bytes.len() / 80 {
        2 => bytes.as_chunks_mut().0.iter_mut().for_each(|x| *x = numerics::bf16_bits(3.3e38).to_le_bytes()),
        _ => bytes.as_chunks_mut().0.iter_mut().for_each(|x| *x = 3.3e38f32.to_le_bytes()),
    });
    let artifact = Programs::built().compile(&good, "cpu", work.path());
    let file = tokens(work.path(), &json!({"tokens": [[1, 2, 3], [4, 5]]}));
    let out = work.path().join("logits.safetensors");
    let score = |model: &Path, more: &[&str]| {
        let args = ["score", text(&artifact), "--model", text(model), "--tokens", text(&file)];
        Programs::built().beam_run(&[&args, more].concat())
    };
    for more in [&[][..], &["--nll"], &["--json"]] {
        let done = score(&bad, &[&["--out", text(&out)], more].concat());
        let told = ["error[R0417]: sequence 0 has logits at position 0 ", "--trace"];
        assert!(done.code == 1 && told.iter().all(|part| done.err.contains(part)), "{more:?}: {}", done.err);
        assert_eq!(read(&out).len(), 2, "both sequences are written");
    }
    for (reference, other) in [(&good, &bad), (&bad, &good)] {
        let done = score(reference, &["--compare", text(&artifact), text(other)]);
        let told = ["error[R0417]: sequence 0 has logits of cpu at position 0 ", "--trace"];
        assert!(done.code == 1 && told.iter().all(|part| done.err.contains(part)), "{}", done.err);
    }
    assert_eq!(score(&good, &["--compare", text(&artifact), text(&good)]).code, 0);
}

/// Models of other sizes, and tokens of which none is scored, are told before anything runs.
#[test]
fn what_cannot_be_compared_is_refused() {
    let work = tempfile::tempdir().expect("folder");
    let model = |name: &str, key: &str, n: u64| {
        let mut config = odd_config();
        config[key] = json!(n);
        let folder = work.path().join(name);
        seeded(&config, &folder, 3, 1);
        (Programs::built().compile(&folder, "cpu", &fresh(work.path(), &format!("{name}-compiled"))), folder)
    };
    let (artifact, plain) = model("plain", "vocab_size", 97);
    let compared = |body: &Value, (other, of): (&Path, &Path)| {
        let file = tokens(work.path(), body);
        let args = ["score", text(&artifact), "--model", text(&plain), "--tokens", text(&file)];
        let done = Programs::built().beam_run(&[&args, &["--compare", text(other), text(of)][..]].concat());
        (done.code, done.err)
    };
    for (name, key, n, facts) in [
        ("wide", "hidden_size", 96, ["has 96 numbers", "has 80; compare"]),
        ("words", "vocab_size", 101, ["has 101 tokens", "has 97; compare"]),
    ] {
        let (other, of) = model(name, key, n);
        let (code, err) = compared(&json!({"tokens": [[1, 2, 3]]}), (&other, &of));
        let told = facts.iter().all(|fact| err.contains(fact)) && err.contains(text(&other));
        assert!(code == 1 && err.starts_with("error[R0418]") && told, "{err}");
    }
    for (body, fact) in [
        (json!({"tokens": []}), "has no sequence"),
        (json!({"tokens": [[1, 2], []]}), "sequence 1 of"),
        (json!({"tokens": [[1]]}), "has 1 tokens, and the first 1 are given"),
        (json!({"tokens": [[1, 2, 3]], "prompts": [3]}), "has 3 tokens, and the first 3 are given"),
        (json!({"tokens": [[1, 2, 3]], "prompts": [9]}), "has 3 tokens, and the first 9 are given"),
    ] {
        let (code, err) = compared(&body, (&artifact, &plain));
        assert!(code == 1 && err.starts_with("error[R0416]") && err.contains(fact), "{err}");
    }
    assert_eq!(compared(&json!({"tokens": [[1, 2, 3]], "prompts": [2]}), (&artifact, &plain)).0, 0);
}

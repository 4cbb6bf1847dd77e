//! Comparison with values that an independent implementation computed: end to end, and stage by stage.
//!
//! A staged comparison injects the recorded input of one stage and compares the stage's output: one rounding more or
//! less shows at once, which an end-to-end comparison of a random network would hide in noise.

mod quantised;

use crate::safetensors_file::{Numbers, read, write};
use crate::{Programs, root};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// One line of the table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Checkpoint and executor.
    pub what: String,
    /// What is compared.
    pub stage: String,
    /// What was found.
    pub found: String,
    /// What is allowed.
    pub allowed: String,
    /// Whether it holds.
    pub holds: bool,
}

/// What a stage must reach.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// Share of equal elements, and how many steps of bf16 the others may differ. A step is that of the element, but at
    /// least that of a quarter of the rms: where a sum nearly cancels, one step of a term is many of the sum.
    Equal(f64, u32),
    /// Relative rms, and the largest difference relative to the largest value.
    Close(f64, f64),
    /// Largest absolute difference.
    Within(f64),
    /// Share of elements that differ by less than one part in a million: f32 functions of equal bf16 values.
    Same(f64),
}

/// A stage: its recorded inputs (map name suffix → fixture name suffix) and outputs.
struct Stage {
    name: &'static str,
    inputs: &'static [(&'static str, &'static str)],
    outputs: &'static [&'static str],
    limit: Limit,
}

const NORM: Limit = Limit::Equal(0.999, 1);
const PROJECTED: Limit = Limit::Equal(0.999, 2);
const PRODUCT: Limit = Limit::Equal(0.99, 1);

/// Stages inside a layer. `stream` and `attn_in` of layer l are what layer l - 1 left.
const STAGES: &[Stage] = &[
    Stage {
        name: "q, k: product, norm, RoPE or SSMax",
        inputs: &[("attn_in", "attn_in")],
        outputs: &["q", "k"],
        limit: PROJECTED,
    },
    Stage { name: "v, gate: products", inputs: &[("attn_in", "attn_in")], outputs: &["v", "gate_raw"], limit: PRODUCT },
    Stage {
        name: "attention",
        inputs: &[("q", "q"), ("k", "k"), ("v", "v")],
        outputs: &["attn_core"],
        limit: Limit::Close(4e-3, 1.0 / 128.0),
    },
    Stage {
        name: "gate",
        inputs: &[("attn_core", "attn_core"), ("gate_raw", "gate_raw")],
        outputs: &["attn_gated"],
        limit: NORM,
    },
    Stage { name: "o: product", inputs: &[("attn_gated", "attn_gated")], outputs: &["attn_out"], limit: PRODUCT },
    Stage { name: "norm after attention", inputs: &[("attn_out", "attn_out")], outputs: &["attn_post"], limit: NORM },
    Stage {
        name: "residual after attention",
        inputs: &[("attn_post", "attn_post"), ("stream", "before")],
        outputs: &["resid_mid"],
        limit: NORM,
    },
    Stage { name: "norm before MLP", inputs: &[("resid_mid", "resid_mid")], outputs: &["mlp_in"], limit: NORM },
    Stage { name: "MLP or experts", inputs: &[("mlp_in", "mlp_in")], outputs: &["mlp_out"], limit: PRODUCT },
    Stage { name: "norm after MLP", inputs: &[("mlp_out", "mlp_out")], outputs: &["mlp_post"], limit: NORM },
    Stage {
        name: "residual after MLP",
        inputs: &[("mlp_post", "mlp_post"), ("resid_mid", "resid_mid")],
        outputs: &["hidden"],
        limit: NORM,
    },
];

/// A checkpoint directory with recorded values beside it.
pub struct Oracle {
    folder: PathBuf,
    name: String,
    work: tempfile::TempDir,
    config: serde_json::Value,
    /// Path of the map.
    map: String,
    rows: Vec<Row>,
}

impl Oracle {
    /// Opens a fixture directory.
    ///
    /// # Panics
    /// If it is not one.
    pub fn open(folder: &Path) -> Oracle {
        let text =
            std::fs::read_to_string(folder.join("config.json")).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let work = tempfile::tempdir().unwrap_or_else(|e| panic!("no temporary directory: {e}"));
        let config = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        Oracle {
            folder: folder.to_owned(),
            name: folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
            map: write_map(work.path(), &config),
            work,
            config,
            rows: Vec::new(),
        }
    }

    /// Runs every comparison that the directory has values for.
    pub fn run(mut self) -> Vec<Row> {
        let narrow = self.config["dtype"] == "bfloat16";
        if self.config["quantization_config"].is_object() {
            self.quantised();
            return self.rows;
        }
        if narrow {
            self.end_to_end("cpu-f32", "golden_f32", F32);
            self.end_to_end("cpu", "golden", BF16);
            for executor in ["interp", "cpu"] {
                self.staged(executor);
            }
        } else {
            self.end_to_end("cpu", "golden", F32);
            self.routing_values("golden");
            self.offset();
        }
        self.greedy(if narrow { "cpu-f32" } else { "cpu" });
        self.rows
    }

    fn row(&mut self, what: &str, stage: &str, found: String, allowed: String, holds: bool) {
        let what = format!("{} {what}", self.name);
        self.rows.push(Row { what, stage: stage.to_owned(), found, allowed, holds });
    }

    fn golden(&self, file: &str) -> Option<BTreeMap<String, Numbers>> {
        let path = self.folder.join(format!("{file}.safetensors"));
        path.is_file().then(|| read(&path))
    }

    fn tokens_file(&self, name: &str, ids: &[f32]) -> PathBuf {
        let path = self.work.path().join(format!("{name}.json"));
        let ids: Vec<i64> = ids.iter().map(|x| *x as i64).collect();
        let text = serde_json::json!({ "tokens": [ids] }).to_string();
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    fn artifact(&self, target: &str) -> PathBuf {
        let path = self.work.path().join(format!("artifact-{target}"));
        if path.is_dir() { path } else { Programs::built().compile(&self.folder, target, self.work.path()) }
    }

    /// Runs `beam-run score` and reads what it wrote.
    fn score(&self, target: &str, executor: &str, ids: &[f32], more: &[&str]) -> BTreeMap<String, Numbers> {
        let (artifact, tokens) = (self.artifact(target), self.tokens_file("tokens", ids));
        let out = self.work.path().join("out.safetensors");
        let path = |p: &Path| p.to_str().unwrap_or("").to_owned();
        let (artifact, tokens, out_text, model) = (path(&artifact), path(&tokens), path(&out), path(&self.folder));
        let mut args = vec![
            "score",
            &artifact,
            "--model",
            &model,
            "--tokens",
            &tokens,
            "--out",
            &out_text,
            "--executor",
            executor,
        ];
        args.extend(more);
        let done = Programs::built().beam_run(&args);
        assert_eq!(done.code, 0, "{args:?}: {}", done.err);
        read(&out)
    }

    fn end_to_end(&mut self, target: &str, file: &str, limits: Limits) {
        let Some(golden) = self.golden(file) else { return };
        let what = format!("{target} against {file}");
        let out = self.score(target, "cpu", &golden["input_ids"].data, &["--trace", &self.map.clone()]);
        self.logits(&what, "logits of the prompt", &out["logits.0"], &golden["logits"], limits);
        let hidden: Vec<f64> = golden
            .iter()
            .filter(|(name, _)| name.ends_with(".hidden"))
            .map(|(name, value)| out.get(name).map_or(f64::INFINITY, |ours| largest_difference(ours, value)))
            .collect();
        if !hidden.is_empty() {
            let worst = hidden.iter().copied().fold(0.0, f64::max);
            let (found, allowed) = (format!("{worst:.2e}"), format!("{:.0e}", limits.hidden));
            self.row(&what, "hidden, largest difference", found, allowed, worst <= limits.hidden);
        }
        if let Some(ids) = golden.get("forced.input_ids") {
            let forced = self.score(target, "cpu", &ids.data, &[]);
            // Where two choices of experts nearly tie, rounding decides, and every later row sees another history.
            let margins = &golden["forced.route_margin"].data;
            let firm = margins.iter().take_while(|m| **m >= limits.firm_margin).count();
            if firm == 0 {
                return;
            }
            let part = |n: &Numbers| {
                let width = n.shape[1];
                Numbers { shape: vec![firm, width], data: n.data[..firm * width].to_vec() }
            };
            let stage = format!("logits with forced continuation, {firm} of {} rows", ids.data.len());
            self.logits(&what, &stage, &part(&forced["logits.0"]), &part(&golden["forced.logits"]), limits);
        }
    }

    fn logits(&mut self, what: &str, stage: &str, ours: &Numbers, golden: &Numbers, limits: Limits) {
        let max = largest_difference(ours, golden);
        let rms = (ours.data.iter().zip(&golden.data).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
            / golden.data.len() as f64)
            .sqrt();
        let width = golden.shape.last().copied().unwrap_or(1);
        let cosine =
            ours.data.chunks(width).zip(golden.data.chunks(width)).map(|(a, b)| cosine(a, b)).fold(1.0, f64::min);
        self.row(
            what,
            stage,
            format!("max {max:.2e}, rms {rms:.2e}, cosine {cosine:.5}"),
            format!("{:.0e}, {:.0e}, {:.3}", limits.max, limits.rms, limits.cosine),
            max <= limits.max && rms <= limits.rms && cosine >= limits.cosine,
        );
    }

    /// Router logits, chosen experts and their weights, in f32.
    fn routing_values(&mut self, file: &str) {
        let Some(golden) = self.golden(file) else { return };
        let out = self.score("cpu", "cpu", &golden["input_ids"].data, &["--trace", &self.map.clone()]);
        for (suffix, limit) in [(".router_logits", 1e-4), (".topk_weights", 1e-5), (".topk_ids", 0.0)] {
            let found: Vec<f64> = golden
                .iter()
                .filter(|(name, _)| name.ends_with(suffix))
                .map(|(name, value)| out.get(name).map_or(f64::INFINITY, |ours| largest_difference(ours, value)))
                .collect();
            if found.is_empty() {
                continue;
            }
            let worst = found.into_iter().fold(0.0, f64::max);
            self.row(
                "cpu against golden",
                &suffix[1..],
                format!("{worst:.1e}"),
                format!("{limit:.0e}"),
                worst <= limit,
            );
        }
    }

    /// The same prompt at a large position.
    fn offset(&mut self) {
        let Some(golden) = self.golden("golden") else { return };
        let (Some(logits), Some(position)) = (golden.get("offset.logits"), golden.get("offset.position")) else {
            return;
        };
        let start = position.data[0] as u64;
        let out = self.score("cpu", "cpu", &golden["input_ids"].data, &["--start", &start.to_string()]);
        let what = format!("cpu at position {start}");
        self.logits(&what, "logits of the prompt", &out["logits.0"], logits, F32);
    }

    /// Greedy continuation, ids in and out.
    fn greedy(&mut self, target: &str) {
        let Ok(text) = std::fs::read_to_string(self.folder.join("tokens.json")) else { return };
        let tokens: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let list =
            |v: &serde_json::Value| v.as_array().map(|a| a.iter().filter_map(|x| x.as_i64()).collect::<Vec<_>>());
        let (Some(prompt), Some(expected)) = (list(&tokens["prompt_ids"]), list(&tokens["greedy_f32"]["with_cache"]))
        else {
            return;
        };
        let ids: Vec<f32> = prompt.iter().map(|x| *x as f32).collect();
        let (artifact, file) = (self.artifact(target), self.tokens_file("prompt", &ids));
        let n = expected.len().to_string();
        let path = |p: &Path| p.to_str().unwrap_or("").to_owned();
        let args = [
            "generate",
            &path(&artifact),
            "--model",
            &path(&self.folder),
            "--tokens",
            &path(&file),
            "--max-tokens",
            &n,
        ];
        let done = Programs::built().beam_run(&args.iter().map(|s| &**s).collect::<Vec<_>>());
        assert_eq!(done.code, 0, "{args:?}: {}", done.err);
        let found: serde_json::Value = serde_json::from_str(&done.out).unwrap_or_default();
        let found = list(&found["tokens"][0]).unwrap_or_default();
        let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        let (what, holds) = (format!("{target} greedy"), found == expected);
        self.row(&what, "ids", format!("{same} of {} equal", expected.len()), "all".to_owned(), holds);
    }

    /// Every stage of every layer that has recorded values, one stage at a time.
    fn staged(&mut self, executor: &str) {
        let Some(golden) = self.golden("golden") else { return };
        let layers: Vec<usize> = (0..).take_while(|l| golden.contains_key(&format!("layers.{l}.hidden"))).collect();
        let full: Vec<usize> =
            layers.iter().copied().filter(|l| golden.contains_key(&format!("layers.{l}.q"))).collect();
        if full.is_empty() {
            return;
        }
        for stage in STAGES {
            let mut inject = BTreeMap::new();
            for l in &full {
                for (name, fixture) in stage.inputs {
                    let key = match (*fixture, l) {
                        ("before", 0) => "embed".to_owned(),
                        ("before", l) => format!("layers.{}.hidden", l - 1),
                        (other, l) => format!("layers.{l}.{other}"),
                    };
                    inject.insert(format!("layers.{l}.{name}"), golden[&key].clone());
                }
            }
            let out = self.injected(executor, &golden, &inject);
            let pairs: Vec<(&Numbers, &Numbers)> = full
                .iter()
                .flat_map(|l| stage.outputs.iter().map(move |o| format!("layers.{l}.{o}")))
                .filter_map(|name| Some((out.get(&name)?, golden.get(&name)?)))
                .collect();
            assert_eq!(pairs.len(), full.len() * stage.outputs.len(), "{}: values are missing", stage.name);
            self.compare(executor, stage.name, &pairs, stage.limit);
        }
        self.staged_ends(executor, &golden, &layers);
        self.staged_routing(executor, &golden, &layers);
    }

    fn injected(
        &self,
        executor: &str,
        golden: &BTreeMap<String, Numbers>,
        inject: &BTreeMap<String, Numbers>,
    ) -> BTreeMap<String, Numbers> {
        let file = self.work.path().join("inject.safetensors");
        write(&file, inject);
        let file = file.to_str().unwrap_or("").to_owned();
        self.score("cpu", executor, &golden["input_ids"].data, &["--trace", &self.map.clone(), "--inject", &file])
    }

    /// The stages around the layers: first norm of each layer, final norm, head.
    fn staged_ends(&mut self, executor: &str, golden: &BTreeMap<String, Numbers>, layers: &[usize]) {
        let Some(last) = layers.last() else { return };
        let inject = layers
            .iter()
            .map(|l| (format!("layers.{l}.hidden"), golden[&format!("layers.{l}.hidden")].clone()))
            .collect();
        let out = self.injected(executor, golden, &inject);
        let mut pairs = vec![(&out["embed"], &golden["embed"])];
        for l in layers {
            let attn_in = format!("layers.{}.attn_in", l + 1);
            if let (Some(expected), Some(ours)) = (golden.get(&attn_in), out.get(&format!("layers.{l}.next"))) {
                pairs.push((ours, expected));
            }
        }
        pairs.push((&out[&format!("layers.{last}.next")], &golden["final_norm"]));
        self.compare(executor, "embedding, input norms, final norm", &pairs, NORM);
        let inject = [(format!("layers.{last}.next"), golden["final_norm"].clone())].into();
        let out = self.injected(executor, golden, &inject);
        self.compare(executor, "head: product, cap", &[(&out["logits.0"], &golden["logits"])], Limit::Same(0.99));
    }

    fn staged_routing(&mut self, executor: &str, golden: &BTreeMap<String, Numbers>, layers: &[usize]) {
        let sparse: Vec<&usize> = layers
            .iter()
            .filter(|l| {
                golden.contains_key(&format!("layers.{l}.router_logits"))
                    && golden.contains_key(&format!("layers.{l}.mlp_in"))
            })
            .collect();
        if sparse.is_empty() {
            return;
        }
        let inject = sparse
            .iter()
            .map(|l| (format!("layers.{l}.mlp_in"), golden[&format!("layers.{l}.mlp_in")].clone()))
            .collect();
        let out = self.injected(executor, golden, &inject);
        for (value, limit) in [("router_logits", 1e-4), ("topk_weights", 1e-5), ("topk_ids", 0.0)] {
            let names: Vec<String> = sparse.iter().map(|l| format!("layers.{l}.{value}")).collect();
            let pairs: Vec<_> = names.iter().map(|n| (&out[n], &golden[n])).collect();
            self.compare(executor, &format!("router: {value}"), &pairs, Limit::Within(limit));
        }
    }

    fn compare(&mut self, executor: &str, stage: &str, pairs: &[(&Numbers, &Numbers)], limit: Limit) {
        let (mut total, mut equal, mut same, mut steps) = (0usize, 0usize, 0usize, 0u32);
        let (mut square, mut norm, mut max, mut size) = (0f64, 0f64, 0f64, 0f64);
        for (ours, golden) in pairs {
            let n = golden.data.len().max(1) as f64;
            let rms = (golden.data.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n).sqrt();
            assert_eq!(ours.data.len(), golden.data.len(), "{stage}: shapes {:?} and {:?}", ours.shape, golden.shape);
            for (a, b) in ours.data.iter().zip(&golden.data) {
                total += 1;
                equal += usize::from(a == b);
                same += usize::from((a - b).abs() <= 1e-6 * b.abs());
                steps = steps.max(bf16_steps(*a, *b, rms / 4.0));
                let d = f64::from(a - b).abs();
                square += d * d;
                norm += f64::from(*b).powi(2);
                max = max.max(d);
                size = size.max(f64::from(b.abs()));
            }
        }
        let share = equal as f64 / total.max(1) as f64;
        let rms = (square / norm.max(f64::MIN_POSITIVE)).sqrt();
        let (found, allowed, holds) = match limit {
            Limit::Equal(least, most) => (
                format!("{:.3} % equal, {steps} steps at most", 100.0 * share),
                format!("{:.1} %, {most}", 100.0 * least),
                share >= least && steps <= most,
            ),
            Limit::Same(least) => {
                let share = same as f64 / total.max(1) as f64;
                let found = format!("{:.3} % equal to one part in a million", 100.0 * share);
                (found, format!("{:.1} %", 100.0 * least), share >= least)
            }
            Limit::Close(r, m) => (
                format!("relative rms {rms:.1e}, max {:.1e} of the largest", max / size),
                format!("{r:.0e}, {m:.1e}"),
                rms <= r && max <= m * size,
            ),
            Limit::Within(m) => (format!("{max:.1e}"), format!("{m:.0e}"), max <= m),
        };
        self.row(&format!("staged on {executor}"), stage, found, allowed, holds);
    }
}

/// Limits of an end-to-end comparison: logits' largest and rms difference and smallest cosine, hidden's largest.
#[derive(Clone, Copy, Debug)]
struct Limits {
    max: f64,
    rms: f64,
    cosine: f64,
    hidden: f64,
    /// Rows after the first expert choice with a smaller margin are not compared: noise may have decided it.
    firm_margin: f32,
}

/// Two f32 implementations, ten times what the reference differs from binary64 by.
const F32: Limits = Limits { max: 5e-4, rms: 5e-4, cosine: 0.999, hidden: 1e-4, firm_margin: 0.0 };

/// Two bf16 implementations of a random network.
const BF16: Limits = Limits { max: 2.0, rms: 0.4, cosine: 0.998, hidden: 0.3, firm_margin: 0.02 };

/// The map from the fixtures' names to the graph's. Values of the router exist only where some layer has one.
fn write_map(work: &Path, config: &serde_json::Value) -> String {
    let path = root().join("tests/oracle/beam.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut map: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let kinds = config["mlp_layer_types"].as_array();
    if kinds.is_some_and(|k| k.iter().all(|kind| kind != "sparse")) {
        map.retain(|name, _| !name.contains("router") && !name.contains("topk"));
    }
    let copy = work.join("map.json");
    std::fs::write(&copy, serde_json::Value::from(map).to_string())
        .unwrap_or_else(|e| panic!("{}: {e}", copy.display()));
    copy.display().to_string()
}

fn largest_difference(a: &Numbers, b: &Numbers) -> f64 {
    if a.data.len() != b.data.len() {
        return f64::INFINITY;
    }
    a.data.iter().zip(&b.data).map(|(x, y)| f64::from(x - y).abs()).fold(0.0, f64::max)
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Distance of two values in steps of bf16 (8 significant bits) at the larger of them, or at `floor` if that is larger.
fn bf16_steps(a: f32, b: f32, floor: f64) -> u32 {
    let size = f64::from(a.abs().max(b.abs())).max(floor);
    let step = 2f64.powf(size.max(f64::MIN_POSITIVE).log2().floor() - 7.0);
    (f64::from(a - b).abs() / step).round() as u32
}

/// The table as Markdown.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from("| checkpoint, executor | compared | found | allowed | |\n|---|---|---|---|---|\n");
    for r in rows {
        let mark = if r.holds { "ok" } else { "**fails**" };
        out.push_str(&format!("| {} | {} | {} | {} | {mark} |\n", r.what, r.stage, r.found, r.allowed));
    }
    out
}

//! Checkpoints with quantised weights: end to end against recorded runs.

use super::{BF16, F32, Limits, Oracle, cosine};

/// FP8 inputs, activations in f32: codes on rounding boundaries flip and spread.
const FP8_INPUTS: Limits =
    Limits { max: 2.5, rms: 0.5, cosine: 0.995, hidden: f64::INFINITY, firm_margin: f32::INFINITY };
/// Cached rows in e4m3, the rest in f32.
const CACHED: Limits =
    Limits { max: f64::INFINITY, rms: 0.3, cosine: 0.0, hidden: f64::INFINITY, firm_margin: f32::INFINITY };

/// A format as the configuration names it, and what runs it.
struct Runs {
    /// Targets with narrow inputs: activations in f32, and in bf16.
    native: [&'static str; 2],
    /// Recorded runs with narrow inputs: in f32, and with an engine's roundings.
    golden: [&'static str; 2],
    /// Least mean cosine of a run in bf16 against these.
    least: f64,
}

const FP8: Runs =
    Runs { native: ["cpu-f32-fp8", "cpu-fp8"], golden: ["golden_w8a8", "golden_w8a8_engine"], least: 0.97 };
const NVFP4: Runs =
    Runs { native: ["cpu-f32-nvfp4", "cpu-nvfp4"], golden: ["golden_w4a4", "golden_w4a4_engine"], least: 0.92 };

impl Oracle {
    /// Every comparison that a quantised checkpoint has values for.
    pub(super) fn quantised(&mut self) {
        let fp8 = self.config["quantization_config"]["quant_method"] == "compressed-tensors";
        let runs = if fp8 { FP8 } else { NVFP4 };
        self.end_to_end("cpu-f32", "golden", F32);
        self.end_to_end("cpu", "golden", BF16);
        self.greedy("cpu-f32");
        let [exact, engine] = runs.native;
        if fp8 {
            self.end_to_end(exact, runs.golden[0], FP8_INPUTS);
        } else {
            self.mean_cosine(exact, runs.golden[0], 0.99);
        }
        for golden in runs.golden {
            self.mean_cosine(engine, golden, runs.least);
        }
        self.end_to_end("cpu-f32-kv8", "golden_kv8", CACHED);
    }

    /// The mean over rows of the cosines of logits.
    fn mean_cosine(&mut self, target: &str, file: &str, least: f64) {
        let Some(golden) = self.golden(file) else { return };
        let logits = &golden["logits"];
        let width = logits.shape.last().copied().unwrap_or(1);
        let out = self.score(target, "cpu", &self.prompt(), &[]);
        let rows: Vec<f64> =
            out["logits.0"].data.chunks(width).zip(logits.data.chunks(width)).map(|(a, b)| cosine(a, b)).collect();
        let mean = rows.iter().sum::<f64>() / rows.len().max(1) as f64;
        let what = format!("{target} against {file}");
        self.row(&what, "logits, mean cosine", format!("{mean:.5}"), format!("{least}"), mean >= least);
    }

    /// Token ids of the prompt.
    fn prompt(&self) -> Vec<f32> {
        self.golden("golden").map(|golden| golden["input_ids"].data.clone()).unwrap_or_default()
    }
}

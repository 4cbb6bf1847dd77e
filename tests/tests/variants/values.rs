//! A small model of a spec against recorded values: logits in f32 and bf16, greedy ids, and each layer by itself.
//!
//! The bound in f32 is ten times what the library's own f32 differs from binary64; in bf16 the logits may be twice as far
//! from binary64 as the library's. Whole models of random weights hide a rounding in noise, so each layer also runs on
//! the recorded input of that layer: then nearly every element must be the same.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use suites::safetensors_file::{Numbers, read, write};
use suites::{Programs, fixture};

/// Share of elements of a layer's output that must be equal in bf16. A dropped rounding changes a tenth or more; what
/// differs for another reason are exact products in other orders, near ties of expert choices, and `exp` and `tanh`.
const SAME: f64 = 0.99;

/// What of a fixture is compared with what spec.
pub struct Case {
    name: String,
    spec: PathBuf,
    sizes: Value,
    golden: BTreeMap<String, Numbers>,
    work: tempfile::TempDir,
}

/// What was found.
pub struct Found {
    name: String,
    /// Largest difference of f32 logits from binary64, and its bound.
    single: (f64, f64),
    /// Greedy ids that are equal, and how many there are.
    greedy: (usize, usize),
    /// Rms difference of bf16 logits from binary64, and its bound.
    half: (f64, f64),
    /// Share of equal elements, layer by layer.
    layers: f64,
}

impl Found {
    pub fn holds(&self) -> bool {
        self.single.0 <= self.single.1
            && self.greedy.0 == self.greedy.1
            && self.half.0 <= self.half.1
            && self.layers >= SAME
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "| {} | {:.1e} of {:.1e} | {} of {} | {:.1e} of {:.1e} | {:.2} % |",
            self.name,
            self.single.0,
            self.single.1,
            self.greedy.0,
            self.greedy.1,
            self.half.0,
            self.half.1,
            100.0 * self.layers
        )
    }
}

fn sizes(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture("variants").join(format!("{name}.json"))).expect("sizes");
    serde_json::from_str(&text).expect("JSON")
}

impl Case {
    fn open(name: &str) -> Case {
        let golden = read(&fixture("variants").join(format!("{name}.safetensors")));
        let work = tempfile::tempdir().expect("folder");
        Case { name: name.to_owned(), spec: PathBuf::new(), sizes: sizes(name), golden, work }
    }

    /// The spec at the fixture's sizes, with weights by seed.
    pub fn variant(name: &str, spec: &Path) -> Case {
        Case { spec: spec.canonicalize().expect("a spec"), ..Case::open(name) }
    }

    /// Other sizes than the fixture's own, where the spec has other axes.
    pub fn with_sizes_of(self, name: &str) -> Case {
        Case { sizes: sizes(name), ..self }
    }

    /// A checkpoint as the library saves it.
    pub fn checkpoint(name: &str) -> Case {
        Case { spec: fixture("variants").join(name), ..Case::open(name) }
    }

    /// The spec file that is compiled: a small model of the variant, or the checkpoint's directory.
    fn source(&self) -> PathBuf {
        if self.spec.is_dir() {
            return self.spec.clone();
        }
        let mut text = format!("extends = {}\n", json!(self.spec.to_str().expect("UTF-8")));
        for table in ["dims", "values"] {
            text.push_str(&format!("[{table}]\n"));
            for (name, number) in self.sizes[table].as_object().expect("sizes") {
                text.push_str(&format!("{name} = {number}\n"));
            }
        }
        let path = self.work.path().join("small.toml");
        std::fs::write(&path, text).expect("spec");
        path
    }

    fn weights(&self) -> [String; 2] {
        match self.sizes["seed"].as_u64() {
            Some(seed) => ["--synthetic".to_owned(), seed.to_string()],
            None => ["--model".to_owned(), self.spec.to_str().expect("UTF-8").to_owned()],
        }
    }

    fn run(&self, command: &str, artifact: &Path, more: &[&str]) -> String {
        let prompt: Vec<i64> = self.golden["prompt"].data.iter().map(|x| *x as i64).collect();
        let tokens = self.work.path().join("tokens.json");
        std::fs::write(&tokens, json!({ "tokens": [prompt] }).to_string()).expect("tokens");
        let (artifact, tokens) = (artifact.to_str().expect("UTF-8"), tokens.to_str().expect("UTF-8"));
        let weights = self.weights();
        let mut args = vec![command, artifact, &weights[0], &weights[1], "--tokens", tokens];
        args.extend(more);
        let done = Programs::built().beam_run(&args);
        assert_eq!(done.code, 0, "{}: {args:?}: {}", self.name, done.err);
        done.out
    }

    fn score(&self, artifact: &Path, more: &[&str]) -> BTreeMap<String, Numbers> {
        let out = self.work.path().join("out.safetensors");
        let mut args = vec!["--out", out.to_str().expect("UTF-8")];
        args.extend(more);
        self.run("score", artifact, &args);
        read(&out)
    }

    /// Compiles for both targets and compares all that is recorded.
    pub fn compare(&self) -> Found {
        let source = self.source();
        let compile = |target: &str| Programs::built().compile(&source, target, self.work.path());
        let (wide, narrow) = (compile("cpu-f32"), compile("cpu"));
        let exact = &self.golden["exact"];
        let single = difference(&self.score(&wide, &[])["logits.0"], exact).0;
        let half = difference(&self.score(&narrow, &[])["logits.0"], exact).1;
        let bound = (10.0 * difference(&self.golden["f32"], exact).0, 2.0 * difference(&self.golden["bf16"], exact).1);
        Found {
            name: self.name.clone(),
            single: (single, bound.0),
            greedy: self.greedy(&wide),
            half: (half, bound.1),
            layers: self.layers(&narrow),
        }
    }

    fn greedy(&self, artifact: &Path) -> (usize, usize) {
        let expected: Vec<i64> = self.golden["greedy"].data.iter().map(|x| *x as i64).collect();
        let out = self.run("generate", artifact, &["--max-tokens", &expected.len().to_string()]);
        let out: Value = serde_json::from_str(&out).expect("JSON");
        let found: Vec<i64> = out["tokens"][0].as_array().expect("ids").iter().filter_map(Value::as_i64).collect();
        // An early stop token ends ours; the recorded ids go on.
        let n = if self.sizes["seed"].is_null() { found.len().min(expected.len()) } else { expected.len() };
        (found.iter().zip(&expected).take_while(|(a, b)| a == b).count(), n)
    }

    /// Every layer on its recorded input; the share of equal elements of streams and norms that the layers leave.
    fn layers(&self, artifact: &Path) -> f64 {
        let path = |name: &str| self.work.path().join(name).to_str().expect("UTF-8").to_owned();
        let map = json!({
            "stream.{l}": "layers.{l}.x", "normed.{l}": "layers.{l}.norm",
            "left.{l}": "layers.{l}.x#3", "next.{l}": "layers.{l}.next.norm",
        });
        std::fs::write(path("map.json"), map.to_string()).expect("map");
        let layers = (0..).take_while(|l| self.golden.contains_key(&format!("stream.{}", l + 1))).count();
        let given = (0..layers).flat_map(|l| [format!("stream.{l}"), format!("normed.{l}")]);
        let given: BTreeMap<String, Numbers> = given.map(|n| (n.clone(), self.golden[&n].clone())).collect();
        write(Path::new(&path("given.safetensors")), &given);
        let out = self.score(artifact, &["--trace", &path("map.json"), "--inject", &path("given.safetensors")]);
        let (mut same, mut total) = (0usize, 0usize);
        for l in 0..layers {
            for (ours, theirs) in [("left", "stream"), ("next", "normed")] {
                let (ours, theirs) = (&out[&format!("{ours}.{l}")], &self.golden[&format!("{theirs}.{}", l + 1)]);
                assert_eq!(ours.shape, theirs.shape, "{}: layer {l}", self.name);
                same += ours.data.iter().zip(&theirs.data).filter(|(a, b)| close(**a, **b)).count();
                total += theirs.data.len();
            }
        }
        same as f64 / total.max(1) as f64
    }
}

/// Equal in bf16; of values kept in f32, equal but for the order of sums.
fn close(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-6 * b.abs()
}

/// Largest and rms difference.
fn difference(a: &Numbers, b: &Numbers) -> (f64, f64) {
    if a.shape != b.shape {
        return (f64::INFINITY, f64::INFINITY);
    }
    let d = || a.data.iter().zip(&b.data).map(|(x, y)| (f64::from(*x) - f64::from(*y)).abs());
    (d().fold(0.0, f64::max), (d().map(|x| x * x).sum::<f64>() / a.data.len().max(1) as f64).sqrt())
}

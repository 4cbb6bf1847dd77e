//! Artifacts whose kernels are libraries for this processor: generated text built over the host model (`codegen-templates/host_model.hpp`), run by
//! `beam-run` with a driver's library for it (`host_driver.cpp`) in the place of a device's.

use artifact::{Artifact, DeviceCode, KernelCode, Manifest, Provenance};
use codegen::{Generated, Machine, Source};
use ir::Mesh;
use passes::{Compile, Stages};
use serde_json::{Value, json};
use spec::{Choices, Library, check_path};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use suites::{Programs, root};
use targets::Target;

/// What every unit is compiled with. How patient ranks are is no matter of the processor's load.
const OPTIONS: [&str; 8] = [
    "-O1",
    "-std=c++17",
    "-DHOST_MODEL",
    "-DHOST_MODEL_PATIENCE=2000000000",
    "-w",
    "-Wno-psabi",
    "-fPIC",
    "-fno-gnu-unique",
];

/// A spec made small.
#[derive(Clone, Copy)]
pub struct Small<'a> {
    pub spec: &'a str,
    pub dims: &'a [(&'a str, u64)],
    /// Layers that are kept; all where there are none.
    pub layers: &'a [usize],
}

/// Its stages and kernels on a mesh, in buckets of one row for each of so many sequences and of prompts of so many tokens; as the target has
/// them where there are none.
pub fn generated(small: Small<'_>, mesh: &str, buckets: &[(ir::RowsPerSequence, u64)]) -> (Stages, Generated, Target) {
    let mut target = Target::load("h200-bf16").expect("a target");
    if !buckets.is_empty() {
        target.buckets.retain(|b| buckets.iter().any(|(rows, tokens)| b.rows == *rows && b.tokens == *tokens));
        assert_eq!(target.buckets.len(), buckets.len());
    }
    let mesh = Mesh::parse(mesh).expect("a mesh");
    let options = target.options_on(&mesh).into_iter().collect();
    let choices = Choices {
        act: target.act,
        options,
        dims: small.dims.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        layers: (!small.layers.is_empty()).then(|| small.layers.to_vec()),
        ..Choices::default()
    };
    let checked = check_path(&root().join("model-spec").join(small.spec), &Library::embedded(), &choices);
    let model =
        checked.model.unwrap_or_else(|| panic!("{}", spec::render(&checked.diagnostics, &checked.sources, false)));
    let compile = Compile { target: &target, mesh: &mesh, exact: true, unpack: &[] };
    let stages = Stages::compile(model, &compile).unwrap_or_else(|e| panic!("{}: {}; {}", e.code, e.message, e.help));
    let made = codegen::generate(&stages.kernels, &stages.plan, Machine::of(&target));
    assert!(made.missing.is_empty(), "{:?}", made.missing);
    (stages, made, target)
}

/// Where libraries are made.
pub struct Workshop {
    folder: tempfile::TempDir,
    /// Libraries by text.
    made: Mutex<BTreeMap<String, Vec<u8>>>,
}

fn compiler() -> Command {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut command = Command::new(compiler);
    command.arg("-I").arg(templates());
    command
}

fn templates() -> PathBuf {
    root().join("codegen-templates")
}

fn done(command: &mut Command, what: &str) {
    let made = command.output().unwrap_or_else(|e| panic!("a C++ compiler is needed, {command:?} does not start: {e}"));
    assert!(made.status.success(), "{what}: {}", String::from_utf8_lossy(&made.stderr));
}

impl Workshop {
    /// Builds the driver's library and what all units begin with.
    pub fn new() -> Workshop {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("all.hpp"), "#include \"prelude.cuh\"\n#include \"host_entry.hpp\"\n").expect("a header");
        let mut header = compiler();
        done(
            header.args(OPTIONS).args(["-x", "c++-header"]).arg(at("all.hpp")).arg("-o").arg(at("all.hpp.gch")),
            "header",
        );
        let mut driver = compiler();
        driver.args(["-O1", "-std=c++17", "-fPIC", "-shared"]).arg(templates().join("host_driver.cpp"));
        done(driver.arg("-o").arg(at("libcuda.so")), "driver");
        Workshop { folder, made: Mutex::default() }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Libraries of all units, by their names.
    pub fn libraries(&self, sources: &[Source]) -> BTreeMap<String, Vec<u8>> {
        let open: Vec<&Source> = {
            let made = self.made.lock().expect("libraries");
            sources.iter().filter(|s| !made.contains_key(&s.text)).collect()
        };
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Some(source) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let library = self.library(source);
                        self.made.lock().expect("libraries").insert(source.text.clone(), library);
                    }
                });
            }
        });
        let made = self.made.lock().expect("libraries");
        sources.iter().map(|s| (s.name.clone(), made[&s.text].clone())).collect()
    }

    fn library(&self, source: &Source) -> Vec<u8> {
        let (text, library) = (self.at(&format!("{}.cpp", source.name)), self.at(&format!("{}.so", source.name)));
        std::fs::write(&text, format!("{}\nHOST_ENTRY({})\n", source.text, source.name)).expect("a unit");
        let mut command = compiler();
        command.args(OPTIONS).args(["-shared", "-include"]).arg(self.at("all.hpp")).arg(&text).arg("-o").arg(&library);
        done(&mut command, &source.name);
        std::fs::read(&library).expect("a library")
    }

    /// Writes an artifact with libraries for machine code.
    pub fn artifact(&self, name: &str, (stages, made, target): (Stages, Generated, Target)) -> PathBuf {
        let mut libraries = self.libraries(&made.sources);
        let mut code = DeviceCode {
            arch: target.arch.clone(),
            compiler: "the host model".to_owned(),
            entries: made.entries,
            choice: made.choice,
            ..DeviceCode::default()
        };
        for source in made.sources {
            let kernel = KernelCode {
                name: source.name.clone(),
                threads: source.threads,
                registers: 0,
                shared_bytes: 0,
                dynamic_bytes: source.dynamic_bytes,
                stack_bytes: 0,
            };
            code.files.insert(kernel.cubin(), libraries.remove(&source.name).expect("its library"));
            code.files.insert(kernel.source(), source.text.into_bytes());
            code.kernels.push(kernel);
        }
        let facts = BTreeMap::from([("page_tokens".to_owned(), target.kv.page_tokens.into())]);
        let provenance = Provenance {
            compiler: "tests".to_owned(),
            target: artifact::Target { name: target.name, arch: target.arch, facts },
            missing: Vec::new(),
        };
        let recipes = artifact::recipes(&stages.kernels.facts);
        let memory = artifact::weight_memory(&stages.kernels, &recipes).expect("weights have places");
        let manifest = Manifest::new(&stages.kernels, provenance);
        let (kernels, plan) = (stages.kernels, stages.plan);
        let made =
            Artifact { manifest, kernels, plan, recipes, memory, device: Some(code), drafter: None, report: json!({}) };
        let folder = self.at(name);
        made.write(&folder, &[]).expect("it is written");
        folder
    }

    /// Runs `beam-run selftest` on the artifact; gives verdicts by graph and region, and the kernels that were started.
    pub fn selftest(&self, artifact: &Path, arguments: &[&str]) -> (Vec<Verdict>, BTreeSet<String>) {
        let log = artifact.with_extension("log");
        let mut command = self.command("selftest", artifact, &[&["--executor", "cuda", "--json"], arguments].concat());
        let done = command.env("HOST_MODEL_LOG", &log).output().expect("it runs");
        let out = String::from_utf8_lossy(&done.stdout);
        // Where a region is wrong, an error follows.
        let said = serde_json::Deserializer::from_str(&out).into_iter::<Value>().next();
        let regions = said.and_then(Result::ok).map(|said| said["regions"].clone()).filter(Value::is_array);
        let Some(Value::Array(regions)) = regions else {
            panic!("{arguments:?}: {out}{}", String::from_utf8_lossy(&done.stderr));
        };
        let started = std::fs::read_to_string(&log).expect("what was started").lines().map(str::to_owned).collect();
        let verdicts: Vec<Verdict> = regions.iter().map(Verdict::of).collect();
        let told = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.success(), verdicts.iter().all(|v| v.is_right), "{arguments:?}: {told}");
        (verdicts, started)
    }

    fn command(&self, name: &str, artifact: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(&Programs::built().beam_run);
        command.current_dir(root()).arg(name).arg(artifact).args(arguments);
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command
    }
}

/// What was found of a region.
#[derive(Debug)]
pub struct Verdict {
    pub region: String,
    pub kernels: Vec<String>,
    pub is_right: bool,
    pub compared: u64,
    pub no_numbers: u64,
    pub first: String,
}

impl Verdict {
    fn of(said: &Value) -> Verdict {
        let number = |of: &Value| of.as_u64().unwrap_or(0);
        let kernels = said["kernels"].as_array().into_iter().flatten();
        Verdict {
            region: said["region"].as_str().unwrap_or_default().to_owned(),
            kernels: kernels.filter_map(|k| Some(k.as_str()?.to_owned())).collect(),
            is_right: said["right"] == true,
            compared: number(&said["exact"]["compared"]) + number(&said["bounded"]["compared"]),
            no_numbers: number(&said["no_numbers"]),
            first: said["first"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

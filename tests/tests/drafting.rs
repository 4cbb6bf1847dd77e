//! The trained drafter beside the trained model: what another implementation recorded, step by step, and the processor
//! against the interpreter.

#[path = "drafting/damage.rs"]
mod damage;
#[path = "drafting/packing.rs"]
mod packing;

use artifact::{Artifact, Drafter, DrafterBlock};
use device::checkpoint::{Checkpoint, LoadOptions};
use device::{ExecutorKind, Weights, load_drafting, pool_pages_of};
use engine::{AcceptRule, Block, Draft, DraftRow, Executor, Sampling, SequenceRows, Step, StepOutput, WantedRow};
use ir::Mesh;
use passes::Compile;
use serde_json::Value;
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use suites::{Programs, nano, root};
use targets::Target;

/// Choices whose lead is smaller than this are those of the recording's own rounding.
const CLEAR: f64 = 1e-3;

fn drafter() -> PathBuf {
    root().join("examples/beam-nano-dflash2")
}

/// The artifact of a model and its drafter, written and read back.
fn compiled(model: &Path, draft: &Path, work: &Path) -> Artifact {
    let target = Target::load("cpu-f32").expect("target");
    let options: BTreeMap<_, _> = target.options_on(&Mesh::single()).into_iter().collect();
    let read = |path: &Path, choices: &Choices| {
        let checked = check_path(path, &Library::embedded(), choices);
        checked.model.unwrap_or_else(|| panic!("{:?}", checked.diagnostics))
    };
    let act = target.act;
    let full = read(model, &Choices { act, options: options.clone(), ..Choices::default() });
    let own = |block| {
        let target = Some(Box::new(full.clone()));
        Choices { act, options: options.clone(), target, draft_tokens: Some(block), ..Choices::default() }
    };
    let drafts = [2, 4, 8].iter().map(|block| read(draft, &own(*block))).collect();
    let paired = passes::pair(full.clone(), drafts, &Compile::one_device(&target)).unwrap_or_else(|e| panic!("{e}"));
    let (kernels, plan) = (paired.target.kernels, paired.target.plan);
    let blocks = paired.drafter.into_iter().map(|d| DrafterBlock::new(d.kernels, d.plan).expect("a block"));
    let drafter = Drafter::new(blocks.collect(), &kernels).expect("a drafter");
    let recipes = artifact::recipes(&kernels.facts);
    let memory = artifact::weight_memory(&kernels, &recipes).expect("weights in memory");
    let about = artifact::Target { name: target.name.clone(), arch: target.arch.clone(), facts: BTreeMap::new() };
    let provenance = artifact::Provenance { compiler: "test".to_owned(), target: about, missing: Vec::new() };
    let manifest = artifact::Manifest::new(&kernels, provenance);
    let (drafter, report) = (Some(drafter), Value::Null);
    let made = Artifact { manifest, kernels, plan, recipes, memory, device: None, drafter, report };
    let out = work.join("artifact");
    made.write(&out, &[]).expect("a folder");
    Artifact::load(&out).expect("an artifact")
}

/// The same by the compiler's command line.
fn compiled_by_command(model: &Path, draft: &Path, work: &Path) -> Artifact {
    let out = work.join("artifact");
    let text = |p: &Path| p.to_str().expect("UTF-8").to_owned();
    let args = ["compile", &text(model), "--draft", &text(draft), "--target", "cpu-f32", "-o", &text(&out)];
    let done = Programs::built().beamc(&args);
    assert_eq!(done.code, 0, "{}", done.err);
    Artifact::load(&out).expect("an artifact")
}

fn read(recipes: &[artifact::WeightRecipe], folder: &Path) -> Weights {
    let checkpoint = Checkpoint::open(folder).expect("a checkpoint");
    Weights::load(recipes, &checkpoint, &LoadOptions::default(), &mut |_| {}).expect("weights")
}

/// One sequence on an executor with a drafter.
struct Run {
    executor: Box<dyn Executor>,
    page_tokens: usize,
    /// Pages of the longest sequence.
    longest: usize,
    entry: String,
}

impl Run {
    fn new(artifact: &Artifact, weights: [&Weights; 2], kind: ExecutorKind, context: usize) -> Run {
        let pages = pool_pages_of(artifact, context, 1);
        let executor = load_drafting(artifact, weights[0], weights[1], kind, &pages).expect("an executor");
        let page_tokens = artifact.plan.kv[0].page_tokens as usize;
        let longest = context.div_ceil(page_tokens) + 1;
        Run { executor, page_tokens, longest, entry: artifact.plan.entries[0].name.clone() }
    }

    fn step(&self, tokens: &[i32], first: usize) -> Step {
        let pages = (first + tokens.len()).div_ceil(self.page_tokens);
        // Kinds may share one memory, page p of each at p times its size: each has pages behind those of the one before.
        let (mut end, mut tables) = (0u64, Vec::<Arc<[i32]>>::new());
        for kind in &self.executor.facts().kv {
            let from = end.div_ceil(kind.page_bytes()).max(1);
            tables.push((from..from + pages as u64).map(|page| page as i32).collect());
            end = (from + self.longest as u64) * kind.page_bytes();
        }
        let pages = Arc::new((0..pages as u32).collect());
        Step {
            entry: self.entry.clone(),
            tokens: tokens.to_vec(),
            positions: (first..first + tokens.len()).map(|p| p as i32).collect(),
            sequences: vec![SequenceRows { start: 0, len: tokens.len(), pages }],
            translation: tables,
            ..Step::default()
        }
    }

    fn run(&mut self, step: Step) -> StepOutput {
        let ticket = self.executor.submit(step).unwrap_or_else(|e| panic!("{e}"));
        self.executor.poll(ticket).expect("a step").expect("an output")
    }

    /// Feeds a prompt in two chunks; gives the first token of the answer.
    fn prompt(&mut self, tokens: &[i32]) -> i32 {
        let cut = tokens.len() / 3;
        let most = self.executor.facts().max_tokens;
        let mut first = 0;
        let mut chosen = None;
        for chunk in tokens[..cut].chunks(most).chain(tokens[cut..].chunks(most)) {
            let mut step = self.step(chunk, first);
            step.wanted = vec![wanted(chunk.len() - 1)];
            first += chunk.len();
            chosen = self.run(step).tokens[0].as_ref().map(|t| t.id);
        }
        chosen.expect("a token") as i32
    }

    fn draft(&mut self, anchor: i32, first: usize, rows: usize, temperature: f32) -> Draft {
        let mut step = self.step(&vec![anchor; rows], first);
        step.entry = self.executor.facts().draft.as_ref().expect("a drafter").entry.clone();
        let coins = (0..rows as u64 - 1).map(|slot| numerics::uniform(first as u64, slot)).collect();
        step.drafts = vec![DraftRow { temperature, coins }];
        self.run(step).drafts.remove(0)
    }

    /// Verifies a block greedily: the tokens of the accepted run and the one behind it.
    fn verify(&mut self, anchor: i32, first: usize, draft: &Draft) -> Vec<i32> {
        let tokens: Vec<i32> = std::iter::once(anchor).chain(draft.tokens.iter().map(|t| *t as i32)).collect();
        let mut step = self.step(&tokens, first);
        step.wanted = (0..tokens.len()).map(wanted).collect();
        let coins = vec![0.5; draft.tokens.len()];
        let (draft, rule) = (Arc::new(draft.clone()), AcceptRule::Token);
        step.blocks = vec![Block { sequence: 0, wanted: 0, draft, rule, coins, forced: None }];
        self.run(step).tokens.into_iter().flatten().map(|t| t.id as i32).collect()
    }
}

fn wanted(row: usize) -> WantedRow {
    WantedRow { row, sampling: Some(Sampling::default()), mask: None, logits: false }
}

fn ids(value: &Value) -> Vec<i32> {
    value.as_array().expect("ids").iter().map(|x| x.as_i64().expect("an id") as i32).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// Every step of every recorded prompt: anchor, candidates, path, what is accepted and what follows.
#[test]
fn recorded_steps_in_f32() {
    let work = tempfile::tempdir().expect("folder");
    let artifact = compiled(&nano(), &drafter(), work.path());
    let own = &artifact.drafter.as_ref().expect("a drafter").recipes;
    let weights = [read(&artifact.recipes, &nano()), read(own, &drafter())];
    let text = std::fs::read_to_string(drafter().join("eval/golden.json")).expect("golden");
    let golden: Value = serde_json::from_str(&text).expect("JSON");
    let (mut steps, mut slots, mut clear) = (0, 0, 0);
    for prompt in golden["prompts"].as_array().expect("prompts") {
        let (name, rows) = (&prompt["id"], prompt["block"].as_u64().expect("a block") as usize);
        let tokens = ids(&prompt["prompt_ids"]);
        let longest = tokens.len() + ids(&prompt["output_ids"]).len() + rows;
        let mut run = Run::new(&artifact, [&weights[0], &weights[1]], ExecutorKind::Cpu, longest);
        let mut anchor = run.prompt(&tokens);
        let mut first = tokens.len();
        for step in prompt["steps"].as_array().expect("steps") {
            let place = format!("{name}, block {rows}, position {first}");
            assert_eq!(
                (step["prefix"].as_u64(), ids(&Value::from(vec![step["anchor"].clone()]))[0]),
                (Some(first as u64), anchor),
                "{place}"
            );
            let draft = run.draft(anchor, first, rows, 0.0);
            let k = draft.candidates.len() / draft.tokens.len();
            let found = draft.candidates.chunks_exact(k);
            let gaps = step["candidate_gap"].as_array().expect("gaps");
            for ((slot, gap), found) in step["candidates"].as_array().expect("slots").iter().zip(gaps).zip(found) {
                slots += 1;
                if number(gap) > CLEAR {
                    let found: Vec<i32> = found.iter().map(|id| *id as i32).collect();
                    assert_eq!(found, ids(slot), "{place}");
                    clear += 1;
                }
            }
            if number(&step["margin"]) > CLEAR {
                assert_eq!(draft.tokens.iter().map(|t| *t as i32).collect::<Vec<_>>(), ids(&step["path"]), "{place}");
            }
            let run_of = run.verify(anchor, first, &draft);
            let accepted = step["accepted"].as_u64().expect("a count") as usize;
            assert!(number(&step["target_gap"]) > CLEAR, "{place}: the model itself is unsure");
            assert_eq!(run_of.len(), accepted + 1, "{place}");
            assert_eq!(run_of.last(), Some(&ids(&Value::from(vec![step["bonus"].clone()]))[0]), "{place}");
            first += run_of.len();
            anchor = *run_of.last().expect("a token");
            steps += 1;
        }
    }
    assert!(steps > 80 && clear * 10 > slots * 8, "{steps} steps, {clear} of {slots} slots have clear candidates");
}

/// A model with the fixture's width and vocabulary.
const SMALL: &str = "extends = \"beam-nano\"\n[dims]\nhidden = 96\nheads = 6\nhead_dim = 16\nvocab = 320\n";

/// The same two cycles on both executors: every choice is the same, and probabilities as near as sums in another order leave
/// them.
#[test]
fn the_processor_drafts_what_the_interpreter_drafts() {
    let work = tempfile::tempdir().expect("folder");
    let model = work.path().join("model.toml");
    std::fs::write(&model, SMALL).expect("a spec");
    let fixture = root().join("tests/fixtures/dflash2-tiny");
    let artifact = compiled(&model, &fixture, work.path());
    let own = &artifact.drafter.as_ref().expect("a drafter").recipes;
    let weights = [Weights::synthetic(&artifact.recipes, 7).expect("weights"), read(own, &fixture)];
    let mut runs =
        [ExecutorKind::Interp, ExecutorKind::Cpu].map(|kind| Run::new(&artifact, [&weights[0], &weights[1]], kind, 64));
    let prompt: Vec<i32> = (0..13).map(|i| (i * 31 + 5) % 317).collect();
    for (rows, temperature) in [(2, 0.0), (2, 0.7), (4, 0.0), (8, 0.7)] {
        let made = runs.each_mut().map(|run| {
            let mut anchor = run.prompt(&prompt);
            let mut first = prompt.len();
            let mut all = Vec::new();
            for _ in 0..3 {
                let draft = run.draft(anchor, first, rows, temperature);
                let tokens = run.verify(anchor, first, &draft);
                first += tokens.len();
                anchor = *tokens.last().expect("a token");
                all.push((draft, tokens));
            }
            all
        });
        let [truth, found] = &made;
        for (a, b) in truth.iter().zip(found) {
            assert_eq!((&a.0.tokens, &a.0.candidates, &a.1), (&b.0.tokens, &b.0.candidates, &b.1));
            let off = a.0.probabilities.iter().zip(&b.0.probabilities).map(|(x, y)| (x - y).abs());
            let off = off.fold(0.0, f32::max);
            // Scores of some tens, divided by the temperature, each a sum of a few hundred products.
            assert!(off < 1e-3, "blocks of {rows}: probabilities are off by {off}");
        }
    }
}

/// What a drafter's kind lives in: pages of the model where their rows have one shape, and pages of its own with the reason.
#[test]
fn reports_say_where_draft_rows_live() {
    let work = tempfile::tempdir().expect("folder");
    let artifact = compiled_by_command(&nano(), &drafter(), work.path());
    let report = &artifact.report["drafter"];
    assert_eq!(report["kv"][0]["lives_in"], "full");
    assert_eq!((report["parameters"].as_u64(), report["blocks"].clone()), (Some(1_124_608), vec![4, 8].into()));
    let model = work.path().join("model.toml");
    std::fs::write(&model, SMALL.replace("heads = 6\nhead_dim = 16", "heads = 6\nhead_dim = 32")).expect("a spec");
    let other = compiled_by_command(&model, &root().join("tests/fixtures/dflash2-tiny"), work.path());
    let kind = &other.report["drafter"]["kv"][0];
    assert!(kind["lives_in"].is_null(), "{kind}");
    let why = kind["own_pages_because"].as_str().expect("a reason");
    assert!(why.contains("2 heads of 16") && why.contains("2 heads of 32"), "{why}");
    assert_eq!(other.kv().len(), other.plan.kv.len() + 1);
}

/// A value that only a checkpoint can give has no number to be compiled with.
#[test]
fn specs_that_lack_a_value_are_not_compiled() {
    let work = tempfile::tempdir().expect("folder");
    let (spec, out) = (work.path().join("spec.toml"), work.path().join("artifact"));
    std::fs::write(&spec, "extends = \"beam-nano\"\n[values]\nrouted_scale = \"required\"\n").expect("a spec");
    let [spec, out] = [spec, out].map(|path| path.display().to_string());
    let done = Programs::built().beamc(&["compile", &spec, "--target", "cpu", "-o", &out]);
    assert!(
        done.code == 1 && done.err.contains("B0307") && done.err.contains("`routed_scale`"),
        "{} {}",
        done.code,
        done.err
    );
    assert!(!Path::new(&out).exists());
}

/// What does not belong to the model is refused by name: at compile by the config, at load by the tensors.
#[test]
fn drafters_of_other_models_are_refused_by_name() {
    let config = std::fs::read_to_string(drafter().join("config.json")).expect("a config");
    let work = tempfile::tempdir().expect("folder");
    let place = tempfile::tempdir().expect("folder");
    let cases = [
        ("\"vocab_size\": 2048", "\"vocab_size\": 2040", "vocab"),
        ("\"hidden_size\": 192", "\"hidden_size\": 208", "hidden"),
        ("\"mask_token_id\": 187", "\"mask_token_id\": 2048", "mask_id"),
        ("      7\n", "      8\n", "layer 8"),
        ("\"num_target_layers\": 8", "\"num_target_layers\": 9", "depth == target.layers"),
        ("    \"block_size\": 8,\n", "    \"block_size\": 17,\n", "trained <= 16"),
        ("    \"block_size\": 8,\n", "    \"block_size\": 1,\n", "trained >= 2"),
    ];
    for (from, to, word) in cases {
        assert!(config.contains(from), "the config has no {from}");
        std::fs::write(work.path().join("config.json"), config.replace(from, to)).expect("a config");
        let out = place.path().join("artifact");
        let args = [nano().display().to_string(), work.path().display().to_string(), out.display().to_string()];
        let done =
            Programs::built().beamc(&["compile", &args[0], "--draft", &args[1], "--target", "cpu-f32", "-o", &args[2]]);
        assert!(done.code == 1 && done.err.contains(word) && !out.exists(), "{to}: {} {}", done.code, done.err);
    }
    let artifact = compiled(&nano(), &drafter(), work.path());
    let own = &artifact.drafter.as_ref().expect("a drafter").recipes;
    let other = Checkpoint::open(&root().join("tests/fixtures/dflash2-tiny")).expect("a checkpoint");
    let refused = Weights::load(own, &other, &LoadOptions::default(), &mut |_| {}).expect_err("another's tensors");
    assert!(refused.to_string().contains("fc.weight"), "{refused}");
}

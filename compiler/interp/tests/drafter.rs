//! A drafter against stored values of another implementation: two cycles of context, draft, verification and commit, in
//! f32 stage by stage, and in bf16 as far as its roundings are fixed.

mod tiny;

use interp::{Env, MemoryCache, Tensor, WeightMap};
use ir::{DType, Model};
use tiny::{File, Notes, bools, difference, drafter, floats, ints, run, weights};

/// Stages in f32 agree this well: sums of up to 288 products of numbers near 1, in another order.
const STAGE: f32 = 1e-4;

/// Committed tokens of each request at the start.
const CONTEXTS: [usize; 3] = [13, 5, 9];

/// What the fixture's requests ask for: its third one is greedy.
const TOP_K: [i32; 3] = [1 << 30, 20, 1];
const TOP_P: [f32; 3] = [0.99, 0.9, 1.0];

struct Run {
    model: Model,
    weights: WeightMap,
    golden: File,
    cache: MemoryCache,
    block: usize,
    act: DType,
    mode: String,
}

impl Run {
    fn new(block: usize, act: DType) -> Run {
        let model = drafter(block as u64, act);
        let mode = format!("b{block}.{act}.");
        let golden = File::read("golden.safetensors");
        Run { weights: weights(&model), model, golden, cache: MemoryCache::new(Vec::new()), block, act, mode }
    }

    fn slots(&self) -> usize {
        self.block - 1
    }

    /// Stored numbers of this mode.
    fn stored(&self, name: &str) -> &[f32] {
        self.golden.get(&format!("{}{name}", self.mode))
    }

    /// Inputs, which are stored once.
    fn given(&self, name: &str) -> &[f32] {
        self.golden.get(&format!("b{}.f32.{name}", self.block))
    }

    fn chosen(&self, name: &str) -> Vec<i32> {
        self.golden.ints(&format!("{}{name}", self.mode))
    }

    /// Rows of committed tokens into the cache: features, positions and requests of each row, and whether it counts.
    fn context(&mut self, features: &[f32], rows: &[(usize, usize, bool)]) -> Notes {
        let axes = [("T", rows.len()), ("feats", 3), ("source", 96)];
        let mut env = Env::new();
        env.insert("f", floats(&axes, self.act, features));
        env.insert("pos", ints(&axes[..1], &rows.iter().map(|r| r.1 as i32).collect::<Vec<_>>()));
        env.insert("live", bools(&axes[..1], &rows.iter().map(|r| r.2).collect::<Vec<_>>()));
        self.cache.begin_step(rows.iter().map(|r| r.0).collect());
        let mut notes = Notes::default();
        run(&self.model, "context", env, &self.weights, &mut self.cache, &mut notes);
        notes
    }

    /// One block of each request; a temperature of 0 is a greedy one.
    fn draft(&mut self, anchors: &[i32], starts: &[i32], temps: &[f32], mut notes: Notes) -> (Notes, [Tensor; 3]) {
        let (block, slots) = (self.block, self.slots());
        let at: Vec<i32> = starts.iter().flat_map(|p| (0..block as i32).map(move |i| p + i)).collect();
        let mut env = Env::new();
        env.insert("anchor", ints(&[("S", 3)], anchors));
        env.insert("pos", ints(&[("S", 3), ("block", block)], &at));
        env.insert("temp", floats(&[("S", 3)], DType::F32, temps));
        env.insert("coin", floats(&[("S", 3), ("slots", slots)], DType::F32, self.given("in.walk_uniforms")));
        self.cache.begin_step((0..3 * block).map(|row| row / block).collect());
        let out = run(&self.model, "draft", env, &self.weights, &mut self.cache, &mut notes);
        let result = |i: usize| (*out[&format!("result.{i}")]).clone();
        (notes, [result(0), result(1), result(2)])
    }

    fn near(&self, name: &str, found: &Tensor, within: f32) {
        let off = difference(found, self.stored(name));
        assert!(off <= within, "{}{name} is off by {off}, {within} is allowed", self.mode);
    }

    fn equal(&self, name: &str, found: &Tensor) {
        assert_eq!(found.ints().expect("whole numbers"), self.chosen(name), "{}{name}", self.mode);
    }

    /// The requests' own temperatures, 0 where one is greedy.
    fn temperatures(&self) -> Vec<f32> {
        let greedy = self.given("in.greedy_mask");
        self.given("in.temperatures").iter().zip(greedy).map(|(t, g)| if *g == 0.0 { *t } else { 0.0 }).collect()
    }

    /// Keys and values that a function made for its rows, layer after layer, as the fixture stacks them.
    fn keys_and_values(&self, notes: &Notes, keep: &[bool]) -> [Vec<f32>; 2] {
        ["result.0", "result.1"].map(|name| {
            let layers =
                (0..self.model.facts.layers()).map(|l| notes.layer(l, "keys", name).floats().expect("numbers"));
            let rows = layers.flat_map(|data| data.chunks_exact(data.len() / keep.len()).zip(keep));
            rows.filter(|(_, keep)| **keep).flat_map(|(row, _)| row.iter().copied()).collect()
        })
    }
}

/// Rows of the first context.
fn first_rows() -> Vec<(usize, usize, bool)> {
    let of = |(request, n): (usize, &usize)| (0..*n).map(move |at| (request, at, true));
    CONTEXTS.iter().enumerate().flat_map(of).collect()
}

fn off(found: &[f32], stored: &[f32]) -> f32 {
    assert_eq!(found.len(), stored.len());
    found.iter().zip(stored).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Every stage of one block in f32; leaves what the mixed batch drafted.
fn stages(run: &mut Run, cycle: &str, anchors: &[i32], starts: &[i32]) -> [Tensor; 3] {
    let (notes, [tokens, ids, _]) = run.draft(anchors, starts, &[0.0; 3], Notes::default());
    let name = |stage: &str| format!("{cycle}.{stage}");
    run.equal(&name("block_ids"), notes.entry("ids"));
    run.near(&name("layer0_attn_in"), notes.layer(0, "layer", "h#2"), STAGE);
    run.near(&name("layer0_attn_out"), notes.layer(0, "layer", "o"), STAGE);
    for l in 0..3 {
        run.near(&name(&format!("layer{l}_block_k")), notes.layer(l, "keys", "result.0"), STAGE);
        run.near(&name(&format!("layer{l}_block_v")), notes.layer(l, "keys", "result.1"), STAGE);
        run.near(&name(&format!("layer{l}_residual_mid")), notes.layer(l, "layer", "x#2"), STAGE);
        run.near(&name(&format!("layer{l}_branch_out")), notes.layer(l, "layer", "m#2"), STAGE);
    }
    run.near(&name("draft_hidden"), notes.entry("y"), STAGE);
    run.equal(&name("candidate_ids"), &ids);
    run.near(&name("unary"), notes.entry("u"), STAGE);
    run.near(&name("selector_hidden"), notes.entry("h"), STAGE);
    run.near(&name("lattice"), notes.entry("score"), STAGE);
    run.equal(&name("greedy_tokens"), &tokens);
    let mixed = run.temperatures();
    let (_, drafted) = run.draft(anchors, starts, &mixed, Notes::default());
    run.equal(&name("sampled_tokens"), &drafted[0]);
    run.near(&name("q_rows"), &drafted[2], STAGE);
    drafted
}

/// The three rules on the target's logits.
fn verify(run: &mut Run, [tokens, ids, q]: [Tensor; 3]) {
    let (block, slots) = (run.block, run.slots());
    let mut env = Env::new();
    env.insert("tokens", tokens);
    env.insert("ids", ids);
    env.insert("q", q);
    let line = [("S", 3), ("block", block), ("vocab", 320)];
    env.insert("z", floats(&line, DType::F32, run.stored("verify.target_logits")));
    env.insert("temp", floats(&line[..1], DType::F32, run.given("in.temperatures")));
    env.insert("top_k", ints(&line[..1], &TOP_K));
    env.insert("top_p", floats(&line[..1], DType::F32, &TOP_P));
    env.insert("coin", floats(&[("S", 3), ("slots", slots)], DType::F32, run.given("in.accept_coins")));
    env.insert("last", floats(&line[..1], DType::F32, run.given("in.final_coins")));
    let out = tiny::run(&run.model, "verify", env, &run.weights, &mut run.cache, &mut Notes::default());
    let result = |i: usize| &*out[&format!("result.{i}")];
    run.near("verify.target_probs", result(0), STAGE);
    let kept = |x: &f32| *x > 0.0;
    let (found, stored) = (result(0).floats().expect("numbers"), run.stored("verify.target_probs"));
    assert!(found.iter().map(kept).eq(stored.iter().map(kept)), "another set of tokens may be drawn");
    for (i, rule) in ["greedy", "token", "block"].into_iter().enumerate() {
        let at = [1, 3, 6][i];
        run.equal(&format!("verify.{rule}_accept"), result(at));
        run.equal(&format!("verify.{rule}_bonus"), result(at + 1));
    }
    run.near("verify.token_residual", result(5), STAGE);
    run.near("verify.block_residual", result(8), STAGE);
}

/// Rows of the verified block: those that were accepted count.
fn committed(run: &Run) -> Vec<(usize, usize, bool)> {
    let accepted = run.golden.ints(&format!("b{}.f32.verify.greedy_accept", run.block));
    let rows = (0..3).flat_map(|request| (0..run.block).map(move |i| (request, i)));
    rows.map(|(request, i)| (request, CONTEXTS[request] + i, i <= accepted[request] as usize)).collect()
}

fn two_cycles_in_f32(block: usize) {
    let mut run = Run::new(block, DType::F32);
    let features = run.given("in.ctx_features").to_vec();
    let notes = run.context(&features, &first_rows());
    run.near("ctx_hidden", notes.entry("c#2"), STAGE);
    let made = run.keys_and_values(&notes, &[true; 27]);
    for (made, name) in made.iter().zip(["ctx_k", "ctx_v"]) {
        assert!(off(made, run.stored(name)) <= STAGE, "{name}");
    }
    let starts = CONTEXTS.map(|n| n as i32);
    let anchors = run.chosen("in.anchor_ids");
    let drafted = stages(&mut run, "c1", &anchors, &starts);
    verify(&mut run, drafted);

    let rows = committed(&run);
    let keep: Vec<bool> = rows.iter().map(|r| r.2).collect();
    let features = run.given("commit.features").to_vec();
    let notes = run.context(&features, &rows);
    let made = run.keys_and_values(&notes, &keep);
    for (made, name) in made.iter().zip(["commit.k", "commit.v"]) {
        assert!(off(made, run.stored(name)) <= STAGE, "{name}");
    }
    let (anchors, starts) = (run.chosen("verify.greedy_bonus"), run.chosen("verify.greedy_new_len"));
    stages(&mut run, "c2", &anchors, &starts);
}

#[test]
fn blocks_of_four_agree_in_f32() {
    two_cycles_in_f32(4);
}

#[test]
fn blocks_of_eight_agree_in_f32() {
    two_cycles_in_f32(8);
}

/// Spacing of bf16 numbers as large as the largest.
fn spacing(numbers: &[f32]) -> f32 {
    let largest = numbers.iter().map(|x| x.abs()).fold(f32::MIN_POSITIVE, f32::max);
    2f32.powi(largest.log2().floor() as i32 - 7)
}

/// Stages of one cycle in bf16: the block as a whole within what its README allows, the rest from the stored rows on.
fn rounded_stages(run: &mut Run, cycle: &str, anchors: &[i32], starts: &[i32]) {
    let name = |stage: &str| format!("{cycle}.{stage}");
    let (notes, _) = run.draft(anchors, starts, &[0.0; 3], Notes::default());
    run.near(&name("draft_hidden"), notes.entry("y"), 0.06);
    let stored =
        floats(&[("S", 3), ("block", run.block), ("hidden", 96)], DType::Bf16, run.stored(&name("draft_hidden")));
    let (notes, [tokens, ids, _]) = run.draft(anchors, starts, &[0.0; 3], Notes::replacing("y", stored));
    run.equal(&name("candidate_ids"), &ids);
    // The logits that the candidates have are bf16 before the cap, the sum of products is bf16 before it joins them: a sum
    // in another order may round each to the neighbour.
    let (unary, lattice) = (run.stored(&name("unary")).to_vec(), run.stored(&name("lattice")).to_vec());
    run.near(&name("unary"), notes.entry("u"), spacing(&unary));
    run.near(&name("lattice"), notes.entry("score"), spacing(&unary) + spacing(&lattice));
    run.equal(&name("greedy_tokens"), &tokens);
}

fn two_cycles_in_bf16(block: usize) {
    let mut run = Run::new(block, DType::Bf16);
    let features = run.given("in.ctx_features").to_vec();
    let notes = run.context(&features, &first_rows());
    // Two roundings stand between the features and these, and three before keys: each may go to the neighbour.
    let hidden = run.stored("ctx_hidden").to_vec();
    run.near("ctx_hidden", notes.entry("c#2"), 2.0 * spacing(&hidden));
    let made = run.keys_and_values(&notes, &[true; 27]);
    for (made, name) in made.iter().zip(["ctx_k", "ctx_v"]) {
        assert!(off(made, run.stored(name)) <= 5.0 * spacing(run.stored(name)), "{name}");
    }
    let anchors = run.golden.ints(&format!("b{block}.f32.in.anchor_ids"));
    rounded_stages(&mut run, "c1", &anchors, &CONTEXTS.map(|n| n as i32));
    let features = run.given("commit.features").to_vec();
    run.context(&features, &committed(&run));
    let of = |name: &str| run.golden.ints(&format!("b{block}.f32.verify.{name}"));
    let (anchors, starts) = (of("greedy_bonus"), of("greedy_new_len"));
    rounded_stages(&mut run, "c2", &anchors, &starts);
}

#[test]
fn blocks_of_four_agree_in_bf16() {
    two_cycles_in_bf16(4);
}

#[test]
fn blocks_of_eight_agree_in_bf16() {
    two_cycles_in_bf16(8);
}

/// What is told of the fixture's config with one text replaced by another: codes and messages.
fn told(from: &str, to: &str, choices: &spec::Choices) -> Vec<(&'static str, String)> {
    let text = std::fs::read_to_string(tiny::folder().join("config.json")).expect("a config");
    assert!(text.contains(from), "the config has no {from}");
    let folder = std::env::temp_dir().join(format!("drafter-{}-{}", std::process::id(), numerics::hash_name(to)));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("config.json"), text.replace(from, to)).expect("a file");
    let read = spec::check_path(&folder, &spec::Library::embedded(), choices);
    std::fs::remove_dir_all(&folder).expect("the folder");
    assert!(read.model.is_none(), "{to} is taken");
    read.diagnostics.into_iter().map(|d| (d.code, d.message)).collect()
}

/// What does not fit the target, and what a drafter's config lacks, is told by name.
#[test]
fn configs_that_do_not_fit_are_refused_by_name() {
    let fitting = spec::Choices { target: Some(Box::new(tiny::target())), ..spec::Choices::default() };
    let cases = [
        ("\"vocab_size\": 320", "\"vocab_size\": 318", "B0038", "`vocab`"),
        ("\"hidden_size\": 96", "\"hidden_size\": 112", "B0038", "`hidden`"),
        ("\"mask_token_id\": 317", "\"mask_token_id\": 320", "B0032", "mask_id"),
        ("\"mask_token_id\": 317,", "", "B0406", "mask_token_id"),
        ("\"selector_rank\": 12,", "", "B0406", "selector_rank"),
        ("\"selector_top_k\": 4,", "", "B0406", "selector_top_k"),
        ("      6\n", "      8\n", "B0039", "layer 8"),
        ("\"conv_group_size\": 16", "\"conv_group_size\": 17", "B0017", "hidden"),
        ("\"is_causal\": false", "\"is_causal\": true", "B0404", "is_causal"),
        ("\"block_size\": 8", "\"block_size\": 8, \"pairs\": 2", "B0409", "pairs"),
    ];
    for (from, to, code, word) in cases {
        let told = told(from, to, &fitting);
        assert!(told.iter().any(|(c, text)| *c == code && text.contains(word)), "{to}: {told:?}");
    }
    // The built-in spec names another target, which has another depth.
    let told = told("\"vocab_size\": 320", "\"vocab_size\":  320", &spec::Choices::default());
    assert!(matches!(told[..], [("B0032", ref text)] if text.contains("target.layers")), "{told:?}");
}

/// A target is no drafter; two that name each other are told apart from an endless reading.
#[test]
fn targets_that_lead_back_are_refused() {
    let folder = std::env::temp_dir().join(format!("targets-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, target) in [("a", "b"), ("b", "a"), ("own", "own")] {
        let text = format!("extends = \"beam-nano\"\n[model]\ntarget = \"{target}.toml\"\n");
        std::fs::write(folder.join(format!("{name}.toml")), text).expect("a file");
    }
    for name in ["a", "own"] {
        let path = folder.join(format!("{name}.toml"));
        let read = spec::check_path(&path, &spec::Library::embedded(), &spec::Choices::default());
        let told: Vec<(&str, &str)> = read.diagnostics.iter().map(|d| (d.code, d.message.as_str())).collect();
        assert!(matches!(told[..], [("B0038", text)] if text.ends_with("is a drafter itself")), "{told:?}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}

/// The drafter of the large model and that of the small one have the parameters that their checkpoints have.
#[test]
fn built_in_drafters_count_their_own_weights() {
    let library = spec::Library::embedded();
    let count = |name: &str| {
        let text = library.spec(name).expect("a built-in spec");
        let read = spec::check_text(name, text, &library, &spec::Choices::default());
        let model = read.model.unwrap_or_else(|| panic!("{:?}", read.diagnostics));
        ir::verify_model(&model).expect("a model that obeys its rules");
        let codes: Vec<&str> = read.diagnostics.iter().map(|d| d.code).collect();
        (model.facts.parameters(), codes)
    };
    assert_eq!(count("beam-dflash2"), (1_927_484_672, vec!["B0307"]));
    assert_eq!(count("beam-nano-dflash2"), (1_124_608, Vec::new()));
}

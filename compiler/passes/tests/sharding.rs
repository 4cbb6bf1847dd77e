//! Each rule on a case small enough to read, and the bits of every rank against the witness.

use interp::{Context, Data, Env, MemoryCache, NoHooks, Outputs, RankWeights, Tensor, WeightMap};
use ir::{DType, Extent, Mesh, Module, Scope};
use passes::validate::check_witness;
use passes::{Compile, PassError, Refined};
use targets::Target;

/// A module of one graph that runs before no layers.
fn module(header: &str, graph: &str) -> Module {
    let text = format!("module m act bf16 {header} entry e {{ graph first {graph} graph last () -> () {{ }} }}");
    let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(ir::verify_module(&module), Ok(()));
    module
}

/// The same with results, which only the graph after the layers has.
fn with_results(header: &str, graph: &str) -> Module {
    let text = format!("module m act bf16 {header} entry e {{ graph first () -> () {{ }} graph last {graph} }}");
    ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn sharded(module: &Module, mesh: &str) -> Result<Refined, PassError> {
    let target = Target::load("cpu").expect("a target");
    let mesh = Mesh::parse(mesh).expect("a mesh");
    let refined = passes::shard::run(module, &Compile { target: &target, mesh: &mesh, exact: true, unpack: &[] })?;
    assert_eq!(ir::verify_module(&refined.module), Ok(()), "{}", ir::print_module(&refined.module, false));
    let text = ir::print_module(&refined.module, false);
    let back = ir::parse_module(&text).expect("text that parses");
    assert_eq!(ir::print_module(&back, false), text);
    if let Some(witness) = &refined.witness {
        check_witness(module, witness.clone()).unwrap_or_else(|e| panic!("{e}\n{}", ir::print_module(witness, false)));
    }
    Ok(refined)
}

fn text(refined: &Refined) -> String {
    ir::print_module(&refined.module, false)
}

fn has(refined: &Refined, lines: &[&str]) {
    let text = text(refined);
    for line in lines {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
}

/// Seeded weights; `change` may replace elements.
fn weights(module: &Module, change: &dyn Fn(&str, &mut Vec<f32>)) -> WeightMap {
    let mut map = WeightMap::new();
    for weight in &module.facts.weights {
        let key = numerics::hash_name(&weight.name);
        let mut data: Vec<f32> = (0..weight.elements()).map(|i| numerics::synthetic(7, key, i)).collect();
        change(&weight.name, &mut data);
        if weight.dtype == DType::Bf16 {
            numerics::round_bf16_in_place(&mut data);
        }
        let length = |a: &ir::Axis| if let Extent::Fixed(n) = a.extent { n as usize } else { 0 };
        let axes = weight.ty().axes.iter().map(|a| (a.name.clone(), length(a))).collect();
        let tensor = Tensor::new(axes, weight.dtype, Data::F32(data)).expect("a weight");
        map.insert(weight.name.clone(), (weight.scope == Scope::Layer).then_some(0), tensor);
    }
    map
}

fn alone(module: &Module, weights: &WeightMap, env: &Env) -> Env {
    let mut cache = MemoryCache::new(vec![0; 8]);
    let mut env = env.clone();
    let mut context = Context { layer: None, weights, cache: &mut cache, hooks: &mut NoHooks };
    interp::run_entry(&module.entries[0], &module.facts, &mut env, &mut context).expect("one device runs");
    env
}

fn on_ranks(module: &Module, weights: &WeightMap, env: &Env) -> Vec<Env> {
    let sharding = module.sharding.as_ref().expect("a mesh");
    let n = sharding.mesh.ranks() as usize;
    let parts: Vec<RankWeights<'_>> = (0..n).map(|r| RankWeights::new(weights, sharding, r as u64)).collect();
    let mut caches = vec![MemoryCache::new(vec![0; 8]); n];
    let mut hooks = vec![NoHooks; n];
    let mut envs = vec![env.clone(); n];
    let rest = parts.iter().zip(&mut caches).zip(&mut hooks);
    let mut contexts: Vec<Context<'_>> =
        rest.map(|((w, c), h)| Context { layer: None, weights: w, cache: c, hooks: h }).collect();
    let _: Vec<Outputs> = interp::run_ranks(&module.entries[0], module, &mut envs, &mut contexts).expect("ranks run");
    envs
}

/// Every rank leaves the bits of the witness; where no sum was cut, those of the old graph.
fn equal(old: &Module, refined: &Refined, weights: &WeightMap, env: &Env, result: &str, exact: bool) -> Vec<f32> {
    let witness = alone(refined.witness.as_ref().expect("a witness"), weights, env);
    let before = alone(old, weights, env);
    let wanted = witness.get(result).expect("a result").clone();
    for (rank, env) in on_ranks(&refined.module, weights, env).iter().enumerate() {
        let found = env.get(result).expect("a result");
        assert!(found.same(&wanted), "rank {rank}: {found:?} against {wanted:?}");
    }
    assert!(!exact || before.get(result).is_some_and(|b| b.same(&wanted)), "{before:?} became {wanted:?}");
    wanted.floats().expect("floats").to_vec()
}

fn tokens(name: &str, axes: &[(&str, usize)], ids: &[i32]) -> (String, Tensor) {
    (name.to_owned(), Tensor::i32(axes, ids.to_vec()).expect("ids"))
}

fn rows(name: &str, axes: &[(&str, usize)]) -> (String, Tensor) {
    let n: usize = axes.iter().map(|a| a.1).product();
    let data = (0..n).map(|i| numerics::synthetic(3, numerics::hash_name(name), i as u64)).collect();
    (name.to_owned(), Tensor::bf16(axes, data).expect("rows"))
}

const DENSE: &str = "dim hidden = 4 dim ffn = 8 shard ffn = [tp]
    weight model up: bf16[ffn, hidden] weight model down: bf16[hidden, ffn]";
const DENSE_GRAPH: &str = "(%x) -> (y = %y) { axes T = rows
    %x: bf16[T, hidden] = input x
    %u: bf16[ffn, hidden] = weight model up
    %g: f32[T, ffn] = linear over [hidden] order any (%x, %u)
    %h: bf16[T, ffn] = round bf16 (%g)
    %d: bf16[hidden, ffn] = weight model down
    %p: f32[T, hidden] = linear over [ffn] order any (%h, %d)
    %y: bf16[T, hidden] = round bf16 (%p) }";

#[test]
fn columns_stay_apart_and_rows_are_added_before_the_rounding() {
    let old = module(DENSE, DENSE_GRAPH);
    let new = sharded(&old, "tp=4").expect("sharded");
    has(
        &new,
        &[
            "mesh [tp = 4]",
            "place weight model up: ffn over [tp]",
            "axes T = rows, ffn = 2",
            "%u: bf16[ffn, hidden] = weight model up",
            "%5: f32[T, hidden] = linear over [ffn] order any (%h, %d)",
            "%p: f32[T, hidden] = all_reduce over [tp] order serial (%5)",
            "%y: bf16[T, hidden] = round bf16 (%p)",
        ],
    );
    let witness = ir::print_module(new.witness.as_ref().expect("a witness"), false);
    assert!(witness.contains("linear over [ffn] order split 4 any (%h, %d)"), "{witness}");
    let env: Env = [rows("x", &[("T", 3), ("hidden", 4)])].into_iter().collect();
    equal(&old, &new, &weights(&old, &|_, _| {}), &env, "y", false);
}

#[test]
fn a_table_read_by_ids_is_exact_to_the_sign_of_zero() {
    let old = module(
        "dim hidden = 2 dim vocab = 6 shard vocab = [tp] weight model embed: bf16[vocab, hidden]",
        "(%t) -> (x = %x) { axes T = rows
        %t: i32<vocab>[T] = input t
        %e: bf16[vocab, hidden] = weight model embed
        %x: bf16[T, hidden] = gather over vocab (%e, %t) }",
    );
    let new = sharded(&old, "tp=3").expect("sharded");
    has(
        &new,
        &[
            "%t.own: i32<vocab>[T] = own vocab over [tp] (%t)",
            "bf16[T, hidden] = gather over vocab (%e, %t.own)",
            "f32[T, hidden] = all_reduce over [tp] order serial",
            "%x: bf16[T, hidden] = round bf16",
        ],
    );
    let special =
        |_: &str, data: &mut Vec<f32>| data[..5].copy_from_slice(&[-0.0, 0.0, f32::NAN, f32::INFINITY, 1e-40]);
    let env: Env = [tokens("t", &[("T", 7)], &[5, 0, 1, 2, 3, 4, 0])].into_iter().collect();
    let found = equal(&old, &new, &weights(&old, &special), &env, "x", true);
    assert_eq!((found[2].to_bits(), found[3].to_bits()), (0x8000_0000, 0));
    assert!(found[4].is_nan() && found[5].is_infinite());
}

const EXPERTS: &str = "dim hidden = 4 dim experts = 6 dim expert_ffn = 4 dim picked = 2
    shard experts = [ep] shard expert_ffn = [tp]
    weight model router: f32[experts, hidden]
    weight model up: bf16[experts, expert_ffn, hidden] weight model down: bf16[experts, hidden, expert_ffn]";

/// `y` is what one expert gives; the rest is `tail`.
fn experts(tail: &str) -> String {
    format!(
        "(%x) -> (o = %o) {{ axes T = rows
        %x: bf16[T, hidden] = input x
        %r: f32[experts, hidden] = weight model router
        %s: f32[T, experts] = linear over [hidden] order any (%x, %r)
        %w: f32[T, picked] = top values 2 over experts into picked (%s)
        %ids: i32<experts>[T, picked] = top ids 2 over experts into picked (%s)
        %u: bf16[experts, expert_ffn, hidden] = weight model up
        %g: f32[T, picked, expert_ffn] = linear over [hidden] order any (%x, %u, %ids)
        %h: bf16[T, picked, expert_ffn] = round bf16 (%g)
        %e: f32[T, picked, expert_ffn] = exp (%h)
        %a: bf16[T, picked, expert_ffn] = round bf16 (%e)
        %d: bf16[experts, hidden, expert_ffn] = weight model down
        %y: f32[T, picked, hidden] = linear over [expert_ffn] order any (%a, %d, %ids)
        {tail} }}"
    )
}

const SINGLE: &str = "%m: f32[T, picked, hidden] = mul (%w, %y)
        %o: f32[T, hidden] = reduce sum over picked order any (%m)";
const LIBRARY: &str = "%b: bf16[T, picked, hidden] = round bf16 (%y)
        %m: f32[T, picked, hidden] = mul (%w, %b)
        %o: f32[T, hidden] = reduce sum over picked order fold (%m)";

#[test]
fn whole_experts_are_exchanged_once_rounded_and_nothing_else_is() {
    let old = module(EXPERTS, &experts(LIBRARY));
    let new = sharded(&old, "ep=3").expect("sharded");
    has(
        &new,
        &[
            "place weight model up: experts over [ep]",
            "%ids.own: i32<experts>[T, picked] = own experts over [ep] (%ids)",
            "linear over [hidden] order any (%x, %u, %ids.own)",
            "bf16[T, picked, hidden] = round bf16 (%y)",
            "%b: bf16[T, picked, hidden] = round bf16",
        ],
    );
    assert_eq!(text(&new).matches("all_reduce").count(), 1, "{}", text(&new));
    // The router selects along the experts, so it is whole.
    assert!(!text(&new).contains("place weight model router"));
    let env: Env = [rows("x", &[("T", 5), ("hidden", 4)])].into_iter().collect();
    equal(&old, &new, &weights(&old, &|_, _| {}), &env, "o", true);
}

#[test]
fn an_open_sum_over_experts_is_added_after_it() {
    let old = module(EXPERTS, &experts(SINGLE));
    for mesh in ["tp=2", "tp=4", "ep=2", "ep=3", "tp=2,ep=3", "ep=2,tp=4"] {
        let new = sharded(&old, mesh).expect("sharded");
        let text = text(&new);
        assert_eq!(text.matches("all_reduce").count(), 1, "{mesh}\n{text}");
        assert!(text.contains("%o: f32[T, hidden] = all_reduce over "), "{mesh}\n{text}");
        let env: Env = [rows("x", &[("T", 5), ("hidden", 4)])].into_iter().collect();
        equal(&old, &new, &weights(&old, &|_, _| {}), &env, "o", false);
    }
}

#[test]
fn a_rounding_between_keeps_the_sum_over_ranks_before_it() {
    let old = module(EXPERTS, &experts(LIBRARY));
    let new = sharded(&old, "tp=2").expect("sharded");
    has(&new, &["%y: f32[T, picked, hidden] = all_reduce over [tp]", "%b: bf16[T, picked, hidden] = round bf16 (%y)"]);
    let both = sharded(&old, "tp=2,ep=2").expect("sharded");
    has(&both, &["all_reduce over [tp] order serial", "all_reduce over [ep] order serial"]);
    let env: Env = [rows("x", &[("T", 5), ("hidden", 4)])].into_iter().collect();
    for new in [new, both] {
        equal(&old, &new, &weights(&old, &|_, _| {}), &env, "o", false);
    }
}

#[test]
fn what_a_rank_does_not_own_never_leaks() {
    let old = module(EXPERTS, &experts(SINGLE));
    let new = sharded(&old, "ep=3").expect("sharded");
    // The expert that a rank reads for a row it does not own would be its own first one, here full of NaN.
    let poisoned = |name: &str, data: &mut Vec<f32>| {
        let each = data.len() / 6;
        match name {
            "router" => data.fill(0.25),
            _ => data[4 * each..5 * each].fill(f32::NAN),
        }
    };
    // Equal scores pick experts 0 and 1; rank 2 has experts 4 and 5.
    let env: Env = [rows("x", &[("T", 3), ("hidden", 4)])].into_iter().collect();
    let found = equal(&old, &new, &weights(&old, &poisoned), &env, "o", true);
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
}

#[test]
fn results_are_gathered() {
    let old = with_results(
        "dim hidden = 4 dim vocab = 6 shard vocab = [tp] weight model head: bf16[vocab, hidden]",
        "(%x) -> (z = %z) { axes T = rows
        %x: bf16[T, hidden] = input x
        %w: bf16[vocab, hidden] = weight model head
        %z: f32[T, vocab] = linear over [hidden] order any (%x, %w) }",
    );
    let old = old.with_entries(given(old.entries.clone()));
    let new = sharded(&old, "tp=2").expect("sharded");
    has(&new, &["%z.whole: f32[T, vocab=6] = all_gather vocab over [tp] into vocab (%z)", "z = %z.whole"]);
    let env: Env = [rows("x", &[("T", 3), ("hidden", 4)])].into_iter().collect();
    equal(&old, &new, &weights(&old, &|_, _| {}), &env, "z", true);
}

/// Entries whose first graph takes what the last one reads.
fn given(mut entries: Vec<ir::Entry>) -> Vec<ir::Entry> {
    for entry in &mut entries {
        let mut first = ir::GraphBuilder::new();
        for id in &entry.last.inputs {
            if let Some(name) = entry.last.input_name(*id) {
                first.input(name, entry.last.node(*id).ty.clone());
            }
        }
        entry.first = first.finish();
    }
    entries
}

const HEADS: &str = "dim hidden = 4 dim heads = 8 dim kv_heads = 2 dim head_dim = 2
    layers 0: attn = near
    kv near: k [kv_heads, head_dim] v [kv_heads, head_dim] layers [0]
    weight layer q: bf16[heads head_dim, hidden] weight layer k: bf16[kv_heads head_dim, hidden]";

fn attention(shard: &str) -> Module {
    let text = format!(
        "module m act bf16 {HEADS} {shard} entry e {{
        graph first (%x, %pos) -> () {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %pos: i32[T] = input pos }}
        class near {{attn = near}} (%x, %pos) -> (x = %o) {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %pos: i32[T] = input pos
            %wq: bf16[heads, head_dim, hidden] = weight layer q
            %pq: f32[T, heads, head_dim] = linear over [hidden] order any (%x, %wq)
            %q: bf16[T, heads, head_dim] = round bf16 (%pq)
            %wk: bf16[kv_heads, head_dim, hidden] = weight layer k
            %pk: f32[T, kv_heads, head_dim] = linear over [hidden] order any (%x, %wk)
            %k: bf16[T, kv_heads, head_dim] = round bf16 (%pk)
            %c: cache = store kind near (%k, %k, %pos)
            %a: f32[T, heads, head_dim] = attend kind near mask causal scale 0.5 order any (%q, %c, %pos)
            %b: bf16[T, heads, head_dim] = round bf16 (%a)
            %p: f32[T, hidden] = linear over [heads, head_dim] order any (%b, %wo)
            %o: bf16[T, hidden] = round bf16 (%p) }}
        instances 0: near
        graph last (%x) -> (z = %x) {{ axes T = rows %x: bf16[T, hidden] = input x }} }}"
    );
    let text =
        text.replace("%p: f32[T, hidden]", "%wo: bf16[hidden, heads, head_dim] = weight layer o\n %p: f32[T, hidden]");
    let text = text.replace("weight layer k:", "weight layer o: bf16[hidden, heads head_dim] weight layer k:");
    let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(ir::verify_module(&module), Ok(()));
    module
}

#[test]
fn heads_line_up_with_what_they_read() {
    let shared = "shard heads = [tp] shard kv_heads = [tp, \"or-replicate\"]";
    let old = attention(shared);
    let env: Env =
        [rows("x", &[("T", 5), ("hidden", 4)]), tokens("pos", &[("T", 5)], &[0, 1, 2, 3, 4])].into_iter().collect();
    for mesh in ["tp=2", "tp=4", "tp=8"] {
        let new = sharded(&old, mesh).expect("sharded");
        has(&new, &["place kv near: kv_heads over [tp]", "place weight layer o: heads over [tp]"]);
        equal(&old, &new, &weights(&old, &|_, _| {}), &env, "x", false);
    }
    let error = |shard: &str, mesh: &str| sharded(&attention(shard), mesh).expect_err("refused").to_string();
    assert_eq!(
        error("shard heads = [tp] shard kv_heads = [tp]", "tp=4"),
        "P0502: `kv_heads` of weight `k` has 2 entries, and the mesh tp=4 spreads it over 4 ranks; use at most 2 ranks \
         along tp, or let ranks share: `kv_heads = [\"tp\", \"or-replicate\"]`"
    );
    assert_eq!(
        error(shared, "tp=3"),
        "P0502: `heads` of weight `q` has 8 entries, and the mesh tp=3 spreads it over 3 ranks; use a number of ranks \
         along tp that divides it: 1, 2, 4, 8"
    );
    assert_eq!(
        error("shard heads = [tp]", "tp=2"),
        "P0504: query heads `heads` are spread over tp, and the heads `kv_heads` that they read are whole on every rank; \
         spread both alike in `[shard]`: `kv_heads = [\"tp\", \"or-replicate\"]`"
    );
    assert_eq!(
        error(shared, "tp=2,xp=2"),
        "P0501: the mesh tp=2,xp=2 has the axis `xp`, over which the spec spreads nothing; `[shard]` names tp; use one of \
         these, or give an axis to `xp` there"
    );
}

#[test]
fn two_axes_of_a_weight_need_two_mesh_axes() {
    let header = EXPERTS.replace("experts = [ep]", "experts = [tp]");
    let error = sharded(&module(&header, &experts(SINGLE)), "tp=2").expect_err("refused");
    assert_eq!(
        error.to_string(),
        "P0503: weight `up` has the axes `experts` and `expert_ffn`, and both are spread over `tp`; give each of them mesh \
         axes of its own in `[shard]`, or leave one whole"
    );
}

#[test]
fn one_device_is_left_alone() {
    let old = module(DENSE, DENSE_GRAPH);
    let new = sharded(&old, "tp=1").expect("nothing to do");
    assert_eq!((new.module, new.witness), (old, None));
}

#[test]
fn a_sum_along_a_spread_axis_makes_it_whole() {
    let norm = "(%x) -> (y = %y) { axes T = rows
        %x: bf16[T, hidden] = input x
        %u: bf16[ffn, hidden] = weight model up
        %g: f32[T, ffn] = linear over [hidden] order any (%x, %u)
        %y: f32[T] = reduce sum over ffn order fold (%g) }";
    let old = module(DENSE, norm);
    let new = sharded(&old, "tp=2").expect("sharded");
    assert!(!text(&new).contains("place weight model up") && !text(&new).contains("all_reduce"), "{}", text(&new));
}

#[test]
fn ranks_without_work_of_their_own_are_refused() {
    let header = DENSE.replace("weight model down: bf16[hidden, ffn]", "");
    let norm = "(%x) -> (y = %y) { axes T = rows
        %x: bf16[T, hidden] = input x
        %u: bf16[ffn, hidden] = weight model up
        %g: f32[T, ffn] = linear over [hidden] order any (%x, %u)
        %y: f32[T] = reduce sum over ffn order fold (%g) }";
    let error = sharded(&module(&header, norm), "tp=2").expect_err("nothing is left for the ranks to share");
    assert_eq!(
        error.to_string(),
        "P0501: the mesh tp=2 has the axis `tp`, and `ffn`, which the spec spreads over it, is needed whole by every rank; \
         leave `tp` out of the mesh, or give it an axis of weights in `[shard]` that products sum or leave"
    );
}

#[test]
fn an_uneven_length_is_an_error_wherever_it_stands() {
    let refused = |header: &str, graph: &str, mesh: &str| {
        let error = sharded(&module(header, graph), mesh).expect_err("uneven");
        assert_eq!(error.code, "P0502", "{error}");
    };
    // Contracted, indexed by ids, and a column that is left.
    refused(DENSE, DENSE_GRAPH, "tp=3");
    refused(EXPERTS, &experts(SINGLE), "ep=4");
    refused(EXPERTS, &experts(SINGLE), "ep=2,tp=3");
}

#[test]
fn a_witness_that_changes_more_is_refused() {
    let old = module(DENSE, DENSE_GRAPH);
    let new = sharded(&old, "tp=2").expect("sharded");
    let witness = ir::print_module(new.witness.as_ref().expect("a witness"), false);
    for (from, to) in [
        ("round bf16 (%p)", "round bf16 (%x)"),
        ("linear over [hidden] order any (%x, %u)", "linear over [hidden] order any (%g2, %u)"),
        ("%h: bf16[T, ffn] = round bf16 (%g)", "%e: f32[T, ffn] = exp (%g)\n %h: bf16[T, ffn] = round bf16 (%e)"),
        ("weight model up", "weight model down"),
    ] {
        let text = witness.replace(from, to);
        let Ok(changed) = ir::parse_module(&text) else { continue };
        assert!(check_witness(&old, changed).is_err(), "{text}");
    }
    let experts = module(EXPERTS, &experts(SINGLE));
    let new = sharded(&experts, "ep=2").expect("sharded");
    let witness = ir::print_module(new.witness.as_ref().expect("a witness"), false);
    assert!(check_witness(&experts, ir::parse_module(&witness).expect("a module")).is_ok());
    let mut refused = 0;
    for (from, to) in
        [("= literal [-1.0]", "= literal [0.0]"), ("= literal [6.0]", "= literal [5.0]"), ("= lt (", "= le (")]
    {
        let text = witness.replace(from, to);
        assert_ne!(text, witness, "no `{from}` in {witness}");
        refused += usize::from(check_witness(&experts, ir::parse_module(&text).expect("a module")).is_err());
    }
    assert_eq!(refused, 3);
}

/// The witness of a module whose picked experts are added, and each rank's part of that sum with something done to it
/// before the ranks' parts are added.
fn with_parts(old: &Module, each: impl Fn(&str, usize) -> String) -> Module {
    let new = sharded(old, "ep=2").expect("sharded");
    let witness = ir::print_module(new.witness.as_ref().expect("a witness"), false);
    let mut lines: Vec<String> = Vec::new();
    let mut parts: Vec<String> = Vec::new();
    for line in witness.lines() {
        let mut line = line.to_owned();
        let name = line.trim().split(':').next().unwrap_or_default().to_owned();
        let is_part = line.contains(" = reduce sum over picked ");
        for (at, part) in parts.iter().enumerate() {
            line = line
                .replace(&format!("({part},"), &format!("(%part{at},"))
                .replace(&format!(", {part})"), &format!(", %part{at})"));
        }
        lines.push(line);
        if is_part {
            lines.push(each(&name, parts.len()));
            parts.push(name);
        }
    }
    assert_eq!(parts.len(), 2, "{witness}");
    let text = lines.join("\n");
    ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn what_several_ranks_have_of_a_sum_rounds_behind_it_only() {
    let sum = |end: &str| {
        experts(&format!(
            "%m: f32[T, picked, hidden] = mul (%w, %y)
            %t: f32[T, hidden] = reduce sum over picked order any (%m)
            {end}"
        ))
    };
    // Two of a row's experts may lie on two ranks; then both ranks' parts of the sum round.
    let old = module(EXPERTS, &sum("%o: bf16[T, hidden] = round bf16 (%t)"));
    let narrow = |part: &str, at: usize| format!("%part{at}: bf16[T, hidden] = round bf16 ({part})");
    let changed = with_parts(&old, narrow);
    assert_eq!(ir::verify_module(&changed), Ok(()));
    check_witness(&old, changed).expect_err("each rank's part of the sum over experts rounds");
    // The same where the parts are not rounded again once they are added.
    let old = module(EXPERTS, &sum("%o: f32[T, hidden] = round f32 (%t)"));
    let mut changed = with_parts(&old, |part, at| format!("%part{at}: f32[T, hidden] = round f32 ({part})"));
    let first = &mut changed.entries[0].first;
    first.outputs = vec![("o".to_owned(), first.find("t").expect("a sum"))];
    assert_eq!(ir::verify_module(&changed), Ok(()));
    check_witness(&old, changed).expect_err("a rounding behind the sum");
    // A rounding before the product is each expert's own, and all but one rank have -0 there.
    let four =
        |text: &str| text.replace("picked = 2", "picked = 4").replace("values 2", "values 4").replace("ids 2", "ids 4");
    let tail = LIBRARY.replace("order fold", "order any");
    let old = module(&four(EXPERTS), &four(&experts(&tail)));
    let new = sharded(&old, "ep=2").expect("sharded");
    has(&new, &["%o: f32[T, hidden] = all_reduce over [ep] order serial"]);
    let env: Env = [rows("x", &[("T", 5), ("hidden", 4)])].into_iter().collect();
    equal(&old, &new, &weights(&old, &|_, _| {}), &env, "o", false);
}

#[test]
fn rows_meet_where_a_weight_is_spread_over_their_ranks() {
    let header = DENSE.replace("shard ffn = [tp]", "shard ffn = [dp, tp] shard T = [dp]");
    let old = module(&header, DENSE_GRAPH);
    let new = sharded(&old, "dp=2,tp=2").expect("sharded");
    has(
        &new,
        &[
            "place rows: T over [dp], R over [dp]",
            "place weight model down: ffn over [dp, tp]",
            "%x.all: bf16[T.all, hidden] = all_gather T over [dp] into T.all (%x)",
            "%h: bf16[T.all, ffn] = round bf16 (%g)",
            "f32[T.all, hidden] = all_reduce over [tp] order serial",
            "%p: f32[T, hidden] = reduce_scatter T.all over [dp] into T",
        ],
    );
    let witness = ir::print_module(new.witness.as_ref().expect("a witness"), false);
    assert!(witness.contains("order split 2 split 2 any (%h, %d)"), "{witness}");
    // What is left with all rows has no way back but a sum.
    let error =
        sharded(&module(&header, &DENSE_GRAPH.replace("(y = %y)", "(y = %h)")), "dp=2,tp=2").expect_err("refused");
    assert_eq!(error.code, "P0505");
    // Weights that are spread over no mesh axis of the rows see a rank's own.
    let own = module(&DENSE.replace("shard ffn = [tp]", "shard ffn = [tp] shard T = [dp]"), DENSE_GRAPH);
    assert!(!text(&sharded(&own, "dp=2,tp=2").expect("sharded")).contains("T.all"));
}

//! Text in, text out: what the pass makes of graphs and of weights.

use crate::Compile;
use ir::{DType, Module};
use targets::{BF16_TO_FP8, FormatUse, Formats, KvDtype, Target};

const FP8: &str = "stored fp8 inputs token codes weight scale weight_scale";
const NVFP4: &str = "stored nvfp4 inputs block codes weight scale weight_scale global weight_scale_2 input input_scale";

/// A model whose layers have products of every kind, and a head.
fn model(stored: &str) -> Module {
    let text = format!(
        "module m act bf16 dim hidden = 16 dim wide = 32 dim heads = 2 dim head = 16 dim experts = 4 dim part = 16 dim picked = 2
        layers 0-2: mlp = sparse
        kv near: k [heads, head] v [heads, head] layers [0, 1, 2]
        weight model top: bf16[wide, hidden] quant disk \"top.weight\" shape [32, 16]
        weight layer n: bf16[hidden] quant disk \"{{l}}.n.weight\" shape [16]
        weight layer a: bf16[wide, hidden] quant disk \"{{l}}.a.weight\" shape [32, 16]
        weight layer b: bf16[part, hidden] quant disk \"{{l}}.b.weight\" shape [16, 16]
        weight layer o: bf16[hidden, heads head] quant disk \"{{l}}.o.weight\" shape [16, 32]
        weight layer x: bf16[experts, part, hidden] quant
            disk \"{{l}}.x.{{experts}}.weight\" spread [experts] shape [16, 16] disk \"{{l}}.x\" shape [4, 16, 16]
        weight layer router: f32[experts, hidden] pinned disk \"{{l}}.router.weight\" shape [4, 16]
        {stored}
        entry e {{
        graph first (%x, %h, %ids, %at) -> (w = %x) {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %h: bf16[T, heads, head] = input h
            %ids: i32<experts>[T, picked] = input ids
            %at: i32[T] = input at }}
        class sparse {{mlp = sparse}} (%x, %h, %ids, %at) -> (w = %z) {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %h: bf16[T, heads, head] = input h
            %ids: i32<experts>[T, picked] = input ids
            %at: i32[T] = input at
            %wn: bf16[hidden] = weight layer n
            %wa: bf16[wide, hidden] = weight layer a
            %wb: bf16[part, hidden] = weight layer b
            %wo: bf16[hidden, heads, head] = weight layer o
            %wx: bf16[experts, part, hidden] = weight layer x
            %y: f32[T, wide] = linear over [hidden] order any (%x, %wa)
            %o: f32[T, hidden] = linear over [heads, head] order any (%h, %wo)
            %e: f32[T, picked, part] = linear over [hidden] order any (%x, %wx, %ids)
            %c: cache = store kind near (%h, %h, %at)
            %s: f32[T, heads, head] = attend kind near mask causal scale 0.5 order any (%h, %c, %at)
            %z: bf16[T, hidden] = round bf16 (%o) }}
        instances 0-2: sparse
        graph last (%x) -> (y = %y) {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %w: bf16[wide, hidden] = weight model top
            %y: f32[T, wide] = linear over [hidden] order any (%x, %w) }} }}"
    );
    ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn target(how: FormatUse) -> Target {
    let mut target = Target::load("cpu").expect("a target");
    target.formats = Formats { fp8: how, nvfp4: how, ..Formats::default() };
    target
}

fn quantised(stored: &str, target: &Target) -> String {
    let after = super::run(&model(stored), &Compile::one_device(target)).expect("a module");
    assert_eq!(ir::verify_module(&after), Ok(()));
    ir::print_module(&after, false)
}

/// Lines that hold one of the words, without what stands before them.
fn lines(text: &str, words: &[&str]) -> String {
    let lines = text.lines().map(str::trim).filter(|l| words.iter().any(|w| l.contains(w)));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn products_of_one_value_share_its_codes_and_each_has_its_scales() {
    let text = quantised(FP8, &target(FormatUse::Native));
    let class = text.split("class sparse").nth(1).expect("a class");
    let expected = "%6: e4m3[wide, hidden] = weight layer a.codes
%7: f32[wide] = weight layer a.scale
%8: f32[T, hidden] = abs (%x)
%9: f32[T] = reduce max over hidden order fold (%8)
%10: f32[] = literal [448.0]
%11: f32[] = literal [1.0]
%12: f32[] = literal [0.0]
%x.scale: f32[T] = div (%9, %10)
%14: bool[T] = eq (%x.scale, %12)
%15: f32[T] = div (%11, %x.scale)
%16: f32[T] = select (%14, %12, %15)
%17: f32[T, hidden] = mul (%x, %16)
%x.codes: e4m3[T, hidden] = round e4m3 (%17)
%19: f32[T, wide] = mul (%x.scale, %7)
%20: f32[T, wide] = linear over [hidden] order any (%x.codes, %6)
%y: f32[T, wide] = mul (%20, %19)";
    let found: Vec<&str> = class.lines().map(str::trim).collect();
    assert!(found.join("\n").contains(expected), "{class}");
    // Of a value with two contracted axes the largest is found over both; experts pick scales as they pick codes.
    let expected = "%25: f32[T, heads] = reduce max over head order fold (%24)
%26: f32[T] = reduce max over heads order fold (%25)
%38: f32[T, picked, part] = gather over experts (%37, %ids)
%39: f32[T, picked, part] = mul (%x.scale, %38)
%40: f32[T, picked, part] = linear over [hidden] order any (%x.codes, %36, %ids)
%e: f32[T, picked, part] = mul (%40, %39)";
    assert_eq!(lines(class, &["%25:", "%26:", "%38:", "%39:", "%40:", "%e:"]), expected);
    assert_eq!(lines(&text, &["relaxed"]), "relaxed fp8");
    assert_eq!(lines(&text, &["stored"]), "");
}

#[test]
fn parts_of_a_matrix_lie_where_the_checkpoint_has_them() {
    let text = quantised(FP8, &target(FormatUse::Native));
    let expected = "weight layer x.codes: e4m3[experts, part, hidden] pinned
disk \"{l}.x.{experts}.weight\" spread [experts] shape [16, 16]
weight layer x.scale: f32[experts, part] pinned
disk \"{l}.x.{experts}.weight_scale\" spread [experts] shape [16]";
    assert_eq!(lines(&text, &["weight layer x.codes: ", "weight layer x.scale: ", "\"{l}.x."]), expected);
    // What no product reads, what is pinned and what is no matrix stay as they are.
    let expected = "weight layer n: bf16[hidden] quant
weight layer b: bf16[part, hidden] quant
weight layer router: f32[experts, hidden] pinned";
    assert_eq!(lines(&text, &["layer n: ", "layer b: ", "layer router: "]), expected);
    let text = quantised(NVFP4, &target(FormatUse::Native));
    let expected = "weight layer x.codes: nvfp4[experts, part, hidden] pinned
disk \"{l}.x.{experts}.weight\" spread [experts] shape [16, 16] as nibbles scales \"{l}.x.{experts}.weight_scale\"
weight layer x.scale: f32[experts, part] pinned
disk \"{l}.x.{experts}.weight_scale_2\" spread [experts] shape [] as number
weight layer x.input: f32[] pinned
disk \"{l}.x.{experts}.input_scale\" spread [experts] shape [] as largest";
    assert_eq!(lines(&text, &["weight layer x.codes: ", "weight layer x.scale: ", "x.input: ", "\"{l}.x."]), expected);
    // A number may be absent only where the spec says that some are.
    let text = quantised(&format!("{NVFP4} numbers some"), &target(FormatUse::Native));
    assert_eq!(lines(&text, &["x.input: "]), "weight layer x.input: f32[] pinned absent 1.0");
}

#[test]
fn a_loader_that_may_make_codes_has_a_form_for_it() {
    let mut target = target(FormatUse::Weights);
    target.formats.convert = vec!["bf16-to-fp8".to_owned()];
    let text = quantised(FP8, &target);
    let expected = "disk \"{l}.x.{experts}.weight\" spread [experts] shape [16, 16]
disk \"{l}.x.{experts}.weight\" spread [experts] shape [16, 16] as row_codes
disk \"{l}.x\" shape [4, 16, 16] as row_codes
disk \"{l}.x.{experts}.weight_scale\" spread [experts] shape [16]
disk \"{l}.x.{experts}.weight\" spread [experts] shape [16, 16] as row_scales
disk \"{l}.x\" shape [4, 16, 16] as row_scales";
    assert_eq!(lines(&text, &["\"{l}.x.", "\"{l}.x\""]), expected);
    assert_eq!(lines(&text, &["relaxed"]), "relaxed \"fp8-weights\"\nrelaxed \"bf16-to-fp8\"");
}

#[test]
fn codes_are_widened_where_the_target_or_the_checkpoint_takes_plain_inputs() {
    let expected = "%y: f32[T, wide] = mul (%8, %7)
%o: f32[T, hidden] = mul (%12, %11)
%e: f32[T, picked, part] = mul (%17, %16)";
    let plain = NVFP4.replace("inputs block", "inputs plain");
    for (stored, how) in [(FP8, FormatUse::Weights), (NVFP4, FormatUse::Weights), (plain.as_str(), FormatUse::Native)] {
        let text = quantised(stored, &target(how));
        let class = text.split("class sparse").nth(1).and_then(|t| t.split("instances").next()).expect("a class");
        assert_eq!(lines(class, &["%y:", "%o:", "%e:"]), expected);
        assert!(class.contains("linear over [hidden] order any (%x, %6)"), "{class}");
        assert!(!text.contains("input_scale") && text.contains("-weights"), "{text}");
    }
}

#[test]
fn blocks_share_the_number_that_their_products_share() {
    let stored = model(NVFP4);
    let mut text = ir::print_module(&stored, false);
    text = text.replace("%o: f32", "%b: f32[T, part] = linear over [hidden] order any (%x, %wb)\n%o: f32");
    let module = ir::parse_module(&text).expect("a module");
    let target = target(FormatUse::Native);
    let after = |unpack: &[String]| {
        let compile = Compile { unpack, ..Compile::one_device(&target) };
        ir::print_module(&super::run(&module, &compile).expect("a module"), false)
    };
    let words = ["block_round", ".input: ", "also"];
    let together = "weight layer a.b.input: f32[] pinned
disk \"{l}.a.input_scale\" shape [] as same also [\"{l}.b.input_scale\"]";
    let text = after(&[]);
    assert!(lines(&text, &words).contains(together), "{text}");
    assert_eq!(lines(&text, &["block_round over [hidden] (%x,"]).lines().count(), 3, "two in layers, one at the end");
    let text = after(&["b".to_owned()]);
    assert!(text.contains("weight layer a.input:") && text.contains("weight layer b.input:"), "{text}");
    assert_eq!(lines(&text, &["block_round over [hidden] (%x,"]).lines().count(), 4);
}

#[test]
fn layers_that_store_other_matrices_are_another_class() {
    let text = quantised(&format!("{FP8} plain a layers [1] plain top"), &target(FormatUse::Native));
    assert_eq!(lines(&text, &["instances"]), "instances 0: sparse\ninstances 1: sparse#2\ninstances 2: sparse");
    let expected = "weight layer a: bf16[wide, hidden] only [1]
weight layer a.codes: e4m3[wide, hidden] pinned only [0, 2]
weight layer a.scale: f32[wide] pinned only [0, 2]";
    assert_eq!(lines(&text, &["layer a: ", "layer a.codes: ", "layer a.scale: "]), expected);
    let plain = text.split("class sparse#2").nth(1).expect("a class");
    assert!(plain.contains("%y: f32[T, wide] = linear over [hidden] order any (%x, %wa)"), "{plain}");
    assert!(plain.contains("%w: bf16[wide, hidden] = weight model top"), "{plain}");
}

#[test]
fn cached_rows_round_and_their_numbers_come_out_again() {
    let mut target = target(FormatUse::Native);
    target.kv.dtype = KvDtype::Fixed(DType::E4m3);
    let expected = "%h.cached: e4m3[T, heads, head] = round e4m3 (%h)
%h.cached#2: e4m3[T, heads, head] = round e4m3 (%h)
%c: cache = store kind near (%h.cached, %h.cached#2, %at)
%s: f32[T, heads, head] = attend kind near mask causal scale 0.5 order any (%h, %c, %at)";
    let text = quantised("", &target);
    assert_eq!(lines(&text, &["cached", "attend"]), expected);
    assert_eq!(lines(&text, &["relaxed"]), "relaxed \"kv-e4m3\"");
    let cached = "cached k [\"{l}.k\"] v [\"{l}.v\", \"{l}.kv\"]";
    let text = quantised(&format!("{FP8} numbers some {cached}"), &target);
    assert_eq!(text.matches("_scale: f32[] pinned absent 1.0").count(), 2, "{text}");
    let text = quantised(&format!("{FP8} {cached}"), &target);
    let expected = "weight layer kv.k_scale: f32[] pinned
disk \"{l}.k\" shape [] as number
weight layer kv.v_scale: f32[] pinned
disk \"{l}.v\" shape [] as number
disk \"{l}.kv\" shape [] as number";
    assert_eq!(lines(&text, &["kv.k_scale:", "kv.v_scale:", "\"{l}.k", "\"{l}.v"]), expected);
    let expected = "%0: f32[] = weight layer kv.k_scale
%1: f32[] = weight layer kv.v_scale
%44: f32[T, heads, head] = div (%h, %0)
%h.cached: e4m3[T, heads, head] = round e4m3 (%44)
%46: f32[T, heads, head] = div (%h, %1)";
    let class = text.split("class sparse").nth(1).and_then(|t| t.split("instances").next()).expect("a class");
    assert!(lines(class, &["layer kv.", "div (%h,", "%h.cached:"]) == expected, "{class}");
    assert!(class.contains("%s: f32[T, heads, head] = mul (%50, %1)"), "{class}");
}

/// What is stored is the model, so `exact` changes nothing but that no other numbers are made of it.
#[test]
fn exactly_what_is_stored_is_run() {
    let run = |stored: &str, target: &Target, exact: bool| {
        let compile = Compile { exact, ..Compile::one_device(target) };
        super::run(&model(stored), &compile).expect("codes")
    };
    let mut kept = target(FormatUse::Native);
    kept.kv.dtype = KvDtype::Fixed(DType::E4m3);
    assert_eq!(run(FP8, &kept, true), run(FP8, &kept, false));
    assert_eq!(run(NVFP4, &kept, true), run(NVFP4, &kept, false));
    let mut converts = target(FormatUse::Native);
    converts.formats.convert = vec![BF16_TO_FP8.to_owned()];
    let relaxations = |exact| run(FP8, &converts, exact).relaxations;
    assert_eq!(relaxations(false), ["fp8", BF16_TO_FP8]);
    assert_eq!(relaxations(true), ["fp8"]);
}

#[test]
fn what_cannot_be_says_so() {
    let error = |stored: &str, target: &Target| {
        let compile = Compile::one_device(target);
        super::run(&model(stored), &compile).expect_err("an error").to_string()
    };
    assert_eq!(
        error(FP8, &target(FormatUse::Refused)),
        "P0701: the checkpoint keeps 4 matrices in fp8, the target cpu takes none; use a target whose `[formats]` has the \
         format, as `beamc targets` lists them"
    );
    let text = ir::print_module(&model(NVFP4), false).replace("hidden = 16", "hidden = 24");
    let module = ir::parse_module(&text).expect("a module");
    let error = super::run(&module, &Compile::one_device(&target(FormatUse::Native))).expect_err("an error");
    assert_eq!(
        error.to_string(),
        "P0703: rows of `top` have 24 elements, nvfp4 keeps blocks of 16; list `top` under `plain` in `[stored]` if the \
         checkpoint keeps it so"
    );
}

/// The model with what the layers take in made by the layer before, of all their products.
fn carrying(stored: &str) -> Module {
    let sums = "%ys: f32[T] = reduce sum over wide order fold (%y)
        %ep: f32[T, picked] = reduce sum over part order fold (%e)
        %es: f32[T] = reduce sum over picked order fold (%ep)
        %os: f32[T, hidden] = add (%o, %ys)
        %zs: f32[T, hidden] = add (%os, %es)
        %z: bf16[T, hidden] = round bf16 (%zs)";
    let text = ir::print_module(&model(stored), false).replace("(w = ", "(x = ");
    let text = text.replace("%z: bf16[T, hidden] = round bf16 (%o)", sums);
    ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn carried(module: &Module) -> String {
    let after = super::run(module, &Compile::one_device(&target(FormatUse::Native))).expect("a module");
    assert_eq!(ir::verify_module(&after), Ok(()));
    ir::print_module(&after, false)
}

#[test]
fn what_a_layer_takes_in_is_quantised_where_it_is_made() {
    let text = carried(&carrying(FP8));
    let class = text.split("class sparse").nth(1).and_then(|t| t.split("instances").next()).expect("a class");
    let outputs = "(x = %z, x.codes = %z.codes, x.scale = %z.scale) {";
    let expected = format!(
        "{{mlp = sparse}} (%h, %ids, %at, %x.scale, %x.codes) -> {outputs}
%x.scale: f32[T] = input x.scale
%x.codes: e4m3[T, hidden] = input x.codes"
    );
    assert_eq!(lines(class, &["mlp = sparse", "= input x"]), expected);
    assert!(class.contains("%z.codes: e4m3[T, hidden] = round e4m3") && class.contains("abs (%z)"), "{class}");
    let expected = "graph first (%x, %h, %ids, %at) -> (x = %x, x.codes = %x.codes, x.scale = %x.scale) {";
    assert_eq!(lines(&text, &["graph first"]), expected);
    // Another layer may keep all of it plain; it takes the value itself.
    let text = carried(&carrying(&format!("{FP8} plain a layers [1] plain x layers [1]")));
    let plain = text.split("class sparse#2").nth(1).expect("a class");
    assert!(plain.contains("%y: f32[T, wide] = linear over [hidden] order any (%x, %wa)"), "{plain}");
}

#[test]
fn a_number_is_read_of_the_successor_if_all_layers_have_it() {
    let module = |stored: &str| {
        // One product alone takes x in; experts take another value, for they have another number.
        let other = "%xn: f32[T, hidden] = neg (%x) %x2: bf16[T, hidden] = round bf16 (%xn) %y: f32[T, wide] = linear";
        let text = ir::print_module(&carrying(stored), false).replace("(%x, %wx, %ids)", "(%x2, %wx, %ids)");
        let text = text.replacen("%y: f32[T, wide] = linear", other, 1);
        ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
    };
    let text = carried(&module(NVFP4));
    for line in [
        "weight model a.input: f32[] pinned absent 1.0",
        "weight layer a.input: f32[] pinned\n",
        "f32[] = weight first a.input",
        "f32[] = weight next a.input else a.input",
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line}: {text}");
    }
    let text = carried(&module(&format!("{NVFP4} plain a layers [1]")));
    assert!(!text.contains("weight next") && !text.contains("input x.codes"), "{text}");
}

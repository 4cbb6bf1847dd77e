//! Text in, text out: what the pass makes of graphs and of weights.

use crate::Compile;
use ir::{DType, Module};
use targets::{FormatUse, Formats, KvDtype, Target};

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
        weight layer b: bf16[hidden, hidden] quant disk \"{{l}}.b.weight\" shape [16, 16]
        weight layer o: bf16[hidden, heads head] quant disk \"{{l}}.o.weight\" shape [16, 32]
        weight layer x: bf16[experts, part, hidden] quant
            disk \"{{l}}.x.{{experts}}.weight\" spread [experts] shape [16, 16] disk \"{{l}}.x\" shape [4, 16, 16]
        weight layer router: f32[experts, hidden] pinned disk \"{{l}}.router.weight\" shape [4, 16]
        {stored}
        entry e {{
        graph first (%x) -> (x = %x) {{ axes T = rows %x: bf16[T, hidden] = input x }}
        class sparse {{mlp = sparse}} (%x, %h, %ids, %at) -> (x = %z) {{ axes T = rows
            %x: bf16[T, hidden] = input x
            %h: bf16[T, heads, head] = input h
            %ids: i32<experts>[T, picked] = input ids
            %at: i32[T] = input at
            %wn: bf16[hidden] = weight layer n
            %wa: bf16[wide, hidden] = weight layer a
            %wb: bf16[hidden, hidden] = weight layer b
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
    ir::print_module(&after, false)
}

/// Lines that hold one of the words, without what stands before them.
fn lines(text: &str, words: &[&str]) -> String {
    let lines = text.lines().map(str::trim).filter(|l| words.iter().any(|w| l.contains(w)));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn show() {
    eprintln!("{}", quantised(FP8, &target(FormatUse::Native)));
    eprintln!("{}", quantised(NVFP4, &target(FormatUse::Native)));
}

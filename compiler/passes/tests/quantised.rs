//! Single products of quantised matrices against numbers that an independent implementation computed (`golden_ops` of the
//! fixtures): codes, scales, and results in every way that a target may run them.

use interp::{Context, Data, Env, Hooks, NoCache, Outputs, Site, Tensor, WeightMap, run_entry};
use ir::{DType, Entry, Module, Op, Order};
use passes::{Compile, Stage, Stages};
use safetensors::tensor::{Dtype, SafeTensors};
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use std::path::Path;
use targets::{FormatUse, Formats, Target};

/// Products meet the recorded ones within this share of a row's largest: sums are in another order there.
const TOLERANCE: f32 = 1e-5;

/// Tensors of a file as numbers; codes of 8 bits as what they are called.
fn read(fixture: &str, file: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture).join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let numbers = |dtype: Dtype, data: &[u8]| -> Vec<f32> {
        match dtype {
            Dtype::F32 => data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::BF16 => {
                let wide = |b: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                data.as_chunks().0.iter().map(wide).collect()
            }
            _ => data.iter().map(|b| f32::from(*b)).collect(),
        }
    };
    file.iter().map(|(name, t)| (name.to_owned(), (t.shape().to_vec(), numbers(t.dtype(), t.data())))).collect()
}

/// A value by name, as the run showed it.
#[derive(Default)]
struct Seen(BTreeMap<String, Tensor>);

impl Hooks for Seen {
    fn on_value(&mut self, site: Site<'_>, value: &Tensor) {
        self.0.insert(site.name.to_owned(), value.clone());
    }
}

/// `linear(x, w)` with w stored in a format, quantised for a target that runs it so.
fn product(stored: &str, how: FormatUse, [rows, columns]: [usize; 2]) -> Module {
    let text = format!(
        "module m act bf16 dim rows = {rows} dim columns = {columns}
        weight model w: bf16[rows, columns] quant disk \"w.weight\" shape [{rows}, {columns}]
        {stored}
        entry e {{ graph first (%x) -> (x = %x) {{ axes T = rows %x: bf16[T, columns] = input x }}
        graph last (%x) -> (y = %y) {{ axes T = rows
            %x: bf16[T, columns] = input x
            %w: bf16[rows, columns] = weight model w
            %y: f32[T, rows] = linear over [columns] order any (%x, %w) }} }}"
    );
    let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let mut target = Target::load("cpu").expect("a target");
    target.formats = Formats { fp8: how, nvfp4: how, ..Formats::default() };
    let module = passes::quantise::run(&module, &Compile::one_device(&target)).expect("a module");
    assert_eq!(ir::verify_module(&module), Ok(()));
    module
}

fn run(module: &Module, weights: &WeightMap, x: &Tensor) -> (Outputs, Seen) {
    let mut seen = Seen::default();
    let mut context = Context { layer: None, weights, cache: &mut NoCache, hooks: &mut seen };
    let mut env = Env::new();
    env.insert("x", x.clone());
    let outputs = run_entry(&module.entries[0], &module.facts, &mut env, &mut context).expect("a run");
    (outputs, seen)
}

fn meets(found: &Outputs, wanted: &[f32], columns: usize, what: &str) {
    let found = found["y"].floats().expect("floats");
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (ours, theirs) in found.chunks(columns).zip(wanted.chunks(columns)) {
        let largest = theirs.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let worst = ours.iter().zip(theirs).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= TOLERANCE * largest, "{what}: {worst:e} off, the row's largest is {largest}");
    }
}

fn tensor(axes: &[(&str, usize)], dtype: DType, data: Vec<f32>) -> Tensor {
    let axes = axes.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
    Tensor::new(axes, dtype, Data::F32(data)).expect("a tensor")
}

/// Modules that a file has products of.
fn modules(golden: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) -> Vec<&str> {
    golden.keys().filter_map(|name| name.strip_suffix(".y")).collect()
}

#[test]
fn fp8() {
    let (golden, checkpoint) =
        (read("beam-tiny-fp8", "golden_ops.safetensors"), read("beam-tiny-fp8", "model.safetensors"));
    assert_eq!(modules(&golden).len(), 3);
    for name in modules(&golden) {
        let of = |what: &str| &golden[&format!("{name}.{what}")];
        let (shape, codes) = &checkpoint[&format!("{name}.weight")];
        let (_, scale) = &checkpoint[&format!("{name}.weight_scale")];
        let (out, columns) = (shape[0], shape[1]);
        let mut weights = WeightMap::new();
        let codes = codes.iter().map(|c| numerics::e4m3_value(*c as u8)).collect();
        weights.insert("w.codes", None, tensor(&[("rows", out), ("columns", columns)], DType::E4m3, codes));
        weights.insert("w.scale", None, tensor(&[("rows", out)], DType::F32, scale.clone()));
        let (x_shape, x) = of("x");
        let x = tensor(&[("T", x_shape[0]), ("columns", columns)], DType::Bf16, x.clone());
        let stored = "stored fp8 inputs token codes weight scale weight_scale";
        let (y, seen) = run(&product(stored, FormatUse::Native, [out, columns]), &weights, &x);
        let found: Vec<f32> =
            seen.0["x.codes"].floats().expect("floats").iter().map(|c| f32::from(numerics::e4m3_code(*c))).collect();
        assert_eq!(found, of("x_codes").1, "{name}: codes");
        assert_eq!(seen.0["x.scale"].floats(), Some(&of("x_scale").1[..]), "{name}: scales");
        meets(&y, &of("y").1, out, name);
        let (y, _) = run(&product(stored, FormatUse::Weights, [out, columns]), &weights, &x);
        meets(&y, &of("y_weights_only").1, out, name);
    }
}

#[test]
fn nvfp4() {
    let golden = read("beam-tiny-nvfp4", "golden_ops.safetensors");
    let checkpoint = read("beam-tiny-nvfp4", "model.safetensors");
    assert_eq!(modules(&golden).len(), 3);
    for name in modules(&golden) {
        let of = |what: &str| &golden[&format!("{name}.{what}")];
        let part = |what: &str| &checkpoint[&format!("{name}.{what}")];
        let (out, columns) = (part("weight").0[0], part("weight").0[1] * 2);
        let blocks = |codes: &[f32], scales: &[f32]| -> Vec<f32> {
            let bytes: Vec<u8> = codes.iter().map(|c| *c as u8).collect();
            let (codes, _) = bytes.as_chunks();
            let block = |(codes, scale): (&[u8; 8], &f32)| numerics::Block { scale: *scale as u8, codes: *codes };
            codes.iter().zip(scales).flat_map(|pair| block(pair).values()).collect()
        };
        let mut weights = WeightMap::new();
        let codes = blocks(&part("weight").1, &part("weight_scale").1);
        weights.insert("w.codes", None, tensor(&[("rows", out), ("columns", columns)], DType::Nvfp4, codes));
        weights.insert("w.scale", None, tensor(&[("rows", out)], DType::F32, vec![part("weight_scale_2").1[0]; out]));
        weights.insert("w.input", None, tensor(&[], DType::F32, part("input_scale").1.clone()));
        let (x_shape, x) = of("x");
        let x = tensor(&[("T", x_shape[0]), ("columns", columns)], DType::Bf16, x.clone());
        let stored =
            "stored nvfp4 inputs block codes weight scale weight_scale global weight_scale_2 input input_scale";
        let (y, seen) = run(&product(stored, FormatUse::Native, [out, columns]), &weights, &x);
        let wanted = blocks(&of("x_codes").1, &of("x_block_scale").1);
        assert_eq!(seen.0["x.codes"].floats(), Some(&wanted[..]), "{name}: codes and scales of blocks");
        meets(&y, &of("y").1, out, name);
        let (y, _) = run(&product(stored, FormatUse::Weights, [out, columns]), &weights, &x);
        meets(&y, &of("y_weights_only").1, out, name);
    }
}

/// The product with its sum in another order.
fn ordered(module: &Module, order: &Order) -> Module {
    let op = |node: &ir::Node| match &node.op {
        Op::Linear { contract, .. } => Op::Linear { contract: contract.clone(), order: order.clone() },
        other => other.clone(),
    };
    let entry = &module.entries[0];
    module.with_entries(vec![Entry { last: entry.last.map_ops(op), ..entry.clone() }])
}

/// Numbers that a format holds without rounding: of codes of both signs, each row or block times a power of two.
fn held(format: &str, rows: usize, columns: usize, seed: usize) -> Vec<f32> {
    let number = |row: usize, column: usize| {
        let draw = (row * 31 + column * 17 + seed * 7 + row * column) % 64;
        let sign = if draw < 32 { 1.0 } else { -1.0 };
        match format {
            // The first of a row is its largest, which is worth 448.
            "fp8" => sign * if column == 0 { 14.0 } else { (draw % 15) as f32 } * 2f32.powi(row as i32 % 4 - 2),
            // The same for each block and 6.
            _ => {
                let code = if column.is_multiple_of(16) { 7 } else { draw as u8 % 8 };
                sign * numerics::e2m1_value(code) * 2f32.powi((row + column / 16) as i32 % 3 - 1)
            }
        }
    };
    (0..rows * columns).map(|i| number(i / columns, i % columns)).collect()
}

/// Products of numbers that need no rounding have the bits of the exact sum in every order, scales and all.
#[test]
fn exact_probes_hold_for_every_format() {
    const ROWS: usize = 7;
    const TOKENS: usize = 6;
    for (format, dtype, columns, stored) in [
        ("fp8", DType::E4m3, 91, "stored fp8 inputs token codes weight scale weight_scale"),
        (
            "nvfp4",
            DType::Nvfp4,
            96,
            "stored nvfp4 inputs block codes weight scale weight_scale global weight_scale_2 input input_scale",
        ),
    ] {
        let (codes, x) = (held(format, ROWS, columns, 1), held(format, TOKENS, columns, 2));
        let scales: Vec<f32> = (0..ROWS).map(|row| 2f32.powi(row as i32 - 3)).collect();
        let mut weights = WeightMap::new();
        weights.insert("w.codes", None, tensor(&[("rows", ROWS), ("columns", columns)], dtype, codes.clone()));
        weights.insert("w.scale", None, tensor(&[("rows", ROWS)], DType::F32, scales.clone()));
        weights.insert("w.input", None, tensor(&[], DType::F32, vec![0.125]));
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let wanted: Vec<u32> = x
            .chunks(columns)
            .flat_map(|x| codes.chunks(columns).zip(&scales).map(move |(w, s)| (dot(x, w) * f64::from(*s)) as f32))
            .map(f32::to_bits)
            .collect();
        assert!(wanted.iter().filter(|bits| **bits != 0).count() > wanted.len() / 2);
        let x = tensor(&[("T", TOKENS), ("columns", columns)], DType::Bf16, x);
        for how in [FormatUse::Native, FormatUse::Weights] {
            let module = product(stored, how, [ROWS, columns]);
            for order in [Order::Any, Order::Fold, Order::Serial, Order::Fused] {
                let (y, _) = run(&ordered(&module, &order), &weights, &x);
                let found: Vec<u32> = y["y"].floats().expect("floats").iter().map(|y| y.to_bits()).collect();
                assert_eq!(found, wanted, "{format} {how:?} {order:?}");
            }
        }
    }
}

/// A layer of the full model on four ranks, at kernel level: codes times codes, each value quantised where it is made, scales
/// behind the sums over ranks.
fn layer(target: &str) -> String {
    let target = Target::load(target).expect("a target");
    let mesh = ir::Mesh::parse("tp=4").expect("a mesh");
    let options = target.options_on(&mesh).into_iter().collect();
    let choices = Choices { act: target.act, options, assume: target.formats.assume, ..Choices::default() };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model-spec/beam.toml");
    let model = check_path(&path, &Library::embedded(), &choices).model.expect("a model");
    let compile = Compile { mesh: &mesh, ..Compile::one_device(&target) };
    let stages = Stages::compile(model, &compile).expect("a plan");
    passes::check_plan::check(&stages.plan, &stages.kernels).expect("no value is lost");
    let text = stages.text(Stage::Kernel, false);
    let (_, layer) = text.split_once("  graph sliding.sparse ").expect("a layer");
    layer.split("\n  graph ").next().unwrap_or_default().to_owned()
}

#[test]
fn a_layer_of_the_full_model_in_fp8() {
    insta::assert_snapshot!(layer("gb300-fp8"));
}

#[test]
fn a_layer_of_the_full_model_in_nvfp4() {
    insta::assert_snapshot!(layer("gb300-nvfp4"));
}

//! Quantised checkpoints: codes, scales in all their forms, numbers, defaults, and what is refused.

use crate::common::{T, bf16s, f32s, form, load, load_with, model, recipe, single};
use artifact::{RecipeForm, WeightRecipe};
use device::checkpoint::{LoadOptions, Weights};
use ir::{DType, DiskLayout};
use numerics::{e2m1_value, e4m3_value};
use safetensors::Dtype;
use std::path::Path;

fn bytes(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> T {
    T { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

/// Bytes that are all no NaN of e4m3.
fn codes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 37 + seed * 11) % 0x7f) as u8 | ((i % 3 == 0) as u8) << 7).collect()
}

fn of(name: &str, shape: &[u64], dtype: DType, forms: Vec<RecipeForm>) -> WeightRecipe {
    WeightRecipe { dtype, pinned: true, ..recipe(name, shape, forms) }
}

fn laid(tensor: &str, shape: &[u64], layout: DiskLayout) -> RecipeForm {
    RecipeForm { layout, ..form(tensor, shape) }
}

/// The same for every index of an axis `e` of 2.
fn spread(form: RecipeForm) -> RecipeForm {
    RecipeForm { spread: vec![("e".to_owned(), 2)], ..form }
}

fn with(dir: &Path, recipes: &[WeightRecipe], options: &LoadOptions) -> Result<Weights, String> {
    load_with(dir, recipes, options).map_err(|e| e.to_string())
}

#[test]
fn codes_and_scales_of_rows_are_read_in_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let scales = [0.5, 2.0, 0.125, 1.0, 4.0];
    for scale in [
        f32s("m.weight_scale", &[5, 1], &scales),
        f32s("m.weight_scale", &[5], &scales),
        bf16s("m.weight_scale", &[5, 1], &scales),
    ] {
        single(dir.path(), &[bytes("m.weight", Dtype::F8_E4M3, &[5, 7], codes(35, 1)), scale]);
        let recipes = [
            of("m.codes", &[5, 7], DType::E4m3, vec![form("m.weight", &[5, 7])]),
            of("m.scale", &[5], DType::F32, vec![form("m.weight_scale", &[5])]),
        ];
        let weights = load(dir.path(), &recipes).unwrap();
        let wanted: Vec<f32> = codes(35, 1).into_iter().map(e4m3_value).collect();
        assert_eq!(model(&weights, "m.codes"), wanted);
        assert_eq!(model(&weights, "m.scale"), scales);
        assert!(weights.conversions().iter().any(|c| c.name() == "widen F8_E4M3 to bf16" && !c.lossy));
        // The same multiplied out into a plain weight, once that is asked for.
        let plain = [WeightRecipe { dtype: DType::F32, ..recipe("m", &[5, 7], vec![form("m.weight", &[5, 7])]) }];
        let told = with(dir.path(), &plain, &LoadOptions::default()).unwrap_err();
        assert!(
            told.contains("W0310") && told.contains("F8_E4M3") && told.contains("f32") && told.contains("--widen"),
            "{told}"
        );
        assert!(!told.contains("W0306"), "what belongs to it is not told apart: {told}");
        let weights = with(dir.path(), &plain, &LoadOptions { widen: true, ..LoadOptions::default() }).unwrap();
        let products: Vec<f32> = wanted.iter().enumerate().map(|(i, code)| code * scales[i / 7]).collect();
        assert_eq!(model(&weights, "m"), products);
        assert_eq!(weights.conversions()[0].name(), "unscale F8_E4M3 to f32");
    }
}

/// Two experts in nibbles.
fn experts() -> Vec<T> {
    let expert = |e: usize| {
        let name = |end: &str| format!("x.{e}.{end}");
        [
            bytes(&name("weight"), Dtype::U8, &[3, 16], codes(48, e)),
            bytes(&name("weight_scale"), Dtype::F8_E4M3, &[3, 2], (0..6).map(|i| 0x30 + (i + e) as u8).collect()),
            f32s(&name("weight_scale_2"), &[1][e..], &[0.25 + e as f32]),
            f32s(&name("input_scale"), &[], &[1.0 + e as f32]),
        ]
    };
    (0..2).flat_map(expert).collect()
}

/// What expert `e`'s element is worth without its number.
fn expert_value(e: usize, at: usize) -> f32 {
    let byte = codes(48, e)[at / 2];
    let code = if at.is_multiple_of(2) { byte & 0xf } else { byte >> 4 };
    e2m1_value(code) * e4m3_value(0x30 + (at / 16 + e) as u8)
}

#[test]
fn nibbles_numbers_and_largest_inputs_are_read() {
    let dir = tempfile::tempdir().unwrap();
    single(dir.path(), &experts());
    let nibbles = DiskLayout::Nibbles { scales: "x.{e}.weight_scale".to_owned() };
    let largest = DiskLayout::Largest { also: vec!["x.{e}.input_scale".to_owned()] };
    let recipes = [
        of("x.codes", &[2, 3, 32], DType::Nvfp4, vec![spread(laid("x.{e}.weight", &[3, 32], nibbles))]),
        of("x.scale", &[2, 3], DType::F32, vec![spread(laid("x.{e}.weight_scale_2", &[], DiskLayout::Number))]),
        of("x.input", &[], DType::F32, vec![spread(laid("x.{e}.input_scale", &[], largest))]),
        WeightRecipe {
            absent: Some(1.0),
            ..of("k.scale", &[], DType::F32, vec![laid("k_scale", &[], DiskLayout::Number)])
        },
    ];
    let weights = load(dir.path(), &recipes).unwrap();
    let wanted: Vec<f32> = (0..2).flat_map(|e| (0..96).map(move |at| expert_value(e, at))).collect();
    assert_eq!(model(&weights, "x.codes"), wanted);
    assert_eq!(model(&weights, "x.scale"), [0.25, 0.25, 0.25, 1.25, 1.25, 1.25]);
    assert_eq!(model(&weights, "x.input"), [2.0]);
    assert_eq!(model(&weights, "k.scale"), [1.0]);
    // Without inputs: the numbers of inputs stay unread.
    load(dir.path(), &recipes[..2]).unwrap();
    let plain = spread(form("x.{e}.weight", &[3, 32]));
    let plain = [WeightRecipe { dtype: DType::F32, ..recipe("x", &[2, 3, 32], vec![plain]) }];
    let weights = with(dir.path(), &plain, &LoadOptions { widen: true, ..LoadOptions::default() }).unwrap();
    let products: Vec<f32> = wanted.iter().enumerate().map(|(i, x)| x * if i < 96 { 0.25 } else { 1.25 }).collect();
    assert_eq!(model(&weights, "x"), products);
}

#[test]
fn one_number_of_several_tensors_must_be_one() {
    let dir = tempfile::tempdir().unwrap();
    let same = DiskLayout::Same { also: vec!["b.input_scale".to_owned()] };
    let recipes = [of("a.b.input", &[], DType::F32, vec![laid("a.input_scale", &[], same)])];
    single(dir.path(), &[f32s("a.input_scale", &[], &[0.5]), f32s("b.input_scale", &[1], &[0.5])]);
    assert_eq!(model(&load(dir.path(), &recipes).unwrap(), "a.b.input"), [0.5]);
    single(dir.path(), &[f32s("a.input_scale", &[], &[0.5]), f32s("b.input_scale", &[1], &[0.75])]);
    let told = with(dir.path(), &recipes, &LoadOptions::default()).unwrap_err();
    for part in ["W0311", "`a.input_scale` is 0.5", "`b.input_scale` is 0.75", "--unpack"] {
        assert!(told.contains(part), "{told}");
    }
    single(dir.path(), &[f32s("a.input_scale", &[], &[0.5])]);
    let told = with(dir.path(), &recipes, &LoadOptions::default()).unwrap_err();
    assert!(told.contains("W0301") && told.contains("though 1 of its 2 tensors"), "{told}");
}

#[test]
fn scales_that_scale_nothing_are_told_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let number = |name: &str, tensor: &str| of(name, &[], DType::F32, vec![laid(tensor, &[], DiskLayout::Number)]);
    let input = number("x.input", "x.input_scale");
    let blocks = DiskLayout::Nibbles { scales: "x.weight_scale".to_owned() };
    let codes = of("x.codes", &[2, 32], DType::Nvfp4, vec![laid("x.weight", &[2, 32], blocks)]);
    let rows = of("x.scale", &[3], DType::F32, vec![form("x.weight_scale", &[3])]);
    let whole = number("x.scale", "x.weight_scale_2");
    let block_scales = |last: u8| {
        vec![
            bytes("x.weight", Dtype::U8, &[2, 16], vec![0x21; 32]),
            bytes("x.weight_scale", Dtype::F8_E4M3, &[2, 2], vec![0x38, 0, 0x38, last]),
        ]
    };
    let one = |name: &str, x: f32| vec![f32s(name, &[], &[x])];
    let three = |x: f32| vec![f32s("x.weight_scale", &[3, 1], &[1.0, 0.0, x])];
    for (recipe, tensors, told) in [
        (
            &input,
            one("x.input_scale", 0.0),
            "number 0 of `x.input_scale` is 0, and W.x.input needs a finite number above 0",
        ),
        (&input, one("x.input_scale", -2.0), "is -2, and"),
        (&input, one("x.input_scale", f32::NAN), "is NaN, and"),
        (&whole, one("x.weight_scale_2", f32::INFINITY), "number 0 of `x.weight_scale_2` is inf"),
        (&rows, three(f32::NAN), "number 2 of `x.weight_scale` is NaN"),
        (&codes, block_scales(0xff), "number 3 of `x.weight_scale` is NaN, and W.x.codes needs a finite number there"),
        (&input, one("x.input_scale", 0.5), ""),
        (&whole, one("x.weight_scale_2", 0.0), ""),
        (&rows, three(-1.0), ""),
        (&codes, block_scales(0x7e), ""),
    ] {
        single(dir.path(), &tensors);
        let found = with(dir.path(), std::slice::from_ref(recipe), &LoadOptions::default()).err().unwrap_or_default();
        assert!(found.contains(told) && found.contains("W0312") != told.is_empty(), "{told}: {found}");
    }
}

#[test]
fn the_files_own_format_decides_between_codes_and_floats_made_narrow() {
    let dir = tempfile::tempdir().unwrap();
    let recipes = [
        of(
            "m.codes",
            &[2, 4],
            DType::E4m3,
            vec![form("m.weight", &[2, 4]), laid("m.weight", &[2, 4], DiskLayout::RowCodes)],
        ),
        of(
            "m.scale",
            &[2],
            DType::F32,
            vec![form("m.weight_scale", &[2]), laid("m.weight", &[2, 4], DiskLayout::RowScales)],
        ),
    ];
    single(dir.path(), &[bf16s("m.weight", &[2, 4], &[896.0, -2.0, 3.0, 0.5, 0.0, 0.0, 0.0, 0.0])]);
    let weights = load(dir.path(), &recipes).unwrap();
    assert_eq!(model(&weights, "m.codes"), [448.0, -1.0, 1.5, 0.25, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(model(&weights, "m.scale")[0], 2.0);
    assert!(weights.conversions().iter().any(|c| c.lossy && c.name() == "narrow BF16 to e4m3"));
    single(
        dir.path(),
        &[bytes("m.weight", Dtype::F8_E4M3, &[2, 4], codes(8, 0)), f32s("m.weight_scale", &[2], &[3.0, 5.0])],
    );
    let weights = load(dir.path(), &recipes).unwrap();
    assert_eq!(model(&weights, "m.codes"), codes(8, 0).into_iter().map(e4m3_value).collect::<Vec<_>>());
    assert_eq!(model(&weights, "m.scale"), [3.0, 5.0]);
}

#[test]
fn what_is_stored_otherwise_is_refused_with_both_facts() {
    let dir = tempfile::tempdir().unwrap();
    let told = |tensors: &[T], recipes: &[WeightRecipe]| {
        single(dir.path(), tensors);
        with(dir.path(), recipes, &LoadOptions { widen: true, ..LoadOptions::default() }).unwrap_err()
    };
    let codes_of = [of("m.codes", &[2, 16], DType::E4m3, vec![form("m.weight", &[2, 16])])];
    let text = told(&[bf16s("m.weight", &[2, 16], &[1.0; 32])], &codes_of);
    assert!(text.contains("W0303") && text.contains("BF16") && text.contains("F8_E4M3"), "{text}");
    let nibbles = DiskLayout::Nibbles { scales: "m.weight_scale".to_owned() };
    let blocks = [of("m.codes", &[2, 16], DType::Nvfp4, vec![laid("m.weight", &[2, 16], nibbles)])];
    let u8s = |shape: &[usize]| bytes("m.weight", Dtype::U8, shape, vec![0; shape.iter().product()]);
    let scales = |shape: &[usize]| bytes("m.weight_scale", Dtype::F8_E4M3, shape, vec![0; shape.iter().product()]);
    let text = told(&[u8s(&[2, 16]), scales(&[2, 1])], &blocks);
    assert!(text.contains("W0302") && text.contains("[2, 16]") && text.contains("[2, 8]"), "{text}");
    let text = told(&[u8s(&[2, 8]), scales(&[2, 2])], &blocks);
    assert!(text.contains("W0302") && text.contains("[2, 2]") && text.contains("[2, 1]"), "{text}");
    let text = told(&[u8s(&[2, 8])], &blocks);
    assert!(text.contains("W0301") && text.contains("`m.weight_scale`"), "{text}");
    let text = told(&[u8s(&[2, 8]), bf16s("m.weight_scale", &[2, 1], &[1.0; 2])], &blocks);
    assert!(text.contains("W0303") && text.contains("is read from F8_E4M3"), "{text}");
    // A scale of inputs that nobody knows is no number that may stay unread.
    let text = told(&[u8s(&[2, 8]), scales(&[2, 1]), f32s("m.pre_quant_scale", &[16], &[1.0; 16])], &blocks);
    assert!(text.contains("W0306") && text.contains("m.pre_quant_scale"), "{text}");
    // Codes of one kind without scales of that kind are no matrix.
    let plain = [recipe("m", &[2, 16], vec![form("m.weight", &[2, 16])])];
    let text = told(&[bytes("m.weight", Dtype::F8_E4M3, &[2, 16], vec![0; 32])], &plain);
    assert!(text.contains("W0303") && text.contains("F32, BF16 or F16"), "{text}");
}

#[test]
fn synthetic_weights_are_numbers_of_their_format() {
    let nibbles = DiskLayout::Nibbles { scales: "m.weight_scale".to_owned() };
    let recipes = [
        of("a", &[4, 32], DType::E4m3, vec![form("a.weight", &[4, 32])]),
        of("b", &[4, 32], DType::Nvfp4, vec![laid("m.weight", &[4, 32], nibbles)]),
    ];
    let weights = Weights::synthetic(&recipes, 3).unwrap();
    assert!(model(&weights, "a").iter().all(|x| numerics::round_e4m3(*x) == *x));
    let blocks = model(&weights, "b");
    assert!(blocks.as_chunks().0.iter().all(|block| numerics::Block::exactly(block).is_some()));
    assert!(blocks.iter().any(|x| *x != 0.0));
}

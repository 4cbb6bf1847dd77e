//! Quantised checkpoints: codes, scales in all their forms, numbers, defaults, and what is refused.

use crate::common::{T, bf16s, f32s, form, load, load_with, model, recipe, sharded, single, u16s};
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
    for part in
        ["W0314", "1 of 2 tensors that hold it are not in the checkpoint: `b.input_scale`", "inputs = \"plain\""]
    {
        assert!(told.contains(part), "{told}");
    }
    // Where numbers may be absent each that is counts as 1, and they must still be one.
    let may_lack = [WeightRecipe { absent: Some(1.0), ..recipes[0].clone() }];
    let told = with(dir.path(), &may_lack, &LoadOptions::default()).unwrap_err();
    for part in ["W0311", "`a.input_scale` is 0.5", "`b.input_scale` is 1 (as it is not in the checkpoint)", "--unpack"]
    {
        assert!(told.contains(part), "{told}");
    }
    single(dir.path(), &[f32s("a.input_scale", &[], &[1.0])]);
    assert_eq!(model(&load(dir.path(), &may_lack).unwrap(), "a.b.input"), [1.0]);
    // What is no number is told before it is compared with another.
    for odd in [f32::NAN, f32::INFINITY, 0.0, -0.5] {
        single(dir.path(), &[f32s("a.input_scale", &[], &[0.5]), f32s("b.input_scale", &[1], &[odd])]);
        let told = with(dir.path(), &recipes, &LoadOptions::default()).unwrap_err();
        assert!(
            told.starts_with("W0312: number 0 of `b.input_scale` in `model.safetensors` is") && !told.contains("W0311"),
            "{told}"
        );
    }
}

/// Experts share the largest of theirs; that of one product must be that of the other, which takes the same input.
#[test]
fn products_of_experts_have_one_largest_number() {
    let dir = tempfile::tempdir().unwrap();
    let largest = DiskLayout::Largest { also: vec!["x.{e}.up.input_scale".to_owned()] };
    let recipe = of("x.input", &[], DType::F32, vec![spread(laid("x.{e}.gate.input_scale", &[], largest))]);
    let number = |name: &str, x: f32| f32s(&format!("x.{name}.input_scale"), &[], &[x]);
    let loaded = |absent: Option<f32>, tensors: &[T]| {
        single(dir.path(), tensors);
        let recipes = [WeightRecipe { absent, ..recipe.clone() }];
        with(dir.path(), &recipes, &LoadOptions::default()).map(|weights| model(&weights, "x.input"))
    };
    let gate = [number("0.gate", 2.0), number("1.gate", 0.5)];
    let all = |up: [f32; 2]| [&gate[..], &[number("0.up", up[0]), number("1.up", up[1])]].concat();
    assert_eq!(loaded(None, &all([0.5, 2.0])), Ok(vec![2.0]));
    let told = loaded(None, &all([0.25, 3.0])).unwrap_err();
    let facts = "`x.0.gate.input_scale` is 2 (the largest of 2) and `x.1.up.input_scale` is 3 (the largest of 2)";
    assert!(told.starts_with("W0311: W.x.input") && told.contains(facts), "{told}");
    let lacking = [&gate[..], &[number("0.up", 2.0)]].concat();
    assert_eq!(loaded(Some(1.0), &lacking), Ok(vec![2.0]));
    let told = loaded(None, &lacking).unwrap_err();
    assert!(told.starts_with("W0314") && told.contains("1 of 4 tensors"), "{told}");
    let told = loaded(Some(1.0), &[&gate[1..], &[number("0.up", 0.5), number("1.up", 0.5)]].concat()).unwrap_err();
    let facts = "`x.0.gate.input_scale` is 1 (as it is not in the checkpoint) (the largest of 2)";
    assert!(told.starts_with("W0311") && told.contains(facts), "{told}");
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
            "number 0 of `x.input_scale` in `model.safetensors` is 0, and W.x.input needs a finite number above 0",
        ),
        (&input, one("x.input_scale", -2.0), "is -2, and"),
        (&input, one("x.input_scale", f32::NAN), "is NaN, and"),
        (
            &whole,
            one("x.weight_scale_2", f32::INFINITY),
            "number 0 of `x.weight_scale_2` in `model.safetensors` is inf",
        ),
        (&rows, three(f32::NAN), "number 2 of `x.weight_scale` in `model.safetensors` is NaN"),
        (
            &codes,
            block_scales(0xff),
            "number 3 of `x.weight_scale` in `model.safetensors` is NaN, and W.x.codes needs a finite number of at least 0 there",
        ),
        (&codes, block_scales(0xb8), "number 3 of `x.weight_scale` in `model.safetensors` is -1, and"),
        (
            &whole,
            one("x.weight_scale_2", -0.5),
            "number 0 of `x.weight_scale_2` in `model.safetensors` is -0.5, and W.x.scale needs a finite number of at least 0",
        ),
        (&rows, three(-1.0), "number 2 of `x.weight_scale` in `model.safetensors` is -1, and"),
        (&rows, three(f32::NEG_INFINITY), "number 2 of `x.weight_scale` in `model.safetensors` is -inf"),
        (&input, one("x.input_scale", 0.5), ""),
        (&whole, one("x.weight_scale_2", 0.0), ""),
        (&rows, three(0.0), ""),
        (&codes, block_scales(0x7e), ""),
        (&codes, block_scales(0x80), ""),
    ] {
        single(dir.path(), &tensors);
        let found = with(dir.path(), std::slice::from_ref(recipe), &LoadOptions::default()).err().unwrap_or_default();
        assert!(found.contains(told) && found.contains("W0312") != told.is_empty(), "{told}: {found}");
    }
}

#[test]
fn scales_are_zero_over_zeros_only() {
    let dir = tempfile::tempdir().unwrap();
    let told = |tensors: &[T], recipes: &[WeightRecipe], widen: bool| {
        single(dir.path(), tensors);
        let options = LoadOptions { widen, ..LoadOptions::default() };
        with(dir.path(), recipes, &options).err().unwrap_or_default()
    };
    let fault = |tensor: &str, at: usize| format!("W0312: number {at} of `{tensor}` in `model.safetensors` is 0, and");
    // Rows; minus 0 is 0 too.
    let rows = [
        of("m.codes", &[3, 4], DType::E4m3, vec![form("m.weight", &[3, 4])]),
        of("m.scale", &[3], DType::F32, vec![form("m.weight_scale", &[3])]),
    ];
    let wide = [WeightRecipe { dtype: DType::F32, ..recipe("m", &[3, 4], vec![form("m.weight", &[3, 4])]) }];
    for (last, good) in [(0x80, true), (0x01, false)] {
        let mut bits = vec![0x38; 12];
        bits[4..8].copy_from_slice(&[0, 0x80, 0, last]);
        let tensors =
            [bytes("m.weight", Dtype::F8_E4M3, &[3, 4], bits), f32s("m.weight_scale", &[3, 1], &[1.0, 0.0, 2.0])];
        for found in [told(&tensors, &rows, false), told(&tensors, &wide, true)] {
            assert!(found.is_empty() == good && (good || found.contains(&fault("m.weight_scale", 1))), "{found}");
        }
    }
    // Numbers of matrices, and scales of blocks: one that became 0 takes its block with it, all of them take the matrix.
    let blocks = |shape: &[u64]| {
        let nibbles = DiskLayout::Nibbles { scales: "m.weight_scale".to_owned() };
        [
            of("m.codes", shape, DType::Nvfp4, vec![laid("m.weight", shape, nibbles)]),
            of("m.scale", &shape[..1], DType::F32, vec![laid("m.weight_scale_2", &[], DiskLayout::Number)]),
        ]
    };
    let wide = [WeightRecipe { dtype: DType::F32, ..recipe("m", &[2, 32], vec![form("m.weight", &[2, 32])]) }];
    for (pair, scales, number, tensor) in [
        (0x88, [0x38; 4], 0.0, ""),
        (0x08, [0; 4], 1.0, ""),
        (0x21, [0, 0x38, 0, 0], 1.0, ""),
        (0x21, [0x38; 4], 0.0, "m.weight_scale_2"),
        (0x21, [0, 0x80, 0, 0], 1.0, "m.weight_scale"),
    ] {
        let tensors = [
            bytes("m.weight", Dtype::U8, &[2, 16], vec![pair; 32]),
            bytes("m.weight_scale", Dtype::F8_E4M3, &[2, 2], scales.to_vec()),
            f32s("m.weight_scale_2", &[], &[number]),
        ];
        for found in [told(&tensors, &blocks(&[2, 32]), false), told(&tensors, &wide, true)] {
            let good = tensor.is_empty();
            assert!(found.is_empty() == good && (good || found.contains(&fault(tensor, 0))), "{tensor}: {found}");
        }
    }
}

#[test]
fn the_largest_of_many_numbers_hides_none_that_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let largest = DiskLayout::Largest { also: Vec::new() };
    let recipes = [of("x.input", &[], DType::F32, vec![spread(laid("x.{e}.input_scale", &[], largest))])];
    for odd in [-1.0, 0.0, f32::NAN] {
        let number = |e: usize, x: f32| f32s(&format!("x.{e}.input_scale"), &[], &[x]);
        single(dir.path(), &[number(0, 2.0), number(1, odd)]);
        let told = with(dir.path(), &recipes, &LoadOptions::default()).unwrap_err();
        assert!(told.starts_with("W0312: number 0 of `x.1.input_scale` in `model.safetensors` is"), "{told}");
    }
}

/// What cannot be in any element, in each way that elements are read: the tensor, the place in it, the file.
#[test]
fn elements_that_are_no_finite_numbers_are_told_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let told = |tensors: &[T], recipes: &[WeightRecipe], options: &LoadOptions| {
        single(dir.path(), tensors);
        with(dir.path(), recipes, options).unwrap_err()
    };
    let usual = LoadOptions::default();
    let fault = |tensor: &str, at: usize, number: &str| {
        format!("W0313: element {at} of `{tensor}` in `model.safetensors` is {number}, stored as ")
    };
    let with_code = |dtype, code| {
        let mut bits = vec![0x38; 14];
        bits[9] = code;
        bytes("m.weight", dtype, &[2, 7], bits)
    };
    for (dtype, kept, code, number) in [
        (Dtype::F8_E4M3, DType::E4m3, 0x7f, "NaN"),
        (Dtype::F8_E4M3, DType::E4m3, 0xff, "NaN"),
        (Dtype::F8_E5M2, DType::E5m2, 0x7c, "inf"),
        (Dtype::F8_E5M2, DType::E5m2, 0xfd, "NaN"),
    ] {
        let codes = [of("m.codes", &[2, 7], kept, vec![form("m.weight", &[2, 7])])];
        let text = told(&[with_code(dtype, code)], &codes, &usual);
        let wanted = format!("{dtype:?}, and W.m.codes needs a finite number of {kept} there");
        assert!(text.starts_with(&fault("m.weight", 9, number)) && text.contains(&wanted), "{text}");
    }
    // Multiplied out.
    let wide = [recipe("m", &[2, 7], vec![form("m.weight", &[2, 7])])];
    let scales = f32s("m.weight_scale", &[2], &[1.0, 2.0]);
    let widen = LoadOptions { widen: true, ..LoadOptions::default() };
    let text = told(&[with_code(Dtype::F8_E4M3, 0x7f), scales], &wide, &widen);
    assert!(text.starts_with(&fault("m.weight", 9, "NaN")), "{text}");
    // Floats, as they are, wider, narrower, and made codes: both weights are of one tensor, told once.
    let made = [
        of("m.codes", &[2, 7], DType::E4m3, vec![laid("m.weight", &[2, 7], DiskLayout::RowCodes)]),
        of("m.scale", &[2], DType::F32, vec![laid("m.weight", &[2, 7], DiskLayout::RowScales)]),
    ];
    let f32_wide = [WeightRecipe { dtype: DType::F32, ..wide[0].clone() }];
    for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = vec![1.0; 14];
        values[9] = odd;
        let half: Vec<u16> = values.iter().map(|x| numerics::bf16_bits(*x)).collect();
        let (b, f) = (u16s("m.weight", Dtype::BF16, &[2, 7], &half), f32s("m.weight", &[2, 7], &values));
        let narrow = LoadOptions { narrow: true, ..LoadOptions::default() };
        for (tensor, recipes, options) in [
            (&b, &wide[..], &usual),
            (&b, &f32_wide[..], &usual),
            (&f, &f32_wide[..], &usual),
            (&f, &wide[..], &narrow),
            (&b, &made[..], &usual),
            (&f, &made[..], &usual),
            (&f, &made[1..], &usual),
        ] {
            let text = told(std::slice::from_ref(tensor), recipes, options);
            assert!(text.starts_with(&fault("m.weight", 9, &format!("{odd:?}"))), "{text}");
            assert_eq!(text.matches("W0313").count(), 1, "{text}");
        }
    }
    // A number that the narrower format does not reach.
    let narrow = LoadOptions { narrow: true, ..LoadOptions::default() };
    let text = told(&[f32s("m.weight", &[2, 7], &[f32::MAX; 14])], &wide, &narrow);
    assert!(
        text.starts_with(&fault("m.weight", 0, "3.4028235e38")) && text.contains("finite number of bf16"),
        "{text}"
    );
}

#[test]
fn an_element_is_counted_in_its_own_tensor_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let recipes = [spread(form("x.{e}.weight", &[3, 4])), {
        RecipeForm { slice: Some(vec![[0, 2], [3, 3], [0, 4]]), ..form("x.packed", &[2, 6, 4]) }
    }];
    let recipes = [recipe("x", &[2, 3, 4], recipes.to_vec())];
    let mut bits = vec![0x3f80; 12];
    bits[7] = 0x7fc0;
    let expert = |e: usize, bits: &[u16]| u16s(&format!("x.{e}.weight"), Dtype::BF16, &[3, 4], bits);
    let shards = [("a.safetensors", vec![expert(0, &[0x3f80; 12])]), ("b.safetensors", vec![expert(1, &bits)])];
    sharded(dir.path(), &shards);
    let told = with(dir.path(), &recipes, &LoadOptions::default()).unwrap_err();
    assert!(told.starts_with("W0313: element 7 of `x.1.weight` in `b.safetensors` is NaN, stored as BF16"), "{told}");
    // Of a packed tensor only the part that is read is looked at.
    let packed = |at: usize| {
        let mut bits = vec![0x3f80; 48];
        bits[at] = 0xff80;
        let dir = tempfile::tempdir().unwrap();
        single(dir.path(), &[u16s("x.packed", Dtype::BF16, &[2, 6, 4], &bits)]);
        with(dir.path(), &recipes, &LoadOptions::default()).err()
    };
    assert!(packed(11).is_none() && packed(35).is_none());
    let told = packed(41).unwrap();
    assert!(told.starts_with("W0313: element 41 of `x.packed` in `model.safetensors` is -inf"), "{told}");
    // Far behind the first piece that a thread reads.
    let n = (1 << 19) + 12;
    let mut bits = vec![0x3f80; n];
    bits[n - 5] = 0x7f80;
    std::fs::remove_file(dir.path().join("model.safetensors.index.json")).unwrap();
    single(dir.path(), &[u16s("l.weight", Dtype::BF16, &[n], &bits)]);
    let long = [recipe("l", &[n as u64], vec![form("l.weight", &[n as u64])])];
    let told = with(dir.path(), &long, &LoadOptions::default()).unwrap_err();
    assert!(told.starts_with(&format!("W0313: element {} of `l.weight`", n - 5)), "{told}");
}

#[test]
fn numbers_of_inputs_and_cached_rows_fit_the_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let told = |tensors: &[T], recipes: &[WeightRecipe], cached_codes: bool| {
        single(dir.path(), tensors);
        let options = LoadOptions { cached_codes, ..LoadOptions::default() };
        with(dir.path(), recipes, &options).err().unwrap_or_default()
    };
    let alternatives = ["a.k_scale", "b.k_scale"].map(|name| laid(name, &[], DiskLayout::Number)).to_vec();
    let cached = [of("kv.k_scale", &[], DType::F32, alternatives)];
    let may_lack = [WeightRecipe { absent: Some(1.0), ..cached[0].clone() }];
    let text = told(&[], &cached, true);
    for part in ["W0314", "`a.k_scale` or `b.k_scale`", "number that cached rows are divided by", "--kv-scales"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(told(&[], &may_lack, true), "");
    let one = |x: f32| [f32s("b.k_scale", &[1], &[x]), f32s("b.weight", &[1], &[1.0])];
    let weight = WeightRecipe { dtype: DType::F32, ..recipe("b", &[1], vec![form("b.weight", &[1])]) };
    assert_eq!(told(&one(0.5), &[cached[0].clone(), weight.clone()], true), "");
    // An artifact that keeps codes without numbers, and one that keeps rows as they are.
    let plain = [weight];
    let text = told(&one(0.5), &plain, true);
    for part in ["W0315", "`b.k_scale` in `model.safetensors`", "codes under 0.5", "beamc import"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!((told(&one(1.0), &plain, true), told(&one(0.5), &plain, false)), Default::default());
    // All numbers of inputs are missing: the checkpoint keeps inputs as they are.
    let largest = DiskLayout::Largest { also: vec!["y.{e}.input_scale".to_owned()] };
    let input = [of("x.y.input", &[], DType::F32, vec![spread(laid("x.{e}.input_scale", &[], largest))])];
    let text = told(&[], &input, false);
    for part in ["W0314: W.x.y.input", "4 of 4 tensors", "`x.0.input_scale`", "inputs = \"plain\"", "--calibrate"] {
        assert!(text.contains(part), "{text}");
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

/// Where floats are made codes as well, whatever is neither is told as what it is, not as two forms.
#[test]
fn other_codes_than_those_that_floats_become_are_refused_with_both_facts() {
    let dir = tempfile::tempdir().unwrap();
    let recipes = [
        of(
            "m.codes",
            &[2, 16],
            DType::E4m3,
            vec![form("m.weight", &[2, 16]), laid("m.weight", &[2, 16], DiskLayout::RowCodes)],
        ),
        of(
            "m.scale",
            &[2],
            DType::F32,
            vec![form("m.weight_scale", &[2]), laid("m.weight", &[2, 16], DiskLayout::RowScales)],
        ),
    ];
    let told = |tensors: &[T]| {
        single(dir.path(), tensors);
        with(dir.path(), &recipes, &LoadOptions::default()).unwrap_err()
    };
    let nvfp4 = [
        bytes("m.weight", Dtype::U8, &[2, 8], vec![0x11; 16]),
        bytes("m.weight_scale", Dtype::F8_E4M3, &[2, 1], vec![0x38; 2]),
        f32s("m.weight_scale_2", &[], &[1.0]),
    ];
    let scaled = |dtype| [bytes("m.weight", dtype, &[2, 16], vec![0x11; 32]), f32s("m.weight_scale", &[2], &[1.0; 2])];
    for (tensors, format) in [
        (&nvfp4[..], "U8"),
        (&nvfp4[..1], "U8"),
        (&scaled(Dtype::U8)[..], "U8"),
        (&scaled(Dtype::F8_E5M2)[..], "F8_E5M2"),
        (&scaled(Dtype::F8_E5M2)[..1], "F8_E5M2"),
    ] {
        let text = told(tensors);
        let wanted = format!(
            "`m.weight` in `model.safetensors` is stored as {format}, W.m.codes is read from F8_E4M3, or F32, BF16 or F16"
        );
        assert!(text.starts_with(&format!("W0303: {wanted}")) && !text.contains("W0305"), "{text}");
    }
    assert!(!told(&nvfp4).contains("W0306"), "what belongs to it is not told apart");
}

#[test]
fn codes_without_their_scales_name_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let codes = form("m.weight", &[2, 16]);
    let scale = form("m.weight_scale", &[2]);
    let made = |layout| laid("m.weight", &[2, 16], layout);
    let native = [
        of("m.codes", &[2, 16], DType::E4m3, vec![codes.clone()]),
        of("m.scale", &[2], DType::F32, vec![scale.clone()]),
    ];
    let converted = [
        of("m.codes", &[2, 16], DType::E4m3, vec![codes.clone(), made(DiskLayout::RowCodes)]),
        of("m.scale", &[2], DType::F32, vec![scale, made(DiskLayout::RowScales)]),
    ];
    let plain = [recipe("m", &[2, 16], vec![codes])];
    for widen in [false, true] {
        for recipes in [&native[..], &converted[..], &plain[..]] {
            single(dir.path(), &[bytes("m.weight", Dtype::F8_E4M3, &[2, 16], vec![0x38; 32])]);
            let text = with(dir.path(), recipes, &LoadOptions { widen, ..LoadOptions::default() }).unwrap_err();
            let told = text.contains("W0301") && text.contains("`m.weight_scale` is not in the checkpoint");
            assert!(told && !text.contains("W0303"), "{text}");
        }
        // Halves of a pair of bytes are such only with one of their scales.
        let pairs = [
            bytes("m.weight", Dtype::U8, &[2, 8], vec![0x11; 16]),
            bytes("m.weight_scale", Dtype::F8_E4M3, &[2, 1], vec![0x38; 2]),
        ];
        single(dir.path(), &pairs);
        let text = with(dir.path(), &plain, &LoadOptions { widen, ..LoadOptions::default() }).unwrap_err();
        assert!(text.contains("W0301") && text.contains("`m.weight_scale_2`"), "{text}");
        // Experts, which may also lie in one tensor as floats.
        let parts = |layout: fn() -> DiskLayout| {
            [spread(laid("x.{e}.weight", &[2, 16], layout())), laid("x.packed", &[2, 2, 16], layout())].to_vec()
        };
        let scales = spread(form("x.{e}.weight_scale", &[2]));
        let scales = [vec![scales], parts(|| DiskLayout::RowScales)].concat();
        let experts = [
            of(
                "x.codes",
                &[2, 2, 16],
                DType::E4m3,
                [parts(|| DiskLayout::Plain), parts(|| DiskLayout::RowCodes)].concat(),
            ),
            of("x.scale", &[2, 2], DType::F32, scales),
        ];
        let expert = |e: usize| bytes(&format!("x.{e}.weight"), Dtype::F8_E4M3, &[2, 16], vec![0x38; 32]);
        single(dir.path(), &[expert(0), expert(1)]);
        let text = with(dir.path(), &experts, &LoadOptions { widen, ..LoadOptions::default() }).unwrap_err();
        assert!(text.starts_with("W0301") && text.contains("`x.0.weight_scale`") && !text.contains("W0303"), "{text}");
        single(dir.path(), &pairs[..1]);
        let text = with(dir.path(), &plain, &LoadOptions { widen, ..LoadOptions::default() }).unwrap_err();
        assert!(text.starts_with("W0303") && text.contains("stored as U8"), "{text}");
    }
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
    // No number may stay unread but those of inputs of codes, and of cached rows of the model.
    for (name, rows) in [
        ("m.pre_quant_scale", 16),
        ("m.pre_quant_scale", 1),
        ("m.output_scale", 1),
        ("m.foo_scale", 1),
        ("n.input_scale", 1),
        ("n.k_scale", 1),
        ("m_scale", 1),
        ("m.input_scale", 2),
    ] {
        let text = told(&[u8s(&[2, 8]), scales(&[2, 1]), f32s(name, &[rows], &vec![1.0; rows])], &blocks);
        assert!(text.starts_with("W0306") && text.contains(name), "{text}");
    }
    let read = [f32s("m.input_scale", &[1], &[0.5]), f32s("m.k_scale", &[], &[0.5])];
    single(dir.path(), &[&[u8s(&[2, 8]), scales(&[2, 1])], &read[..]].concat());
    with(dir.path(), &blocks, &LoadOptions::default()).unwrap();
    // Codes of another kind are no matrix.
    let plain = [recipe("m", &[2, 16], vec![form("m.weight", &[2, 16])])];
    let text = told(&[bytes("m.weight", Dtype::F8_E5M2, &[2, 16], vec![0; 32])], &plain);
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

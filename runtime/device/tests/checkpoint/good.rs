//! What is right is read, to the bit.

use super::common::*;
use artifact::RecipeForm;
use device::checkpoint::{Checkpoint, Data, FileDType, LoadOptions, Weights};
use ir::{DType, Scope, WeightRef};
use safetensors::Dtype;

#[test]
fn one_file_is_read() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[bf16s("disk.a", &[2, 3], &count(0, 6)), bf16s("disk.b", &[4], &count(10, 4))]);
    let recipes = [plain("a", &[2, 3]), plain("b", &[4])];
    let weights = load(temp.path(), &recipes).unwrap();
    assert_eq!(model(&weights, "a"), count(0, 6));
    assert_eq!(model(&weights, "b"), count(10, 4));
    let a = weights.get(Scope::Model, "a", 0).unwrap();
    assert_eq!(a.shape, [2, 3]);
    assert!(matches!(&a.data, Data::Bf16(bits) if bits[1] == 0x3f80));
    assert_eq!((weights.len(), a.data.dtype()), (2, DType::Bf16));
    // The same through the path of the file, whatever it is called.
    let file = temp.path().join("other.name");
    std::fs::rename(temp.path().join("model.safetensors"), &file).unwrap();
    assert_eq!(model(&load(&file, &recipes).unwrap(), "b"), count(10, 4));
}

#[test]
fn shards_are_read() {
    let temp = tempfile::tempdir().unwrap();
    let shards = [
        ("model-1-of-2.safetensors", vec![bf16s("disk.a", &[2], &[1.0, 2.0])]),
        ("model-2-of-2.safetensors", vec![bf16s("disk.b", &[2], &[3.0, 4.0]), bf16s("disk.c", &[1], &[5.0])]),
    ];
    sharded(temp.path(), &shards);
    let weights = load(temp.path(), &[plain("a", &[2]), plain("b", &[2]), plain("c", &[1])]).unwrap();
    assert_eq!([model(&weights, "a"), model(&weights, "b"), model(&weights, "c")].concat(), count(1, 5));
}

#[test]
fn experts_are_the_same_from_both_forms() {
    let per_expert = tempfile::tempdir().unwrap();
    let tensors: Vec<T> =
        (0..3).map(|e| bf16s(&format!("disk.experts.{e}.w"), &[2, 4], &count(100 + 20 * e, 8))).collect();
    single(per_expert.path(), &tensors);
    let weights = load(per_expert.path(), &[experts()]).unwrap();
    let expected = [count(100, 8), count(120, 8), count(140, 8)].concat();
    assert_eq!(model(&weights, "experts"), expected);

    let packed = tempfile::tempdir().unwrap();
    let both: Vec<f32> = (0..3).flat_map(|e| [count(0, 8), count(100 + 20 * e, 8)].concat()).collect();
    single(packed.path(), &[bf16s("disk.packed", &[3, 4, 4], &both)]);
    let weights = load(packed.path(), &[experts()]).unwrap();
    assert_eq!(model(&weights, "experts"), expected);
}

#[test]
fn a_packed_tensor_may_serve_two_weights() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[bf16s("disk.packed", &[2, 4, 3], &count(0, 24))]);
    let half = |name: &str, start| {
        let slice = Some(vec![[0, 2], [start, 2], [0, 3]]);
        recipe(name, &[2, 2, 3], vec![RecipeForm { slice, ..form("disk.packed", &[2, 4, 3]) }])
    };
    let weights = load(temp.path(), &[half("upper", 0), half("lower", 2)]).unwrap();
    assert_eq!(model(&weights, "upper"), [count(0, 6), count(12, 6)].concat());
    assert_eq!(model(&weights, "lower"), [count(6, 6), count(18, 6)].concat());
}

/// Cuts in every dimension, against indexing done the slow way.
#[test]
fn any_part_of_a_tensor_is_cut_right() {
    let temp = tempfile::tempdir().unwrap();
    let shape = [3u64, 4, 2, 3];
    single(temp.path(), &[f32s("disk.w", &[3, 4, 2, 3], &count(0, 72))]);
    for slice in [
        [[0, 3], [0, 4], [0, 2], [0, 3]],
        [[1, 2], [0, 4], [0, 2], [0, 3]],
        [[0, 3], [1, 2], [0, 2], [0, 3]],
        [[1, 1], [3, 1], [1, 1], [2, 1]],
        [[2, 1], [1, 3], [0, 2], [1, 2]],
        [[0, 3], [2, 2], [1, 1], [0, 3]],
    ] {
        let mut expected = Vec::new();
        let [a, b, c, d] = slice.map(|[start, len]: [u64; 2]| start..start + len);
        for i in a {
            for j in b.clone() {
                for k in c.clone() {
                    expected.extend(d.clone().map(|l| (((i * 4 + j) * 2 + k) * 3 + l) as f32));
                }
            }
        }
        let form = RecipeForm { slice: Some(slice.to_vec()), ..form("disk.w", &shape) };
        let mut recipe = recipe("w", &slice.map(|[_, len]| len), vec![form]);
        recipe.dtype = DType::F32;
        assert_eq!(model(&load(temp.path(), &[recipe]).unwrap(), "w"), expected, "{slice:?}");
    }
}

#[test]
fn two_spread_axes_fill_in_row_major_order() {
    let temp = tempfile::tempdir().unwrap();
    let names = ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"];
    let tensors: Vec<T> = names.iter().enumerate().map(|(i, n)| bf16s(n, &[2], &count(2 * i, 2))).collect();
    single(temp.path(), &tensors);
    let spread = vec![("a".to_owned(), 2), ("b".to_owned(), 3)];
    let recipe = recipe("w", &[2, 3, 2], vec![RecipeForm { spread, ..form("{a}-{b}", &[2]) }]);
    assert_eq!(model(&load(temp.path(), &[recipe]).unwrap(), "w"), count(0, 12));
}

#[test]
fn layers_have_weights_of_their_own() {
    let temp = tempfile::tempdir().unwrap();
    let tensors = [bf16s("l.0", &[1], &[10.0]), bf16s("l.1", &[1], &[11.0]), bf16s("m", &[1], &[9.0])];
    single(temp.path(), &tensors);
    let mut recipes = vec![recipe("w", &[1], vec![form("m", &[1])])];
    for layer in 0..2 {
        let mut of_layer = recipe("w", &[1], vec![form(&format!("l.{layer}"), &[1])]);
        (of_layer.scope, of_layer.layer) = (Scope::Layer, Some(layer));
        recipes.push(of_layer);
    }
    let weights = load(temp.path(), &recipes).unwrap();
    let value = |reference: &WeightRef, layer| weights.of(reference, layer, 2).unwrap().data.f32()[0];
    let next = WeightRef::Next { layer: "w".to_owned(), last: "w".to_owned() };
    assert_eq!(value(&WeightRef::Model("w".to_owned()), 1), 9.0);
    assert_eq!(value(&WeightRef::Layer("w".to_owned()), 1), 11.0);
    assert_eq!(value(&WeightRef::FirstLayer("w".to_owned()), 1), 10.0);
    assert_eq!((value(&next, 0), value(&next, 1)), (11.0, 9.0));
    let unknown = weights.f32(Scope::Layer, "w", 2).unwrap_err();
    assert!(unknown.to_string().starts_with("W0309: W.w of layer 2 was asked for"), "{unknown}");
}

#[test]
fn widening_is_exact_for_every_bf16_and_f16() {
    let temp = tempfile::tempdir().unwrap();
    let finite = |value: fn(u16) -> f32| (0..=u16::MAX).filter(|bits| value(*bits).is_finite()).collect::<Vec<u16>>();
    let (b, h) = (finite(numerics::bf16_value), finite(numerics::f16_value));
    let tensors = [u16s("disk.b", Dtype::BF16, &[b.len()], &b), u16s("disk.h", Dtype::F16, &[h.len()], &h)];
    single(temp.path(), &tensors);
    let recipes = [("b", b.len()), ("h", h.len())].map(|(name, n)| {
        let mut recipe = plain(name, &[n as u64]);
        recipe.dtype = DType::F32;
        recipe
    });
    let weights = load(temp.path(), &recipes).unwrap();
    let same = |name: &str, all: &[u16], value: fn(u16) -> f32| {
        model(&weights, name).iter().zip(all).all(|(x, bits)| numerics::same_bits(*x, value(*bits)))
    };
    assert!(same("b", &b, numerics::bf16_value) && same("h", &h, numerics::f16_value));
    let names: Vec<String> = weights.conversions().iter().map(|c| c.name()).collect();
    assert_eq!(names, ["widen BF16 to f32", "widen F16 to f32"]);
    assert!(weights.conversions().iter().all(|c| !c.lossy && c.tensors == 1));
    assert_eq!((b.len(), h.len()), (0xff00, 0xf800));
}

#[test]
fn narrowing_needs_to_be_allowed_and_is_reported() {
    let temp = tempfile::tempdir().unwrap();
    // A tie to even, a value that rounds up, an f16 whose last bits a bf16 has not.
    single(
        temp.path(),
        &[f32s("disk.a", &[2], &[1.0 + 1.0 / 256.0, 1.0078126]), u16s("disk.h", Dtype::F16, &[1], &[0x3c01])],
    );
    let recipes = [plain("a", &[2]), plain("h", &[1])];
    assert!(refused(temp.path(), &recipes)[0].starts_with("W0304"));
    let options = LoadOptions { narrow: true, ..LoadOptions::default() };
    let weights = load_with(temp.path(), &recipes, &options).unwrap();
    assert_eq!(model(&weights, "a"), [1.0, 1.0078125]);
    assert_eq!(model(&weights, "h"), [1.0]);
    let names: Vec<(String, u64)> = weights.conversions().iter().map(|c| (c.name(), c.elements)).collect();
    assert_eq!(names, [("narrow F32 to bf16".to_owned(), 2), ("narrow F16 to bf16".to_owned(), 1)]);
}

#[test]
fn pinned_weights_take_any_float_format() {
    let temp = tempfile::tempdir().unwrap();
    single(
        temp.path(),
        &[
            bf16s("disk.a", &[1], &[0.5]),
            u16s("disk.b", Dtype::F16, &[1], &[0x3c01]),
            f32s("disk.c", &[1], &[0.1]),
            f32s("disk.d", &[1], &[0.1]),
        ],
    );
    let mut recipes = ["a", "b", "c", "d"].map(|name| {
        let mut recipe = plain(name, &[1]);
        (recipe.pinned, recipe.dtype) = (true, DType::F32);
        recipe
    });
    recipes[3].dtype = DType::Bf16;
    let weights = load(temp.path(), &recipes).unwrap();
    let values: Vec<f32> = ["a", "b", "c", "d"].iter().flat_map(|n| model(&weights, n)).collect();
    assert_eq!(values, [0.5, 1.0 + 1.0 / 1024.0, 0.1, 0.100_097_656]);
}

#[test]
fn progress_ends_at_the_total() {
    let temp = tempfile::tempdir().unwrap();
    let n = 3 << 18;
    single(temp.path(), &[bf16s("disk.a", &[n], &vec![1.0; n]), bf16s("disk.b", &[2], &[1.0, 2.0])]);
    let recipes = [plain("a", &[n as u64]), plain("b", &[2])];
    let checkpoint = Checkpoint::open(temp.path()).unwrap();
    let mut seen = Vec::new();
    let note = &mut |p: device::checkpoint::Progress| seen.push((p.done_bytes, p.total_bytes));
    let weights = Weights::load(&recipes, &checkpoint, &LoadOptions::default(), note).unwrap();
    let total = 2 * (n as u64 + 2);
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
    assert!(seen.len() > 4 && seen.is_sorted());
    let heard = std::sync::Mutex::new(Vec::new());
    let note = |p: device::checkpoint::Progress| heard.lock().unwrap().push((p.done_bytes, p.total_bytes));
    let streamed = device::checkpoint::Streamed::open(&recipes, &checkpoint, &LoadOptions::default(), note).unwrap();
    for recipe in &recipes {
        device::WeightStore::f32(&streamed, recipe.scope, &recipe.name, recipe.layer).unwrap();
    }
    drop(streamed);
    assert_eq!(heard.into_inner().unwrap(), [(2 * n as u64, total), (total, total)]);
    assert_eq!(model(&weights, "a"), vec![1.0; n]);
}

#[test]
fn ignored_tensors_may_be_there_in_any_format() {
    let temp = tempfile::tempdir().unwrap();
    let mut odd = u16s("l.0.table.inv", Dtype::I16, &[2], &[1, 2]);
    odd.dtype = Dtype::I16;
    single(temp.path(), &[bf16s("disk.a", &[1], &[1.0]), odd]);
    assert!(refused(temp.path(), &[plain("a", &[1])])[0].starts_with("W0306"));
    for (pattern, ok) in
        [("*table.inv", true), ("l.*.inv", true), ("*", true), ("l.0.table.inv", true), ("*.in", false)]
    {
        let options = LoadOptions { ignored: vec![pattern.to_owned()], ..LoadOptions::default() };
        assert_eq!(load_with(temp.path(), &[plain("a", &[1])], &options).is_ok(), ok, "{pattern}");
    }
}

#[test]
fn a_checkpoint_tells_its_tensors() {
    let temp = tempfile::tempdir().unwrap();
    single(temp.path(), &[f32s("a", &[2], &[1.0, 2.0])]);
    let checkpoint = Checkpoint::open(temp.path()).unwrap();
    let all: Vec<_> = checkpoint.tensors().map(|(file, t)| (file, t.name.as_str(), &t.dtype, t.shape.len())).collect();
    assert_eq!(all, [("model.safetensors", "a", &FileDType::F32, 1)]);
    assert!(checkpoint.problems().is_empty() && checkpoint.len() == 1);
}

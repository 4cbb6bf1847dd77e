//! Small checkpoints, written with the format's own library.

use artifact::{RecipeForm, WeightRecipe};
use device::WeightStore;
use device::checkpoint::{Checkpoint, LoadErrors, LoadOptions, Streamed, Weights};
use ir::{DType, Scope};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use std::fs;
use std::path::Path;

/// A tensor to be written.
#[derive(Clone)]
pub struct T {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn f32s(name: &str, shape: &[usize], values: &[f32]) -> T {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    T { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec(), bytes }
}

pub fn u16s(name: &str, dtype: Dtype, shape: &[usize], bits: &[u16]) -> T {
    let bytes = bits.iter().flat_map(|x| x.to_le_bytes()).collect();
    T { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

/// A bf16 tensor of the given numbers, which must be bf16 numbers.
pub fn bf16s(name: &str, shape: &[usize], values: &[f32]) -> T {
    let bits: Vec<u16> = values.iter().map(|x| numerics::bf16_bits(*x)).collect();
    assert!(values.iter().all(|x| numerics::is_bf16(*x)));
    u16s(name, Dtype::BF16, shape, &bits)
}

/// `n` small whole numbers from `from` on: exact in every format.
pub fn count(from: usize, n: usize) -> Vec<f32> {
    (from..from + n).map(|i| i as f32).collect()
}

pub fn bytes_of(tensors: &[T]) -> Vec<u8> {
    let views = tensors.iter().map(|t| (&t.name, TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
    serialize(views, None).unwrap()
}

pub fn single(dir: &Path, tensors: &[T]) {
    fs::write(dir.join("model.safetensors"), bytes_of(tensors)).unwrap();
}

/// Shards by name, and an index that says what the shards hold.
pub fn sharded(dir: &Path, shards: &[(&str, Vec<T>)]) {
    let mut map = serde_json::Map::new();
    for (file, tensors) in shards {
        fs::write(dir.join(file), bytes_of(tensors)).unwrap();
        map.extend(tensors.iter().map(|t| (t.name.clone(), (*file).into())));
    }
    index(dir, map.into());
}

pub fn index(dir: &Path, weight_map: serde_json::Value) {
    let index = serde_json::json!({"metadata": {"total_size": 0}, "weight_map": weight_map});
    fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

pub fn form(tensor: &str, shape: &[u64]) -> RecipeForm {
    RecipeForm {
        tensor: tensor.to_owned(),
        spread: Vec::new(),
        shape: shape.to_vec(),
        slice: None,
        layout: Default::default(),
    }
}

/// A bf16 weight of the model.
pub fn recipe(name: &str, shape: &[u64], forms: Vec<RecipeForm>) -> WeightRecipe {
    WeightRecipe {
        scope: Scope::Model,
        name: name.to_owned(),
        layer: None,
        shape: shape.to_vec(),
        dtype: DType::Bf16,
        pinned: false,
        absent: None,
        forms,
    }
}

pub fn plain(name: &str, shape: &[u64]) -> WeightRecipe {
    recipe(name, shape, vec![form(&format!("disk.{name}"), shape)])
}

/// Three experts of [2, 4], one tensor each, or the upper half of a packed [3, 4, 4].
pub fn experts() -> WeightRecipe {
    let spread = RecipeForm { spread: vec![("experts".to_owned(), 3)], ..form("disk.experts.{experts}.w", &[2, 4]) };
    let packed = RecipeForm { slice: Some(vec![[0, 3], [2, 2], [0, 4]]), ..form("disk.packed", &[3, 4, 4]) };
    recipe("experts", &[3, 2, 4], vec![spread, packed])
}

pub fn load(dir: &Path, recipes: &[WeightRecipe]) -> Result<Weights, LoadErrors> {
    load_with(dir, recipes, &LoadOptions::default())
}

pub fn load_with(dir: &Path, recipes: &[WeightRecipe], options: &LoadOptions) -> Result<Weights, LoadErrors> {
    let checkpoint = Checkpoint::open(dir)?;
    let loaded = Weights::load(recipes, &checkpoint, options, &mut |_| {});
    agrees(&loaded, Streamed::open(recipes, &checkpoint, options, |_| {}), recipes);
    loaded
}

/// What is read when it is asked for is what is loaded, whole and in stretches, and what is refused is refused in the same words.
fn agrees(loaded: &Result<Weights, LoadErrors>, streamed: Result<Streamed<'_>, LoadErrors>, recipes: &[WeightRecipe]) {
    let (loaded, streamed) = match (loaded, streamed) {
        (Ok(loaded), Ok(streamed)) => (loaded, streamed),
        // Numbers are seen where they are read.
        (Err(loaded), Ok(streamed)) => {
            let read: Vec<bool> = recipes.iter().map(|r| streamed.f32(r.scope, &r.name, r.layer).is_some()).collect();
            let fault = streamed.fault().map(|e| e.to_string());
            let is_told = fault.as_ref().is_some_and(|fault| loaded.to_string().contains(fault.trim_end()));
            assert!(is_told && read.contains(&false), "{fault:?} of {loaded}");
            return;
        }
        (loaded, streamed) => {
            let texts = (loaded.as_ref().err().map(|e| e.to_string()), streamed.err().map(|e| e.to_string()));
            assert_eq!(texts.0, texts.1);
            return;
        }
    };
    assert_eq!(loaded.conversions(), streamed.conversions());
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for r in recipes {
        let whole = WeightStore::f32(loaded, r.scope, &r.name, r.layer).unwrap();
        assert_eq!(bits(&streamed.f32(r.scope, &r.name, r.layer).unwrap()), bits(&whole), "{}", r.name);
        for at in [0, 1, whole.len() / 2, whole.len().saturating_sub(3)].into_iter().filter(|at| *at <= whole.len()) {
            for store in [loaded as &dyn WeightStore, &streamed] {
                let mut part = vec![0.0; (whole.len() - at).min(5)];
                assert!(store.read(r.scope, &r.name, r.layer, at, &mut part));
                assert_eq!(bits(&part), bits(&whole[at..at + part.len()]), "{} from {at} on", r.name);
                let mut more = vec![0.0; whole.len() - at + 1];
                assert!(!store.read(r.scope, &r.name, r.layer, at, &mut more), "{} ends", r.name);
            }
        }
    }
    assert!(!streamed.read(Scope::Model, "no such weight", None, 0, &mut []));
}

pub fn model(weights: &Weights, name: &str) -> Vec<f32> {
    weights.f32(Scope::Model, name, 0).unwrap().to_vec()
}

/// The messages of a load that must be refused.
pub fn refused(dir: &Path, recipes: &[WeightRecipe]) -> Vec<String> {
    let errors = load(dir, recipes).expect_err("accepted");
    for problem in errors.problems() {
        let text = problem.to_string();
        assert!(text.starts_with(problem.code()) && !text.contains('\n'), "{text}");
        assert!(!problem.help().is_empty());
    }
    errors.problems().iter().map(|p| p.to_string()).collect()
}

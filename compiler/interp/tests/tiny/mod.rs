//! The fixture of a small drafter: its spec, weights and stored values, and steps of its entries.

use interp::{Context, Data, Env, Hooks, MemoryCache, Outputs, Site, Tensor, WeightMap, run_model};
use ir::{DType, Model, Scope};
use safetensors::{Dtype, SafeTensors};
use spec::{Choices, Library};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A model with the fixture's embedding and head, of eight layers.
const TARGET: &str = "extends = \"beam-nano\"\n[dims]\nhidden = 96\nheads = 6\nhead_dim = 16\nvocab = 320\n";

/// What is verified: the greedy rule on logits, and both rules that draw.
const VERIFY: &str = "
[blocks]
text = '''
entry verify(
  tokens: i32[S, slots], z: f32[S, block, vocab], ids: i32[S, slots, cand], q: f32[S, slots, cand],
  temp: f32[S], top_k: i32[S], top_p: f32[S], coin: f32[S, slots], last: f32[S],
) -> f32[S, block, vocab], i32[S], i32[S], i32[S], i32[S], f32[S, vocab], i32[S], i32[S], f32[S, vocab] {
  n, next = accept(tokens, z)
  p = probs(z, temp, top_k, top_p)
  by_token, token, token_rest = accept(tokens, p, ids, q, coin, last)
  by_block, block_token, block_rest = accept(tokens, p, ids, q, coin, last, rule = block)
  return p, n, next, by_token, token, token_rest, by_block, block_token, block_rest
}
'''
";

/// Folder of the fixture.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/dflash2-tiny")
}

/// The small target.
pub fn target() -> Model {
    let read = spec::check_text("target.toml", TARGET, &Library::embedded(), &Choices::default());
    let shown = format!("{:?}", read.diagnostics);
    read.model.expect(&shown)
}

/// The drafter of the fixture's config at a length of block, in a format of values.
pub fn drafter(block: u64, act: DType) -> Model {
    let library = Library::embedded();
    let (mut sources, mut out) = (spec::Sources::default(), Vec::new());
    let made = spec::import(&folder().join("config.json"), &library, &mut sources, &mut out);
    let made = made.unwrap_or_else(|| panic!("{out:?}"));
    let choices = Choices {
        act: Some(act),
        dims: [("block".to_owned(), block)].into(),
        target: Some(Box::new(target())),
        ..Choices::default()
    };
    let read = spec::check_text("drafter.toml", &(made.toml + VERIFY), &library, &choices);
    let shown = format!("{:?}", read.diagnostics);
    let model = read.model.expect(&shown);
    ir::verify_model(&model).expect("a model that obeys its rules");
    model
}

/// Numbers of a file of tensors by name, with shapes.
pub struct File {
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl File {
    pub fn read(name: &str) -> File {
        let bytes = std::fs::read(folder().join(name)).expect("a file of the fixture");
        let file = SafeTensors::deserialize(&bytes).expect("tensors");
        let numbers = |dtype: Dtype, bytes: &[u8]| -> Vec<f32> {
            let words = |b: &[u8]| [b[0], b[1], b[2], b[3]];
            match dtype {
                Dtype::BF16 => {
                    bytes.chunks_exact(2).map(|b| f32::from_bits(u32::from_le_bytes([0, 0, b[0], b[1]]))).collect()
                }
                Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(words(b))).collect(),
                Dtype::I32 => bytes.chunks_exact(4).map(|b| i32::from_le_bytes(words(b)) as f32).collect(),
                other => panic!("a tensor of {other:?}"),
            }
        };
        let tensors = file.tensors().into_iter().map(|(name, t)| {
            let found = (t.shape().to_vec(), numbers(t.dtype(), t.data()));
            (name, found)
        });
        File { tensors: tensors.collect() }
    }

    pub fn get(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no `{name}` in the fixture")).1
    }

    pub fn ints(&self, name: &str) -> Vec<i32> {
        self.get(name).iter().map(|x| *x as i32).collect()
    }
}

/// Every weight of a drafter from the fixture's files, borrowed ones from the target's.
pub fn weights(model: &Model) -> WeightMap {
    let (own, target) = (File::read("model.safetensors"), File::read("target_head.safetensors"));
    let mut weights = WeightMap::new();
    for weight in &model.facts.weights {
        let layers = match weight.scope {
            Scope::Model => vec![None],
            Scope::Layer => (0..model.facts.layers()).map(Some).collect(),
        };
        for layer in layers {
            let number = layer.map(|l: usize| l.to_string()).unwrap_or_default();
            let name = weight.disk[0].tensor.replace("{l}", &number);
            let data = if weight.borrowed { target.get(&name) } else { own.get(&name) };
            let axes = weight.axes.iter().flatten().map(|a| match a.extent {
                ir::Extent::Fixed(n) => (a.name.clone(), n as usize),
                ir::Extent::Rows => panic!("a weight with rows"),
            });
            let tensor =
                Tensor::new(axes.collect(), weight.dtype, Data::F32(data.to_vec())).expect("the shape of a weight");
            weights.insert(weight.name.clone(), layer, tensor);
        }
    }
    weights
}

/// Notes what passes by, by layer, block and name, and replaces one value of the entry if asked.
#[derive(Default)]
pub struct Notes {
    seen: HashMap<(Option<usize>, String, String), Arc<Tensor>>,
    replaced: Option<(String, Tensor)>,
}

impl Notes {
    /// Replaces a value of the entry's own body.
    pub fn replacing(name: &str, tensor: Tensor) -> Notes {
        Notes { seen: HashMap::new(), replaced: Some((name.to_owned(), tensor)) }
    }

    /// A value of the entry's own body.
    pub fn entry(&self, name: &str) -> &Tensor {
        self.find(None, "", name)
    }

    /// A value of a function, in a layer; of several made of one function for other arguments, the one that ran.
    pub fn layer(&self, layer: usize, block: &str, name: &str) -> &Tensor {
        self.find(Some(layer), block, name)
    }

    fn find(&self, layer: Option<usize>, block: &str, name: &str) -> &Tensor {
        let key = (layer, block.to_owned(), name.to_owned());
        self.seen.get(&key).unwrap_or_else(|| panic!("no {key:?} among {:?}", self.seen.keys()))
    }
}

impl Hooks for Notes {
    fn inject(&mut self, site: Site<'_>) -> Option<Tensor> {
        let (name, tensor) = self.replaced.as_ref()?;
        (site.block.is_none() && site.name == name).then(|| tensor.clone())
    }

    fn on_value(&mut self, site: Site<'_>, value: &Tensor) {
        let block = site.block.unwrap_or_default().split('#').next().unwrap_or_default();
        self.seen.insert((site.layer, block.to_owned(), site.name.to_owned()), Arc::new(value.clone()));
    }
}

/// Runs one entry.
pub fn run(
    model: &Model,
    entry: &str,
    inputs: Env,
    weights: &WeightMap,
    cache: &mut MemoryCache,
    notes: &mut Notes,
) -> Outputs {
    let mut ctx = Context { layer: None, weights, cache, hooks: notes };
    run_model(model, entry, &inputs, &mut ctx).unwrap_or_else(|e| panic!("{entry}: {e}"))
}

/// A tensor of numbers.
pub fn floats(axes: &[(&str, usize)], dtype: DType, data: &[f32]) -> Tensor {
    let axes = axes.iter().map(|(n, l)| ((*n).to_owned(), *l)).collect();
    Tensor::new(axes, dtype, Data::F32(data.to_vec())).expect("a tensor")
}

/// A tensor of whole numbers.
pub fn ints(axes: &[(&str, usize)], data: &[i32]) -> Tensor {
    let axes = axes.iter().map(|(n, l)| ((*n).to_owned(), *l)).collect();
    Tensor::new(axes, DType::I32, Data::I32(data.to_vec())).expect("a tensor")
}

/// A tensor of truth values.
pub fn bools(axes: &[(&str, usize)], data: &[bool]) -> Tensor {
    let axes = axes.iter().map(|(n, l)| ((*n).to_owned(), *l)).collect();
    Tensor::new(axes, DType::Bool, Data::Bool(data.to_vec())).expect("a tensor")
}

/// Largest difference of a value from stored numbers.
pub fn difference(found: &Tensor, stored: &[f32]) -> f32 {
    let found = found.floats().expect("numbers");
    assert_eq!(found.len(), stored.len(), "another number of elements");
    found.iter().zip(stored).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

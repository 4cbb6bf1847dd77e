//! What a model is apart from its mathematics: dimensions, weights, cache kinds, the layer schedule.

use crate::{Axis, DType, DiskLayout, Extent, Scope, Span, Stored, TensorType};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Most parameters of a model: far above any, and their bytes still fit 64 bits.
pub const MOST_PARAMETERS: u64 = 1 << 60;

/// Weights lie in a rank's memory at multiples of so many bytes.
pub const WEIGHT_ALIGN_BYTES: u64 = 256;

/// The kind of one layer in every column of the schedule, for example `attn → sliding, mlp → dense`.
pub type LayerKinds = IndexMap<String, String>;

/// Facts that every level of the IR shares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Human-readable model name.
    pub name: String,
    /// Dtype of an untyped name that holds an expression (clause R2).
    pub act: DType,
    /// Axis lengths by name, `layers` included.
    pub dims: IndexMap<String, u64>,
    /// Product axes and their factors, the first outermost.
    pub products: IndexMap<String, Vec<String>>,
    /// Axes that a mesh may split, each with the mesh axes it is spread over. One device has no use for it.
    #[serde(default)]
    pub shard: IndexMap<String, Vec<String>>,
    /// Options and the alternative chosen for each.
    pub options: IndexMap<String, String>,
    /// Kinds per layer.
    pub schedule: Vec<LayerKinds>,
    /// Weights, model scope first.
    pub weights: Vec<Weight>,
    /// Cache kinds, one page pool each.
    pub kv: Vec<KvKind>,
    /// How the checkpoint keeps weights in a narrower format than they are declared in, as the spec states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<Stored>,
    /// Rows of the target model that the drafter reads, by the name that its text gives them; empty for any other model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<Capture>,
    /// Rows of this model that a drafter compiled with it reads; empty for any other model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exports: Vec<Capture>,
    /// What a server needs to know.
    pub runtime: RuntimeFacts,
    /// Files that spans point into, as the user wrote their paths.
    pub files: Vec<String>,
}

impl Facts {
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.schedule.len()
    }

    /// A weight by scope and name.
    pub fn weight(&self, scope: Scope, name: &str) -> Option<&Weight> {
        self.weights.iter().find(|w| w.scope == scope && w.name == name)
    }

    /// A cache kind by name.
    pub fn kv_kind(&self, name: &str) -> Option<&KvKind> {
        self.kv.iter().find(|k| k.name == name)
    }

    /// An axis of known length by name.
    pub fn axis(&self, name: &str) -> Option<Axis> {
        self.dims.get(name).map(|n| Axis::fixed(name, *n))
    }

    /// Whether the layer has the weight: its `when` holds there, and it is not kept out of the layer.
    pub fn layer_has(&self, layer: usize, weight: &Weight) -> bool {
        weight.when.as_ref().is_none_or(|w| self.schedule[layer].get(&w.column) == Some(&w.kind))
            && weight.only.as_ref().is_none_or(|layers| layers.contains(&layer))
    }

    /// Parameters of the whole model: every weight of its own but scales of quantised ones, once per layer that has it; at most
    /// [`MOST_PARAMETERS`] in verified facts.
    pub fn parameters(&self) -> u64 {
        self.weights
            .iter()
            .filter(|w| !w.is_scale() && !w.borrowed)
            .map(|w| {
                let copies = match w.scope {
                    Scope::Model => 1,
                    Scope::Layer => (0..self.layers()).filter(|l| self.layer_has(*l, w)).count() as u64,
                };
                copies.saturating_mul(w.elements())
            })
            .fold(0, u64::saturating_add)
    }
}

/// Rows of the target model as they leave some of its layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// Name in the drafter's spec; an axis of the rows, one index a layer.
    pub name: String,
    /// Entry of the target whose step makes the rows.
    pub entry: String,
    /// Value that the entry's layers hand on.
    pub value: String,
    /// Layers of the target, ascending, after which it is read.
    pub layers: Vec<usize>,
}

/// A condition on the layer's kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct When {
    /// Column of the schedule.
    pub column: String,
    /// Kind that the layer must have there.
    pub kind: String,
}

/// One weight: its axes as the mathematics sees them and the forms it may have on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// Name in `W.name`.
    pub name: String,
    /// One for the model or one per layer.
    pub scope: Scope,
    /// Axes with their lengths, grouped by disk dimension: `heads.head_dim hidden` is `[[heads, head_dim], [hidden]]`.
    pub axes: Vec<Vec<Axis>>,
    /// Format while the model runs.
    pub dtype: DType,
    /// Whether the spec fixes `dtype` whatever the file holds (then any float file format is converted to it).
    pub pinned: bool,
    /// Layers that have it; `None` for all.
    pub when: Option<When>,
    /// Of those, the layers that really do, ascending; `None` for all. Where layers keep a matrix in different formats, each
    /// format is a weight of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Vec<usize>>,
    /// Value of all elements where a checkpoint holds none of the forms; without it one must be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<f32>,
    /// Alternative forms on disk; exactly one must be present.
    pub disk: Vec<DiskForm>,
    /// Whether a quantised checkpoint may store it in a narrower format.
    pub quant: bool,
    /// Whether it is the target model's, of which this one is the drafter: it is read there, and counts there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub borrowed: bool,
    /// Where the spec declares it.
    pub span: Option<Span>,
}

impl Weight {
    /// Type of the value: all axes in order.
    pub fn ty(&self) -> TensorType {
        TensorType::new(self.dtype, self.axes.iter().flatten().cloned().collect())
    }

    /// Number of elements of one instance.
    pub fn elements(&self) -> u64 {
        self.ty().fixed_elements()
    }
}

/// One way a weight may lie in a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskForm {
    /// Tensor name. `{l}` stands for the layer index, `{axis}` for an index along a leading axis of the weight
    /// that is spread over one tensor per index.
    pub tensor: String,
    /// Leading axes that the name enumerates.
    pub spread: Vec<String>,
    /// `[start, length]` per dimension of one tensor, when the weight is a part of it.
    pub slice: Option<Vec<[u64; 2]>>,
    /// Full shape of one tensor.
    pub shape: Vec<u64>,
    /// What the bytes of a tensor are.
    #[serde(default, skip_serializing_if = "DiskLayout::is_plain")]
    pub layout: DiskLayout,
}

/// One kind of KV cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvKind {
    /// Name in `kv.name`.
    pub name: String,
    /// Layers that keep rows of this kind, ascending.
    pub layers: Vec<usize>,
    /// Axes of one key row, for example `kv_heads head_dim`.
    pub k: Vec<Axis>,
    /// Axes of one value row.
    pub v: Vec<Axis>,
    /// How many positions a query sees, its own included; `None` for all.
    pub window: Option<u64>,
    /// The kind of the target model in whose pages the rows have their places, if the spec wishes so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lives_in: Option<String>,
    /// Layer slots of a page that are the other model's, of two that share pages. In a kind of the target they follow its own;
    /// where a kind lives in one of the target's, they come first.
    #[serde(default, skip_serializing_if = "no_slots")]
    pub shared_slots: u64,
}

/// Whether nobody else has slots in the pages.
fn no_slots(slots: &u64) -> bool {
    *slots == 0
}

impl KvKind {
    /// Heads and elements per head of a cached row with these axes; the last axis is the head's.
    pub fn row_shape(axes: &[Axis]) -> Option<(u64, u64)> {
        let length = |axis: &Axis| match axis.extent {
            Extent::Fixed(n) => Some(n),
            Extent::Rows => None,
        };
        let (last, heads) = axes.split_last()?;
        let heads = heads.iter().try_fold(1u64, |n, axis| n.checked_mul(length(axis)?))?;
        Some((heads, length(last)?))
    }
}

/// Facts for the server, carried from the checkpoint's configuration. The compiler does not interpret them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeFacts {
    /// Longest sequence in tokens, prompt and answer together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    /// Token ids that end an answer.
    #[serde(default)]
    pub stop: Vec<u32>,
    /// Token id put before a prompt by the tokenizer, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// Token id that fills unused places, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad: Option<u32>,
}

//! The plan: what a device does in a step, with every buffer at a fixed offset.

use crate::{Bucket, DType, Instance, KernelKind, ValueId};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// All plans of an artifact. Nothing allocates after load: one arena of `arena_bytes` serves every bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Cache layouts, in the order of the model's KV kinds.
    pub kv: Vec<KvLayout>,
    /// Entries, in the order of the model.
    pub entries: Vec<PlanEntry>,
    /// Size of the arena: the largest bucket's need.
    pub arena_bytes: u64,
}

/// The buckets of one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// Name, such as `forward`.
    pub name: String,
    /// Layers in the order they run.
    pub instances: Vec<Instance>,
    /// Rows that a step leaves for a drafter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub captures: Vec<Captured>,
    /// Buckets, ascending by tokens.
    pub buckets: Vec<BucketPlan>,
}

/// Rows that are copied when some layers have run. They stand at the start of the arena, in front of everything that steps
/// write, in one place for all buckets: what comes after the step finds them there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Captured {
    /// Shared name of the place: rows, then layers in the order of `layers`, then the axes of a row of the value.
    pub place: String,
    /// Shared value that is copied.
    pub value: String,
    /// Layers, ascending, behind which it is copied.
    pub layers: Vec<usize>,
}

impl Captured {
    /// Name of the place of what a drafter captures under `name`.
    pub fn place_of(name: &str) -> String {
        format!("capture.{name}")
    }
}

/// What one step does when it runs in one bucket.
///
/// The first program runs, then for every instance the program of its class, then the last.
/// Values that pass between programs live in `shared` for the whole step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketPlan {
    /// The shape.
    pub bucket: Bucket,
    /// Bytes of the arena that this bucket uses.
    pub arena_bytes: u64,
    /// Values exchanged by name: entry inputs, carried values, invariants, results.
    pub shared: IndexMap<String, Buffer>,
    /// `first`, one per class, `last`: indices match [`crate::KernelEntry::graphs`].
    pub programs: Vec<Program>,
}

/// A piece of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buffer {
    /// Offset from the start of the arena, a multiple of 64.
    pub offset_bytes: u64,
    /// Size for the bucket's largest step.
    pub bytes: u64,
    /// Format of the elements.
    pub dtype: DType,
}

/// Where a value of a program is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the arena.
    Arena(Buffer),
    /// The same memory as another value of the program (a view).
    Alias(ValueId),
    /// Made and read inside one region only: its kernel keeps it where it likes, and nobody else may ask for it.
    Inside,
    /// Not in the arena: a weight, a literal, an instance number, or a cache.
    Elsewhere,
}

/// The launches of one graph in one bucket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Name of the graph.
    pub graph: String,
    /// Place of every value of the graph, indexed by value id.
    pub places: Vec<Place>,
    /// Launches in order.
    pub launches: Vec<Launch>,
}

/// Which kernel of a kind runs, where the bucket decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// There is one.
    #[default]
    Only,
    /// Of products: weights are read once for few rows.
    FewRows,
    /// Of products: rows fill the tiles.
    ManyRows,
    /// Of attention: one row, or a block of rows, per sequence.
    Decode,
    /// Of attention: any number of rows per sequence.
    Prefill,
}

impl Variant {
    /// The word in texts and reports; nothing where there is one kernel.
    pub fn word(self) -> &'static str {
        match self {
            Variant::Only => "",
            Variant::FewRows => "few_rows",
            Variant::ManyRows => "many_rows",
            Variant::Decode => "decode",
            Variant::Prefill => "prefill",
        }
    }
}

/// One kernel launch.
///
/// Where a region's value takes the place of one that the region reads, its kernel reads a row whole before it writes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Launch {
    /// A region of the graph.
    Region {
        /// Index into [`crate::KernelGraph::regions`].
        region: usize,
        /// Kind, repeated so that a plan can be read alone.
        kernel: KernelKind,
        /// Which kernel of the kind, by the bucket's shape.
        #[serde(default)]
        variant: Variant,
        /// Earlier launches of the program whose values or cache rows it reads, ascending.
        #[serde(default)]
        reads: Vec<usize>,
        /// Whether it may start while the launch before it ends. It then reads weights, literals and instance numbers only,
        /// until that launch, and with it every earlier one, is done.
        #[serde(default)]
        dependent: bool,
    },
    /// A result copied into the shared value of that name, where it could not be produced in place.
    Move {
        /// Value of the program.
        from: ValueId,
        /// Shared name.
        to: String,
    },
}

/// Layout of one KV kind: kernels see these numbers and physical page ids, nothing else.
///
/// Element (layer slot s, token t of the page, head h, element e) of a key lies at
/// `page · page_stride + first + s · layer_stride + t · token_stride + h · head_stride + e`, of a value `v_offset` further on.
/// All strides are in elements of `dtype`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KvLayout {
    /// KV kind.
    pub kind: String,
    /// Layers in slot order. Where a drafter's rows lie in the same pages, its layers follow, numbered behind the model's own.
    pub layers: Vec<usize>,
    /// The kind of the other model in whose pages this one lies; it then has no pages of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lives_in: Option<String>,
    /// From the start of a page to the first layer slot.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub first: u64,
    /// Format of cached rows.
    pub dtype: DType,
    /// Tokens in a page.
    pub page_tokens: u64,
    /// From a page to the next.
    pub page_stride: u64,
    /// From a layer slot to the next inside a page.
    pub layer_stride: u64,
    /// From a token to the next inside a layer slot.
    pub token_stride: u64,
    /// From a head to the next inside a token.
    pub head_stride: u64,
    /// From a key to the value of the same token and head.
    pub v_offset: u64,
    /// KV heads.
    pub heads: u64,
    /// Elements of one head of a key (and of a value).
    pub head_elements: u64,
    /// Positions a query sees, its own included; `None` for all.
    pub window: Option<u64>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl KvLayout {
    /// Bytes of one page over all layers.
    pub fn page_bytes(&self) -> u64 {
        self.dtype.bytes_for(self.page_stride)
    }

    /// Slot of a layer, if the kind covers it.
    pub fn slot(&self, layer: usize) -> Option<usize> {
        self.layers.iter().position(|l| *l == layer)
    }
}

//! Kernels of row operations, generated from the graph.
//!
//! ```text
//! values of a strand ── modes ──► which value lives where (register, shared memory, nowhere)
//!                    ── order ──► loops over one space each, and numbers of the whole row between them
//!                    ── text  ──► C++ of each loop: wide loads, expressions, fold sums, stores
//! ```
//!
//! A *row* is one combination of indices of the strand's row axes; the other axes of a value are its *space*. A group of
//! threads works on a row: each thread owns aligned groups of 8 elements, as the order `fold` wants it.

mod element;
mod emit;
mod index;
mod modes;
mod order;
mod text;
mod tile;
mod unit;

pub use element::{Element, element};
pub use text::layout_type;
pub use tile::Tile;
pub use unit::{Ends, ends, grid, grouped, text};

use artifact::{Blocks, Param};
use ir::{Axis, DType, Extent, Graph, KvLayout, ValueId};

/// Where a value is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Sink {
    /// As its own buffer, row-major.
    Buffer(Param),
    /// To the cache, at the positions `at`.
    Cache {
        /// KV kind.
        kind: usize,
        /// Value that holds the position of every row.
        at: ValueId,
        /// Whether it is the value of the row, not its key.
        is_value: bool,
    },
}

/// Row operations to be made one kernel.
pub struct Job<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// What the kernel is called in comments.
    pub title: String,
    /// Operations that the kernel computes, ascending; views and cuts of what it reads may be among them.
    pub values: Vec<ValueId>,
    /// Row axes, outermost first.
    pub rows: Vec<Axis>,
    /// What is written where.
    pub outputs: Vec<(ValueId, Sink)>,
    /// Where a value that the kernel does not compute lies; `None` for literals and numbers.
    pub memory: &'a dyn Fn(ValueId) -> Option<Param>,
    /// Layouts of the KV kinds.
    pub kv: &'a [KvLayout],
    /// Whether an output may take the place of something that is read: stores then come last.
    pub in_place: bool,
    /// Where the rows stand in a tile of a core's result, and the kernel is what the core's kernel ends with.
    pub tile: Option<Tile>,
}

/// A generated kernel and how it is started.
#[derive(Clone, Debug, PartialEq)]
pub struct RowKernel {
    /// What it says of itself, in comments.
    pub head: String,
    /// Constants of the unit.
    pub constants: String,
    /// Parameters as they are declared.
    pub signature: Vec<String>,
    /// What it does.
    pub body: String,
    /// Whether it writes only what no other kernel of its region reads.
    pub is_apart: bool,
    /// Threads of a block.
    pub threads: u32,
    /// Blocks.
    pub grid: [Blocks; 2],
    /// Parameters.
    pub params: Vec<Param>,
    /// Bytes of shared memory that the tile's kernel gives.
    pub tile_bytes: u32,
}

/// Generates the kernel. The error says what is beyond the generator.
pub fn generate(job: &Job<'_>) -> Result<RowKernel, String> {
    let modes = modes::of(job)?;
    let stages = order::stages(job, &modes)?;
    text::kernel(job, &modes, &stages)
}

/// Length of a fixed axis.
pub(crate) fn length(axis: &Axis) -> Result<i64, String> {
    match axis.extent {
        Extent::Fixed(n) => i64::try_from(n).map_err(|_| format!("axis `{}` is too long", axis.name)),
        Extent::Rows => Err(format!("axis `{}` counts rows", axis.name)),
    }
}

/// Type of one element in the generated text.
pub(crate) fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::Nvfp4 => "float",
        DType::I32 => "int",
        DType::Bool => "bool",
    }
}

/// Type of one element in memory.
pub fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::Bf16 => "bf16",
        DType::E4m3 => "e4m3",
        DType::E5m2 => "e5m2",
        DType::Nvfp4 => "nvfp4",
        DType::I32 => "int",
        DType::Bool => "bool",
    }
}

/// The axes of a value that are no row axes.
pub(crate) type Space = Vec<Axis>;

impl Job<'_> {
    /// The space of a value.
    pub(crate) fn space(&self, id: ValueId) -> Space {
        let axes = self.graph.tensor(id).map(|t| t.axes.as_slice()).unwrap_or_default();
        axes.iter().filter(|a| !self.rows.iter().any(|r| r.name == a.name)).cloned().collect()
    }

    /// Whether the kernel computes a value.
    pub(crate) fn computes(&self, id: ValueId) -> bool {
        self.values.binary_search(&id).is_ok()
    }

    /// Dtype of a value.
    pub(crate) fn dtype(&self, id: ValueId) -> DType {
        self.graph.tensor(id).map_or(DType::F32, |t| t.dtype)
    }
}

/// Elements of a space.
pub(crate) fn elements(space: &[Axis]) -> Result<i64, String> {
    space.iter().try_fold(1i64, |n, a| n.checked_mul(length(a)?).ok_or_else(|| "a row is too long".to_owned()))
}

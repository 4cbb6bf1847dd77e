//! The artifact: what the compiler hands to the runtime, as a directory of plain, hashed data.
//!
//! | file | content |
//! |---|---|
//! | `manifest.json` | what was compiled for what, and size and hash of every other file |
//! | `kernels.json` | the kernel module: facts, graphs, regions |
//! | `plan.json` | launches and memory per bucket |
//! | `weights.json` | weight recipes: how each weight lies in a checkpoint |
//! | `memory.json` | weight memory: where each part of each weight lies on a rank |
//! | `device.json`, `kernels/` | where the target is a device: starts of every region, machine code, readable source |
//! | `drafter/` | where there is one: the drafter that was compiled with the model, see `drafter.rs` |
//! | `report.json` | kernels, bytes, floors, memory map, for people and tools |
//! | `ir/*.txt` | every level as readable text |
//!
//! An artifact is byte-reproducible: it holds no time, no path of the machine and nothing in the
//! order of a hash table. [`Artifact::load`] verifies all of it before anything is used; this crate
//! never repairs and never falls back.

mod device_code;
mod drafter;
mod error;
mod files;
mod load;
mod manifest;
mod memory;
mod recipe;
mod tuning;
mod write;

pub use device_code::{
    Blocks, ChoiceCode, DeviceCode, GraphCode, KernelCode, PART_LOGITS, Param, RegionCode, Scratch, Served, Start,
};
pub use drafter::{DRAFTER, Drafter, DrafterBlock, DrafterEntry, own_name};
pub use error::{ERRORS, LoadError, WriteError, explain};
pub use files::{FileEntry, IR_GRAPH, IR_KERNEL, IR_MODEL, IR_PLAN, IR_SHARDED, MANIFEST};
pub use load::fuzz_json;
pub use manifest::{FORMAT, Manifest, Provenance, Target, VERSION};
pub use memory::{ALIGN_BYTES, Interleave, Part, Piece, Split, WeightMemory, weight_memory};
pub use recipe::{RecipeForm, WeightRecipe, recipes};
pub use tuning::{Alternative, Product, Tuned, Tuning};

/// A compiled model.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    /// What it is. Its list of files is filled when the artifact is written.
    pub manifest: Manifest,
    /// Facts, graphs and regions.
    pub kernels: ir::KernelModule,
    /// Launches and memory.
    pub plan: ir::Plan,
    /// How each weight lies in a checkpoint.
    pub recipes: Vec<WeightRecipe>,
    /// Where each part of each weight lies on a rank.
    pub memory: WeightMemory,
    /// Kernels, where the target's are not part of the runtime.
    pub device: Option<DeviceCode>,
    /// The drafter that was compiled with the model.
    pub drafter: Option<Drafter>,
    /// Free form, for people and tools.
    pub report: serde_json::Value,
}

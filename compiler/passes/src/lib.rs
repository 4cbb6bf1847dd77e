//! Passes: from the model level to a plan. The list in `pipeline.rs` is the order in which they run.
//!
//! Each pass is one file of one shape: what it is called and at which level it works, a picture, why it exists, when
//! it applies, what it does to rounding and order, where it is tested. A pass builds new graphs and never edits one.

pub mod attach;
pub mod canonicalise;
pub mod check_plan;
pub mod choose_layouts;
pub mod classify_layers;
mod copying;
mod dump;
mod error;
pub mod flatten;
pub mod fuse_rows;
mod inline;
pub mod order_launches;
mod pack_layers;
pub mod pack_projections;
mod pair;
mod pass;
pub mod pipeline;
pub mod plan_memory;
pub mod quantise;
pub mod refine_orders;
mod regions;
pub mod relax;
pub mod rotate_seam;
pub mod select_kernels;
pub mod shard;
#[cfg(test)]
mod testing;
pub mod validate;

pub use dump::{Stage, Stages};
pub use error::{CODES, PassError, explain};
pub use pair::{Paired, pair};
pub use pass::{Compile, Kind, Level, Note, Pass, PassInfo, Refined, Run};
pub use pipeline::{Lowered, PASSES, Snapshot, lower, lower_step_by_step, plan, refine, to_kernels, to_module};
pub use validate::{Validation, shrink, validate};

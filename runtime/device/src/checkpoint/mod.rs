//! Weights: from a checkpoint directory, by memory map, into the formats that a model runs in.
//!
//! ```text
//! Checkpoint::open   files → headers → tensors by name        (header.rs, open.rs, mmap.rs)
//! resolve            recipes × tensors → sources, or problems (resolve.rs, stored.rs, scales.rs)
//! Weights::load      sources → values in memory               (load.rs, bits.rs, convert.rs)
//! Streamed           sources, read when they are asked for    (streamed.rs)
//! Weights::synthetic recipes × seed → values in memory        (synthetic.rs)
//! Rows               values of a file → codes and scales      (narrow.rs)
//! ```
//!
//! A checkpoint is hostile until proved otherwise: no byte of it may cause a panic or an allocation that its own
//! size does not justify. Everything that is wrong is collected and told in one go. Which tensors a model has is
//! data (the artifact's recipes); no tensor name stands here.

mod bits;
mod convert;
mod error;
mod header;
mod load;
mod mmap;
mod narrow;
mod open;
mod resolve;
mod scales;
mod stored;
mod streamed;
mod synthetic;
mod weights;

pub use error::{Divided, LoadErrors, Problem};
pub use header::{FileDType, Header, HeaderFault, TensorEntry, parse_header};
pub use load::{LoadOptions, Progress};
pub use narrow::{Rows, ScaleFormat, e4m3_number, nvfp4_number};
pub use open::Checkpoint;
pub use streamed::Streamed;
pub use weights::{Conversion, Data, WeightTensor, Weights};

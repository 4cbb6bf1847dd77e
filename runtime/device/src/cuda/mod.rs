//! The `cuda` executor: the plan's launches as kernels of the artifact, on one device.
//!
//! ```text
//! choose.rs    which tokens the device chooses, and how
//! driver.rs    the border: device, memory, kernels
//! homes.rs     whose rows are whose, where ranks bring rows of their own
//! load.rs      weights by the artifact's memory map, kernels checked against their parameters
//! made.rs      weights that only the device has, for checks
//! ranks.rs     the ranks of a mesh and their letterboxes
//! tables.rs    what a step brings: rows, page tables
//! walk.rs      the programs of a bucket, start by start
//! executor.rs  the step contract around it
//! selftest.rs  every start against the interpreter: selftest_steps.rs says on which steps, selftest_product.rs looks at some numbers of large products,
//!              selftest_choice.rs compares choices with the host's sampler
//! timeline.rs  how long every start of a step takes
//! ```

mod choose;
mod driver;
mod executor;
mod homes;
mod load;
mod made;
mod ranks;
mod selftest;
mod selftest_choice;
mod selftest_product;
mod selftest_steps;
mod tables;
mod timeline;
mod walk;

pub use executor::CudaExecutor;
pub use ranks::Ranks;
pub use selftest::{Given, Steps, Verdict, selftest};
pub use timeline::Timed;

/// Name of the device and its architecture, or what is missing; for `doctor`.
pub fn describe_device() -> Result<(String, String), String> {
    let device = driver::Device::open(0)?;
    let (major, minor) = device.arch();
    Ok((device.name().to_owned(), format!("sm_{major}{minor}")))
}

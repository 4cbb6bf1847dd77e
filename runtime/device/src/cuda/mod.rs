//! The `cuda` executor: the plan's launches as kernels of the artifact, on one device.
//!
//! ```text
//! driver.rs    the border: device, memory, kernels
//! load.rs      weights by the artifact's memory map, kernels checked against their parameters
//! tables.rs    what a step brings: rows, page tables
//! walk.rs      the programs of a bucket, start by start
//! executor.rs  the step contract around it
//! selftest.rs  every start against the interpreter
//! timeline.rs  how long every start of a step takes
//! ```

mod driver;
mod executor;
mod load;
mod selftest;
mod tables;
mod timeline;
mod walk;

pub use executor::CudaExecutor;
pub use selftest::{Verdict, selftest};
pub use timeline::Timed;

/// Name of the device and its architecture, or what is missing; for `doctor`.
pub fn describe_device() -> Result<(String, String), String> {
    let device = driver::Device::open()?;
    let (major, minor) = device.arch();
    Ok((device.name().to_owned(), format!("sm_{major}{minor}")))
}

//! Devices: everything between an artifact with a checkpoint and an executor that runs steps.

pub mod checkpoint;

//! Checkpoints on disk, good and bad, read through the public interface.

mod bad_files;
mod bad_weights;
mod common;
mod good;
mod header;
mod narrow;
mod synthetic;

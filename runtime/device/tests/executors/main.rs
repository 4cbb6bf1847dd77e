//! Executors against each other and against themselves, on small models built by hand and compiled by the real passes.

mod arrivals;
mod build;
mod contract;
mod decoder;
mod harness;
mod invariance;
mod narrow;
mod operations;
mod probes;
mod regions;

//! CUDA C++ from the kernel level, and machine code from it, on a machine without a GPU.
//!
//! ```text
//! region ─ region.rs ─► before, core, strands, stores ─ rows/, cores.rs ─► thin units over codegen-templates/
//! unit ─ pool.rs ─► worker processes ─ nvrtc.rs ─► cubin ─ cubin.rs ─► registers, shared memory, stack
//! ```
//!
//! A unit includes templates, which are plain C++17 over one prelude; only the prelude holds inline assembly. Units are
//! translated without contraction, so that row operations give the interpreter's bits.

mod attends;
mod cache;
mod choices;
mod compile;
mod cores;
mod cubin;
mod find;
mod generate;
mod lint;
mod machine;
mod nvrtc;
mod pool;
mod region;
mod routes;
mod rows;
mod seams;
mod streams;
mod tiled;
mod worker;

pub use cache::Cache;
pub use compile::{CompileError, compile, options};
pub use cubin::{Resources, resources};
pub use find::{HOW_TO_GET_IT, Nvrtc, find};
pub use generate::{Generated, HEADERS, Missing, Source, generate, generate_tuned};
pub use lint::{HOW_TO_DISASSEMBLE, disassemble, find_disassembler, lint};
pub use machine::{Machine, Tune};
pub use pool::{Pool, PoolError};
pub use worker::{serve, version};

/// Codes that this crate can print: code, title, explanation.
pub const CODES: [(&str, &str, &str); 4] = [
    (
        "K0001",
        "a worker of the CUDA compiler ended",
        "Kernels are translated by processes of their own. One of them did not start, or ended before it answered.",
    ),
    (
        "K0002",
        "a kernel does not translate",
        "The CUDA compiler refuses the text of a generated kernel, or remarks on it. This is a defect of the compiler.",
    ),
    ("K0003", "no folder for machine code on the way", "The folder for temporary files cannot be written to."),
    (
        "K0004",
        "machine code without its kernel",
        "What the CUDA compiler left does not hold the kernel that was translated. This is a defect of the compiler.",
    ),
];

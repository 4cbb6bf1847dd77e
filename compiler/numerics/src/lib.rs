//! What a number is in this project: storage formats, the order of sums, elementary functions, ties, draws.
//!
//! Everything here is a function of its operands' bits alone. Rust compiles `f32` arithmetic to IEEE binary32
//! operations, correctly rounded to nearest even, subnormals kept, and never contracts a product and a sum; on x86-64
//! that is SSE2, the baseline. So the same bits come out of every build, thread count and vector width, and a GPU kernel
//! made of the same operations reproduces them. `docs/numerics.md` states the contract and the measured errors.
//!
//! This crate knows no tensor, no graph and no other crate of the workspace. It never uses binary64 on a run-time
//! path: only [`pow_f32`], which evaluates constants while a spec is compiled, does.

mod bf16;
mod compare;
mod constant;
mod elementary;
mod f16;
mod fold;
mod narrow;
mod random;

pub use bf16::{
    bf16_bits, bf16_value, decode_bf16, encode_bf16, is_bf16, round_bf16, round_bf16_in_place, round_bf16_slice,
};
pub use compare::{argmax, max_f32, min_f32, outranks, same_bits, top_ids};
pub use constant::pow_f32;
pub use elementary::{cos, exp, log, log1p, sigmoid, sin, tanh};
pub use f16::{decode_f16, f16_value};
pub use fold::{ABSENT, GROUP, fold_by, fold_columns, fold_group, fold_halving, fold_map, fold_sum};
pub use narrow::{
    BLOCK, Block, E4M3_LARGEST, NVFP4_LARGEST, e2m1_code, e2m1_value, e4m3_code, e4m3_value, e5m2_code, e5m2_value,
    e8m0_code, e8m0_value, round_e4m3, round_e5m2,
};
pub use random::{hash_name, synthetic, uniform};

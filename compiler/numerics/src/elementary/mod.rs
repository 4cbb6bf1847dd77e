//! Elementary functions of binary32, in binary32.
//!
//! Only `+ - * /`, integer operations and bit casts are used: no binary64, no fused product and sum, no table beyond a
//! few constants. A GPU kernel of the same operations gives the same bits and pays a dozen or two instructions. Coefficients
//! are minimax fits in 50-digit arithmetic, rounded one after the other from the lowest, each followed by a new fit of the rest.
//! `docs/numerics.md` has the measured errors; `cargo run --release -p numerics --example ulp` measures them.

mod exp;
mod log;
mod tanh;
mod trig;

pub use exp::{exp, sigmoid};
pub use log::{log, log1p};
pub use tanh::tanh;
pub use trig::{cos, sin};

/// 2^k for `k` in -126 ..= 127; other `k` give some bit pattern.
#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// The upper 15 bits of ln 2. Its product with an exponent is exact.
const LN2_HIGH: f32 = f32::from_bits(0x3f31_7200);
/// ln 2 less [`LN2_HIGH`], rounded.
const LN2_LOW: f32 = f32::from_bits(0x35bf_be8e);

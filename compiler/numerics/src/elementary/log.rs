//! Natural logarithms.

use super::{LN2_HIGH, LN2_LOW};

/// Where the range of a reduced argument begins: the pattern of √½, so that it runs from √½ to √2.
const ROOT_HALF: u32 = 0x3f35_04f3;
const ONE: u32 = 0x3f80_0000;

/// `(ln((1 + s) / (1 - s)) / s - 2) / s²` in powers of s² for |s| ≤ (√2 - 1) / (√2 + 1), relative error 2^-35.
const R: [f32; 4] = [
    f32::from_bits(0x3f2a_aaaa),
    f32::from_bits(0x3ecc_ce13),
    f32::from_bits(0x3e91_e9f0),
    f32::from_bits(0x3e78_9d95),
];

/// The exponent `k` and the reduced `m` in [√½, √2) of a positive normal number `2^k m`.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    let bits = x.to_bits().wrapping_add(ONE - ROOT_HALF);
    let k = (bits >> 23) as i32 - 127;
    (k, f32::from_bits((bits & 0x007f_ffff) + ROOT_HALF))
}

/// `k ln 2 + ln(1 + f) + c`, for a small correction `c`.
///
/// With `s = f / (2 + f)`: `ln(1 + f) = f - f²/2 + s (f²/2 + s² R(s²))`, where all but the first term are small.
#[inline(always)]
fn assemble(k: i32, f: f32, c: f32) -> f32 {
    let kf = k as f32;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = z * (((R[3] * z + R[2]) * z + R[1]) * z + R[0]);
    let half_square = 0.5 * f * f;
    kf * LN2_HIGH + (((s * (half_square + r) + (kf * LN2_LOW + c)) - half_square) + f)
}

/// The natural logarithm; `-inf` at zero, NaN below.
#[inline]
pub fn log(x: f32) -> f32 {
    if x == 0.0 {
        return f32::NEG_INFINITY;
    }
    if x < 0.0 || x.is_nan() {
        return f32::NAN;
    }
    if x == f32::INFINITY {
        return x;
    }
    // 2^23 makes any subnormal normal, exactly.
    let (scaled, bias) = if x < f32::MIN_POSITIVE { (x * 8_388_608.0, 23) } else { (x, 0) };
    let (k, m) = reduce(scaled);
    assemble(k - bias, m - 1.0, 0.0)
}

/// `ln(1 + x)` without the loss of rounding `1 + x`; `-inf` at -1, NaN below.
#[inline]
pub fn log1p(x: f32) -> f32 {
    // Below 2^-24 the result rounds to x, and the sign of a zero stays.
    if x.abs() < f32::from_bits(0x3380_0000) || x == f32::INFINITY {
        return x;
    }
    if x == -1.0 {
        return f32::NEG_INFINITY;
    }
    if x < -1.0 || x.is_nan() {
        return f32::NAN;
    }
    let u = 1.0 + x;
    let (k, m) = reduce(u);
    if k == 0 {
        return assemble(0, x, 0.0);
    }
    // What rounding u lost, relative to u: ln(u + e) = ln u + e/u. The larger of 1 and x is subtracted first, exactly.
    let lost = if x >= 1.0 { 1.0 - (u - x) } else { x - (u - 1.0) };
    assemble(k, m - 1.0, lost / u)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_at_the_ends() {
        assert_eq!(log(1.0).to_bits(), 0);
        assert_eq!(log(0.0), f32::NEG_INFINITY);
        assert_eq!(log(-0.0), f32::NEG_INFINITY);
        assert_eq!(log(f32::INFINITY), f32::INFINITY);
        assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan() && log(f32::NEG_INFINITY).is_nan());
        assert_eq!(log(f32::from_bits(1)), (f64::from(f32::from_bits(1))).ln() as f32);
    }

    #[test]
    fn log1p_at_the_ends() {
        assert_eq!(log1p(0.0).to_bits(), 0);
        assert_eq!(log1p(-0.0).to_bits(), 0x8000_0000);
        assert_eq!(log1p(-1.0), f32::NEG_INFINITY);
        assert_eq!(log1p(f32::INFINITY), f32::INFINITY);
        assert!(log1p(-1.5).is_nan() && log1p(f32::NAN).is_nan() && log1p(f32::NEG_INFINITY).is_nan());
        assert_eq!(log1p(f32::from_bits(7)).to_bits(), 7);
    }
}

//! Sine and cosine, exact in their argument reduction for every finite number.

use super::power_of_two;

/// 2/π in binary, 32 zero bits before the point: bit 0 of the table stands for 2^31. 192 fractional bits are enough
/// for the largest binary32 argument; 224 are here so that the last window reads inside.
const TWO_OVER_PI: [u32; 8] =
    [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];

/// π/2 · 2^31, rounded.
const HALF_PI: u64 = 0xc90f_daa2;
const QUARTER_PI: f32 = f32::from_bits(0x3f49_0fdb);

/// `(sin(r) / r - 1) / r²` in powers of r² for |r| ≤ π/4, relative error of the sine 2^-28.
const S: [f32; 3] = [f32::from_bits(0xbe2a_aaa3), f32::from_bits(0x3c08_83be), f32::from_bits(0xb94c_aad7)];
/// `(cos(r) - 1 + r²/2) / r⁴` in powers of r² for |r| ≤ π/4, relative error of the cosine 2^-33.
const C: [f32; 3] = [f32::from_bits(0x3d2a_aaa5), f32::from_bits(0xbab6_0614), f32::from_bits(0x37cc_f406)];

/// A reduced argument: `x = quadrant · π/2 + high + low`, `high + low` within ±π/4.
struct Reduced {
    quadrant: u32,
    high: f32,
    low: f32,
}

/// Reduces a finite non-negative number.
///
/// `x = m 2^e` with a 24-bit integer m. Only the bits of 2/π that reach the product's bits 1 … -62 matter: higher ones
/// add whole turns, lower ones less than 2^-62 of a quarter turn. No binary32 number comes closer to a
/// multiple of π/2 than about 2^-30, so at least 30 good bits remain in the worst case.
#[inline]
fn reduce(x: f32) -> Reduced {
    if x <= QUARTER_PI {
        return Reduced { quadrant: 0, high: x, low: 0.0 };
    }
    let bits = x.to_bits();
    let m = u64::from(bits & 0x007f_ffff | 0x0080_0000);
    // The exponent e = (biased - 150) is at least -24 here; the window starts at table bit e + 30.
    let start = (bits >> 23) - 120;
    let (word, shift) = ((start >> 5) as usize, start & 31);
    let window = |i: usize| {
        let pair = u64::from(TWO_OVER_PI[(word + i) & 7]) << 32 | u64::from(TWO_OVER_PI[(word + i + 1) & 7]);
        (pair << shift) >> 32
    };
    // Quarter turns in units of 2^-62, modulo 4.
    let turns = (m.wrapping_mul(window(0)) << 32).wrapping_add(m * window(1)).wrapping_add((m * window(2)) >> 32);
    let quadrant = turns.wrapping_add(1 << 61) >> 62;
    let rest = turns.wrapping_sub(quadrant << 62) as i64;
    // |rest| is never 0; the `| 1` keeps the shift in range without a branch.
    let magnitude = rest.unsigned_abs() | 1;
    let zeros = magnitude.leading_zeros();
    let radians = ((magnitude << zeros) >> 32) * HALF_PI;
    // radians · 2^(-61 - zeros) is the angle. Two pieces of 24 bits convert exactly.
    let scale = power_of_two(-21 - zeros as i32);
    let high = (radians >> 40) as f32 * scale;
    let low = (radians >> 16 & 0x00ff_ffff) as f32 * (scale * f32::from_bits(0x3380_0000));
    let (high, low) = if rest < 0 { (-high, -low) } else { (high, low) };
    Reduced { quadrant: quadrant as u32, high, low }
}

/// The sine of a reduced angle.
#[inline]
fn sine(high: f32, low: f32) -> f32 {
    let z = high * high;
    let p = (S[2] * z + S[1]) * z + S[0];
    high + (high * z * p + low * (1.0 - 0.5 * z))
}

/// The cosine of a reduced angle.
#[inline]
fn cosine(high: f32, low: f32) -> f32 {
    let z = high * high;
    let p = (C[2] * z + C[1]) * z + C[0];
    let half = 0.5 * z;
    let w = 1.0 - half;
    // (1 - w) - half is what rounding w lost, exactly.
    w + (((1.0 - w) - half) + (z * z * p - high * low))
}

/// The sine of `x` radians; NaN at the infinities.
#[inline]
pub fn sin(x: f32) -> f32 {
    let a = x.abs();
    // Below 2^-12 the cubic term is under half a unit; the early return keeps the sign of zero.
    if a < f32::from_bits(0x3980_0000) {
        return x;
    }
    if !a.is_finite() {
        return f32::NAN;
    }
    let r = reduce(a);
    let y = if r.quadrant & 1 == 0 { sine(r.high, r.low) } else { cosine(r.high, r.low) };
    if (r.quadrant & 2 != 0) != (x < 0.0) { -y } else { y }
}

/// The cosine of `x` radians; NaN at the infinities.
#[inline]
pub fn cos(x: f32) -> f32 {
    let a = x.abs();
    if !a.is_finite() {
        return f32::NAN;
    }
    let r = reduce(a);
    let y = if r.quadrant & 1 == 0 { cosine(r.high, r.low) } else { sine(r.high, r.low) };
    if r.quadrant.wrapping_add(1) & 2 != 0 { -y } else { y }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_ends() {
        assert_eq!(sin(0.0).to_bits(), 0);
        assert_eq!(sin(-0.0).to_bits(), 0x8000_0000);
        assert_eq!(sin(f32::from_bits(5)).to_bits(), 5);
        assert_eq!(cos(0.0), 1.0);
        assert_eq!(cos(-0.0), 1.0);
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert!(sin(x).is_nan() && cos(x).is_nan());
        }
    }

    #[test]
    fn sine_is_odd_and_cosine_even() {
        for i in 1..2000 {
            let x = i as f32 * 7.31;
            assert_eq!(sin(-x), -sin(x));
            assert_eq!(cos(-x), cos(x));
        }
    }

    /// The arguments nearest to a multiple of π/2 and the largest finite one, against 60-digit arithmetic.
    #[test]
    fn the_hardest_arguments() {
        for (x, s, c) in HARD {
            let (x, s, c) = (f32::from_bits(x), f32::from_bits(s), f32::from_bits(c));
            assert!((sin(x) - s).abs() <= s.abs() * f32::EPSILON, "sin {x}: {} against {s}", sin(x));
            assert!((cos(x) - c).abs() <= c.abs() * f32::EPSILON, "cos {x}: {} against {c}", cos(x));
        }
    }

    /// Pattern of x, of its sine, of its cosine.
    const HARD: [(u32, u32, u32); 10] = [
        (0x4130_0000, 0xbf7f_ff5c, 0x3b91_0572),
        (0x7f7f_ffff, 0xbf05_99b3, 0x3f5a_5f96),
        (0x4974_2400, 0xbeb3_3259, 0x3f6f_cefd),
        (0x497f_fff0, 0xbf1d_9959, 0x3f49_bd23),
        (0x6f79_be45, 0x3f80_0000, 0xb0dd_eea9),
        (0x50a3_e87f, 0x3f80_0000, 0xb10a_4ed8),
        (0x6ff9_be45, 0xb15d_eea9, 0xbf80_0000),
        (0x5123_e87f, 0xb18a_4ed8, 0xbf80_0000),
        (0x437c_e5f1, 0x3f80_0000, 0xb18f_d1de),
        (0x7079_be45, 0x31dd_eea9, 0x3f80_0000),
    ];
}

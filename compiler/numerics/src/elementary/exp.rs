//! The exponential function and the logistic one made of it.

use super::{LN2_HIGH, LN2_LOW, power_of_two};

/// 1.5 · 2^23: adding it to a number below 2^22 in magnitude leaves the nearest integer in the low bits.
const SHIFT: f32 = 12_582_912.0;
const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);

/// `(e^r - 1 - r) / r²` on |r| ≤ ln 2 / 2, relative error of the exponential 2^-27.8.
const P: [f32; 5] = [
    0.5,
    f32::from_bits(0x3e2a_aa47),
    f32::from_bits(0x3d2a_aadc),
    f32::from_bits(0x3c09_1df7),
    f32::from_bits(0x3ab6_2e35),
];

/// e to the power `x`.
///
/// `x = k ln 2 + r` with |r| ≤ ln 2 / 2, so `e^x = 2^k e^r`. The power of two is applied in two factors: a result below the
/// normal range is then rounded once, by the second.
#[inline]
pub fn exp(x: f32) -> f32 {
    // Beyond these the result is an infinity or zero anyway, and k stays in range. A NaN passes both comparisons.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -105.0 { -105.0 } else { x };
    let shifted = x * LOG2_E + SHIFT;
    let k = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
    let kf = shifted - SHIFT;
    let high = x - kf * LN2_HIGH;
    let low = kf * LN2_LOW;
    let r = high - low;
    let lost = (high - r) - low;
    let p = (((P[4] * r + P[3]) * r + P[2]) * r + P[1]) * r + P[0];
    let y = 1.0 + (r + (r * r * p + lost));
    let k1 = k >> 1;
    (y * power_of_two(k1)) * power_of_two(k.wrapping_sub(k1))
}

/// `1 / (1 + exp(-x))`, each operation rounded.
#[inline]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_at_the_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY).to_bits(), 0);
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
        assert!(exp(88.722_84) == f32::INFINITY && exp(88.722_83).is_finite());
        assert!(exp(-103.972_08) > 0.0 && exp(-103.972_09) == 0.0);
    }

    #[test]
    fn sigmoid_at_the_ends() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert!(sigmoid(f32::NAN).is_nan());
    }
}

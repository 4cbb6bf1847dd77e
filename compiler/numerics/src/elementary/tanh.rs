//! The hyperbolic tangent.

use super::exp;

/// Where the polynomial hands over to the exponential.
const SMALL: f32 = 0.7;

/// `(tanh(x) / x - 1) / x²` in powers of x² for |x| ≤ 0.7, relative error of the tangent 2^-30.
const T: [f32; 6] = [
    f32::from_bits(0xbeaa_aaa8),
    f32::from_bits(0x3e08_87ab),
    f32::from_bits(0xbd5c_de10),
    f32::from_bits(0x3cb0_c45e),
    f32::from_bits(0xbc01_5ddd),
    f32::from_bits(0x3af9_9733),
];

/// The hyperbolic tangent of `x`: odd, exactly ±1 from |x| = 9.02 on.
#[inline]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let magnitude = if a < SMALL {
        let z = a * a;
        let t = ((((T[5] * z + T[4]) * z + T[3]) * z + T[2]) * z + T[1]) * z + T[0];
        a + a * (z * t)
    } else {
        1.0 - 2.0 / (exp(2.0 * a) + 1.0)
    };
    magnitude.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tanh_at_the_ends() {
        assert_eq!(tanh(0.0).to_bits(), 0);
        assert_eq!(tanh(-0.0).to_bits(), 0x8000_0000);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert!(tanh(f32::NAN).is_nan());
        assert_eq!(tanh(f32::from_bits(3)).to_bits(), 3);
        assert_eq!(tanh(-0.3), -tanh(0.3));
    }
}

//! Widening of IEEE binary16, which checkpoints may hold and nothing here computes in.

/// The number behind a binary16 pattern, exactly; a NaN is made quiet.
#[inline]
pub fn f16_value(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10 & 0x1f);
    let fraction = u32::from(bits & 0x3ff);
    let magnitude = match exponent {
        // Subnormals are whole multiples of 2^-24, zero among them: integer to float and one exact product.
        0 => (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        31 if fraction != 0 => 0x7fc0_0000 | fraction << 13,
        31 => 0x7f80_0000,
        // Exponent biases differ by 127 - 15.
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// Widens binary16 patterns, up to the shorter of the two.
pub fn decode_f16(bits: &[u16], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bits) {
        *o = f16_value(*b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_agrees_with_the_oracle() {
        for bits in 0..=u16::MAX {
            let oracle = half::f16::from_bits(bits).to_f32();
            let x = f16_value(bits);
            assert!(crate::same_bits(x, oracle), "{bits:#06x}: {x} against {oracle}");
            assert_eq!(x.is_sign_negative(), bits & 0x8000 != 0);
        }
    }
}

//! The bf16 codec: the upper half of a binary32, rounded to nearest even.

/// The bf16 pattern nearest to `x`, ties to the even one.
///
/// Subnormals are kept, what exceeds the largest finite bf16 by half a step or more becomes an infinity, and a NaN stays
/// a NaN of the same sign, made quiet.
#[inline]
pub fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        // Truncation alone could clear every mantissa bit and leave an infinity.
        return (bits >> 16) as u16 | 0x0040;
    }
    // Adding just under half a step, and the kept half's last bit, carries exactly when rounding up is due. The carry
    // runs through the exponent, which is what makes overflow an infinity and a large subnormal a normal number.
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// The number behind a bf16 pattern, exactly.
#[inline]
pub fn bf16_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` rounded to bf16 and widened again.
#[inline]
pub fn round_bf16(x: f32) -> f32 {
    bf16_value(bf16_bits(x))
}

/// Whether `x` is a number that bf16 holds exactly (any NaN counts).
#[inline]
pub fn is_bf16(x: f32) -> bool {
    x.is_nan() || x.to_bits() & 0xffff == 0
}

/// Rounds every element where it lies.
pub fn round_bf16_in_place(x: &mut [f32]) {
    for v in x {
        *v = round_bf16(*v);
    }
}

/// Rounds `x` into `out`, up to the shorter of the two.
pub fn round_bf16_slice(x: &[f32], out: &mut [f32]) {
    for (o, v) in out.iter_mut().zip(x) {
        *o = round_bf16(*v);
    }
}

/// Rounds `x` to bf16 patterns, up to the shorter of the two.
pub fn encode_bf16(x: &[f32], out: &mut [u16]) {
    for (o, v) in out.iter_mut().zip(x) {
        *o = bf16_bits(*v);
    }
}

/// Widens bf16 patterns, up to the shorter of the two.
pub fn decode_bf16(bits: &[u16], out: &mut [f32]) {
    for (o, b) in out.iter_mut().zip(bits) {
        *o = bf16_value(*b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_survives_widening_and_rounding() {
        for bits in 0..=u16::MAX {
            let x = bf16_value(bits);
            let oracle = half::bf16::from_bits(bits);
            assert!(is_bf16(x));
            assert_eq!(x.is_nan(), oracle.is_nan(), "{bits:#06x}");
            if x.is_nan() {
                assert_eq!(bf16_bits(x), bits | 0x0040, "{bits:#06x}");
            } else {
                assert_eq!(x.to_bits(), oracle.to_f32().to_bits(), "{bits:#06x}");
                assert_eq!(bf16_bits(x), bits, "{bits:#06x}");
            }
        }
    }

    /// Every upper half with every lower half that can matter. For a number, the result is a function of the upper
    /// half and of where the lower half stands to the midpoint 0x8000: zero, below, at, above. Both ends of each open
    /// range are tried, and a few inside; inside a range the sum `bits + 0x7fff + odd` grows by one per pattern, so its upper half
    /// can only change where the tried ends show a change. For a NaN the lower half is dropped, and what
    /// could go wrong is an upper half without a mantissa bit, which every nonzero lower half shows alike.
    #[test]
    fn rounding_agrees_with_the_oracle_for_every_upper_half() {
        let lows =
            [0, 1, 2, 0x0100, 0x3fff, 0x4000, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xbfff, 0xc000, 0xfffe, 0xffff];
        for high in 0..=u16::MAX {
            for low in lows {
                let x = f32::from_bits(u32::from(high) << 16 | low);
                let oracle = half::bf16::from_f32(x).to_bits();
                assert_eq!(bf16_bits(x), oracle, "{:#010x}", x.to_bits());
            }
        }
    }

    #[test]
    fn overflow_ties_and_subnormals() {
        let largest = bf16_value(0x7f7f);
        let half_step = 2f32.powi(119);
        assert_eq!(round_bf16(largest + half_step), f32::INFINITY);
        assert_eq!(round_bf16(f32::from_bits((largest + half_step).to_bits() - 1)), largest);
        assert_eq!(bf16_bits(f32::from_bits(0x0000_8000)), 0, "half the smallest subnormal ties to zero");
        assert_eq!(bf16_bits(f32::from_bits(0x0000_8001)), 1);
        assert_eq!(bf16_bits(f32::from_bits(0x8000_0001)), 0x8000, "the sign of zero stays");
        assert!(round_bf16(f32::from_bits(0x7f80_0001)).is_nan());
    }

    #[test]
    fn slices_do_what_single_numbers_do() {
        let x: Vec<f32> = (0..1000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
        let mut rounded = vec![0.0; 1000];
        round_bf16_slice(&x, &mut rounded);
        let mut bits = vec![0; 1000];
        encode_bf16(&x, &mut bits);
        let mut wide = vec![0.0; 1000];
        decode_bf16(&bits, &mut wide);
        let mut placed = x.clone();
        round_bf16_in_place(&mut placed);
        for i in 0..1000 {
            assert_eq!(rounded[i].to_bits(), round_bf16(x[i]).to_bits());
            assert_eq!(wide[i].to_bits(), rounded[i].to_bits());
            assert_eq!(placed[i].to_bits(), rounded[i].to_bits());
        }
    }
}

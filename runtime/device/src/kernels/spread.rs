//! Where one fused operation has the bits of a product and a sum: no product can be rounded.

use pulp::{Simd, WithSimd};

/// What is known of some numbers: whether bf16 holds all of them, and the exponents of those that are finite and not zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub bf16: bool,
    /// Magnitudes as patterns: the least that is not zero, the largest that is finite.
    least: u32,
    most: u32,
}

impl Spread {
    const INFINITE: u32 = 0x7f80_0000;

    /// Looks at every number.
    #[inline(always)]
    pub fn of(x: &[f32]) -> Spread {
        let (mut low, mut least, mut most) = (0, u32::MAX, 0);
        for x in x {
            let bits = x.to_bits();
            let magnitude = bits & 0x7fff_ffff;
            low |= bits & 0xffff;
            // A zero becomes the largest of all.
            least = least.min(magnitude.wrapping_sub(1));
            most = most.max(if magnitude < Self::INFINITE { magnitude } else { 0 });
        }
        Spread { bf16: low == 0, least: least.saturating_add(1), most }
    }

    /// Whether every product of a number of each is exact in binary32. Infinities and NaNs are no matter: what they give is not
    /// rounded.
    fn exact_products(self, other: Spread) -> bool {
        let exponent = |pattern: u32| (pattern >> 23) as i32 - 127;
        let normal = |s: Spread| s.least >> 23 > 0;
        self.bf16
            && other.bf16
            && normal(self)
            && normal(other)
            && exponent(self.least.min(Self::INFINITE)) + exponent(other.least.min(Self::INFINITE)) >= -126
            && exponent(self.most) + exponent(other.most) <= 125
    }

    /// Whether products of these numbers with any of `x` are all exact.
    pub fn fuses(self, x: &[f32]) -> bool {
        struct Look<'a>(&'a [f32]);
        impl WithSimd for Look<'_> {
            type Output = Spread;
            #[inline(always)]
            fn with_simd<S: Simd>(self, _: S) -> Spread {
                Spread::of(self.0)
            }
        }
        self.bf16 && self.exact_products(pulp::Arch::new().dispatch(Look(x)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_fused_only_where_none_is_rounded() {
        let of = Spread::of;
        assert!(of(&[1.0, -0.0, 2f32.powi(-60)]).exact_products(of(&[2f32.powi(-66), 3.0])));
        assert!(!of(&[1.0, 2f32.powi(-60)]).exact_products(of(&[2f32.powi(-67)])), "below the normal numbers");
        assert!(!of(&[2f32.powi(63)]).exact_products(of(&[2f32.powi(63)])), "near the largest");
        assert!(!of(&[1.000_1]).exact_products(of(&[1.0])), "more than 8 bits");
        assert!(of(&[0.0]).exact_products(of(&[1.0, f32::INFINITY])), "nothing but zeros and infinities");
        assert!(!of(&[f32::from_bits(0x0001_0000)]).exact_products(of(&[1.0])), "a subnormal");
    }
}

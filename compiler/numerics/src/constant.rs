//! Constants evaluated operator by operator in binary32 (clause R5) while a spec is compiled.

/// `a` to the power `b`, rounded to binary32.
///
/// The power is taken in binary64 by a portable software routine (error under one binary64 unit in the last place), then rounded.
/// The result is the correctly rounded one unless the exact power lies within 2^-52 of a midpoint between two
/// binary32 numbers, relatively: one case in 2^28 at random, and never where the power is exact in binary64.
/// The sum, product, quotient and square root of constants need no helper: Rust's are correctly rounded.
pub fn pow_f32(a: f32, b: f32) -> f32 {
    libm::pow(f64::from(a), f64::from(b)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_powers_are_exact() {
        assert_eq!(pow_f32(2.0, 10.0), 1024.0);
        assert_eq!(pow_f32(128.0, -1.0), 1.0 / 128.0);
        assert_eq!(pow_f32(9.0, 0.5), 3.0);
        assert_eq!(pow_f32(10000.0, 0.0), 1.0);
    }

    /// Values of `10000 ** (2 i / 128)` from 60-digit arithmetic.
    #[test]
    fn rotary_frequencies_are_correctly_rounded() {
        for (i, bits) in [(1, FREQ_1), (7, FREQ_7), (33, FREQ_33), (63, FREQ_63)] {
            assert_eq!(pow_f32(10000.0, 2.0 * i as f32 / 128.0).to_bits(), bits, "i = {i}");
        }
    }

    const FREQ_1: u32 = 0x3f93_cfe5;
    const FREQ_7: u32 = 0x402f_4244;
    const FREQ_33: u32 = 0x42e6_f4d6;
    const FREQ_63: u32 = 0x4607_4e93;
}

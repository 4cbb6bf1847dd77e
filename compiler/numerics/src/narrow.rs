//! Codecs of the 8 and 4 bit formats: e4m3, e5m2, e2m1 and the scale formats made of them.
//!
//! | format | exponent, mantissa bits | bias | largest | special codes |
//! |---|---|---|---|---|
//! | e4m3 ("fn") | 4, 3 | 7 | 448 | NaN `7f` `ff`, no infinity |
//! | e5m2 | 5, 2 | 15 | 57344 | infinity `7c`, NaN above it |
//! | e2m1 | 2, 1 | 1 | 6 | none |
//! | e8m0 | 8, 0 | 127 | 2^127 | NaN `ff`, no sign, no zero |
//!
//! Encoding rounds to the nearest number, ties to the even code, and leaves the largest one for everything beyond it, an
//! infinity included: what the `satfinite` conversions of GPUs do. Subnormals are kept. Sources: OCP 8-bit floating point
//! specification 1.0 (e4m3, e5m2) and OCP microscaling formats 1.0 (e2m1, e8m0).

use crate::max_f32;

/// A small float: a sign bit, exponent bits, mantissa bits.
struct Small {
    mantissa_bits: u32,
    bias: i32,
    /// Code of the largest finite magnitude.
    largest: u8,
    /// Code that a NaN becomes, without its sign.
    nan: u8,
    /// Place of the sign.
    sign_bit: u32,
}

const E4M3: Small = Small { mantissa_bits: 3, bias: 7, largest: 0x7e, nan: 0x7f, sign_bit: 7 };
const E5M2: Small = Small { mantissa_bits: 2, bias: 15, largest: 0x7b, nan: 0x7f, sign_bit: 7 };
const E2M1: Small = Small { mantissa_bits: 1, bias: 1, largest: 0x7, nan: 0x7, sign_bit: 3 };

/// Adding and taking away 1.5 * 2^23 leaves a number below 2^22 rounded to a whole one, ties to even.
const WHOLE: f32 = 12_582_912.0;

impl Small {
    #[inline]
    fn encode(&self, x: f32) -> u8 {
        let sign = ((x.to_bits() >> 31) as u8) << self.sign_bit;
        if x.is_nan() {
            return sign | self.nan;
        }
        let magnitude = x.abs();
        let smallest_normal = exp2(1 - self.bias);
        let code = if magnitude < smallest_normal {
            // A subnormal is a whole number of steps; scaling by a power of two is exact.
            let steps = magnitude * exp2(self.bias - 1 + self.mantissa_bits as i32);
            ((steps + WHOLE) - WHOLE) as u32
        } else {
            // As for bf16: just under half a step, and the last kept bit, carry when rounding up is due.
            let dropped = 23 - self.mantissa_bits;
            let bits = magnitude.to_bits();
            let rounded = (bits + (1 << (dropped - 1)) - 1 + ((bits >> dropped) & 1)) >> dropped;
            rounded - (((127 - self.bias) as u32) << self.mantissa_bits)
        };
        sign | code.min(u32::from(self.largest)) as u8
    }

    /// The magnitude behind a code without sign; special codes are the caller's.
    #[inline]
    fn magnitude(&self, code: u8) -> f32 {
        let (exponent, mantissa) = (i32::from(code >> self.mantissa_bits), code & ((1 << self.mantissa_bits) - 1));
        let mantissa = f32::from(mantissa);
        let one = exp2(self.mantissa_bits as i32);
        match exponent {
            0 => mantissa * exp2(1 - self.bias - self.mantissa_bits as i32),
            _ => (one + mantissa) * exp2(exponent - self.bias - self.mantissa_bits as i32),
        }
    }
}

/// 2^n for a normal result.
#[inline]
const fn exp2(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// The e4m3 code nearest to `x`, at most 448 in magnitude.
#[inline]
pub fn e4m3_code(x: f32) -> u8 {
    E4M3.encode(x)
}

/// The number behind an e4m3 code.
#[inline]
pub fn e4m3_value(code: u8) -> f32 {
    match code & 0x7f {
        0x7f => f32::NAN,
        magnitude => signed(E4M3.magnitude(magnitude), code & 0x80 != 0),
    }
}

/// The e5m2 code nearest to `x`, at most 57344 in magnitude.
#[inline]
pub fn e5m2_code(x: f32) -> u8 {
    E5M2.encode(x)
}

/// The number behind an e5m2 code.
#[inline]
pub fn e5m2_value(code: u8) -> f32 {
    match code & 0x7f {
        0x7c => signed(f32::INFINITY, code & 0x80 != 0),
        0x7d..=0x7f => f32::NAN,
        magnitude => signed(E5M2.magnitude(magnitude), code & 0x80 != 0),
    }
}

/// The e2m1 code, in the low four bits, nearest to `x`, at most 6 in magnitude. The format has no NaN: one becomes 6.
#[inline]
pub fn e2m1_code(x: f32) -> u8 {
    E2M1.encode(x)
}

/// The number behind the low four bits.
#[inline]
pub fn e2m1_value(code: u8) -> f32 {
    signed(E2M1.magnitude(code & 0x7), code & 0x8 != 0)
}

/// The e8m0 code of the power of two nearest to `x`, ties to the even exponent; NaN for what is no positive number.
#[inline]
pub fn e8m0_code(x: f32) -> u8 {
    if !(x > 0.0 && x < f32::INFINITY) {
        return 0xff;
    }
    // Exponents count from -127 = code 0. A subnormal binary32 is at most 2^-126.
    let bits = x.to_bits();
    let (exponent, mantissa) = (bits >> 23, bits & 0x7f_ffff);
    if exponent == 0 {
        return u8::from(mantissa > 0x60_0000);
    }
    let up = mantissa > 0x40_0000 || (mantissa == 0x40_0000 && exponent & 1 == 1);
    (exponent + u32::from(up)).min(0xfe) as u8
}

/// The number behind an e8m0 code.
#[inline]
pub fn e8m0_value(code: u8) -> f32 {
    match code {
        0xff => f32::NAN,
        0 => f32::from_bits(0x40_0000),
        code => f32::from_bits(u32::from(code) << 23),
    }
}

#[inline]
fn signed(magnitude: f32, negative: bool) -> f32 {
    if negative { -magnitude } else { magnitude }
}

/// `x` rounded to e4m3 and widened again.
#[inline]
pub fn round_e4m3(x: f32) -> f32 {
    e4m3_value(e4m3_code(x))
}

/// `x` rounded to e5m2 and widened again.
#[inline]
pub fn round_e5m2(x: f32) -> f32 {
    e5m2_value(e5m2_code(x))
}

/// Largest magnitude of e4m3.
pub const E4M3_LARGEST: f32 = 448.0;

/// Largest magnitude of an nvfp4 element: the largest code times the largest scale.
pub const NVFP4_LARGEST: f32 = 6.0 * E4M3_LARGEST;

/// Elements under one scale.
pub const BLOCK: usize = 16;

/// A block of nvfp4: what an element is worth is its code times the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// e4m3 code of the scale.
    pub scale: u8,
    /// e2m1 codes, two a byte, the even element in the low bits.
    pub codes: [u8; BLOCK / 2],
}

impl Block {
    /// `x / g` in blocks: with the largest magnitude m, `scale = e4m3(min(m / (6 g), 448))` and
    /// `codes = e2m1(x / (scale g))`, 0 where the scale is 0. Each operation rounds to binary32.
    pub fn of(x: &[f32; BLOCK], g: f32) -> Block {
        let largest = x.iter().fold(0.0, |m: f32, v| max_f32(m, v.abs()));
        let scale = e4m3_code(largest / (6.0 * g));
        Block::under(x, scale, g)
    }

    /// The codes of `x / g` under a scale that is known.
    pub fn under(x: &[f32; BLOCK], scale: u8, g: f32) -> Block {
        let by = e4m3_value(scale);
        let divisor = by * g;
        let code = |v: f32| if by == 0.0 { 0 } else { e2m1_code(v / divisor) };
        let mut codes = [0; BLOCK / 2];
        for (byte, pair) in codes.iter_mut().zip(x.chunks_exact(2)) {
            *byte = code(pair[0]) | code(pair[1]) << 4;
        }
        Block { scale, codes }
    }

    /// A block with exactly these elements, bit for bit, if there is one.
    pub fn exactly(x: &[f32; BLOCK]) -> Option<Block> {
        let same = |block: &Block| block.values().iter().zip(x).all(|(a, b)| a.to_bits() == b.to_bits());
        (0..=E4M3.largest).map(|scale| Block::of_codes(x, scale)).find(same)
    }

    /// Codes nearest to `x` over the scale, the sign of a zero kept whatever the scale.
    fn of_codes(x: &[f32; BLOCK], scale: u8) -> Block {
        let by = e4m3_value(scale);
        let code = |v: f32| if v == 0.0 || by == 0.0 { e2m1_code(v * 0.0) } else { e2m1_code(v / by) };
        let mut codes = [0; BLOCK / 2];
        for (byte, pair) in codes.iter_mut().zip(x.chunks_exact(2)) {
            *byte = code(pair[0]) | code(pair[1]) << 4;
        }
        Block { scale, codes }
    }

    /// The elements, exactly: a product of two and four significant bits fits binary32, and bf16.
    pub fn values(&self) -> [f32; BLOCK] {
        let by = e4m3_value(self.scale);
        let mut values = [0.0; BLOCK];
        for (pair, byte) in values.chunks_exact_mut(2).zip(self.codes) {
            pair[0] = e2m1_value(byte) * by;
            pair[1] = e2m1_value(byte >> 4) * by;
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every finite number of a format with its code, written down independently: magnitudes by the rule in words.
    fn table(exponent_bits: u32, mantissa_bits: u32, last: u8) -> Vec<(u8, f64)> {
        let bias = 2f64.powi(exponent_bits as i32 - 1) - 1.0;
        let steps = 2f64.powi(mantissa_bits as i32);
        (0..=last)
            .map(|code| {
                let (e, m) = (f64::from(code >> mantissa_bits), f64::from(code) % steps);
                let fraction = if e == 0.0 { m / steps } else { 1.0 + m / steps };
                (code, fraction * 2f64.powf(f64::max(e, 1.0) - bias))
            })
            .collect()
    }

    /// The code that the definition picks, found by looking at all: nearest, ties to even, saturating.
    fn nearest(table: &[(u8, f64)], x: f32) -> u8 {
        // Far beyond the last number all distances look the same in binary64.
        let x = f64::from(x.abs()).min(2.0 * table.last().map_or(0.0, |entry| entry.1));
        let distance = |entry: &(u8, f64)| (entry.1 - x).abs();
        let best = table.iter().map(distance).fold(f64::INFINITY, f64::min);
        let tied: Vec<u8> = table.iter().filter(|e| distance(e) == best).map(|e| e.0).collect();
        tied.iter().copied().find(|c| c % 2 == 0).unwrap_or(tied[0])
    }

    fn check(table: &[(u8, f64)], sign: u8, encode: fn(f32) -> u8, value: fn(u8) -> f32) {
        for (code, number) in table {
            assert_eq!(f64::from(value(*code)), *number, "{code:#x}");
            assert_eq!(encode(*number as f32), *code);
            assert_eq!(value(code | sign), -(*number as f32));
        }
        // Every midpoint and its neighbours, and every bf16 number of either sign.
        let middles = table.windows(2).map(|pair| ((pair[0].1 + pair[1].1) / 2.0) as f32);
        let around = middles.flat_map(|m| [m, f32::from_bits(m.to_bits() - 1), f32::from_bits(m.to_bits() + 1)]);
        let all = (0..=0xffffu32).map(|bits| f32::from_bits(bits << 16)).filter(|x| !x.is_nan());
        for x in around.chain(all) {
            let negative = if x.is_sign_negative() { sign } else { 0 };
            let wanted = if x.is_infinite() { table.last().unwrap().0 } else { nearest(table, x) };
            assert_eq!(encode(x), wanted | negative, "{x}");
        }
    }

    #[test]
    fn every_code_and_every_midpoint_agree_with_the_definition() {
        check(&table(4, 3, 0x7e), 0x80, e4m3_code, e4m3_value);
        check(&table(5, 2, 0x7b), 0x80, e5m2_code, e5m2_value);
        check(&table(2, 1, 0x7), 0x8, e2m1_code, e2m1_value);
    }

    #[test]
    fn what_is_no_number_stays_none_where_the_format_can_say_so() {
        assert!(e4m3_value(e4m3_code(f32::NAN)).is_nan());
        assert!(e5m2_value(e5m2_code(-f32::NAN)).is_nan());
        assert_eq!(e5m2_value(0xfc), f32::NEG_INFINITY);
        assert_eq!(e2m1_value(e2m1_code(f32::NAN)), 6.0);
        assert!(e8m0_value(e8m0_code(0.0)).is_nan());
    }

    #[test]
    fn powers_of_two_are_their_exponents() {
        for code in 0..0xffu8 {
            let value = e8m0_value(code);
            assert_eq!(f64::from(value), 2f64.powi(i32::from(code) - 127));
            assert_eq!(e8m0_code(value), code);
        }
        assert_eq!(e8m0_value(e8m0_code(1.5)), 2.0, "ties to the even exponent, code 128");
        assert_eq!(e8m0_value(e8m0_code(3.0)), 2.0);
        assert_eq!(e8m0_value(e8m0_code(f32::MAX)), 2f32.powi(127));
    }

    #[test]
    fn a_block_keeps_its_scale_and_rounds_its_elements() {
        let mut x = [0.0f32; BLOCK];
        x[0] = -12.0;
        x[1] = 1.0;
        x[15] = 5.0;
        let block = Block::of(&x, 1.0);
        assert_eq!(e4m3_value(block.scale), 2.0);
        let values = block.values();
        assert_eq!((values[0], values[1], values[15]), (-12.0, 1.0, 4.0), "5/2 = 2.5 is a tie between 2 and 3");
        assert_eq!(block.codes[0] & 0xf, 0xf, "the even element is in the low bits");
        assert_eq!(Block::exactly(&values).map(|b| b.values()), Some(values));
        assert_eq!(
            Block::exactly(&[5.0; BLOCK]),
            Block::exactly(&[2.5; BLOCK]).map(|b| Block { scale: b.scale + 8, ..b })
        );
        assert_eq!(Block::exactly(&x), None);
        assert_eq!(Block::of(&[0.0; BLOCK], 1.0), Block { scale: 0, codes: [0; BLOCK / 2] });
    }
}

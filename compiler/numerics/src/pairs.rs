//! The order `pairs`: sums of products as matrix units with tiles of pairs add them.
//!
//! Terms come in blocks of [`PAIRS`]. In a block the products at even places have one running total and those at odd places another;
//! both begin at `+0`, and a product is added without being rounded first. The two are added, and their sum is added to what the
//! blocks before left, which began at `+0`. All of it is IEEE binary32, subnormals kept. A last block may be short.

/// Terms of a block.
pub const PAIRS: usize = 32;

/// The sum of `n` products of two numbers each in the order `pairs`.
#[inline]
pub fn pairs_of(n: usize, factors: impl Fn(usize) -> (f32, f32)) -> f32 {
    let mut total = 0.0;
    for start in (0..n).step_by(PAIRS) {
        let mut running = [0f32; 2];
        for i in start..n.min(start + PAIRS) {
            let (a, b) = factors(i);
            running[i % 2] = a.mul_add(b, running[i % 2]);
        }
        total += running[0] + running[1];
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_two_totals_and_blocks_are_added_one_after_the_other() {
        // Beside 2^24 a one is lost; a sum of two that are made apart is not.
        let ones = |big: usize, n: usize| pairs_of(n, |i| (if i == big { 16_777_216.0 } else { 1.0 }, 1.0));
        assert_eq!(ones(0, 4), 16_777_218.0, "1 at an even place is lost, 2 at odd places are added together");
        assert_eq!(ones(1, 5), 16_777_220.0, "3 at even places are added together, and half of a unit rounds to even");
        assert_eq!(ones(0, 3), 16_777_216.0, "one of each is lost one after the other");
        assert_eq!(ones(0, 64), 16_777_264.0, "32 of the second block are added together");
        let third =
            |n: usize| pairs_of(n, |i| if i < 2 { (1.0 + 2f32.powi(-12), 1.0 + 2f32.powi(-12)) } else { (-1.0, 1.0) });
        assert_eq!(third(4), 2.0 * (2f32.powi(-11)), "the first product of a total is rounded, in the sum with zero");
    }

    #[test]
    fn no_term_gives_zero_and_signs_of_zeros_are_those_of_sums() {
        assert_eq!(pairs_of(0, |_| (1.0, 1.0)).to_bits(), 0);
        assert_eq!(pairs_of(3, |_| (-1.0, 0.0)).to_bits(), 0, "a total begins at +0");
        assert!(pairs_of(33, |i| (if i == 32 { f32::INFINITY } else { 1.0 }, 0.0)).is_nan());
    }
}

//! Names that nobody can foresee, as the system's own randomness makes them.

use std::hash::{BuildHasher, RandomState};

/// Random bytes. Where the system gives none, which it always does once it has started, the keys of hash tables are what
/// is left.
fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        for chunk in bytes.chunks_mut(size_of::<u64>()) {
            let word = RandomState::new().hash_one(0u8).to_le_bytes();
            chunk.iter_mut().zip(word).for_each(|(byte, random)| *byte = random);
        }
    }
    bytes
}

/// 64 random bits, for seeds.
pub(crate) fn random() -> u64 {
    u64::from_le_bytes(bytes())
}

/// A word of 32 hexadecimal digits, 128 random bits.
pub(crate) fn word() -> String {
    format!("{:032x}", u128::from_le_bytes(bytes()))
}

/// A name with a prefix, such as `call_…`.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}{}", word())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_have_one_form_and_no_order() {
        let names: Vec<String> = (0..2000).map(|_| name("a_")).collect();
        assert!(names.iter().all(|name| name.len() == 34 && name.starts_with("a_")));
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        // Neighbours differ in half of their bits. A counter behind a key changes them one by one: of 2,000 sums of 128 fair
        // bits the standard deviation of the mean is 0.13.
        let bits: Vec<u128> = names.iter().map(|name| u128::from_str_radix(&name[2..], 16).unwrap()).collect();
        let differing: u32 = bits.windows(2).map(|pair| (pair[0] ^ pair[1]).count_ones()).sum();
        let mean = f64::from(differing) / (bits.len() - 1) as f64;
        assert!((mean - 64.0).abs() < 1.3, "{mean}");
        for bit in 0..128 {
            let ones = bits.iter().filter(|word| *word >> bit & 1 == 1).count();
            // Ten standard deviations of 2,000 fair bits.
            assert!(ones.abs_diff(1000) < 224, "bit {bit} is set in {ones} of 2000");
        }
    }
}

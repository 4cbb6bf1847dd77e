//! Names that nobody can foresee.

use std::hash::{BuildHasher, RandomState};

/// 64 random bits, for seeds.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// A word of 24 hexadecimal digits.
pub(crate) fn word() -> String {
    format!("{:016x}{:08x}", random(), random() as u32)
}

/// A name with a prefix, such as `call_…`.
pub(crate) fn name(prefix: &str) -> String {
    format!("{prefix}{}", word())
}

//! What the generator knows of a device.

use artifact::{Product, Tuning};
use targets::Target;

/// A device that kernels are generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Whether it has the matrix instructions of warpgroups and the copy engine's tiles, as `sm_90a` does.
    pub has_warpgroups: bool,
    /// Multiprocessors: blocks of a kernel that takes one each.
    pub blocks: u64,
}

/// What is known of choices that only a device's speed decides, and whether all that could be chosen is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tune<'a> {
    /// Measurements.
    pub tuning: Option<&'a Tuning>,
    /// Whether every alternative gets a kernel, to be measured.
    pub packs: bool,
}

impl Tune<'_> {
    /// Shares of a product's sums, if they were measured and can be: from 1 to `most`.
    pub(crate) fn shares(&self, product: &Product, most: u64) -> Option<u64> {
        self.tuning?.shares(product).filter(|n| (1..=most).contains(n))
    }
}

impl Machine {
    /// The device of a target.
    pub fn of(target: &Target) -> Machine {
        let blocks = target.hardware.fact("multiprocessors").map_or(1, |n| n as u64);
        Machine { has_warpgroups: target.arch == "sm_90a", blocks: blocks.max(1) }
    }
}

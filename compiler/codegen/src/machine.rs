//! What the generator knows of a device.

use targets::Target;

/// A device that kernels are generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Whether it has the matrix instructions of warpgroups and the copy engine's tiles, as `sm_90a` does.
    pub has_warpgroups: bool,
    /// Multiprocessors: blocks of a kernel that takes one each.
    pub blocks: u64,
}

impl Machine {
    /// The device of a target.
    pub fn of(target: &Target) -> Machine {
        let blocks = target.hardware.fact("multiprocessors").map_or(1, |n| n as u64);
        Machine { has_warpgroups: target.arch == "sm_90a", blocks: blocks.max(1) }
    }
}

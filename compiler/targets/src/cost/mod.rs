//! The cost model: what a kernel must move and compute, and the least time in which a device can do it.
//!
//! Nothing here is measured; every number follows from the kernel level, a step's shape and the target's facts.
//!
//! * *Bytes.* A kernel reads each value from outside once and writes each value that is used outside once; values inside
//!   a kernel cost nothing. A whole weight is read by a product; a gather reads the rows it picks.
//! * *Experts.* Where each row picks `k` of the `E` slices of a weight, `T` rows with independent uniform picks touch
//!   `E · (1 − (1 − k/E)^T)` of them; a row misses one slice with probability `1 − k/E`. Of 256 slices with 8 picks that
//!   is 8, 57, 163 and 252 for 1, 8, 32 and 128 rows. On ranks that own a part of the slices each has its share.
//! * *Cache.* A row at position p sees `min(p + 1, window)` keys; a sequence's rows together touch
//!   `min(context, window + rows − 1)` cached rows, read once.
//! * *Operations.* A product has `2 · results · summed`, attention `4 · query elements · visible keys`; any other operation
//!   counts one per element. Products of bf16 with f32 cost three of bf16: an f32 number is three bf16 numbers. Codes times
//!   codes have units of their own; codes times bf16 are widened and cost what bf16 does, at the bytes of codes.
//! * *Exchange.* Per rank of n, an all-reduce sends at least `2 (n − 1) / n` of its bytes, gathering or scattering half of
//!   that.
//! * *Floor.* The largest of: bytes over the read ceiling, operations over their unit's peak, sent bytes over the link.
//!   *Estimate.* The floor, plus a launch, plus the latency of each exchange.

mod region;
mod step;
#[cfg(test)]
mod tests;

use crate::Hardware;
use ir::{Bucket, Mesh, RowsPerSequence, SEQUENCE_ROWS, Sharding, TOKEN_ROWS, WANTED_ROWS};
use std::ops::AddAssign;

pub use step::{GraphCost, KernelCost, StepCost, step};

/// What a step brings: all of it, or the part of one rank ([`Load::of_rank`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Token rows.
    pub tokens: u64,
    /// Sequences, with equally many rows each.
    pub sequences: u64,
    /// Wanted rows.
    pub wanted: u64,
    /// Positions of each sequence after the step, its own rows included.
    pub context: u64,
}

impl Load {
    /// The fullest step of a bucket, every sequence with this context; a ragged one reads one prompt from its beginning
    /// and wants its last row.
    pub fn fullest(bucket: &Bucket, context: u64) -> Load {
        let tokens = bucket.tokens;
        match bucket.rows {
            RowsPerSequence::One => Load { tokens, sequences: tokens, wanted: bucket.wanted, context },
            RowsPerSequence::Block(n) => {
                let sequences = (tokens / n.max(1)).max(1);
                Load { tokens, sequences, wanted: bucket.wanted, context: context.max(n) }
            }
            RowsPerSequence::Ragged => Load { tokens, sequences: 1, wanted: 1, context: tokens },
        }
    }

    /// The part of a rank where rows are spread over ranks, by whole sequences.
    fn of_rank(self, sharding: Option<&Sharding>) -> Load {
        let parts = |axis| match sharding.and_then(|s| Some((s, s.rows.get(axis)?))) {
            Some((sharding, over)) => sharding.mesh.parts(over).max(1),
            None => 1,
        };
        let (tokens, wanted) = (parts(TOKEN_ROWS), parts(WANTED_ROWS));
        Load {
            tokens: self.tokens.div_ceil(tokens),
            sequences: self.sequences.div_ceil(tokens),
            wanted: self.wanted.div_ceil(wanted),
            ..self
        }
    }

    /// Rows along a row axis that steps have.
    pub fn rows(&self, axis: &str) -> Option<u64> {
        match axis {
            TOKEN_ROWS => Some(self.tokens),
            WANTED_ROWS => Some(self.wanted),
            SEQUENCE_ROWS => Some(self.sequences),
            _ => None,
        }
    }

    /// Keys that the rows of all sequences see, summed over rows.
    pub fn visible_keys(&self, window: Option<u64>, causal: bool) -> f64 {
        let rows = self.rows_per_sequence();
        let most = window.unwrap_or(u64::MAX);
        let of_row = |i: u64| if causal { self.context.saturating_sub(rows - 1 - i) } else { self.context }.min(most);
        let own: u64 = (0..rows).map(of_row).fold(0, u64::saturating_add);
        own as f64 * self.sequences as f64
    }

    /// Cached rows that all sequences touch.
    pub fn touched_rows(&self, window: Option<u64>) -> f64 {
        let most = window.map_or(u64::MAX, |w| w.saturating_add(self.rows_per_sequence() - 1));
        self.context.min(most) as f64 * self.sequences as f64
    }

    fn rows_per_sequence(&self) -> u64 {
        (self.tokens / self.sequences.max(1)).max(1)
    }
}

/// Slices of a weight that `rows` rows touch when each picks `picks` of `slices` uniformly and independently.
pub fn distinct(slices: f64, picks: f64, rows: f64) -> f64 {
    if slices <= 0.0 { 0.0 } else { slices * (1.0 - (1.0 - (picks / slices).min(1.0)).powf(rows)) }
}

/// What a kernel, or many, must do on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Bytes of weights read.
    pub weight_bytes: f64,
    /// Bytes of other values read.
    pub read_bytes: f64,
    /// Bytes of values written.
    pub written_bytes: f64,
    /// Bytes of cached rows read.
    pub kv_read_bytes: f64,
    /// Bytes of rows written to the cache.
    pub kv_written_bytes: f64,
    /// Operations of products whose operands are bf16, or one narrower.
    pub bf16_operations: f64,
    /// Operations of products of fp8 with fp8.
    pub fp8_operations: f64,
    /// Operations of products of fp4 with fp4, scales of blocks included.
    pub fp4_operations: f64,
    /// Operations of products of bf16 with f32.
    pub mixed_operations: f64,
    /// Operations of products whose operands are f32.
    pub f32_operations: f64,
    /// Operations outside products.
    pub row_operations: f64,
    /// Bytes sent to other ranks.
    pub sent_bytes: f64,
    /// Exchanges between ranks.
    pub exchanges: f64,
    /// Launches.
    pub launches: f64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Work) {
        self.weight_bytes += other.weight_bytes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.kv_read_bytes += other.kv_read_bytes;
        self.kv_written_bytes += other.kv_written_bytes;
        self.bf16_operations += other.bf16_operations;
        self.fp8_operations += other.fp8_operations;
        self.fp4_operations += other.fp4_operations;
        self.mixed_operations += other.mixed_operations;
        self.f32_operations += other.f32_operations;
        self.row_operations += other.row_operations;
        self.sent_bytes += other.sent_bytes;
        self.exchanges += other.exchanges;
        self.launches += other.launches;
    }
}

/// What limits a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory traffic.
    Memory,
    /// Arithmetic.
    Arithmetic,
    /// Traffic between ranks.
    Link,
}

impl Limit {
    /// The word in reports.
    pub fn word(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Arithmetic => "arithmetic",
            Limit::Link => "link",
        }
    }
}

impl Work {
    /// Bytes that move between the device and its memory.
    pub fn memory_bytes(&self) -> f64 {
        self.weight_bytes + self.read_bytes + self.written_bytes + self.kv_read_bytes + self.kv_written_bytes
    }

    /// Operations of all kinds.
    pub fn operations(&self) -> f64 {
        let products = self.bf16_operations + self.fp8_operations + self.fp4_operations;
        products + self.mixed_operations + self.f32_operations + self.row_operations
    }

    /// The least time of one kernel in seconds, and what limits it; `None` if the target states too few facts.
    pub fn floor(&self, hardware: &Hardware) -> Option<(f64, Limit)> {
        let over = |amount: f64, key: &str| {
            if amount == 0.0 { Some(0.0) } else { hardware.fact(key).map(|rate| amount / rate) }
        };
        let memory = over(self.memory_bytes(), "read_bytes_per_second")?;
        let matrix = over(self.bf16_operations + 3.0 * self.mixed_operations, "flops_bf16")?
            + over(self.fp8_operations, "flops_fp8")?
            + over(self.fp4_operations, "flops_fp4")?;
        let rows = over(self.f32_operations + self.row_operations, "flops_f32")?;
        let link = over(self.sent_bytes, "link_bytes_per_second")?;
        let arithmetic = matrix.max(rows);
        Some(if link > memory.max(arithmetic) {
            (link, Limit::Link)
        } else if arithmetic > memory {
            (arithmetic, Limit::Arithmetic)
        } else {
            (memory, Limit::Memory)
        })
    }

    /// What launches and exchanges add to floors, in seconds; facts that the target does not state add nothing.
    pub fn latency(&self, hardware: &Hardware) -> f64 {
        let of = |key| hardware.fact(key).unwrap_or(0.0);
        self.launches * of("launch_seconds") + self.exchanges * of("collective_seconds")
    }
}

/// Bytes that each of `n` ranks sends at least in an all-reduce of `bytes`.
fn all_reduce_bytes(bytes: f64, mesh: &Mesh, over: &[String]) -> f64 {
    2.0 * one_way_bytes(bytes, mesh, over)
}

/// Bytes that each of `n` ranks sends at least to give the others their parts of `bytes`.
fn one_way_bytes(bytes: f64, mesh: &Mesh, over: &[String]) -> f64 {
    let n = mesh.parts(over).max(1) as f64;
    bytes * (n - 1.0) / n
}

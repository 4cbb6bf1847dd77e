//! Kernels of a device: what every region starts, with which parameters, and the machine code.
//!
//! A region is one or more *starts*, in order: values that only pass between them lie in scratch memory behind the plan's
//! arena. Which buffer, weight or number a parameter is follows from plan, weight memory and instance.

use crate::tuning::Alternative;
use ir::ValueId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Path of the table.
pub(crate) const DEVICE: &str = "device.json";

/// All kernels of an artifact for one architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "kernels of a device")]
pub struct DeviceCode {
    /// Architecture, such as `sm_90a`.
    pub arch: String,
    /// What made the machine code, such as `NVRTC 13.0`.
    pub compiler: String,
    /// Kernels, each once.
    pub kernels: Vec<KernelCode>,
    /// Starts of every region: by entry, graph and region, as in the kernel module.
    pub entries: Vec<Vec<GraphCode>>,
    /// What chooses tokens from the first entry's logits; the host does where there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<ChoiceCode>,
    /// Machine code and readable source by path inside the artifact.
    #[serde(skip)]
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Kernels that choose tokens, as indices into [`DeviceCode::kernels`]. `choose.cuh` of the templates says what each does and what its
/// parameters are: of all but `place` these begin with the logits, what is done with each row, masks, and what was chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChoiceCode {
    /// The largest logit of a row, in blocks of [`ChoiceCode::parts`] by row.
    pub best: usize,
    /// The sum of a row's weights, in as many blocks.
    pub weigh: usize,
    /// Selection from a row, a block each.
    pub select: usize,
    /// Chosen tokens to the rows that stand for them, in blocks of so many rows as it has threads.
    pub place: usize,
    /// Entries of a row of logits.
    pub vocab: u64,
    /// Parts of a row.
    pub parts: u64,
}

impl ChoiceCode {
    /// Kernels in the order of the fields, each with the number of its parameters.
    pub fn kernels(&self) -> [(usize, usize); 4] {
        [(self.best, 6), (self.weigh, 6), (self.select, 6), (self.place, 3)]
    }
}

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelCode {
    /// Name; the files are `kernels/NAME.cubin` and `kernels/NAME.cu`, the entry is called `NAME`.
    pub name: String,
    /// Threads of a block.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a block that the code itself declares.
    pub shared_bytes: u32,
    /// Bytes of shared memory of a block that a start gives.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dynamic_bytes: u32,
    /// Bytes of local memory of a thread: what did not fit into registers.
    pub stack_bytes: u32,
}

/// Starts of one graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphCode {
    /// Name of the graph.
    pub name: String,
    /// Of every region, in the order of the graph's regions.
    pub regions: Vec<RegionCode>,
}

/// Starts of one region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionCode {
    /// Scratch places, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<Scratch>,
    /// Starts in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<Start>,
    /// Other kernels for starts, to be timed on a device; the start's own is among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Alternative>,
}

/// A value that passes from one start of a region to a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scratch {
    /// Bytes for each row.
    pub row_bytes: u64,
    /// Row axis; `None` for a single row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<String>,
}

/// One kernel start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// Index into [`DeviceCode::kernels`].
    pub kernel: usize,
    /// Variants of a launch that it belongs to; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<ir::Variant>,
    /// Buckets that it serves, by their most rows; all where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Served>,
    /// Blocks along each direction.
    pub grid: [Blocks; 2],
    /// Parameters in order.
    pub params: Vec<Param>,
}

/// A range of buckets by their most rows along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// Row axis.
    pub axis: String,
    /// Fewest rows.
    pub least: u64,
    /// Most rows.
    pub most: u64,
    /// Rows of a sequence, where it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<ir::RowsPerSequence>,
}

/// A number of blocks: `ceil(rows · factor / per_block)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blocks {
    /// Row axis whose count in the step is meant; `None` for 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<String>,
    /// Units of work for each row.
    pub factor: u64,
    /// Units of work of a block.
    pub per_block: u64,
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Param {
    /// Address of a value in the arena.
    Value(ValueId),
    /// Address of a weight that the graph names.
    Weight(ValueId),
    /// Address of a scratch place.
    Scratch(usize),
    /// An f32: a number of the layer instance, or the scale of an attention.
    Number(ValueId),
    /// An i32: rows of the step along an axis, times a factor.
    Rows {
        /// Row axis; `None` for 1.
        axis: Option<String>,
        /// Factor.
        factor: u64,
    },
    /// Address of what the step brings besides its rows.
    Steps,
    /// Address of a KV kind's pages.
    Pool(usize),
    /// An i64: elements from the start of a page to the layer's slot, of a KV kind.
    Slot(usize),
    /// A map of a matrix of bf16 for the copy engine, 128 bytes by value: 64 columns by `box_rows` rows are brought at once.
    Map {
        /// The matrix: a weight, a value or a scratch place.
        of: Box<Param>,
        /// Elements of a row.
        columns: u64,
        /// Row axis whose count in the step is meant; `None` for 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        axis: Option<String>,
        /// Rows, for each along the axis.
        rows: u64,
        /// Rows that are brought at once.
        box_rows: u64,
    },
    /// Address of counters that are 0 whenever no kernel runs.
    Tickets,
    /// Address of what sorts the picks of a step, for so many picks a token row; it stays from one region to the next.
    Picks {
        /// Picks of a token row.
        per_row: u64,
    },
    /// What a kernel needs to exchange numbers with the ranks of its group: where their memory is, by value.
    Peers {
        /// Mesh axes that the group spans.
        over: Vec<String>,
        /// Bytes that a block sends to each rank at once.
        slot_bytes: u64,
    },
    /// Token rows that each rank of a group brings, 104 bytes by value.
    Brought {
        /// Row axis.
        axis: String,
        /// Mesh axes that its rows are spread over.
        over: Vec<String>,
    },
    /// An i32: the first position of the rank's own part of an axis, or the one behind its last.
    Own {
        /// The axis.
        axis: String,
        /// Mesh axes that it is spread over.
        over: Vec<String>,
        /// Whether the end is meant.
        end: bool,
    },
    /// An address only where numbers inside kernels are checked, null otherwise.
    Checked(Box<Param>),
    /// A null address.
    Null,
}

fn is_zero(x: &u32) -> bool {
    *x == 0
}

/// Logits of a part of a row.
pub const PART_LOGITS: u64 = 8192;
/// Most parts of a row of logits: a warp has one lane for each.
const MOST_PARTS: u64 = 32;

impl DeviceCode {
    /// Checks that every index finds what it points at; the error says which does not.
    pub(crate) fn check(&self) -> Result<(), String> {
        let count = self.kernels.len();
        let known = |who: &str, kernel: usize| match kernel < count {
            true => Ok(()),
            false => Err(format!("{who} kernel {kernel}, there are {count}")),
        };
        for region in self.entries.iter().flatten().flat_map(|g| &g.regions) {
            region.starts.iter().try_for_each(|s| known("a start has", s.kernel))?;
            for a in &region.alternatives {
                known("an alternative has", a.kernel)?;
                if a.start >= region.starts.len() {
                    let (start, starts) = (a.start, region.starts.len());
                    return Err(format!("an alternative is for start {start}, its region has {starts}"));
                }
            }
        }
        let Some(choice) = &self.choice else { return Ok(()) };
        choice.kernels().into_iter().try_for_each(|(kernel, _)| known("the choice of tokens has", kernel))?;
        if !(1..=MOST_PARTS).contains(&choice.parts) {
            return Err(format!("tokens are chosen from rows in {} parts, a row has 1 to {MOST_PARTS}", choice.parts));
        }
        let needed = choice.vocab.div_ceil(PART_LOGITS);
        if choice.parts != needed {
            let (vocab, parts) = (choice.vocab, choice.parts);
            return Err(format!("tokens are chosen from {vocab} logits in {parts} parts, they have {needed}"));
        }
        Ok(())
    }
}

impl Start {
    /// Whether a launch of this variant in this bucket starts it.
    pub fn serves(&self, variant: ir::Variant, bucket: &ir::Bucket) -> bool {
        let rows = |s: &Served| {
            let kind = s.rows.is_none_or(|rows| rows == bucket.rows);
            kind && bucket.most_rows(&s.axis).is_some_and(|n| (s.least..=s.most).contains(&n))
        };
        (self.variants.is_empty() || self.variants.contains(&variant)) && self.buckets.as_ref().is_none_or(rows)
    }
}

impl KernelCode {
    /// Path of the machine code inside the artifact.
    pub fn cubin(&self) -> String {
        format!("kernels/{}.cubin", self.name)
    }

    /// Path of the readable source inside the artifact.
    pub fn source(&self) -> String {
        format!("kernels/{}.cu", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Product;

    #[test]
    fn indices_that_find_nothing_are_told() {
        let blocks = Blocks { rows: None, factor: 1, per_block: 1 };
        let start = |kernel| Start {
            kernel,
            variants: Vec::new(),
            buckets: None,
            grid: [blocks.clone(), blocks.clone()],
            params: Vec::new(),
        };
        let product = Product { columns: 1, k: 1, rows: 16 };
        let other = |start, kernel| Alternative { start, product, shares: 1, kernel };
        let choice =
            |place, parts| Some(ChoiceCode { best: 0, weigh: 0, select: 0, place, vocab: 32 * PART_LOGITS, parts });
        let code = |start, alternative, choice| {
            let region = RegionCode { starts: vec![start], alternatives: vec![alternative], ..RegionCode::default() };
            let kernel = KernelCode {
                name: "a".to_owned(),
                threads: 32,
                registers: 1,
                shared_bytes: 0,
                dynamic_bytes: 0,
                stack_bytes: 0,
            };
            let graph = GraphCode { name: "g".to_owned(), regions: vec![region] };
            DeviceCode { kernels: vec![kernel], entries: vec![vec![graph]], choice, ..DeviceCode::default() }.check()
        };
        assert_eq!(code(start(0), other(0, 0), choice(0, 32)), Ok(()));
        let refused = [
            (code(start(1), other(0, 0), None), "a start has kernel 1, there are 1"),
            (code(start(0), other(0, 7), None), "an alternative has kernel 7, there are 1"),
            (code(start(0), other(1, 0), None), "an alternative is for start 1, its region has 1"),
            (code(start(0), other(0, 0), choice(9, 1)), "the choice of tokens has kernel 9, there are 1"),
            (code(start(0), other(0, 0), choice(0, 33)), "tokens are chosen from rows in 33 parts, a row has 1 to 32"),
            (
                code(start(0), other(0, 0), choice(0, 31)),
                "tokens are chosen from 262144 logits in 31 parts, they have 32",
            ),
            (code(start(0), other(0, 0), choice(0, 0)), "tokens are chosen from rows in 0 parts, a row has 1 to 32"),
        ];
        for (found, wanted) in refused {
            assert_eq!(found, Err(wanted.to_owned()));
        }
    }
}

//! Kernels that choose tokens from rows of logits (`choose.cuh`).

use crate::region::Unit;
use artifact::PART_LOGITS;
use ir::{DType, Extent, KernelEntry};

/// Threads of a block that has a part of a row, and numbers that each of them looks at.
const PART: [u64; 2] = [256, PART_LOGITS / 256];
/// Threads of a block that selects from a row.
const SELECTING: u64 = 512;
/// Alternatives that it keeps in shared memory, of 16 bytes each.
const LISTED: u64 = 4096;
/// Threads of a block that places tokens.
const PLACING: u64 = 256;
/// Longest row: the sum of so many weights is exact, and its parts are no more than a warp has lanes.
const MOST_VOCAB: u64 = 1 << 18;
/// Name of the logits among an entry's outputs.
const RESULT: &str = "result";

/// Entries of a row of an entry's logits; `None` where tokens cannot be chosen from them here.
pub fn vocab(entry: &KernelEntry) -> Option<u64> {
    let last = entry.last();
    let (_, id) = last.graph.outputs.iter().find(|(name, _)| name == RESULT)?;
    let ty = last.graph.tensor(*id).filter(|ty| ty.dtype == DType::F32)?;
    let [rows, row] = ty.axes.as_slice() else { return None };
    let Extent::Fixed(vocab) = row.extent else { return None };
    Some(vocab).filter(|n| rows.is_rows() && (1..=MOST_VOCAB).contains(n))
}

/// Parts of a row.
pub fn parts(vocab: u64) -> u64 {
    vocab.div_ceil(PART_LOGITS)
}

/// The kernels, in the order of `artifact::ChoiceCode`.
pub fn units(vocab: u64) -> [Unit; 4] {
    let [threads, each] = PART;
    let of_parts = Own {
        name: format!("Parts<{vocab}, {threads}, {each}>"),
        holds: format!("Own::PARTS == {}", parts(vocab)),
        threads,
        bytes: 0,
    };
    let of_row = Own {
        name: format!("Selected<{vocab}, {SELECTING}, {LISTED}>"),
        holds: format!("Own::SHARED == {}", LISTED * 16),
        threads: SELECTING,
        bytes: LISTED * 16,
    };
    let of_step =
        Own { name: "Placed".to_owned(), holds: format!("Own::THREADS == {PLACING}"), threads: PLACING, bytes: 0 };
    let row = "const float* logits, const Choice* choices, const u32* masks, Chosen* chosen";
    let left = format!("{row}, u64* left, u32* tickets");
    let ranked = format!("{row}, u64* alternatives, const int most_ranked");
    [
        of_parts.unit("choice_best", "the largest logit of rows", "best", &left),
        of_parts.unit("choice_weigh", "the sum of the weights of rows", "weigh", &left),
        of_row.unit("choice_select", "tokens from the most probable of rows", "run", &ranked),
        of_step.unit(
            "choice_place",
            "chosen tokens to the rows that stand for them",
            "run",
            "int* tokens, const Chosen* chosen, const int rows",
        ),
    ]
}

/// A template with its sizes.
struct Own {
    name: String,
    /// What the template must agree on.
    holds: String,
    threads: u64,
    bytes: u64,
}

impl Own {
    fn unit(&self, stem: &str, what: &str, run: &str, signature: &str) -> Unit {
        let Own { name, holds, threads, bytes } = self;
        let given = signature.split(", ").filter_map(|p| p.rsplit(' ').next()).collect::<Vec<_>>().join(", ");
        let text = format!(
            "// {what}\n#include \"choose.cuh\"\n\nusing Own = {name};\nstatic_assert({holds}, \"sizes\");\nextern \"C\" __global__ void __launch_bounds__({threads}) @NAME@({signature}) {{\n  Own::{run}({given});\n}}\n"
        );
        Unit { text, threads: *threads as u32, dynamic_bytes: *bytes as u32, stem: stem.to_owned() }
    }
}

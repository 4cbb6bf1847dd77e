//! What a target lets passes join into one kernel.

use ir::KernelKind;
use serde::Deserialize;

/// Keys of `[fuse]`.
pub(crate) const KEYS: [&str; 11] = [
    "pack",
    "rows",
    "gather",
    "store",
    "collective",
    "epilogue",
    "epilogue_row_elements",
    "prologue",
    "interleave_granule",
    "few_rows",
    "dependent_launch",
];

/// What passes may join into one kernel. A target that states nothing has one operation a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fuse {
    /// Products of one value with several weights become one product with the weights packed.
    pub pack: bool,
    /// Chains of row operations become one region.
    pub rows: bool,
    /// Rows picked from a table join the row operations around them.
    pub gather: bool,
    /// Rows written to the cache join the row operations that make them.
    pub store: bool,
    /// An exchange between ranks joins the row operations around it.
    pub collective: bool,
    /// Cores that go on with row operations on what they computed: words of kernel kinds, `matmul` for example.
    #[serde(deserialize_with = "kinds")]
    pub epilogue: Vec<KernelKind>,
    /// Most elements along the row that an epilogue may reduce, cut or select from: those that one tile of a core holds.
    pub epilogue_row_elements: u64,
    /// Cores that apply element-wise operations to what they read.
    #[serde(deserialize_with = "kinds")]
    pub prologue: Vec<KernelKind>,
    /// How many rows of each part stand together where an epilogue combines equal parts of one packed weight; 0 forbids
    /// epilogues that do.
    pub interleave_granule: u64,
    /// A product of at most this many rows is the variant for few rows.
    pub few_rows: u64,
    /// A kernel may start while the one before it ends, and waits for it before it reads what that one wrote.
    pub dependent_launch: bool,
}

fn kinds<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<KernelKind>, D::Error> {
    const CORES: [KernelKind; 4] = [KernelKind::Matmul, KernelKind::GroupedMatmul, KernelKind::Dot, KernelKind::Attend];
    let words = Vec::<String>::deserialize(from)?;
    let kind = |word: &String| {
        CORES.into_iter().find(|k| k.word() == word).ok_or_else(|| {
            let known: Vec<&str> = CORES.iter().map(|k| k.word()).collect();
            serde::de::Error::custom(format!("no core is called `{word}`; known are {}", known.join(", ")))
        })
    };
    words.iter().map(kind).collect()
}

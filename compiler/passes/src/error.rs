//! What stops a pass, each with a code, the two facts in conflict and a next step.

use ir::{Span, VerifyError};

/// A model that cannot be compiled, or a defect of the compiler (codes P09xx).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}; {help}")]
pub struct PassError {
    /// Code that `beamc explain` knows.
    pub code: &'static str,
    /// The condition, with the two facts in conflict.
    pub message: String,
    /// What to do next.
    pub help: String,
    /// Where the spec says so, if one place does.
    pub span: Option<Span>,
}

impl PassError {
    /// Whether the model cannot lie on the mesh that was asked for, which is nobody's fault.
    pub fn cannot_lie(&self) -> bool {
        ["P0501", "P0502", "P0503", "P0504", "P0505", "P0506"].contains(&self.code)
    }

    /// Whether the compiler is at fault, not the spec.
    pub fn is_defect(&self) -> bool {
        ["P0402", "P0601", "P0901"].contains(&self.code)
    }
}

/// Codes of this crate: code, title, explanation.
pub const CODES: [(&str, &str, &str); 24] = [
    (
        "P0101",
        "an entry runs the layers twice",
        "The graphs of an entry are one that runs before the layers, one per layer class, and one that runs after. A second loop over the layers has no place in it: put both bodies into one block, or make two entries.",
    ),
    (
        "P0102",
        "the layer loop stands inside a block",
        "`for l in layers` may stand only in an entry, because the layers split an entry into first, classes and last.",
    ),
    (
        "P0103",
        "a layer has no arm in a match",
        "A `match` on the layer's kind must have an arm for the kind of every layer that reaches it.",
    ),
    (
        "P0104",
        "a layer's kind names no cache",
        "`kv[l.column]` uses the kind of the layer in that column as the name of a cache; there is no cache of that name in `[kv]`.",
    ),
    (
        "P0301",
        "a row axis that steps do not have",
        "A step brings token rows (axis T), wanted rows (axis R) and sequences (axis S). A value with another row axis has no size.",
    ),
    (
        "P0302",
        "the target has no bucket for an entry",
        "Every entry needs a bucket of the target that names it or names none.",
    ),
    (
        "P0303",
        "key and value rows differ in shape",
        "One cache layout describes keys and values of a kind: both have the same heads and the same elements per head.",
    ),
    (
        "P0304",
        "cached rows have another dtype than stored ones",
        "The target fixes the dtype of cached rows, the spec rounds what it stores. A narrower cache would be a rounding that the model does not state.",
    ),
    (
        "P0305",
        "the plan needs more memory than the target allows",
        "The largest bucket needs more working memory than `limits.arena_bytes` of the target.",
    ),
    (
        "P0306",
        "a drafter's rows lie apart",
        "A drafter reads rows of the model that it drafts for as they leave some of its layers. Where a mesh spreads token rows over ranks, no rank has all of them.",
    ),
    (
        "P0307",
        "a drafter does not fit its target's caches",
        "A drafter's cache kind stands beside the target's kinds, be it in pages of its own or in theirs, and needs a name that none of them has.",
    ),
    (
        "P0401",
        "the model cannot be interpreted",
        "Validation runs the model as the spec states it on seeded weights and inputs, and the interpreter refused an operation. A spec that is checked should never come to this; the message cites the rule of docs/ops.md.",
    ),
    (
        "P0402",
        "a pass changed the model",
        "Validation ran the model before and after every pass on seeded weights and inputs, and a pass left other bits than it declares. `beamc verify` prints the pass and the first value that differs.",
    ),
    (
        "P0403",
        "the spec cannot be made small",
        "Validation interprets a small model of the same text. A number in the text that stands for the length of a dim keeps that dim from being shortened; write the dim's name in its place.",
    ),
    (
        "P0501",
        "a mesh axis that the spec gives nothing to",
        "`[shard]` of a spec says which axes are spread over which axes of a mesh. Ranks along an axis that it does not name would all do the same work.",
    ),
    (
        "P0502",
        "a length does not come out even over the ranks",
        "An axis that is spread has equal parts on all ranks. Where there are more ranks than entries, several ranks share one if `[shard]` marks the axis `or-replicate`, and if the ranks are a multiple of the entries.",
    ),
    (
        "P0503",
        "two axes of a weight over one mesh axis",
        "A rank has one coordinate along a mesh axis, so only one axis of a weight can be cut by it. Spread the other over another mesh axis, or leave it whole.",
    ),
    (
        "P0504",
        "query heads lie apart from the heads that they read",
        "A rank's query heads read the cached heads of the same rank, so both must be spread over the same mesh axes. A single cached head may stay whole.",
    ),
    (
        "P0505",
        "rows lie on other ranks than a product needs them",
        "Where token rows are spread over a mesh axis, a weight that is spread over it too sees the rows of all its ranks, and what is left of them must be a sum that goes back to the rows' ranks.",
    ),
    (
        "P0506",
        "blocks of a matrix lie on two ranks",
        "nvfp4 keeps blocks of 16 elements under one scale. A rank's part of a row must be whole blocks, or a scale would belong to two ranks.",
    ),
    (
        "P0601",
        "a plan loses a value",
        "A walk over the launches of a plan, byte by byte, found a value that another had overwritten before it was read, that was read before it was made, or that does not end where the next program looks for it. The spec is not at fault; the message names the bucket, the launch and the byte.",
    ),
    (
        "P0701",
        "the target takes no weights in the checkpoint's format",
        "A spec's `[stored]` says in which format the checkpoint keeps its matrices, a target's `[formats]` which formats run there: `native`, inputs quantised too, or `weights`, codes widened. What is not named is refused.",
    ),
    (
        "P0703",
        "rows of a matrix are no whole blocks",
        "nvfp4 keeps blocks of 16 elements along the rows of a matrix, each with one scale; a row must be whole blocks.",
    ),
    (
        "P0901",
        "a defect of the compiler",
        "A pass left a graph that breaks a rule of its level, or met one. The spec is not at fault; the message names the rule and the place.",
    ),
];

/// Title and explanation of a code of this crate.
pub fn explain(code: &str) -> Option<(&'static str, &'static str)> {
    CODES.iter().find(|(c, _, _)| *c == code).map(|(_, title, text)| (*title, *text))
}

/// An error that no place of the spec is the cause of.
pub(crate) fn pass_error(code: &'static str, message: String, help: String) -> PassError {
    PassError { code, message, help, span: None }
}

/// A condition that verified input rules out.
pub(crate) fn defect(message: impl Into<String>) -> PassError {
    PassError {
        code: "P0901",
        message: message.into(),
        help: "this is a defect of the compiler, not of the spec: report it together with the spec".to_owned(),
        span: None,
    }
}

/// A level that breaks its rules after `stage`.
pub(crate) fn unverified(stage: &str, errors: &[VerifyError]) -> PassError {
    let shown: Vec<String> = errors.iter().take(3).map(VerifyError::to_string).collect();
    defect(format!("{} rules are broken after `{stage}`: {}", errors.len(), shown.join(" | ")))
}

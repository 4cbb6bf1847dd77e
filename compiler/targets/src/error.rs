//! What can be wrong with a target, each with a code, the two facts in conflict and a next step.

/// A target that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {place}: {message}; {help}")]
pub struct TargetError {
    /// Code that `beamc explain` knows.
    pub code: &'static str,
    /// File with line and column where known, otherwise the name asked for.
    pub place: String,
    /// The condition, with the two facts in conflict.
    pub message: String,
    /// What to do next.
    pub help: String,
}

/// Codes of this crate: code, title, explanation.
pub const CODES: [(&str, &str, &str); 7] = [
    (
        "T0101",
        "unknown target",
        "A target is named by a file of `model-spec/targets` or by a path that ends in `.toml`. `beamc targets` lists the built-in ones.",
    ),
    ("T0102", "target file cannot be read", "The path that names the target does not lead to a readable file."),
    (
        "T0103",
        "target file is not TOML of the right form",
        "The file breaks TOML's grammar, lacks a required key, or has a value of another kind than the key wants.",
    ),
    (
        "T0104",
        "unknown key in a target file",
        "A key that nobody reads is most often a misspelt one, so it is refused instead of ignored.",
    ),
    (
        "T0105",
        "value out of range in a target file",
        "A number or word is of the right kind but makes no sense: a page without tokens, a bucket with more sequences than rows, two buckets of one shape.",
    ),
    (
        "T0106",
        "warning: a target names what the spec does not have",
        "A target serves many specs, so an option that this one lacks is passed over. Told are an option, alternative or entry that is all but one of the spec's, alternatives of which the spec offers none, and a bucket for an entry that the spec does not have.",
    ),
    (
        "T0107",
        "a target extends what cannot be extended",
        "`extends` names a built-in target, or the path of a target file, from the file that names it. Chains of them end.",
    ),
];

/// Title and explanation of a code of this crate.
pub fn explain(code: &str) -> Option<(&'static str, &'static str)> {
    CODES.iter().find(|(c, _, _)| *c == code).map(|(_, title, text)| (*title, *text))
}

/// The candidate nearest to a word, if one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (strsim::damerau_levenshtein(word, c), c))
        .filter(|(distance, c)| *distance <= c.len().max(word.len()) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, c)| c)
}

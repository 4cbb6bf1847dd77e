//! Names of what a quantised matrix consists of, and which matrix such a name belongs to.

/// A weight that the pass makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Codes of the matrix.
    Codes,
    /// One number for each row.
    Scale,
    /// The number of its inputs.
    Input,
    /// The number of cached keys.
    CachedKey,
    /// The number of cached values.
    CachedValue,
}

/// Ends of names.
const ENDS: [(&str, Part); 5] = [
    (".codes", Part::Codes),
    (".scale", Part::Scale),
    (".input", Part::Input),
    (".k_scale", Part::CachedKey),
    (".v_scale", Part::CachedValue),
];

impl Part {
    /// The name of a part of something.
    pub fn of(self, whole: &str) -> String {
        let end = ENDS.iter().find(|(_, part)| *part == self).map_or("", |(end, _)| end);
        format!("{whole}{end}")
    }
}

/// The part that a name says, and what it is of: a matrix, or several joined by dots that share the number of their inputs.
pub fn of_name(name: &str) -> Option<(Part, &str)> {
    ENDS.iter().find_map(|(end, part)| Some((*part, name.strip_suffix(end)?)))
}

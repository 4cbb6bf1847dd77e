//! Indices as sums of symbols, so that the generator can see which accesses stand side by side.

use std::collections::BTreeMap;

/// The place of an element inside an aligned group of 8.
pub const LANE: &str = "k";

/// `constant + Σ factor · symbol`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Index {
    terms: BTreeMap<String, i64>,
    constant: i64,
}

impl Index {
    /// A number.
    pub fn number(constant: i64) -> Index {
        Index { terms: BTreeMap::new(), constant }
    }

    /// A symbol: the name of a variable of the generated text.
    pub fn symbol(name: &str) -> Index {
        Index { terms: BTreeMap::from([(name.to_owned(), 1)]), constant: 0 }
    }

    /// The sum.
    pub fn plus(mut self, other: &Index) -> Index {
        for (symbol, factor) in &other.terms {
            *self.terms.entry(symbol.clone()).or_default() += factor;
        }
        self.terms.retain(|_, factor| *factor != 0);
        self.constant += other.constant;
        self
    }

    /// The product with a number.
    pub fn times(mut self, factor: i64) -> Index {
        self.terms.values_mut().for_each(|f| *f *= factor);
        self.terms.retain(|_, f| *f != 0);
        self.constant *= factor;
        self
    }

    /// Whether elements of a group of 8 stand side by side from a multiple of 8 on. `aligned` says which symbols are
    /// multiples of 8; symbols that `varies` names differ inside the group.
    pub fn is_group(&self, aligned: impl Fn(&str) -> bool, varies: impl Fn(&str) -> bool) -> bool {
        self.terms.get(LANE) == Some(&1)
            && self.constant % 8 == 0
            && self
                .terms
                .iter()
                .filter(|(s, _)| *s != LANE)
                .all(|(s, factor)| !varies(s) && (factor % 8 == 0 || aligned(s)))
    }

    /// The index of the group's first element.
    pub fn without_lane(&self) -> Index {
        let mut index = self.clone();
        index.terms.remove(LANE);
        index
    }

    /// Symbols in it.
    pub fn symbols(&self) -> impl Iterator<Item = &str> {
        self.terms.keys().map(String::as_str)
    }

    /// How often a symbol is in it.
    pub fn factor(&self, symbol: &str) -> i64 {
        self.terms.get(symbol).copied().unwrap_or_default()
    }

    /// The number in it.
    pub fn constant(&self) -> i64 {
        self.constant
    }

    /// The text; `wide` makes it 64 bits wide.
    pub fn text(&self, wide: bool) -> String {
        let mut parts: Vec<String> = Vec::new();
        for (symbol, factor) in &self.terms {
            parts.push(match (*factor, wide) {
                (1, false) => symbol.clone(),
                (1, true) => format!("(u64){symbol}"),
                (f, false) => format!("{symbol} * {f}"),
                (f, true) => format!("(u64){symbol} * {f}"),
            });
        }
        if self.constant != 0 || parts.is_empty() {
            parts.push(self.constant.to_string());
        }
        parts.join(" + ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_seen_through_sums() {
        let e = Index::symbol("e").plus(&Index::symbol(LANE));
        let aligned = |s: &str| s == "e";
        let index = Index::symbol("row").times(64).plus(&e).plus(&Index::number(16));
        assert!(index.is_group(aligned, |_| false));
        assert!(!index.clone().plus(&Index::number(1)).is_group(aligned, |_| false));
        assert!(!Index::symbol("row").times(63).plus(&e).is_group(aligned, |_| false));
        assert!(!index.is_group(aligned, |s| s == "row"));
        assert_eq!(index.without_lane().text(false), "e + row * 64 + 16");
        assert_eq!(index.times(0).text(true), "0");
    }
}

//! The map from names in files to graph values.

use crate::failure::Failure;
use indexmap::IndexMap;

/// A map with `{l}` replaced by layers.
#[derive(Debug, Default, PartialEq)]
pub struct Names {
    /// Name in files → graph value.
    pairs: IndexMap<String, String>,
    /// Graph values that exist.
    known: Vec<String>,
}

/// What stands for a layer's index.
const LAYER: &str = "{l}";

impl Names {
    /// Expands a map; `known` are the full names of all graph values.
    pub fn new(map: IndexMap<String, Vec<String>>, known: &[String]) -> Result<Names, Failure> {
        let mut names = Names { pairs: IndexMap::new(), known: known.to_vec() };
        let layers = layers(known);
        for (name, values) in map {
            let per_layer = name.contains(LAYER);
            if let Some(odd) = values.iter().find(|v| v.contains(LAYER) != per_layer) {
                return Err(Failure::input(format!(
                    "R0404: the map gives `{name}` the value `{odd}`, and {LAYER} stands on one side only; write it on both or on none"
                )));
            }
            let before = names.pairs.len();
            let indices = if per_layer { layers.clone() } else { vec![0] };
            for layer in indices.iter().map(usize::to_string) {
                let found = values.iter().map(|v| v.replace(LAYER, &layer)).find(|v| known.contains(v));
                if let Some(value) = found {
                    names.pairs.insert(name.replace(LAYER, &layer), value);
                }
            }
            if names.pairs.len() == before {
                let wanted = values.join("`, `");
                let example = wanted.replace(LAYER, "0");
                return Err(Failure::input(format!(
                    "R0405: the map gives `{name}` the value `{wanted}`, which no graph has; the nearest is `{}`",
                    names.nearest(&example)
                )));
            }
        }
        Ok(names)
    }

    /// Names in files with their graph values.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Graph values to trace, each once.
    pub fn traced(&self) -> Vec<String> {
        let mut values: Vec<String> = Vec::new();
        for value in self.pairs.values() {
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
        values
    }

    /// The graph value behind a name in a file: a name of the map, or a graph value's own.
    pub fn graph_name(&self, name: &str) -> Option<&str> {
        let own = || self.known.iter().find(|k| *k == name);
        self.pairs.get(name).or_else(own).map(String::as_str)
    }

    /// The most similar name that exists.
    pub fn nearest(&self, name: &str) -> &str {
        let all = self.pairs.keys().chain(&self.known);
        all.max_by(|a, b| strsim::jaro(a, name).total_cmp(&strsim::jaro(b, name))).map_or("", String::as_str)
    }
}

/// Whether a tensor of this name is written without being asked for, or is none in a safetensors file.
pub fn is_reserved(name: &str) -> bool {
    let number = name.strip_prefix("logits.").or_else(|| name.strip_prefix("nll."));
    name == "__metadata__" || number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Layers that occur in full names, ascending.
fn layers(known: &[String]) -> Vec<usize> {
    let mut layers: Vec<usize> =
        known.iter().filter_map(|k| k.strip_prefix("layers.")?.split('.').next()?.parse().ok()).collect();
    layers.sort_unstable();
    layers.dedup();
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(map: &[(&str, &[&str])]) -> Result<Names, Failure> {
        let known = ["first.x", "layers.0.q", "layers.1.q", "layers.1.ids", "layers.10.k", "last.z"].map(str::to_owned);
        let owned = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect();
        Names::new(map.iter().map(|(name, values)| ((*name).to_owned(), owned(values))).collect(), &known)
    }

    #[test]
    fn layers_that_have_the_value_are_meant() {
        let found = names(&[("embed", &["first.x"]), ("L{l}.q", &["layers.{l}.q", "layers.{l}.k"])]).unwrap();
        let pairs: Vec<_> = found.pairs().collect();
        let expected = [("embed", "first.x"), ("L0.q", "layers.0.q"), ("L1.q", "layers.1.q"), ("L10.q", "layers.10.k")];
        assert_eq!(pairs, expected);
        assert_eq!(found.graph_name("L1.q"), Some("layers.1.q"));
        assert_eq!(found.graph_name("last.z"), Some("last.z"));
        assert_eq!(found.graph_name("L2.q"), None);
    }

    #[test]
    fn names_of_the_file_itself_are_reserved() {
        for name in ["__metadata__", "logits.0", "nll.12"] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["logits", "logits.", "logits.q", "nll.0.q", "x.0"] {
            assert!(!is_reserved(name), "{name}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        let told = |map: &[(&str, &[&str])]| names(map).unwrap_err().text;
        assert!(told(&[("q", &["layers.{l}.q"])]).starts_with("R0404"));
        let text = told(&[("i{l}", &["layers.{l}.isd"])]);
        assert!(text.starts_with("R0405") && text.contains("`layers.1.ids`"), "{text}");
    }
}

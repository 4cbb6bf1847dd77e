//! Meshes: the named axes along which the ranks of a machine stand.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Ranks on named axes, the first outermost: in `dp=2,tp=4` rank 5 has coordinate 1 along `dp` and 1 along `tp`.
/// An axis of length 1 is no axis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "IndexMap<String, u64>", into = "IndexMap<String, u64>")]
pub struct Mesh {
    axes: Vec<(String, u64)>,
}

impl TryFrom<IndexMap<String, u64>> for Mesh {
    type Error = MeshError;

    fn try_from(axes: IndexMap<String, u64>) -> Result<Mesh, MeshError> {
        Mesh::new(axes)
    }
}

impl From<Mesh> for IndexMap<String, u64> {
    fn from(mesh: Mesh) -> Self {
        mesh.axes.into_iter().collect()
    }
}

/// What is wrong with the text of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; write for example tp=4,ep=2")]
pub struct MeshError(pub String);

impl Mesh {
    /// Most ranks of a mesh.
    pub const MOST_RANKS: u64 = 4096;

    /// One device.
    pub const fn single() -> Mesh {
        Mesh { axes: Vec::new() }
    }

    /// A mesh of these axes, the first outermost.
    pub fn new(axes: impl IntoIterator<Item = (String, u64)>) -> Result<Mesh, MeshError> {
        let mut mesh = Mesh::default();
        let mut seen = std::collections::HashSet::new();
        let mut ranks = 1u64;
        for (name, n) in axes {
            if !seen.insert(name.clone()) {
                return Err(MeshError(format!("mesh axis `{name}` stands twice")));
            }
            ranks = ranks.saturating_mul(n);
            match n {
                0 => return Err(MeshError(format!("mesh axis `{name}` has length 0"))),
                1 => {}
                n => mesh.axes.push((name, n)),
            }
        }
        if ranks > Mesh::MOST_RANKS {
            return Err(MeshError(format!("the mesh has more than {} ranks", Mesh::MOST_RANKS)));
        }
        Ok(mesh)
    }

    /// Reads `tp=4,ep=2`; nothing, or axes of length 1 alone, is one device.
    pub fn parse(text: &str) -> Result<Mesh, MeshError> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let axis = |part: &str| {
            let wrong = || MeshError(format!("`{part}` is no mesh axis"));
            let (name, n) = part.split_once('=').ok_or_else(wrong)?;
            let name = name.trim();
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if !is_name { Err(wrong()) } else { Ok((name.to_owned(), n.trim().parse().map_err(|_| wrong())?)) }
        };
        Mesh::new(parts.map(axis).collect::<Result<Vec<_>, _>>()?)
    }

    /// Axes with their lengths, the first outermost.
    pub fn axes(&self) -> impl Iterator<Item = (&str, u64)> {
        self.axes.iter().map(|(name, n)| (name.as_str(), *n))
    }

    /// Whether there is one rank only.
    pub fn is_single(&self) -> bool {
        self.axes.is_empty()
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u64 {
        self.axes.iter().map(|(_, n)| n).product()
    }

    /// Length of an axis; 1 for one that the mesh does not have.
    pub fn length(&self, axis: &str) -> u64 {
        self.axes.iter().find(|(name, _)| name == axis).map_or(1, |(_, n)| *n)
    }

    /// Of these mesh axes those that the mesh has, in their order.
    pub fn present<'a>(&self, axes: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        axes.into_iter().filter(|a| self.length(a) > 1).cloned().collect()
    }

    /// Coordinate of a rank along an axis; 0 along one that the mesh does not have.
    pub fn coordinate(&self, rank: u64, axis: &str) -> u64 {
        let mut rest = rank;
        for (name, n) in self.axes.iter().rev() {
            if name == axis {
                return rest % n;
            }
            rest /= n;
        }
        0
    }

    /// Number of ranks in a group that spans these axes.
    pub fn parts(&self, over: &[String]) -> u64 {
        over.iter().fold(1, |n, axis| n.saturating_mul(self.length(axis)))
    }

    /// A rank's place in its group over these axes, the first of them outermost: which part of an axis that is spread over
    /// them it has.
    pub fn place(&self, rank: u64, over: &[String]) -> u64 {
        over.iter().fold(0, |place, axis| place * self.length(axis) + self.coordinate(rank, axis))
    }

    /// The ranks of a rank's group over these axes, by ascending place.
    pub fn group(&self, rank: u64, over: &[String]) -> Vec<u64> {
        let same = |other: &u64| {
            let mut outside = self.axes.iter().map(|(axis, _)| axis).filter(|axis| !over.contains(axis));
            outside.all(|axis| self.coordinate(*other, axis) == self.coordinate(rank, axis))
        };
        let mut group: Vec<u64> = (0..self.ranks()).filter(same).collect();
        group.sort_by_key(|rank| self.place(*rank, over));
        group
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            return f.write_str("one device");
        }
        let words: Vec<String> = self.axes.iter().map(|(name, n)| format!("{name}={n}")).collect();
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(axes: &[&str]) -> Vec<String> {
        axes.iter().map(|a| (*a).to_owned()).collect()
    }

    #[test]
    fn ranks_stand_outermost_first() {
        let mesh = Mesh::parse("dp=2, ep=1,tp=4").unwrap();
        assert_eq!((mesh.to_string().as_str(), mesh.ranks(), mesh.length("ep")), ("dp=2,tp=4", 8, 1));
        assert_eq!((mesh.coordinate(5, "dp"), mesh.coordinate(5, "tp"), mesh.coordinate(5, "ep")), (1, 1, 0));
        assert_eq!(mesh.group(5, &over(&["tp"])), [4, 5, 6, 7]);
        assert_eq!(mesh.group(5, &over(&["dp"])), [1, 5]);
        assert_eq!(mesh.group(5, &over(&["tp", "dp"])), [0, 4, 1, 5, 2, 6, 3, 7]);
        assert_eq!((mesh.place(5, &over(&["tp", "dp"])), mesh.parts(&over(&["tp", "dp"]))), (3, 8));
    }

    #[test]
    fn one_device_has_many_names() {
        for text in ["", "tp=1", "tp=1,ep=1", " , "] {
            let mesh = Mesh::parse(text).unwrap();
            assert_eq!((mesh.ranks(), mesh.group(0, &[]), mesh.is_single()), (1, vec![0], true));
        }
        for text in ["tp", "tp=x", "=4", "t p=4", "tp=0", "tp=2,tp=2", "tp=65,ep=64", "tp=-1"] {
            assert!(Mesh::parse(text).is_err(), "{text}");
        }
    }
}

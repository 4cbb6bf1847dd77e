//! What lies where on a mesh.

use crate::{Axis, Extent, Facts, KvKind, Mesh, Scope, Weight};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// Axes of a value and the mesh axes that each is spread over; an axis that is not named is whole on every rank.
pub type Placement = IndexMap<String, Vec<String>>;

/// A weight that is not whole on every rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedWeight {
    /// Scope of the weight.
    pub scope: Scope,
    /// Name of the weight.
    pub name: String,
    /// Where its axes lie.
    pub axes: Placement,
}

/// Placement of a whole model on a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sharding {
    /// The ranks.
    pub mesh: Mesh,
    /// Weights that are spread.
    pub weights: Vec<PlacedWeight>,
    /// Axes of cached rows, per cache kind that is spread.
    pub kv: IndexMap<String, Placement>,
    /// Row axes: whose ranks' steps bring which rows. Results of entries are whole on every rank, rows apart.
    pub rows: Placement,
}

impl Sharding {
    /// Length of a rank's part of an axis: equal parts, or single elements that several neighbouring ranks share where
    /// there are more ranks than elements; `None` if neither comes out even.
    pub fn local_length(&self, length: u64, over: &[String]) -> Option<u64> {
        let parts = self.mesh.parts(over);
        if parts > 0 && length.is_multiple_of(parts) {
            Some(length / parts)
        } else if length > 0 && parts.is_multiple_of(length) {
            Some(1)
        } else {
            None
        }
    }

    /// First element and length of a rank's part of an axis.
    pub fn part(&self, length: u64, over: &[String], rank: u64) -> Option<(u64, u64)> {
        let local = self.local_length(length, over)?;
        let parts = u128::from(self.mesh.parts(over).max(1));
        let start = u128::from(self.mesh.place(rank, over)) * u128::from(length) / parts;
        Some((u64::try_from(start).ok()?, local))
    }

    /// Where a weight's axes lie; `None` if it is whole on every rank.
    pub fn weight(&self, scope: Scope, name: &str) -> Option<&Placement> {
        self.weights.iter().find(|w| w.scope == scope && w.name == name).map(|w| &w.axes)
    }

    /// The axis as one rank has it.
    pub fn local_axis(&self, axis: &Axis, placement: &Placement) -> Axis {
        let over = placement.get(&axis.name);
        let local = match (axis.extent, over) {
            (Extent::Fixed(n), Some(over)) => self.local_length(n, over),
            _ => None,
        };
        local.map_or_else(|| axis.clone(), |n| Axis::fixed(axis.name.clone(), n))
    }

    /// The weight as one rank has it.
    pub fn local_weight(&self, weight: &Weight) -> Weight {
        let Some(placement) = self.weight(weight.scope, &weight.name) else { return weight.clone() };
        let group = |group: &Vec<Axis>| group.iter().map(|a| self.local_axis(a, placement)).collect();
        Weight { axes: weight.axes.iter().map(group).collect(), ..weight.clone() }
    }

    /// A cache kind as one rank has it.
    pub fn local_kv(&self, kind: &KvKind) -> KvKind {
        let Some(placement) = self.kv.get(&kind.name) else { return kind.clone() };
        let axes = |axes: &[Axis]| axes.iter().map(|a| self.local_axis(a, placement)).collect();
        KvKind { k: axes(&kind.k), v: axes(&kind.v), ..kind.clone() }
    }

    /// The facts as one rank sees them: its parts of weights and caches. Dims stay those of the whole model.
    pub fn local_facts(&self, facts: &Facts) -> Facts {
        Facts {
            weights: facts.weights.iter().map(|w| self.local_weight(w)).collect(),
            kv: facts.kv.iter().map(|k| self.local_kv(k)).collect(),
            ..facts.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_or_shared() {
        let sharding = Sharding { mesh: Mesh::parse("tp=4").unwrap(), ..Sharding::default() };
        let over = ["tp".to_owned()];
        let parts = |n| (0..4).map(|rank| sharding.part(n, &over, rank)).collect::<Option<Vec<_>>>();
        assert_eq!(parts(8), Some(vec![(0, 2), (2, 2), (4, 2), (6, 2)]));
        assert_eq!(parts(2), Some(vec![(0, 1), (0, 1), (1, 1), (1, 1)]));
        assert_eq!(parts(1), Some(vec![(0, 1); 4]));
        assert_eq!(parts(6), None);
        assert_eq!(sharding.part(6, &[], 3), Some((0, 6)));
    }
}

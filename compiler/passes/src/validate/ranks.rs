//! One step shared out over ranks, and what ranks leave put together again.

use super::trial::CachedRows;
use interp::{Env, Fault, InterpError, Outputs};
use ir::{Axis, Extent, Facts, Sharding};
use std::collections::BTreeMap;

/// What each rank is given of a step.
pub(super) struct Split {
    /// Inputs per rank.
    pub(super) envs: Vec<Env>,
    /// Sequence of every token row per rank.
    pub(super) sequences: Vec<Vec<usize>>,
}

impl Split {
    /// Shares out the rows of a step; without row placements every rank is given all of them.
    pub(super) fn of(rows: &[(usize, i32)], env: &Env, sharding: &Sharding) -> Result<Split, InterpError> {
        let ranks = sharding.mesh.ranks() as usize;
        let all: Vec<usize> = rows.iter().map(|(sequence, _)| *sequence).collect();
        Ok(Split { envs: vec![env.clone(); ranks], sequences: vec![all; ranks] })
    }

    /// The results of the step; ranks that have the same must agree.
    pub(super) fn whole(&self, ranks: &[Outputs]) -> Result<Outputs, InterpError> {
        let Some(first) = ranks.first() else { return Err(disagree("a mesh without ranks".to_owned())) };
        for (rank, other) in ranks.iter().enumerate() {
            for (name, value) in first {
                if !other.get(name).is_some_and(|v| v.same(value)) {
                    return Err(disagree(format!("rank {rank} leaves another result `{name}` than rank 0")));
                }
            }
        }
        Ok(first.clone())
    }
}

fn disagree(what: String) -> InterpError {
    Fault::Graph(what).into()
}

/// Cached rows by kind, layer and sequence.
pub(super) type Contents = BTreeMap<(String, usize, usize), CachedRows>;

/// The cache as one device would hold it.
pub(super) fn whole_cache(ranks: &[Contents], facts: &Facts, sharding: &Sharding) -> Result<Contents, InterpError> {
    let mut whole = Contents::new();
    for kind in &facts.kv {
        let keys = ranks.iter().flat_map(|c| c.keys()).filter(|(name, ..)| *name == kind.name);
        let keys: std::collections::BTreeSet<_> = keys.cloned().collect();
        for key in keys {
            let mut rows: BTreeMap<i32, (Vec<Option<f32>>, Vec<Option<f32>>)> = BTreeMap::new();
            for (rank, contents) in ranks.iter().enumerate() {
                for (position, k, v) in contents.get(&key).into_iter().flatten() {
                    let row = rows.entry(*position).or_insert_with(|| (empty(&kind.k), empty(&kind.v)));
                    let placed = place(&kind.name, &kind.k, sharding, rank, k, &mut row.0)
                        && place(&kind.name, &kind.v, sharding, rank, v, &mut row.1);
                    if !placed {
                        let (kind, layer, sequence) = &key;
                        return Err(disagree(format!(
                            "rank {rank} keeps other keys or values as `{kind}` of layer {layer} for position {position} of \
                             sequence {sequence} than the ranks before it"
                        )));
                    }
                }
            }
            let list = rows.into_iter().map(|(position, (k, v))| {
                let whole = |numbers: Vec<Option<f32>>| numbers.into_iter().collect::<Option<Vec<f32>>>();
                let missing = || disagree(format!("no rank keeps all of position {position} of `{}`", key.0));
                Ok((position, whole(k).ok_or_else(missing)?, whole(v).ok_or_else(missing)?))
            });
            let list = list.collect::<Result<CachedRows, InterpError>>()?;
            whole.insert(key, list);
        }
    }
    Ok(whole)
}

fn length(axis: &Axis) -> usize {
    match axis.extent {
        Extent::Fixed(n) => n as usize,
        Extent::Rows => 1,
    }
}

fn empty(axes: &[Axis]) -> Vec<Option<f32>> {
    vec![None; axes.iter().map(length).product()]
}

/// Writes a rank's part of a row into the whole one; false where something else stands there already.
fn place(
    kind: &str,
    axes: &[Axis],
    sharding: &Sharding,
    rank: usize,
    part: &[f32],
    whole: &mut [Option<f32>],
) -> bool {
    let over = |axis: &Axis| sharding.kv.get(kind).and_then(|p| p.get(&axis.name));
    let mut offsets: Vec<usize> = vec![0];
    for axis in axes {
        let n = length(axis);
        let (start, len) = match over(axis) {
            Some(over) => match sharding.part(n as u64, over, rank as u64) {
                Some((start, len)) => (start as usize, len as usize),
                None => return false,
            },
            None => (0, n),
        };
        offsets = offsets.iter().flat_map(|o| (start..start + len).map(move |i| o * n + i)).collect();
    }
    offsets.len() == part.len()
        && offsets.iter().zip(part).all(|(at, x)| match whole.get_mut(*at) {
            Some(slot @ None) => {
                *slot = Some(*x);
                true
            }
            Some(Some(y)) => numerics::same_bits(*x, *y),
            None => false,
        })
}

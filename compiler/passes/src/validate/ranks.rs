//! One step shared out over ranks, and what ranks leave put together again.

use super::trial::CachedRows;
use interp::{Data, Env, Fault, InterpError, Outputs, Tensor};
use ir::{Axis, Extent, Facts, Sharding};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What each rank is given of a step.
pub(super) struct Split {
    /// Inputs per rank.
    pub(super) envs: Vec<Env>,
    /// Sequence of every token row per rank.
    pub(super) sequences: Vec<Vec<usize>>,
    /// Token rows and wanted rows per rank, by their numbers in the whole step.
    wanted: Vec<[Vec<usize>; 2]>,
    /// Place of every rank in the row placement.
    places: Vec<usize>,
}

impl Split {
    /// Shares out the rows of a step: whole sequences, one after the other over the places of the row placement. Without one
    /// every rank is given all rows. `picks` says whether an input holds numbers of token rows.
    pub(super) fn of(
        rows: &[(usize, i32)],
        env: &Env,
        sharding: &Sharding,
        picks: &dyn Fn(&str) -> bool,
    ) -> Result<Split, InterpError> {
        let ranks = sharding.mesh.ranks();
        let over = sharding.rows.get(ir::TOKEN_ROWS).map_or(&[][..], Vec::as_slice);
        let places = sharding.mesh.parts(over).max(1) as usize;
        let picked = env.iter().find(|(name, _)| picks(name)).and_then(|(_, t)| t.ints());
        let picked: Vec<usize> = picked.into_iter().flatten().map(|i| *i as usize).collect();
        let mut split = Split { envs: Vec::new(), sequences: Vec::new(), wanted: Vec::new(), places: Vec::new() };
        for rank in 0..ranks {
            let place = sharding.mesh.place(rank, over) as usize;
            let mine = |row: &usize| rows.get(*row).is_some_and(|(sequence, _)| sequence % places == place);
            let tokens: Vec<usize> = (0..rows.len()).filter(mine).collect();
            let wanted: Vec<usize> = (0..picked.len()).filter(|i| mine(&picked[*i])).collect();
            let mut own = Env::new();
            for (name, tensor) in env.iter() {
                let mut part = (**tensor).clone();
                for (axis, keep) in [(ir::TOKEN_ROWS, &tokens), (ir::WANTED_ROWS, &wanted)] {
                    if part.axis(axis) == Some(0) {
                        part = rows_of(&part, keep)?;
                    }
                }
                if picks(name) {
                    let local = |id: &i32| tokens.iter().position(|t| *t == *id as usize).map_or(-1, |at| at as i32);
                    let ids = part.ints().unwrap_or_default().iter().map(local).collect();
                    part = Tensor::new(part.axes().to_vec(), part.dtype(), Data::I32(ids))?;
                }
                own.insert(name, part);
            }
            split.envs.push(own);
            split.sequences.push(tokens.iter().map(|t| rows[*t].0).collect());
            split.wanted.push([tokens, wanted]);
            split.places.push(place);
        }
        Ok(split)
    }

    /// The results of the step, rows in the order of the whole step; ranks that have the same must agree.
    pub(super) fn whole(&self, ranks: &[Outputs]) -> Result<Outputs, InterpError> {
        let Some(first) = ranks.first() else { return Err(disagree("a mesh without ranks".to_owned())) };
        let spread = self.places.iter().any(|place| *place > 0);
        let mut whole = Outputs::new();
        for (name, value) in first {
            let axis = value.axes().first().map(|a| a.0.as_str());
            let kind = [ir::TOKEN_ROWS, ir::WANTED_ROWS].iter().position(|rows| axis == Some(*rows)).filter(|_| spread);
            let mut parts: Vec<(usize, &Tensor)> = Vec::new();
            for (rank, other) in ranks.iter().enumerate() {
                let found =
                    other.get(name).ok_or_else(|| disagree(format!("rank {rank} leaves no result `{name}`")))?;
                // Ranks at one place have the same rows, and without rows all have the same.
                let same = parts.iter().find(|(r, _)| kind.is_none() || self.places[*r] == self.places[rank]);
                match same {
                    Some((r, known)) if !known.same(found) => {
                        return Err(disagree(format!("rank {rank} leaves another result `{name}` than rank {r}")));
                    }
                    Some(_) => {}
                    None => parts.push((rank, found)),
                }
            }
            let joined = match kind {
                None => value.clone(),
                Some(kind) => Arc::new(self.in_order(kind, &parts)?),
            };
            whole.insert(name.clone(), joined);
        }
        Ok(whole)
    }

    /// Rows of several ranks in the order of the whole step.
    fn in_order(&self, kind: usize, parts: &[(usize, &Tensor)]) -> Result<Tensor, InterpError> {
        let Some((_, first)) = parts.first() else { return Err(disagree("a mesh without ranks".to_owned())) };
        let width: usize = first.axes().iter().skip(1).map(|a| a.1).product();
        let count: usize = parts.iter().map(|(rank, _)| self.wanted[*rank][kind].len()).sum();
        let mut numbers = vec![0f32; count * width];
        for (rank, part) in parts {
            let found = part.floats().ok_or_else(|| disagree("a result is no float".to_owned()))?;
            for (i, row) in self.wanted[*rank][kind].iter().enumerate() {
                if let (Some(to), Some(from)) =
                    (numbers.get_mut(row * width..(row + 1) * width), found.get(i * width..(i + 1) * width))
                {
                    to.copy_from_slice(from);
                }
            }
        }
        let mut axes = first.axes().to_vec();
        axes[0].1 = count;
        Tensor::new(axes, first.dtype(), Data::F32(numbers))
    }
}

/// Some rows of a tensor, in this order.
fn rows_of(x: &Tensor, keep: &[usize]) -> Result<Tensor, InterpError> {
    let width: usize = x.axes().iter().skip(1).map(|a| a.1).product();
    let mut axes = x.axes().to_vec();
    axes[0].1 = keep.len();
    let elements = || keep.iter().flat_map(|row| row * width..(row + 1) * width);
    let data = match x.data() {
        Data::F32(v) => Data::F32(elements().map(|i| v[i]).collect()),
        Data::I32(v) => Data::I32(elements().map(|i| v[i]).collect()),
        Data::Bool(v) => Data::Bool(elements().map(|i| v[i]).collect()),
    };
    Tensor::new(axes, x.dtype(), data)
}

fn disagree(what: String) -> InterpError {
    Fault::Graph(what).into()
}

/// Cached rows by kind, layer and sequence.
pub(super) type Contents = BTreeMap<(String, usize, usize), CachedRows>;

/// A key or value of which ranks fill in their parts.
type Unfilled = Vec<Option<f32>>;

/// The cache as one device would hold it.
pub(super) fn whole_cache(ranks: &[Contents], facts: &Facts, sharding: &Sharding) -> Result<Contents, InterpError> {
    let mut whole = Contents::new();
    for kind in &facts.kv {
        let keys = ranks.iter().flat_map(|c| c.keys()).filter(|(name, ..)| *name == kind.name);
        let keys: std::collections::BTreeSet<_> = keys.cloned().collect();
        for key in keys {
            let mut rows: BTreeMap<i32, (Unfilled, Unfilled)> = BTreeMap::new();
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
fn place(kind: &str, axes: &[Axis], sharding: &Sharding, rank: usize, part: &[f32], whole: &mut [Option<f32>]) -> bool {
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

//! The cache as the interpreter sees it, and a plain one for tests.

use crate::error::{Fault, InterpError};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::HashMap;

/// One cached position.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedRow<'a> {
    /// Position in the sequence.
    pub position: i32,
    /// Key, all heads.
    pub k: Cow<'a, [f32]>,
    /// Value, all heads.
    pub v: Cow<'a, [f32]>,
}

/// Keys and values by kind, layer, sequence and position. Graphs name rows of the step; which sequence a row belongs
/// to is the cache's knowledge.
pub trait Cache {
    /// Keeps a row's key and value at `position` of the row's sequence, replacing what stood there. A cache whose storage
    /// format is narrower rounds.
    fn store(
        &mut self,
        kind: &str,
        layer: usize,
        row: usize,
        position: i32,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), InterpError>;

    /// The sequence of a row of this step; rows with one number are of one sequence.
    fn sequence(&self, kind: &str, row: usize) -> Result<usize, InterpError>;

    /// What is kept of the row's sequence at positions `first ..= last`, ascending.
    fn rows(
        &self,
        kind: &str,
        layer: usize,
        row: usize,
        first: i32,
        last: i32,
    ) -> Result<Vec<CachedRow<'_>>, InterpError>;
}

/// One layer's keys and values of one sequence, by position.
type Kept = BTreeMap<i32, (Vec<f32>, Vec<f32>)>;

/// Everything ever stored, in memory, by kind, layer and sequence.
#[derive(Clone, Debug, Default)]
pub struct MemoryCache {
    sequence_of_row: Vec<usize>,
    kept: HashMap<(String, usize, usize), Kept>,
}

impl MemoryCache {
    /// An empty cache, and the sequence of every row of the first step.
    pub fn new(sequence_of_row: Vec<usize>) -> Self {
        MemoryCache { sequence_of_row, kept: HashMap::new() }
    }

    /// Begins a step: the sequence of every row.
    pub fn begin_step(&mut self, sequence_of_row: Vec<usize>) {
        self.sequence_of_row = sequence_of_row;
    }

    /// Forgets a sequence.
    pub fn drop_sequence(&mut self, sequence: usize) {
        self.kept.retain(|(_, _, s), _| *s != sequence);
    }
}

impl Cache for MemoryCache {
    fn store(
        &mut self,
        kind: &str,
        layer: usize,
        row: usize,
        position: i32,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), InterpError> {
        let sequence = self.sequence(kind, row)?;
        self.kept.entry((kind.to_owned(), layer, sequence)).or_default().insert(position, (k.to_vec(), v.to_vec()));
        Ok(())
    }

    fn sequence(&self, kind: &str, row: usize) -> Result<usize, InterpError> {
        self.sequence_of_row.get(row).copied().ok_or_else(|| {
            let what = format!("row {row}: the step has {} rows", self.sequence_of_row.len());
            Fault::Cache { kind: kind.to_owned(), what }.into()
        })
    }

    fn rows(
        &self,
        kind: &str,
        layer: usize,
        row: usize,
        first: i32,
        last: i32,
    ) -> Result<Vec<CachedRow<'_>>, InterpError> {
        let sequence = self.sequence(kind, row)?;
        if first > last {
            return Ok(Vec::new());
        }
        let kept = self.kept.get(&(kind.to_owned(), layer, sequence));
        Ok(kept
            .into_iter()
            .flat_map(|kept| kept.range(first..=last))
            .map(|(position, (k, v))| CachedRow { position: *position, k: Cow::Borrowed(k), v: Cow::Borrowed(v) })
            .collect())
    }
}

/// The cache of a graph that has no attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCache;

impl Cache for NoCache {
    fn store(&mut self, kind: &str, _: usize, row: usize, _: i32, _: &[f32], _: &[f32]) -> Result<(), InterpError> {
        Err(Fault::Cache { kind: kind.to_owned(), what: format!("row {row}: there is no cache") }.into())
    }

    fn sequence(&self, kind: &str, row: usize) -> Result<usize, InterpError> {
        Err(Fault::Cache { kind: kind.to_owned(), what: format!("row {row}: there is no cache") }.into())
    }

    fn rows(&self, kind: &str, _: usize, row: usize, _: i32, _: i32) -> Result<Vec<CachedRow<'_>>, InterpError> {
        Err(Fault::Cache { kind: kind.to_owned(), what: format!("row {row}: there is no cache") }.into())
    }
}

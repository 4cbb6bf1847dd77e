//! Cache memory: which physical pages of each KV kind are free.
//!
//! ```text
//!   one budget, two kinds                             pools apart
//!   ┌────┬───────────────┬ ─ ─ ─ ┬──────────────┐     ┌────┬──────────────┐ one a kind
//!   │sink│ kind 0  ──►   │  gap  │   ◄── kind 1 │     │sink│ kind k  ──►  │
//!   └────┴───────────────┴ ─ ─ ─ ┴──────────────┘     └────┴──────────────┘
//! ```
//!
//! In one budget a page `p` of either kind is the bytes `p · size .. (p + 1) · size` of the same memory; kind 0 takes the
//! lowest ids that are free and kind 1 the highest. Where the two ends meet although there are holes behind them, whole
//! pages move into the holes, one at a time and only as far as the next page needs.

use super::ids::IdSet;

/// One kind's physical pages.
#[derive(Clone, Debug)]
struct Side {
    page_bytes: u64,
    /// Ids that may ever be used: from `first` to `first + count - 1`.
    first: usize,
    count: usize,
    free: IdSet,
    used: IdSet,
}

/// A page that has to move so that another can be taken: kind, from, to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub kind: usize,
    pub from: usize,
    pub to: usize,
}

/// Physical pages of every kind.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    sides: Vec<Side>,
    /// Whether both kinds lie in one memory.
    shared: bool,
}

impl Space {
    /// Memory for kinds of `(page bytes, pages with the sink)`. `shared_bytes` says that two kinds lie in one memory of so
    /// many bytes.
    pub fn new(kinds: &[(u64, usize)], shared_bytes: Option<u64>) -> Self {
        let one = shared_bytes.filter(|_| kinds.len() == 2 && kinds.iter().all(|(bytes, _)| *bytes > 0));
        // The sinks of both kinds are the beginning of the one memory.
        let sink = one.map_or(0, |_| kinds.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0));
        let side = |(page_bytes, pages): &(u64, usize)| {
            let (first, end) = match one {
                Some(total) => (sink.div_ceil(*page_bytes) as usize, (total / page_bytes) as usize),
                None => (1, *pages),
            };
            let end = end.min(i32::MAX as usize);
            let mut free = IdSet::new(end.max(1));
            (first..end).for_each(|id| {
                free.insert(id);
            });
            let count = end.saturating_sub(first);
            Side { page_bytes: *page_bytes, first, count, free, used: IdSet::new(end.max(1)) }
        };
        Space { sides: kinds.iter().map(side).collect(), shared: one.is_some() }
    }

    /// Pages of a kind that are taken.
    pub fn used(&self, kind: usize) -> usize {
        self.sides.get(kind).map_or(0, |s| s.used.len())
    }

    /// Pages of a kind that could be used if nothing else were.
    pub fn capacity(&self, kind: usize) -> usize {
        self.sides.get(kind).map_or(0, |s| s.count)
    }

    /// Bytes of one page of a kind.
    pub fn page_bytes(&self, kind: usize) -> u64 {
        self.sides.get(kind).map_or(0, |s| s.page_bytes)
    }

    /// Bytes of all pages that are taken.
    pub fn used_bytes(&self) -> u64 {
        self.sides.iter().map(|s| s.used.len() as u64 * s.page_bytes).sum()
    }

    /// Bytes of all pages, the sinks not counted.
    pub fn total_bytes(&self) -> u64 {
        if self.shared {
            return self.sides.iter().map(|s| s.count as u64 * s.page_bytes).max().unwrap_or(0);
        }
        self.sides.iter().map(|s| s.count as u64 * s.page_bytes).sum()
    }

    /// Whether freeing a page of one kind may let another kind have one.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// Whether so many pages of each kind can be held together, whatever is held now. Pages can move, so holes do not count.
    pub fn fits(&self, pages: &[usize]) -> bool {
        if !self.sides.iter().zip(pages).all(|(side, n)| *n <= side.count) {
            return false;
        }
        match (&self.sides[..], pages) {
            ([low, high], [few, many]) if self.shared => {
                let low_end = (low.first + few) as u64 * low.page_bytes;
                let high_start = (high.first + high.count - many) as u64 * high.page_bytes;
                low_end <= high_start || *few == 0 || *many == 0
            }
            _ => true,
        }
    }

    /// Takes a page, if one can be had without moving others.
    pub fn take(&mut self, kind: usize) -> Option<usize> {
        let side = self.sides.get(kind)?;
        let id = if self.shared && kind == 1 { side.free.last()? } else { side.free.first()? };
        if self.shared && !self.keeps_apart(kind, id) {
            return None;
        }
        let side = self.sides.get_mut(kind)?;
        side.free.remove(id);
        side.used.insert(id);
        Some(id)
    }

    /// Whether page `id` of `kind` touches no page of the other kind.
    fn keeps_apart(&self, kind: usize, id: usize) -> bool {
        let [low, high] = &self.sides[..] else { return true };
        if kind == 0 {
            high.used.first().is_none_or(|start| (id + 1) as u64 * low.page_bytes <= start as u64 * high.page_bytes)
        } else {
            low.used.last().is_none_or(|end| (end + 1) as u64 * low.page_bytes <= id as u64 * high.page_bytes)
        }
    }

    /// Moves one page of the other kind out of the way of `kind`; `None` if that kind has no hole behind its end.
    pub fn squeeze(&mut self, kind: usize) -> Option<Move> {
        if !self.shared {
            return None;
        }
        let other = 1 - kind.min(1);
        let side = self.sides.get_mut(other)?;
        let (from, to) =
            if other == 1 { (side.used.first()?, side.free.last()?) } else { (side.used.last()?, side.free.first()?) };
        if (other == 1) == (to < from) {
            return None;
        }
        side.used.remove(from);
        side.free.insert(from);
        side.free.remove(to);
        side.used.insert(to);
        Some(Move { kind: other, from, to })
    }

    /// Gives a page back; false if it was not taken.
    pub fn give(&mut self, kind: usize, id: usize) -> bool {
        let Some(side) = self.sides.get_mut(kind) else { return false };
        side.used.remove(id) && side.free.insert(id)
    }

    /// What is wrong with the books, if anything: every page is free or taken, never both, and no two pages overlap.
    pub fn check(&self) -> Result<(), String> {
        for (kind, side) in self.sides.iter().enumerate() {
            if side.free.len() + side.used.len() != side.count || side.used.iter().any(|id| side.free.contains(id)) {
                return Err(format!(
                    "kind {kind}: {} free and {} used of {}",
                    side.free.len(),
                    side.used.len(),
                    side.count
                ));
            }
        }
        if let ([low, high], true) = (&self.sides[..], self.shared)
            && let (Some(end), Some(start)) = (low.used.last(), high.used.first())
            && (end + 1) as u64 * low.page_bytes > start as u64 * high.page_bytes
        {
            return Err(format!("page {end} of kind 0 overlaps page {start} of kind 1"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What `fits` promises can be taken, with moves; what it denies cannot. Pages never overlap.
        #[test]
        fn one_budget_is_exact(
            a in 1u64..6, b in 1u64..9, total in 20u64..200, ops in prop::collection::vec((any::<bool>(), 0usize..2, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut space = Space::new(&[(a, 0), (b, 0)], Some(total));
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (take, kind, which) in ops {
                if take {
                    let mut wanted = [space.used(0), space.used(1)];
                    wanted[kind] += 1;
                    let promised = space.fits(&wanted);
                    let mut got = space.take(kind);
                    while got.is_none() {
                        let Some(moved) = space.squeeze(kind) else { break };
                        let place = held.iter_mut().find(|h| **h == (moved.kind, moved.from)).expect("a page that is held");
                        *place = (moved.kind, moved.to);
                        got = space.take(kind);
                    }
                    prop_assert_eq!(got.is_some(), promised, "{:?} of {:?}", wanted, &space);
                    held.extend(got.map(|id| (kind, id)));
                } else if !held.is_empty() {
                    let (kind, id) = held.swap_remove(which.index(held.len()));
                    prop_assert!(space.give(kind, id));
                    prop_assert!(!space.give(kind, id));
                }
                prop_assert_eq!(space.check(), Ok(()));
            }
        }
    }

    #[test]
    fn pools_apart_do_not_meet() {
        let mut space = Space::new(&[(4, 3), (1, 2)], None);
        assert_eq!((space.capacity(0), space.capacity(1), space.total_bytes()), (2, 1, 9));
        assert!(space.fits(&[2, 1]) && !space.fits(&[2, 2]));
        assert_eq!((space.take(0), space.take(0), space.take(0)), (Some(1), Some(2), None));
        assert_eq!((space.take(1), space.take(1), space.squeeze(1)), (Some(1), None, None));
        assert_eq!(space.used_bytes(), 9);
    }
}

//! Sets of small ids as bits over bits: the lowest and the highest member in a few words, nothing allocated after birth.

/// Ids below a fixed end.
#[derive(Clone, Debug)]
pub(crate) struct IdSet {
    /// Level 0 has one bit an id; a bit of the level above says whether a word below has any.
    levels: Vec<Vec<u64>>,
    len: usize,
}

impl IdSet {
    /// No member; ids are below `end`.
    pub fn new(end: usize) -> Self {
        let mut levels = vec![vec![0u64; end.div_ceil(64).max(1)]];
        while let Some(last) = levels.last().filter(|l| l.len() > 1) {
            levels.push(vec![0; last.len().div_ceil(64)]);
        }
        IdSet { levels, len: 0 }
    }

    /// Members.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether `id` is a member.
    pub fn contains(&self, id: usize) -> bool {
        self.levels.first().and_then(|l| l.get(id / 64)).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Adds a member; false if it was one, or cannot be.
    pub fn insert(&mut self, id: usize) -> bool {
        let fits = self.levels.first().is_some_and(|l| id / 64 < l.len());
        if !fits || self.contains(id) {
            return false;
        }
        let mut at = id;
        for level in &mut self.levels {
            if let Some(word) = level.get_mut(at / 64) {
                *word |= 1 << (at % 64);
            }
            at /= 64;
        }
        self.len += 1;
        true
    }

    /// Takes a member out; false if it was none.
    pub fn remove(&mut self, id: usize) -> bool {
        if !self.contains(id) {
            return false;
        }
        let mut at = id;
        for level in &mut self.levels {
            let Some(word) = level.get_mut(at / 64) else { break };
            *word &= !(1 << (at % 64));
            if *word != 0 {
                break;
            }
            at /= 64;
        }
        self.len -= 1;
        true
    }

    /// The lowest member.
    pub fn first(&self) -> Option<usize> {
        self.descend(|word| word.trailing_zeros())
    }

    /// The highest member.
    pub fn last(&self) -> Option<usize> {
        self.descend(|word| 63 - word.leading_zeros())
    }

    fn descend(&self, pick: impl Fn(u64) -> u32) -> Option<usize> {
        if self.len == 0 {
            return None;
        }
        let mut at = 0;
        for level in self.levels.iter().rev() {
            at = at * 64 + pick(level.get(at).copied().filter(|w| *w != 0)?) as usize;
        }
        Some(at)
    }

    /// Members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.levels.first().map_or(&[][..], |l| l);
        words
            .iter()
            .enumerate()
            .flat_map(|(i, word)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| i * 64 + b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(end in 1usize..9000, ops in prop::collection::vec((any::<bool>(), 0usize..9000), 0..300)) {
            let (mut set, mut truth) = (IdSet::new(end), BTreeSet::new());
            for (add, id) in ops {
                let id = id % end;
                let (said, is) = if add { (set.insert(id), truth.insert(id)) } else { (set.remove(id), truth.remove(&id)) };
                prop_assert_eq!(said, is);
                prop_assert_eq!((set.first(), set.last()), (truth.first().copied(), truth.last().copied()));
            }
            prop_assert_eq!(set.len(), truth.len());
            prop_assert!(set.iter().eq(truth.iter().copied()));
        }
    }
}

//! The arena: one allocation that holds every buffer of a plan at its planned offset.
//!
//! It is memory of 8-byte words seen as bytes, so every format is aligned at the plan's offsets (multiples of 64) and
//! no view needs `unsafe`. A launch writes some values and reads others; the borrow checker wants the written ranges
//! apart, so the arena is split around them. Where the plan lets a result take the place of an operand, the operand is
//! copied aside first: rare, small, and never wrong.

use crate::view::{Target, View};
use ir::DType;

/// A range of the arena as one value of a step uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub offset: usize,
    pub dtype: DType,
    /// Elements in use in this step.
    pub len: usize,
}

impl Slot {
    /// Bytes of the memory.
    pub fn bytes(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.dtype.bytes_for(self.len as u64) as usize
    }

    /// Whether they have a byte in common.
    pub fn overlaps(&self, other: &Slot) -> bool {
        let (a, b) = (self.bytes(), other.bytes());
        a.start < b.end && b.start < a.end
    }
}

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    words: Vec<u64>,
}

/// The memory beside one place that is written.
pub(crate) struct Around<'a> {
    before: &'a [u8],
    after: &'a [u8],
    /// Where `after` begins.
    from: usize,
}

impl<'a> Around<'a> {
    /// A value, which must not overlap the place that is written.
    pub fn view(&self, slot: Slot) -> View<'a> {
        let bytes = slot.bytes();
        if bytes.is_empty() {
            View::of(slot.dtype, &[])
        } else if bytes.end <= self.before.len() {
            View::of(slot.dtype, &self.before[bytes])
        } else {
            View::of(slot.dtype, &self.after[bytes.start - self.from..bytes.end - self.from])
        }
    }
}

impl Arena {
    /// Zeroed memory of at least `bytes`, if the machine gives it.
    pub fn new(bytes: usize) -> Option<Arena> {
        Some(Arena { words: bytemuck::try_zeroed_vec(bytes.div_ceil(8)).ok()? })
    }

    /// Makes room for at least `bytes`; what is there stays.
    pub fn fit(&mut self, bytes: usize) {
        if self.words.len() * 8 < bytes {
            self.words.resize(bytes.div_ceil(8), 0);
        }
    }

    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words)
    }

    /// A value.
    pub fn read(&self, slot: Slot) -> View<'_> {
        View::of(slot.dtype, &self.bytes()[slot.bytes()])
    }

    /// Copies a value's bytes into words.
    pub fn save(&self, slot: Slot, words: &mut [u64]) {
        let bytes = &self.bytes()[slot.bytes()];
        bytemuck::cast_slice_mut::<u64, u8>(words)[..bytes.len()].copy_from_slice(bytes);
    }

    /// A value to be overwritten.
    pub fn write(&mut self, slot: Slot) -> Target<'_> {
        Target::of(slot.dtype, &mut self.bytes_mut()[slot.bytes()])
    }

    /// One place to be written, and all around it to be read.
    pub fn around(&mut self, slot: Slot) -> (Around<'_>, Target<'_>) {
        let bytes = slot.bytes();
        let (before, rest) = self.bytes_mut().split_at_mut(bytes.start);
        let (written, after) = rest.split_at_mut(bytes.len());
        (Around { before, after, from: bytes.end }, Target::of(slot.dtype, written))
    }

    /// All of it, to be read.
    pub fn all(&self) -> Around<'_> {
        Around { before: self.bytes(), after: &[], from: usize::MAX }
    }

    /// Values to be read and places to be written, at once. Places are apart from each other; a value that overlaps one of them is
    /// copied into `aside` first.
    pub fn open<'a>(
        &'a mut self,
        reads: &[Slot],
        writes: &[Slot],
        aside: &'a mut Vec<u64>,
    ) -> (Vec<View<'a>>, Vec<Target<'a>>) {
        let hit = |read: &Slot| writes.iter().any(|w| w.overlaps(read));
        let words = |slot: &Slot| slot.bytes().len().div_ceil(8);
        let needed: usize = reads.iter().filter(|r| hit(r)).map(words).sum();
        if aside.len() < needed {
            aside.resize(needed, 0);
        }
        let mut at = 0;
        for read in reads.iter().filter(|r| hit(r)) {
            self.save(*read, &mut aside[at..at + words(read)]);
            at += words(read);
        }
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_by_key(|i| writes[*i].offset);
        let mut targets: Vec<Option<Target<'a>>> = writes.iter().map(|_| None).collect();
        let mut gaps: Vec<(usize, &'a [u8])> = Vec::with_capacity(writes.len() + 1);
        let (mut rest, mut start) = (self.bytes_mut(), 0);
        for i in order {
            let bytes = writes[i].bytes();
            let (gap, from) = rest.split_at_mut(bytes.start - start);
            let (written, after) = from.split_at_mut(bytes.len());
            gaps.push((start, gap));
            targets[i] = Some(Target::of(writes[i].dtype, written));
            (rest, start) = (after, bytes.end);
        }
        gaps.push((start, rest));
        let aside: &'a [u8] = bytemuck::cast_slice(aside);
        let mut at = 0;
        let views = reads.iter().map(|read| {
            let bytes = read.bytes();
            if hit(read) {
                let from = at * 8;
                at += words(read);
                return View::of(read.dtype, &aside[from..from + bytes.len()]);
            }
            let gap = gaps.iter().rev().find(|(start, _)| *start <= bytes.start);
            let memory = gap.and_then(|(start, gap)| gap.get(bytes.start - start..bytes.end - start));
            View::of(read.dtype, memory.unwrap_or(&[]))
        });
        (views.collect(), targets.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_may_stand_before_between_after_or_over_what_is_read() {
        let slot = |offset| Slot { offset, dtype: DType::F32, len: 4 };
        for (a, b) in [(0usize, 192), (64, 0), (128, 64), (192, 128), (256, 96)] {
            let mut arena = Arena::new(320).unwrap();
            for (offset, x) in [(64, [1.0, 2.0, 3.0, 4.0]), (128, [10.0, 20.0, 30.0, 40.0])] {
                arena.write(slot(offset)).put(0, &x);
            }
            let mut aside = vec![7; 1];
            let (views, mut targets) = arena.open(&[slot(64), slot(128)], &[slot(a), slot(b)], &mut aside);
            let of = |f: fn(f32, f32) -> f32| -> Vec<f32> {
                (0..4).map(|i| f(views[0].number(i), views[1].number(i))).collect()
            };
            let (sum, difference) = (of(|x, y| x + y), of(|x, y| x - y));
            targets[0].put(0, &sum);
            targets[1].put(0, &difference);
            assert_eq!(arena.read(slot(a)).to_f32(), [11.0, 22.0, 33.0, 44.0], "results at {a} and {b}");
            assert_eq!(arena.read(slot(b)).to_f32(), [-9.0, -18.0, -27.0, -36.0], "results at {a} and {b}");
        }
    }

    #[test]
    fn formats_are_seen_at_their_own_width() {
        let mut arena = Arena::new(64).unwrap();
        let bf16 = Slot { offset: 0, dtype: DType::Bf16, len: 3 };
        arena.write(bf16).put(0, &[1.0, 1.003_906_2, -2.5]);
        assert_eq!(arena.read(bf16).to_f32(), [1.0, 1.0, -2.5]);
        let ints = Slot { offset: 8, dtype: DType::I32, len: 2 };
        arena.write(ints).copy(0, View::I32(&[16_777_217, -1]), 0, 2);
        assert_eq!(arena.read(ints).integer(0), 16_777_217);
    }
}

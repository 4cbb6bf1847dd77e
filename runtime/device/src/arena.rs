//! The arena: one allocation that holds every buffer of a plan at its planned offset.
//!
//! It is memory of 8-byte words seen as bytes, so every format is aligned at the plan's offsets (multiples of 64) and
//! no view needs `unsafe`. A launch writes one value and reads others; the borrow checker wants the written range
//! apart, so the arena is split around it. Where the plan lets a result take the place of an operand, the operand is
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
    fn bytes(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len * self.dtype.bytes()
    }

    fn overlaps(&self, other: &Slot) -> bool {
        let (a, b) = (self.bytes(), other.bytes());
        a.start < b.end && b.start < a.end
    }
}

/// Operands that are looked at without a list in memory; only joins have more.
const FEW: usize = 3;

/// An operand of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand<'a> {
    Slot(Slot),
    Outside(View<'a>),
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Arena {
    words: Vec<u64>,
}

impl Arena {
    /// Zeroed memory of at least `bytes`, if the machine gives it.
    pub fn new(bytes: usize) -> Option<Arena> {
        Some(Arena { words: bytemuck::try_zeroed_vec(bytes.div_ceil(8)).ok()? })
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

    /// Runs a launch that reads `operands` and writes `out`.
    pub fn launch<R>(
        &mut self,
        operands: &[Operand<'_>],
        out: Slot,
        run: impl FnOnce(&[View<'_>], Target<'_>) -> R,
    ) -> R {
        // Empty, which allocates nothing, unless some operand has to be copied.
        let mut aside: Vec<(usize, Vec<u64>)> = Vec::new();
        for (i, operand) in operands.iter().enumerate() {
            if let Operand::Slot(slot) = operand
                && slot.overlaps(&out)
            {
                let mut copy = vec![0u64; slot.bytes().len().div_ceil(8)];
                self.save(*slot, &mut copy);
                aside.push((i, copy));
            }
        }
        let range = out.bytes();
        let (before, rest) = self.bytes_mut().split_at_mut(range.start);
        let (written, after) = rest.split_at_mut(range.len());
        let view = |i: usize| match &operands[i] {
            Operand::Outside(view) => *view,
            Operand::Slot(slot) if slot.len == 0 => View::of(slot.dtype, &[]),
            Operand::Slot(slot) => {
                let bytes = slot.bytes();
                let memory = match aside.iter().find(|(operand, _)| *operand == i) {
                    Some((_, copy)) => &bytemuck::cast_slice(copy)[..bytes.len()],
                    None if bytes.end <= range.start => &before[bytes],
                    None => &after[bytes.start - range.end..bytes.end - range.end],
                };
                View::of(slot.dtype, memory)
            }
        };
        let few: [View<'_>; FEW] = std::array::from_fn(|i| if i < operands.len() { view(i) } else { View::Bool(&[]) });
        if let Some(views) = few.get(..operands.len()) {
            return run(views, Target::of(out.dtype, written));
        }
        let views: Vec<View<'_>> = (0..operands.len()).map(view).collect();
        run(&views, Target::of(out.dtype, written))
    }

    /// Runs a launch that reads `operands` and writes elsewhere.
    pub fn look<R>(&self, operands: &[Operand<'_>], run: impl FnOnce(&[View<'_>]) -> R) -> R {
        let views: Vec<View<'_>> = operands
            .iter()
            .map(|operand| match operand {
                Operand::Outside(view) => *view,
                Operand::Slot(slot) => self.read(*slot),
            })
            .collect();
        run(&views)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_may_stand_before_between_after_or_over_its_operands() {
        let slot = |offset| Slot { offset, dtype: DType::F32, len: 4 };
        for out in [0usize, 64, 128, 192] {
            let mut arena = Arena::new(256).unwrap();
            for (offset, x) in [(64, [1.0, 2.0, 3.0, 4.0]), (128, [10.0, 20.0, 30.0, 40.0])] {
                arena.write(slot(offset)).put(0, &x);
            }
            let operands = [Operand::Slot(slot(64)), Operand::Slot(slot(128)), Operand::Slot(slot(64))];
            arena.launch(&operands, slot(out), |views, mut target| {
                let sum: Vec<f32> =
                    (0..4).map(|i| views[0].number(i) + views[1].number(i) + views[2].number(i)).collect();
                target.put(0, &sum);
            });
            assert_eq!(arena.read(slot(out)).to_f32(), [12.0, 24.0, 36.0, 48.0], "result at {out}");
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

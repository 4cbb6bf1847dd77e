//! Keys and values written to pages.

use super::nest::Shape;
use crate::cache::{PoolMut, Side};
use crate::contract::Rows;
use crate::view::View;
use std::ops::Range;

/// A storing kernel.
#[derive(Debug)]
pub(crate) struct Store {
    /// Index of the KV kind.
    pub kind: usize,
    width: usize,
    /// Positions that one row of the operands brings: those of a block.
    each: usize,
}

impl Store {
    /// Prepares the kernel; key and value hold `width` elements for each position, of which a row has as many as `at`. `live`
    /// says which of them are written.
    pub fn new(kind: usize, width: usize, [k, v, at]: [&Shape; 3], live: Option<&Shape>) -> Result<Store, String> {
        let each = at.row;
        if [k, v].iter().any(|s| s.row != width * each || s.rows.is_none()) || live.is_some_and(|l| l.row != each) {
            return Err(format!("a store of {} and {} elements per row into pages that keep {width}", k.row, v.row));
        }
        Ok(Store { kind, width, each })
    }

    /// Writes rows of the step, each at its own position; the operands begin with the first of them.
    pub fn run(&self, rows: &Rows, which: Range<usize>, pool: &mut PoolMut<'_>, slot: usize, operands: &[View<'_>]) {
        let page_tokens = pool.layout.page_tokens as usize;
        let mut wide = vec![0.0; self.width];
        for (i, row) in (which.start * self.each..which.end * self.each).enumerate() {
            if operands.get(3).is_some_and(|live| live.integer(i) == 0) {
                continue;
            }
            let (position, sequence) = (rows.position[row], rows.sequence[row]);
            let page = rows.pages[self.kind][sequence].get(position / page_tokens);
            for (side, view) in [(Side::Key, operands[0]), (Side::Value, operands[1])] {
                let numbers = view.numbers(i * self.width, self.width, &mut wide);
                pool.store(page, slot, position % page_tokens, side, numbers);
            }
        }
    }
}

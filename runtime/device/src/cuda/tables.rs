//! What a step brings besides its rows, as kernels read it (`Steps` in the templates' `cache.cuh`).

use super::driver::{Device, Memory, Staging};
use crate::contract::Rows;
use engine::Step;

/// KV kinds that kernels can tell apart.
pub const MOST_KINDS: usize = 8;
/// Bytes of the head: addresses, width, first position.
const HEAD_BYTES: usize = 128;

/// Device memory of the tables of one step.
pub struct Tables {
    memory: Memory,
    most_rows: usize,
    most_sequences: usize,
    most_pages: usize,
    kinds: usize,
}

impl Tables {
    /// Memory for the largest step.
    pub fn new(
        device: &Device,
        most_rows: usize,
        most_sequences: usize,
        most_pages: usize,
        kinds: usize,
    ) -> Result<Tables, String> {
        if kinds > MOST_KINDS {
            return Err(format!("the model has {kinds} KV kinds, kernels tell {MOST_KINDS} apart"));
        }
        let words = most_rows + most_sequences + kinds * most_sequences * most_pages;
        let memory = device.allocate(HEAD_BYTES + words * 4)?;
        Ok(Tables { memory, most_rows, most_sequences, most_pages, kinds })
    }

    /// Bytes of the largest step's tables.
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Address of the head.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Sends a step's tables.
    pub fn send(&self, staging: &mut Staging, step: &Step, rows: &Rows) -> Result<(), String> {
        let page_counts = step.sequences.iter().map(|s| s.pages.len());
        let width = page_counts.max().unwrap_or(1).clamp(1, self.most_pages);
        let sequences = step.sequences.len();
        let (at_rows, at_ends) = (HEAD_BYTES, HEAD_BYTES + self.most_rows * 4);
        let at_pages = at_ends + self.most_sequences * 4;
        let base = self.memory.address();
        let mut bytes = vec![0u8; at_pages + self.kinds * sequences * width * 4];
        let mut put = |at: usize, of: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + of.len()) {
                place.copy_from_slice(of);
            }
        };
        put(0, &(base + at_rows as u64).to_le_bytes());
        put(8, &(base + at_ends as u64).to_le_bytes());
        for kind in 0..self.kinds {
            let start = at_pages + kind * sequences * width * 4;
            put(16 + kind * 8, &(base + start as u64).to_le_bytes());
            for (sequence, pages) in rows.pages[kind].iter().enumerate() {
                for page in 0..width {
                    let physical = pages.get(page) as i32;
                    put(start + (sequence * width + page) * 4, &physical.to_le_bytes());
                }
            }
        }
        put(16 + MOST_KINDS * 8, &(width as i32).to_le_bytes());
        put(20 + MOST_KINDS * 8, &(rows.start as i32).to_le_bytes());
        for (row, sequence) in rows.sequence.iter().enumerate() {
            put(at_rows + row * 4, &(*sequence as i32).to_le_bytes());
        }
        for (sequence, of) in step.sequences.iter().enumerate() {
            let end = rows.position.get(of.start + of.len - 1).copied().unwrap_or(0) as i32;
            put(at_ends + sequence * 4, &end.to_le_bytes());
        }
        staging.send(&self.memory, 0, &bytes)
    }
}

//! Paged cache memory of one KV kind. Where a row lies is data: the layout's strides and physical page ids.

use crate::error::PrepareError;
use ir::{DType, KvLayout};
use numerics::{decode_bf16, encode_bf16};

/// The pages of one kind.
#[derive(Debug)]
pub(crate) struct Pool {
    pub layout: KvLayout,
    pub pages: usize,
    data: Memory,
}

#[derive(Debug)]
enum Memory {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
}

/// Key or value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Key,
    Value,
}

impl Pool {
    /// Memory for `pages` pages, the sink included; checks that the layout keeps to its own page.
    pub fn new(layout: &KvLayout, pages: usize) -> Result<Pool, PrepareError> {
        let refuse = |found: usize, needed: String| PrepareError::Pool { kind: layout.kind.clone(), found, needed };
        if pages < 2 {
            return Err(refuse(pages, "a sink page and one more are the least".to_owned()));
        }
        let too_wide = || PrepareError::Mismatch {
            plan: format!("gives KV kind `{}` pages of {} elements", layout.kind, layout.page_stride),
            kernels: "need rows that end beyond a page".to_owned(),
        };
        let last = |count: u64, stride: u64| count.saturating_sub(1).checked_mul(stride);
        let end = [
            last(layout.layers.len() as u64, layout.layer_stride),
            last(layout.page_tokens, layout.token_stride),
            last(layout.heads, layout.head_stride),
            Some(layout.v_offset),
            Some(layout.head_elements),
        ]
        .into_iter()
        .try_fold(0u64, |sum, part| sum.checked_add(part?));
        let fits = layout.layers.is_empty() || end.is_some_and(|end| end <= layout.page_stride);
        if layout.page_tokens == 0 || !fits {
            return Err(too_wide());
        }
        let elements = usize::try_from(layout.page_stride).ok().and_then(|stride| stride.checked_mul(pages));
        let no_memory = || PrepareError::PoolMemory {
            kind: layout.kind.clone(),
            pages,
            bytes: u128::from(layout.page_stride) * pages as u128 * layout.dtype.bytes() as u128,
        };
        let data = match layout.dtype {
            DType::F32 => Memory::F32(zeroed(elements).ok_or_else(no_memory)?),
            DType::Bf16 => Memory::Bf16(zeroed(elements).ok_or_else(no_memory)?),
            DType::I32 | DType::Bool => {
                return Err(PrepareError::Mismatch {
                    plan: format!("stores KV kind `{}` as {}", layout.kind, layout.dtype),
                    kernels: "write floats".to_owned(),
                });
            }
        };
        Ok(Pool { layout: layout.clone(), pages, data })
    }

    /// First element of a head's key or value at token `token` of a page.
    fn at(&self, page: usize, slot: usize, token: usize, head: usize, side: Side) -> usize {
        let l = &self.layout;
        page * l.page_stride as usize
            + slot * l.layer_stride as usize
            + token * l.token_stride as usize
            + head * l.head_stride as usize
            + if side == Side::Value { l.v_offset as usize } else { 0 }
    }

    /// Writes all heads of one row, rounding to the layout's format.
    pub fn store(&mut self, page: usize, slot: usize, token: usize, side: Side, row: &[f32]) {
        let width = self.layout.head_elements as usize;
        for (head, numbers) in row.chunks_exact(width).enumerate() {
            let at = self.at(page, slot, token, head, side);
            match &mut self.data {
                Memory::F32(x) => x[at..at + width].copy_from_slice(numbers),
                Memory::Bf16(x) => encode_bf16(numbers, &mut x[at..at + width]),
            }
        }
    }

    /// Reads one head of `count` consecutive tokens of a page into rows of `out`.
    #[allow(clippy::too_many_arguments)]
    pub fn load(&self, page: usize, slot: usize, token: usize, count: usize, head: usize, side: Side, out: &mut [f32]) {
        let width = self.layout.head_elements as usize;
        for (i, row) in out.chunks_exact_mut(width).take(count).enumerate() {
            let at = self.at(page, slot, token + i, head, side);
            match &self.data {
                Memory::F32(x) => row.copy_from_slice(&x[at..at + width]),
                Memory::Bf16(x) => decode_bf16(&x[at..at + width], row),
            }
        }
    }

    /// Copies one page over another; both must exist.
    pub fn copy_page(&mut self, from: usize, to: usize) {
        let stride = self.layout.page_stride as usize;
        match &mut self.data {
            Memory::F32(x) => x.copy_within(from * stride..(from + 1) * stride, to * stride),
            Memory::Bf16(x) => x.copy_within(from * stride..(from + 1) * stride, to * stride),
        }
    }
}

/// Zeroed memory if the machine gives it. The system hands it out page by page as it is first written, so a large pool
/// costs no time before it is used.
fn zeroed<T: bytemuck::Zeroable>(elements: Option<usize>) -> Option<Vec<T>> {
    bytemuck::try_zeroed_vec(elements?).ok()
}

//! Paged cache memory. Where a row lies is data: the layout's strides and physical page ids.

use crate::error::PrepareError;
use crate::view::{Target, View};
use ir::{DType, KvLayout};
use numerics::{decode_bf16, encode_bf16};

/// Cache memory of every kind. Two kinds of one format lie in one memory, where page `p` of either begins at `p` times its
/// stride; whoever hands pages out keeps them apart.
#[derive(Debug)]
pub(crate) struct Cache {
    kinds: Vec<Kind>,
    memories: Vec<Memory>,
}

#[derive(Debug)]
struct Kind {
    layout: KvLayout,
    pages: usize,
    memory: usize,
    /// Whether it lies in pages of a kind before it.
    guest: bool,
}

#[derive(Debug)]
enum Memory {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    /// Codes.
    E4m3(Vec<u8>),
}

/// Key or value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Key,
    Value,
}

/// The pages of one kind, to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool<'a> {
    pub layout: &'a KvLayout,
    data: &'a Memory,
}

/// The same, to be written.
#[derive(Debug)]
pub(crate) struct PoolMut<'a> {
    pub layout: &'a KvLayout,
    data: &'a mut Memory,
}

impl Memory {
    /// Zeroed memory of so many elements, if there is any such format and so much memory.
    fn new(dtype: DType, elements: Option<usize>) -> Option<Option<Memory>> {
        match dtype {
            DType::F32 => Some(zeroed(elements).map(Memory::F32)),
            DType::Bf16 => Some(zeroed(elements).map(Memory::Bf16)),
            DType::E4m3 => Some(zeroed(elements).map(Memory::E4m3)),
            DType::I32 | DType::Bool | DType::E5m2 | DType::Nvfp4 => None,
        }
    }
}

/// Checks that a layout keeps to its own page.
fn check_layout(layout: &KvLayout, pages: usize) -> Result<(), PrepareError> {
    let refuse = |found: usize, needed: String| PrepareError::Pool { kind: layout.kind.clone(), found, needed };
    if pages < 2 {
        return Err(refuse(pages, "a sink page and one more are the least".to_owned()));
    }
    let last = |count: u64, stride: u64| count.saturating_sub(1).checked_mul(stride);
    let end = [
        last(layout.layers.len() as u64, layout.layer_stride),
        last(layout.page_tokens, layout.token_stride),
        last(layout.heads, layout.head_stride),
        Some(layout.first),
        Some(layout.v_offset),
        Some(layout.head_elements),
    ]
    .into_iter()
    .try_fold(0u64, |sum, part| sum.checked_add(part?));
    let fits = layout.layers.is_empty() || end.is_some_and(|end| end <= layout.page_stride);
    if layout.page_tokens == 0 || !fits {
        return Err(PrepareError::Mismatch {
            plan: format!("gives KV kind `{}` pages of {} elements", layout.kind, layout.page_stride),
            kernels: "need rows that end beyond a page".to_owned(),
        });
    }
    Ok(())
}

impl Cache {
    /// Memory for so many pages of each kind, sinks included.
    pub fn new(layouts: &[KvLayout], pages: &[usize]) -> Result<Cache, PrepareError> {
        let mut cache = Cache { kinds: Vec::new(), memories: Vec::new() };
        let elements = |layout: &KvLayout, pages: usize| usize::try_from(layout.page_stride).ok()?.checked_mul(pages);
        for (layout, pages) in layouts.iter().zip(pages) {
            check_layout(layout, *pages)?;
            let no_memory = || PrepareError::PoolMemory {
                kind: layout.kind.clone(),
                pages: *pages,
                bytes: u128::from(layout.page_bytes()) * *pages as u128,
            };
            let memory = Memory::new(layout.dtype, elements(layout, *pages)).ok_or_else(|| PrepareError::Mismatch {
                plan: format!("stores KV kind `{}` as {}", layout.kind, layout.dtype),
                kernels: "write floats".to_owned(),
            })?;
            cache.memories.push(memory.ok_or_else(no_memory)?);
            cache.kinds.push(Kind { layout: layout.clone(), pages: *pages, memory: cache.kinds.len(), guest: false });
        }
        Ok(cache)
    }

    /// Adds kinds that lie in pages of others, each with the number of its home; they follow those that have pages.
    pub fn with_guests(mut self, guests: &[(KvLayout, usize)]) -> Cache {
        for (layout, home) in guests {
            if let Some(Kind { pages, memory, .. }) = self.kinds.get(*home) {
                let (pages, memory) = (*pages, *memory);
                self.kinds.push(Kind { layout: layout.clone(), pages, memory, guest: true });
            }
        }
        self
    }

    /// Layouts of the kinds that have pages.
    pub fn layouts(&self) -> Vec<KvLayout> {
        self.kinds.iter().filter(|k| !k.guest).map(|k| k.layout.clone()).collect()
    }

    /// Puts two kinds of one format into one memory as large as both and their sinks. What was stored is lost.
    pub fn share(&mut self) {
        let elements =
            |layout: &KvLayout, pages: usize| usize::try_from(layout.page_stride).ok()?.checked_mul(pages + 1);
        let own: Vec<&Kind> = self.kinds.iter().filter(|k| !k.guest).collect();
        let [a, b] = own[..] else { return };
        let may = a.layout.dtype == b.layout.dtype && a.layout.page_stride > 0 && b.layout.page_stride > 0;
        let total = elements(&a.layout, a.pages).zip(elements(&b.layout, b.pages)).and_then(|(a, b)| a.checked_add(b));
        let Some(total) = total.filter(|_| may) else { return };
        let dtype = a.layout.dtype;
        if let Some(Some(memory)) = Memory::new(dtype, Some(total)) {
            self.memories = vec![memory];
            for kind in &mut self.kinds {
                kind.memory = 0;
                kind.pages = (total / kind.layout.page_stride as usize).min(i32::MAX as usize);
            }
        }
    }

    /// Bytes of the memory that all kinds share, if they do.
    pub fn shared_bytes(&self) -> Option<u64> {
        let several = self.kinds.iter().filter(|k| !k.guest).count() > 1;
        match &self.memories[..] {
            [Memory::F32(x)] if several => Some(x.len() as u64 * 4),
            [Memory::Bf16(x)] if several => Some(x.len() as u64 * 2),
            [Memory::E4m3(x)] if several => Some(x.len() as u64),
            _ => None,
        }
    }

    /// Pages of every kind if no other had any, the sink included.
    pub fn pages(&self) -> Vec<usize> {
        self.kinds.iter().filter(|k| !k.guest).map(|k| k.pages).collect()
    }

    /// Kinds.
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// The kind of that name.
    pub fn find(&self, kind: &str) -> Option<usize> {
        self.kinds.iter().position(|k| k.layout.kind == kind)
    }

    /// The pages of a kind.
    pub fn pool(&self, kind: usize) -> Option<Pool<'_>> {
        let kind = self.kinds.get(kind)?;
        Some(Pool { layout: &kind.layout, data: self.memories.get(kind.memory)? })
    }

    /// The same, to be written.
    pub fn pool_mut(&mut self, kind: usize) -> Option<PoolMut<'_>> {
        let kind = self.kinds.get(kind)?;
        Some(PoolMut { layout: &kind.layout, data: self.memories.get_mut(kind.memory)? })
    }

    /// Copies one page over another of its kind; both must exist.
    pub fn copy_page(&mut self, kind: usize, from: usize, to: usize) {
        let Some(pool) = self.pool_mut(kind) else { return };
        let stride = pool.layout.page_stride as usize;
        let (source, to) = (from * stride..(from + 1) * stride, to * stride);
        match pool.data {
            Memory::F32(x) => x.copy_within(source, to),
            Memory::Bf16(x) => x.copy_within(source, to),
            Memory::E4m3(x) => x.copy_within(source, to),
        }
    }

    /// Makes a page all zeros; it must exist.
    pub fn zero_page(&mut self, kind: usize, page: usize) {
        let Some(pool) = self.pool_mut(kind) else { return };
        let stride = pool.layout.page_stride as usize;
        match pool.data {
            Memory::F32(x) => x[page * stride..(page + 1) * stride].fill(0.0),
            Memory::Bf16(x) => x[page * stride..(page + 1) * stride].fill(0),
            Memory::E4m3(x) => x[page * stride..(page + 1) * stride].fill(0),
        }
    }

    /// Appends one layer of a page to `out`: head by head of every token, keys before values. The page must exist.
    pub fn read_layer(&self, kind: usize, layer: usize, page: usize, out: &mut Vec<u8>) {
        let Some(pool) = self.pool(kind) else { return };
        pool.layout.for_each_row(layer, page, |row| match pool.data {
            Memory::F32(x) => out.extend_from_slice(bytemuck::cast_slice(&x[row])),
            Memory::Bf16(x) => out.extend_from_slice(bytemuck::cast_slice(&x[row])),
            Memory::E4m3(x) => out.extend_from_slice(&x[row]),
        });
    }

    /// Writes one layer of a page as [`Cache::read_layer`] gave it. The page must exist; false if the bytes do not fit.
    pub fn write_layer(&mut self, kind: usize, layer: usize, page: usize, bytes: &[u8]) -> bool {
        let Some(pool) = self.pool_mut(kind) else { return false };
        let layout = pool.layout;
        let width = layout.dtype.bytes_for(layout.head_elements) as usize;
        let rows = layout.page_tokens as usize * layout.heads as usize * 2;
        if bytes.len() != rows * width {
            return false;
        }
        let mut parts = bytes.chunks_exact(width.max(1));
        layout.for_each_row(layer, page, |row| {
            let part = parts.next().unwrap_or_default();
            match &mut *pool.data {
                Memory::F32(x) => bytemuck::cast_slice_mut(&mut x[row]).copy_from_slice(part),
                Memory::Bf16(x) => bytemuck::cast_slice_mut(&mut x[row]).copy_from_slice(part),
                Memory::E4m3(x) => x[row].copy_from_slice(part),
            }
        });
        true
    }
}

/// Where rows lie.
trait Rows {
    /// First element of a head's key or value at token `token` of a page.
    fn at(&self, page: usize, slot: usize, token: usize, head: usize, side: Side) -> usize;

    /// Elements of every row of one layer of a page.
    fn for_each_row(&self, slot: usize, page: usize, row: impl FnMut(std::ops::Range<usize>));
}

impl Rows for KvLayout {
    fn at(&self, page: usize, slot: usize, token: usize, head: usize, side: Side) -> usize {
        page * self.page_stride as usize
            + self.first as usize
            + slot * self.layer_stride as usize
            + token * self.token_stride as usize
            + head * self.head_stride as usize
            + if side == Side::Value { self.v_offset as usize } else { 0 }
    }

    fn for_each_row(&self, slot: usize, page: usize, mut row: impl FnMut(std::ops::Range<usize>)) {
        for token in 0..self.page_tokens as usize {
            for head in 0..self.heads as usize {
                for side in [Side::Key, Side::Value] {
                    let at = self.at(page, slot, token, head, side);
                    row(at..at + self.head_elements as usize);
                }
            }
        }
    }
}

impl PoolMut<'_> {
    /// Writes all heads of one row, rounding to the layout's format.
    pub fn store(&mut self, page: usize, slot: usize, token: usize, side: Side, row: &[f32]) {
        let width = self.layout.head_elements as usize;
        for (head, numbers) in row.chunks_exact(width).enumerate() {
            let at = self.layout.at(page, slot, token, head, side);
            match &mut *self.data {
                Memory::F32(x) => x[at..at + width].copy_from_slice(numbers),
                Memory::Bf16(x) => encode_bf16(numbers, &mut x[at..at + width]),
                Memory::E4m3(x) => Target::E4m3(&mut x[at..at + width]).put(0, numbers),
            }
        }
    }
}

impl Pool<'_> {
    /// Reads one head of `count` consecutive tokens of a page into rows of `out`.
    #[allow(clippy::too_many_arguments)]
    pub fn load(&self, page: usize, slot: usize, token: usize, count: usize, head: usize, side: Side, out: &mut [f32]) {
        let width = self.layout.head_elements as usize;
        for (i, row) in out.chunks_exact_mut(width).take(count).enumerate() {
            let at = self.layout.at(page, slot, token + i, head, side);
            match self.data {
                Memory::F32(x) => row.copy_from_slice(&x[at..at + width]),
                Memory::Bf16(x) => decode_bf16(&x[at..at + width], row),
                Memory::E4m3(x) => {
                    View::E4m3(&x[at..at + width]).numbers(0, width, row);
                }
            }
        }
    }
}

/// Zeroed memory if the machine gives it. The system hands it out page by page as it is first written, so a large pool
/// costs no time before it is used.
fn zeroed<T: bytemuck::Zeroable>(elements: Option<usize>) -> Option<Vec<T>> {
    bytemuck::try_zeroed_vec(elements?).ok()
}

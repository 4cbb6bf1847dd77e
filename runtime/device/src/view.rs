//! Typed looks at memory: what kernels read and write.

use bytemuck::{cast_slice, cast_slice_mut};
use ir::DType;
use numerics::{BLOCK, Block, bf16_bits, bf16_value, e4m3_code, e4m3_value, e5m2_code, e5m2_value};

/// A block of nvfp4 in memory: its codes, then its scale.
pub(crate) type BlockBytes = [u8; BLOCK / 2 + 1];

/// Elements of a value, read-only.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View<'a> {
    F32(&'a [f32]),
    /// Upper halves of binary32 numbers.
    Bf16(&'a [u16]),
    I32(&'a [i32]),
    Bool(&'a [u8]),
    /// Codes.
    E4m3(&'a [u8]),
    E5m2(&'a [u8]),
    /// Whole blocks.
    Nvfp4(&'a [BlockBytes]),
}

impl<'a> View<'a> {
    /// Elements of format `dtype` in `bytes`, which must be aligned for it and hold whole elements.
    pub fn of(dtype: DType, bytes: &'a [u8]) -> View<'a> {
        match dtype {
            DType::F32 => View::F32(cast_slice(bytes)),
            DType::Bf16 => View::Bf16(cast_slice(bytes)),
            DType::I32 => View::I32(cast_slice(bytes)),
            DType::Bool => View::Bool(bytes),
            DType::E4m3 => View::E4m3(bytes),
            DType::E5m2 => View::E5m2(bytes),
            DType::Nvfp4 => View::Nvfp4(bytes.as_chunks().0),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            View::F32(x) => x.len(),
            View::Bf16(x) => x.len(),
            View::I32(x) => x.len(),
            View::Bool(x) | View::E4m3(x) | View::E5m2(x) => x.len(),
            View::Nvfp4(x) => x.len() * BLOCK,
        }
    }

    /// `len` elements from `at`; of nvfp4 both are whole blocks.
    pub fn part(self, at: usize, len: usize) -> View<'a> {
        match self {
            View::F32(x) => View::F32(&x[at..at + len]),
            View::Bf16(x) => View::Bf16(&x[at..at + len]),
            View::I32(x) => View::I32(&x[at..at + len]),
            View::Bool(x) => View::Bool(&x[at..at + len]),
            View::E4m3(x) => View::E4m3(&x[at..at + len]),
            View::E5m2(x) => View::E5m2(&x[at..at + len]),
            View::Nvfp4(x) => View::Nvfp4(&x[at / BLOCK..(at + len).div_ceil(BLOCK)]),
        }
    }

    /// One element as binary32.
    #[inline(always)]
    pub fn number(&self, at: usize) -> f32 {
        match self {
            View::F32(x) => x[at],
            View::Bf16(x) => bf16_value(x[at]),
            View::I32(x) => x[at] as f32,
            View::Bool(x) => f32::from(x[at]),
            View::E4m3(x) => e4m3_value(x[at]),
            View::E5m2(x) => e5m2_value(x[at]),
            View::Nvfp4(x) => block(&x[at / BLOCK]).values()[at % BLOCK],
        }
    }

    /// One element as an integer; floats hold whole numbers where this is asked for.
    pub fn integer(&self, at: usize) -> i32 {
        match self {
            View::I32(x) => x[at],
            other => other.number(at) as i32,
        }
    }

    /// `len` elements from `at` as binary32: where they lie, or widened into `scratch`, which must be as long.
    #[inline(always)]
    pub fn numbers<'s>(&self, at: usize, len: usize, scratch: &'s mut [f32]) -> &'s [f32]
    where
        'a: 's,
    {
        match self {
            View::F32(x) => return &x[at..at + len],
            View::Bf16(x) => decode(&x[at..at + len], scratch),
            View::I32(x) => scratch.iter_mut().zip(&x[at..at + len]).for_each(|(o, v)| *o = *v as f32),
            View::Bool(x) => scratch.iter_mut().zip(&x[at..at + len]).for_each(|(o, v)| *o = f32::from(*v)),
            View::E4m3(x) => scratch.iter_mut().zip(&x[at..at + len]).for_each(|(o, v)| *o = e4m3_value(*v)),
            View::E5m2(x) => scratch.iter_mut().zip(&x[at..at + len]).for_each(|(o, v)| *o = e5m2_value(*v)),
            View::Nvfp4(x) => decode_blocks(x, at, &mut scratch[..len]),
        }
        &scratch[..len]
    }

    /// All elements as binary32, owned.
    pub fn to_f32(self) -> Vec<f32> {
        let mut scratch = vec![0.0; self.len()];
        let len = self.len();
        match self {
            View::F32(x) => x.to_vec(),
            other => {
                other.numbers(0, len, &mut scratch);
                scratch
            }
        }
    }
}

/// Elements of a value, to be written.
#[derive(Debug)]
pub(crate) enum Target<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [u16]),
    I32(&'a mut [i32]),
    Bool(&'a mut [u8]),
    E4m3(&'a mut [u8]),
    E5m2(&'a mut [u8]),
    Nvfp4(&'a mut [BlockBytes]),
}

impl<'a> Target<'a> {
    /// See [`View::of`].
    pub fn of(dtype: DType, bytes: &'a mut [u8]) -> Target<'a> {
        match dtype {
            DType::F32 => Target::F32(cast_slice_mut(bytes)),
            DType::Bf16 => Target::Bf16(cast_slice_mut(bytes)),
            DType::I32 => Target::I32(cast_slice_mut(bytes)),
            DType::Bool => Target::Bool(bytes),
            DType::E4m3 => Target::E4m3(bytes),
            DType::E5m2 => Target::E5m2(bytes),
            DType::Nvfp4 => Target::Nvfp4(bytes.as_chunks_mut().0),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Target::F32(x) => x.len(),
            Target::Bf16(x) => x.len(),
            Target::I32(x) => x.len(),
            Target::Bool(x) | Target::E4m3(x) | Target::E5m2(x) => x.len(),
            Target::Nvfp4(x) => x.len() * BLOCK,
        }
    }

    /// What stands there.
    pub fn view(&self) -> View<'_> {
        match self {
            Target::F32(x) => View::F32(x),
            Target::Bf16(x) => View::Bf16(x),
            Target::I32(x) => View::I32(x),
            Target::Bool(x) => View::Bool(x),
            Target::E4m3(x) => View::E4m3(x),
            Target::E5m2(x) => View::E5m2(x),
            Target::Nvfp4(x) => View::Nvfp4(x),
        }
    }

    /// Writes numbers from `at` on, rounding to the format. Of nvfp4 they are whole blocks, which keep their elements where
    /// a block can have them and are rounded under the scale 1 otherwise.
    #[inline(always)]
    pub fn put(&mut self, at: usize, numbers: &[f32]) {
        let range = at..at + numbers.len();
        match self {
            Target::F32(x) => x[range].copy_from_slice(numbers),
            Target::Bf16(x) => encode(numbers, &mut x[range]),
            Target::I32(x) => x[range].iter_mut().zip(numbers).for_each(|(o, v)| *o = *v as i32),
            Target::Bool(x) => x[range].iter_mut().zip(numbers).for_each(|(o, v)| *o = u8::from(*v != 0.0)),
            Target::E4m3(x) => x[range].iter_mut().zip(numbers).for_each(|(o, v)| *o = e4m3_code(*v)),
            Target::E5m2(x) => x[range].iter_mut().zip(numbers).for_each(|(o, v)| *o = e5m2_code(*v)),
            Target::Nvfp4(x) => {
                for (o, numbers) in x[at / BLOCK..].iter_mut().zip(numbers.as_chunks().0) {
                    *o = bytes_of(Block::exactly(numbers).unwrap_or_else(|| Block::of(numbers, 1.0)));
                }
            }
        }
    }

    /// Copies `len` elements; formats that differ hold the same numbers (a weight is widened while its value is bf16).
    #[inline(always)]
    pub fn copy(&mut self, at: usize, from: View<'_>, from_at: usize, len: usize) {
        match (&mut *self, from) {
            (Target::F32(x), View::F32(y)) => copy_run(&y[from_at..from_at + len], &mut x[at..at + len]),
            (Target::Bf16(x), View::Bf16(y)) => copy_run(&y[from_at..from_at + len], &mut x[at..at + len]),
            (Target::I32(x), View::I32(y)) => x[at..at + len].copy_from_slice(&y[from_at..from_at + len]),
            (Target::Bool(x), View::Bool(y)) => x[at..at + len].copy_from_slice(&y[from_at..from_at + len]),
            (Target::E4m3(x), View::E4m3(y)) => x[at..at + len].copy_from_slice(&y[from_at..from_at + len]),
            (Target::E5m2(x), View::E5m2(y)) => x[at..at + len].copy_from_slice(&y[from_at..from_at + len]),
            (Target::Nvfp4(x), View::Nvfp4(y)) => {
                let blocks = from_at / BLOCK..(from_at + len).div_ceil(BLOCK);
                x[at / BLOCK..][..blocks.len()].copy_from_slice(&y[blocks]);
            }
            (Target::Nvfp4(_), y) => {
                let mut wide = vec![0.0; len];
                self.put(at, y.numbers(from_at, len, &mut wide));
            }
            (Target::Bf16(x), View::F32(y)) => encode_run(&y[from_at..from_at + len], &mut x[at..at + len]),
            (_, y) => (0..len).for_each(|i| self.put(at + i, &[y.number(from_at + i)])),
        }
    }

    /// The first `len` elements, at most all, and the others.
    pub fn split(self, len: usize) -> (Target<'a>, Target<'a>) {
        fn two<T>(x: &mut [T], len: usize) -> (&mut [T], &mut [T]) {
            x.split_at_mut(len.min(x.len()))
        }
        macro_rules! both {
            ($of:ident, $x:ident, $len:expr) => {{
                let (first, others) = two($x, $len);
                (Target::$of(first), Target::$of(others))
            }};
        }
        match self {
            Target::F32(x) => both!(F32, x, len),
            Target::Bf16(x) => both!(Bf16, x, len),
            Target::I32(x) => both!(I32, x, len),
            Target::Bool(x) => both!(Bool, x, len),
            Target::E4m3(x) => both!(E4m3, x, len),
            Target::E5m2(x) => both!(E5m2, x, len),
            Target::Nvfp4(x) => both!(Nvfp4, x, len.div_ceil(BLOCK)),
        }
    }
}

/// A block from memory.
#[inline(always)]
pub(crate) fn block(bytes: &BlockBytes) -> Block {
    let [codes @ .., scale] = *bytes;
    Block { scale, codes }
}

/// A block as memory keeps it.
#[inline(always)]
pub(crate) fn bytes_of(block: Block) -> BlockBytes {
    let [a, b, c, d, e, f, g, h] = block.codes;
    [a, b, c, d, e, f, g, h, block.scale]
}

/// Elements of blocks from `at` on.
fn decode_blocks(blocks: &[BlockBytes], at: usize, out: &mut [f32]) {
    let mut at = at;
    let mut rest = out;
    while !rest.is_empty() {
        let inside = at % BLOCK;
        let (now, after) = rest.split_at_mut((BLOCK - inside).min(rest.len()));
        now.copy_from_slice(&block(&blocks[at / BLOCK]).values()[inside..inside + now.len()]);
        at += now.len();
        rest = after;
    }
}

/// Elements that are one vector or two; parts of heads are a few times as many.
const SHORT: usize = 16;

/// `one` for every element of two runs of equal length. Short ones come often: [`SHORT`] elements at a time need neither a call nor
/// what a longer loop leaves over.
#[inline(always)]
fn by_short<A: Copy, B: Copy>(from: &[A], to: &mut [B], one: impl Fn(A) -> B) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<SHORT>(), to.as_chunks_mut::<SHORT>());
    for (from, to) in from.iter().zip(to) {
        from.iter().zip(to).for_each(|(from, to)| *to = one(*from));
    }
    from_rest.iter().zip(to_rest).for_each(|(from, to)| *to = one(*from));
}

/// Copies a run of equal length.
#[inline(always)]
pub(crate) fn copy_run<T: Copy>(from: &[T], to: &mut [T]) {
    by_short(from, to, |x| x);
}

/// One number for a whole run.
#[inline(always)]
pub(crate) fn fill_run(x: f32, to: &mut [f32]) {
    let (short, rest) = to.as_chunks_mut::<SHORT>();
    short.iter_mut().for_each(|to| *to = [x; SHORT]);
    rest.fill(x);
}

/// Widens a run of equal length; see [`decode`].
#[inline(always)]
pub(crate) fn decode_run(bits: &[u16], out: &mut [f32]) {
    by_short(bits, out, bf16_value);
}

/// Rounds a run of equal length; see [`encode`].
#[inline(always)]
pub(crate) fn encode_run(x: &[f32], out: &mut [u16]) {
    by_short(x, out, bf16_bits);
}

/// Widens bf16 patterns. Inlined wherever it is used, so that it gets the vectors of its user.
#[inline(always)]
pub(crate) fn decode(bits: &[u16], out: &mut [f32]) {
    out.iter_mut().zip(bits).for_each(|(o, b)| *o = bf16_value(*b));
}

/// Rounds to bf16 patterns; see [`decode`].
#[inline(always)]
pub(crate) fn encode(x: &[f32], out: &mut [u16]) {
    out.iter_mut().zip(x).for_each(|(o, v)| *o = bf16_bits(*v));
}

//! The matrix unit of x86-64 processors (AMX): the one place of the kernels that needs `unsafe`.
//!
//! `tdpbf16ps` multiplies a tile of 16 rows with one of 16 outputs over a block of 32 terms and adds in the order `pairs`
//! ([`numerics::pairs_of`]): a running total of the products at even places and one at odd places, both added, then added to the tile.
//! It differs in one thing: a subnormal number counts as zero, whether it comes in or is about to come out. Who calls sees to it
//! that there is none (`pairs.rs`).
//!
//! The compiler has no stable functions for these instructions, and no library wraps them without asking for the same promises.
//! What is unsafe is three statements: asking the system for the unit, asking the processor whether it has it, and the loop. All
//! memory that the loop touches lies in slices whose lengths are checked before.

#![allow(unsafe_code)]

/// Terms, or pairs of two terms of an output: a row of a tile.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Line(pub [u16; numerics::PAIRS]);

/// Outputs that are multiplied together: two tiles of the weight.
pub(crate) const OUTPUTS: usize = 32;

/// Lines of a block of a weight for [`OUTPUTS`]: sixteen of pairs for the first half of them, then sixteen for the rest.
pub(crate) const BLOCK_LINES: usize = 32;

/// That this process may use the unit, and that it adds as it should.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiles(());

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod unit {
    use super::{BLOCK_LINES, Line, OUTPUTS, Tiles};
    use std::arch::asm;
    use std::sync::OnceLock;

    /// Rows of a tile.
    const ROWS: usize = 16;

    /// What the unit is told of its tiles: rows of each and bytes in a row.
    #[repr(C, align(64))]
    struct Shape {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        rows: [u8; 16],
    }

    impl Shape {
        /// Totals in 0 to 3, rows of x in 4 and 5, outputs in 6 and 7; tiles without rows do not exist.
        fn of(upper: usize, lower: usize) -> Shape {
            let mut shape = Shape { palette: 1, start: 0, reserved: [0; 14], bytes: [0; 16], rows: [0; 16] };
            for (tile, rows) in [upper, upper, lower, lower, upper, lower, ROWS, ROWS].into_iter().enumerate() {
                if rows > 0 {
                    (shape.bytes[tile], shape.rows[tile]) = (64, rows as u8);
                }
            }
            shape
        }
    }

    /// The processor has the unit, and the system lets this process use it.
    fn granted() -> bool {
        // The seventh list of features is there where this feature is.
        if !std::arch::is_x86_feature_detected!("avx512f") {
            return false;
        }
        // SAFETY: every processor of this architecture has the instruction, which reads and writes four registers. It is a safe
        // function in newer compilers.
        #[allow(unused_unsafe)]
        let features = unsafe { std::arch::x86_64::__cpuid_count(7, 0) }.edx;
        let (bf16, tile) = (features >> 22 & 1, features >> 24 & 1);
        if (bf16, tile) != (1, 1) {
            return false;
        }
        const ARCH_PRCTL: i64 = 158;
        const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        let mut answer = ARCH_PRCTL;
        // SAFETY: this call of the system touches no memory of the process; it may make the frame of a signal larger and fails if a
        // thread has prepared a stack for signals that is too small for it. What it overwrites is named.
        unsafe {
            asm!("syscall", inlateout("rax") answer, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") TILE_DATA,
                lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        answer == 0
    }

    /// Whether the unit adds in the order that its maker states, tried on made-up numbers of all sizes that matter.
    fn agrees(tiles: Tiles) -> bool {
        const BLOCKS: usize = 3;
        let draw = |seed: u64, i: usize| {
            let x = numerics::synthetic(seed, 0, i as u64);
            numerics::bf16_bits(x * [1.0, 1024.0, 2f32.powi(-9)][i % 7 % 3])
        };
        let made = |seed: u64, lines: usize| -> Vec<Line> {
            (0..lines).map(|l| Line(std::array::from_fn(|i| draw(seed, l * numerics::PAIRS + i)))).collect()
        };
        let rows = ROWS + 3;
        let (x, w) = (made(1, rows * BLOCKS), made(2, BLOCKS * BLOCK_LINES));
        let mut out = vec![[f32::NAN; OUTPUTS]; rows];
        tiles.multiply(&x, BLOCKS, &w, &mut out);
        out.iter().enumerate().all(|(row, out)| {
            out.iter().enumerate().all(|(output, found)| {
                let wanted = numerics::pairs_of(BLOCKS * numerics::PAIRS, |i| {
                    let (block, term) = (i / numerics::PAIRS, i % numerics::PAIRS);
                    let line = block * BLOCK_LINES + output / ROWS * ROWS + term / 2;
                    let w = w[line].0[output % ROWS * 2 + term % 2];
                    (numerics::bf16_value(x[row * BLOCKS + block].0[term]), numerics::bf16_value(w))
                });
                numerics::same_bits(*found, wanted)
            })
        })
    }

    impl Tiles {
        /// The unit, where there is one.
        pub fn here() -> Option<Tiles> {
            static HERE: OnceLock<bool> = OnceLock::new();
            HERE.get_or_init(|| granted() && agrees(Tiles(()))).then_some(Tiles(()))
        }

        /// Rows of `blocks` lines each in `x`, times outputs in `w`, [`BLOCK_LINES`] lines a block, block after block for every
        /// [`OUTPUTS`] of them; into `out`, in which all rows of the first outputs come first. What no slice has room for is left out.
        pub fn multiply(self, x: &[Line], blocks: usize, w: &[Line], out: &mut [[f32; OUTPUTS]]) {
            let rows = x.len().checked_div(blocks).unwrap_or(0);
            let panel = blocks * BLOCK_LINES;
            if rows == 0 {
                return;
            }
            for first in (0..rows).step_by(2 * ROWS) {
                let upper = (rows - first).min(ROWS);
                let lower = (rows - first - upper).min(ROWS);
                let shape = Shape::of(upper, lower);
                // SAFETY: `Tiles` is only made where the process may use the unit. `shape` is 64 bytes of the layout that the
                // instruction reads, with palette 1 and no tile larger than it allows.
                unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const shape, options(nostack, readonly)) };
                for (w, out) in w.chunks_exact(panel).zip(out.chunks_exact_mut(rows)) {
                    let x = &x[first * blocks..][..(upper + lower) * blocks];
                    group(x, blocks, w, &mut out[first..][..upper + lower]);
                }
            }
            // SAFETY: as above; the unit is left as it was found.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// At most two tiles of rows times two tiles of outputs. Tiles have the shapes of these rows.
    #[inline(always)]
    fn group(x: &[Line], blocks: usize, w: &[Line], out: &mut [[f32; OUTPUTS]]) {
        let rows = out.len();
        debug_assert!(blocks > 0 && x.len() == rows * blocks && w.len() == blocks * BLOCK_LINES && rows <= 2 * ROWS);
        let stride = blocks * size_of::<Line>();
        let (x, w, out) = (x.as_ptr(), w.as_ptr(), out.as_mut_ptr());
        if rows <= ROWS {
            // SAFETY: tile 4 reads `rows` lines that are `blocks` lines apart, from the first of them on and a line further in each
            // of `blocks` rounds, so exactly `x`; tiles 6 and 7 read 16 lines each and 32 further on in each round, so exactly
            // `w`; tiles 0 and 1 write halves of `rows` elements of `out`. Lengths are those that the caller cut. Tiles used
            // here exist in the loaded shape. No stack is used; flags and tiles are said to be overwritten.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1",
                    "2:",
                    "tileloadd tmm4, [{x} + {stride}*1]",
                    "tileloadd tmm6, [{w} + {line}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {line}*1 + 1024]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {x}, 64", "add {w}, 2048", "dec {n}", "jnz 2b",
                    "tilestored [{out} + {wide}*1], tmm0",
                    "tilestored [{out} + {wide}*1 + 64], tmm1",
                    x = inout(reg) x => _, w = inout(reg) w => _, n = inout(reg) blocks => _,
                    stride = in(reg) stride, line = in(reg) 64u64, out = in(reg) out, wide = in(reg) 128u64,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
            return;
        }
        // SAFETY: as above, with 16 rows in tile 4 and the rest, at least one, in tile 5; their results in 0 and 1, and 2 and 3. Both
        // pointers stay inside of their slices: more than 16 rows are there.
        unsafe {
            let (lower_x, lower_out) = (x.add(ROWS * blocks), out.add(ROWS));
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{x} + {stride}*1]",
                "tileloadd tmm6, [{w} + {line}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{w} + {line}*1 + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{y} + {stride}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {x}, 64", "add {y}, 64", "add {w}, 2048", "dec {n}", "jnz 2b",
                "tilestored [{out} + {wide}*1], tmm0",
                "tilestored [{out} + {wide}*1 + 64], tmm1",
                "tilestored [{low} + {wide}*1], tmm2",
                "tilestored [{low} + {wide}*1 + 64], tmm3",
                x = inout(reg) x => _, y = inout(reg) lower_x => _, w = inout(reg) w => _, n = inout(reg) blocks => _,
                stride = in(reg) stride, line = in(reg) 64u64, out = in(reg) out, low = in(reg) lower_out, wide = in(reg) 128u64,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl Tiles {
    /// No unit that is known.
    pub fn here() -> Option<Tiles> {
        None
    }

    /// Nothing: there is no unit.
    pub fn multiply(self, _: &[Line], _: usize, _: &[Line], _: &mut [[f32; OUTPUTS]]) {}
}

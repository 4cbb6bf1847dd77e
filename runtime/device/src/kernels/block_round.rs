//! Numbers in blocks under one scale each.

use super::Kernel;
use super::nest::Shape;
use crate::view::{Target, View, bytes_of};
use ir::DType;
use numerics::{BLOCK, Block};

/// A kernel that makes nvfp4.
#[derive(Debug)]
pub(crate) struct BlockRound;

impl BlockRound {
    /// Prepares the kernel: rows of whole blocks, under one number.
    pub fn new(x: &Shape, g: &Shape, out: &Shape) -> Result<BlockRound, String> {
        if x != out || g.rows.is_some() || g.row != 1 {
            return Err(format!("blocks of {:?} under {} numbers that leave {:?}", x.axes, g.row, out.axes));
        }
        Ok(BlockRound)
    }

    pub fn run(&self, operands: &[View<'_>], out: Target<'_>) -> super::KernelResult {
        let Target::Nvfp4(blocks) = out else { return Err("blocks whose result is not nvfp4".to_owned()) };
        let g = operands[1].number(0);
        let mut wide = [0.0; BLOCK];
        for (i, place) in blocks.iter_mut().enumerate() {
            let numbers = operands[0].numbers(i * BLOCK, BLOCK, &mut wide);
            if let Some(numbers) = numbers.first_chunk() {
                *place = bytes_of(Block::of(numbers, g));
            }
        }
        Ok(())
    }
}

/// Demands that rows of a value in nvfp4 are whole blocks, and that what leaves it keeps them whole.
pub(crate) fn whole_blocks(kernel: &Kernel, shape: &Shape) -> Result<(), String> {
    if !shape.row.is_multiple_of(BLOCK) {
        return Err(format!("{} elements a row in {}, which has blocks of {BLOCK}", shape.row, DType::Nvfp4));
    }
    match kernel {
        Kernel::Moves(k) if k.aligned(BLOCK) => Ok(()),
        Kernel::ShiftRows(k) if k.row.is_multiple_of(BLOCK) => Ok(()),
        Kernel::Gather(k) if k.aligned(BLOCK) => Ok(()),
        Kernel::Elementwise(_) | Kernel::BlockRound(_) => Ok(()),
        _ => Err(format!("an operation on {} that takes its blocks of {BLOCK} apart", DType::Nvfp4)),
    }
}

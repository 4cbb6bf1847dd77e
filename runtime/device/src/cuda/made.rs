//! Weights that were made up on a device, read back where a check needs them.

use super::walk::Loaded;
use crate::error::NOT_LOADED;
use artifact::{Piece, WeightMemory};
use interp::{Data, Fault, InterpError, Tensor, WeightSource};
use ir::{DType, Facts, Scope};
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Scope, name and layer of a weight.
type Key = (Scope, String, Option<usize>);

/// A rank's weights as its device has them. Those of one layer are kept until another's are asked for.
pub struct Made<'a> {
    loaded: &'a Loaded,
    memory: &'a WeightMemory,
    facts: Facts,
    kept: RefCell<HashMap<Key, Arc<Tensor>>>,
}

impl<'a> Made<'a> {
    /// Those of a rank; `facts` are as it sees them.
    pub fn new(loaded: &'a Loaded, memory: &'a WeightMemory, facts: &Facts) -> Made<'a> {
        Made { loaded, memory, facts: facts.clone(), kept: RefCell::default() }
    }

    fn read(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<Tensor, String> {
        let has = |p: &Piece| p.scope == scope && p.layer == layer && p.parts.iter().any(|part| part.weight == name);
        let piece = self.memory.pieces.iter().find(|p| has(p)).ok_or(NOT_LOADED)?;
        let index = piece.parts.iter().position(|part| part.weight == name).ok_or(NOT_LOADED)?;
        let part = piece.parts.get(index).ok_or(NOT_LOADED)?;
        let mut bytes = vec![0u8; piece.bytes().unwrap_or(0) as usize];
        self.loaded.weights.read(piece.offset_bytes, &mut bytes)?;
        let width = piece.row_elements as usize;
        let size = piece.dtype.bytes_for(piece.row_elements) as usize;
        // Where the part's rows stand among those of the piece, the same for every pick.
        let own = (0..piece.rows).filter_map(|row| Some((row, piece.row(row).filter(|(of, _)| *of == index)?.1)));
        let own: Vec<(usize, usize)> = own.map(|(from, to)| (from as usize, to as usize)).collect();
        let mut numbers = vec![0f32; (piece.lead * part.rows) as usize * width];
        let picks = numbers.par_chunks_mut((part.rows as usize * width).max(1));
        picks.zip(bytes.par_chunks((piece.rows as usize * size).max(1))).for_each(|(numbers, bytes)| {
            for (from, to) in &own {
                let (to, from) =
                    (numbers.get_mut(to * width..(to + 1) * width), bytes.get(from * size..(from + 1) * size));
                if let (Some(to), Some(from)) = (to, from) {
                    widen(piece.dtype, from, to);
                }
            }
        });
        let weight = self.facts.weights.iter().find(|w| w.scope == scope && w.name == name).ok_or(NOT_LOADED)?;
        let ty = weight.ty();
        let length = |a: &ir::Axis| if let ir::Extent::Fixed(n) = a.extent { n as usize } else { 1 };
        let axes = ty.axes.iter().map(|a| (a.name.clone(), length(a))).collect();
        Tensor::new(axes, ty.dtype, Data::F32(numbers)).map_err(|e| e.to_string())
    }
}

fn widen(dtype: DType, from: &[u8], to: &mut [f32]) {
    if dtype == DType::Bf16 {
        let number = |b: &[u8]| numerics::bf16_value(u16::from_le_bytes([b[0], b[1]]));
        from.chunks_exact(2).zip(to).for_each(|(b, x)| *x = number(b));
    } else {
        let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        from.chunks_exact(4).zip(to).for_each(|(b, x)| *x = number(b));
    }
}

impl WeightSource for Made<'_> {
    fn weight(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<Arc<Tensor>, InterpError> {
        let layer = if scope == Scope::Model { None } else { layer };
        let key = (scope, name.to_owned(), layer);
        if let Some(kept) = self.kept.borrow().get(&key) {
            return Ok(kept.clone());
        }
        let fault = |scope| InterpError { fault: Fault::NoWeight { name: name.to_owned(), scope }, value: None, layer };
        let read = Arc::new(self.read(scope, name, layer).map_err(fault)?);
        let mut kept = self.kept.borrow_mut();
        kept.retain(|(_, _, of), _| *of == layer);
        kept.insert(key, read.clone());
        Ok(read)
    }
}

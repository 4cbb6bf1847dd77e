//! Weights that were made up on a device, read back where a check needs them: whole, or some of their rows.

use super::walk::Loaded;
use crate::error::NOT_LOADED;
use artifact::{Part, Piece, WeightMemory};
use interp::{Data, Fault, InterpError, Tensor, WeightSource};
use ir::{DType, Facts, Scope, WeightRef};
use rayon::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Scope, name and layer of a weight.
type Key = (Scope, String, Option<usize>);

/// A rank's weights as its device has them. Those of the model are kept, those of one layer until another's are asked for.
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

    fn find(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<(&Piece, usize, &Part), String> {
        let has = |p: &Piece| p.scope == scope && p.layer == layer && p.parts.iter().any(|part| part.weight == name);
        let piece = self.memory.pieces.iter().find(|p| has(p)).ok_or(NOT_LOADED)?;
        let index = piece.parts.iter().position(|part| part.weight == name).ok_or(NOT_LOADED)?;
        Ok((piece, index, piece.parts.get(index).ok_or(NOT_LOADED)?))
    }

    /// Rows of a weight's innermost `k` numbers, which a sum is over: of `picks` among so many groups those of `columns`. Columns of weights that are
    /// packed as one follow each other part by part.
    pub fn rows(
        &self,
        reference: &WeightRef,
        layer: Option<usize>,
        (groups, picks, columns): (usize, &[usize], &[usize]),
        k: usize,
    ) -> Result<Vec<f32>, String> {
        let parts = match reference {
            WeightRef::Packed { parts, .. } => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut numbers = vec![0f32; picks.len() * columns.len() * k];
        let mut first = 0;
        for part in parts {
            let (scope, name, layer) = match part {
                WeightRef::Model(name) => (Scope::Model, name, None),
                WeightRef::Layer(name) => (Scope::Layer, name, layer),
                WeightRef::FirstLayer(name) => (Scope::Layer, name, Some(0)),
                WeightRef::OfLayer { layer, name } => (Scope::Layer, name, Some(*layer)),
                WeightRef::Next { .. } | WeightRef::Packed { .. } => return Err("no weight of a product".to_owned()),
            };
            let (piece, index, part) = self.find(scope, name, layer)?;
            let places = Places::of(piece, index, part);
            let each = part.shape.iter().product::<u64>() as usize / (groups * k).max(1);
            for (i, pick) in picks.iter().enumerate() {
                for (j, column) in columns.iter().enumerate() {
                    let Some(own) = column.checked_sub(first).filter(|own| *own < each) else { continue };
                    let to = (i * columns.len() + j) * k;
                    let to = numbers.get_mut(to..to + k).ok_or("a row has no place")?;
                    self.run(piece, &places, (pick * each + own) * k, to)?;
                }
            }
            first += each;
        }
        match columns.last() {
            Some(last) if *last >= first => Err(format!("column {last} of a weight that has {first}")),
            _ => Ok(numbers),
        }
    }

    /// Elements of a part that follow each other from one on.
    fn run(&self, piece: &Piece, places: &Places, element: usize, to: &mut [f32]) -> Result<(), String> {
        let mut done = 0;
        while done < to.len() {
            let (at, count) = places.at(element + done).ok_or("an element has no place")?;
            let to = &mut to[done..];
            let count = count.min(to.len());
            let mut bytes = vec![0u8; piece.dtype.bytes_for(count as u64) as usize];
            self.loaded.weights.read(piece.offset_bytes + piece.dtype.bytes_for(at as u64), &mut bytes)?;
            widen(piece.dtype, &bytes, &mut to[..count]);
            done += count;
        }
        Ok(())
    }

    fn read(&self, scope: Scope, name: &str, layer: Option<usize>) -> Result<Tensor, String> {
        let (piece, index, part) = self.find(scope, name, layer)?;
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

/// Where the elements of a part lie in its piece.
struct Places {
    /// The piece's row of each row of the part.
    rows: Vec<usize>,
    rows_of_piece: usize,
    width: usize,
}

impl Places {
    fn of(piece: &Piece, index: usize, part: &Part) -> Places {
        let mut rows = vec![0; part.rows as usize];
        for row in 0..piece.rows {
            if let Some((_, own)) = piece.row(row).filter(|(of, _)| *of == index) {
                rows[own as usize] = row as usize;
            }
        }
        Places { rows, rows_of_piece: piece.rows as usize, width: piece.row_elements as usize }
    }

    /// The place of an element, and how many follow it there as they do in the part.
    fn at(&self, element: usize) -> Option<(usize, usize)> {
        let (row, inside) = (element / self.width, element % self.width);
        let own = self.rows.get(row % self.rows.len())?;
        Some(((row / self.rows.len() * self.rows_of_piece + own) * self.width + inside, self.width - inside))
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
        if layer.is_some() {
            kept.retain(|(_, _, of), _| of.is_none() || *of == layer);
        }
        kept.insert(key, read.clone());
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::Interleave;

    fn part(weight: &str, rows: u64, shape: &[u64]) -> Part {
        Part { weight: weight.to_owned(), rows, shape: shape.to_vec(), split: Vec::new() }
    }

    #[test]
    fn elements_of_a_part_are_found_where_the_piece_has_them() {
        let parts = vec![part("gate", 6, &[3, 6, 4]), part("up", 6, &[3, 6, 4])];
        let interleave = Some(Interleave { cuts: 2, granule: 2 });
        let piece = Piece {
            scope: Scope::Layer,
            layer: Some(0),
            dtype: DType::Bf16,
            offset_bytes: 0,
            lead: 3,
            rows: 12,
            row_elements: 4,
            once: false,
            interleave,
            parts,
        };
        let mesh = ir::Mesh::default();
        let mut seen = 0;
        for (index, part) in piece.parts.iter().enumerate() {
            let places = Places::of(&piece, index, part);
            for element in 0..72 {
                let (at, more) = places.at(element).expect("a place");
                assert_eq!(piece.source(&mesh, 0, at as u64), Some((index, element as u64)));
                assert_eq!(more, 4 - element % 4);
                seen += 1;
            }
        }
        assert_eq!(seen, piece.elements().expect("a count"));
    }
}

//! Weights and kernels, put on the device.

use super::driver::{Device, Kernel, Memory, Staging};
use crate::error::{NOT_LOADED, PrepareError};
use crate::store::WeightStore;
use artifact::{Artifact, DeviceCode, Part, Piece};
use ir::{DType, Instance, Mesh, Scope, WeightRef};
use rayon::prelude::*;
use std::collections::HashMap;

/// Device memory of all weights, and where each lies.
pub struct Weights {
    memory: Memory,
    offsets: HashMap<(Scope, Option<usize>, String), u64>,
}

/// Bytes that are made ready at once, and how many such pieces are on their way to the device or being made.
const STREAM_BYTES: usize = 64 << 20;
const STREAMS: usize = 3;
/// Elements that one thread makes ready at once.
const AT_ONCE: usize = 1 << 16;

/// Bytes of made-up numbers after which the same follow again. No multiple of a row's length: rows of two weights, or of an embedding and a weight, would
/// be the same numbers, and their product a sum of squares, which grows as no sum of a model does.
const MADE_BYTES: usize = (64 << 20) - 48;

/// What weights of one axis are made of: it makes the scores of attentions large, so that few keys have nearly all of the weight and tokens stay
/// apart.
const VECTOR: f32 = 2.5;

fn fault(text: String) -> PrepareError {
    PrepareError::Device(text)
}

impl Weights {
    /// Copies a rank's part of every piece of the weight memory: while some of it is on its way, what follows is made ready.
    pub fn load(
        device: &Device,
        artifact: &Artifact,
        store: &dyn WeightStore,
        rank: u64,
    ) -> Result<Weights, PrepareError> {
        let map = &artifact.memory;
        let Weights { memory, offsets } = Weights::empty(device, artifact)?;
        let chunk_bytes = STREAM_BYTES.min(memory.bytes());
        let ring = (0..STREAMS).map(|_| Staging::new(device, chunk_bytes)).collect::<Result<Vec<_>, _>>();
        let mut ring = ring.map_err(fault)?;
        let mut turns = (0..STREAMS).cycle();
        for piece in &map.pieces {
            let each = element_bytes(piece)?;
            let elements = piece.elements().unwrap_or(0) as usize;
            for first in (0..elements).step_by(chunk_bytes / each) {
                let count = (chunk_bytes / each).min(elements - first);
                let Some(staging) = turns.next().and_then(|turn| ring.get_mut(turn)) else { continue };
                staging.begin().map_err(fault)?;
                let to = piece.offset_bytes as usize + first * each;
                let mut made = Ok(());
                let make = |bytes: &mut [u8]| made = encode(piece, store, (&map.mesh, rank), first, bytes);
                staging.send_made(&memory, to, count * each, make).map_err(fault)?;
                staging.end().map_err(fault)?;
                made?;
            }
        }
        ring.iter_mut().try_for_each(Staging::begin).map_err(fault)?;
        Ok(Weights { memory, offsets })
    }

    /// Numbers made up from a seed, on the device: those of the first `MADE_BYTES` again and again, so that no memory of the host holds
    /// a model that only the device can. They are bf16 between -1/32 and 1/32; two side by side are such a binary32 number. Weights of
    /// one axis (norms, biases) are all `VECTOR`.
    pub fn synthetic(device: &Device, artifact: &Artifact, seed: u64) -> Result<Weights, PrepareError> {
        let weights = Weights::empty(device, artifact)?;
        let memory = &weights.memory;
        let first = memory.bytes().min(MADE_BYTES);
        let number = |i: usize| numerics::bf16_bits((numerics::uniform(seed, i as u64) - 0.5) / 16.0).to_le_bytes();
        let numbers: Vec<u8> = (0..first.div_ceil(2)).flat_map(number).take(first).collect();
        memory.write(0, &numbers).map_err(fault)?;
        let mut done = first;
        while done < memory.bytes() {
            let more = done.min(memory.bytes() - done);
            memory.copy_within(0, done, more).map_err(fault)?;
            done += more;
        }
        for piece in artifact.memory.pieces.iter().filter(|p| is_vector(p)) {
            let count = (piece.lead * piece.rows * piece.row_elements) as usize;
            let one = if piece.dtype == DType::Bf16 {
                numerics::bf16_bits(VECTOR).to_le_bytes().to_vec()
            } else {
                VECTOR.to_le_bytes().to_vec()
            };
            memory.write(piece.offset_bytes as usize, &one.repeat(count)).map_err(fault)?;
        }
        Ok(weights)
    }

    /// Reads bytes of the weights back.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), String> {
        self.memory.read(at as usize, bytes)
    }

    /// Memory for all weights, and where each lies.
    fn empty(device: &Device, artifact: &Artifact) -> Result<Weights, PrepareError> {
        let map = &artifact.memory;
        let bytes =
            usize::try_from(map.bytes).map_err(|_| fault("the weights are larger than any memory".to_owned()))?;
        let memory = device.allocate(bytes).map_err(fault)?;
        let mut offsets = HashMap::new();
        for piece in &map.pieces {
            let first = piece.parts.first().ok_or_else(|| fault("a piece of weights has no part".to_owned()))?;
            offsets.insert((piece.scope, piece.layer, first.weight.clone()), piece.offset_bytes);
        }
        Ok(Weights { memory, offsets })
    }

    /// Address of a weight as a graph names it, when it runs as instance `instance`.
    pub fn address(
        &self,
        reference: &WeightRef,
        instances: &[Instance],
        instance: Option<usize>,
    ) -> Result<u64, String> {
        let layer = |i: usize| instances.get(i).map(|i| i.layer);
        let own = || instance.and_then(layer).ok_or_else(|| "a layer's weight outside the layers".to_owned());
        let key = match reference {
            WeightRef::Model(name) => (Scope::Model, None, name),
            WeightRef::Layer(name) => (Scope::Layer, Some(own()?), name),
            WeightRef::FirstLayer(name) => (Scope::Layer, layer(0), name),
            WeightRef::OfLayer { layer, name } => (Scope::Layer, Some(*layer), name),
            WeightRef::Next { layer: name, last } => match instance.and_then(|i| layer(i + 1)) {
                Some(next) => (Scope::Layer, Some(next), name),
                None => (Scope::Model, None, last),
            },
            WeightRef::Packed { parts, .. } => {
                let first = parts.first().ok_or_else(|| "a packed weight has no part".to_owned())?;
                return self.address(first, instances, instance);
            }
        };
        let offset = self.offsets.get(&(key.0, key.1, key.2.clone()));
        let offset = offset.ok_or_else(|| format!("weight `{}` has no place", key.2))?;
        Ok(self.memory.address() + offset)
    }
}

/// Whether a piece is made of weights of one axis. A matrix that is kept as it is counts as a single row, so rows do not tell.
fn is_vector(piece: &Piece) -> bool {
    piece.parts.iter().all(|part| part.shape.len() == 1)
}

/// Bytes of an element of a piece as kernels read it.
fn element_bytes(piece: &Piece) -> Result<usize, PrepareError> {
    match piece.dtype {
        DType::Bf16 => Ok(2),
        DType::F32 => Ok(4),
        kept => Err(fault(format!("{} is kept in {kept}, for which this build has no device kernel", piece.title()))),
    }
}

/// The bytes of a piece's elements from `first` on, on a rank of a mesh, rows in the order in which kernels read them.
fn encode(
    piece: &Piece,
    store: &dyn WeightStore,
    (mesh, rank): (&Mesh, u64),
    first: usize,
    bytes: &mut [u8],
) -> Result<(), PrepareError> {
    let (each, run) = (element_bytes(piece)?, run(piece));
    let part_of = |(number, bytes): (usize, &mut [u8])| -> Result<(), PrepareError> {
        let begin = first + number * AT_ONCE;
        let end = begin + bytes.len() / each;
        let mut numbers = vec![0.0; run.min(end - begin)];
        let (mut element, mut bytes) = (begin, bytes);
        while element < end {
            let count = (run - element % run).min(end - element);
            let numbers = numbers.get_mut(..count).unwrap_or_default();
            fetch(piece, store, (mesh, rank), element, numbers)?;
            let (now, rest) = std::mem::take(&mut bytes).split_at_mut(count * each);
            match piece.dtype {
                DType::Bf16 => {
                    let pairs = now.chunks_exact_mut(2).zip(numbers);
                    pairs.for_each(|(b, x)| b.copy_from_slice(&numerics::bf16_bits(*x).to_le_bytes()));
                }
                _ => now.chunks_exact_mut(4).zip(numbers).for_each(|(b, x)| b.copy_from_slice(&x.to_le_bytes())),
            }
            (element, bytes) = (element + count, rest);
        }
        Ok(())
    };
    bytes.par_chunks_mut(AT_ONCE * each).enumerate().try_for_each(part_of)
}

/// Elements of a piece from one on, as they stand side by side in a whole weight.
fn fetch(
    piece: &Piece,
    store: &dyn WeightStore,
    (mesh, rank): (&Mesh, u64),
    element: usize,
    into: &mut [f32],
) -> Result<(), PrepareError> {
    let nowhere = || fault(format!("{} has no element {element}", piece.title()));
    let (part, start) = piece.source(mesh, rank, element as u64).ok_or_else(nowhere)?;
    let (part, start) = (piece.parts.get(part).ok_or_else(nowhere)?, start as usize);
    if store.read(piece.scope, &part.weight, piece.layer, start, into) {
        return Ok(());
    }
    Err(match store.elements(piece.scope, &part.weight, piece.layer) {
        None => PrepareError::WeightMissing {
            graph: "any".to_owned(),
            weight: format!("`{}`", part.weight),
            fact: NOT_LOADED,
        },
        Some(found) => PrepareError::WeightSize {
            graph: "any".to_owned(),
            weight: piece.title(),
            found,
            needed: start + into.len(),
        },
    })
}

/// Elements of a piece that stand side by side in a whole weight, wherever they begin at a multiple of their number.
fn run(piece: &Piece) -> usize {
    if piece.once {
        return 1;
    }
    // Behind the innermost axis that is spread over ranks a part is as the whole; of that axis it has a stretch.
    let behind = |part: &Part| {
        let last = part.split.iter().map(|s| s.axis).max().unwrap_or(0);
        part.shape.iter().skip(last).product::<u64>()
    };
    let runs = piece.parts.iter().map(behind).chain([piece.row_elements]);
    runs.reduce(greatest_divisor).unwrap_or(1).max(1) as usize
}

fn greatest_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Every kernel of the artifact, with as many parameters as its starts have.
pub fn kernels(device: &Device, code: &DeviceCode) -> Result<Vec<Kernel>, PrepareError> {
    let choosing = code.choice.iter().flat_map(|c| c.kernels());
    let regions = || code.entries.iter().flatten().flat_map(|g| &g.regions);
    let others = regions().flat_map(|region| {
        let known = |a: &artifact::Alternative| Some((a.kernel, region.starts.get(a.start)?.params.len()));
        region.alternatives.iter().filter_map(known)
    });
    let known: HashMap<usize, usize> = choosing.chain(others).collect();
    let load = |(index, kernel): (usize, &artifact::KernelCode)| {
        let cubin = code.files.get(&kernel.cubin());
        let cubin = cubin.ok_or_else(|| fault(format!("`{}` is not in the artifact", kernel.cubin())))?;
        let starts = || regions().flat_map(|r| &r.starts);
        let started = || starts().find(|s| s.kernel == index).map_or(0, |s| s.params.len());
        let parameters = known.get(&index).copied().unwrap_or_else(started);
        device.load(cubin, &kernel.name, parameters, kernel.dynamic_bytes).map_err(fault)
    };
    code.kernels.iter().enumerate().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use artifact::{Interleave, Split};
    use std::sync::Arc;

    #[test]
    fn a_matrix_is_no_vector_although_it_is_one_row() {
        let piece = |shape: &[u64]| Piece {
            scope: Scope::Model,
            layer: None,
            dtype: DType::Bf16,
            offset_bytes: 0,
            lead: 1,
            rows: 1,
            row_elements: shape.iter().product(),
            once: false,
            interleave: None,
            parts: vec![Part { weight: "a".to_owned(), rows: 1, shape: shape.to_vec(), split: Vec::new() }],
        };
        assert!(is_vector(&piece(&[48])) && !is_vector(&piece(&[6, 8])));
    }

    struct Counted;

    impl WeightStore for Counted {
        fn f32(&self, _: Scope, name: &str, _: Option<usize>) -> Option<Arc<Vec<f32>>> {
            let first = if name == "a" { 0.0 } else { 100.0 };
            Some(Arc::new((0..48).map(|i| first + i as f32).collect()))
        }
    }

    fn part(weight: &str, shape: [u64; 2], axis: usize, length: u64) -> Part {
        let split = vec![Split { axis, length, over: vec!["tp".to_owned()] }];
        Part { weight: weight.to_owned(), rows: shape[0], shape: shape.to_vec(), split }
    }

    fn of_rank(piece: &Piece, rank: u64) -> Vec<f32> {
        let mesh = Mesh::parse("tp=2").expect("a mesh");
        let each = element_bytes(piece).expect("a format");
        let mut bytes = vec![0; piece.elements().expect("elements") as usize * each];
        encode(piece, &Counted, (&mesh, rank), 0, &mut bytes).expect("bytes");
        // A stretch from the middle on is the same.
        let mut rest = vec![0; bytes.len() - 7 * each];
        encode(piece, &Counted, (&mesh, rank), 7, &mut rest).expect("bytes");
        assert_eq!(rest, bytes[7 * each..]);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    #[test]
    fn a_rank_gets_its_part_of_columns_and_of_packed_rows() {
        let piece = |rows, row_elements, interleave, parts| Piece {
            scope: Scope::Model,
            layer: None,
            dtype: DType::F32,
            offset_bytes: 0,
            lead: 1,
            rows,
            row_elements,
            once: false,
            interleave,
            parts,
        };
        let columns = piece(4, 6, None, vec![part("a", [4, 6], 1, 12)]);
        let wanted = |rank: usize| (0..4).flat_map(move |r| (0..6).map(move |c| (r * 12 + rank * 6 + c) as f32));
        assert_eq!(of_rank(&columns, 0), wanted(0).collect::<Vec<_>>());
        assert_eq!(of_rank(&columns, 1), wanted(1).collect::<Vec<_>>());
        // Rows 2 and 3 of each weight, one of the first and one of the second in turn.
        let turns = Some(Interleave { cuts: 2, granule: 1 });
        let packed = piece(4, 12, turns, vec![part("a", [2, 12], 0, 4), part("b", [2, 12], 0, 4)]);
        let rows = of_rank(&packed, 1);
        let first: Vec<f32> = rows.chunks(12).map(|r| r[0]).collect();
        assert_eq!(first, [24.0, 124.0, 36.0, 136.0]);
        assert_eq!(rows.len(), 48);
    }
}

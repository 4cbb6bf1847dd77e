//! Weights and kernels, put on the device.

use super::driver::{Device, Kernel, Memory};
use crate::error::{NOT_LOADED, PrepareError};
use crate::store::WeightStore;
use artifact::{Artifact, DeviceCode, Piece};
use ir::{DType, Instance, Scope, WeightRef};
use std::collections::HashMap;

/// Device memory of all weights, and where each lies.
pub struct Weights {
    memory: Memory,
    offsets: HashMap<(Scope, Option<usize>, String), u64>,
}

/// Bytes copied at once.
const CHUNK_BYTES: usize = 64 << 20;

fn fault(text: String) -> PrepareError {
    PrepareError::Device(text)
}

impl Weights {
    /// Copies every piece of the weight memory.
    pub fn load(device: &Device, artifact: &Artifact, store: &dyn WeightStore) -> Result<Weights, PrepareError> {
        let map = &artifact.memory;
        let Weights { memory, offsets } = Weights::empty(device, artifact)?;
        for piece in &map.pieces {
            let data = encoded(piece, store)?;
            for (i, chunk) in data.chunks(CHUNK_BYTES).enumerate() {
                memory.write(piece.offset_bytes as usize + i * CHUNK_BYTES, chunk).map_err(fault)?;
            }
        }
        Ok(Weights { memory, offsets })
    }

    /// Numbers made up from a seed, on the device: those of the first chunk again and again, so that no memory of the host holds
    /// a model that only the device can. They are bf16 between -1/32 and 1/32; two side by side are such a binary32 number. Weights of
    /// one axis (norms, biases) are ones: tokens then differ in what they pick.
    pub fn synthetic(device: &Device, artifact: &Artifact, seed: u64) -> Result<Weights, PrepareError> {
        let weights = Weights::empty(device, artifact)?;
        let memory = &weights.memory;
        let first = memory.bytes().min(CHUNK_BYTES);
        let number = |i: usize| numerics::bf16_bits((numerics::uniform(seed, i as u64) - 0.5) / 16.0).to_le_bytes();
        let numbers: Vec<u8> = (0..first.div_ceil(2)).flat_map(number).take(first).collect();
        memory.write(0, &numbers).map_err(fault)?;
        let mut done = first;
        while done < memory.bytes() {
            let more = done.min(memory.bytes() - done);
            memory.copy_within(0, done, more).map_err(fault)?;
            done += more;
        }
        for piece in artifact.memory.pieces.iter().filter(|p| p.lead * p.rows == 1 || p.row_elements == 1) {
            let count = (piece.lead * piece.rows * piece.row_elements) as usize;
            let one = if piece.dtype == DType::Bf16 {
                numerics::bf16_bits(1.0).to_le_bytes().to_vec()
            } else {
                1f32.to_le_bytes().to_vec()
            };
            memory.write(piece.offset_bytes as usize, &one.repeat(count)).map_err(fault)?;
        }
        Ok(weights)
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

/// The bytes of a piece, rows in the order in which kernels read them. One device holds every part whole.
fn encoded(piece: &Piece, store: &dyn WeightStore) -> Result<Vec<u8>, PrepareError> {
    if piece.dtype.is_narrow() {
        let kept = piece.dtype;
        return Err(fault(format!("{} is kept in {kept}, for which this build has no device kernel", piece.title())));
    }
    let width = piece.row_elements as usize;
    let parts = piece.parts.iter().map(|part| {
        let missing = || PrepareError::WeightMissing {
            graph: "any".to_owned(),
            weight: format!("`{}`", part.weight),
            fact: NOT_LOADED,
        };
        store.f32(piece.scope, &part.weight, piece.layer).ok_or_else(missing)
    });
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let mut bytes = Vec::with_capacity(piece.bytes().unwrap_or(0) as usize);
    for lead in 0..piece.lead as usize {
        for row in 0..piece.rows {
            let (part, at) = piece.row(row).ok_or_else(|| fault(format!("{} has no row {row}", piece.title())))?;
            let start = (lead * piece.parts[part].rows as usize + at as usize) * width;
            let numbers = parts[part].get(start..start + width).ok_or_else(|| PrepareError::WeightSize {
                graph: "any".to_owned(),
                weight: piece.title(),
                found: parts[part].len(),
                needed: start + width,
            })?;
            match piece.dtype {
                DType::Bf16 => bytes.extend(numbers.iter().flat_map(|x| numerics::bf16_bits(*x).to_le_bytes())),
                _ => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            }
        }
    }
    Ok(bytes)
}

/// Every kernel of the artifact, with as many parameters as its starts have.
pub fn kernels(device: &Device, code: &DeviceCode) -> Result<Vec<Kernel>, PrepareError> {
    let starts = || code.entries.iter().flatten().flat_map(|g| &g.regions).flat_map(|r| &r.starts);
    let load = |(index, kernel): (usize, &artifact::KernelCode)| {
        let cubin = code.files.get(&kernel.cubin());
        let cubin = cubin.ok_or_else(|| fault(format!("`{}` is not in the artifact", kernel.cubin())))?;
        let parameters = starts().find(|s| s.kernel == index).map_or(0, |s| s.params.len());
        device.load(cubin, &kernel.name, parameters, kernel.dynamic_bytes).map_err(fault)
    };
    code.kernels.iter().enumerate().map(load).collect()
}

//! Cached rows in e4m3.
//!
//! ```text
//! %c: cache = store kind full (%k, %v, %at)      %c: cache = store kind full (e4m3 (%k / %ks), e4m3 (%v / %vs), %at)
//! %a = attend … (%q, %c, %at)               ─►   %a = mul (attend … (%q * %ks, %c, %at), %vs)
//! ```
//!
//! The numbers are those of the checkpoint, 1 where it may lack one and does; where the spec speaks of none, there is no factor at all.

use super::choice::CACHED;
use super::parts::Part;
use crate::copying::Copying;
use crate::shard::with_graphs;
use crate::{Compile, PassError};
use ir::{Binary, DType, DiskForm, DiskLayout, Facts, Graph, Module, Op, Scope, StoredKv, TensorType, ValueId};
use ir::{Weight, WeightRef};
use std::collections::BTreeSet;
use targets::KvDtype;

/// What the numbers of cached rows belong to.
const CACHE: &str = "kv";

/// Rounds rows as they are stored, if the target keeps them so.
pub(super) fn run(module: Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    let narrow = DType::E4m3;
    if compile.target.kv.dtype != KvDtype::Fixed(narrow) || module.facts.kv.is_empty() {
        return Ok(module);
    }
    let absent = module.facts.stored.as_ref().filter(|s| s.some_numbers).map(|_| 1.0);
    let scales = module.facts.stored.as_ref().and_then(|s| s.kv.clone());
    let mut entries = Vec::new();
    for entry in &module.entries {
        let last = entry.classes.len() + 1;
        let mut graphs = Vec::new();
        for (place, (_, graph)) in entry.graphs().enumerate() {
            // Numbers of layers are there where a layer runs.
            let scaled = scales.is_some() && place > 0 && place < last;
            graphs.push(narrowed(graph, narrow, scaled)?);
        }
        entries.push(with_graphs(entry, graphs)?);
    }
    let mut new = module.with_entries(entries);
    if let Some(scales) = &scales {
        let weights = weights(&new.facts, scales, absent);
        new.facts.weights.extend(weights);
    }
    new.relaxations.push(CACHED.to_owned());
    Ok(new)
}

fn weights(facts: &Facts, scales: &StoredKv, absent: Option<f32>) -> [Weight; 2] {
    let layers: BTreeSet<usize> = facts.kv.iter().flat_map(|k| k.layers.iter().copied()).collect();
    let layers: Vec<usize> = layers.into_iter().collect();
    let only = (layers.len() < facts.layers()).then_some(layers);
    [(Part::CachedKey, &scales.k_scale), (Part::CachedValue, &scales.v_scale)].map(|(part, names)| Weight {
        name: part.of(CACHE),
        scope: Scope::Layer,
        axes: Vec::new(),
        dtype: DType::F32,
        pinned: true,
        when: None,
        only: only.clone(),
        absent,
        disk: names.iter().map(|name| form(name)).collect(),
        quant: false,
        borrowed: false,
        span: None,
    })
}

fn form(tensor: &str) -> DiskForm {
    DiskForm {
        tensor: tensor.to_owned(),
        spread: Vec::new(),
        slice: None,
        shape: Vec::new(),
        layout: DiskLayout::Number,
    }
}

fn narrowed(graph: &Graph, narrow: DType, scaled: bool) -> Result<Graph, PassError> {
    let stores = |id: &ValueId| matches!(graph.node(*id).op, Op::Store { .. });
    if !graph.ids().any(|id| stores(&id)) {
        return Ok(graph.clone());
    }
    let mut to = Copying::new(graph);
    let numbers = scaled.then(|| {
        [Part::CachedKey, Part::CachedValue].map(|part| {
            let leaf = Op::Weight(WeightRef::Layer(part.of(CACHE)));
            to.add(leaf, &[], TensorType::scalar(DType::F32), None)
        })
    });
    for id in graph.ids() {
        let (node, mut operands) = (graph.node(id), to.operands(id)?);
        match &node.op {
            Op::Store { .. } => {
                for (row, number) in operands.iter_mut().zip([0, 1]) {
                    let ty = to.tensor(*row)?;
                    let mut x = *row;
                    if let Some(numbers) = &numbers {
                        x = to.binary(Binary::Div, [x, numbers[number]], &ty, node.span);
                    }
                    let rounded = to.add(Op::Round(narrow), &[x], ty.with_dtype(narrow), node.span);
                    to.name_after(rounded, *row, "cached");
                    *row = rounded;
                }
                let value = to.copy_with(id, &operands);
                to.set(id, value);
            }
            Op::Attend { .. } => {
                let mut value = match (&numbers, operands.first_mut()) {
                    (Some([by, _]), Some(query)) => {
                        let ty = to.tensor(*query)?;
                        *query = to.binary(Binary::Mul, [*query, *by], &ty, node.span);
                        to.copy_with(id, &operands)
                    }
                    _ => to.copy_with(id, &operands),
                };
                if let Some([_, by]) = &numbers {
                    let ty = to.tensor(value)?;
                    value = to.binary(Binary::Mul, [value, *by], &ty, node.span);
                }
                to.set(id, value);
            }
            _ => to.copy(id)?,
        }
    }
    to.finish()
}

//! Rows that a model leaves for its drafter: in front of everything else in the arena, so that what runs behind the step
//! finds them wherever its own values lie.
//!
//! Model and drafter are planned apart. Both know the layers that are captured, the format of a row and the buckets of the
//! entry that makes the rows, and so come to one place each by itself.

use super::align;
use crate::PassError;
use crate::error::{defect, pass_error};
use indexmap::IndexMap;
use ir::{Bucket, Buffer, Capture, Captured, KernelEntry, KernelModule, TensorType};
use targets::Target;

/// Places at the start of the arena.
#[derive(Default)]
pub(super) struct Reserved {
    /// By entry and shared name.
    places: IndexMap<(String, String), Buffer>,
    /// What steps of an entry copy there.
    captured: Vec<(String, Captured)>,
    /// First byte behind them.
    pub(super) end: u64,
}

impl Reserved {
    /// Places of what a model exports, or of what a drafter takes.
    pub(super) fn of(kernels: &KernelModule, target: &Target) -> Result<Reserved, PassError> {
        let mut reserved = Reserved::default();
        let facts = &kernels.facts;
        let spread = kernels.sharding.as_ref().and_then(|s| s.rows.keys().next());
        if let (Some(export), Some(axis)) = (facts.exports.first(), spread) {
            let message = format!("a drafter reads rows of `{}`, and the mesh spreads axis {axis}", export.value);
            return Err(pass_error("P0306", message, "use a mesh that leaves token rows whole".to_owned()));
        }
        for export in &facts.exports {
            let entry = kernels.entries.iter().find(|e| e.name == export.entry);
            let ty = entry.and_then(|e| handed_on(e, &export.value));
            let ty = ty.ok_or_else(|| defect(format!("no layer hands on `{}`, which is exported", export.value)))?;
            let layers = export.layers.len() as u64;
            let place = Captured::place_of(&export.name);
            let bytes = most_bytes(export, target, ty).and_then(|n| n.checked_mul(layers));
            reserved.add(&export.entry, &place, bytes, ty)?;
            let (value, layers) = (export.value.clone(), export.layers.clone());
            reserved.captured.push((export.entry.clone(), Captured { place, value, layers }));
        }
        for capture in &facts.captures {
            let (entry, name, ty) = taken(kernels, &capture.name)
                .ok_or_else(|| defect(format!("no entry takes the rows that are captured as `{}`", capture.name)))?;
            reserved.add(entry, name, most_bytes(capture, target, ty), ty)?;
        }
        Ok(reserved)
    }

    fn add(&mut self, entry: &str, name: &str, bytes: Option<u64>, ty: &TensorType) -> Result<(), PassError> {
        let bytes = bytes.ok_or_else(|| defect(format!("`{name}` is larger than any memory, or has odd rows")))?;
        let buffer = Buffer { offset_bytes: self.end, bytes, dtype: ty.dtype };
        self.places.insert((entry.to_owned(), name.to_owned()), buffer);
        self.end = align(self.end.saturating_add(bytes));
        Ok(())
    }

    /// Shared values of an entry that have a place here.
    pub(super) fn shared(&self, entry: &str) -> IndexMap<String, Buffer> {
        let own = self.places.iter().filter(|((of, _), _)| of == entry);
        own.map(|((_, name), buffer)| (name.clone(), *buffer)).collect()
    }

    /// What steps of an entry leave.
    pub(super) fn captured(&self, entry: &str) -> Vec<Captured> {
        self.captured.iter().filter(|(of, _)| of == entry).map(|(_, captured)| captured.clone()).collect()
    }
}

/// Type of a value as layers hand it on.
fn handed_on<'e>(entry: &'e KernelEntry, value: &str) -> Option<&'e TensorType> {
    let outputs = entry.graphs.iter().skip(1).find_map(|g| {
        let (_, id) = g.graph.outputs.iter().find(|(name, _)| name == value)?;
        g.graph.tensor(*id)
    });
    outputs.filter(|ty| ty.axes.first().is_some_and(|axis| axis.is_rows()))
}

/// Entry, name and type of the input that holds captured rows: one of its axes counts the layers.
pub(super) fn taken<'k>(kernels: &'k KernelModule, capture: &str) -> Option<(&'k str, &'k str, &'k TensorType)> {
    kernels.entries.iter().find_map(|entry| {
        let graph = &entry.first().graph;
        graph.inputs.iter().find_map(|id| {
            let ty = graph.tensor(*id).filter(|ty| ty.axis(capture).is_some())?;
            Some((entry.name.as_str(), graph.input_name(*id)?, ty))
        })
    })
}

/// Bytes of a value at the largest step of the entry that is captured.
fn most_bytes(capture: &Capture, target: &Target, ty: &TensorType) -> Option<u64> {
    let buckets: Vec<Bucket> = target.buckets_of(&capture.entry);
    buckets.iter().map(|b| b.bytes(ty)).try_fold(0, |most, bytes| Some(most.max(bytes?)))
}

//! Rules of cache layouts: a layout is data, so everything that a kernel takes from it must agree with the model.

use super::Report;
use super::plan::CODE;
use crate::{Axis, DType, KernelModule, KvKind, KvLayout, KvRef, Op};

/// Every layout against its kind: layers and window, heads and their elements, the format that is stored, and places of
/// its own for every element of a page.
pub(super) fn verify(layouts: &[KvLayout], kernels: &KernelModule, report: &mut Report) {
    let facts = kernels.local_facts();
    let kv = &facts.kv;
    let kinds_match = layouts.iter().map(|l| &l.kind).eq(kv.iter().map(|k| &k.name));
    report.check(kinds_match, CODE, "kv", || "its kinds are not those of the model".to_owned());
    for (layout, kind) in layouts.iter().zip(kv) {
        let place = format!("kv {}", layout.kind);
        let behind = kernels.facts.layers()..;
        let guests = if kind.lives_in.is_none() { kind.shared_slots as usize } else { 0 };
        let layers = kind.layers.iter().copied().chain(behind.take(guests));
        let same = layout.layers.iter().copied().eq(layers) && layout.window == kind.window;
        report.check(same, CODE, &place, || "layers or window are not those of the model".to_owned());
        let home = kind.lives_in.as_ref().filter(|_| kind.shared_slots > 0);
        let first = home.map_or(Some(0), |_| kind.shared_slots.checked_mul(layout.layer_stride));
        report.check(layout.lives_in.as_ref() == home && first == Some(layout.first), CODE, &place, || {
            "it lies elsewhere in a page than behind the slots of the other model".to_owned()
        });
        for (word, axes) in [("key", &kind.k), ("value", &kind.v)] {
            let found = (layout.heads, layout.head_elements);
            report.check(KvKind::row_shape(axes) == Some(found), CODE, &place, || shape_text(word, found, axes));
        }
        if let Some(stored) = stored_formats(kernels, kind).into_iter().find(|d| *d != layout.dtype) {
            report.add(CODE, &place, format!("it keeps {}, the model stores {stored}", layout.dtype));
        }
        report.check(layout.page_tokens > 0, CODE, &place, || "its pages hold no token".to_owned());
        let bytes = layout.dtype.bytes_for(layout.page_stride);
        report.check(bytes < u64::MAX, CODE, &place, || "a page is larger than any memory".to_owned());
        report
            .check(keeps_apart(layout), CODE, &place, || "its strides let elements of a page share memory".to_owned());
    }
}

fn shape_text(word: &str, (heads, elements): (u64, u64), axes: &[Axis]) -> String {
    match KvKind::row_shape(axes) {
        Some((h, e)) => format!("it has {heads} heads of {elements} elements, a {word} of the model {h} of {e}"),
        None => format!("a {word} of the model has no heads and elements of known number"),
    }
}

/// Formats of the keys and values that graphs store in a kind.
fn stored_formats(kernels: &KernelModule, kind: &KvKind) -> Vec<DType> {
    let graphs = kernels.entries.iter().flat_map(|e| &e.graphs).map(|g| &g.graph);
    let mut found = Vec::new();
    for graph in graphs {
        let stores = |op: &Op| matches!(op, Op::Store { kv: KvRef::Kind(name), .. } if *name == kind.name);
        for id in graph.ids().filter(|id| stores(&graph.node(*id).op)) {
            // Key and value; the third operand is the position.
            found.extend(graph.operands(id).into_iter().take(2).filter_map(|v| graph.tensor(v).map(|t| t.dtype)));
        }
    }
    found
}

/// Whether distinct (layer, key or value, token, head, element) have distinct places inside a page: sorted by stride, each
/// dimension steps over all that the smaller ones span.
fn keeps_apart(layout: &KvLayout) -> bool {
    let mut dims = [
        (1, layout.head_elements),
        (layout.head_stride, layout.heads),
        (layout.token_stride, layout.page_tokens),
        (layout.v_offset, 2),
        (layout.layer_stride, layout.layers.len() as u64),
    ];
    dims.sort_unstable();
    let mut span: u64 = 1;
    for (stride, count) in dims {
        if count == 0 {
            return layout.layers.is_empty();
        }
        if count > 1 && stride < span {
            return false;
        }
        match stride.checked_mul(count - 1).and_then(|last| last.checked_add(span)) {
            Some(next) => span = next,
            None => return false,
        }
    }
    span.checked_add(layout.first).is_some_and(|end| end <= layout.page_stride)
}

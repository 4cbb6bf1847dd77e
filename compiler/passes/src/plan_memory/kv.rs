//! Cache layouts.
//!
//! A page holds, for each layer of its kind in turn, first all keys and then all values; inside each, head after head,
//! and for a head the rows of the page's tokens in order:
//!
//! ```text
//! page │ layer slot 0                                        │ layer slot 1 …
//!      │ keys: head 0: t0 t1 … t15, head 1: …│ values: same   │
//! ```
//!
//! Where a drafter's rows lie in pages of its target, its layer slots follow those of the target, and its own layout begins
//! behind them: one page holds what both models keep of its tokens.
//!
//! So the keys of one head in one page are one dense matrix, which is what attention reads.

use crate::PassError;
use crate::error::defect;
use ir::{Axis, DType, KernelModule, KvKind, KvLayout, KvRef, Op};
use targets::Target;

/// One layout per cache kind, in the order of the facts.
pub(super) fn layouts(kernels: &KernelModule, target: &Target) -> Result<Vec<KvLayout>, PassError> {
    let dtype = target.kv.dtype.resolve(kernels.facts.act);
    let facts = kernels.local_facts();
    let kinds = facts.kv.iter();
    kinds
        .map(|kind| {
            stored_as(kernels, kind, dtype, &target.name)?;
            layout(kind, dtype, target.kv.page_tokens, facts.layers())
        })
        .collect()
}

fn layout(kind: &KvKind, dtype: DType, page_tokens: u64, layers: usize) -> Result<KvLayout, PassError> {
    let (k, v) = (KvKind::row_shape(&kind.k), KvKind::row_shape(&kind.v));
    let (Some((heads, elements)), true) = (k, k == v) else {
        let show = |axes: &[Axis]| axes.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(" ");
        return Err(PassError {
            code: "P0303",
            message: format!(
                "cache `{}` has key rows `{}` and value rows `{}`",
                kind.name,
                show(&kind.k),
                show(&kind.v)
            ),
            help: "give keys and values the same heads and the same elements per head".to_owned(),
            span: None,
        });
    };
    let strides = || {
        let head_stride = page_tokens.checked_mul(elements)?;
        let v_offset = head_stride.checked_mul(heads)?;
        let layer_stride = v_offset.checked_mul(2)?;
        let slots = (kind.layers.len() as u64).checked_add(kind.shared_slots)?;
        let page_stride = layer_stride.checked_mul(slots)?;
        Some((head_stride, v_offset, layer_stride, page_stride, layer_stride.checked_mul(kind.shared_slots)?))
    };
    let (head_stride, v_offset, layer_stride, page_stride, others) =
        strides().ok_or_else(|| defect(format!("a page of cache `{}` is larger than any memory", kind.name)))?;
    let lives_in = kind.lives_in.clone().filter(|_| kind.shared_slots > 0);
    let guests = if lives_in.is_none() { kind.shared_slots as usize } else { 0 };
    Ok(KvLayout {
        kind: kind.name.clone(),
        layers: kind.layers.iter().copied().chain((layers..).take(guests)).collect(),
        first: if lives_in.is_some() { others } else { 0 },
        lives_in,
        dtype,
        page_tokens,
        page_stride,
        layer_stride,
        token_stride: elements,
        head_stride,
        v_offset,
        heads,
        head_elements: elements,
        window: kind.window,
    })
}

/// Refuses a cache whose rows have another format than what the model stores there.
fn stored_as(kernels: &KernelModule, kind: &KvKind, dtype: DType, target: &str) -> Result<(), PassError> {
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs).map(|g| &g.graph) {
        for id in graph.ids() {
            if !matches!(&graph.node(id).op, Op::Store { kv: KvRef::Kind(name), .. } if *name == kind.name) {
                continue;
            }
            let stored = graph.operands(id).into_iter().take(2).filter_map(|v| graph.tensor(v).map(|t| t.dtype));
            if let Some(other) = stored.into_iter().find(|d| *d != dtype) {
                return Err(PassError {
                    code: "P0304",
                    message: format!(
                        "cache `{}` holds {dtype} on target `{target}`, the model stores {other}",
                        kind.name
                    ),
                    help: format!("set `kv.dtype = \"{other}\"` in the target, or round to {dtype} before the store"),
                    span: graph.node(id).span,
                });
            }
        }
    }
    Ok(())
}

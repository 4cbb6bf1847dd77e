//! **wire bf16** (sharded level → sharded level)
//!
//! ```text
//! %p: f32[T, hidden] = linear … (%h, %d)
//! %y: f32[T, hidden] = all_reduce over [tp] order serial (%p)
//! ─►
//! %p: f32[T, hidden] = linear … (%h, %d)
//! %r: bf16[T, hidden] = round bf16 (%p)
//! %y: f32[T, hidden] = all_reduce over [tp] order serial (%r)
//! ```
//!
//! Why: between devices half the bytes take half the time; serving engines exchange partial sums in BF16.
//! When: the target allows `wire-bf16` and `--exact` is absent; the operand of a sum over ranks is f32.
//! Kind: `Relaxed("wire-bf16")`: each rank's partial sum rounds once more.
//! Tests: below; its size on the full model, made small, in `tests/meshes.rs`.

use super::relaxed;
use crate::copying::Copying;
use crate::{Compile, Kind, Level, PassError, PassInfo};
use ir::{DType, Graph, Module, Op};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "wire bf16",
    level: Level::Sharded,
    kind: Kind::Relaxed("wire-bf16"),
    why: "half the bytes between devices",
};

/// Runs the pass.
pub fn run(module: &Module, compile: &Compile<'_>) -> Result<Module, PassError> {
    relaxed("wire-bf16", module, compile, |graph, _, _| narrowed(graph))
}

fn narrowed(graph: &Graph) -> Option<Graph> {
    let wide = |id| match &graph.node(id).op {
        Op::AllReduce { .. } | Op::ReduceScatter { .. } => {
            let operand = graph.operands(id).first().copied()?;
            graph.tensor(operand).filter(|ty| ty.dtype == DType::F32).map(|ty| ty.with_dtype(DType::Bf16))
        }
        _ => None,
    };
    graph.ids().find(|id| wide(*id).is_some())?;
    let mut new = Copying::new(graph);
    for id in graph.ids() {
        let mut operands = new.operands(id).ok()?;
        if let (Some(ty), Some(operand)) = (wide(id), operands.first_mut()) {
            *operand = new.add(Op::Round(DType::Bf16), &[*operand], ty, graph.node(id).span);
        }
        let value = new.copy_with(id, &operands);
        new.set(id, value);
    }
    new.finish().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_wide_operand_rounds_before_it_travels() {
        let text = "module m act f32 dim n = 4 mesh [tp = 2] entry e { graph first (%x, %y) -> (a = %a, b = %b) {
            axes T = rows
            %x: f32[T, n] = input x
            %y: bf16[T, n] = input y
            %a: f32[T, n] = all_reduce over [tp] order serial (%x)
            %b: f32[T, n] = all_reduce over [tp] order serial (%y) }
            graph last () -> () { } }";
        let module = ir::parse_module(text).expect("a module");
        assert_eq!(ir::verify_module(&module), Ok(()));
        let first = super::narrowed(&module.entries[0].first).expect("a wide operand");
        let text = ir::print_graph("first", &first, &module.facts, false);
        assert!(text.contains("%2: bf16[T, n] = round bf16 (%x)") && text.contains("serial (%2)"), "{text}");
        assert!(text.contains("serial (%y)"), "{text}");
        assert_eq!(super::narrowed(&first), None);
    }
}

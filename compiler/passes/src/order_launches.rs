//! **order launches** (kernel level)
//!
//! ```text
//! a ─► b ─► d        a, c, b, d: three values wait at once
//! c ──────► d   ─►   a, b, c, d: two
//! ```
//!
//! Why: what is read soon after it is made is still in cache, and its memory is free again.
//! When: always. Among the regions whose operands are made, the next is the one after which the least memory is in use; of
//! equal ones that which reads the one before it; of those the one that stood first. Values are then numbered in the order in
//! which they are made, leaves first, so that the text of a graph reads from top to bottom.
//! Kind: `Exact`: a region comes after those that it reads.
//! Tests: below.

use crate::error::defect;
use crate::regions::{bytes_per_row, with_regions};
use crate::{Compile, Kind, Level, PassError, PassInfo};
use ir::{GraphBuilder, KernelGraph, KernelModule, Region, ValueId};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What the pass says about itself.
pub const INFO: PassInfo = PassInfo {
    name: "order launches",
    level: Level::Kernel,
    kind: Kind::Exact,
    why: "what is read soon after it is made is near, and its memory free again",
};

/// Runs the pass.
pub fn run(kernels: &KernelModule, _: &Compile<'_>) -> Result<KernelModule, PassError> {
    let mut done = with_regions(kernels, ordered)?;
    for graph in done.entries.iter_mut().flat_map(|e| &mut e.graphs) {
        *graph = renumbered(graph);
    }
    Ok(done)
}

/// The same graph with values numbered as they stand in regions.
fn renumbered(kernel_graph: &KernelGraph) -> KernelGraph {
    let graph = &kernel_graph.graph;
    let leaves = graph.ids().filter(|v| graph.node(*v).op.is_leaf());
    let order: Vec<ValueId> =
        leaves.chain(kernel_graph.regions.iter().flat_map(|r| r.values.iter().copied())).collect();
    let mut copies: HashMap<ValueId, ValueId> = HashMap::new();
    let mut builder = GraphBuilder::new();
    for id in order {
        let node = graph.node(id);
        let operands: Vec<ValueId> = graph.operands(id).iter().filter_map(|v| copies.get(v).copied()).collect();
        let copy = builder.add(node.op.clone(), &operands, node.ty.clone(), node.span);
        if let Some(name) = &node.name {
            builder.name(copy, name);
        }
        copies.insert(id, copy);
    }
    let copy = |id: &ValueId| copies.get(id).copied();
    let mut done = builder.finish();
    done.inputs = graph.inputs.iter().filter_map(copy).collect();
    done.outputs = graph.outputs.iter().filter_map(|(name, v)| Some((name.clone(), copy(v)?))).collect();
    let region = |r: &Region| Region { values: r.values.iter().filter_map(copy).collect(), ..r.clone() };
    KernelGraph { graph: done, regions: kernel_graph.regions.iter().map(region).collect(), ..kernel_graph.clone() }
}

/// What a region reads and makes, as far as memory is concerned.
struct Step {
    /// Regions that must come before.
    after: Vec<usize>,
    /// Values of other regions that it reads, by the value whose memory they are.
    reads: Vec<ValueId>,
    /// Values that leave it.
    makes: Vec<ValueId>,
}

fn ordered(kernel_graph: &KernelGraph) -> Result<Vec<Region>, PassError> {
    let graph = &kernel_graph.graph;
    let (roots, region_of, leaving) = (kernel_graph.roots(), kernel_graph.region_of(), kernel_graph.leaving());
    let effects = ir::effect_order(graph);
    let mut steps: Vec<Step> = Vec::new();
    for (index, region) in kernel_graph.regions.iter().enumerate() {
        let operands: Vec<ValueId> = region.values.iter().flat_map(|v| graph.operands(*v)).collect();
        let effects = effects.iter().filter(|(_, later)| region.values.contains(later)).map(|(before, _)| before);
        let before = operands.iter().chain(effects).filter_map(|v| region_of[v.0 as usize]);
        let mut after: Vec<usize> = before.filter(|r| *r != index).collect();
        let mut reads: Vec<ValueId> =
            operands.iter().map(|v| roots[v.0 as usize]).filter(|v| leaving[v.0 as usize]).collect();
        reads.retain(|v| region_of[v.0 as usize] != Some(index));
        after.sort_unstable();
        after.dedup();
        reads.sort_unstable();
        reads.dedup();
        let makes = region.values.iter().copied().filter(|v| leaving[v.0 as usize]).collect();
        steps.push(Step { after, reads, makes });
    }
    let kept: HashSet<ValueId> = graph.outputs.iter().map(|(_, v)| roots[v.0 as usize]).collect();
    // Counted, so that a long block does not look at all that waits again for each of its regions.
    let mut readers: HashMap<ValueId, usize> = HashMap::new();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    for (index, step) in steps.iter().enumerate() {
        step.reads.iter().for_each(|v| *readers.entry(*v).or_default() += 1);
        step.after.iter().for_each(|before| followers[*before].push(index));
    }
    let mut missing: Vec<usize> = steps.iter().map(|step| step.after.len()).collect();
    let mut ready: BTreeSet<usize> = (0..steps.len()).filter(|r| missing[*r] == 0).collect();
    let mut order: Vec<usize> = Vec::new();
    while order.len() < steps.len() {
        let growth = |r: usize| -> i128 {
            let size = |v: &ValueId| i128::from(bytes_per_row(graph, *v));
            let made: i128 = steps[r].makes.iter().map(size).sum();
            let last = |v: &&ValueId| !kept.contains(*v) && readers.get(*v) == Some(&1);
            made - steps[r].reads.iter().filter(last).map(size).sum::<i128>()
        };
        let follows = |r: usize| order.last().is_some_and(|before| steps[r].after.contains(before));
        let next = ready.iter().copied().min_by_key(|r| (growth(*r), !follows(*r), *r));
        let next = next.ok_or_else(|| defect("regions wait for each other"))?;
        ready.remove(&next);
        for value in &steps[next].reads {
            readers.entry(*value).and_modify(|n| *n -= 1);
        }
        for follower in &followers[next] {
            missing[*follower] -= 1;
            if missing[*follower] == 0 {
                ready.insert(*follower);
            }
        }
        order.push(next);
    }
    Ok(order.into_iter().map(|r| kernel_graph.regions[r].clone()).collect())
}

#[cfg(test)]
mod tests {
    use crate::Compile;
    use ir::KernelModule;
    use targets::Target;

    fn ordered(values: &str, outputs: &str) -> (KernelModule, KernelModule) {
        let text = format!(
            "module m act f32 dim n = 8 entry e {{ graph first () -> () {{ }}
            graph last (%x, %y) -> ({outputs}) {{ axes T = rows
            %x: f32[T, n] = input x
            %y: f32[T, n] = input y
            {values} }} }}"
        );
        let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let target = Target::load("cpu").expect("a target");
        let compile = Compile::one_device(&target);
        let before = crate::select_kernels::run(&module, &compile).expect("kernels");
        let after = super::run(&before, &compile).expect("an order");
        (before, after)
    }

    fn names(kernels: &KernelModule) -> String {
        let regions = kernels.entries[0].last().regions.iter();
        let region = |r: &ir::Region| {
            let values: Vec<String> = r.values.iter().map(|v| v.0.to_string()).collect();
            format!("{} {}", r.name, values.join(" "))
        };
        regions.map(region).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_makes_memory_free_comes_first_and_numbers_follow() {
        let (before, after) = ordered(
            "%a: f32[T, n] = exp (%x)
            %c: f32[T, n] = exp (%y)
            %b: f32[T] = reduce sum over n order fold (%a)
            %d: f32[T, n] = mul (%c, %b)",
            "d = %d",
        );
        assert_eq!(names(&before), "a 2, c 3, b 4, d 5");
        assert_eq!(names(&after), "a 2, b 3, c 4, d 5");
        let text = ir::print_kernels(&after, false);
        assert_eq!(ir::parse_kernels(&text).map(|k| ir::print_kernels(&k, false)), Ok(text));
    }

    #[test]
    fn of_equal_ones_the_reader_of_the_one_before_comes_first() {
        let (before, after) = ordered(
            "%a: f32[T, n] = exp (%x)
            %c: f32[T, n] = exp (%y)
            %b: f32[T, n] = neg (%a)
            %d: f32[T, n] = neg (%c)",
            "a = %a, b = %b, c = %c, d = %d",
        );
        assert_eq!(names(&before), "a 2, c 3, b 4, d 5");
        assert_eq!(names(&after), "a 2, b 3, c 4, d 5");
        // What stands in that order already keeps its numbers.
        let target = Target::load("cpu").expect("a target");
        assert_eq!(super::run(&after, &Compile::one_device(&target)), Ok(after));
    }
}

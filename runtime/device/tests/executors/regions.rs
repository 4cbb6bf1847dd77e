//! Regions of several operations: whatever a pass joins, the bits are those of the operations one by one.

use crate::decoder::{VOCAB, decoder};
use crate::harness::{Compiled, bits, run, step, tokens};
use ir::{DType, KernelGraph, KernelKind, Launch, Place, Program, Region, ValueId};

/// Joins neighbouring regions of a graph, `sizes` of them at a time, and leaves what is inside without a place.
fn join(graph: &mut KernelGraph, programs: &mut [&mut Program], sizes: impl Iterator<Item = usize>) {
    let mut old: Vec<Region> = std::mem::take(&mut graph.regions);
    let mut number = vec![usize::MAX; graph.graph.len()];
    for size in sizes {
        if old.is_empty() {
            break;
        }
        let joined: Vec<Region> = old.drain(..size.min(old.len())).collect();
        let kind = joined.iter().map(|r| r.kind).find(|k| *k != KernelKind::View).unwrap_or(KernelKind::View);
        let name = joined.last().map(|r| r.name.clone()).unwrap_or_default();
        let mut values: Vec<ValueId> = joined.into_iter().flat_map(|r| r.values).collect();
        values.sort_unstable();
        values.iter().for_each(|v| number[v.0 as usize] = graph.regions.len());
        graph.regions.push(Region { name, kind, values });
    }
    let kernels = &graph.graph;
    let mut inner: Vec<bool> = number.iter().map(|n| *n != usize::MAX).collect();
    for id in kernels.ids() {
        let outside = |user: &ValueId| number[user.0 as usize] != number[id.0 as usize];
        inner[id.0 as usize] &= !kernels.users(id).iter().any(outside);
        inner[id.0 as usize] &= kernels.outputs.iter().all(|(_, output)| *output != id);
    }
    // A view that is seen outside shows memory, so its operand has some.
    for id in kernels.ids().collect::<Vec<_>>().into_iter().rev() {
        if kernels.node(id).op.is_view() && !inner[id.0 as usize] {
            inner[kernels.operands(id)[0].0 as usize] = false;
        }
    }
    for program in programs {
        program.launches.retain(|launch| matches!(launch, Launch::Move { .. }));
        let launched = graph.regions.iter().enumerate().filter(|(_, r)| r.kind != KernelKind::View);
        let launches = launched.map(|(region, r)| Launch::Region {
            region,
            kernel: r.kind,
            variant: ir::Variant::Only,
            reads: Vec::new(),
            dependent: false,
        });
        program.launches = launches.chain(program.launches.drain(..)).collect();
        for id in kernels.ids().filter(|id| inner[id.0 as usize]) {
            program.places[id.0 as usize] = Place::Elsewhere;
        }
    }
}

fn joined(mut model: Compiled, sizes: &dyn Fn(usize) -> usize) -> Compiled {
    for (entry, planned) in model.kernels.entries.iter_mut().zip(&mut model.plan.entries) {
        for (i, graph) in entry.graphs.iter_mut().enumerate() {
            let mut programs: Vec<&mut Program> =
                planned.buckets.iter_mut().map(|bucket| &mut bucket.programs[i]).collect();
            join(graph, &mut programs, (0..).map(sizes));
        }
    }
    model
}

#[test]
fn joined_regions_have_the_bits_of_single_operations() {
    for act in [DType::Bf16, DType::F32] {
        let mut alone = decoder(act).cpu();
        let ways: [&dyn Fn(usize) -> usize; 5] =
            [&|_| 2, &|_| 5, &|i| 1 + i * 7 % 4, &|i| 1 + i * 5 % 13, &|_| usize::MAX];
        let mut executors: Vec<_> = ways.map(|sizes| joined(decoder(act), sizes).cpu()).into();
        // A prompt that takes several blocks of rows, a chunk and a row together, one row.
        let steps = [vec![(0, 0, 150)], vec![(0, 150, 1), (1, 0, 9)], vec![(0, 151, 1)]];
        for (seed, chunks) in steps.into_iter().enumerate() {
            let ids: Vec<Vec<i32>> = chunks.iter().map(|(_, _, n)| tokens(*n, VOCAB, seed as u64)).collect();
            let parts: Vec<_> = chunks.iter().zip(&ids).map(|((s, at, _), ids)| (*s, *at, &ids[..])).collect();
            let rows = step(&alone, &parts, 0);
            let wanted = bits(&run(&mut alone, rows.clone()));
            for executor in &mut executors {
                let found = run(executor, rows.clone());
                assert_eq!(bits(&found), wanted, "{act}, step {seed}");
            }
        }
    }
}

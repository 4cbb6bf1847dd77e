//! Products that the drafter's layers have of one fused row: one product before the layers for targets that pack, and the same
//! bits.

use super::drafter;
use ir::{Mesh, Op, WeightRef};
use passes::validate::Verdict;
use passes::{Compile, Stage};
use spec::{Choices, Library, check_path};
use std::collections::BTreeMap;
use std::path::Path;
use suites::nano;
use targets::Target;

#[test]
fn keys_and_values_of_all_layers_are_one_product() {
    let target = Target::load("gb300-bf16").expect("target");
    let options: BTreeMap<_, _> = target.options_on(&Mesh::single()).into_iter().collect();
    let read = |path: &Path, choices: &Choices| check_path(path, &Library::embedded(), choices).model.expect("a model");
    let model = read(&nano(), &Choices { act: target.act, options: options.clone(), ..Choices::default() });
    let own = Choices { act: target.act, options, target: Some(Box::new(model.clone())), ..Choices::default() };
    let draft = read(&drafter(), &own);
    let compile = Compile::one_device(&target);
    let paired = passes::pair(model, vec![draft.clone()], &compile).unwrap_or_else(|e| panic!("{e}"));
    let packed = &paired.drafter[0];

    let text = packed.text(Stage::Kernel, false);
    let joined = "weight packed into layers.k.v [of 0 k, of 0 v, of 1 k, of 1 v]";
    assert_eq!(text.matches(joined).count(), 1, "{text}");
    let context = packed.kernels.entries.iter().find(|e| e.name == "context").expect("an entry");
    let products = context.graphs.iter().map(|g| {
        let graph = &g.graph;
        graph.ids().filter(|id| matches!(graph.node(*id).op, Op::Linear { .. })).count()
    });
    // The fused row and the product of all layers; none in the layers.
    assert_eq!(products.collect::<Vec<_>>(), [2, 0, 0, 0]);
    // What the model lends is packed with nothing.
    let parts = packed.kernels.entries.iter().flat_map(|e| &e.graphs).flat_map(|g| {
        let weights = g.graph.ids().filter_map(|id| match &g.graph.node(id).op {
            Op::Weight(WeightRef::Packed { parts, .. }) => Some(parts.clone()),
            _ => None,
        });
        weights.flatten().collect::<Vec<_>>()
    });
    let lent = |part: &WeightRef| matches!(part, WeightRef::Model(name) if name.starts_with("target."));
    assert!(!parts.collect::<Vec<_>>().iter().any(lent));

    // Layer after layer without a gap, each where the other entry reads it by itself.
    let recipes = artifact::recipes(&packed.kernels.facts);
    let own: Vec<_> = recipes.into_iter().filter(|r| !r.name.starts_with("target.")).collect();
    let memory = artifact::weight_memory(&packed.kernels, &own).expect("memory");
    assert_eq!(memory.check(&own), Ok(()));
    let of = |layer| {
        let piece = memory.pieces.iter().find(|p| p.layer == Some(layer) && p.parts[0].weight == "k");
        let piece = piece.expect("a piece");
        (piece.offset_bytes, piece.bytes().expect("a size"), piece.parts.len())
    };
    let [(first, bytes, parts), (second, ..)] = [of(0), of(1)];
    assert_eq!((first + bytes, parts), (second, 2));

    let found = passes::validate(&draft, &compile, 1).unwrap_or_else(|e| panic!("{e}"));
    assert!(found.holds(), "{found:?}");
    let pack = found.passes.iter().find(|p| p.pass.name == "pack projections").expect("the pass");
    assert_eq!(pack.verdict, Verdict::Equal);
}

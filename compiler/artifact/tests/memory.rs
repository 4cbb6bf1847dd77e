//! Weight memory: on every rank each element of each weight lies exactly once, packed, interleaved and split or not.

#[allow(dead_code)]
mod common;

use artifact::{WeightMemory, WeightRecipe, recipes, weight_memory};
use indexmap::IndexMap;
use ir::{
    Axis, DType, GraphBuilder, KernelEntry, KernelGraph, KernelModule, Layout, Mesh, Op, PlacedWeight, Placement,
    Scope, Sharding, TensorType, Type, WeightLayout, WeightRef,
};
use std::collections::HashMap;

/// Numbers that look random and are the same every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }

    fn of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize].clone()
    }
}

/// Weights `a`, `b`, `c` with axes `lead? rows_x elements`, `a` and `b` packed (and interleaved, where they can be), on
/// a random mesh with random axes split.
fn random(seed: u64) -> KernelModule {
    let mut draw = Draw(seed);
    let lead = draw.of(&[0, 2, 4]);
    let elements = draw.of(&[1, 3, 4]);
    let mut rows: Vec<u64> = (0..3).map(|_| draw.of(&[1, 2, 4, 8, 16])).collect();
    let alternate = draw.below(2) == 0;
    if alternate {
        rows[1] = rows[0];
    }
    let mesh = draw.of(&["", "tp=2", "tp=4", "ep=2", "ep=2,tp=2", "tp=2,ep=4"]);
    let mut sharding = Sharding { mesh: Mesh::parse(mesh).unwrap(), ..Sharding::default() };
    let (split_rows, split_lead) = (draw.below(2) == 0, draw.below(2) == 0);
    let mut facts = common::facts();
    facts.weights.clear();
    for (name, n) in ["a", "b", "c"].iter().zip(&rows) {
        let own = format!("rows_{name}");
        let mut groups: Vec<Vec<(&str, u64)>> = Vec::new();
        if lead > 0 {
            groups.push(vec![("lead", lead)]);
        }
        groups.push(vec![(&own, *n)]);
        groups.push(vec![("elements", elements)]);
        let groups: Vec<&[(&str, u64)]> = groups.iter().map(Vec::as_slice).collect();
        let shape: Vec<u64> = groups.iter().map(|g| g[0].1).collect();
        let disk = vec![common::form(&format!("w.{name}"), &[], &shape, None)];
        facts.weights.push(common::weight(name, Scope::Model, &groups, None, disk));
        let mut axes = Placement::new();
        if split_rows {
            axes.insert(own.clone(), sharding.mesh.present(&["tp".to_owned()]));
        }
        if split_lead && lead > 0 {
            axes.insert("lead".to_owned(), sharding.mesh.present(&["ep".to_owned()]));
        }
        axes.retain(|_, over| !over.is_empty());
        if !axes.is_empty() {
            sharding.weights.push(PlacedWeight { scope: Scope::Model, name: (*name).to_owned(), axes });
        }
    }
    let mut kernels = module(facts, sharding);
    let local: Vec<u64> =
        kernels.local_facts().weights.iter().map(|w| w.axes[w.axes.len() - 2][0].clone()).map(length).collect();
    let pack = WeightRef::Packed {
        into: "joined".to_owned(),
        parts: vec![WeightRef::Model("a".to_owned()), WeightRef::Model("b".to_owned())],
    };
    let first = &kernels.local_facts().weights[0].clone();
    let mut axes: Vec<Axis> = first.axes[..first.axes.len() - 2].iter().flatten().cloned().collect();
    axes.push(Axis::fixed("joined", local[0] + local[1]));
    axes.push(Axis::fixed("elements", elements));
    let mut b = GraphBuilder::new();
    b.add(Op::Weight(pack.clone()), &[], Type::Tensor(TensorType::new(DType::Bf16, axes)), None);
    kernels.entries[0].graphs[0].graph = b.finish();
    if alternate && local[0] == local[1] {
        let granule = 1 + draw.below(local[0]);
        kernels.layouts.push(WeightLayout { weight: pack, layout: Layout::Interleaved { parts: 2, granule } });
    }
    kernels
}

fn length(axis: Axis) -> u64 {
    TensorType::new(DType::Bf16, vec![axis]).fixed_elements()
}

fn module(facts: ir::Facts, sharding: Sharding) -> KernelModule {
    let graph = KernelGraph {
        name: "first".to_owned(),
        kinds: IndexMap::new(),
        graph: GraphBuilder::new().finish(),
        regions: Vec::new(),
    };
    let entry = KernelEntry { name: "forward".to_owned(), graphs: vec![graph.clone(), graph], instances: Vec::new() };
    let sharding = Some(sharding).filter(|s| !s.mesh.is_single());
    KernelModule { facts, sharding, relaxations: Vec::new(), layouts: Vec::new(), entries: vec![entry] }
}

#[test]
fn every_element_lies_exactly_once_on_every_rank() {
    let (mut interleaved, mut split, mut shared) = (0, 0, 0);
    for seed in 0..400 {
        let kernels = random(seed);
        let recipes = recipes(&kernels.facts);
        let memory = weight_memory(&kernels, &recipes).unwrap_or_else(|e| panic!("{seed}: {e}"));
        memory.check(&recipes).unwrap_or_else(|e| panic!("{seed}: {e}"));
        let ranks = memory.mesh.ranks();
        // How many ranks hold each element of each weight.
        let mut holders: HashMap<(String, u64), u64> = HashMap::new();
        for rank in 0..ranks {
            let mut own: HashMap<(String, u64), u64> = HashMap::new();
            for piece in &memory.pieces {
                interleaved += u64::from(piece.interleave.is_some() && rank == 0);
                for element in 0..piece.elements().unwrap() {
                    let (part, at) = piece.source(&memory.mesh, rank, element).unwrap();
                    *own.entry((piece.parts[part].weight.clone(), at)).or_default() += 1;
                }
            }
            assert!(own.values().all(|n| *n == 1), "{seed}: an element lies twice on rank {rank}");
            own.into_keys().for_each(|key| *holders.entry(key).or_default() += 1);
        }
        for recipe in &recipes {
            let all = recipe.elements().unwrap();
            let counts: Vec<u64> =
                (0..all).map(|i| holders.get(&(recipe.name.clone(), i)).copied().unwrap_or(0)).collect();
            assert!(counts.iter().all(|n| *n > 0 && *n == counts[0]), "{seed}: W.{} on ranks {counts:?}", recipe.name);
            split += u64::from(counts[0] < ranks);
            shared += u64::from(counts[0] > 1 && counts[0] < ranks);
        }
    }
    assert!(interleaved > 20 && split > 200 && shared > 50, "{interleaved} {split} {shared}: the draws are too plain");
}

#[test]
fn rows_alternate_by_granules_and_the_last_may_be_short() {
    let kernels = (0..).map(random).find(|k| k.layouts.is_empty() && k.sharding.is_none()).unwrap();
    let recipes = recipes(&kernels.facts);
    let mut piece = weight_memory(&kernels, &recipes).unwrap().pieces.remove(0);
    piece.parts.iter_mut().for_each(|part| part.rows = 5);
    piece.rows = 10;
    piece.interleave = Some(artifact::Interleave { cuts: 2, granule: 2 });
    let order: Vec<(usize, u64)> = (0..10).filter_map(|row| piece.row(row)).collect();
    let (a, b) = (0, 1);
    assert_eq!(order, [(a, 0), (a, 1), (b, 0), (b, 1), (a, 2), (a, 3), (b, 2), (b, 3), (a, 4), (b, 4)]);
    assert_eq!(piece.title(), "W.a + W.b");
}

#[test]
fn a_slice_of_a_tensor_is_found_on_disk() {
    let facts = common::facts();
    let recipes = recipes(&facts);
    let many = recipes.iter().find(|r| r.name == "many").unwrap();
    // One tensor per index, [2, 4] each.
    assert_eq!(many.forms[0].locate(8 + 5), Some((1, 5)));
    // Rows 2 and 3 of each [4, 4] matrix of [3, 4, 4].
    assert_eq!(many.forms[1].locate(8 + 5), Some((0, 16 + 3 * 4 + 1)));
}

fn refused(memory: &WeightMemory, recipes: &[WeightRecipe], edit: impl Fn(&mut WeightMemory)) -> String {
    let mut edited = memory.clone();
    edit(&mut edited);
    assert_ne!(&edited, memory, "nothing was edited");
    edited.check(recipes).expect_err("accepted")
}

#[test]
fn what_is_placed_wrongly_is_refused() {
    let kernels = (0..).map(random).find(|k| k.sharding.as_ref().is_some_and(|s| !s.weights.is_empty())).unwrap();
    let recipes = recipes(&kernels.facts);
    let memory = weight_memory(&kernels, &recipes).unwrap();
    let last = memory.pieces.len() - 1;
    for (edit, wanted) in [
        (&(|m: &mut WeightMemory| drop(m.pieces.pop())) as &dyn Fn(&mut WeightMemory), "the weights take"),
        (&|m| m.pieces[last].offset_bytes -= 256, "begins at byte"),
        (&|m| m.pieces[last].offset_bytes += 256, "the weights take"),
        (&|m| m.pieces[0].parts[0].weight = "c".to_owned(), "W.c"),
        (&|m| m.pieces[0].parts[0].weight = "other".to_owned(), "no recipe"),
        (&|m| m.pieces[0].rows += 1, "do not have its"),
        (&|m| m.pieces[0].lead = 0, "no elements"),
        (&|m| m.pieces[0].interleave = Some(artifact::Interleave { cuts: 2, granule: 0 }), "cannot alternate"),
        (&|m| m.pieces.iter_mut().for_each(|p| p.parts.iter_mut().for_each(|p| p.split.clear())), "has a part of"),
        (&|m| m.mesh = Mesh::parse("tp=3,ep=3").unwrap(), "has a part of"),
        (&|m| m.mesh = Mesh::single(), "no distinct axes"),
        (
            &|m| {
                let split = m.pieces.iter_mut().flat_map(|p| &mut p.parts).flat_map(|p| &mut p.split);
                split.for_each(|s| s.over = vec!["tp".to_owned(); 100]);
            },
            "no distinct axes",
        ),
        (&|m| m.pieces[last].dtype = DType::F32, ""),
    ] {
        let text = refused(&memory, &recipes, edit);
        assert!(text.contains(wanted), "{text}");
    }
    assert!(memory.check(&recipes[1..]).unwrap_err().contains("no recipe"));
}

/// Weights `a` and `b`, one number a tensor for all rows of a slice, packed.
fn numbers(mesh: &str, placed: &[(&str, &str)]) -> KernelModule {
    let mut facts = common::facts();
    let number = |name: &str, rows: &str, n: u64| {
        let form = ir::DiskForm { layout: ir::DiskLayout::Number, ..common::form("n.{lead}", &["lead"], &[], None) };
        let axes: [&[(&str, u64)]; 2] = [&[("lead", 4)], &[(rows, n)]];
        let weight = common::weight(name, Scope::Model, &axes, None, vec![form]);
        ir::Weight { dtype: DType::F32, ..weight }
    };
    facts.weights = vec![number("a", "rows_a", 6), number("b", "rows_b", 2)];
    let mut sharding = Sharding { mesh: Mesh::parse(mesh).unwrap(), ..Sharding::default() };
    for (name, rows) in [("a", "rows_a"), ("b", "rows_b")] {
        let axis = |axis: &str| if axis == "rows" { rows.to_owned() } else { axis.to_owned() };
        let axes: Placement = placed.iter().map(|(a, over)| (axis(a), vec![(*over).to_owned()])).collect();
        sharding.weights.push(PlacedWeight { scope: Scope::Model, name: name.to_owned(), axes });
    }
    sharding.weights.retain(|w| !w.axes.is_empty());
    let mut kernels = module(facts, sharding);
    let local = kernels.local_facts();
    let length_of = |w: usize, at: usize| length(local.weights[w].axes[at][0].clone());
    let joined = length_of(0, 1) + length_of(1, 1);
    let axes = vec![Axis::fixed("lead", length_of(0, 0)), Axis::fixed("joined", joined)];
    let parts = ["a", "b"].map(|n| WeightRef::Model(n.to_owned())).to_vec();
    let mut b = GraphBuilder::new();
    let pack = Op::Weight(WeightRef::Packed { into: "joined".to_owned(), parts });
    b.add(pack, &[], Type::Tensor(TensorType::new(DType::F32, axes)), None);
    kernels.entries[0].graphs[0].graph = b.finish();
    kernels
}

#[test]
fn a_number_that_stands_for_many_rows_is_kept_once() {
    for (mesh, placed, leads, rank, first) in [
        ("", &[][..], 4, 0, [(0, 0), (1, 0), (0, 6), (1, 2)]),
        ("ep=2", &[("lead", "ep")], 2, 1, [(0, 12), (1, 4), (0, 18), (1, 6)]),
        ("tp=2", &[("rows", "tp")], 4, 1, [(0, 3), (1, 1), (0, 9), (1, 3)]),
    ] {
        let kernels = numbers(mesh, placed);
        let recipes = recipes(&kernels.facts);
        let memory = weight_memory(&kernels, &recipes).unwrap();
        memory.check(&recipes).unwrap();
        let piece = &memory.pieces[0];
        assert!(piece.once && memory.pieces.len() == 1);
        assert_eq!((piece.elements(), memory.bytes), (Some(leads * 2), leads * 2 * 4), "{mesh}");
        let found: Vec<_> = (0..4).filter_map(|i| piece.source(&memory.mesh, rank, i)).collect();
        assert_eq!(found, first, "{mesh}");
        assert_eq!(recipes[0].distinct_elements(), Some(4));
        assert_eq!((kernels.facts.weights[0].distinct_elements(), kernels.facts.weights[0].elements()), (4, 24));
    }
    let kernels = numbers("", &[]);
    let mut recipes = recipes(&kernels.facts);
    let memory = weight_memory(&kernels, &recipes).unwrap();
    recipes[1].forms[0].layout = ir::DiskLayout::Plain;
    assert!(memory.check(&recipes).unwrap_err().contains("W.b has a number for each element"));
}

//! The whole way to a plan for a machine that joins what it may: every pass, on one device and on meshes, leaves the bits
//! that it was given, the plan on an arena of poisoned bytes included. Damage to a plan shows in bits or is refused.

use ir::{KernelModule, Mesh, Place, Plan};
use passes::validate::{Program, Record, Trial, Verdict};
use passes::{Compile, Stages, check_plan, validate};
use spec::{Choices, Library, check_text};
use targets::Target;

const SMALL: &str = r#"
extends = "beam"
[dims]
layers = 7
hidden = 16
heads = 4
kv_heads = 2
head_dim = 8
ffn = 24
experts = 8
groups = 4
expert_ffn = 8
picked = 2
vocab = 32
[values]
window = 3
kept_groups = 2
"#;

const DEVICE: &str = "h200-bf16";

/// The device with another limit on the rows of epilogues. 8 is to this model what the device's own is to one of full size:
/// heads and experts fit, a row of the residual stream does not. With its own limit whole seams join products here.
fn device(epilogue_row_elements: u64) -> Target {
    let mut target = Target::load(DEVICE).expect("a target");
    target.fuse.epilogue_row_elements = epilogue_row_elements;
    target
}

fn model(target: &Target, mesh: &Mesh) -> ir::Model {
    let options = target.options_on(mesh).into_iter().collect();
    let choices = Choices { options, ..Choices::default() };
    check_text("small.toml", SMALL, &Library::embedded(), &choices).model.expect("a model")
}

fn holds_on(mesh: &str, limit: u64) {
    holds(mesh, limit, &[]);
}

/// `shard`: placements beside the spec's.
fn holds(mesh: &str, limit: u64, shard: &[(&str, &[&str])]) {
    let (target, mesh) = (device(limit), Mesh::parse(mesh).expect("a mesh"));
    let compile = Compile { target: &target, mesh: &mesh, exact: true, unpack: &[] };
    let mut model = model(&target, &mesh);
    for (axis, over) in shard {
        model.facts.shard.insert((*axis).to_owned(), over.iter().map(|a| (*a).to_owned()).collect());
    }
    let found = validate(&model, &compile, 1).expect("passes run");
    for pass in &found.passes {
        let moved = matches!(pass.verdict, Verdict::Measured { moved, .. } if moved > 0);
        assert!(pass.verdict.holds() && !moved, "{}: {:?}", pass.pass.name, pass.verdict);
    }
    let plan = found.passes.last().expect("passes");
    assert_eq!((plan.pass.name, &plan.verdict), ("plan memory", &Verdict::Equal));
    assert_eq!(plan.values, found.values);
}

#[test]
fn one_device_keeps_every_bit_to_the_plan() {
    holds_on("", 8);
    holds_on("", 256);
    holds_on("", 0);
}

#[test]
fn ranks_keep_every_bit_to_the_plan() {
    holds_on("tp=2", 8);
    holds_on("ep=2", 8);
}

#[test]
fn rows_that_ranks_join_have_places_for_all() {
    holds("dp=2", 8, &[("T", &["dp"]), ("ffn", &["dp", "tp"]), ("experts", &["dp", "ep"])]);
}

fn compiled(mesh: &str) -> (Stages, Vec<Trial>) {
    let (target, mesh) = (device(8), Mesh::parse(mesh).expect("a mesh"));
    let model = model(&target, &mesh);
    let compile = Compile { target: &target, mesh: &mesh, exact: true, unpack: &[] };
    let stages = Stages::compile(model.clone(), &compile).expect("compiles");
    let flat = passes::to_module(&model).expect("graphs");
    let trials = Trial::all(&model, &flat, 1).expect("trials");
    (stages, trials)
}

/// How many launches a graph has.
fn launches(kernels: &KernelModule, graph: &str) -> usize {
    let found = kernels.entries[0].graphs.iter().find(|g| g.name == graph).expect("a graph");
    found.regions.iter().filter(|r| r.kind != ir::KernelKind::View).count()
}

#[test]
fn a_layer_has_seven_kernels_or_eight_with_experts() {
    for mesh in ["", "tp=2", "ep=2"] {
        let (stages, _) = compiled(mesh);
        assert_eq!(launches(&stages.kernels, "sliding.dense"), 7, "{mesh}");
        assert_eq!(launches(&stages.kernels, "sliding.sparse"), 8, "{mesh}");
        assert_eq!(launches(&stages.kernels, "full.sparse"), 8, "{mesh}");
    }
}

#[test]
fn a_value_in_the_wrong_place_shows() {
    let (stages, trials) = compiled("");
    let truth: Vec<Record> =
        trials.iter().map(|t| t.record(Program::Plan(&stages.kernels, &stages.plan)).expect("runs")).collect();
    let agrees = |plan: &Plan| {
        let run = |(t, r): (&Trial, &Record)| t.agrees(Program::Plan(&stages.kernels, plan), r).unwrap_or(false);
        trials.iter().zip(&truth).all(run)
    };
    assert!(agrees(&stages.plan));
    // Every value of one layer class in turn lies where the value before it lies. What both checkers let pass keeps every
    // bit; of the rest, what shows in bits is counted, for a step of the trial may end before it matters.
    let (mut refused, mut shown) = (0, 0);
    let places = stages.plan.entries[0].buckets[0].programs[2].places.len();
    for at in 1..places {
        let mut damaged = stages.plan.clone();
        let mut changed = false;
        for bucket in &mut damaged.entries[0].buckets {
            let places = &mut bucket.programs[2].places;
            let before = places[..at].iter().rev().find_map(|p| if let Place::Arena(b) = p { Some(*b) } else { None });
            if let (Place::Arena(own), Some(before)) = (&mut places[at], before)
                && own.offset_bytes != before.offset_bytes
            {
                own.offset_bytes = before.offset_bytes;
                changed = true;
            }
        }
        if !changed {
            continue;
        }
        let legal = check_plan::check(&damaged, &stages.kernels).is_ok();
        let same = agrees(&damaged);
        assert!(!legal || same, "%{at}: the walk lets pass what changes bits");
        refused += usize::from(!legal);
        shown += usize::from(!same);
    }
    assert!(refused > 5 && shown > 5, "{refused} refused, {shown} shown");
}

#[test]
fn layouts_interleave_what_epilogues_combine() {
    let (stages, _) = compiled("");
    let text = ir::print_kernels(&stages.kernels, false);
    let layout = |weight: &str| text.lines().find(|l| l.starts_with(&format!("layout {weight}"))).map(str::to_owned);
    let packed = |parts: &str| layout(&format!("packed into {parts}")).unwrap_or_default();
    assert!(packed("ffn_gate.ffn_up").ends_with(": interleaved 2 by 8"), "{text}");
    assert!(packed("x_gate.x_up").ends_with(": interleaved 2 by 8"));
    assert!(packed("q.k.v.gate").ends_with(": row_major"));
    assert_eq!(layout("layer o").as_deref(), Some("layout layer o: row_major"));
    assert_eq!(ir::parse_kernels(&text).expect("text that parses"), {
        let mut plain = stages.kernels.clone();
        plain.entries.iter_mut().flat_map(|e| &mut e.graphs).for_each(|g| g.graph = without_spans(&g.graph));
        plain.facts.weights.iter_mut().for_each(|w| w.span = None);
        plain
    });
}

#[test]
fn what_epilogues_combine_and_no_layout_interleaves_is_found() {
    let (stages, _) = compiled("");
    let packed = |l: &ir::WeightLayout| l.weight.parts().len() == 2;
    type Break = fn(&mut ir::WeightLayout);
    let cases: [(Break, &str); 3] = [
        (|l| l.layout = ir::Layout::RowMajor, "RowMajor"),
        (|l| l.layout = ir::Layout::Interleaved { parts: 2, granule: 0 }, "granule: 0"),
        (|l| l.layout = ir::Layout::Interleaved { parts: 3, granule: 8 }, "parts: 3"),
    ];
    for (damage, wanted) in cases {
        let mut damaged = stages.kernels.clone();
        damage(damaged.layouts.iter_mut().find(|l| packed(l)).expect("gate and up"));
        let errors = ir::verify_kernels(&damaged).expect_err(wanted);
        let shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(shown.iter().any(|e| e.contains("it combines 2 of 2 parts") && e.contains(wanted)), "{shown:#?}");
    }
}

fn without_spans(graph: &ir::Graph) -> ir::Graph {
    let mut builder = ir::GraphBuilder::new();
    for id in graph.ids() {
        let node = graph.node(id);
        let copy = builder.add(node.op.clone(), &graph.operands(id), node.ty.clone(), None);
        if let Some(name) = &node.name {
            builder.name(copy, name);
        }
    }
    let mut done = builder.finish();
    (done.inputs, done.outputs) = (graph.inputs.clone(), graph.outputs.clone());
    done
}

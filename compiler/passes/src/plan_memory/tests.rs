//! Plans against a symbolic execution: every value is a hash of the operation that made it and of its operands. A walk
//! over the arena must end with the same hashes as a walk over names, or some byte was overwritten too early.

use crate::Compile;
use crate::testing::{axis, compile_graph_level, facts, kinds, two_kind_model};
use crate::{plan, to_kernels};
use ir::{
    Axis, Binary, Class, DType, Entry, Graph, GraphBuilder, Instance, KernelModule, Launch, Module, Op, Order, Place,
    Plan, ReduceOp, TensorType, Type, Unary, ValueId,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use targets::Target;

fn hash(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

fn node_hash(graph: &Graph, id: ValueId, layer: usize, operands: &[u64]) -> u64 {
    let op = &graph.node(id).op;
    // A view is the memory of its operand.
    if op.is_view() { operands[0] } else { hash((format!("{op:?}"), layer, operands)) }
}

/// The graphs of an entry in the order in which a step runs them, with the layer.
fn order(instances: &[Instance], graphs: usize) -> Vec<(usize, usize)> {
    let layers = instances.iter().map(|i| (i.class + 1, i.layer));
    std::iter::once((0, 0)).chain(layers).chain(std::iter::once((graphs - 1, 0))).collect()
}

/// Results by name.
fn by_names(kernels: &KernelModule) -> Vec<u64> {
    let entry = &kernels.entries[0];
    let mut env: HashMap<String, u64> = HashMap::new();
    for (index, layer) in order(&entry.instances, entry.graphs.len()) {
        let graph = &entry.graphs[index].graph;
        let mut values: Vec<u64> = Vec::new();
        for id in graph.ids() {
            let operands: Vec<u64> = graph.operands(id).iter().map(|v| values[v.0 as usize]).collect();
            values.push(match graph.input_name(id) {
                Some(name) => *env.entry(name.to_owned()).or_insert_with(|| hash(name)),
                None => node_hash(graph, id, layer, &operands),
            });
        }
        let outputs: Vec<(String, u64)> =
            graph.outputs.iter().map(|(n, v)| (n.clone(), values[v.0 as usize])).collect();
        env.extend(outputs);
    }
    entry.last().graph.outputs.iter().map(|(name, _)| env[name]).collect()
}

/// Bytes that hold a value; what overlaps a write is gone.
#[derive(Default)]
struct Arena(Vec<(u64, u64, u64)>);

impl Arena {
    fn forget(&mut self, start: u64, bytes: u64) {
        self.0.retain(|(s, b, _)| s + b <= start || start + bytes <= *s);
    }

    fn write(&mut self, start: u64, bytes: u64, value: u64) {
        self.forget(start, bytes);
        self.0.push((start, bytes, value));
    }

    fn read(&self, start: u64) -> u64 {
        self.0.iter().find(|(s, _, _)| *s == start).map_or(0, |(_, _, value)| *value)
    }
}

/// Results by the places of a bucket.
fn by_places(kernels: &KernelModule, plan: &Plan, bucket: usize) -> Vec<u64> {
    let entry = &kernels.entries[0];
    let plan = &plan.entries[0].buckets[bucket];
    let mut arena = Arena::default();
    for (name, buffer) in &plan.shared {
        if entry.first().graph.inputs.iter().any(|v| entry.first().graph.input_name(*v) == Some(name)) {
            arena.write(buffer.offset_bytes, buffer.bytes, hash(name.as_str()));
        }
    }
    for (index, layer) in order(&entry.instances, entry.graphs.len()) {
        let (program, kernel_graph) = (&plan.programs[index], &entry.graphs[index]);
        let graph = &kernel_graph.graph;
        let mut elsewhere: HashMap<ValueId, u64> = HashMap::new();
        for id in graph.ids().filter(|v| graph.node(*v).op.is_leaf() && graph.input_name(*v).is_none()) {
            elsewhere.insert(id, node_hash(graph, id, layer, &[]));
        }
        let read = |arena: &Arena, elsewhere: &HashMap<ValueId, u64>, id: ValueId| {
            let root = if let Place::Alias(of) = program.places[id.0 as usize] { of } else { id };
            match program.places[root.0 as usize] {
                Place::Arena(buffer) => arena.read(buffer.offset_bytes),
                _ => elsewhere[&root],
            }
        };
        for launch in &program.launches {
            match launch {
                Launch::Region { region, .. } => {
                    let values = &kernel_graph.regions[*region].values;
                    let operands = || values.iter().flat_map(|v| graph.operands(*v));
                    let read_at: Vec<u64> = operands().filter_map(|v| Some(place(program, v)?.offset_bytes)).collect();
                    // What is not written over an operand's own place may be written before anything is read.
                    for b in values.iter().filter_map(|v| place(program, *v)) {
                        if !read_at.contains(&b.offset_bytes) {
                            arena.forget(b.offset_bytes, b.bytes);
                        }
                    }
                    let mut local: HashMap<ValueId, u64> = HashMap::new();
                    for id in values {
                        let of = |v: &ValueId| local.get(v).copied().unwrap_or_else(|| read(&arena, &elsewhere, *v));
                        let operands: Vec<u64> = graph.operands(*id).iter().map(of).collect();
                        local.insert(*id, node_hash(graph, *id, layer, &operands));
                    }
                    for id in values {
                        match program.places[id.0 as usize] {
                            Place::Arena(b) => arena.write(b.offset_bytes, b.bytes, local[id]),
                            Place::Elsewhere => drop(elsewhere.insert(*id, local[id])),
                            Place::Inside | Place::Alias(_) => {}
                        }
                    }
                }
                Launch::Move { from, to } => {
                    let value = read(&arena, &elsewhere, *from);
                    arena.write(plan.shared[to].offset_bytes, plan.shared[to].bytes, value);
                }
            }
        }
    }
    let outputs = &entry.last().graph.outputs;
    outputs.iter().map(|(name, _)| arena.read(plan.shared[name].offset_bytes)).collect()
}

/// The place of a value that has one of its own, or of what it is a view of.
fn place(program: &ir::Program, id: ValueId) -> Option<ir::Buffer> {
    let root = if let Place::Alias(of) = program.places[id.0 as usize] { of } else { id };
    if let Place::Arena(buffer) = program.places[root.0 as usize] { Some(buffer) } else { None }
}

/// One operation a kernel, then everything joined that may be.
fn check(module: &Module) {
    for target in ["cpu", "h200-bf16"] {
        let target = Target::load(target).unwrap();
        let compile = Compile::one_device(&target);
        let kernels = to_kernels(&crate::refine(module, &compile).unwrap(), &compile).unwrap();
        let plan = plan(&kernels, &compile).unwrap();
        crate::check_plan::check(&plan, &kernels).unwrap();
        for bucket in 0..plan.entries[0].buckets.len() {
            assert_eq!(by_names(&kernels), by_places(&kernels, &plan, bucket), "{}", ir::print_plan(&plan, &kernels));
        }
        let text = ir::print_kernels(&kernels, false);
        let back = ir::parse_kernels(&text).unwrap();
        assert_eq!(ir::print_kernels(&back, false), text);
    }
}

#[test]
fn a_whole_model_loses_nothing() {
    check(&compile_graph_level(&two_kind_model()));
}

fn ty(dtype: DType, axes: &[Axis]) -> Type {
    Type::Tensor(TensorType::new(dtype, axes.to_vec()))
}

/// A random graph of row operations over carried values `a`, `b`, `c`, which it leaves in some order; `choices` decide.
fn random_graph(names: &[&str], outputs: &[&str], choices: &[u8]) -> Graph {
    let wide = [axis("T"), axis("hidden")];
    let mut builder = GraphBuilder::new();
    let mut values: Vec<ValueId> = names.iter().map(|n| builder.input(n, ty(DType::F32, &wide))).collect();
    let pick = |values: &[ValueId], choice: u8| values[choice as usize % values.len()];
    for step in choices.chunks_exact(3) {
        let (x, y) = (pick(&values, step[1]), pick(&values, step[2]));
        let value = match step[0] % 5 {
            0 => builder.add(Op::Unary(Unary::Exp), &[x], ty(DType::F32, &wide), None),
            1 => builder.add(Op::Binary(Binary::Add), &[x, y], ty(DType::F32, &wide), None),
            2 => {
                let sum = Op::Reduce { op: ReduceOp::Sum, axis: "hidden".to_owned(), order: Order::Fold };
                let sum = builder.add(sum, &[x], ty(DType::F32, &[axis("T")]), None);
                builder.add(Op::Binary(Binary::Mul), &[y, sum], ty(DType::F32, &wide), None)
            }
            3 => {
                let other = Axis::fixed("other", 8);
                let view = Op::Rename { from: "hidden".to_owned(), to: "other".to_owned() };
                let view = builder.add(view, &[x], ty(DType::F32, &[axis("T"), other]), None);
                let back = Op::Rename { from: "other".to_owned(), to: "hidden".to_owned() };
                builder.add(back, &[view], ty(DType::F32, &wide), None)
            }
            _ => {
                // Not element-wise: the halves change places.
                let half =
                    |start| Op::Slice { axis: "hidden".to_owned(), start, len: 4, into: Some("part".to_owned()) };
                let part = ty(DType::F32, &[axis("T"), Axis::fixed("part", 4)]);
                let (a, b) = (builder.add(half(0), &[x], part.clone(), None), builder.add(half(4), &[x], part, None));
                builder.add(Op::Concat { into: "hidden".to_owned() }, &[b, a], ty(DType::F32, &wide), None)
            }
        };
        values.push(value);
    }
    for (i, name) in outputs.iter().enumerate() {
        // Mostly late values, and now and then an input: passed through or exchanged by an operation.
        let choice = choices.get(i).copied().unwrap_or(0) as usize;
        let at = if choice.is_multiple_of(4) {
            choice / 4 % values.len()
        } else {
            values.len() - 1 - choice % values.len().min(4)
        };
        let mut value = values[at];
        let node = builder.graph().node(value);
        let unchanged = matches!(&node.op, Op::Input(n) if n == name);
        let root_is_input = matches!(node.op, Op::Input(_)) || node.op.is_view();
        if root_is_input && !unchanged {
            value = builder.add(Op::Round(DType::F32), &[value], ty(DType::F32, &wide), None);
        }
        builder.output(name, value);
    }
    builder.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_graphs_lose_nothing(
        first in proptest::collection::vec(any::<u8>(), 3..30),
        layer in proptest::collection::vec(any::<u8>(), 3..45),
        other in proptest::collection::vec(any::<u8>(), 3..45),
        last in proptest::collection::vec(any::<u8>(), 3..30),
    ) {
        let carried = ["a", "b", "c"];
        let mut facts = facts();
        let kind = |i: usize| if i == 1 { "far" } else { "near" };
        facts.schedule = (0..4).map(|i| kinds(&[("attn", kind(i))])).collect();
        let class = |name: &str, choices: &[u8]| Class {
            name: name.to_owned(),
            kinds: kinds(&[("attn", name)]),
            graph: random_graph(&carried, &carried, choices),
        };
        let entry = Entry {
            name: "forward".to_owned(),
            first: random_graph(&["in", "more"], &carried, &first),
            classes: vec![class("near", &layer), class("far", &other)],
            instances: (0..4).map(|layer| Instance { layer, class: usize::from(layer == 1) }).collect(),
            last: random_graph(&carried, &["result.0", "result.1"], &last),
        };
        check(&Module::new(facts, vec![entry]));
    }
}

#[test]
fn a_row_axis_that_steps_lack_is_refused() {
    let mut builder = GraphBuilder::new();
    let x = builder.input("x", ty(DType::F32, &[Axis::rows("N"), axis("hidden")]));
    let y = builder.add(Op::Unary(Unary::Exp), &[x], ty(DType::F32, &[Axis::rows("N"), axis("hidden")]), None);
    builder.output("result", y);
    let first = Graph::default();
    let entry =
        Entry { name: "forward".to_owned(), first, classes: Vec::new(), instances: Vec::new(), last: builder.finish() };
    let mut module = Module::new(facts(), vec![entry]);
    // The signature of an entry is its first graph's.
    let mut signature = GraphBuilder::new();
    signature.input("x", ty(DType::F32, &[Axis::rows("N"), axis("hidden")]));
    module.entries[0].first = signature.finish();
    let kernels = to_kernels(&module, &Compile::one_device(&Target::load("cpu").unwrap())).unwrap();
    let error = plan(&kernels, &Compile::one_device(&Target::load("cpu").unwrap())).unwrap_err();
    assert_eq!(error.code, "P0301");
    assert!(error.message.contains("steps bring rows along T, R and S only"), "{error}");
}

#[test]
fn targets_that_do_not_fit_the_model_are_refused() {
    let kernels =
        to_kernels(&compile_graph_level(&two_kind_model()), &Compile::one_device(&Target::load("cpu").unwrap()))
            .unwrap();
    let with = |tail: &str| {
        let head = "name='t'\ndescription='d'\narch='cpu'\n";
        plan(&kernels, &Compile::one_device(&Target::from_text(&format!("{head}{tail}"), "t.toml").unwrap()))
            .unwrap_err()
            .to_string()
    };
    let bucket = "[[bucket]]\nrows='ragged'\ntokens=64\n";
    let text = with(&format!("kv={{page_tokens=16,dtype='f32'}}\n{bucket}"));
    assert_eq!(
        text,
        "P0304: cache `near` holds f32 on target `t`, the model stores bf16; set `kv.dtype = \"bf16\"` in the target, or \
         round to f32 before the store"
    );
    let text = with(&format!("kv={{page_tokens=16,dtype='act'}}\n{bucket}entry='draft'\n"));
    assert!(text.starts_with("P0302: target `t` has no bucket for entry `forward`"), "{text}");
    let text = with(&format!("kv={{page_tokens=16,dtype='act'}}\nlimits={{arena_bytes=100}}\n{bucket}"));
    assert!(text.starts_with("P0305: ") && text.contains("target `t` allows 100"), "{text}");
}

#[test]
fn keys_and_values_of_another_shape_are_refused() {
    let mut kernels =
        to_kernels(&compile_graph_level(&two_kind_model()), &Compile::one_device(&Target::load("cpu").unwrap()))
            .unwrap();
    kernels.facts.kv[0].v = vec![axis("kv_heads"), axis("half")];
    let error = super::kv::layouts(&kernels, &Target::load("cpu").unwrap()).unwrap_err();
    assert_eq!(error.code, "P0303");
}

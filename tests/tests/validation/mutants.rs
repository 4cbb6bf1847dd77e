//! Mechanical changes of a module, one at a time: a rounding dropped, an order swapped, a constant moved, operands
//! turned, a weight renamed, a window or the index of a layer shifted, an exchange between ranks left out, doubled or among
//! other ranks.

use ir::{
    Binary, Class, ConstBinary, ConstExpr, DType, Entry, Facts, Graph, GraphBuilder, Mesh, Module, Node, Op, Order,
    ReduceOp, Scope, Type, ValueId, WeightRef,
};
use std::collections::{HashMap, HashSet};

/// A module with one change.
pub struct Mutant {
    /// What was changed: `round`, `order`, `constant`, `index`, `operands`, `weight`, `window` or `exchange`.
    pub kind: &'static str,
    /// Graph, value and change.
    pub name: String,
    /// The module.
    pub module: Module,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It leaves other bits.
    Differs,
    /// A verifier or the interpreter refuses it.
    Refused,
    /// It leaves the same bits.
    Survives,
}

/// One changed operation: what replaces the node's operation, and whether its operands are turned round.
struct Change {
    kind: &'static str,
    what: String,
    op: Op,
    turned: bool,
    /// How often the operands are written.
    times: usize,
    /// An operation that each operand goes through first, with another width than the operand.
    before: Option<(Op, DType)>,
    /// Whether the operand stands for the result.
    left_out: bool,
}

impl Change {
    fn new(kind: &'static str, what: String, op: Op) -> Change {
        Change { kind, what, op, turned: false, times: 1, before: None, left_out: false }
    }
}

/// Every mutant.
pub fn all(module: &Module) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    for (at, entry) in module.entries.iter().enumerate() {
        for (index, (graph_name, graph)) in entry.graphs().enumerate() {
            for id in graph.ids() {
                for change in changes(graph, id, &module.facts) {
                    let mut entries = module.entries.clone();
                    entries[at] = changed(entry, index, id, &change);
                    let value = described(graph, id);
                    let name = format!("{graph_name} {value}: {}", change.what);
                    let module = module.with_entries(entries);
                    mutants.push(Mutant { kind: change.kind, name, module });
                }
            }
        }
    }
    for (at, kind) in module.facts.kv.iter().enumerate() {
        let Some(window) = kind.window else { continue };
        for shifted in [window - 1, window + 1] {
            let mut module = module.clone();
            module.facts.kv[at].window = Some(shifted);
            let name = format!("kv {}: window {window} to {shifted}", kind.name);
            mutants.push(Mutant { kind: "window", name, module });
        }
    }
    mutants
}

/// The module with every operation of some kind made another of the same types.
pub fn replaced(module: &Module, which: &dyn Fn(&Op) -> bool, by: &Op) -> Module {
    let mut entries = module.entries.clone();
    for entry in &mut entries {
        for index in 0..entry.classes.len() + 2 {
            let graph = entry.graphs().nth(index).map(|(_, g)| g.clone()).expect("a graph of the entry");
            for id in graph.ids().filter(|v| which(&graph.node(*v).op)) {
                let change = Change::new("operation", String::new(), by.clone());
                *entry = changed(entry, index, id, &change);
            }
        }
    }
    module.with_entries(entries)
}

/// The value's name; of a nameless one, the first named value that it leads to.
fn described(graph: &Graph, id: ValueId) -> String {
    if let Some(name) = &graph.node(id).name {
        return format!("{id} {name}");
    }
    let mut at = id;
    while let Some(next) = graph.users(at).first() {
        if let Some(name) = &graph.node(*next).name {
            return format!("{id} towards {name}");
        }
        at = *next;
    }
    id.to_string()
}

fn changes(graph: &Graph, id: ValueId, facts: &Facts) -> Vec<Change> {
    let node = graph.node(id);
    let change = Change::new;
    let one = |kind, what: String, op| vec![change(kind, what, op)];
    match &node.op {
        Op::Round(DType::Bf16) => one("round", "dropped".to_owned(), Op::Round(DType::F32)),
        Op::Reduce { op: ReduceOp::Sum, axis, order } => {
            let to = other(order);
            let what = format!("sum over {axis}, {order:?} to {to:?}");
            one("order", what, Op::Reduce { op: ReduceOp::Sum, axis: axis.clone(), order: to })
        }
        Op::Linear { contract, order } => {
            let to = other(order);
            let what = format!("product over {contract:?}, {order:?} to {to:?}");
            one("order", what, Op::Linear { contract: contract.clone(), order: to })
        }
        Op::Dot { axis, order } => {
            let to = other(order);
            let what = format!("dot over {axis}, {order:?} to {to:?}");
            one("order", what, Op::Dot { axis: axis.clone(), order: to })
        }
        Op::Literal(numbers) => {
            let one_moved = |i: usize| {
                let (mut numbers, before) = (numbers.clone(), numbers[i]);
                numbers[i] = moved(before);
                change("constant", format!("literal {before:e} to {:e}", numbers[i]), Op::Literal(numbers))
            };
            (0..numbers.len()).map(one_moved).collect()
        }
        Op::Scalar(expr) => {
            let mut all = one("constant", format!("{expr} times 1.125"), Op::Scalar(scaled(expr)));
            for by in [1.0, -1.0] {
                let shifted = of_layer(expr, by);
                if shifted != *expr {
                    all.push(change("index", format!("{expr} of the layer {by:+} away"), Op::Scalar(shifted)));
                }
            }
            all
        }
        Op::Attend { kv, mask, scale, order } => {
            let attend = |scale: ConstExpr, order: Order| Op::Attend { kv: kv.clone(), mask: *mask, scale, order };
            let to = other(order);
            vec![
                change("constant", format!("scale {scale} times 1.125"), attend(scaled(scale), order.clone())),
                change("order", format!("attention, {order:?} to {to:?}"), attend(scale.clone(), to)),
            ]
        }
        Op::InTop { k, axis } => [k - 1, k + 1]
            .map(|to| change("constant", format!("{k} to {to} kept"), Op::InTop { k: to, axis: axis.clone() }))
            .into(),
        Op::Binary(f @ (Binary::Sub | Binary::Div)) => {
            vec![Change { turned: true, ..change("operands", format!("{} turned", f.word()), node.op.clone()) }]
        }
        Op::Weight(weight) => renamed(weight, facts)
            .into_iter()
            .map(|to| change("weight", format!("{weight:?} to {to:?}"), Op::Weight(to)))
            .collect(),
        _ => Vec::new(),
    }
}

/// A constant of the layer so many further on.
fn of_layer(expr: &ConstExpr, by: f64) -> ConstExpr {
    match expr {
        ConstExpr::Num(x) => ConstExpr::Num(*x),
        ConstExpr::Layer => {
            ConstExpr::Binary(ConstBinary::Add, Box::new(ConstExpr::Layer), Box::new(ConstExpr::Num(by)))
        }
        ConstExpr::Unary(f, a) => ConstExpr::Unary(*f, Box::new(of_layer(a, by))),
        ConstExpr::Binary(f, a, b) => ConstExpr::Binary(*f, Box::new(of_layer(a, by)), Box::new(of_layer(b, by))),
    }
}

/// Every exchange between ranks, wrong in each way that keeps the types: left out, so that a sum over ranks is the rank's
/// own part, joined parts are its own part again and again, and ids are those of the whole table; a sum taken twice, so
/// that every part counts as often as there are ranks; ranks grouped along another axis of the mesh of the same length; and
/// the sum of more than two parts in another order.
///
/// To leave out an exchange of rows would leave other rows, so rows are judged by the sums and groups.
pub fn exchanges(module: &Module) -> Vec<Mutant> {
    let Some(sharding) = &module.sharding else { return Vec::new() };
    let mut mutants = Vec::new();
    for (at, entry) in module.entries.iter().enumerate() {
        for (index, (graph_name, graph)) in entry.graphs().enumerate() {
            for id in graph.ids() {
                for change in exchange_changes(graph, id, &sharding.mesh) {
                    let name = format!("{graph_name} {}: {}", described(graph, id), change.what);
                    let mut entries = module.entries.clone();
                    entries[at] = changed(entry, index, id, &change);
                    mutants.push(Mutant { kind: change.kind, name, module: module.with_entries(entries) });
                }
            }
        }
    }
    mutants
}

fn exchange_changes(graph: &Graph, id: ValueId, mesh: &Mesh) -> Vec<Change> {
    let op = &graph.node(id).op;
    let change = |what: &str, op: Op| Change::new("exchange", what.to_owned(), op);
    let rows = |axis: &String| {
        let operand = graph.operands(id).first().and_then(|v| graph.tensor(*v));
        operand.is_some_and(|t| t.row_axes().any(|row| row == axis))
    };
    let mut all = Vec::new();
    match op {
        Op::AllReduce { over, order } => {
            all.push(change("sum over ranks left out", Op::Round(DType::F32)));
            let twice = Some((op.clone(), DType::F32));
            all.push(Change { before: twice, ..change("sum over ranks taken twice", op.clone()) });
            if mesh.parts(over) > 2 {
                let to = other(order);
                let what = format!("sum over ranks, {order:?} to {to:?}");
                all.push(Change::new("order", what, Op::AllReduce { over: over.clone(), order: to }));
            }
        }
        Op::ReduceScatter { over, .. } => {
            let twice = Op::AllReduce { over: over.clone(), order: Order::Serial };
            all.push(Change { before: Some((twice, DType::F32)), ..change("sum over ranks taken twice", op.clone()) });
        }
        Op::AllGather { axis, over, into } if !rows(axis) => {
            let again = Op::Concat { into: into.clone() };
            let times = mesh.parts(over) as usize;
            all.push(Change { times, ..change("parts of ranks left out", again) });
        }
        Op::AllGather { .. } => {}
        Op::Own { .. } => {
            all.push(Change { left_out: true, ..change("ids of the rank's part left out", op.clone()) });
        }
        _ => return all,
    }
    for (axis, length) in mesh.axes() {
        let mut op = op.clone();
        let over = match &mut op {
            Op::AllReduce { over, .. } | Op::AllGather { over, .. } => over,
            Op::ReduceScatter { over, .. } | Op::Own { over, .. } => over,
            _ => continue,
        };
        if over.len() == 1 && over[0] != axis && mesh.length(&over[0]) == length {
            over[0] = axis.to_owned();
            all.push(change(&format!("ranks grouped along {axis}"), op));
        }
    }
    all
}

fn other(order: &Order) -> Order {
    match order {
        Order::Fold | Order::Fused => Order::Serial,
        Order::Any | Order::Serial | Order::Split { .. } => Order::Fold,
    }
}

fn moved(x: f32) -> f32 {
    match x {
        0.0 => 1.0,
        x if x.is_infinite() => -x,
        x => x * 1.125,
    }
}

fn scaled(expr: &ConstExpr) -> ConstExpr {
    ConstExpr::Binary(ConstBinary::Mul, Box::new(expr.clone()), Box::new(ConstExpr::Num(1.125)))
}

/// Weights of the same type that could be meant by mistake: of the neighbour layer, of the model, of another name.
fn renamed(weight: &WeightRef, facts: &Facts) -> Vec<WeightRef> {
    let like = |scope: Scope, name: &str, wanted: Scope| -> Vec<String> {
        let Some(own) = facts.weight(scope, name) else { return Vec::new() };
        let fits = |w: &&ir::Weight| {
            w.scope == wanted
                && (w.scope, w.name.as_str()) != (scope, name)
                && w.ty() == own.ty()
                && (w.when == own.when || w.when.is_none())
        };
        facts.weights.iter().filter(fits).map(|w| w.name.clone()).collect()
    };
    let mut out = Vec::new();
    match weight {
        WeightRef::Model(name) => {
            out.extend(like(Scope::Model, name, Scope::Model).into_iter().map(WeightRef::Model));
        }
        WeightRef::Layer(name) => {
            out.extend(like(Scope::Layer, name, Scope::Layer).into_iter().map(WeightRef::Layer));
            let every_layer = facts.weight(Scope::Layer, name).is_some_and(|w| w.when.is_none());
            let last = like(Scope::Layer, name, Scope::Model);
            if let (true, Some(last)) = (every_layer, last.into_iter().next()) {
                out.push(WeightRef::Next { layer: name.clone(), last });
            }
        }
        WeightRef::OfLayer { layer, name } => {
            let of = |name: String| WeightRef::OfLayer { layer: *layer, name };
            out.extend(like(Scope::Layer, name, Scope::Layer).into_iter().map(of));
            let another = if *layer == 0 { 1 } else { layer - 1 };
            out.push(WeightRef::OfLayer { layer: another, name: name.clone() });
        }
        WeightRef::Next { layer, last } => {
            out.push(WeightRef::Layer(layer.clone()));
            out.push(WeightRef::Model(last.clone()));
            out.extend(
                like(Scope::Layer, layer, Scope::Layer)
                    .into_iter()
                    .map(|layer| WeightRef::Next { layer, last: last.clone() }),
            );
        }
        WeightRef::FirstLayer(name) => {
            out.extend(like(Scope::Layer, name, Scope::Layer).into_iter().map(WeightRef::FirstLayer));
            out.extend(like(Scope::Layer, name, Scope::Model).into_iter().map(WeightRef::Model));
        }
        // Mutants are made before weights are packed.
        WeightRef::Packed { .. } => {}
    }
    out
}

/// The entry with one change. A result that is no longer rounded makes wide what the graphs exchange under its name.
fn changed(entry: &Entry, index: usize, id: ValueId, change: &Change) -> Entry {
    let graph = entry.graphs().nth(index).map(|(_, g)| g).expect("a graph of the entry");
    let wide: HashSet<&str> = match change.kind {
        "round" => graph.outputs.iter().filter(|(_, v)| *v == id).map(|(n, _)| n.as_str()).collect(),
        _ => HashSet::new(),
    };
    let make = |at: usize, graph: &Graph| {
        if at != index && wide.is_empty() {
            return graph.clone();
        }
        rebuilt(graph, (at == index).then_some((id, change)), &wide)
    };
    Entry {
        name: entry.name.clone(),
        first: make(0, &entry.first),
        classes: entry
            .classes
            .iter()
            .enumerate()
            .map(|(i, c)| Class { graph: make(i + 1, &c.graph), ..c.clone() })
            .collect(),
        instances: entry.instances.clone(),
        last: make(entry.classes.len() + 1, &entry.last),
    }
}

fn rebuilt(graph: &Graph, change: Option<(ValueId, &Change)>, wide: &HashSet<&str>) -> Graph {
    let mut builder = GraphBuilder::new();
    let mut made: HashMap<ValueId, ValueId> = HashMap::new();
    for id in graph.ids() {
        let node = graph.node(id);
        let mut operands: Vec<ValueId> = graph.operands(id).iter().map(|v| made[v]).collect();
        let mut op = node.op.clone();
        if let Some((_, change)) = change.filter(|(at, _)| *at == id) {
            op = change.op.clone();
            if change.turned {
                operands.reverse();
            }
            operands = operands.repeat(change.times);
        }
        let before = change.filter(|(at, _)| *at == id).and_then(|(_, change)| change.before.clone());
        if let Some((first, dtype)) = before {
            for operand in &mut operands {
                let ty = builder.graph().tensor(*operand).expect("a tensor").with_dtype(dtype);
                *operand = builder.add(first.clone(), &[*operand], Type::Tensor(ty), None);
            }
        }
        if change.is_some_and(|(at, change)| at == id && change.left_out) {
            made.insert(id, operands[0]);
            continue;
        }
        let ty = retyped(&builder, node, &op, &operands, wide);
        let new = match &op {
            Op::Input(name) => builder.input(name, ty),
            _ => builder.add(op, &operands, ty, node.span),
        };
        if let Some(name) = &node.name {
            builder.name(new, name);
        }
        made.insert(id, new);
    }
    builder.order_inputs(graph.inputs.iter().map(|v| made[v]).collect());
    for (name, id) in &graph.outputs {
        let mut value = made[id];
        if wide.contains(name.as_str())
            && let Some(ty) = builder.graph().tensor(value).filter(|t| t.dtype == DType::Bf16).cloned()
        {
            value = builder.add(Op::Round(DType::F32), &[value], Type::Tensor(ty.with_dtype(DType::F32)), None);
        }
        builder.output(name, value);
    }
    builder.finish()
}

/// What only moves numbers is as wide as they are.
fn retyped(builder: &GraphBuilder, node: &Node, op: &Op, operands: &[ValueId], wide: &HashSet<&str>) -> Type {
    let Type::Tensor(ty) = &node.ty else { return node.ty.clone() };
    if ty.dtype != DType::Bf16 {
        return node.ty.clone();
    }
    let widened = match op {
        Op::Input(name) => wide.contains(name.as_str()),
        Op::Weight(_) | Op::Literal(_) | Op::Round(DType::Bf16) => false,
        Op::Round(_) => true,
        _ => operands.iter().any(|v| builder.graph().tensor(*v).is_some_and(|t| t.dtype == DType::F32)),
    };
    Type::Tensor(if widened { ty.with_dtype(DType::F32) } else { ty.clone() })
}

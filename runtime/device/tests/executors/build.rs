//! Graphs by hand: one method per operation, types derived from the operands'.

use ir::{
    Axis, Binary, ConstExpr, DType, Entry, Facts, Graph, GraphBuilder, KvKind, KvRef, Mask, Module, Op, Order,
    ReduceOp, RuntimeFacts, Scope, TensorType, TopWhat, Type, Unary, ValueId, Weight, WeightRef,
};

/// A graph under construction.
#[derive(Default)]
pub struct Build {
    pub graph: GraphBuilder,
}

impl Build {
    pub fn ty(&self, id: ValueId) -> TensorType {
        self.graph.graph().tensor(id).expect("a tensor").clone()
    }

    fn push(&mut self, op: Op, operands: &[ValueId], dtype: DType, axes: Vec<Axis>) -> ValueId {
        self.graph.add(op, operands, Type::Tensor(TensorType::new(dtype, axes)), None)
    }

    pub fn named(&mut self, name: &str, id: ValueId) -> ValueId {
        self.graph.name(id, name);
        id
    }

    pub fn input(&mut self, name: &str, dtype: DType, axes: &[Axis]) -> ValueId {
        self.graph.input(name, Type::Tensor(TensorType::new(dtype, axes.to_vec())))
    }

    pub fn weight(&mut self, facts: &Facts, reference: WeightRef) -> ValueId {
        let (scope, name) = match &reference {
            WeightRef::Model(name) => (Scope::Model, name),
            WeightRef::Layer(name) | WeightRef::FirstLayer(name) | WeightRef::OfLayer { name, .. } => {
                (Scope::Layer, name)
            }
            WeightRef::Next { layer, .. } => (Scope::Layer, layer),
            WeightRef::Packed { .. } => unreachable!("no model of these tests packs weights"),
        };
        let ty = facts.weight(scope, name).expect("a declared weight").ty();
        self.graph.add(Op::Weight(reference), &[], Type::Tensor(ty), None)
    }

    pub fn literal(&mut self, dtype: DType, axes: &[Axis], data: Vec<f32>) -> ValueId {
        self.push(Op::Literal(data), &[], dtype, axes.to_vec())
    }

    pub fn scalar(&mut self, number: ConstExpr) -> ValueId {
        self.push(Op::Scalar(number), &[], DType::F32, Vec::new())
    }

    /// Axes of several operands together, row axes first.
    fn union(&self, operands: &[ValueId]) -> Vec<Axis> {
        let mut axes: Vec<Axis> = Vec::new();
        for axis in operands.iter().flat_map(|o| self.ty(*o).axes) {
            if !axes.contains(&axis) {
                axes.push(axis);
            }
        }
        axes.sort_by_key(|a| !a.is_rows());
        axes
    }

    pub fn unary(&mut self, f: Unary, x: ValueId) -> ValueId {
        let dtype = if f == Unary::Not { DType::Bool } else { DType::F32 };
        self.push(Op::Unary(f), &[x], dtype, self.ty(x).axes)
    }

    pub fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        let dtype = if f.is_predicate() { DType::Bool } else { DType::F32 };
        self.push(Op::Binary(f), &[a, b], dtype, self.union(&[a, b]))
    }

    pub fn fma(&mut self, a: ValueId, b: ValueId, c: ValueId) -> ValueId {
        self.push(Op::Fma, &[a, b, c], DType::F32, self.union(&[a, b, c]))
    }

    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> ValueId {
        let (x, y) = (self.ty(a).dtype, self.ty(b).dtype);
        let dtype = if x == y && !x.is_float() { x } else { DType::F32 };
        self.push(Op::Select, &[condition, a, b], dtype, self.union(&[condition, a, b]))
    }

    pub fn round(&mut self, to: DType, x: ValueId) -> ValueId {
        self.push(Op::Round(to), &[x], to, self.ty(x).axes)
    }

    pub fn block_round(&mut self, over: &[&str], x: ValueId, g: ValueId) -> ValueId {
        let over = over.iter().map(|a| (*a).to_owned()).collect();
        self.push(Op::BlockRound { over }, &[x, g], DType::Nvfp4, self.ty(x).axes)
    }

    pub fn reduce(&mut self, op: ReduceOp, axis: &str, order: Order, x: ValueId) -> ValueId {
        let mut axes = self.ty(x).axes;
        axes.retain(|a| a.name != axis);
        self.push(Op::Reduce { op, axis: axis.to_owned(), order }, &[x], DType::F32, axes)
    }

    fn replaced(&self, x: ValueId, axis: &str, by: &[Axis]) -> Vec<Axis> {
        self.ty(x).axes.into_iter().flat_map(|a| if a.name == axis { by.to_vec() } else { vec![a] }).collect()
    }

    pub fn top(&mut self, k: u64, axis: &str, into: &str, what: TopWhat, x: ValueId) -> ValueId {
        let axes = self.replaced(x, axis, &[Axis::fixed(into, k)]);
        let op = Op::Top { k, axis: axis.to_owned(), into: into.to_owned(), what };
        let mut ty = TensorType::new(if what == TopWhat::Ids { DType::I32 } else { self.ty(x).dtype }, axes);
        ty.indexes = (what == TopWhat::Ids).then(|| axis.to_owned());
        self.graph.add(op, &[x], Type::Tensor(ty), None)
    }

    pub fn in_top(&mut self, k: u64, axis: &str, x: ValueId) -> ValueId {
        self.push(Op::InTop { k, axis: axis.to_owned() }, &[x], DType::Bool, self.ty(x).axes)
    }

    pub fn gather(&mut self, axis: &str, x: ValueId, ids: ValueId) -> ValueId {
        let ids_axes = self.ty(ids).axes;
        let x_axes = self.ty(x).axes;
        let fresh: Vec<Axis> = ids_axes.iter().filter(|a| !x_axes.contains(a)).cloned().collect();
        let mut axes = self.replaced(x, axis, &fresh);
        axes.sort_by_key(|a| !a.is_rows());
        self.push(Op::Gather { axis: axis.to_owned() }, &[x, ids], self.ty(x).dtype, axes)
    }

    pub fn slice(&mut self, axis: &str, start: u64, len: u64, into: Option<&str>, x: ValueId) -> ValueId {
        let by: Vec<Axis> = into.map(|name| Axis::fixed(name, len)).into_iter().collect();
        let axes = self.replaced(x, axis, &by);
        let op = Op::Slice { axis: axis.to_owned(), start, len, into: into.map(str::to_owned) };
        self.push(op, &[x], self.ty(x).dtype, axes)
    }

    pub fn concat(&mut self, into: &str, parts: &[ValueId]) -> ValueId {
        let mut axes = self.ty(parts[0]).axes;
        axes.pop();
        let length = |id: ValueId| TensorType::new(DType::F32, self.ty(id).axes.split_off(axes.len())).fixed_elements();
        let len = parts.iter().map(|p| length(*p)).sum();
        axes.push(Axis::fixed(into, len));
        self.push(Op::Concat { into: into.to_owned() }, parts, self.ty(parts[0]).dtype, axes)
    }

    pub fn rename(&mut self, from: &str, to: &str, x: ValueId) -> ValueId {
        let mut axes = self.ty(x).axes;
        axes.iter_mut().filter(|a| a.name == from).for_each(|a| a.name = to.to_owned());
        self.push(Op::Rename { from: from.to_owned(), to: to.to_owned() }, &[x], self.ty(x).dtype, axes)
    }

    pub fn linear(&mut self, contract: &[&str], order: Order, x: ValueId, w: ValueId, ids: Option<ValueId>) -> ValueId {
        let keep = |axes: Vec<Axis>| -> Vec<Axis> {
            axes.into_iter().filter(|a| !contract.contains(&a.name.as_str())).collect()
        };
        let mut leading = keep(self.ty(x).axes);
        if let Some(ids) = ids {
            let fresh: Vec<Axis> = self.ty(ids).axes.into_iter().filter(|a| !leading.contains(a)).collect();
            leading.extend(fresh);
            leading.sort_by_key(|a| !a.is_rows());
        }
        let of_weight = keep(self.ty(w).axes);
        leading.extend_from_slice(&of_weight[usize::from(ids.is_some())..]);
        let op = Op::Linear { contract: contract.iter().map(|c| (*c).to_owned()).collect(), order };
        let operands: Vec<ValueId> = [x, w].into_iter().chain(ids).collect();
        self.push(op, &operands, DType::F32, leading)
    }

    pub fn dot(&mut self, axis: &str, order: Order, a: ValueId, b: ValueId) -> ValueId {
        let mut axes = self.union(&[a, b]);
        axes.retain(|x| x.name != axis);
        self.push(Op::Dot { axis: axis.to_owned(), order }, &[a, b], DType::F32, axes)
    }

    pub fn store(&mut self, kind: &str, k: ValueId, v: ValueId, at: ValueId) -> ValueId {
        self.graph.add(Op::Store { kv: KvRef::Kind(kind.to_owned()), scratch: false }, &[k, v, at], Type::Cache, None)
    }

    pub fn attend(&mut self, kind: &str, q: ValueId, cache: ValueId, at: ValueId, scale: f64) -> ValueId {
        let op = Op::Attend {
            kv: KvRef::Kind(kind.to_owned()),
            mask: Mask::Causal,
            scale: ConstExpr::Num(scale),
            order: Order::Any,
        };
        self.push(op, &[q, cache, at], DType::F32, self.ty(q).axes)
    }

    pub fn finish(self) -> Graph {
        self.graph.finish()
    }
}

/// A weight of the model or of every layer.
pub fn weight(name: &str, scope: Scope, dtype: DType, axes: &[(&str, u64)]) -> Weight {
    Weight {
        name: name.to_owned(),
        scope,
        axes: axes.iter().map(|(n, len)| vec![Axis::fixed(*n, *len)]).collect(),
        dtype,
        pinned: false,
        when: None,
        only: None,
        absent: None,
        borrowed: false,
        disk: Vec::new(),
        quant: false,
        span: None,
    }
}

/// Facts of a model without layers, weights or caches.
pub fn facts(act: DType) -> Facts {
    Facts {
        name: "small".to_owned(),
        act,
        dims: Default::default(),
        products: Default::default(),
        shard: Default::default(),
        options: Default::default(),
        schedule: Vec::new(),
        weights: Vec::new(),
        kv: Vec::new(),
        stored: None,
        captures: Vec::new(),
        exports: Vec::new(),
        runtime: RuntimeFacts::default(),
        files: Vec::new(),
    }
}

/// A cache kind.
pub fn kind(name: &str, layers: &[usize], heads: u64, width: u64, window: Option<u64>) -> KvKind {
    let axes = vec![Axis::fixed("kv_heads", heads), Axis::fixed("head_dim", width)];
    KvKind {
        name: name.to_owned(),
        layers: layers.to_vec(),
        k: axes.clone(),
        v: axes,
        window,
        lives_in: None,
        shared_slots: 0,
    }
}

/// A module of a first graph that leaves `scores: f32[T, axis]`, of which the last picks the wanted rows.
pub fn scoring(facts: Facts, first: Graph, axis: Axis) -> Module {
    let mut b = Build::default();
    let scores = b.input("scores", DType::F32, &[Axis::rows("T"), axis]);
    let rows = b.input("rows", DType::I32, &[Axis::rows("R")]);
    let result = b.gather("T", scores, rows);
    b.graph.output("result", result);
    let last = b.finish();
    let entry = Entry { name: "forward".to_owned(), first, classes: Vec::new(), instances: Vec::new(), last };
    Module::new(facts, vec![entry])
}

//! Small models built by hand, for unit tests.

use ir::{
    Axis, Binary, Block, ConstBinary, ConstExpr, DType, Facts, Graph, GraphBuilder, KvKind, KvRef, LayerKinds, Mask,
    Model, Module, Op, Order, ReduceOp, RuntimeFacts, Scope, TensorType, Type, Unary, ValueId, Weight, WeightRef, When,
};

pub(crate) fn kinds(pairs: &[(&str, &str)]) -> LayerKinds {
    pairs.iter().map(|(c, k)| ((*c).to_owned(), (*k).to_owned())).collect()
}

const DIMS: [(&str, u64); 8] = [
    ("layers", 4),
    ("vocab", 11),
    ("hidden", 8),
    ("heads", 4),
    ("kv_heads", 2),
    ("head_dim", 4),
    ("half", 2),
    ("ffn", 6),
];

/// Facts of a model with two kinds of attention.
pub(crate) fn facts() -> Facts {
    let layer = |n: &str, axes: &[&[&str]]| weight(n, Scope::Layer, axes);
    let model = |n: &str, axes: &[&[&str]]| weight(n, Scope::Model, axes);
    let kv = |name: &str, layers: &[usize], window| KvKind {
        name: name.to_owned(),
        layers: layers.to_vec(),
        k: vec![axis("kv_heads"), axis("head_dim")],
        v: vec![axis("kv_heads"), axis("head_dim")],
        window,
        lives_in: None,
        shared_slots: 0,
    };
    let mut weights = vec![
        model("embed", &[&["vocab"], &["hidden"]]),
        model("norm", &[&["hidden"]]),
        model("head", &[&["vocab"], &["hidden"]]),
        layer("input_norm", &[&["hidden"]]),
        layer("q", &[&["heads", "head_dim"], &["hidden"]]),
        layer("k", &[&["kv_heads", "head_dim"], &["hidden"]]),
        layer("v", &[&["kv_heads", "head_dim"], &["hidden"]]),
        layer("o", &[&["hidden"], &["heads", "head_dim"]]),
        layer("up", &[&["ffn"], &["hidden"]]),
        layer("down", &[&["hidden"], &["ffn"]]),
    ];
    for w in weights.iter_mut().filter(|w| w.name == "up" || w.name == "down") {
        w.when = Some(When { column: "mlp".to_owned(), kind: "dense".to_owned() });
    }
    Facts {
        name: "small".to_owned(),
        act: DType::Bf16,
        dims: DIMS.iter().map(|(n, x)| ((*n).to_owned(), *x)).collect(),
        products: [("head_dim".to_owned(), vec!["2".to_owned(), "half".to_owned()])].into_iter().collect(),
        shard: Default::default(),
        options: Default::default(),
        schedule: ["near", "near", "far", "near"].iter().map(|k| kinds(&[("attn", k), ("mlp", "dense")])).collect(),
        weights,
        kv: vec![kv("near", &[0, 1, 3], Some(2)), kv("far", &[2], None)],
        stored: None,
        captures: Vec::new(),
        exports: Vec::new(),
        runtime: RuntimeFacts::default(),
        files: Vec::new(),
    }
}

pub(crate) fn axis(name: &str) -> Axis {
    let length = DIMS.iter().find(|(n, _)| *n == name).map(|(_, x)| *x);
    length.map_or_else(|| Axis::rows(name), |n| Axis::fixed(name, n))
}

pub(crate) fn weight(name: &str, scope: Scope, axes: &[&[&str]]) -> Weight {
    Weight {
        name: name.to_owned(),
        scope,
        axes: axes.iter().map(|g| g.iter().map(|a| axis(a)).collect()).collect(),
        dtype: DType::Bf16,
        pinned: false,
        when: None,
        only: None,
        absent: None,
        borrowed: false,
        disk: Vec::new(),
        quant: true,
        span: None,
    }
}

/// Builds graphs in few words: types are derived where that is simple.
#[derive(Default)]
pub(crate) struct Make {
    pub(crate) builder: GraphBuilder,
}

impl Make {
    pub(crate) fn ty(&self, id: ValueId) -> TensorType {
        self.builder.graph().tensor(id).cloned().expect("a tensor")
    }

    pub(crate) fn tensor(dtype: DType, axes: &str) -> Type {
        Type::Tensor(TensorType::new(dtype, axes.split_whitespace().map(axis).collect()))
    }

    pub(crate) fn input(&mut self, name: &str, dtype: DType, axes: &str) -> ValueId {
        self.builder.input(name, Self::tensor(dtype, axes))
    }

    pub(crate) fn op(&mut self, op: Op, operands: &[ValueId], dtype: DType, axes: &str) -> ValueId {
        self.builder.add(op, operands, Self::tensor(dtype, axes), None)
    }

    pub(crate) fn layer_weight(&mut self, name: &str) -> ValueId {
        self.weight(WeightRef::Layer(name.to_owned()), Scope::Layer, name)
    }

    pub(crate) fn model_weight(&mut self, name: &str) -> ValueId {
        self.weight(WeightRef::Model(name.to_owned()), Scope::Model, name)
    }

    fn weight(&mut self, reference: WeightRef, scope: Scope, name: &str) -> ValueId {
        let ty = facts().weight(scope, name).expect("a declared weight").ty();
        self.builder.add(Op::Weight(reference), &[], Type::Tensor(ty), None)
    }

    pub(crate) fn literal(&mut self, x: f32) -> ValueId {
        self.op(Op::Literal(vec![x]), &[], DType::F32, "")
    }

    /// An operation with the axes of its first operand, in f32.
    pub(crate) fn like(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        let ty = self.ty(operands[0]).with_dtype(DType::F32);
        self.builder.add(op, operands, Type::Tensor(ty), None)
    }

    pub(crate) fn binary(&mut self, f: Binary, a: ValueId, b: ValueId) -> ValueId {
        self.like(Op::Binary(f), &[a, b])
    }

    pub(crate) fn round(&mut self, x: ValueId, name: &str) -> ValueId {
        let ty = self.ty(x).with_dtype(DType::Bf16);
        let id = self.builder.add(Op::Round(DType::Bf16), &[x], Type::Tensor(ty), None);
        if !name.is_empty() {
            self.builder.name(id, name);
        }
        id
    }

    pub(crate) fn linear(&mut self, x: ValueId, w: ValueId, contract: &[&str]) -> ValueId {
        let keep =
            |t: TensorType| t.axes.into_iter().filter(|a| !contract.contains(&a.name.as_str())).collect::<Vec<_>>();
        let axes = keep(self.ty(x)).into_iter().chain(keep(self.ty(w))).collect();
        let op = Op::Linear { contract: contract.iter().map(|a| (*a).to_owned()).collect(), order: Order::Any };
        self.builder.add(op, &[x, w], Type::Tensor(TensorType::new(DType::F32, axes)), None)
    }

    pub(crate) fn call(&mut self, op: Op, operands: &[ValueId], results: Vec<Type>) -> Vec<ValueId> {
        let tuple = self.builder.add(op, operands, Type::Tuple(results.clone()), None);
        let items = results.into_iter().enumerate();
        items.map(|(i, ty)| self.builder.add(Op::Item(i), &[tuple], ty, None)).collect()
    }

    pub(crate) fn block(self, name: &str) -> Block {
        Block { name: name.to_owned(), graph: self.builder.finish() }
    }
}

/// `fn norm(x, w) { return x * (1 / sqrt(mean(x * x) + eps)) * w }`, rows along the given axis.
pub(crate) fn norm_block(name: &str, rows: &str) -> Block {
    let mut m = Make::default();
    let x = m.input("x", DType::Bf16, &format!("{rows} hidden"));
    let w = m.input("w", DType::Bf16, "hidden");
    let square = m.binary(Binary::Mul, x, x);
    let sum = Op::Reduce { op: ReduceOp::Sum, axis: "hidden".to_owned(), order: Order::Fold };
    let sum = m.op(sum, &[square], DType::F32, rows);
    let n = m.builder.add(Op::Scalar(ConstExpr::Num(8.0)), &[], Make::tensor(DType::F32, ""), None);
    let mean = m.binary(Binary::Div, sum, n);
    let eps = m.literal(1e-6);
    let mean = m.binary(Binary::Add, mean, eps);
    let root = m.like(Op::Unary(Unary::Sqrt), &[mean]);
    let one = m.literal(1.0);
    let scale = m.op(Op::Binary(Binary::Div), &[one, root], DType::F32, rows);
    let scaled = m.binary(Binary::Mul, x, scale);
    let weighted = m.binary(Binary::Mul, scaled, w);
    let result = m.round(weighted, "");
    m.builder.output("result", result);
    m.block(name)
}

fn arm(name: &str, factor: f32) -> Block {
    let mut m = Make::default();
    let q = m.input("q", DType::Bf16, "T heads head_dim");
    let f = m.literal(factor);
    let scaled = m.binary(Binary::Mul, q, f);
    let q = m.round(scaled, "q");
    m.builder.output("q", q);
    m.block(name)
}

fn attention_block() -> Block {
    let mut m = Make::default();
    let x = m.input("x", DType::Bf16, "T hidden");
    let pos = m.input("pos", DType::I32, "T");
    let mut project = |name: &str| {
        let w = m.layer_weight(name);
        let y = m.linear(x, w, &["hidden"]);
        m.round(y, name)
    };
    let (q, k, v) = (project("q"), project("k"), project("v"));
    let arms = ["near", "far"].map(|k| (k.to_owned(), format!("attn.{k}"))).to_vec();
    let column = "attn".to_owned();
    let ty = Make::tensor(DType::Bf16, "T heads head_dim");
    let q = m.call(Op::Match { column: column.clone(), arms }, &[q], vec![ty.clone()])[0];
    m.builder.name(q, "q");
    let kv = KvRef::ByColumn(column);
    let cache = m.builder.add(Op::Store { kv: kv.clone(), scratch: false }, &[k, v, pos], Type::Cache, None);
    let op = Op::Attend { kv, mask: Mask::Causal, scale: ConstExpr::Num(0.5), order: Order::Any };
    let a = m.op(op, &[q, cache, pos], DType::F32, "T heads head_dim");
    let a = m.round(a, "a");
    let o = m.layer_weight("o");
    let o = m.linear(a, o, &["heads", "head_dim"]);
    let o = m.round(o, "");
    m.builder.output("result", o);
    m.block("attention")
}

fn layer_block() -> Block {
    let mut m = Make::default();
    let x = m.input("x", DType::Bf16, "T hidden");
    let pos = m.input("pos", DType::I32, "T");
    let wide = Make::tensor(DType::Bf16, "T hidden");
    let w = m.layer_weight("input_norm");
    let n = m.call(Op::Call("norm".to_owned()), &[x, w], vec![wide.clone()])[0];
    let a = m.call(Op::Call("attention".to_owned()), &[n, pos], vec![wide])[0];
    m.builder.name(a, "a");
    // x = a * (1 / sqrt(2 l + 2)) + x
    let two_l = ConstExpr::Binary(ConstBinary::Mul, Box::new(ConstExpr::Num(2.0)), Box::new(ConstExpr::Layer));
    let n = ConstExpr::Binary(ConstBinary::Add, Box::new(two_l), Box::new(ConstExpr::Num(2.0)));
    let s = m.builder.add(Op::Scalar(n), &[], Make::tensor(DType::F32, ""), None);
    let a = m.binary(Binary::Div, a, s);
    let sum = m.binary(Binary::Add, a, x);
    let x = m.round(sum, "x");
    let up = m.layer_weight("up");
    let h = m.linear(x, up, &["hidden"]);
    let h = m.round(h, "h");
    let down = m.layer_weight("down");
    let y = m.linear(h, down, &["ffn"]);
    let sum = m.binary(Binary::Add, y, x);
    let x = m.round(sum, "x");
    m.builder.output("result", x);
    m.block("layer")
}

fn entry() -> Block {
    let mut m = Make::default();
    let tokens = m.input("tokens", DType::I32, "T");
    let pos = m.input("pos", DType::I32, "T");
    let rows = m.input("rows", DType::I32, "R");
    let embed = m.model_weight("embed");
    let x = m.op(Op::Gather { axis: "vocab".to_owned() }, &[embed, tokens], DType::Bf16, "T hidden");
    m.builder.name(x, "x");
    let layers = Op::Layers { block: "layer".to_owned(), carried: 1 };
    let x = m.call(layers, &[x, pos], vec![Make::tensor(DType::Bf16, "T hidden")])[0];
    m.builder.name(x, "x");
    let y = m.op(Op::Gather { axis: "T".to_owned() }, &[x, rows], DType::Bf16, "R hidden");
    let norm = m.model_weight("norm");
    let wide = Make::tensor(DType::Bf16, "R hidden");
    let y = m.call(Op::Call("norm#2".to_owned()), &[y, norm], vec![wide])[0];
    let head = m.model_weight("head");
    let z = m.linear(y, head, &["hidden"]);
    let z = m.round(z, "z");
    let z = m.like(Op::Round(DType::F32), &[z]);
    m.builder.output("result", z);
    m.block("forward")
}

/// A model of four layers and two classes, with every structural operation.
pub(crate) fn two_kind_model() -> Model {
    Model {
        facts: facts(),
        blocks: vec![
            norm_block("norm", "T"),
            norm_block("norm#2", "R"),
            arm("attn.near", 2.0),
            arm("attn.far", 3.0),
            attention_block(),
            layer_block(),
        ],
        entries: vec![entry()],
    }
}

/// The graph level, every pass run.
pub(crate) fn compile_graph_level(model: &Model) -> Module {
    crate::to_module(model).expect("a model that compiles")
}

/// The text of one graph.
pub(crate) fn text(graph: &Graph) -> String {
    ir::print_graph("g", graph, &facts(), false)
}

/// Regions of a graph under a `[fuse]` table, a line each: name, kind, numbers of the values. `values` are lines of the text
/// form after the inputs `%x: bf16[T, hidden]`, `%y` like it, `%at: i32[T]` and the weights `%w: bf16[wide, hidden]`,
/// `%v: bf16[hidden]`.
pub(crate) fn fused_regions(fuse: &str, outputs: &str, values: &str) -> String {
    let text = format!(
        "module m act bf16 dim hidden = 8 dim wide = 8 dim part = 4 dim heads = 2 dim head = 4 product wide = [heads, head] \
         weight layer w: bf16[wide, hidden] weight layer v: bf16[hidden] \
         entry e {{ graph first () -> () {{ }} graph last (%x, %y, %at) -> ({outputs}) {{ axes T = rows \
         %x: bf16[T, hidden] = input x %y: bf16[T, hidden] = input y %at: i32[T] = input at \
         %w: bf16[wide, hidden] = weight layer w %v: bf16[hidden] = weight layer v {values} }} }}"
    );
    let module = ir::parse_module(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let fuse: targets::Fuse = toml::from_str(fuse).expect("a table of fusing");
    let target = targets::Target::load("cpu").expect("a target");
    let kernels = crate::select_kernels::run(&module, &crate::Compile::one_device(&target)).expect("kernels");
    let mut graph: ir::KernelGraph = kernels.entries[0].graphs[1].clone();
    if !fuse.epilogue.is_empty() || !fuse.prologue.is_empty() {
        graph.regions = crate::attach::graph_regions(&graph, &fuse).expect("regions");
    }
    if fuse.rows {
        graph.regions = crate::fuse_rows::graph_regions(&graph, &fuse).expect("regions");
    }
    let line = |r: &ir::Region| {
        let values: Vec<String> = r.values.iter().map(|v| v.0.to_string()).collect();
        format!("{} {} {}", r.name, r.kind.word(), values.join(" "))
    };
    graph.regions.iter().map(line).collect::<Vec<_>>().join("\n")
}

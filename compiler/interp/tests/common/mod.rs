//! Tensors, types and single operations as text.
#![allow(dead_code)]

use interp::{Cache, Context, Data, Env, InterpError, NoCache, NoHooks, NoWeights, Tensor, eval_graph};
use ir::{Axis, DType, Facts, GraphBuilder, KvKind, LayerKinds, Op, RuntimeFacts, TensorType, Type};

/// `bf16[T, hidden = 4]`: axes without a length are row axes.
pub fn ty(text: &str) -> TensorType {
    let (dtype, axes) = text.split_once('[').expect("a type has brackets");
    let axes = axes
        .trim_end_matches(']')
        .split(',')
        .filter(|a| !a.trim().is_empty())
        .map(|a| match a.split_once('=') {
            Some((name, n)) => Axis::fixed(name.trim(), n.trim().parse().expect("a length")),
            None => Axis::rows(a.trim()),
        })
        .collect();
    TensorType::new(dtype.trim().parse().expect("a dtype"), axes)
}

/// `f32[a = 2, b = 2] 1 2 3 4`.
pub fn tensor(text: &str) -> Tensor {
    let (head, numbers) = text.split_once(']').expect("a tensor has a type");
    let ty = ty(&format!("{head}]"));
    let axes = ty.axes.iter().map(|a| match a.extent {
        ir::Extent::Fixed(n) => (a.name.clone(), n as usize),
        ir::Extent::Rows => panic!("axis {} has no length", a.name),
    });
    let words = numbers.split_whitespace();
    let data = match ty.dtype {
        DType::F32 | DType::Bf16 | DType::E4m3 | DType::E5m2 | DType::Nvfp4 => {
            Data::F32(words.map(|w| w.parse().expect("a number")).collect())
        }
        DType::I32 => Data::I32(words.map(|w| w.parse().expect("an integer")).collect()),
        DType::Bool => Data::Bool(words.map(|w| w == "yes").collect()),
    };
    Tensor::new(axes.collect(), ty.dtype, data).expect("a well-formed tensor")
}

/// The inverse of [`tensor`].
pub fn show(t: &Tensor) -> String {
    let words: Vec<String> = match t.data() {
        Data::F32(v) => v.iter().map(f32::to_string).collect(),
        Data::I32(v) => v.iter().map(i32::to_string).collect(),
        Data::Bool(v) => v.iter().map(|b| if *b { "yes" } else { "no" }.to_owned()).collect(),
    };
    format!("{t} {}", words.join(" ")).trim_end().to_owned()
}

/// Facts with a schedule of `(attention kind)` per layer and one cache kind per distinct name.
pub fn facts(schedule: &[&str], kv: Vec<KvKind>) -> Facts {
    Facts {
        name: "test".into(),
        act: DType::Bf16,
        dims: Default::default(),
        products: Default::default(),
        shard: Default::default(),
        options: Default::default(),
        schedule: schedule.iter().map(|k| LayerKinds::from_iter([("attn".to_owned(), (*k).to_owned())])).collect(),
        weights: Vec::new(),
        kv,
        stored: None,
        captures: Vec::new(),
        exports: Vec::new(),
        runtime: RuntimeFacts::default(),
        files: Vec::new(),
    }
}

/// A cache kind with `[kv_heads, head_dim]` rows.
pub fn kind(name: &str, kv_heads: u64, head_dim: u64, window: Option<u64>) -> KvKind {
    let axes = vec![Axis::fixed("kv_heads", kv_heads), Axis::fixed("head_dim", head_dim)];
    KvKind { name: name.into(), layers: vec![0], k: axes.clone(), v: axes, window, lives_in: None, shared_slots: 0 }
}

/// One operation on tensors.
pub fn try_op(op: Op, operands: &[Tensor], result: &str) -> Result<Tensor, InterpError> {
    let mut b = GraphBuilder::new();
    let mut env = Env::new();
    let mut ids = Vec::new();
    for (i, t) in operands.iter().enumerate() {
        let axes = t.axes().iter().map(|(name, n)| Axis::fixed(name, *n as u64)).collect();
        let name = format!("x{i}");
        ids.push(b.input(&name, Type::Tensor(TensorType::new(t.dtype(), axes))));
        env.insert(name, t.clone());
    }
    let y = b.add(op, &ids, Type::Tensor(ty(result)), None);
    b.output("y", y);
    let mut cache = NoCache;
    let mut ctx = context(&mut cache, Some(3));
    eval_graph(&b.finish(), &facts(&[], vec![]), &mut env, &mut ctx)?;
    Ok((**env.get("y").expect("the output is in the environment")).clone())
}

/// One operation, from text to text; errors as text.
pub fn op(op: Op, operands: &[&str], result: &str) -> String {
    let operands: Vec<Tensor> = operands.iter().map(|t| tensor(t)).collect();
    match try_op(op, &operands, result) {
        Ok(t) => show(&t),
        Err(e) => e.to_string(),
    }
}

/// A context without weights or hooks.
pub fn context<'a>(cache: &'a mut dyn Cache, layer: Option<usize>) -> Context<'a> {
    Context { layer, weights: &NoWeights, cache, hooks: Box::leak(Box::new(NoHooks)) }
}

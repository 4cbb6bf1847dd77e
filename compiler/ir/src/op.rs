//! Operations. `docs/ops.md` has the meaning of each, with numbered constraints.

use crate::speculation::{AcceptRule, AcceptWhat, WalkWhat};
use crate::{ConstExpr, DType};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element-wise functions of one value, in binary32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unary {
    /// Sign change.
    Neg,
    /// Magnitude.
    Abs,
    /// Correctly rounded square root.
    Sqrt,
    /// `numerics::exp`.
    Exp,
    /// `numerics::log1p`.
    Log1p,
    /// `numerics::tanh`.
    Tanh,
    /// `1 / (1 + exp(-x))`, each operation rounded to binary32.
    Sigmoid,
    /// `numerics::sin`.
    Sin,
    /// `numerics::cos`.
    Cos,
    /// Logical negation of a bool.
    Not,
}

impl Unary {
    /// Every function, with its word in specs and IR text.
    pub const ALL: [(Unary, &'static str); 10] = [
        (Unary::Neg, "neg"),
        (Unary::Abs, "abs"),
        (Unary::Sqrt, "sqrt"),
        (Unary::Exp, "exp"),
        (Unary::Log1p, "log1p"),
        (Unary::Tanh, "tanh"),
        (Unary::Sigmoid, "sigmoid"),
        (Unary::Sin, "sin"),
        (Unary::Cos, "cos"),
        (Unary::Not, "not"),
    ];

    /// The word in specs and IR text.
    pub fn word(self) -> &'static str {
        word_of(&Self::ALL, self)
    }
}

/// Element-wise functions of two values, in binary32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Correctly rounded quotient.
    Div,
    /// Larger of the two; `+0` over `-0`; a NaN if either is one.
    Max,
    /// Smaller of the two; `-0` under `+0`; a NaN if either is one.
    Min,
    /// Equality, a bool.
    Eq,
    /// Less than, a bool.
    Lt,
    /// Less than or equal, a bool.
    Le,
    /// Both, on bools.
    And,
    /// Either, on bools.
    Or,
}

impl Binary {
    /// Every function, with its word in IR text.
    pub const ALL: [(Binary, &'static str); 11] = [
        (Binary::Add, "add"),
        (Binary::Sub, "sub"),
        (Binary::Mul, "mul"),
        (Binary::Div, "div"),
        (Binary::Max, "max"),
        (Binary::Min, "min"),
        (Binary::Eq, "eq"),
        (Binary::Lt, "lt"),
        (Binary::Le, "le"),
        (Binary::And, "and"),
        (Binary::Or, "or"),
    ];

    /// The word in IR text.
    pub fn word(self) -> &'static str {
        word_of(&Self::ALL, self)
    }

    /// Whether the result is a bool.
    pub fn is_predicate(self) -> bool {
        matches!(self, Binary::Eq | Binary::Lt | Binary::Le | Binary::And | Binary::Or)
    }
}

fn word_of<T: PartialEq>(table: &[(T, &'static str)], item: T) -> &'static str {
    table.iter().find(|(t, _)| *t == item).map_or("?", |(_, w)| w)
}

/// What a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    /// Sum, in the order named beside it.
    Sum,
    /// Largest element; order does not matter.
    Max,
}

/// In which order the terms of a sum are added.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Left open: a pass or kernel may fix it. The interpreter sums in binary64 and rounds once.
    Any,
    /// Pairwise inside aligned groups of 8, then group i with group i + P/2, halving.
    Fold,
    /// Ascending index, one running total. Over ranks: ascending rank.
    Serial,
    /// As `Serial`, of products only: none is rounded before it is added, so a term costs one fused operation and one rounding.
    Fused,
    /// The index is cut into equal contiguous parts; each is summed in the inner order, and the results are added by
    /// ascending part. What a sum over ranks of local sums amounts to.
    Split {
        /// How many parts; it divides the number of terms.
        parts: u64,
        /// Order inside a part.
        inner: Box<Order>,
    },
}

impl Order {
    /// Deepest nesting of parts in parts.
    pub const MAX_DEPTH: usize = 8;

    /// Whether some of the order is left open.
    pub fn is_open(&self) -> bool {
        match self {
            Order::Any => true,
            Order::Fold | Order::Serial | Order::Fused => false,
            Order::Split { inner, .. } => inner.is_open(),
        }
    }

    /// Whether the order has a meaning for products only.
    pub fn is_of_products(&self) -> bool {
        match self {
            Order::Fused => true,
            Order::Any | Order::Fold | Order::Serial => false,
            Order::Split { inner, .. } => inner.is_of_products(),
        }
    }

    /// The same with what is left open fixed to `to`.
    pub fn closed(&self, to: &Order) -> Order {
        match self {
            Order::Any => to.clone(),
            Order::Fold | Order::Serial | Order::Fused => self.clone(),
            Order::Split { parts, inner } => Order::Split { parts: *parts, inner: Box::new(inner.closed(to)) },
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Any => f.write_str("any"),
            Order::Fold => f.write_str("fold"),
            Order::Serial => f.write_str("serial"),
            Order::Fused => f.write_str("fused"),
            Order::Split { parts, inner } => write!(f, "split {parts} {inner}"),
        }
    }
}

/// Which of the two results of a selection a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TopWhat {
    /// The selected values, descending.
    Values,
    /// Their indices along the axis; equal values give the lower index first.
    Ids,
}

/// Where a weight is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// One for the whole model.
    Model,
    /// One per layer.
    Layer,
}

/// A weight as a graph names it. A layer's graph is shared by all instances of its class, so layer
/// weights are looked up in the instance that runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightRef {
    /// A weight of the whole model.
    Model(String),
    /// A weight of the layer that runs.
    Layer(String),
    /// After the seam is rotated: `layer` of the following layer, or the model's `last` after the last layer.
    Next {
        /// Layer weight of the successor.
        layer: String,
        /// Model weight that stands in after the last layer.
        last: String,
    },
    /// A layer weight of the first layer, read before the loop.
    FirstLayer(String),
    /// A layer weight of the layer with this number, read before the loop.
    OfLayer {
        /// Layer.
        layer: usize,
        /// Weight.
        name: String,
    },
    /// Several weights as one, in this order: the axes of each between those that all have in front and those that all
    /// end with are one axis `into`, along which they are joined.
    Packed {
        /// Name of the joined axis.
        into: String,
        /// What is joined; no part is packed itself.
        parts: Vec<WeightRef>,
    },
}

impl WeightRef {
    /// The weights of the model or of a layer that it stands for: what the first graph reads of a layer is the
    /// layer's, the successor's is the layer's or the model's. A packed one stays whole.
    pub fn owners(&self) -> Vec<WeightRef> {
        match self {
            WeightRef::FirstLayer(name) | WeightRef::OfLayer { name, .. } => vec![WeightRef::Layer(name.clone())],
            WeightRef::Next { layer, last } => vec![WeightRef::Layer(layer.clone()), WeightRef::Model(last.clone())],
            other => vec![other.clone()],
        }
    }

    /// The weights that are read: the parts of a packed one, otherwise the weight itself.
    pub fn parts(&self) -> &[WeightRef] {
        match self {
            WeightRef::Packed { parts, .. } => parts,
            other => std::slice::from_ref(other),
        }
    }
}

/// A KV kind as a graph names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvRef {
    /// One kind.
    Kind(String),
    /// The kind whose name stands in this column of the layer schedule (model level only).
    ByColumn(String),
}

/// Which cached rows a query may see, besides the window of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mask {
    /// Positions up to and including the query's own.
    Causal,
    /// Positions up to the last that the query's sequence has in this step.
    All,
}

/// One operation. Operands are listed in the doc comments in their order; axes are named, never numbered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A value given to the graph under this name.
    Input(String),
    /// A weight, whole.
    Weight(WeightRef),
    /// Constant data, row-major over the node's axes.
    Literal(#[serde(with = "crate::json::exact_f32s")] Vec<f32>),
    /// A number of the layer instance, rounded once from binary64 to f32.
    Scalar(ConstExpr),

    /// `(x)`: element-wise function.
    Unary(Unary),
    /// `(a, b)`: element-wise function with broadcasting by axis name.
    Binary(Binary),
    /// `(a, b, c)`: `a * b + c` with one rounding to binary32.
    Fma,
    /// `(condition, a, b)`: a where the bool holds, else b.
    Select,
    /// `(x)`: rounds to the storage format, nearest even. Also widens (exact) and turns integers into floats. What lies beyond
    /// the largest number of e4m3 or e5m2 becomes that number; nvfp4, which needs scales, is left by `BlockRound` alone.
    Round(DType),
    /// `(x, g)`: x / g in nvfp4, in blocks of 16 along the axes named, which end x and count as one. With the largest magnitude
    /// m of a block its scale is `b = e4m3(min(m / (6 * g), 448))` and its codes are `e2m1(x / (b * g))`, 0 where b is 0, each
    /// operation rounded to binary32, codes to the nearest, ties to the even one, at most 6.
    BlockRound {
        /// Axes that the blocks run along, outermost first; the product of their lengths is a multiple of 16.
        over: Vec<String>,
    },
    /// `(x)`: reduces one axis away.
    Reduce {
        /// What is computed.
        op: ReduceOp,
        /// Axis that disappears.
        axis: String,
        /// Order of a sum.
        order: Order,
    },
    /// `(x)`: the k largest along `axis`, descending; `axis` is replaced by `into`.
    Top {
        /// How many.
        k: u64,
        /// Axis selected along.
        axis: String,
        /// Axis of the selection, of length k.
        into: String,
        /// Values or indices.
        what: TopWhat,
    },
    /// `(x)`: a bool per element: is it among the k largest along `axis`, ties to the lower index?
    InTop {
        /// How many.
        k: u64,
        /// Axis compared along.
        axis: String,
    },
    /// `(x, ids)`: picks along `axis` of x; axes that both operands have are aligned, `axis` is replaced by the other axes of `ids`.
    Gather {
        /// Axis selected along.
        axis: String,
    },
    /// `(x)`: a contiguous part of `axis`, renamed `into`; with `into = None` the part is one element and the axis disappears.
    Slice {
        /// Axis that is cut.
        axis: String,
        /// First element.
        start: u64,
        /// Number of elements.
        len: u64,
        /// Name of the part.
        into: Option<String>,
    },
    /// `(a, b, …)`: joins along the innermost axis; the joined axis is named `into`.
    Concat {
        /// Name of the joined axis.
        into: String,
    },
    /// `(x)`: views a product axis as its factors, the first outermost; no data moves.
    Split {
        /// Axis that is viewed as several.
        axis: String,
    },
    /// `(x)`: the inverse of `Split`: adjacent factor axes become `into`; no data moves.
    Merge {
        /// Product axis that results.
        into: String,
    },
    /// `(x)`: gives an axis another name; no data moves.
    Rename {
        /// Name before.
        from: String,
        /// Name after.
        to: String,
    },
    /// `(x)` or `(x, fill)`: the element `by` places before along `axis`; the first `by` places take `fill`, which
    /// has no such axis and is broadcast, or else 0.
    Shift {
        /// Axis of fixed length that is moved along.
        axis: String,
        /// How many places; at most as many as the axis has.
        by: u64,
    },
    /// `(score, ids, temp, coin)`: one of the results of a walk through the candidates of a block, slot after slot.
    Walk {
        /// Which result.
        what: WalkWhat,
    },
    /// `(z, temp, top_k, top_p)`: the distribution that a token is drawn from, along the last axis of the logits z.
    Probs,
    /// `(tokens, z)` under the greedy rule, else `(tokens, p, ids, q, coin, last)`: what of a drafted block the target takes.
    Accept {
        /// How it is decided.
        rule: AcceptRule,
        /// Which result.
        what: AcceptWhat,
    },
    /// `(x, w)` or `(x, w, ids)`: contracts the axes named in `contract`, which end both x and w, and leaves x's other
    /// axes followed by w's. With `ids` (integers that index w's first axis) each row uses the slice of w that its id names.
    Linear {
        /// Contracted axes, outermost first.
        contract: Vec<String>,
        /// Order of the sum.
        order: Order,
    },
    /// `(a, b)`: sum of products over `axis`, other axes aligned or broadcast by name.
    Dot {
        /// Contracted axis.
        axis: String,
        /// Order of the sum.
        order: Order,
    },
    /// `(k, v, at)` or `(k, v, at, live)`: writes each row's key and value at its position `at` of its own sequence, of
    /// those rows alone whose `live` holds; leaves the cache.
    Store {
        /// KV kind written.
        kv: KvRef,
        /// Whether the rows last for this step only: their positions hold nothing for later steps.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        scratch: bool,
    },
    /// `(q, cache, at)` or `(q, cache, at, sink)`: softmax(scale · q·k) v over the rows of the sequence that `mask` and
    /// the kind's window let through. `sink`, a number for each query head, is one more score, of a row without value.
    /// Query head h reads KV head `h / (heads / kv_heads)`. The result has q's axes.
    Attend {
        /// KV kind read.
        kv: KvRef,
        /// Visible rows.
        mask: Mask,
        /// Factor on the scores.
        scale: ConstExpr,
        /// Order of the sums over head elements and over keys.
        order: Order,
    },

    /// `(x)`: the sum over the ranks of each group, in f32, the same on each of them (sharded levels only).
    AllReduce {
        /// Mesh axes that a group spans.
        over: Vec<String>,
        /// Order of the sum; `serial` is by ascending rank of the group.
        order: Order,
    },
    /// `(x)`: the parts of `axis` that the ranks of each group hold, joined by ascending rank (sharded levels only).
    AllGather {
        /// Axis that the parts are of.
        axis: String,
        /// Mesh axes that a group spans.
        over: Vec<String>,
        /// Name of the joined axis.
        into: String,
    },
    /// `(x)`: the sum over the ranks of each group in f32, by ascending rank, of which each keeps its own part of
    /// `axis` (sharded levels only). Of a row axis the own part is the rows that the rank's step brought.
    ReduceScatter {
        /// Axis that is whole before.
        axis: String,
        /// Mesh axes that a group spans.
        over: Vec<String>,
        /// Name of the part.
        into: String,
    },
    /// `(ids)`: positions inside the rank's own part of `axis`, -1 where another rank has it (sharded levels only).
    Own {
        /// Axis that the ids index.
        axis: String,
        /// Mesh axes that the axis is spread over.
        over: Vec<String>,
    },

    /// `(arguments…)`: a block, called (model level only). Leaves a tuple.
    Call(String),
    /// `(arguments…)`: the block that the layer's kind in `column` selects (model level only). Leaves a tuple.
    Match {
        /// Column of the layer schedule.
        column: String,
        /// Kind → block, in the order of the spec.
        arms: Vec<(String, String)>,
    },
    /// `(carried…, invariant…)`: the block run once per layer, its results fed back as the first `carried` arguments
    /// (model level only). Leaves a tuple of the carried values.
    Layers {
        /// Block of one layer.
        block: String,
        /// How many leading operands are carried.
        carried: usize,
    },
    /// `(tuple)`: one item of a tuple (model level only).
    Item(usize),
}

impl Op {
    /// Whether the node only names something that exists: an input, weight, literal or instance number.
    pub fn is_leaf(&self) -> bool {
        matches!(self, Op::Input(_) | Op::Weight(_) | Op::Literal(_) | Op::Scalar(_))
    }

    /// Whether the node is another view of its operand's memory.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Split { .. } | Op::Merge { .. } | Op::Rename { .. })
    }

    /// Mesh axes over which the operation exchanges data between ranks, if it does.
    pub fn exchanges(&self) -> Option<&[String]> {
        match self {
            Op::AllReduce { over, .. } | Op::AllGather { over, .. } | Op::ReduceScatter { over, .. } => Some(over),
            _ => None,
        }
    }

    /// Whether the operation means something only on a mesh.
    pub fn is_sharded(&self) -> bool {
        self.exchanges().is_some() || matches!(self, Op::Own { .. })
    }

    /// The order that the operation adds in, if it adds.
    pub fn order(&self) -> Option<&Order> {
        match self {
            Op::Linear { order, .. }
            | Op::Dot { order, .. }
            | Op::Attend { order, .. }
            | Op::Reduce { order, .. }
            | Op::AllReduce { order, .. } => Some(order),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn order_mut(&mut self) -> Option<&mut Order> {
        match self {
            Op::Linear { order, .. }
            | Op::Dot { order, .. }
            | Op::Attend { order, .. }
            | Op::Reduce { order, .. }
            | Op::AllReduce { order, .. } => Some(order),
            _ => None,
        }
    }

    /// Whether the operation runs along a block of drafted tokens; no generated kernel does so yet.
    pub fn is_of_block(&self) -> bool {
        matches!(self, Op::Shift { .. } | Op::Walk { .. } | Op::Probs | Op::Accept { .. })
    }

    /// Whether the operation may stand only at the model level.
    pub fn is_structural(&self) -> bool {
        matches!(self, Op::Call(_) | Op::Match { .. } | Op::Layers { .. } | Op::Item(_))
    }
}

//! Every operation but the cache's, in random graphs with random broadcasts: each named value has the interpreter's bits.

use crate::build::{Build, facts, scoring, weight};
use crate::harness::{compile, same_values, tokens};
use ir::{Axis, Binary, ConstExpr, DType, Facts, Module, Order, ReduceOp, Scope, TopWhat, Unary, ValueId, WeightRef};

const ROWS: u64 = 13;
const AXES: [(&str, u64); 4] = [("a", 3), ("b", 10), ("c", 1), ("d", 17)];

/// Seeded choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        self.0 += 1;
        (numerics::hash_name(&format!("dice {}", self.0)) >> 20) as usize % n.max(1)
    }

    fn pick<'x, T>(&mut self, items: &'x [T]) -> Option<&'x T> {
        items.get(self.roll(items.len()))
    }
}

fn table_facts() -> Facts {
    let mut facts = facts(DType::F32);
    let table = |name: &str, dtype, axes: &[&str]| {
        let axes: Vec<_> = [("vocab", ROWS)]
            .into_iter()
            .chain(axes.iter().map(|n| *AXES.iter().find(|(m, _)| m == n).expect("a known axis")))
            .collect();
        weight(name, Scope::Model, dtype, &axes)
    };
    facts.weights = vec![
        table("ab", DType::F32, &["a", "b"]),
        table("bd", DType::Bf16, &["b", "d"]),
        table("acd", DType::F32, &["a", "c", "d"]),
        table("one", DType::F32, &[]),
        table("out", DType::F32, &["b"]),
        weight("d", Scope::Model, DType::Bf16, &[("d", 17)]),
        weight("ba", Scope::Model, DType::F32, &[("b", 10), ("a", 3)]),
        weight("to_b", Scope::Model, DType::F32, &[("b", 10), ("d", 17)]),
        weight("to_many", Scope::Model, DType::Bf16, &[("m", 35), ("a", 3), ("b", 10)]),
        weight("sliced", Scope::Model, DType::F32, &[("b", 10), ("m", 35), ("d", 17)]),
    ];
    facts.dims = AXES.iter().map(|(n, len)| ((*n).to_owned(), *len)).collect();
    facts
}

struct Random<'f> {
    b: Build,
    facts: &'f Facts,
    dice: Dice,
    values: Vec<ValueId>,
    fresh: usize,
}

impl Random<'_> {
    fn any(&mut self, accept: impl Fn(&ir::TensorType) -> bool) -> Option<ValueId> {
        let fitting: Vec<ValueId> = self.values.iter().copied().filter(|v| accept(&self.b.ty(*v))).collect();
        self.dice.pick(&fitting).copied()
    }

    fn float(&mut self) -> Option<ValueId> {
        self.any(|t| t.dtype.is_float())
    }

    fn axis_of(&mut self, x: ValueId) -> Option<Axis> {
        let axes: Vec<Axis> = self.b.ty(x).axes.into_iter().filter(|a| !a.is_rows()).collect();
        self.dice.pick(&axes).cloned()
    }

    fn name(&mut self) -> String {
        self.fresh += 1;
        format!("n{}", self.fresh)
    }

    fn order(&mut self) -> Order {
        [Order::Any, Order::Fold, Order::Serial][self.dice.roll(3)].clone()
    }

    fn len(axis: &Axis) -> u64 {
        match axis.extent {
            ir::Extent::Fixed(n) => n,
            ir::Extent::Rows => 0,
        }
    }

    /// One more operation, if its operands can be found.
    fn grow(&mut self) -> Option<ValueId> {
        Some(match self.dice.roll(22) {
            0 | 1 => {
                let x = self.float()?;
                let f = Unary::ALL[self.dice.roll(9)].0;
                self.b.unary(f, x)
            }
            2..=4 => {
                let (x, y) = (self.any(|t| t.dtype != DType::Bool)?, self.float()?);
                let f = Binary::ALL[self.dice.roll(9)].0;
                self.b.binary(f, x, y)
            }
            5 => {
                let (x, y) = (self.any(|t| t.dtype == DType::Bool)?, self.any(|t| t.dtype == DType::Bool)?);
                match self.dice.roll(3) {
                    0 => self.b.unary(Unary::Not, x),
                    1 => self.b.binary(Binary::And, x, y),
                    _ => self.b.binary(Binary::Or, x, y),
                }
            }
            6 => {
                let (c, x, y) = (self.any(|t| t.dtype == DType::Bool)?, self.float()?, self.float()?);
                self.b.select(c, x, y)
            }
            7 => {
                let (x, y, z) = (self.float()?, self.float()?, self.float()?);
                self.b.fma(x, y, z)
            }
            8 => {
                let x = self.any(|t| t.dtype != DType::Bool)?;
                let to = [DType::F32, DType::Bf16][self.dice.roll(2)];
                self.b.round(to, x)
            }
            9 => {
                let x = self.float()?;
                let axis = self.axis_of(x)?;
                let op = [ReduceOp::Sum, ReduceOp::Max][self.dice.roll(2)];
                let order = self.order();
                self.b.reduce(op, &axis.name, order, x)
            }
            10 => self.selection()?,
            11 => {
                // Indices into an axis that another value has too.
                let ids = self.any(|t| t.dtype == DType::I32 && t.indexes.is_some())?;
                let axis = self.b.ty(ids).indexes?;
                let x = self.any(|t| t.dtype.is_float() && t.axis(&axis).is_some())?;
                self.b.gather(&axis, x, ids)
            }
            12 => {
                let x = self.float()?;
                let axis = self.axis_of(x)?;
                let start = self.dice.roll(Self::len(&axis) as usize) as u64;
                let len = 1 + self.dice.roll((Self::len(&axis) - start) as usize) as u64;
                let into = self.name();
                let into = (len > 1 || self.dice.roll(2) == 0).then_some(into.as_str());
                self.b.slice(&axis.name, start, len, into, x)
            }
            13 => {
                let x = self.any(|t| t.dtype == DType::F32 && t.axes.last().is_some_and(|a| !a.is_rows()))?;
                let front = |t: &ir::TensorType| t.axes[..t.axes.len() - 1].to_vec();
                let lead = front(&self.b.ty(x));
                let y = self.any(|t| {
                    t.dtype == DType::F32 && t.axes.last().is_some_and(|a| !a.is_rows()) && front(t) == lead
                })?;
                let into = self.name();
                self.b.concat(&into, &[x, y])
            }
            14 | 16..=21 => self.product()?,
            _ => {
                let x = self.float()?;
                let axis = self.axis_of(x)?;
                let to = self.name();
                self.b.rename(&axis.name, &to, x)
            }
        })
    }

    fn selection(&mut self) -> Option<ValueId> {
        let x = self.any(|t| t.dtype == DType::F32)?;
        let axis = self.axis_of(x)?;
        let k = 1 + self.dice.roll(Self::len(&axis) as usize) as u64;
        let into = self.name();
        Some(match self.dice.roll(3) {
            0 => self.b.in_top(k, &axis.name, x),
            1 => self.b.top(k, &axis.name, &into, TopWhat::Values, x),
            _ => self.b.top(k, &axis.name, &into, TopWhat::Ids, x),
        })
    }

    /// Products with orders that the processor's kernels share with the interpreter.
    fn product(&mut self) -> Option<ValueId> {
        let ends = |t: &ir::TensorType, with: &[&str]| {
            t.dtype.is_float()
                && t.axes.len() >= with.len()
                && t.axes.iter().rev().zip(with.iter().rev()).all(|(a, w)| a.name == *w)
        };
        let facts = self.facts;
        let order = [Order::Serial, Order::Fold, Order::Fused][self.dice.roll(3)].clone();
        let model = |name: &str| WeightRef::Model(name.to_owned());
        Some(match self.dice.roll(4) {
            0 => {
                let x = self.any(|t| ends(t, &["d"]) && t.axis("b").is_none())?;
                let w = self.b.weight(facts, model("to_b"));
                self.b.linear(&["d"], order, x, w, None)
            }
            1 => {
                let x = self.any(|t| ends(t, &["a", "b"]) && t.axis("m").is_none())?;
                let w = self.b.weight(facts, model("to_many"));
                self.b.linear(&["a", "b"], order, x, w, None)
            }
            2 => {
                let ids = self.any(|t| t.indexes.as_deref() == Some("b"))?;
                let of_ids = self.b.ty(ids).axes;
                let x = self.any(|t| {
                    ends(t, &["d"])
                        && t.axis("m").is_none()
                        && t.axes.iter().all(|a| a.name == "d" || of_ids.contains(a))
                })?;
                if self.b.ty(x).axes.len() != of_ids.len() + 1
                    && self.b.ty(x).row_axes().count() != of_ids.iter().filter(|a| a.is_rows()).count()
                {
                    return None;
                }
                let w = self.b.weight(facts, model("sliced"));
                self.b.linear(&["d"], order, x, w, Some(ids))
            }
            _ => {
                let x = self.float()?;
                let axis = self.axis_of(x)?;
                let y = self.any(|t| t.dtype.is_float() && t.axes.contains(&axis))?;
                let order = if self.dice.roll(3) == 0 { Order::Fused } else { self.order() };
                self.b.dot(&axis.name, order, x, y)
            }
        })
    }
}

fn random_module(seed: u64) -> Module {
    let facts = table_facts();
    let mut b = Build::default();
    let rows = Axis::rows("T");
    let tokens = b.input("tokens", DType::I32, std::slice::from_ref(&rows));
    let pos = b.input("pos", DType::I32, &[rows]);
    b.input("rows", DType::I32, &[Axis::rows("R")]);
    let mut values = vec![pos];
    for name in ["ab", "bd", "acd", "one"] {
        let table = b.weight(&facts, WeightRef::Model(name.to_owned()));
        values.push(b.gather("vocab", table, tokens));
    }
    for name in ["d", "ba"] {
        values.push(b.weight(&facts, WeightRef::Model(name.to_owned())));
    }
    values.push(b.scalar(ConstExpr::Num(0.3)));
    values.push(b.literal(DType::F32, &[Axis::fixed("b", 10)], (0..10).map(|i| i as f32 / 3.0).collect()));
    let mut random = Random { b, facts: &facts, dice: Dice(seed * 1000), values, fresh: 0 };
    let mut grown = 0;
    for _ in 0..400 {
        if grown == 40 {
            break;
        }
        let Some(id) = random.grow() else { continue };
        let elements = random.b.ty(id).fixed_elements();
        if random.b.ty(id).axes.len() <= 5 && elements <= 800 {
            random.values.push(id);
        }
        random.b.named(&format!("v{grown}"), id);
        grown += 1;
    }
    let mut b = random.b;
    let out = b.weight(&facts, WeightRef::Model("out".to_owned()));
    let out = b.gather("vocab", out, tokens);
    b.graph.output("scores", out);
    scoring(facts, b.finish(), Axis::fixed("b", 10))
}

#[test]
fn random_graphs_have_the_interpreters_bits() {
    let mut compared = std::collections::BTreeMap::<String, usize>::new();
    for seed in 0..50 {
        let module = random_module(seed);
        let model = compile(&module, seed);
        let graph = &module.entries[0].first;
        same_values(&model, &tokens(9, ROWS, seed), &format!("seed {seed}"), |name| {
            let op = name.strip_prefix("first.").and_then(|n| graph.find(n)).map(|id| format!("{:?}", graph.node(id)));
            let op = op.unwrap_or_default();
            let word = op.split(['(', '{', ' ', ',']).find(|w| !w.is_empty() && *w != "Node" && *w != "op:");
            *compared.entry(word.unwrap_or("?").to_owned()).or_default() += 1;
        });
    }
    for op in [
        "Unary", "Binary", "Fma", "Select", "Round", "Reduce", "Top", "InTop", "Gather", "Slice", "Concat", "Rename",
        "Linear", "Dot",
    ] {
        assert!(compared.get(op).is_some_and(|n| *n >= 10), "too few of {op}: {compared:?}");
    }
}

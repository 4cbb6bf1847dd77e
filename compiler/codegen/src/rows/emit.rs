//! Expressions: the C++ text of one element of a value.

use super::index::{Index, LANE};
use super::modes::Mode;
use super::text::Kernel;
use super::{c_type, length};
use artifact::Param;
use ir::{Axis, Binary, DType, Op, Order, ReduceOp, Unary, ValueId};
use std::collections::{BTreeMap, HashMap};

/// The element that is meant: an index along every axis.
pub type Coords = BTreeMap<String, Index>;

/// What is known of a symbol.
#[derive(Clone, Copy, Debug, Default)]
pub struct Symbol {
    /// Whether it differs inside a group of 8.
    pub varies: bool,
    /// Whether it is a multiple of 8.
    pub aligned: bool,
}

/// Text that is being written: the body of a loop over elements, or of a function of one index.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// What stands before the elements of a group.
    pub group_lines: Vec<String>,
    /// What stands for each element.
    pub lines: Vec<String>,
    /// Symbols by name.
    pub symbols: HashMap<String, Symbol>,
    /// Where elements of a group stand side by side in one loop.
    pub wide: bool,
    /// The element that the loop is at.
    pub own: Coords,
    /// Values that the loop has computed at its own element.
    pub computed: HashMap<ValueId, String>,
    /// Elements that have a name already.
    pub memo: HashMap<(ValueId, Coords), String>,
    /// Loads that were made already.
    pub loads: HashMap<String, String>,
}

impl Body {
    fn varies(&self, index: &Index) -> bool {
        index.symbols().any(|s| s == LANE || self.symbols.get(s).is_some_and(|s| s.varies))
    }

    fn push(&mut self, varies: bool, line: String) {
        if varies || !self.wide { self.lines.push(line) } else { self.group_lines.push(line) }
    }

    /// A body of a function inside this one. What is known outside is known inside; what it computes stays inside.
    fn inner(&self, symbol: Option<&str>) -> Body {
        let mut inner = self.clone();
        inner.group_lines.clear();
        inner.lines.clear();
        inner.wide = false;
        if let Some(symbol) = symbol {
            inner.symbols.insert(symbol.to_owned(), Symbol { varies: true, aligned: false });
        }
        inner
    }

    /// The body as a function of `parameter` that gives `result`.
    fn function(&self, parameter: &str, result: &str) -> String {
        let lines: String = self.lines.iter().map(|l| format!("{l} ")).collect();
        format!("[&]({parameter}) {{ {lines}return {result}; }}")
    }
}

/// A number as C++ writes it.
pub fn literal(x: f32) -> String {
    if x.is_finite() {
        let text = format!("{x:?}");
        format!("{text}f")
    } else {
        format!("from_bits(0x{:08x}u)", x.to_bits())
    }
}

impl Kernel<'_> {
    /// The text of an element of a value.
    pub fn at(&mut self, body: &mut Body, id: ValueId, coords: &Coords) -> Result<String, String> {
        let axes: Vec<Axis> = self.job.graph.tensor(id).map(|t| t.axes.clone()).unwrap_or_default();
        let mut own = Coords::new();
        for axis in &axes {
            let index = coords.get(&axis.name).ok_or_else(|| format!("no index along `{}` of {id}", axis.name))?;
            own.insert(axis.name.clone(), index.clone());
        }
        let key = (id, own);
        if let Some(known) = body.memo.get(&key) {
            return Ok(known.clone());
        }
        let coords = &key.1;
        let text =
            if self.job.computes(id) { self.computed(body, id, coords)? } else { self.given(body, id, coords, &axes)? };
        body.memo.insert(key, text.clone());
        Ok(text)
    }

    fn computed(&mut self, body: &mut Body, id: ValueId, coords: &Coords) -> Result<String, String> {
        let is_own = coords.iter().all(|(axis, index)| body.own.get(axis) == Some(index));
        let mode = *self.modes.get(&id).ok_or_else(|| format!("{id} has no mode"))?;
        match mode {
            Mode::Number => Ok(self.number_name(id)),
            Mode::Registers | Mode::Shared if is_own && body.computed.contains_key(&id) => {
                Ok(body.computed[&id].clone())
            }
            Mode::Registers if is_own => Ok(format!("{}[j][{LANE}]", self.register_name(id))),
            Mode::Registers => Err(format!("{id} is read at another element and stands in registers")),
            Mode::Shared => {
                let space = self.job.space(id);
                let index = flat(&space, coords)?;
                let read = format!("{}[sub][{}]", self.shared_name(id), index.text(false));
                Ok(if self.job.dtype(id) == DType::Bool { format!("({read} != 0)") } else { read })
            }
            Mode::Inline => self.evaluate(body, id, coords),
        }
    }

    /// A value from outside: a literal, a number of the instance, a view of memory, or memory.
    fn given(&mut self, body: &mut Body, id: ValueId, coords: &Coords, axes: &[Axis]) -> Result<String, String> {
        let node = self.job.graph.node(id);
        match &node.op {
            Op::Literal(numbers) if axes.is_empty() => {
                let x = numbers.first().copied().unwrap_or_default();
                Ok(if self.job.dtype(id) == DType::I32 { format!("{}", x as i32) } else { literal(x) })
            }
            Op::Literal(numbers) => {
                let name = self.literal_array(id, numbers);
                let index = flat(axes, coords)?;
                let varies = body.varies(&index);
                let v = self.fresh("c");
                body.push(varies, format!("const {} {v} = {name}[{}];", c_type(self.job.dtype(id)), index.text(false)));
                Ok(v)
            }
            Op::Scalar(_) => self.number_param(id),
            op if op.is_view() => self.evaluate(body, id, coords),
            _ => self.load(body, id, coords, axes),
        }
    }

    fn load(&mut self, body: &mut Body, id: ValueId, coords: &Coords, axes: &[Axis]) -> Result<String, String> {
        let dtype = self.job.dtype(id);
        let job = self.job;
        if job.link.as_ref().is_some_and(|l| l.sum == Some(id)) {
            return self.summed(body, id, coords);
        }
        let tile = job.tile.as_ref().filter(|t| t.core == id);
        let (pointer, index) = match tile {
            Some(tile) => ("tile".to_owned(), tile.index(axes, coords, &self.own_rows, body.wide)?),
            None => (self.pointer(id)?, flat(axes, coords)?),
        };
        let address = |index: &Index| match tile {
            Some(_) => format!("tile.at(line, {})", index.text(false)),
            None => format!("{pointer} + {}", index.text(true)),
        };
        let key = format!("{pointer}[{}]", index.text(true));
        if let Some(known) = body.loads.get(&key) {
            return Ok(known.clone());
        }
        let symbols = body.symbols.clone();
        let aligned = |s: &str| symbols.get(s).is_some_and(|s| s.aligned);
        let varies = |s: &str| symbols.get(s).is_some_and(|s| s.varies);
        let text = if body.wide && dtype != DType::Bool && index.is_group(aligned, varies) {
            let name = self.fresh("m");
            let kind = c_type(dtype);
            let from = address(&index.without_lane());
            body.group_lines.push(format!("{kind} {name}[8]; load8({name}, {from});"));
            format!("{name}[{LANE}]")
        } else {
            let name = self.fresh("m");
            let varies = body.varies(&index);
            let line = format!("const {} {name} = load({});", c_type(dtype), address(&index));
            body.push(varies, line);
            name
        };
        body.loads.insert(key, text.clone());
        Ok(text)
    }

    /// Computes an element and names it.
    pub fn evaluate(&mut self, body: &mut Body, id: ValueId, coords: &Coords) -> Result<String, String> {
        let node = self.job.graph.node(id).clone();
        let operands = self.job.graph.operands(id);
        let first = *operands.first().ok_or_else(|| format!("{id} has no operand"))?;
        match &node.op {
            Op::Slice { axis, start, into, .. } => {
                let mut of = coords.clone();
                let inside = into.as_ref().and_then(|name| of.remove(name)).unwrap_or_default();
                of.insert(axis.clone(), inside.plus(&Index::number(*start as i64)));
                self.at(body, first, &of)
            }
            Op::Rename { from, to } => {
                let mut of = coords.clone();
                let index = of.remove(to).unwrap_or_default();
                of.insert(from.clone(), index);
                self.at(body, first, &of)
            }
            Op::Split { axis } => self.at(body, first, &self.joined(id, first, axis, coords)?),
            Op::Merge { into } => {
                let of = self.parted(body, id, first, into, coords)?;
                self.at(body, first, &of)
            }
            Op::Gather { axis } => self.gather(body, id, &operands, axis, coords),
            Op::Concat { into } => self.concat(body, id, &operands, into, coords),
            _ => {
                let text = self.expression(body, id, &node.op, &operands, coords)?;
                let varies = coords.values().any(|i| body.varies(i));
                let name = self.value_name(id);
                let kind = c_type(self.job.dtype(id));
                body.push(varies, format!("const {kind} {name} = {text};"));
                Ok(name)
            }
        }
    }

    /// The axis that factors make: what a split shows in parts.
    fn joined(&self, id: ValueId, of: ValueId, axis: &str, coords: &Coords) -> Result<Coords, String> {
        let factors = self.factors(id, of, axis)?;
        let mut out = coords.clone();
        let mut index = Index::default();
        for factor in &factors {
            let part = out.remove(&factor.name).unwrap_or_default();
            index = index.times(length(factor)?).plus(&part);
        }
        out.insert(axis.to_owned(), index);
        Ok(out)
    }

    /// The axes of `parts` that are one axis of `whole`.
    fn factors(&self, parts: ValueId, whole: ValueId, axis: &str) -> Result<Vec<Axis>, String> {
        let missing = || format!("{parts} is no view of {whole}");
        let (parts, whole) =
            (self.job.graph.tensor(parts).ok_or_else(missing)?, self.job.graph.tensor(whole).ok_or_else(missing)?);
        let at = whole.axis(axis).ok_or_else(missing)?;
        let count = (parts.axes.len() + 1).checked_sub(whole.axes.len()).ok_or_else(missing)?;
        parts.axes.get(at..at + count).map(<[Axis]>::to_vec).ok_or_else(missing)
    }

    /// Indices along the factors of a merged axis.
    fn parted(
        &mut self,
        body: &mut Body,
        id: ValueId,
        of: ValueId,
        into: &str,
        coords: &Coords,
    ) -> Result<Coords, String> {
        let factors = self.factors(of, id, into)?;
        let mut out = coords.clone();
        let index = out.remove(into).unwrap_or_default();
        let varies = body.varies(&index);
        let mut behind: i64 = factors.iter().map(length).product::<Result<i64, _>>()?;
        for factor in &factors {
            let n = length(factor)?;
            behind /= n.max(1);
            let name = self.fresh("i");
            body.push(varies, format!("const int {name} = ({}) / {behind} % {n};", index.text(false)));
            body.symbols.insert(name.clone(), Symbol { varies, aligned: false });
            out.insert(factor.name.clone(), Index::symbol(&name));
        }
        Ok(out)
    }

    fn gather(
        &mut self,
        body: &mut Body,
        id: ValueId,
        operands: &[ValueId],
        axis: &str,
        coords: &Coords,
    ) -> Result<String, String> {
        let [x, ids] = operands else { return Err(format!("{id} picks from {} operands", operands.len())) };
        let picked = self.at(body, *ids, coords)?;
        let of_ids = self.job.graph.tensor(*ids).map(|t| t.axes.clone()).unwrap_or_default();
        let varies = of_ids.iter().filter_map(|a| coords.get(&a.name)).any(|i| body.varies(i));
        let name = self.fresh("at");
        body.push(varies, format!("const int {name} = {picked} < 0 ? 0 : {picked};"));
        body.symbols.insert(name.clone(), Symbol { varies, aligned: false });
        let mut of = coords.clone();
        of.insert(axis.to_owned(), Index::symbol(&name));
        let found = self.at(body, *x, &of)?;
        if self.job.dtype(*x) == DType::I32 || self.job.dtype(*x) == DType::Bool {
            return Ok(found);
        }
        let value = self.value_name(id);
        let all_vary = coords.values().any(|i| body.varies(i));
        body.push(all_vary || varies, format!("const float {value} = {picked} < 0 ? absent() : {found};"));
        Ok(value)
    }

    fn concat(
        &mut self,
        body: &mut Body,
        id: ValueId,
        operands: &[ValueId],
        into: &str,
        coords: &Coords,
    ) -> Result<String, String> {
        let index = coords.get(into).cloned().ok_or_else(|| format!("no index along `{into}` of {id}"))?;
        let mut start = 0;
        let mut text = String::new();
        for (number, operand) in operands.iter().enumerate() {
            let inner = self.job.graph.tensor(*operand).and_then(|t| t.axes.last().cloned());
            let inner = inner.ok_or_else(|| format!("{operand} has no axis to join"))?;
            let mut of = coords.clone();
            of.remove(into);
            of.insert(inner.name.clone(), index.clone().plus(&Index::number(-start)));
            let mut branch = body.inner(None);
            let result = self.at(&mut branch, *operand, &of)?;
            start += length(&inner)?;
            let call = format!("{}()", branch.function("", &result));
            if number + 1 < operands.len() {
                text += &format!("{} < {start} ? {call} : ", index.text(false));
            } else {
                text += &call;
            }
        }
        let name = self.value_name(id);
        let varies = coords.values().any(|i| body.varies(i));
        body.push(varies, format!("const {} {name} = {text};", c_type(self.job.dtype(id))));
        Ok(name)
    }

    /// An operand as a float.
    fn float(&mut self, body: &mut Body, id: ValueId, coords: &Coords) -> Result<String, String> {
        let text = self.at(body, id, coords)?;
        Ok(if self.job.dtype(id) == DType::I32 { format!("(float){text}") } else { text })
    }

    fn expression(
        &mut self,
        body: &mut Body,
        id: ValueId,
        op: &Op,
        operands: &[ValueId],
        coords: &Coords,
    ) -> Result<String, String> {
        let operand = |i: usize| operands.get(i).copied().ok_or_else(|| format!("{id} lacks an operand"));
        Ok(match op {
            Op::Unary(function) => unary(*function, &self.float(body, operand(0)?, coords)?),
            Op::Binary(function) => {
                let ints = operands.iter().all(|v| self.job.dtype(*v) == DType::I32);
                let bools = operands.iter().all(|v| self.job.dtype(*v) == DType::Bool);
                let whole = function.is_predicate() && (ints || bools);
                let mut get = |i| {
                    if whole { self.at(body, operand(i)?, coords) } else { self.float(body, operand(i)?, coords) }
                };
                let (a, b) = (get(0)?, get(1)?);
                binary(*function, &a, &b)
            }
            Op::Fma => {
                let mut get = |i| self.float(body, operand(i)?, coords);
                format!("fused({}, {}, {})", get(0)?, get(1)?, get(2)?)
            }
            Op::Select => {
                let condition = self.at(body, operand(0)?, coords)?;
                let floats = self.job.dtype(id).is_float();
                let mut get = |i| {
                    if floats { self.float(body, operand(i)?, coords) } else { self.at(body, operand(i)?, coords) }
                };
                format!("{condition} ? {} : {}", get(1)?, get(2)?)
            }
            Op::Round(to) => {
                let x = self.float(body, operand(0)?, coords)?;
                match to {
                    DType::Bf16 => format!("round_bf16({x})"),
                    narrow if narrow.is_narrow() => {
                        return Err(format!("{id} rounds to {narrow}: no kernel does that yet"));
                    }
                    _ => x,
                }
            }
            Op::Reduce { op, axis, order } => {
                let x = operand(0)?;
                let n = self.axis_length(x, axis)?;
                match op {
                    ReduceOp::Max => self.reduce(body, "largest_in_thread", Terms::all(n, axis, coords, &[x]))?,
                    ReduceOp::Sum => self.sum(body, order, Terms::all(n, axis, coords, &[x]))?,
                }
            }
            Op::Dot { axis, order } => {
                let n = self.axis_length(operand(0)?, axis)?;
                self.sum(body, order, Terms::all(n, axis, coords, operands))?
            }
            Op::Own { axis, over } => {
                let ids = self.at(body, operand(0)?, coords)?;
                let mut bound = |end| {
                    let param = Param::Own { axis: axis.clone(), over: over.clone(), end };
                    self.param(param, "const int", if end { "end" } else { "begin" })
                };
                format!("own_id({ids}, {}, {})", bound(false), bound(true))
            }
            other => return Err(format!("{id} is {}, which is no row operation", word(other))),
        })
    }

    fn axis_length(&self, id: ValueId, name: &str) -> Result<i64, String> {
        let axis = self.job.graph.tensor(id).and_then(|t| t.axes.iter().find(|a| a.name == name).cloned());
        length(&axis.ok_or_else(|| format!("{id} has no axis `{name}`"))?)
    }

    fn sum(&mut self, body: &mut Body, order: &Order, terms: Terms<'_>) -> Result<String, String> {
        match order {
            Order::Any | Order::Fold => self.reduce(body, "fold_in_thread", terms),
            Order::Serial => self.reduce(body, "serial_in_thread", terms),
            Order::Fused => Err("a sum in the order `fused` has no code for row kernels yet".to_owned()),
            Order::Split { parts, inner } => {
                let parts = i64::try_from(*parts).unwrap_or(1).max(1);
                let part = self.fresh("part");
                let mut outer = body.inner(Some(&part));
                let n = terms.n / parts;
                let terms = Terms { n, start: terms.start.plus(&Index::symbol(&part).times(n)), ..terms };
                let text = self.sum(&mut outer, inner, terms)?;
                Ok(format!("serial_in_thread<{parts}>({})", outer.function(&format!("int {part}"), &text)))
            }
        }
    }

    fn reduce(&mut self, body: &mut Body, function: &str, terms: Terms<'_>) -> Result<String, String> {
        let symbol = self.fresh("q");
        let mut inner = body.inner(Some(&symbol));
        let mut of = terms.coords.clone();
        of.insert(terms.axis.to_owned(), terms.start.plus(&Index::symbol(&symbol)));
        let factors = terms.operands.iter().map(|v| self.float(&mut inner, *v, &of)).collect::<Result<Vec<_>, _>>()?;
        Ok(format!("{function}<{}>({})", terms.n, inner.function(&format!("int {symbol}"), &factors.join(" * "))))
    }

    /// How many elements along `axis` stand before the own one in descending order.
    pub fn rank(&mut self, body: &mut Body, of: ValueId, axis: &str, coords: &Coords) -> Result<String, String> {
        let n = self.axis_length(of, axis)?;
        let own = coords.get(axis).map(|i| i.text(false)).unwrap_or_default();
        Ok(format!("rank_in_thread<{n}>({}, {own})", self.term(body, of, axis, coords)?))
    }

    /// The function of an index along an axis that gives a value's element there.
    pub fn term(&mut self, body: &mut Body, of: ValueId, axis: &str, coords: &Coords) -> Result<String, String> {
        let symbol = self.fresh("q");
        let mut inner = body.inner(Some(&symbol));
        let mut at = coords.clone();
        at.insert(axis.to_owned(), Index::symbol(&symbol));
        let term = self.float(&mut inner, of, &at)?;
        Ok(inner.function(&format!("int {symbol}"), &term))
    }
}

/// What a reduction of a thread goes over: elements of one value, or products of two.
struct Terms<'a> {
    /// How many.
    n: i64,
    axis: &'a str,
    /// The first along `axis`.
    start: Index,
    /// Where they lie along the other axes.
    coords: &'a Coords,
    operands: &'a [ValueId],
}

impl<'a> Terms<'a> {
    /// All along an axis of `n` elements.
    fn all(n: i64, axis: &'a str, coords: &'a Coords, operands: &'a [ValueId]) -> Self {
        Terms { n, axis, start: Index::default(), coords, operands }
    }
}

/// Row-major index of an element.
pub fn flat(axes: &[Axis], coords: &Coords) -> Result<Index, String> {
    let mut index = Index::default();
    for axis in axes {
        let at = coords.get(&axis.name).ok_or_else(|| format!("no index along `{}`", axis.name))?;
        let stride = match axis.extent {
            ir::Extent::Fixed(n) => n as i64,
            ir::Extent::Rows => 1,
        };
        index = index.times(stride).plus(at);
    }
    Ok(index)
}

fn unary(function: Unary, x: &str) -> String {
    let name = match function {
        Unary::Neg => "negated",
        Unary::Abs => "magnitude",
        Unary::Sqrt => "root",
        Unary::Exp => "exponential",
        Unary::Log1p => "log_one_plus",
        Unary::Tanh => "hyperbolic_tangent",
        Unary::Sigmoid => "sigmoid",
        Unary::Sin => "sine",
        Unary::Cos => "cosine",
        Unary::Not => return format!("!{x}"),
    };
    format!("{name}({x})")
}

fn binary(function: Binary, a: &str, b: &str) -> String {
    match function {
        Binary::Add => format!("{a} + {b}"),
        Binary::Sub => format!("{a} - {b}"),
        Binary::Mul => format!("{a} * {b}"),
        Binary::Div => format!("quotient({a}, {b})"),
        Binary::Max => format!("larger({a}, {b})"),
        Binary::Min => format!("smaller({a}, {b})"),
        Binary::Eq => format!("{a} == {b}"),
        Binary::Lt => format!("{a} < {b}"),
        Binary::Le => format!("{a} <= {b}"),
        Binary::And => format!("{a} && {b}"),
        Binary::Or => format!("{a} || {b}"),
    }
}

/// What an operation is called in errors.
pub fn word(op: &Op) -> &'static str {
    match op {
        Op::Linear { .. } => "a product",
        Op::Attend { .. } => "attention",
        Op::Store { .. } => "a store",
        op if op.is_sharded() => "an exchange between ranks",
        _ => "another operation",
    }
}

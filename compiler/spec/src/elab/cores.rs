//! The heavy operations: products with weights, products of values, the cache.

use super::Elab;
use super::axes::fixed;
use super::value::{Origin, Tensor, Val};
use crate::Diagnostic;
use crate::ast::{Expr, ExprKind};
use crate::stop::{Res, refuse};
use ir::{Axis, DType, KvRef, Op, Order, Span, TensorType, Type};

impl Elab<'_> {
    /// An operand of a heavy operation: clause R1 rounds an expression, a value keeps its dtype.
    pub(super) fn operand(&mut self, e: &Expr) -> Res<Tensor> {
        let val = self.expr(e, None)?;
        self.settle(val, None, e.span, None)
    }

    /// `linear(x, W)`: contracts the axes that end both, leaves x's other axes and then W's (clause R6).
    pub(super) fn linear(&mut self, x: &Expr, w: &Expr, span: Span) -> Res<Tensor> {
        let (x_span, w_span) = (x.span, w.span);
        let x = self.operand(x)?;
        let (weight, ids) = match self.expr(w, None)? {
            Val::Weight(w) => {
                let t = self.emit(Op::Weight(w.reference), &[], w.ty, w_span)?.into_value();
                (t, w.chosen)
            }
            other => (self.settle(other, None, w_span, None)?, None),
        };
        let leading = usize::from(ids.is_some());
        let own: Vec<Axis> = weight.ty.axes[leading..].to_vec();
        let shared = x.ty.axes.iter().rev().zip(own.iter().rev()).take_while(|(a, b)| a == b).count();
        if shared == 0 {
            let names: Vec<&str> = own.iter().map(|a| a.name.as_str()).collect();
            return refuse(
                Diagnostic::error("B0281", "`linear` contracts the axes that end both operands, and there are none")
                    .at(x_span, format!("its axes are {}", x.axis_names()))
                    .note(Some(w_span), format!("its axes are [{}]", names.join(", ")))
                    .help("the last axes of x must be the last axes of the weight"),
            );
        }
        let contract: Vec<String> = own[own.len() - shared..].iter().map(|a| a.name.clone()).collect();
        let mut axes: Vec<Axis> = x.ty.axes[..x.ty.axes.len() - shared].to_vec();
        if let Some(ids) = &ids {
            axes.extend(ids.ty.axes.iter().filter(|a| x.ty.axis(&a.name).is_none()).cloned());
        }
        axes.extend(own[..own.len() - shared].iter().cloned());
        for (i, a) in axes.iter().enumerate() {
            if axes[..i].iter().any(|b| b.name == a.name) {
                return refuse(
                    Diagnostic::error("B0282", format!("the result would have the axis `{}` twice", a.name))
                        .at(span, "in this product")
                        .help(format!("rename one of them before: `x as other_{}`", a.name)),
                );
            }
        }
        let mut operands = vec![x, weight];
        operands.extend(ids);
        let op = Op::Linear { contract, order: Order::Any };
        self.emit(op, &operands, TensorType::new(DType::F32, axes), span)
    }

    /// `dot(a, b, over = axis)`: sum of products along one axis.
    pub(super) fn dot(&mut self, a: &Expr, b: &Expr, over: Option<&Expr>, span: Span) -> Res<Tensor> {
        let (a, b) = (self.operand(a)?, self.operand(b)?);
        let (a, axis) = self.along_tensor(a, over, span)?;
        let b = self.with_axis(b, &axis.name, span)?;
        let (operands, axes, merges) = self.aligned(vec![a, b], span)?;
        let axes = axes.into_iter().filter(|x| x.name != axis.name).collect();
        let op = Op::Dot { axis: axis.name, order: Order::Any };
        let t = self.emit(op, &operands, TensorType::new(DType::F32, axes), span)?;
        self.merged(t, &merges, span)
    }

    fn cache_kind(&mut self, e: &Expr) -> Res<KvRef> {
        match self.expr(e, None)? {
            Val::Kv(kv) => Ok(kv),
            other => refuse(
                Diagnostic::error("B0283", "a cache kind is expected")
                    .at(e.span, format!("this is {}", other.what()))
                    .help("write kv.name or kv[l.column]"),
            ),
        }
    }

    /// Names of the kinds that a reference can mean.
    fn kind_names(&self, kv: &KvRef) -> Vec<String> {
        match kv {
            KvRef::Kind(k) => vec![k.clone()],
            KvRef::ByColumn(c) => {
                let mut names: Vec<String> =
                    self.resolved.facts.schedule.iter().filter_map(|k| k.get(c).cloned()).collect();
                names.sort();
                names.dedup();
                names
            }
        }
    }

    /// Refuses a cache of which a layer that runs here keeps no rows.
    fn check_kept(&mut self, kv: &KvRef, span: Span) -> Res<()> {
        let runs = self.frame().kinds.clone();
        let facts = &self.resolved.facts;
        for (layer, kinds) in facts.schedule.iter().enumerate() {
            if !self.frames.last().is_some_and(|f| f.in_layer) || !runs.iter().all(|(c, k)| kinds.get(c) == Some(k)) {
                continue;
            }
            let name = match kv {
                KvRef::Kind(name) => Some(name),
                KvRef::ByColumn(column) => kinds.get(column),
            };
            let Some(kind) = name.and_then(|name| facts.kv_kind(name)) else { continue };
            if !kind.layers.contains(&layer) {
                return refuse(
                    Diagnostic::error("B0290", format!("layer {layer} keeps no rows of the cache `{}`", kind.name))
                        .at(span, format!("layer {layer} stores rows here"))
                        .note(self.resolved.kv_spans.get(&kind.name).copied(), "its `layers` leaves this layer out")
                        .help(format!(
                            "let `layers` of `{}` in [kv] hold for every layer that stores in it",
                            kind.name
                        )),
                );
            }
        }
        Ok(())
    }

    /// `store(kv, k, v, at = positions, where = truth)` or `store(kv, k, v, scratch)`: leaves the cache.
    pub(super) fn store(&mut self, args: &[Expr], [at, live]: [Option<&Expr>; 2], span: Span) -> Res<Val> {
        let kv = self.cache_kind(&args[0])?;
        self.check_kept(&kv, args[0].span)?;
        let scratch = self.is_scratch(args.get(3))?;
        let at = self.row_positions(at, scratch, span)?;
        let mut operands = Vec::new();
        for (e, which) in args[1..].iter().zip(["key", "value"]) {
            let t = self.operand(e)?;
            for name in self.kind_names(&kv) {
                let declared = self.resolved.facts.kv_kind(&name).map(|k| k.k.clone()).unwrap_or_default();
                if !t.ty.axes.iter().eq(at.ty.axes.iter().chain(&declared)) {
                    let names: Vec<&str> = declared.iter().map(|a| a.name.as_str()).collect();
                    return refuse(
                        Diagnostic::error(
                            "B0284",
                            format!("a {which} row of `{name}` has axes [{}]", names.join(", ")),
                        )
                        .at(e.span, format!("this has axes {}", t.axis_names()))
                        .help(format!("store one row for each of the positions {}", at.axis_names())),
                    );
                }
            }
            operands.push(t);
        }
        let rows = at.ty.axes.clone();
        operands.push(at);
        if let Some(e) = live {
            let t = self.operand(e)?;
            if t.ty.dtype != DType::Bool || t.ty.axes != rows {
                return refuse(
                    Diagnostic::error("B0248", "`where` gives one truth value per row")
                        .at(e.span, format!("this is {}", t.ty))
                        .help("write where = name, a bool[T] parameter of the entry"),
                );
            }
            operands.push(t);
        }
        let ids: Vec<_> = operands.iter().map(|t| t.id).collect();
        let id = self.frame().builder.add(Op::Store { kv: kv.clone(), scratch }, &ids, Type::Cache, Some(span));
        Ok(Val::Cache(id, kv))
    }

    /// Whether the rows are for this step only.
    fn is_scratch(&self, word: Option<&Expr>) -> Res<bool> {
        match word.map(|e| (&e.kind, e.span)) {
            None => Ok(false),
            Some((ExprKind::Name(name), _)) if name == "scratch" => Ok(true),
            Some((_, at)) => refuse(
                Diagnostic::error("B0285", "behind key and value `store` takes the word `scratch` alone")
                    .at(at, "another thing")
                    .help("write store(kv.name, k, v, scratch), or name the argument: at = …, where = …"),
            ),
        }
    }

    /// One position per row; rows of a block of known length are scratch rows.
    fn row_positions(&mut self, at: Option<&Expr>, scratch: bool, span: Span) -> Res<Tensor> {
        let (t, place) = match at {
            Some(e) => (self.operand(e)?, e.span),
            None => (self.positions(span)?, span),
        };
        let rows = t.ty.axes.first().is_some_and(Axis::is_rows);
        if t.ty.dtype == DType::I32 && rows && (t.ty.axes.len() == 1 || (scratch && t.ty.axes.len() == 2)) {
            return Ok(t);
        }
        let d = Diagnostic::error("B0285", "`at` gives one position per row").at(place, format!("this is {}", t.ty));
        refuse(if rows && !scratch && t.ty.dtype == DType::I32 {
            d.help("rows of a block last for one step: write store(kv.name, k, v, scratch)")
        } else {
            d.help("write at = name, an i32[T] parameter of the entry")
        })
    }

    /// `attend(q, cache, mask, scale = number, sink = scores)`: the result has q's axes.
    pub(super) fn attend(&mut self, args: &[Expr], [scale, sink]: [Option<&Expr>; 2], span: Span) -> Res<Tensor> {
        let q = self.operand(&args[0])?;
        let (cache, kv) = match self.expr(&args[1], None)? {
            Val::Cache(id, kv) => (id, kv),
            other => {
                return refuse(
                    Diagnostic::error("B0283", "`attend` reads a cache after its store")
                        .at(args[1].span, format!("this is {}", other.what()))
                        .help("write attend(q, store(kv.name, k, v), causal, scale = …)"),
                );
            }
        };
        let mask = match self.expr(&args[2], None)? {
            Val::Mask(mask) => mask,
            other => {
                return refuse(
                    Diagnostic::error("B0286", "the mask is `causal` or `all`")
                        .at(args[2].span, format!("this is {}", other.what()))
                        .help("write `causal`, or `all` to see every position"),
                );
            }
        };
        let scale = match scale.map(|e| self.expr(e, None)).transpose()? {
            Some(Val::Const(c)) if c.number().is_some() => c,
            _ => {
                return refuse(
                    Diagnostic::error("B0287", "`attend` needs the factor on its scores")
                        .at(span, "no constant `scale`")
                        .help("write scale = n ** -0.5, n the elements of a head"),
                );
            }
        };
        let at = self.positions(span)?;
        let rows = if q.ty.axes.starts_with(&at.ty.axes) { at.ty.axes.len() } else { 1 };
        self.check_heads(&q, rows, &kv, args[0].span)?;
        let ty = TensorType::new(DType::F32, q.ty.axes.clone());
        let op = Op::Attend { kv, mask, scale, order: Order::Any };
        let cached = Tensor { id: cache, ty: ty.clone(), value: false, origin: Origin::default() };
        let sink = sink.map(|e| self.sink(e, &q, rows)).transpose()?;
        let operands: Vec<Tensor> = [q, cached, at].into_iter().chain(sink).collect();
        self.emit(op, &operands, ty, span)
    }

    /// `sink = scores`: one number for each query head.
    fn sink(&mut self, e: &Expr, q: &Tensor, rows: usize) -> Res<Tensor> {
        let t = self.operand(e)?;
        let heads: Vec<Axis> = q.ty.axes.iter().skip(rows).cloned().collect();
        let heads = &heads[..heads.len().saturating_sub(1)];
        if t.ty.axes == heads && t.ty.dtype.is_float() {
            return Ok(t);
        }
        let names: Vec<&str> = heads.iter().map(|a| a.name.as_str()).collect();
        refuse(
            Diagnostic::error(
                "B0289",
                format!("a sink is a number for each query head, with axes [{}]", names.join(", ")),
            )
            .at(e.span, format!("this is {}", t.ty))
            .help("declare a weight with the axes of the query heads and write sink = W.name"),
        )
    }

    /// Query heads must be a multiple of KV heads, and both must have elements of one length.
    fn check_heads(&self, q: &Tensor, rows: usize, kv: &KvRef, span: Span) -> Res<()> {
        for name in self.kind_names(kv) {
            let Some(kind) = self.resolved.facts.kv_kind(&name) else { continue };
            let [kv_heads, elements] = kind.k.as_slice() else { continue };
            let fits = match q.ty.axes.get(rows..).unwrap_or_default() {
                [heads, last] => {
                    !heads.is_rows() && last == elements && fixed(heads).is_multiple_of(fixed(kv_heads).max(1))
                }
                _ => false,
            };
            if !fits {
                let wanted = format!("[rows, multiple of {} heads, {}]", fixed(kv_heads), elements.name);
                let heads = q.ty.axes.iter().rev().nth(1);
                let sizes: Vec<String> = q.ty.axes.iter().map(|a| format!("{} = {}", a.name, fixed(a))).collect();
                return refuse(
                    Diagnostic::error("B0288", format!("queries of `{name}` have axes {wanted}"))
                        .at(span, format!("here {}", sizes.join(", ").replace("= 0", "= rows")))
                        .note(
                            self.resolved.dim_spans.get(&kv_heads.name).copied(),
                            format!("{} = {}", kv_heads.name, fixed(kv_heads)),
                        )
                        .note(
                            heads.and_then(|h| self.resolved.dim_spans.get(&h.name).copied()),
                            heads.map_or_else(String::new, |h| format!("{} = {}", h.name, fixed(h))),
                        )
                        .help("query heads are shared out evenly among KV heads"),
                );
            }
        }
        Ok(())
    }
}

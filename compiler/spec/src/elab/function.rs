//! Entries and functions: parameters, results, one block per set of argument types and constants.

use super::value::{Origin, Tensor, Val};
use super::{Elab, Frame, FrameKind, Instance, MAX_CALLS};
use crate::Diagnostic;
use crate::ast::{Function, FunctionKind, Param, TypeAst};
use crate::diag::counted;
use crate::stop::{Res, Stop, refuse};
use ir::{Block, DType, Op, Span, TensorType, Type};

impl Elab<'_> {
    /// Elaborates an entry: its parameters have declared types.
    pub(super) fn entry(&mut self, function: &Function) -> Res<Block> {
        let act = function.dtype.unwrap_or(self.resolved.facts.act);
        self.frames.push(Frame::new(FrameKind::Entry, act, Vec::new()));
        self.at_type = None;
        for param in &function.params {
            let ty = self.entry_param(param)?;
            let id = self.frame().builder.input(&param.name.text, Type::Tensor(ty.clone()));
            if param.name.text == "pos" && ty.dtype == DType::I32 {
                self.at_type = Some(ty.clone());
                self.frame().at = Some(id);
            }
            let t = Tensor { id, ty, value: true, origin: Origin::default() };
            self.declare(&param.name.text, Val::Tensor(t));
        }
        let before = self.found.stops;
        self.statements(&function.body, None);
        let results = self.results(function, before)?;
        self.outputs(&results);
        let frame = self.frames.pop();
        let graph = frame.map(|f| f.builder.finish()).unwrap_or_default();
        Ok(Block { name: function.name.text.clone(), graph })
    }

    fn entry_param(&self, param: &Param) -> Res<TensorType> {
        // Without a dtype a parameter has the block's, which a target may replace.
        let dtype = |t: &TypeAst| t.dtype.unwrap_or(self.frames.last().map_or(self.resolved.facts.act, |f| f.dtype));
        let declared = param.ty.as_ref().and_then(|t| Some((dtype(t), t.axes.as_ref()?)));
        let Some((dtype, axes)) = declared else {
            return refuse(
                Diagnostic::error("B0221", format!("the entry's parameter `{}` has no full type", param.name.text))
                    .at(param.name.span, "an entry is called from outside")
                    .help(format!("write {}: i32[T] or the like", param.name.text)),
            );
        };
        Ok(TensorType::new(dtype, axes.iter().map(|a| self.declared_axis(a)).collect()))
    }

    /// The settled values of `return`, rounded to the declared results or the block's dtype.
    /// `before` counts the errors before the body: after one, what follows from it is silent.
    fn results(&mut self, function: &Function, before: usize) -> Res<Vec<Tensor>> {
        let span = function.name.span;
        if self.found.stops > before {
            return Err(Stop::Told);
        }
        let returned = match self.frame().returned.take() {
            Some(values) => values,
            // An entry may be there for what it stores.
            None if function.kind == FunctionKind::Entry && function.results.is_none() && self.has_effect() => {
                Vec::new()
            }
            None => {
                return refuse(
                    Diagnostic::error("B0222", format!("`{}` does not return", function.name.text))
                        .at(span, "no `return` is reached")
                        .help("end the body with `return value`"),
                );
            }
        };
        let declared: &[TypeAst] = function.results.as_deref().unwrap_or(&[]);
        if function.results.is_some() && declared.len() != returned.len() {
            return refuse(
                Diagnostic::error(
                    "B0223",
                    format!(
                        "`{}` returns {} and declares {}",
                        function.name.text,
                        counted(returned.len(), "value"),
                        declared.len()
                    ),
                )
                .at(span, format!("{} declared", declared.len()))
                .help("declare as many types behind `->` as values follow `return`"),
            );
        }
        let mut out = Vec::new();
        for (i, value) in returned.into_iter().enumerate() {
            let ty = declared.get(i);
            let at = self.value_span(&value, span);
            let t = self.settle(value, ty.and_then(|t| t.dtype), at, None)?;
            self.check_axes(&t, ty)?;
            out.push(t);
        }
        Ok(out)
    }

    /// Whether something in the entry stores, as far as its own graph says.
    fn has_effect(&mut self) -> bool {
        let graph = self.frame().builder.graph();
        graph.ids().any(|v| matches!(graph.node(v).op, Op::Store { .. } | Op::Layers { .. }))
    }

    fn value_span(&mut self, value: &Val, fallback: Span) -> Span {
        match value {
            Val::Tensor(t) => self.frame().builder.graph().node(t.id).span.unwrap_or(fallback),
            _ => fallback,
        }
    }

    fn outputs(&mut self, results: &[Tensor]) {
        for (i, t) in results.iter().enumerate() {
            let name = if results.len() == 1 { "result".to_owned() } else { format!("result.{i}") };
            self.frame().builder.output(&name, t.id);
        }
    }

    /// A call of a `def`: its expression with the arguments in place, nothing rounds.
    pub(super) fn call_def(&mut self, function: &Function, args: Vec<Val>, span: Span) -> Res<Val> {
        self.enter(function, args.len(), span)?;
        let kinds = self.frame().kinds.clone();
        // The text of a `def` sees its parameters and the spec's names, not the caller's.
        let mut scope = std::collections::HashMap::new();
        for (param, arg) in function.params.iter().zip(args) {
            scope.insert(param.name.text.clone(), arg);
        }
        let top = self.frames.len() - 1;
        let saved = std::mem::replace(&mut self.frames[top].scopes, vec![scope]);
        let (captures, assigned) =
            (std::mem::take(&mut self.frames[top].captures), std::mem::take(&mut self.frames[top].assigned));
        let kind = std::mem::replace(&mut self.frames[top].kind, FrameKind::Function);
        let before = self.frames[top].returned.take();
        let stops = self.found.stops;
        self.statements(&function.body, None);
        let frame = &mut self.frames[top];
        let result = std::mem::replace(&mut frame.returned, before);
        frame.scopes = saved;
        frame.captures = captures;
        frame.assigned = assigned;
        frame.kind = kind;
        frame.kinds = kinds;
        self.calls.pop();
        if self.found.stops > stops {
            return Err(Stop::Told);
        }
        match result.map(|mut r| (r.pop(), r.is_empty())) {
            Some((Some(value), true)) => Ok(value),
            _ => refuse(Diagnostic::error("B0222", "a `def` is one expression").at(span, "called here")),
        }
    }

    fn enter(&mut self, function: &Function, args: usize, span: Span) -> Res<()> {
        let name = &function.name.text;
        if args != function.params.len() {
            return refuse(
                Diagnostic::error(
                    "B0224",
                    format!("`{name}` takes {} and gets {args}", counted(function.params.len(), "argument")),
                )
                .at(span, format!("{args} here"))
                .note(Some(function.name.span), counted(function.params.len(), "parameter"))
                .help(format!("write {}", called(function))),
            );
        }
        if self.calls.len() >= MAX_CALLS && !self.calls.contains(name) {
            return refuse(
                Diagnostic::error(
                    "B0104",
                    format!("`{name}` is called inside {MAX_CALLS} calls, and no more may nest"),
                )
                .at(span, "one call too deep")
                .help("write what an inner function does into the function that calls it"),
            );
        }
        if self.calls.contains(name) {
            return refuse(
                Diagnostic::error("B0225", format!("`{name}` calls itself"))
                    .at(span, "inside its own call")
                    .help("a block is a finite computation: write the steps out"),
            );
        }
        self.calls.push(name.clone());
        Ok(())
    }

    /// A call of a `fn`: arguments round, a block is made or found, the results are values.
    pub(super) fn call_fn(&mut self, function: &Function, args: Vec<(Val, Span)>, span: Span) -> Res<Val> {
        self.enter(function, args.len(), span)?;
        let dtype = function.dtype.unwrap_or(self.resolved.facts.act);
        let mut operands = Vec::new();
        let mut bound: Vec<(String, Val)> = Vec::new();
        let (kinds, in_layer) = (self.frame().kinds.clone(), self.frame().in_layer);
        let mut key = format!("{}|{kinds:?}|{:?}|{in_layer}", function.name.text, self.at_type);
        for (param, (arg, arg_span)) in function.params.iter().zip(args) {
            let val = self.argument(param, arg, arg_span, dtype)?;
            key.push_str(&match &val {
                Val::Tensor(t) => format!("|{}{:?}", t.ty, t.ty.axes.iter().map(|a| a.extent).collect::<Vec<_>>()),
                other => format!("|{other:?}"),
            });
            if let Val::Tensor(t) = &val {
                operands.push(t.clone());
            }
            bound.push((param.name.text.clone(), val));
        }
        let instance = match self.instances.get(&key) {
            Some(known) => known.clone(),
            None => {
                let made = self.instance(function, &key, bound, dtype, span)?;
                self.instances.insert(key, made.clone());
                made
            }
        };
        self.calls.pop();
        self.grow(instance.size, span)?;
        if instance.hidden_at {
            let at = self.positions(span)?;
            operands.push(at);
        }
        let types = instance.results.iter().cloned().map(Type::Tensor).collect();
        self.tuple(Op::Call(instance.block), &operands, types, span)
    }

    fn argument(&mut self, param: &Param, arg: Val, span: Span, dtype: DType) -> Res<Val> {
        if param.constant {
            return match arg {
                Val::Const(_) | Val::Vector(_) => Ok(arg),
                Val::Layer => Ok(Val::Const(ir::ConstExpr::Layer)),
                other => refuse(
                    Diagnostic::error("B0226", format!("`{}` is a constant parameter", param.name.text))
                        .at(span, format!("this is {}", other.what()))
                        .note(Some(param.name.span), "declared const")
                        .help("declare the parameter without `const`, or pass a number"),
                ),
            };
        }
        match arg {
            Val::Layer | Val::Mask(_) | Val::None | Val::Truth(_) | Val::Kv(_) | Val::Column(_) => Ok(arg),
            Val::Cache(..) => refuse(
                Diagnostic::error("B0226", "a cache cannot be passed to a function")
                    .at(span, "passed here")
                    .help("store and attend in one function"),
            ),
            other => {
                // The parameter belongs to the callee: an expression rounds to the callee's dtype.
                let caller = std::mem::replace(&mut self.frame().dtype, dtype);
                let settled = self.settle(other, param.ty.as_ref().and_then(|t| t.dtype), span, None);
                self.frame().dtype = caller;
                let t = settled?;
                self.check_axes(&t, param.ty.as_ref())?;
                Ok(Val::Tensor(t))
            }
        }
    }

    /// The block of a call that was not made before. If the body is refused, the function that this one replaces
    /// stands in for it, so that what comes after the call is still read.
    fn instance(
        &mut self,
        function: &Function,
        key: &str,
        bound: Vec<(String, Val)>,
        dtype: DType,
        span: Span,
    ) -> Res<Instance> {
        if self.failed.contains(key) {
            return Err(Stop::Told);
        }
        let (mark, program) = (self.mark(), self.program);
        let stop = match self.instantiate(function, bound.clone(), dtype, span) {
            Ok(made) => return Ok(made),
            Err(stop) => stop,
        };
        self.tell(stop);
        self.rewind(&mark);
        let stand_in = program.replaced_by(function).filter(|f| f.params.len() == bound.len() && !self.found.halted);
        if let Some(base) = stand_in {
            self.found.muted += 1;
            let same = base.params.iter().zip(&bound);
            let bound = same.map(|(param, (_, val))| (param.name.text.clone(), val.clone())).collect();
            let dtype = base.dtype.unwrap_or(self.resolved.facts.act);
            let made = self.instantiate(base, bound, dtype, span);
            self.found.muted -= 1;
            match made {
                Ok(made) => return Ok(made),
                Err(_) => self.rewind(&mark),
            }
        }
        if self.found.muted == 0 {
            self.failed.insert(key.to_owned());
        }
        Err(Stop::Told)
    }

    fn instantiate(
        &mut self,
        function: &Function,
        bound: Vec<(String, Val)>,
        dtype: DType,
        span: Span,
    ) -> Res<Instance> {
        let (kinds, in_layer) = (self.frame().kinds.clone(), self.frame().in_layer);
        self.frames.push(Frame::new(FrameKind::Function, dtype, kinds));
        self.frame().in_layer = in_layer;
        for (name, val) in bound {
            let inner = match val {
                Val::Tensor(t) => {
                    let id = self.frame().builder.input(&name, Type::Tensor(t.ty.clone()));
                    Val::Tensor(Tensor { id, ty: t.ty, value: true, origin: Origin::default() })
                }
                other => other,
            };
            self.declare(&name, inner);
        }
        let before = self.found.stops;
        self.statements(&function.body, None);
        let results = self.results(function, before)?;
        self.outputs(&results);
        let block = self.block_name(&function.name.text);
        let Some(frame) = self.frames.pop() else { return self.no_frame(span) };
        let (hidden_at, size) = (frame.at.is_some(), frame.size);
        self.add_block(block.clone(), frame, span)?;
        Ok(Instance { block, results: results.into_iter().map(|t| t.ty).collect(), hidden_at, size })
    }

    fn no_frame<T>(&self, span: Span) -> Res<T> {
        refuse(Diagnostic::error("B0999", "the compiler lost its place").at(span, "while reading this"))
    }

    /// A structural operation and its items: one value, or several.
    pub(super) fn tuple(&mut self, op: Op, operands: &[Tensor], types: Vec<Type>, span: Span) -> Res<Val> {
        let ids: Vec<_> = operands.iter().map(|t| t.id).collect();
        let call = self.frame().builder.add(op, &ids, Type::Tuple(types.clone()), Some(span));
        let mut items = Vec::new();
        for (i, ty) in types.into_iter().enumerate() {
            let Type::Tensor(tensor) = &ty else { continue };
            let tensor = tensor.clone();
            let id = self.frame().builder.add(Op::Item(i), &[call], ty, Some(span));
            items.push(Val::Tensor(Tensor { id, ty: tensor, value: true, origin: Origin::default() }));
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Val::Many(items) })
    }
}

/// A call as the declaration wants it: `name(a, b)`.
fn called(function: &Function) -> String {
    let params: Vec<&str> = function.params.iter().map(|p| p.name.text.as_str()).collect();
    format!("{}({})", function.name.text, params.join(", "))
}

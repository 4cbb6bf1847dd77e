//! `match` and the layer loop: what depends on the layer becomes blocks, the rest dissolves.

use super::value::{Origin, Tensor, Val};
use super::{Elab, Frame, FrameKind};
use crate::Diagnostic;
use crate::ast::{Expr, Ident, Stmt};
use crate::stop::{Res, Stop, refuse};
use indexmap::{IndexMap, IndexSet};
use ir::{DType, Op, Span, TensorType, Type};

impl Elab<'_> {
    /// `match subject { arm { … } … }` as an expression; statements inside may rebind names of the frame.
    pub(super) fn match_expr(
        &mut self,
        subject: &Expr,
        arms: &[(Ident, Vec<Stmt>)],
        hint: Option<DType>,
        span: Span,
    ) -> Res<Val> {
        let chosen = match self.expr(subject, None)? {
            Val::Column(column) => return self.match_kind(&column, arms, hint, span),
            Val::None => "none".to_owned(),
            Val::Const(_) => "number".to_owned(),
            Val::Truth(b) => b.to_string(),
            Val::Choice(option) => self.resolved.facts.options.get(&option).cloned().unwrap_or_default(),
            other => {
                return refuse(Diagnostic::error("B0231", "`match` chooses by a layer's kind, a value or an option")
                        .at(subject.span, format!("this is {}", other.what()))
                        .help("write match l.column { … }, match value { none { … } number { … } } or match options.name { … }"));
            }
        };
        self.inline_arm(&chosen, arms, hint, span)
    }

    /// The arm that is already decided, in place.
    fn inline_arm(&mut self, chosen: &str, arms: &[(Ident, Vec<Stmt>)], hint: Option<DType>, span: Span) -> Res<Val> {
        let Some((_, body)) = arms.iter().find(|(name, _)| name.text == chosen) else {
            return refuse(no_arm(chosen, arms, span));
        };
        self.frame().scopes.push(Default::default());
        let last = self.statements(body, hint);
        self.frame().scopes.pop();
        match last {
            Some((Val::Unknown, _)) => Err(Stop::Told),
            last => Ok(last.map_or(Val::Many(Vec::new()), |(v, _)| v)),
        }
    }

    fn match_kind(&mut self, column: &str, arms: &[(Ident, Vec<Stmt>)], hint: Option<DType>, span: Span) -> Res<Val> {
        let kinds = self.possible_kinds(column);
        if let [only] = kinds.as_slice() {
            return self.inline_arm(&only.clone(), arms, hint, span);
        }
        let mut made: Vec<(String, Frame, Option<Tensor>)> = Vec::new();
        let before = self.found.stops;
        for kind in &kinds {
            let Some((_, body)) = arms.iter().find(|(name, _)| &name.text == kind) else {
                return refuse(no_arm(kind, arms, span));
            };
            let (dtype, mut known) = (self.frame().dtype, self.frame().kinds.clone());
            known.push((column.to_owned(), kind.clone()));
            let mut frame = Frame::new(FrameKind::Inner, dtype, known);
            frame.in_layer = self.frame().in_layer;
            frame.loop_axes = self.frame().loop_axes.clone();
            if !frame.loop_axes.is_empty() {
                frame.loop_scopes.push(0);
            }
            self.frames.push(frame);
            let last = self.statements(body, hint);
            if self.found.stops > before {
                self.frames.pop();
                continue;
            }
            if self.frame().returned.is_some() {
                return refuse(
                    Diagnostic::error("B0232", "an arm chosen by a layer's kind cannot return")
                        .at(span, "in this match")
                        .help("let the arm's last line be its value, and return after the match"),
                );
            }
            let value = match last {
                Some((Val::Many(items), _)) if items.is_empty() => None,
                Some((value, at)) => Some(self.tensor(value, at)?),
                None => None,
            };
            if let Some(frame) = self.frames.pop() {
                self.grow(frame.size, span)?;
                made.push((kind.clone(), frame, value));
            }
        }
        if self.found.stops > before {
            return Err(Stop::Told);
        }
        self.join_arms(column, made, span)
    }

    /// Kinds that the column can have, given what is known of the layer.
    fn possible_kinds(&mut self, column: &str) -> Vec<String> {
        let known = self.frame().kinds.clone();
        let fits = |k: &&ir::LayerKinds| known.iter().all(|(c, v)| k.get(c) == Some(v));
        let found: IndexSet<String> =
            self.resolved.facts.schedule.iter().filter(fits).filter_map(|k| k.get(column).cloned()).collect();
        found.into_iter().collect()
    }

    /// Gives all arms the same inputs and outputs, makes blocks of them and emits the match.
    fn join_arms(&mut self, column: &str, mut made: Vec<(String, Frame, Option<Tensor>)>, span: Span) -> Res<Val> {
        let assigned: IndexSet<String> = made.iter().flat_map(|(_, f, _)| f.assigned.keys().cloned()).collect();
        let mut wanted: IndexSet<String> = made.iter().flat_map(|(_, f, _)| f.captures.keys().cloned()).collect();
        let partly = |n: &&String| made.iter().any(|(_, f, _)| !f.assigned.contains_key(*n));
        wanted.extend(assigned.iter().filter(partly).cloned());
        let uses_at = made.iter().any(|(_, f, _)| f.at.is_some());
        let (operands, types) = self.outer_values(&wanted, uses_at, span)?;
        let has_value = made.iter().any(|(_, _, v)| v.is_some());
        let mut results: Option<Vec<Type>> = None;
        let mut arms = Vec::new();
        let mut keeps = true;
        for (kind, mut frame, value) in made.drain(..) {
            complete_inputs(&mut frame, &wanted, &types, self.at_type.as_ref().filter(|_| uses_at));
            let mut outs = Vec::new();
            if has_value {
                let Some(value) = value else {
                    return refuse(
                        Diagnostic::error("B0233", format!("the arm `{kind}` has no value, another arm has one"))
                            .at(span, "in this match")
                            .help(format!("end the arm `{kind}` with a value, or let no arm have one")),
                    );
                };
                keeps &= value.value;
                outs.push(("value".to_owned(), value));
            }
            for name in &assigned {
                if let Some(t) = frame.assigned.get(name).or_else(|| frame.captures.get(name)) {
                    outs.push((name.clone(), t.clone()));
                }
            }
            let tys: Vec<Type> = outs.iter().map(|(_, t)| Type::Tensor(t.ty.clone())).collect();
            for (name, t) in &outs {
                frame.builder.output(name, t.id);
            }
            match &results {
                Some(first) if *first != tys => return refuse(arm_types(&kind, first, &tys, span)),
                _ => results = Some(tys),
            }
            let block = self.block_name(&format!("{column}.{kind}"));
            self.add_block(block.clone(), frame, span)?;
            arms.push((kind, block));
        }
        let types = results.unwrap_or_default();
        let op = Op::Match { column: column.to_owned(), arms };
        let mut items = match self.tuple(op, &operands, types, span)? {
            Val::Many(items) => items,
            one => vec![one],
        };
        let value = if has_value { items.remove(0) } else { Val::Many(Vec::new()) };
        for (name, item) in assigned.iter().zip(items) {
            if let Val::Tensor(t) = &item {
                let id = t.id;
                self.frame().builder.name(id, name);
            }
            self.bind(name, item, span)?;
        }
        Ok(match value {
            Val::Tensor(t) => Val::Tensor(Tensor { value: keeps, ..t }),
            other => other,
        })
    }

    /// The values of this frame that inner frames captured, as operands.
    fn outer_values(
        &mut self,
        names: &IndexSet<String>,
        uses_at: bool,
        span: Span,
    ) -> Res<(Vec<Tensor>, IndexMap<String, Tensor>)> {
        let (mut operands, mut types) = (Vec::new(), IndexMap::new());
        for name in names {
            if let Some(Val::Tensor(t)) = self.lookup(name) {
                operands.push(t.clone());
                types.insert(name.clone(), t);
            }
        }
        if uses_at {
            operands.push(self.positions(span)?);
        }
        Ok((operands, types))
    }

    /// `for l in layers { … }`: the body is one block; names it rebinds are carried from layer to layer.
    pub(super) fn layers(&mut self, index: &Ident, body: &[Stmt], span: Span) -> Res<()> {
        if self.frames.len() != 1 {
            return refuse(
                Diagnostic::error("B0234", "the layer loop stands in an entry")
                    .at(span, "not in an entry")
                    .help("write the loop in the entry, and call functions from it"),
            );
        }
        let dtype = self.frame().dtype;
        self.frames.push(Frame::new(FrameKind::Inner, dtype, Vec::new()));
        self.frame().in_layer = true;
        self.frame().scopes.push([(index.text.clone(), Val::Layer)].into());
        let before = self.found.stops;
        let last = self.statements(body, None);
        if self.found.stops > before {
            return Err(Stop::Told);
        }
        if last.is_some_and(|(v, _)| matches!(v, Val::Tensor(_))) {
            self.warn(
                Diagnostic::warning("B0303", "the layer loop's last line makes a value that nothing takes")
                    .at(span, "in this loop")
                    .help("bind it to a name, or remove the line"),
            );
        }
        let Some(mut frame) = self.frames.pop() else { return Ok(()) };
        self.grow(frame.size, span)?;
        let carried: IndexSet<String> = frame.assigned.keys().cloned().collect();
        let mut wanted = carried.clone();
        wanted.extend(frame.captures.keys().cloned());
        let uses_at = frame.at.is_some();
        let (operands, types) = self.outer_values(&wanted, uses_at, span)?;
        complete_inputs(&mut frame, &wanted, &types, self.at_type.as_ref().filter(|_| uses_at));
        let mut results = Vec::new();
        for (name, after) in &frame.assigned {
            let before = &types[name];
            if before.ty != after.ty {
                return refuse(
                    Diagnostic::error(
                        "B0235",
                        format!("`{name}` enters a layer as {} and leaves it as {}", before.ty, after.ty),
                    )
                    .at(span, "what a layer leaves is what the next one takes")
                    .help("give the name a type where it is bound"),
                );
            }
            results.push(Type::Tensor(after.ty.clone()));
        }
        for (name, after) in frame.assigned.clone() {
            frame.builder.output(&name, after.id);
        }
        let block = match sole_call(&frame, carried.len()) {
            Some(callee) => callee,
            None => {
                let name = self.block_name("layers");
                self.add_block(name.clone(), frame, span)?;
                name
            }
        };
        let op = Op::Layers { block, carried: carried.len() };
        let items = match self.tuple(op, &operands, results, span)? {
            Val::Many(items) => items,
            one => vec![one],
        };
        for (name, item) in carried.iter().zip(items) {
            if let Val::Tensor(t) = &item {
                let id = t.id;
                self.frame().builder.name(id, name);
            }
            self.bind(name, item, span)?;
        }
        Ok(())
    }
}

/// Adds the inputs that other arms have and orders all of them alike.
fn complete_inputs(
    frame: &mut Frame,
    wanted: &IndexSet<String>,
    types: &IndexMap<String, Tensor>,
    at: Option<&TensorType>,
) {
    let mut order = Vec::new();
    for name in wanted {
        let Some(outer) = types.get(name) else { continue };
        let id = match frame.captures.get(name) {
            Some(t) => t.id,
            None => {
                let id = frame.builder.input(name, Type::Tensor(outer.ty.clone()));
                let t = Tensor { id, ty: outer.ty.clone(), value: true, origin: Origin::default() };
                frame.captures.insert(name.clone(), t);
                id
            }
        };
        order.push(id);
    }
    if let Some(ty) = at {
        order.push(match frame.at {
            Some(id) => id,
            None => frame.builder.input("pos", Type::Tensor(ty.clone())),
        });
    }
    frame.builder.order_inputs(order);
}

/// The block that the loop body calls, if the body is nothing but that call with its inputs in order.
fn sole_call(frame: &Frame, carried: usize) -> Option<String> {
    let graph = frame.builder.graph();
    let call = graph.ids().find(|v| matches!(graph.node(*v).op, Op::Call(_)))?;
    let Op::Call(block) = &graph.node(call).op else { return None };
    let items_only = graph.ids().all(|v| v == call || matches!(graph.node(v).op, Op::Input(_) | Op::Item(_)));
    let outputs: Vec<_> = graph.outputs.iter().map(|(_, v)| *v).collect();
    let in_order = outputs.len() == carried
        && outputs.iter().enumerate().all(|(i, v)| graph.node(*v).op == Op::Item(i) && graph.operands(*v) == [call]);
    (items_only && in_order && graph.operands(call) == graph.inputs).then(|| block.clone())
}

fn no_arm(kind: &str, arms: &[(Ident, Vec<Stmt>)], span: Span) -> Diagnostic {
    Diagnostic::error("B0236", format!("the match has no arm for `{kind}`"))
        .at(span, "this match")
        .nearest(kind, arms.iter().map(|(n, _)| n.text.as_str()))
}

fn arm_types(kind: &str, first: &[Type], tys: &[Type], span: Span) -> Diagnostic {
    let show = |list: &[Type]| list.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
    Diagnostic::error("B0237", format!("the arm `{kind}` leaves {}, the first arm {}", show(tys), show(first)))
        .at(span, "all arms of a match leave the same types")
        .help("end every arm with values of the same dtype and axes")
}

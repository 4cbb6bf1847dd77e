//! A new graph from an old one, value by value.

use crate::PassError;
use crate::error::defect;
use ir::{Binary, DType, Graph, GraphBuilder, Op, Span, TensorType, Type, ValueId};

/// A graph that is being copied, with what a pass changes on the way.
pub(crate) struct Copying<'g> {
    /// The graph that is copied.
    pub(crate) old: &'g Graph,
    new: GraphBuilder,
    /// New values by old id.
    map: Vec<Option<ValueId>>,
    /// Numbers that were written already.
    literals: Vec<(u32, ValueId)>,
}

impl<'g> Copying<'g> {
    pub(crate) fn new(old: &'g Graph) -> Self {
        Copying { old, new: GraphBuilder::new(), map: vec![None; old.len()], literals: Vec::new() }
    }

    /// What an old value has become.
    pub(crate) fn at(&self, id: ValueId) -> Result<ValueId, PassError> {
        let found = self.map.get(id.0 as usize).copied().flatten();
        found.ok_or_else(|| defect(format!("{id} is used before it is made")))
    }

    /// What the operands of an old value have become.
    pub(crate) fn operands(&self, id: ValueId) -> Result<Vec<ValueId>, PassError> {
        self.old.operands(id).into_iter().map(|o| self.at(o)).collect()
    }

    /// Copies a value as it is, with other operands.
    pub(crate) fn copy_with(&mut self, id: ValueId, operands: &[ValueId]) -> ValueId {
        let node = self.old.node(id);
        match &node.op {
            Op::Input(name) => self.new.input(name, node.ty.clone()),
            op => self.new.add(op.clone(), operands, node.ty.clone(), node.span),
        }
    }

    /// Copies a value as it is.
    pub(crate) fn copy(&mut self, id: ValueId) -> Result<(), PassError> {
        let operands = self.operands(id)?;
        let value = self.copy_with(id, &operands);
        self.set(id, value);
        Ok(())
    }

    /// Lets a new value stand for an old one, whose name it takes.
    pub(crate) fn set(&mut self, id: ValueId, value: ValueId) {
        if let Some(name) = &self.old.node(id).name {
            self.new.name(value, name);
        }
        if let Some(place) = self.map.get_mut(id.0 as usize) {
            *place = Some(value);
        }
    }

    /// The type of a new value.
    pub(crate) fn tensor(&self, id: ValueId) -> Result<TensorType, PassError> {
        self.new.graph().tensor(id).cloned().ok_or_else(|| defect(format!("{id} is no tensor")))
    }

    /// Adds an operation.
    pub(crate) fn add(&mut self, op: Op, operands: &[ValueId], ty: TensorType, span: Option<Span>) -> ValueId {
        self.new.add(op, operands, Type::Tensor(ty), span)
    }

    /// Names a new value after another that it belongs to, if that has a name.
    pub(crate) fn name_after(&mut self, id: ValueId, other: ValueId, what: &str) {
        if let Some(name) = &self.new.graph().node(other).name {
            let name = format!("{name}.{what}");
            self.new.name(id, &name);
        }
    }

    /// An f32 number.
    pub(crate) fn number(&mut self, x: f32) -> ValueId {
        if let Some((_, known)) = self.literals.iter().find(|(bits, _)| *bits == x.to_bits()) {
            return *known;
        }
        let value = self.add(Op::Literal(vec![x]), &[], TensorType::scalar(DType::F32), None);
        self.literals.push((x.to_bits(), value));
        value
    }

    /// An element-wise function of two values in f32, with the axes of `like`.
    pub(crate) fn binary(
        &mut self,
        f: Binary,
        operands: [ValueId; 2],
        like: &TensorType,
        span: Option<Span>,
    ) -> ValueId {
        self.add(Op::Binary(f), &operands, like.with_dtype(DType::F32), span)
    }

    /// The new graph.
    pub(crate) fn finish(mut self) -> Result<Graph, PassError> {
        let inputs = self.old.inputs.iter().map(|v| self.at(*v)).collect::<Result<Vec<_>, _>>()?;
        self.new.order_inputs(inputs);
        for (name, id) in &self.old.outputs {
            let value = self.at(*id)?;
            self.new.output(name, value);
        }
        Ok(self.new.finish())
    }
}

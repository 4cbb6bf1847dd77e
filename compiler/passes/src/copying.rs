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
    /// Inputs and outputs that the old graph does not have.
    inputs: Vec<ValueId>,
    outputs: Vec<(String, ValueId)>,
}

impl<'g> Copying<'g> {
    pub(crate) fn new(old: &'g Graph) -> Self {
        let (new, map) = (GraphBuilder::new(), vec![None; old.len()]);
        Copying { old, new, map, literals: Vec::new(), inputs: Vec::new(), outputs: Vec::new() }
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

    /// Adds an input that the old graph does not have.
    pub(crate) fn input(&mut self, name: &str, ty: TensorType) -> ValueId {
        let input = self.new.input(name, Type::Tensor(ty));
        self.inputs.push(input);
        input
    }

    /// Adds an output that the old graph does not have.
    pub(crate) fn output(&mut self, name: &str, value: ValueId) {
        self.outputs.push((name.to_owned(), value));
    }

    /// The name of a new value that is an input.
    pub(crate) fn input_name(&self, id: ValueId) -> Option<String> {
        self.new.graph().input_name(id).map(str::to_owned)
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

    /// The new graph; old inputs that were not copied are gone.
    pub(crate) fn finish(mut self) -> Result<Graph, PassError> {
        let old = self.old.inputs.iter().filter_map(|v| self.at(*v).ok());
        let inputs = old.chain(self.inputs.iter().copied()).collect();
        self.new.order_inputs(inputs);
        for (name, id) in &self.old.outputs {
            let value = self.at(*id)?;
            self.new.output(name, value);
        }
        self.outputs.iter().for_each(|(name, value)| self.new.output(name, *value));
        Ok(self.new.finish())
    }
}

//! A graph whose products read codes.

use super::choice::{Choice, Matrix};
use super::codes;
use super::inputs::Groups;
use super::parts::Part;
use super::seam::Taken;
use crate::PassError;
use crate::copying::Copying;
use crate::error::defect;
use ir::{Binary, DType, Graph, Op, Scope, Span, StoredFormat, TensorType, ValueId, WeightRef};
use std::collections::HashMap;

/// The graph with products on codes, and what it takes in and quantises; `layers` are those that it runs in.
pub(super) fn quantised(
    graph: &Graph,
    choice: &Choice,
    layers: &[usize],
    groups: &mut Groups<'_>,
) -> Result<(Graph, Vec<Taken>), PassError> {
    let blocks = choice.native && choice.stored.format == StoredFormat::Nvfp4;
    let inputs = if blocks { groups.of(graph, choice, layers) } else { HashMap::new() };
    let mut quantising = Quantising {
        to: Copying::new(graph),
        choice,
        leaves: HashMap::new(),
        codes: HashMap::new(),
        taken: Vec::new(),
    };
    for id in graph.ids() {
        let node = graph.node(id);
        let matrix = |reference: &WeightRef| choice.matrix(reference, layers);
        match &node.op {
            Op::Weight(reference) if matrix(reference).is_some() => {}
            Op::Linear { .. } => {
                let weight = graph.operands(id).get(1).map(|w| &graph.node(*w).op);
                let Some(Op::Weight(reference)) = weight else {
                    quantising.to.copy(id)?;
                    continue;
                };
                match matrix(reference) {
                    Some((name, matrix)) => quantising.product(id, name, matrix, inputs.get(&id))?,
                    None => quantising.to.copy(id)?,
                }
            }
            _ => quantising.to.copy(id)?,
        }
    }
    Ok((quantising.to.finish()?, quantising.taken))
}

/// A value, the axes that are contracted, and the number that it is quantised under.
type Input = (ValueId, Vec<String>, Option<ValueId>);

struct Quantising<'a> {
    to: Copying<'a>,
    choice: &'a Choice,
    /// Weights that are in the new graph, by name.
    leaves: HashMap<(Scope, String), ValueId>,
    /// Quantised inputs, with their scales.
    codes: HashMap<Input, (ValueId, ValueId)>,
    taken: Vec<Taken>,
}

impl Quantising<'_> {
    /// A product on codes, times its scales.
    fn product(
        &mut self,
        id: ValueId,
        name: &str,
        matrix: &Matrix,
        input: Option<&(Scope, String)>,
    ) -> Result<(), PassError> {
        let old = self.to.old;
        let (Some(result), span) = (old.tensor(id).cloned(), old.node(id).span) else {
            return Err(defect(format!("{id} is no tensor")));
        };
        let operands = old.operands(id);
        let [x, w, ids @ ..] = operands.as_slice() else { return Err(defect(format!("{id} multiplies nothing"))) };
        let weight = old.tensor(*w).ok_or_else(|| defect(format!("{w} is no tensor")))?;
        let codes = match self.choice.stored.format {
            StoredFormat::Fp8 => weight.with_dtype(DType::E4m3),
            StoredFormat::Nvfp4 => weight.with_dtype(DType::Nvfp4),
        };
        let columns = weight.axes.len().saturating_sub(matrix.contract.len());
        let rows = TensorType::new(DType::F32, weight.axes.iter().take(columns).cloned().collect());
        let codes = self.leaf(matrix.scope, &Part::Codes.of(name), codes);
        let mut scale = self.leaf(matrix.scope, &Part::Scale.of(name), rows.clone());
        let mut ids_now = Vec::new();
        for ids in ids {
            ids_now.push(self.to.at(*ids)?);
        }
        if let (Some(ids), Some(axis)) = (ids_now.first(), rows.axes.first()) {
            let mut axes = self.to.tensor(*ids)?.axes;
            axes.extend(rows.axes.iter().skip(1).cloned());
            let op = Op::Gather { axis: axis.name.clone() };
            scale = self.to.add(op, &[scale, *ids], TensorType::new(DType::F32, axes), span);
        }
        let x = self.to.at(*x)?;
        let (x, number) = match (self.choice.native, input) {
            (false, _) => (x, None),
            (true, Some((scope, name))) => {
                let number = self.leaf(*scope, name, TensorType::scalar(DType::F32));
                let codes = self.quantised(x, matrix, Some((name, number)), span)?;
                (codes.0, Some(number))
            }
            (true, None) => {
                let (codes, token) = self.quantised(x, matrix, None, span)?;
                let like = self.joined(&result, token, scale)?;
                scale = self.to.binary(Binary::Mul, [token, scale], &like, span);
                (codes, None)
            }
        };
        let operands: Vec<ValueId> = [x, codes].into_iter().chain(ids_now).collect();
        let sum = self.to.copy_with(id, &operands);
        let mut value = self.to.binary(Binary::Mul, [sum, scale], &result, span);
        // A product of the two numbers would have no rows, and so be a kernel of its own.
        if let Some(number) = number {
            value = self.to.binary(Binary::Mul, [value, number], &result, span);
        }
        self.to.set(id, value);
        Ok(())
    }

    /// Axes that one of two values has, in the order of the result that they multiply.
    fn joined(&self, result: &TensorType, a: ValueId, b: ValueId) -> Result<TensorType, PassError> {
        let (a, b) = (self.to.tensor(a)?, self.to.tensor(b)?);
        let has = |name: &str| a.axis(name).is_some() || b.axis(name).is_some();
        Ok(TensorType::new(DType::F32, result.axes.iter().filter(|axis| has(&axis.name)).cloned().collect()))
    }

    fn leaf(&mut self, scope: Scope, name: &str, ty: TensorType) -> ValueId {
        if let Some(known) = self.leaves.get(&(scope, name.to_owned())) {
            return *known;
        }
        let reference = match scope {
            Scope::Model => WeightRef::Model(name.to_owned()),
            Scope::Layer => WeightRef::Layer(name.to_owned()),
        };
        let leaf = self.to.add(Op::Weight(reference), &[], ty, None);
        self.leaves.insert((scope, name.to_owned()), leaf);
        leaf
    }

    /// Codes of a product's input and what multiplies them, made once.
    fn quantised(
        &mut self,
        x: ValueId,
        matrix: &Matrix,
        number: Option<(&str, ValueId)>,
        span: Option<Span>,
    ) -> Result<(ValueId, ValueId), PassError> {
        let key = (x, matrix.contract.clone(), number.map(|(_, number)| number));
        if let Some(known) = self.codes.get(&key) {
            return Ok(*known);
        }
        let (codes, factor) = match number {
            Some((_, number)) => (codes::blocks(&mut self.to, x, &matrix.contract, number, span)?, number),
            None => codes::token(&mut self.to, x, &matrix.contract, span)?,
        };
        self.codes.insert(key, (codes, factor));
        if let Some(name) = self.to.input_name(x) {
            self.taken.push(Taken {
                name,
                contract: matrix.contract.clone(),
                number: number.map(|(name, _)| name.to_owned()),
                codes,
                scale: number.is_none().then_some(factor),
            });
        }
        Ok((codes, factor))
    }
}

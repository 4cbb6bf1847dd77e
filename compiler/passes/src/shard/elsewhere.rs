//! What becomes of an exclusive value on the ranks that do not have it: there it is -0, and what is computed from it and from
//! numbers of the graph is a number too.

use ir::{Binary, Graph, Op, ReduceOp, Unary, ValueId};

/// By value of the graph: the number that all its elements are on a rank without the exclusive value, if that is known.
/// `begins` says which values are exclusive.
pub(super) fn numbers(graph: &Graph, begins: impl Fn(ValueId) -> bool) -> Vec<Option<f32>> {
    let mut known: Vec<Option<f32>> = Vec::with_capacity(graph.len());
    for id in graph.ids() {
        let operands: Vec<Option<f32>> =
            graph.operands(id).iter().map(|o| known.get(o.0 as usize).copied().flatten()).collect();
        let number = if begins(id) { Some(numerics::ABSENT) } else { number(&graph.node(id).op, &operands) };
        known.push(number);
    }
    known
}

fn number(op: &Op, operands: &[Option<f32>]) -> Option<f32> {
    match (op, operands) {
        (Op::Literal(data), _) => data.first().copied().filter(|x| data.iter().all(|y| x == y)),
        (Op::Unary(f), [Some(x)]) => unary(*f, *x),
        (Op::Binary(f), [Some(a), Some(b)]) => binary(*f, *a, *b),
        // Weights and what is computed from values that all ranks have are finite.
        (Op::Binary(Binary::Mul), [Some(0.0), None] | [None, Some(0.0)]) => Some(0.0),
        (Op::Reduce { op: ReduceOp::Sum, .. }, [Some(0.0)]) => Some(0.0),
        (Op::Round(_) | Op::Slice { .. } | Op::Reduce { op: ReduceOp::Max, .. }, [x]) => *x,
        (op, [x]) if op.is_view() => *x,
        _ => None,
    }
}

fn unary(f: Unary, x: f32) -> Option<f32> {
    Some(match f {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sqrt => x.sqrt(),
        Unary::Exp => numerics::exp(x),
        Unary::Log1p => numerics::log1p(x),
        Unary::Tanh => numerics::tanh(x),
        Unary::Sigmoid => numerics::sigmoid(x),
        Unary::Sin => numerics::sin(x),
        Unary::Cos => numerics::cos(x),
        Unary::Not => return None,
    })
}

fn binary(f: Binary, a: f32, b: f32) -> Option<f32> {
    Some(match f {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Max => numerics::max_f32(a, b),
        Binary::Min => numerics::min_f32(a, b),
        Binary::Eq | Binary::Lt | Binary::Le | Binary::And | Binary::Or => return None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_gate_leaves_nothing_where_its_input_is_absent_and_a_sigmoid_does() {
        let text = "module m act f32 dim n = 4 entry e { graph first (%g, %u) -> (h = %h, s = %s) { axes T = rows
            %g: f32[T, n] = input g
            %u: f32[T, n] = input u
            %one: f32[] = literal [1.0]
            %a: f32[T, n] = neg (%g)
            %b: f32[T, n] = exp (%a)
            %c: f32[T, n] = add (%b, %one)
            %d: f32[T, n] = div (%g, %c)
            %e: f32[T, n] = mul (%d, %u)
            %h: f32[T, n] = abs (%e)
            %s: f32[T, n] = sigmoid (%g) }
            graph last () -> () { } }";
        let module = ir::parse_module(text).expect("a module");
        let graph = &module.entries[0].first;
        let at = |name: &str| graph.find(name).expect("a value");
        let found = super::numbers(graph, |id| id == at("g"));
        let of = |name: &str| found[at(name).0 as usize];
        assert_eq!((of("h"), of("s"), of("c"), of("u")), (Some(0.0), Some(0.5), Some(2.0), None));
    }
}

//! The witness of a refinement: the old graphs with the orders of the new ones, and nothing else of them.

use super::allowed::refines;
use ir::{Class, Entry, Graph, Module, ValueId};

/// The old module with its orders taken from the operations at the same places of the new one, each of which may only
/// decide what the old order leaves open.
pub(super) fn with_orders(old: &Module, new: &Module) -> Result<Module, String> {
    if old.entries.len() != new.entries.len() {
        return Err("the pass changes the number of entries, so orders have no places to compare".to_owned());
    }
    let entries = old.entries.iter().zip(&new.entries).map(|(a, b)| entry(a, b)).collect::<Result<_, _>>()?;
    Ok(old.with_entries(entries))
}

fn entry(old: &Entry, new: &Entry) -> Result<Entry, String> {
    if old.classes.len() != new.classes.len() {
        return Err(format!("the pass changes the layer classes of `{}`, so orders have no places", old.name));
    }
    let class = |(a, b): (&Class, &Class)| Ok(Class { graph: graph(&a.name, &a.graph, &b.graph)?, ..a.clone() });
    Ok(Entry {
        name: old.name.clone(),
        first: graph("first", &old.first, &new.first)?,
        classes: old.classes.iter().zip(&new.classes).map(class).collect::<Result<_, String>>()?,
        instances: old.instances.clone(),
        last: graph("last", &old.last, &new.last)?,
    })
}

fn graph(name: &str, old: &Graph, new: &Graph) -> Result<Graph, String> {
    if old.len() != new.len() {
        let (a, b) = (old.len(), new.len());
        return Err(format!("the graph {name} has {a} values before and {b} after, so orders have no places"));
    }
    for id in old.ids() {
        if let (Some(from), Some(to)) = (old.node(id).op.order(), new.node(id).op.order())
            && !refines(from, to)
        {
            let value = old.node(id).name.clone().unwrap_or_else(|| id.to_string());
            return Err(format!(
                "the order of `{value}` of {name} is `{from}` and becomes `{to}`, and only what is open may be decided"
            ));
        }
    }
    let mut at = 0;
    Ok(old.map_ops(|node| {
        let found = new.node(ValueId(at)).op.order();
        at += 1;
        let mut op = node.op.clone();
        if let (Some(order), Some(found)) = (op.order_mut(), found) {
            *order = found.clone();
        }
        op
    }))
}

#[cfg(test)]
mod tests {
    use super::with_orders;

    fn module(order: &str) -> ir::Module {
        let text = format!(
            "module m act f32 dim n = 8 entry e {{ graph first (%x) -> (y = %y) {{ axes T = rows
            %x: f32[T, n] = input x
            %y: f32[T] = reduce sum over n order {order} (%x) }}
            graph last () -> () {{ }} }}"
        );
        ir::parse_module(&text).expect("a module")
    }

    #[test]
    fn only_what_is_open_is_decided() {
        for (from, to) in
            [("any", "serial"), ("any", "split 4 any"), ("split 4 any", "split 4 serial"), ("fold", "fold")]
        {
            assert_eq!(with_orders(&module(from), &module(to)), Ok(module(to)), "{from} to {to}");
        }
        for (from, to) in
            [("split 4 any", "serial"), ("split 4 any", "split 2 any"), ("fold", "serial"), ("fold", "any")]
        {
            let error = with_orders(&module(from), &module(to)).expect_err("an order that was not open");
            assert_eq!(
                error,
                format!(
                    "the order of `y` of first is `{from}` and becomes `{to}`, and only what is open may be decided"
                )
            );
        }
    }
}

//! The witness of a refinement: the old graphs with the orders of the new ones, and nothing else of them.

use ir::{Class, Entry, Graph, Module, ValueId};

/// The old module with every order that it leaves open taken from the operation at the same place of the new one.
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
    let mut at = 0;
    Ok(old.map_ops(|node| {
        let found = new.node(ValueId(at)).op.order();
        at += 1;
        let mut op = node.op.clone();
        if let (Some(order), Some(found)) = (op.order_mut(), found)
            && order.is_open()
        {
            *order = found.clone();
        }
        op
    }))
}

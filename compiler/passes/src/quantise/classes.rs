//! Classes by what layers store: layers whose graphs would come out different part.

use super::choice::Choice;
use ir::{Class, Entry, Instance, Op};
use std::collections::BTreeSet;

/// The entry with classes whose layers all keep the same matrices quantised; graphs stay as they are. The first layers of a
/// class keep its name.
pub(super) fn split(entry: &Entry, choice: &Choice) -> Entry {
    let mut classes: Vec<Class> = Vec::new();
    let mut known: Vec<(usize, BTreeSet<&str>)> = Vec::new();
    let mut instances = Vec::new();
    for instance in &entry.instances {
        let Some(class) = entry.classes.get(instance.class) else { continue };
        let held: BTreeSet<&str> = class
            .graph
            .ids()
            .filter_map(|id| match &class.graph.node(id).op {
                Op::Weight(reference) => choice.matrix(reference, &[instance.layer]).map(|(name, _)| name),
                _ => None,
            })
            .collect();
        let key = (instance.class, held);
        let found = known.iter().position(|k| *k == key).unwrap_or_else(|| {
            let taken = |name: &str| {
                let later = entry.classes.iter().enumerate();
                classes.iter().any(|c: &Class| c.name == name)
                    || later.clone().any(|(i, c)| i != instance.class && c.name == name)
            };
            let name = ir::free_name(&class.name, taken);
            classes.push(Class { name, ..class.clone() });
            known.push(key);
            known.len() - 1
        });
        instances.push(Instance { layer: instance.layer, class: found });
    }
    Entry { classes, instances, ..entry.clone() }
}

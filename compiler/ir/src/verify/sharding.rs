//! Rules of a sharding: placements name what exists, parts come out even, and local lengths are those of a placement.

use super::collectives::group;
use super::{Report, graph::shown};
use crate::{Axis, Entry, Extent, Facts, Graph, Placement, Sharding, Type};
use std::collections::{BTreeMap, BTreeSet};

const CODE: &str = "V0206";

/// Facts as graphs see them: parts of weights and caches, and no length for an axis that is spread somewhere.
pub(super) fn seen_by_graphs(facts: &Facts, sharding: &Sharding) -> Facts {
    let mut local = sharding.local_facts(facts);
    let spread: BTreeSet<&String> = placements(sharding).flat_map(Placement::keys).collect();
    local.dims.retain(|name, _| !spread.contains(name));
    local
}

fn placements(sharding: &Sharding) -> impl Iterator<Item = &Placement> {
    let weights = sharding.weights.iter().map(|w| &w.axes);
    weights.chain(sharding.kv.values())
}

/// Checks placements against the facts.
pub(super) fn verify(facts: &Facts, sharding: &Sharding, report: &mut Report) {
    report.check(!sharding.mesh.is_single(), CODE, "mesh", || "has one rank, which needs no sharding".to_owned());
    let mut seen = BTreeSet::new();
    for placed in &sharding.weights {
        let place = format!("place weight {}", placed.name);
        report.check(seen.insert((format!("{:?}", placed.scope), &placed.name)), CODE, &place, twice);
        match facts.weight(placed.scope, &placed.name) {
            Some(weight) => {
                let axes: Vec<&Axis> = weight.axes.iter().flatten().collect();
                placement(&placed.axes, &axes, sharding, &place, report);
            }
            None => report.add(CODE, &place, "there is no such weight"),
        }
    }
    for (name, axes) in &sharding.kv {
        let place = format!("place kv {name}");
        match facts.kv_kind(name) {
            Some(kind) => {
                placement(axes, &kind.k.iter().chain(&kind.v).collect::<Vec<_>>(), sharding, &place, report);
            }
            None => report.add(CODE, &place, "there is no such cache kind"),
        }
    }
    for (axis, over) in &sharding.rows {
        let place = format!("place rows {axis}");
        report.check(!facts.dims.contains_key(axis), CODE, &place, || "is an axis of known length".to_owned());
        if let Err(message) = group(over, &sharding.mesh) {
            report.add(CODE, &place, message);
        }
    }
}

fn twice() -> String {
    "is placed twice".to_owned()
}

fn placement(placement: &Placement, axes: &[&Axis], sharding: &Sharding, place: &str, report: &mut Report) {
    report.check(!placement.is_empty(), CODE, place, || "names no axis".to_owned());
    let mut used: Vec<&String> = Vec::new();
    for (name, over) in placement {
        if let Err(message) = group(over, &sharding.mesh) {
            report.add(CODE, place, message);
        }
        let again = over.iter().find(|mesh_axis| used.contains(mesh_axis));
        report.check(again.is_none(), CODE, place, || "two axes are spread over one mesh axis".to_owned());
        used.extend(over);
        let found: Vec<&&Axis> = axes.iter().filter(|a| a.name == *name).collect();
        report.check(!found.is_empty(), CODE, place, || format!("there is no axis `{name}`"));
        for axis in found {
            if let Extent::Fixed(n) = axis.extent {
                let even = sharding.local_length(n, over).is_some();
                let parts = sharding.mesh.parts(over);
                report.check(even, CODE, place, || format!("`{name}` of length {n} has no {parts} parts"));
            }
        }
    }
}

/// Checks that every axis that is spread somewhere has its whole length or that of one of its parts.
pub(super) fn verify_entry(entry: &Entry, facts: &Facts, sharding: &Sharding, report: &mut Report) {
    let mut lengths: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for placement in placements(sharding) {
        for (name, over) in placement {
            let Some(whole) = facts.dims.get(name) else { continue };
            let known = lengths.entry(name).or_default();
            known.insert(*whole);
            known.extend(sharding.local_length(*whole, over));
        }
    }
    for (name, graph) in entry.graphs() {
        spread_lengths(graph, &lengths, &format!("{} {name}", entry.name), report);
    }
}

fn spread_lengths(graph: &Graph, lengths: &BTreeMap<&str, BTreeSet<u64>>, place: &str, report: &mut Report) {
    for id in graph.ids() {
        let Type::Tensor(ty) = &graph.node(id).ty else { continue };
        for axis in &ty.axes {
            if let (Extent::Fixed(n), Some(known)) = (axis.extent, lengths.get(axis.name.as_str()))
                && !known.contains(&n)
            {
                let wanted: Vec<String> = known.iter().map(u64::to_string).collect();
                let message = format!("axis `{}` has length {n}, here it has {}", axis.name, wanted.join(" or "));
                report.add(CODE, format!("{place} {}", shown(graph, id)), message);
            }
        }
    }
}

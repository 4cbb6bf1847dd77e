//! A graph's operations in groups that become regions: what passes over the kernel level join and take apart. It only keeps
//! the books; what may join is decided by `ir::Anatomy`, `attach` and `fuse_rows`.

use crate::PassError;
use crate::error::defect;
use ir::{Anatomy, Extent, Graph, KernelEntry, KernelGraph, KernelModule, Region, ValueId};
use std::collections::{HashMap, HashSet};

/// Groups of operations; a group is named by a number that says nothing else.
pub(crate) struct Groups<'g> {
    pub(crate) graph: &'g Graph,
    group_of: Vec<Option<usize>>,
    values: HashMap<usize, Vec<ValueId>>,
    /// Effects that come after an effect, and those that come before it.
    later: HashMap<ValueId, Vec<ValueId>>,
    earlier: HashMap<ValueId, Vec<ValueId>>,
}

impl<'g> Groups<'g> {
    /// The regions of a graph.
    pub(crate) fn of(kernel_graph: &'g KernelGraph) -> Self {
        let values = kernel_graph.regions.iter().enumerate().map(|(i, r)| (i, r.values.clone())).collect();
        let (mut later, mut earlier): (HashMap<_, Vec<_>>, HashMap<_, Vec<_>>) = Default::default();
        for (before, after) in ir::effect_order(&kernel_graph.graph) {
            later.entry(before).or_default().push(after);
            earlier.entry(after).or_default().push(before);
        }
        Groups { graph: &kernel_graph.graph, group_of: kernel_graph.region_of(), values, later, earlier }
    }

    /// What must not run before a value is made.
    fn after(&self, id: ValueId) -> impl Iterator<Item = ValueId> {
        self.graph.users(id).into_iter().chain(self.later.get(&id).into_iter().flatten().copied())
    }

    /// What must have run before a value is made.
    fn before(&self, id: ValueId) -> impl Iterator<Item = ValueId> {
        self.graph.operands(id).into_iter().chain(self.earlier.get(&id).into_iter().flatten().copied())
    }

    /// The group of a value; leaves have none.
    pub(crate) fn group(&self, id: ValueId) -> Option<usize> {
        self.group_of.get(id.0 as usize).copied().flatten()
    }

    /// The operations of a group, ascending.
    pub(crate) fn values(&self, group: usize) -> &[ValueId] {
        self.values.get(&group).map_or(&[], Vec::as_slice)
    }

    /// Whether these operations as one group would wait for a group that waits for them. Other groups run as a whole, but what
    /// a group would lose to these operations does not.
    pub(crate) fn cyclic(&self, values: &HashSet<ValueId>) -> bool {
        let mut seen: HashSet<usize> = HashSet::new();
        let mut open: Vec<usize> = Vec::new();
        let outside = |id: ValueId| if values.contains(&id) { None } else { self.group(id) };
        for id in values {
            open.extend(self.after(*id).filter_map(outside));
        }
        while let Some(group) = open.pop() {
            if !seen.insert(group) {
                continue;
            }
            for id in self.values(group).iter().filter(|v| !values.contains(v)) {
                for user in self.after(*id) {
                    if values.contains(&user) {
                        return true;
                    }
                    open.extend(self.group(user));
                }
            }
        }
        false
    }

    /// Makes these operations the group `home`; they leave the groups that they were in.
    pub(crate) fn set(&mut self, home: usize, values: &HashSet<ValueId>) {
        for id in values {
            if let Some(old) = self.group(*id).filter(|g| *g != home)
                && let Some(list) = self.values.get_mut(&old)
            {
                list.retain(|v| v != id);
            }
            if let Some(slot) = self.group_of.get_mut(id.0 as usize) {
                *slot = Some(home);
            }
        }
        let mut list: Vec<ValueId> = values.iter().copied().collect();
        list.sort_unstable();
        self.values.insert(home, list);
        self.values.retain(|_, list| !list.is_empty());
    }

    /// The groups as regions: producers before consumers, among those that could come next the one whose last operation
    /// comes first; each named after its last named value.
    pub(crate) fn regions(self) -> Result<Vec<Region>, PassError> {
        let mut waiting: Vec<(ValueId, usize)> =
            self.values.iter().filter_map(|(group, list)| Some((*list.last()?, *group))).collect();
        waiting.sort_unstable();
        let mut done: HashSet<usize> = HashSet::new();
        let mut names: HashSet<String> = HashSet::new();
        let mut regions = Vec::new();
        while !waiting.is_empty() {
            let ready = |(_, group): &(ValueId, usize)| {
                let operands = self.values(*group).iter().flat_map(|v| self.before(*v));
                operands.filter_map(|v| self.group(v)).all(|g| g == *group || done.contains(&g))
            };
            let next = waiting.iter().position(ready);
            let (_, group) = waiting.remove(next.ok_or_else(|| defect("regions wait for each other"))?);
            done.insert(group);
            let values = self.values(group).to_vec();
            regions.push(region(self.graph, values, &mut names)?);
        }
        Ok(regions)
    }
}

/// A region of these operations, named after the last named one.
pub(crate) fn region(graph: &Graph, values: Vec<ValueId>, names: &mut HashSet<String>) -> Result<Region, PassError> {
    let kind = Anatomy::of(graph, &values).map_err(|message| defect(format!("no region: {message}")))?.kind;
    let named = values.iter().rev().find_map(|v| graph.node(*v).name.clone());
    let last = values.last().map_or(0, |v| v.0);
    let wanted = named.unwrap_or_else(|| format!("{}.{last}", kind.word()));
    let name = ir::free_name(&wanted, |name| names.contains(name));
    names.insert(name.clone());
    Ok(Region { name, kind, values })
}

/// The module with the regions that `f` gives each graph.
pub(crate) fn with_regions(
    kernels: &KernelModule,
    mut f: impl FnMut(&KernelGraph) -> Result<Vec<Region>, PassError>,
) -> Result<KernelModule, PassError> {
    let mut entries = Vec::new();
    for entry in &kernels.entries {
        let mut graphs = Vec::new();
        for graph in &entry.graphs {
            graphs.push(KernelGraph { regions: f(graph)?, ..graph.clone() });
        }
        entries.push(KernelEntry { graphs, ..entry.clone() });
    }
    Ok(KernelModule { entries, ..kernels.clone() })
}

/// Bytes of a value for one index along every row axis of a step.
pub(crate) fn bytes_per_row(graph: &Graph, id: ValueId) -> u64 {
    let Some(ty) = graph.tensor(id) else { return 0 };
    let lengths = ty.axes.iter().map(|a| if let Extent::Fixed(n) = a.extent { n } else { 1 });
    ty.dtype.bytes_for(lengths.fold(1, u64::saturating_mul))
}

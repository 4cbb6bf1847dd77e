//! A small model of the same text: other dims, fewer layers, nothing else.
//!
//! What must hold between dims is read from the model: product axes stay products, query heads a multiple of cached
//! heads, selections shorter than what they select from. Two dims of one length get one length, longer ones stay longer.
//! Where the checkpoint keeps blocks, rows stay whole blocks.

use crate::PassError;
use ir::{DType, Facts, Graph, KvRef, Mesh, Model, Op, StoredFormat};
use std::collections::{BTreeMap, BTreeSet};
use targets::Target;

/// Lengths of dims that nothing binds, the shortest dim first. Odd ones find code that counts on round numbers, those
/// above 16 make every level of a `fold` differ from other orders.
const SIZES: [u64; 12] = [5, 9, 19, 23, 29, 37, 41, 43, 47, 53, 59, 61];
/// Heads of a cache kind.
const CACHED_HEADS: u64 = 2;
/// The largest number of query heads per cached head that is kept.
const MOST_SHARING: u64 = 8;
/// Length of a factor of a product axis.
const FACTOR: u64 = 3;
/// The smallest window; further kinds with a window get one position more each.
const WINDOW: u64 = 3;
/// Most layers that are kept for the sake of pairs of neighbours.
const MOST_LAYERS: usize = 16;
/// Largest model that is validated.
const MOST_PARAMETERS: u64 = 1 << 24;

/// Dims and layers of a small model, for the front end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Small {
    /// Lengths by name; names that are absent keep theirs.
    pub dims: BTreeMap<String, u64>,
    /// Layers that are kept, ascending; `None` for all.
    pub layers: Option<Vec<usize>>,
}

/// A small model and how it came about.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The model, with short windows.
    pub model: Model,
    /// Its dims and layers.
    pub small: Small,
    /// Dims that had to keep their lengths, and the first thing that was wrong otherwise.
    pub kept: Vec<(String, String)>,
}

impl Shrunk {
    /// The target with its limit on rows of epilogues made small like the dims, so that a row which a tile holds at full
    /// size is held here and no other: the small model has the full one's kernels.
    pub fn target(&self, full: &Facts, target: &Target) -> Target {
        let most = target.fuse.epilogue_row_elements;
        let held = full.dims.iter().filter(|(_, length)| **length <= most);
        let small = held.filter_map(|(name, _)| self.model.facts.dims.get(name)).copied().max();
        let mut target = target.clone();
        target.fuse.epilogue_row_elements = small.unwrap_or(0);
        target
    }
}

/// Makes a small model. `read` reads the spec again with the dims and layers it is given, or says what is wrong.
/// Axes that the mesh spreads stay multiples of the ranks, or shared by ranks if they are so in the full model.
pub fn shrink(
    full: &Model,
    mesh: &Mesh,
    read: &mut dyn FnMut(&Small) -> Result<Model, String>,
) -> Result<Shrunk, PassError> {
    let bounds = Bounds::of(full, mesh);
    let whole = Small { dims: bounds.dims(&full.facts), layers: layers(&full.facts) };
    let groups = bounds.groups(&full.facts);
    let mut kept = Vec::new();
    let (small, mut model) = match read(&whole) {
        Ok(model) => (whole, model),
        Err(first) => {
            let mut found = None;
            for group in &groups {
                let mut fewer = whole.clone();
                fewer.dims.retain(|name, _| !group.contains(name));
                if let Ok(model) = read(&fewer) {
                    kept = group.iter().map(|name| (name.clone(), first.clone())).collect();
                    found = Some((fewer, model));
                    break;
                }
            }
            match found {
                Some(found) => found,
                None => {
                    kept = whole.dims.keys().map(|name| (name.clone(), first.clone())).collect();
                    let all = Small { dims: BTreeMap::new(), ..whole };
                    match read(&all) {
                        Ok(model) => (all, model),
                        Err(_) => (Small::default(), full.clone()),
                    }
                }
            }
        }
    };
    if model.facts.parameters() > MOST_PARAMETERS {
        let named = kept.iter().map(|(name, _)| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let why = kept.first().map_or("", |(_, why)| why);
        if kept.is_empty() {
            return Err(PassError {
                code: "P0403",
                message: format!(
                    "the spec cannot be made small on the mesh {mesh}: with the shortest dims that its {} ranks can share the model has {} parameters, more than the {MOST_PARAMETERS} that are validated",
                    mesh.ranks(),
                    model.facts.parameters()
                ),
                help: "validate on a mesh of fewer ranks".to_owned(),
                span: None,
            });
        }
        return Err(PassError {
            code: "P0403",
            message: format!(
                "the spec cannot be made small: with short {named} it says \"{why}\", and with full ones the model has {} parameters, more than the {MOST_PARAMETERS} that are validated",
                model.facts.parameters()
            ),
            help: "write numbers that stand for a length as the name of a dim".to_owned(),
            span: None,
        });
    }
    let mut next = WINDOW;
    for kind in &mut model.facts.kv {
        if let Some(window) = &mut kind.window {
            *window = (*window).min(next);
            next += 1;
        }
    }
    Ok(Shrunk { model, small, kept })
}

/// Layers of which each class, each pair of neighbouring classes, the first and the last layer occur.
fn layers(facts: &Facts) -> Option<Vec<usize>> {
    let n = facts.layers();
    let mut keep: BTreeSet<usize> = [0, n / 2, n.saturating_sub(1)].into_iter().filter(|l| *l < n).collect();
    let kinds = |l: usize| facts.schedule[l].iter().collect::<Vec<_>>();
    let (mut classes, mut pairs) = (Vec::new(), Vec::new());
    for l in 0..n {
        if !classes.contains(&kinds(l)) {
            classes.push(kinds(l));
            keep.insert(l);
        }
    }
    let mut with_pairs = keep.clone();
    for l in 1..n {
        let pair = (kinds(l - 1), kinds(l));
        if !pairs.contains(&pair) {
            pairs.push(pair);
            with_pairs.extend([l - 1, l]);
        }
    }
    let keep = if with_pairs.len() <= MOST_LAYERS { with_pairs } else { keep };
    (keep.len() < n).then(|| keep.into_iter().collect())
}

/// What must hold between dims.
#[derive(Default)]
struct Bounds {
    /// Query heads → cached heads.
    shared: BTreeMap<String, String>,
    /// Axis → shortest length that leaves a selection something to choose.
    at_least: BTreeMap<String, u64>,
    /// Dim that is the length of a selection → axis selected from.
    selected: BTreeMap<String, String>,
    /// Axis that the mesh spreads → number of parts.
    parts: BTreeMap<String, u64>,
    /// Axes along which blocks run.
    blocks: BTreeSet<String>,
}

impl Bounds {
    fn of(model: &Model, mesh: &Mesh) -> Bounds {
        let mut bounds = Bounds::default();
        for (axis, over) in &model.facts.shard {
            let parts = mesh.parts(&mesh.present(over));
            if parts > 1 {
                bounds.parts.insert(axis.clone(), parts);
            }
        }
        if model.facts.stored.as_ref().is_some_and(|s| s.format == StoredFormat::Nvfp4) {
            let rows =
                model.facts.weights.iter().filter(|w| w.quantised_form().is_some()).filter_map(|w| w.axes.last());
            bounds.blocks = rows.filter_map(|row| row.last()).map(|axis| axis.name.clone()).collect();
        }
        let graphs = model.blocks.iter().chain(&model.entries).map(|b| &b.graph);
        for graph in graphs {
            for id in graph.ids() {
                match &graph.node(id).op {
                    Op::Top { k, axis, into, .. } => {
                        if model.facts.dims.get(into) == Some(k) {
                            bounds.selected.insert(into.clone(), axis.clone());
                        } else {
                            bounds.selects(&model.facts, *k, axis);
                        }
                    }
                    Op::InTop { k, axis } => bounds.selects(&model.facts, *k, axis),
                    Op::Attend { kv, .. } => bounds.attends(&model.facts, graph, kv, &graph.operands(id)),
                    _ => {}
                }
            }
        }
        bounds
    }

    fn selects(&mut self, facts: &Facts, k: u64, axis: &str) {
        let full = facts.dims.get(axis).copied().unwrap_or(k);
        let bound = self.at_least.entry(axis.to_owned()).or_default();
        *bound = (*bound).max((k + 1).min(full));
    }

    fn attends(&mut self, facts: &Facts, graph: &Graph, kv: &KvRef, operands: &[ir::ValueId]) {
        let Some(query) = operands.first().and_then(|q| graph.tensor(*q)) else { return };
        let fixed: Vec<&ir::Axis> = query.axes.iter().filter(|a| !a.is_rows()).collect();
        let [.., heads, _] = fixed[..] else { return };
        for kind in &facts.kv {
            let used = match kv {
                KvRef::Kind(name) => *name == kind.name,
                KvRef::ByColumn(_) => true,
            };
            if let (true, Some(cached)) = (used, kind.k.first())
                && cached.name != heads.name
            {
                self.shared.insert(heads.name.clone(), cached.name.clone());
            }
        }
    }

    /// Small lengths of all dims but `layers`.
    fn dims(&self, facts: &Facts) -> BTreeMap<String, u64> {
        let factors: BTreeSet<&String> = facts.products.values().flatten().collect();
        let cached: BTreeSet<&String> = facts.kv.iter().filter_map(|k| k.k.first()).map(|axis| &axis.name).collect();
        let free = |name: &String| {
            !facts.products.contains_key(name)
                && !factors.contains(name)
                && !cached.contains(name)
                && !self.shared.contains_key(name)
        };
        let dims = || facts.dims.iter().filter(|(name, _)| *name != "layers");
        let lengths: BTreeSet<u64> = dims().filter(|(name, _)| free(name)).map(|(_, n)| *n).collect();
        let rank: BTreeMap<u64, usize> = lengths.into_iter().enumerate().map(|(i, n)| (n, i)).collect();
        let mut small = BTreeMap::new();
        for (name, full) in dims() {
            let wanted = match rank.get(full).filter(|_| free(name)) {
                Some(rank) if !self.blocks.is_empty() => {
                    // Whole blocks, and for other dims an odd length between two numbers of blocks.
                    (*rank as u64 + 1) * DType::BLOCK + if self.blocks.contains(name) { 0 } else { FACTOR }
                }
                Some(rank) => SIZES[(*rank).min(SIZES.len() - 1)],
                None if cached.contains(name) => CACHED_HEADS,
                None => FACTOR,
            };
            let bound = self.at_least.get(name).copied().unwrap_or(1);
            small.insert(name.clone(), self.spread(name, wanted.max(bound), *full));
        }
        for (heads, cached) in &self.shared {
            if let (Some(h), Some(c), Some(few)) = (facts.dims.get(heads), facts.dims.get(cached), small.get(cached)) {
                let ratio = h / (*c).max(1);
                let sharing = if ratio <= MOST_SHARING {
                    ratio
                } else {
                    (2..=MOST_SHARING).find(|d| ratio.is_multiple_of(*d)).unwrap_or(ratio)
                };
                // Every cached head has as many query heads, and every rank as many of them.
                let parts = self.parts.get(heads).copied().unwrap_or(1);
                let fits = |n: &u64| n.is_multiple_of(parts) || h < &parts;
                let few = (1..=parts).map(|times| few * sharing * times).find(fits).unwrap_or(few * sharing);
                small.insert(heads.clone(), few);
            }
        }
        // Twice, for a factor that is a product itself.
        for _ in 0..2 {
            for (key, factors) in &facts.products {
                self.product(key, factors, &mut small);
            }
        }
        // A mesh may have made products long: what is longer at full size stays so, or a tile would hold other rows here.
        for (name, full) in dims().filter(|(name, _)| free(name) && !self.parts.contains_key(*name)) {
            let products = facts.products.keys().filter(|key| facts.dims.get(*key).is_some_and(|n| n < full));
            let longest = products.filter_map(|key| small.get(key)).copied().max().unwrap_or(0);
            if small.get(name).is_some_and(|n| *n <= longest) {
                let longer = ((longest + 1) | 1).next_multiple_of(self.granule(name));
                small.insert(name.clone(), longer.min(*full));
            }
        }
        for (count, axis) in &self.selected {
            if let (Some(n), Some(m)) = (small.get(count).copied(), small.get(axis).copied()) {
                small.insert(count.clone(), n.min(m.saturating_sub(1)).max(1));
            }
        }
        small
    }

    /// What a rank's part of an axis is a multiple of.
    fn granule(&self, name: &str) -> u64 {
        if self.blocks.contains(name) { DType::BLOCK } else { 1 }
    }

    /// The length nearest above that comes out even over the ranks; where ranks share entries of the full axis, they share
    /// those of the small one.
    fn spread(&self, name: &str, wanted: u64, full: u64) -> u64 {
        match self.parts.get(name) {
            Some(parts) if full < *parts => {
                (1..=wanted.min(full)).rev().find(|n| parts.is_multiple_of(*n)).unwrap_or(full)
            }
            Some(parts) => {
                let step = parts.saturating_mul(self.granule(name)).max(1);
                wanted.div_ceil(step).saturating_mul(step).min(full)
            }
            None => wanted.min(full),
        }
    }

    /// A product axis from its factors, which grow until a selection along the whole has something to choose.
    fn product(&self, key: &str, factors: &[String], small: &mut BTreeMap<String, u64>) {
        let bound = self.at_least.get(key).copied().unwrap_or(1);
        let total = |small: &BTreeMap<String, u64>| -> u64 {
            factors.iter().map(|f| f.parse().ok().or_else(|| small.get(f).copied()).unwrap_or(1)).product()
        };
        let parts = self.parts.get(key).copied().unwrap_or(1).saturating_mul(self.granule(key));
        // More than the mesh has ranks, and a block has elements, is never needed.
        let most = total(small).max(bound).saturating_mul(parts.saturating_add(1));
        while total(small) < bound || !total(small).is_multiple_of(parts) {
            if total(small) > most {
                break;
            }
            match factors.iter().rev().find(|f| f.parse::<u64>().is_err() && small.contains_key(*f)) {
                Some(last) => small.entry(last.clone()).and_modify(|n| *n += 1),
                None => break,
            };
        }
        small.insert(key.to_owned(), total(small));
    }

    /// Dims that can only change together.
    fn groups(&self, facts: &Facts) -> Vec<BTreeSet<String>> {
        let mut groups: Vec<BTreeSet<String>> = Vec::new();
        let mut join = |names: BTreeSet<String>| {
            let (touched, mut rest): (Vec<_>, Vec<_>) = groups.drain(..).partition(|g| !g.is_disjoint(&names));
            rest.push(touched.into_iter().flatten().chain(names).collect());
            groups = rest;
        };
        facts.dims.keys().filter(|n| *n != "layers").for_each(|n| join([n.clone()].into()));
        for (key, factors) in &facts.products {
            join(factors.iter().chain([key]).filter(|f| facts.dims.contains_key(*f)).cloned().collect());
        }
        self.shared.iter().for_each(|(a, b)| join([a.clone(), b.clone()].into()));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{kinds, two_kind_model};

    #[test]
    fn layers_keep_every_class_every_pair_and_both_ends() {
        let mut facts = two_kind_model().facts;
        let near = || kinds(&[("attn", "near")]);
        facts.schedule =
            (0..40).map(|l| if l % 6 == 5 || l == 39 { kinds(&[("attn", "far")]) } else { near() }).collect();
        assert_eq!(layers(&facts), Some(vec![0, 1, 4, 5, 6, 20, 39]));
        facts.schedule.truncate(3);
        assert_eq!(layers(&facts), None);
    }

    #[test]
    fn heads_keep_their_sharing_and_products_their_factors() {
        let mut model = two_kind_model();
        for (name, n) in [("vocab", 1000), ("hidden", 512), ("ffn", 512), ("heads", 24), ("kv_heads", 4), ("half", 32)]
        {
            model.facts.dims.insert(name.to_owned(), n);
        }
        model.facts.dims.insert("head_dim".to_owned(), 64);
        let dims = Bounds::of(&model, &Mesh::single()).dims(&model.facts);
        let shown: Vec<String> = dims.iter().map(|(name, n)| format!("{name} {n}")).collect();
        assert_eq!(shown.join(", "), "ffn 7, half 3, head_dim 6, heads 12, hidden 7, kv_heads 2, vocab 9");
    }

    #[test]
    fn what_cannot_shrink_is_named() {
        let full = two_kind_model();
        let mut read = |small: &Small| {
            if small.dims.contains_key("ffn") { Err("`ffn` is taken for six".to_owned()) } else { Ok(full.clone()) }
        };
        let shrunk = shrink(&full, &Mesh::single(), &mut read).expect("small enough as it is");
        assert_eq!(shrunk.kept, [("ffn".to_owned(), "`ffn` is taken for six".to_owned())]);
        let mut large = full.clone();
        large.facts.weights[0].axes = vec![vec![ir::Axis::fixed("vocab", 1 << 30)]];
        let error = shrink(&large, &Mesh::single(), &mut |_| Err("no".to_owned())).expect_err("too large");
        assert_eq!(error.code, "P0403");
    }
}

//! Weight memory: where every part of every weight lies on a rank, as kernels read it.
//!
//! ```text
//! checkpoint tensor ──form──► weight ──split by rank──► part ──pack, interleave──► offset in the rank's memory
//!  recipe.rs                                            memory.rs
//! ```
//!
//! One description serves all ranks: the offsets are the same everywhere, and which part of an axis a rank holds follows
//! from its place on the mesh. On one device with nothing packed each weight simply lies row after row. `cuda` loads
//! by it; `cpu` and `interp` map the checkpoint.

use crate::WeightRecipe;
use ir::{DType, KernelModule, Layout, Mesh, Op, Placement, Scope, Sharding, WeightRef};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// Offsets are multiples of this many bytes: what wide loads and tensor copies want, with room to spare.
pub const ALIGN_BYTES: u64 = ir::WEIGHT_ALIGN_BYTES;

/// The weights of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightMemory {
    /// The ranks; each holds its own parts at the same offsets.
    pub mesh: Mesh,
    /// Bytes that each rank holds.
    pub bytes: u64,
    /// Pieces by ascending offset.
    pub pieces: Vec<Piece>,
}

/// What lies in one piece of memory: a weight, or several packed as one.
///
/// Its elements are numbered `(lead, row, element)`: `lead` picks are outermost (experts, for example), then come the
/// rows of all parts, then the elements of a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Model or layer.
    pub scope: Scope,
    /// Layer index, for a layer's weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<usize>,
    /// Format of the elements.
    pub dtype: DType,
    /// First byte.
    pub offset_bytes: u64,
    /// Number of picks.
    pub lead: u64,
    /// Rows of all parts.
    pub rows: u64,
    /// Elements of a row.
    pub row_elements: u64,
    /// Whether each part is one number for each pick, which stands for all rows of the part and is kept once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// How rows alternate, where they do not simply follow each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interleave: Option<Interleave>,
    /// Parts in order.
    pub parts: Vec<Part>,
}

/// The rows are cut into `cuts` equal runs: `granule` rows of the first stand before as many of the second, and so on,
/// then the next of the first. The last granule of each run may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interleave {
    /// How many runs.
    pub cuts: u64,
    /// Rows of one run that stand together.
    pub granule: u64,
}

impl Interleave {
    /// Which of `rows` rows, counted without alternation, stands in row `row`.
    fn row(self, rows: u64, row: u64) -> u64 {
        let run = rows / self.cuts;
        let full = run / self.granule * self.granule;
        let (cut, at) = if row < full * self.cuts {
            (row / self.granule % self.cuts, row / (self.granule * self.cuts) * self.granule + row % self.granule)
        } else {
            let (rest, short) = (row - full * self.cuts, run - full);
            (rest / short, full + rest % short)
        };
        cut * run + at
    }
}

/// One weight inside a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name of the weight; its recipe says how it lies in a checkpoint.
    pub weight: String,
    /// Rows of a rank's part of it.
    pub rows: u64,
    /// Lengths of the part's axes, outermost first.
    pub shape: Vec<u64>,
    /// Axes that are spread over ranks, by position.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<Split>,
}

/// An axis of which a rank holds one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// Position of the axis.
    pub axis: usize,
    /// Length of the whole axis.
    pub length: u64,
    /// Mesh axes that it is spread over.
    pub over: Vec<String>,
}

impl Piece {
    /// Number of elements that are kept, unless 64 bits cannot count them.
    pub fn elements(&self) -> Option<u64> {
        if self.once {
            return self.lead.checked_mul(self.parts.len() as u64);
        }
        self.lead.checked_mul(self.rows)?.checked_mul(self.row_elements)
    }

    /// Size, unless 64 bits cannot count it.
    pub fn bytes(&self) -> Option<u64> {
        Some(self.dtype.bytes_for(self.elements()?)).filter(|bytes| *bytes < u64::MAX)
    }

    /// How people name it: its weights.
    pub fn title(&self) -> String {
        let names: Vec<String> = self.parts.iter().map(|p| format!("W.{}", p.weight)).collect();
        match self.layer {
            Some(layer) => format!("{} of layer {layer}", names.join(" + ")),
            None => names.join(" + "),
        }
    }

    /// Which part's which row stands in a row of the piece. Of a piece that was checked.
    pub fn row(&self, row: u64) -> Option<(usize, u64)> {
        let mut rest = self.interleave.map_or(row, |i| i.row(self.rows, row));
        for (index, part) in self.parts.iter().enumerate() {
            if rest < part.rows {
                return Some((index, rest));
            }
            rest -= part.rows;
        }
        None
    }

    /// Where on a rank an element of the piece comes from: the part and the element of the *whole* weight, row-major. Of a piece that was checked.
    pub fn source(&self, mesh: &Mesh, rank: u64, element: u64) -> Option<(usize, u64)> {
        let (index, mut local) = if self.once {
            let parts = self.parts.len() as u64;
            let index = usize::try_from(element % parts).ok()?;
            (index, element / parts * self.parts.get(index)?.rows)
        } else {
            let (pick, rest) = (element / (self.rows * self.row_elements), element % (self.rows * self.row_elements));
            let (index, row) = self.row(rest / self.row_elements)?;
            (index, (pick * self.parts.get(index)?.rows + row) * self.row_elements + rest % self.row_elements)
        };
        let part = self.parts.get(index)?;
        let (mut whole, mut stride) = (0, 1);
        for (axis, length) in part.shape.iter().enumerate().rev() {
            let split = part.split.iter().find(|s| s.axis == axis);
            let at = local % length + split.map_or(0, |s| s.start(mesh, rank));
            whole += at * stride;
            stride *= split.map_or(*length, |s| s.length);
            local /= length;
        }
        Some((index, whole))
    }
}

impl Split {
    /// First element of a rank's part.
    pub fn start(&self, mesh: &Mesh, rank: u64) -> u64 {
        let parts = u128::from(mesh.parts(&self.over).max(1));
        let start = u128::from(mesh.place(rank, &self.over)) * u128::from(self.length) / parts;
        u64::try_from(start).unwrap_or(u64::MAX)
    }

    /// Length of each part.
    fn local_length(&self, mesh: &Mesh) -> Option<u64> {
        let sharding = Sharding { mesh: mesh.clone(), ..Sharding::default() };
        sharding.local_length(self.length, &self.over)
    }
}

impl Part {
    /// `[start, length]` per axis of the whole weight: what a rank holds of it.
    pub fn slice(&self, mesh: &Mesh, rank: u64) -> Vec<[u64; 2]> {
        let start = |axis| self.split.iter().find(|s| s.axis == axis).map_or(0, |s| s.start(mesh, rank));
        self.shape.iter().enumerate().map(|(axis, length)| [start(axis), *length]).collect()
    }
}

/// Weights packed as one, as a graph names them, with the numbers that its type gives.
struct Pack<'a> {
    parts: Vec<(Scope, &'a str)>,
    lead: u64,
    row_elements: u64,
    interleave: Option<Interleave>,
    /// Whether a graph reads those of all layers as one: layer after layer, without a gap.
    stacked: bool,
}

/// The weight memory of a model at kernel level; the text of an error names the weights.
pub fn weight_memory(kernels: &KernelModule, recipes: &[WeightRecipe]) -> Result<WeightMemory, String> {
    let sharding = kernels.sharding.clone().unwrap_or_default();
    let packs = packs(kernels)?;
    let mut by_weight: HashMap<(Scope, &str), usize> = HashMap::new();
    for (index, pack) in packs.iter().enumerate() {
        for part in &pack.parts {
            if by_weight.insert(*part, index).is_some_and(|other| other != index) {
                return Err(format!("W.{} is packed in two ways", part.1));
            }
        }
    }
    let find: HashMap<(Scope, Option<usize>, &str), &WeightRecipe> =
        recipes.iter().map(|r| ((r.scope, r.layer, r.name.as_str()), r)).collect();
    let mut memory = WeightMemory { mesh: sharding.mesh.clone(), bytes: 0, pieces: Vec::new() };
    for recipe in in_stacks(recipes, &packs) {
        let pack = by_weight.get(&(recipe.scope, recipe.name.as_str())).and_then(|i| packs.get(*i));
        let piece = match pack {
            None => single(kernels, &sharding, recipe)?,
            // The pack stands where its first part does.
            Some(pack) if pack.parts.len() == 1 => single(kernels, &sharding, recipe)?,
            Some(pack) if pack.parts.first() == Some(&(recipe.scope, recipe.name.as_str())) => {
                let of = |(scope, name): &(Scope, &str)| {
                    let layer = recipe.layer.filter(|_| *scope == Scope::Layer);
                    let found = find.get(&(*scope, layer, *name)).copied();
                    found.ok_or_else(|| format!("{} is packed with W.{name}, which its layer lacks", recipe.title()))
                };
                let parts = pack.parts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
                packed(kernels, &sharding, pack, &parts)?
            }
            Some(_) => continue,
        };
        let bytes = piece.bytes().ok_or_else(|| format!("{} is too large to count", piece.title()))?;
        let offset_bytes = memory.bytes.next_multiple_of(ALIGN_BYTES);
        if pack.is_some_and(|pack| pack.stacked) && (!bytes.is_multiple_of(ALIGN_BYTES) || piece.interleave.is_some()) {
            return Err(format!(
                "{} is read together with the next layer's, and does not lie beside it",
                piece.title()
            ));
        }
        memory.bytes = offset_bytes.checked_add(bytes).ok_or("the weights are too large to count")?;
        memory.pieces.push(Piece { offset_bytes, ..piece });
    }
    Ok(memory)
}

/// Recipes in their order, but those of a stack together, layer by layer, where its first stands.
fn in_stacks<'r>(recipes: &'r [WeightRecipe], packs: &[Pack<'_>]) -> Vec<&'r WeightRecipe> {
    let is_stacked = |r: &WeightRecipe| {
        packs.iter().any(|pack| pack.stacked && pack.parts.first() == Some(&(r.scope, r.name.as_str())))
    };
    let mut ordered: Vec<&WeightRecipe> = Vec::new();
    let mut placed: HashSet<&str> = HashSet::new();
    for recipe in recipes {
        if !is_stacked(recipe) {
            ordered.push(recipe);
        } else if placed.insert(&recipe.name) {
            let same = |r: &&WeightRecipe| (r.scope, &r.name) == (recipe.scope, &recipe.name);
            let mut layers: Vec<&WeightRecipe> = recipes.iter().filter(same).collect();
            layers.sort_by_key(|r| r.layer);
            ordered.extend(layers);
        }
    }
    ordered
}

/// Every packed weight that graphs name, each once.
fn packs(kernels: &KernelModule) -> Result<Vec<Pack<'_>>, String> {
    let mut packs: Vec<Pack<'_>> = Vec::new();
    let mut seen = HashSet::new();
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs).map(|g| &g.graph) {
        for id in graph.ids() {
            let Op::Weight(reference @ WeightRef::Packed { into, parts }) = &graph.node(id).op else { continue };
            if !seen.insert(reference) {
                continue;
            }
            let ty = graph.tensor(id).and_then(|t| Some((t, t.axis(into)?)));
            let (ty, at) = ty.ok_or_else(|| format!("a packed weight has no axis `{into}`"))?;
            let elements = |axes: &[ir::Axis]| ir::TensorType::new(ty.dtype, axes.to_vec()).fixed_elements();
            let lead = elements(ty.axes.get(..at).unwrap_or_default());
            let row_elements = elements(ty.axes.get(at + 1..).unwrap_or_default());
            let interleave = interleave(kernels, reference);
            let stacked = parts.iter().any(|part| matches!(part, WeightRef::OfLayer { .. }));
            let mut parts = parts.iter().map(named).collect::<Result<Vec<_>, _>>()?;
            if stacked {
                // The same weights of each layer, one layer after the other.
                let again = parts.iter().skip(1).position(|part| Some(part) == parts.first());
                parts.truncate(again.map_or(parts.len(), |at| at + 1));
            }
            match packs.iter_mut().find(|pack| pack.parts == parts) {
                Some(known) => known.stacked |= stacked,
                None => packs.push(Pack { parts, lead, row_elements, interleave, stacked }),
            }
        }
    }
    Ok(packs)
}

/// Scope and name of a part of a pack.
fn named(reference: &WeightRef) -> Result<(Scope, &str), String> {
    match reference {
        WeightRef::Model(name) => Ok((Scope::Model, name)),
        WeightRef::Layer(name) | WeightRef::FirstLayer(name) | WeightRef::OfLayer { name, .. } => {
            Ok((Scope::Layer, name))
        }
        WeightRef::Next { layer, .. } => Err(format!("W.{layer} of the following layer is packed")),
        WeightRef::Packed { into, .. } => Err(format!("a weight packed along `{into}` is a part of another")),
    }
}

/// How the rows of a weight alternate.
fn interleave(kernels: &KernelModule, reference: &WeightRef) -> Option<Interleave> {
    match kernels.layouts.iter().find(|l| l.weight == *reference)?.layout {
        Layout::Interleaved { parts: cuts, granule } => Some(Interleave { cuts, granule }),
        Layout::RowMajor => None,
    }
}

fn single(kernels: &KernelModule, sharding: &Sharding, recipe: &WeightRecipe) -> Result<Piece, String> {
    let reference = match recipe.scope {
        Scope::Model => WeightRef::Model(recipe.name.clone()),
        Scope::Layer => WeightRef::Layer(recipe.name.clone()),
    };
    let interleave = interleave(kernels, &reference);
    let (lead, tail) = if interleave.is_some() { product_axes(kernels, &reference) } else { (0, 0) };
    let part = part(kernels, sharding, recipe, 1)?;
    let length = |axes: Option<&[u64]>| axes.and_then(product);
    if let Some(axes) = recipe.numbers().filter(|_| interleave.is_none()) {
        let numbers = length(part.shape.get(..axes)).zip(length(part.shape.get(axes..)));
        let (lead, rows) = numbers.ok_or_else(|| format!("{} is too large to count", recipe.title()))?;
        let (scope, layer, dtype) = (recipe.scope, recipe.layer, recipe.dtype);
        let parts = vec![Part { rows, ..part }];
        return Ok(Piece {
            scope,
            layer,
            dtype,
            offset_bytes: 0,
            lead,
            rows,
            row_elements: 1,
            once: true,
            interleave,
            parts,
        });
    }
    let last = part.shape.len().saturating_sub(tail);
    let numbers = (|| {
        let rows = if interleave.is_some() { length(part.shape.get(lead..last))? } else { 1 };
        let row_elements =
            if interleave.is_some() { length(part.shape.get(last..))? } else { length(Some(&part.shape))? };
        Some((length(part.shape.get(..lead))?, rows, row_elements))
    })();
    let (lead, rows, row_elements) = numbers.ok_or_else(|| format!("{} is too large to count", recipe.title()))?;
    Ok(Piece {
        scope: recipe.scope,
        layer: recipe.layer,
        dtype: recipe.dtype,
        offset_bytes: 0,
        lead,
        rows,
        row_elements,
        once: false,
        interleave,
        parts: vec![Part { rows, ..part }],
    })
}

/// How many axes of a weight stand before its rows and how many a product sums over, as the first product says that
/// reads it.
fn product_axes(kernels: &KernelModule, reference: &WeightRef) -> (usize, usize) {
    for graph in kernels.entries.iter().flat_map(|e| &e.graphs).map(|g| &g.graph) {
        for id in graph.ids() {
            let Op::Linear { contract, .. } = &graph.node(id).op else { continue };
            let operands = graph.operands(id);
            if operands.get(1).is_some_and(|w| graph.node(*w).op == Op::Weight(reference.clone())) {
                return (usize::from(operands.len() > 2), contract.len());
            }
        }
    }
    (0, 0)
}

fn packed(
    kernels: &KernelModule,
    sharding: &Sharding,
    pack: &Pack<'_>,
    recipes: &[&WeightRecipe],
) -> Result<Piece, String> {
    let first = recipes.first().ok_or("a packed weight has no parts")?;
    if let Some(other) = recipes.iter().find(|r| r.dtype != first.dtype || r.scope != first.scope) {
        return Err(format!("{} and {} differ in format or scope and are packed", first.title(), other.title()));
    }
    let outside = pack.lead.max(1).saturating_mul(pack.row_elements.max(1));
    let of = |recipe: &&WeightRecipe| {
        let whole = part(kernels, sharding, recipe, 1)?;
        let elements = product(&whole.shape).filter(|n| n.is_multiple_of(outside));
        let rows = elements.ok_or_else(|| format!("{} has no whole number of rows to pack", recipe.title()))? / outside;
        Ok(Part { rows, ..whole })
    };
    let parts = recipes.iter().map(of).collect::<Result<Vec<Part>, String>>()?;
    let rows = parts.iter().try_fold(0u64, |n, p| n.checked_add(p.rows));
    // One number for each pick of each part: a pick is what the leading axes of a weight enumerate.
    let number = |(recipe, part): (&&WeightRecipe, &Part)| {
        let axes = recipe.numbers()?;
        product(part.shape.get(..axes)?).filter(|n| *n == pack.lead)
    };
    let once = pack.row_elements == 1 && recipes.iter().zip(&parts).all(|pair| number(pair).is_some());
    Ok(Piece {
        scope: first.scope,
        layer: first.layer,
        dtype: first.dtype,
        offset_bytes: 0,
        lead: pack.lead,
        rows: rows.ok_or_else(|| format!("{} is packed with too many rows to count", first.title()))?,
        row_elements: pack.row_elements,
        once,
        interleave: pack.interleave.filter(|_| !once),
        parts,
    })
}

/// A rank's part of a weight.
fn part(kernels: &KernelModule, sharding: &Sharding, recipe: &WeightRecipe, rows: u64) -> Result<Part, String> {
    let nowhere = Placement::new();
    let placement = sharding.weight(recipe.scope, &recipe.name).unwrap_or(&nowhere);
    let weight = kernels.facts.weight(recipe.scope, &recipe.name);
    let weight = weight.ok_or_else(|| format!("{} is no weight of the model", recipe.title()))?;
    let mut shape = recipe.shape.clone();
    let mut split = Vec::new();
    for (position, axis) in weight.axes.iter().flatten().enumerate() {
        let Some((over, length)) = placement.get(&axis.name).zip(shape.get_mut(position)) else { continue };
        let axis = Split { axis: position, length: *length, over: over.clone() };
        let local = axis.local_length(&sharding.mesh);
        *length =
            local.ok_or_else(|| format!("{} of length {length} cannot be spread over {over:?}", recipe.title()))?;
        split.push(axis);
    }
    Ok(Part { weight: recipe.name.clone(), rows, shape, split })
}

pub(crate) fn product(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, dim| n.checked_mul(*dim))
}

impl WeightMemory {
    /// Checks that every weight of the recipes lies in memory exactly once, whole on every group of ranks, inside its
    /// piece, and that pieces do not overlap. The text names the two facts in conflict.
    pub fn check(&self, recipes: &[WeightRecipe]) -> Result<(), String> {
        let mut open: HashMap<(Scope, Option<usize>, &str), &WeightRecipe> =
            recipes.iter().map(|r| ((r.scope, r.layer, r.name.as_str()), r)).collect();
        let mut end = 0u64;
        for piece in &self.pieces {
            let title = piece.title();
            piece.check().map_err(|fact| format!("{title}: {fact}"))?;
            let bytes = piece.bytes().ok_or_else(|| format!("{title} is too large to count"))?;
            if piece.offset_bytes < end || !piece.offset_bytes.is_multiple_of(ALIGN_BYTES) {
                return Err(format!(
                    "{title} begins at byte {}, the piece before it ends at {end}",
                    piece.offset_bytes
                ));
            }
            end = piece.offset_bytes.checked_add(bytes).ok_or_else(|| format!("{title} ends past any memory"))?;
            for part in &piece.parts {
                let recipe = open.remove(&(piece.scope, piece.layer, part.weight.as_str()));
                let recipe =
                    recipe.ok_or_else(|| format!("W.{} in {title} is placed twice or has no recipe", part.weight))?;
                part.check(recipe, &self.mesh).map_err(|fact| format!("{}: {fact}", recipe.title()))?;
                if piece.once && recipe.numbers().is_none() {
                    return Err(format!("{} has a number for each element, its memory for all rows", recipe.title()));
                }
                if piece.dtype != recipe.dtype {
                    return Err(format!("{} has dtype {}, its memory {}", recipe.title(), recipe.dtype, piece.dtype));
                }
            }
        }
        if end != self.bytes {
            return Err(format!("the weights take {end} bytes, the memory has {}", self.bytes));
        }
        match recipes.iter().find(|r| open.contains_key(&(r.scope, r.layer, r.name.as_str()))) {
            Some(recipe) => Err(format!("{} has no place in memory", recipe.title())),
            None => Ok(()),
        }
    }
}

impl Piece {
    fn check(&self) -> Result<(), String> {
        if self.parts.is_empty() || self.elements().is_none_or(|n| n == 0) {
            return Err("it has no elements, or too many to count".to_owned());
        }
        let rows = self.parts.iter().try_fold(0u64, |n, p| n.checked_add(p.rows));
        if rows != Some(self.rows) {
            return Err(format!("its parts do not have its {} rows", self.rows));
        }
        for part in &self.parts {
            let own = self.lead.checked_mul(part.rows).and_then(|n| n.checked_mul(self.row_elements));
            if own.is_none() || product(&part.shape) != own {
                return Err(format!("W.{} has shape {:?}, its place {own:?} elements", part.weight, part.shape));
            }
        }
        // A block that begins in one row and ends in the next would be cut where rows are.
        if self.dtype == DType::Nvfp4 && !self.row_elements.is_multiple_of(DType::BLOCK) {
            return Err(format!("its rows of {} elements are no whole blocks of {}", self.row_elements, DType::BLOCK));
        }
        if self.once && (self.row_elements != 1 || self.interleave.is_some()) {
            return Err(format!(
                "it keeps numbers once, and its rows have {} elements or alternate",
                self.row_elements
            ));
        }
        match self.interleave {
            Some(i) if i.cuts == 0 || i.granule == 0 || !self.rows.is_multiple_of(i.cuts) => {
                Err(format!("its {} rows cannot alternate in {} runs by {}", self.rows, i.cuts, i.granule))
            }
            _ => Ok(()),
        }
    }
}

impl Part {
    fn check(&self, recipe: &WeightRecipe, mesh: &Mesh) -> Result<(), String> {
        if self.shape.len() != recipe.shape.len() || self.split.iter().any(|s| s.axis >= self.shape.len()) {
            return Err(format!("its part has shape {:?}, the whole {:?}", self.shape, recipe.shape));
        }
        // A mesh axis that stands twice would multiply parts without end.
        let over: Vec<&String> = self.split.iter().flat_map(|s| &s.over).collect();
        let once: HashSet<&String> = over.iter().copied().collect();
        if once.len() != over.len() || over.iter().any(|axis| mesh.length(axis) < 2) {
            return Err(format!("it is spread over {over:?}, which are no distinct axes of {mesh}"));
        }
        for (axis, (local, whole)) in self.shape.iter().zip(&recipe.shape).enumerate() {
            let mut splits = self.split.iter().filter(|s| s.axis == axis);
            let expected = match (splits.next(), splits.next()) {
                (None, _) => Some(*whole),
                (Some(split), None) if split.length == *whole => split.local_length(mesh),
                _ => None,
            };
            if expected != Some(*local) {
                return Err(format!("axis {axis} of length {whole} has a part of {local} on each of {mesh}"));
            }
        }
        Ok(())
    }
}

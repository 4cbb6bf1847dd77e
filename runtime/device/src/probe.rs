//! Values traced out of a run and injected into it, by the full name of a graph value.
//!
//! A full name is `first.NAME`, `layers.{l}.NAME` or `last.NAME`; NAME is a node's name, or an output's where no node has it; `%7`
//! means the node of that number, which need not have a name. The value of
//! a graph's input stands at the entry of the graph. Over the steps since a probe was set, traced rows are put one after another,
//! and injected rows are taken by the number of the row.

use engine::{Executor, StepError};
use indexmap::IndexMap;
use ir::{DType, Graph, Instance, TensorType, ValueId};
use std::collections::HashMap;

/// Numbers with a shape, outermost length first.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Lengths.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub data: TensorData,
}

/// Elements of a [`Tensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum TensorData {
    /// Floats of any format, and bools as 0 and 1.
    F32(Vec<f32>),
    /// Integers.
    I32(Vec<i32>),
}

impl TensorData {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            TensorData::F32(x) => x.len(),
            TensorData::I32(x) => x.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What to watch and replace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probe {
    /// Full names of values to trace.
    pub trace: Vec<String>,
    /// Values to put in place of what the graph computes, by full name.
    pub inject: IndexMap<String, Tensor>,
    /// Rows that the whole run will have, where that is known: what is injected must have as many.
    pub rows: Option<usize>,
    /// First position that any sequence has: nothing is cached before it.
    pub start: usize,
}

/// A probe that cannot be set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProbeError {
    /// No such value.
    #[error("D0201: `{name}` names no value of the graphs; the nearest is `{nearest}`")]
    Unknown {
        /// Full name.
        name: String,
        /// The nearest that exists.
        nearest: String,
    },
    /// A tensor of another shape or kind than the value.
    #[error("D0202: `{name}` is {declared}, the tensor injected for it has shape {shape:?} and {kind} elements")]
    Shape {
        /// Full name.
        name: String,
        /// Type in the graph.
        declared: String,
        /// Shape given.
        shape: Vec<usize>,
        /// Kind of elements given.
        kind: &'static str,
    },
    /// A tensor with more or fewer rows than the run.
    #[error(
        "D0203: the tensor injected for `{name}` has {found} rows, the sequence has {needed} tokens; give a row for each token"
    )]
    Rows {
        /// Full name.
        name: String,
        /// Rows given.
        found: usize,
        /// Rows of the run.
        needed: usize,
    },
    /// An executor that keeps values inside its kernels.
    #[error(
        "D0204: `{name}` is to be traced or replaced, which the cuda executor does not do; use `--executor interp` or `cpu`"
    )]
    NotHere {
        /// Full name.
        name: String,
    },
}

/// An executor that can be probed.
pub trait Probed: Executor {
    /// Watches and replaces from the next step on; an empty probe ends it. What was traced before is dropped.
    fn set_probe(&mut self, probe: Probe) -> Result<(), ProbeError>;

    /// What was traced since the probe was set, by full name in the probe's order.
    fn take_trace(&mut self) -> IndexMap<String, Tensor>;

    /// Full names of all values of the first entry, in the order in which they are computed.
    fn value_names(&self) -> Vec<String>;
}

/// Graphs of an entry as probes see them: stage 0 is the first graph, stage n + 1 instance n, then the last graph.
pub(crate) struct Sites<'a> {
    pub graphs: Vec<&'a Graph>,
    pub instances: &'a [Instance],
}

impl<'a> Sites<'a> {
    fn stages(&self) -> impl Iterator<Item = (String, &'a Graph)> {
        let first = self.graphs.first().map(|g| ("first.".to_owned(), *g));
        let layers = self
            .instances
            .iter()
            .filter_map(|i| Some((format!("layers.{}.", i.layer), *self.graphs.get(i.class + 1)?)));
        let last = self.graphs.last().map(|g| ("last.".to_owned(), *g));
        first.into_iter().chain(layers.collect::<Vec<_>>()).chain(last)
    }

    /// Every full name.
    pub fn names(&self) -> Vec<String> {
        self.stages()
            .flat_map(|(prefix, graph)| names(graph).into_iter().map(move |(name, _)| format!("{prefix}{name}")))
            .collect()
    }

    /// Stage and value behind a full name.
    fn find(&self, full: &str) -> Result<(usize, ValueId, &'a TensorType), ProbeError> {
        for (stage, (prefix, graph)) in self.stages().enumerate() {
            let Some(name) = full.strip_prefix(&prefix) else { continue };
            let found = names(graph).into_iter().find(|(n, _)| *n == name).map(|(_, id)| id);
            let found = found.or_else(|| graph.ids().find(|id| id.to_string() == name));
            if let Some((id, ty)) = found.and_then(|id| Some((id, graph.tensor(id)?))) {
                return Ok((stage, id, ty));
            }
        }
        let names = self.names();
        let nearest = names.iter().max_by(|a, b| strsim::jaro(a, full).total_cmp(&strsim::jaro(b, full)));
        Err(ProbeError::Unknown { name: full.to_owned(), nearest: nearest.cloned().unwrap_or_default() })
    }
}

/// Named tensors of a graph: node names, and outputs' where no node has the name.
fn names(graph: &Graph) -> Vec<(&str, ValueId)> {
    let mut names: Vec<(&str, ValueId)> = graph
        .ids()
        .filter(|id| graph.tensor(*id).is_some())
        .filter_map(|id| Some((graph.node(id).name.as_deref()?, id)))
        .collect();
    for (name, id) in &graph.outputs {
        if !names.iter().any(|(n, _)| n == name) {
            names.push((name, *id));
        }
    }
    names
}

/// One value's part in a probe.
#[derive(Debug)]
pub(crate) struct Site {
    pub full: String,
    pub ty: TensorType,
    pub traced: bool,
    pub injected: Option<Tensor>,
}

/// A probe at work.
#[derive(Debug, Default)]
pub(crate) struct Probing {
    sites: HashMap<(usize, ValueId), Vec<Site>>,
    order: Vec<String>,
    traced: HashMap<String, Tensor>,
    /// Rows of the steps before, by row axis.
    done: HashMap<String, usize>,
    pub start: usize,
}

impl Probing {
    /// Resolves a probe's names.
    pub fn new(probe: Probe, sites: &Sites<'_>) -> Result<Probing, ProbeError> {
        let mut out = Probing { start: probe.start, order: probe.trace.clone(), ..Probing::default() };
        let traced = probe.trace.into_iter().map(|name| (name, None));
        for (full, injected) in traced.chain(probe.inject.into_iter().map(|(name, tensor)| (name, Some(tensor)))) {
            let (stage, id, ty) = sites.find(&full)?;
            if let Some(tensor) = &injected {
                check_shape(&full, ty, tensor)?;
                check_rows(&full, ty, tensor, probe.rows)?;
            }
            let site = Site { full, ty: ty.clone(), traced: injected.is_none(), injected };
            out.sites.entry((stage, id)).or_default().push(site);
        }
        Ok(out)
    }

    /// What is to be done with a value.
    pub fn at(&self, stage: usize, id: ValueId) -> &[Site] {
        self.sites.get(&(stage, id)).map_or(&[], Vec::as_slice)
    }

    /// Values of a stage that have a part.
    pub fn of_stage(&self, stage: usize) -> Vec<ValueId> {
        let mut ids: Vec<ValueId> = self.sites.keys().filter(|(s, _)| *s == stage).map(|(_, id)| *id).collect();
        ids.sort_unstable();
        ids
    }

    /// The replacement for rows of a value in this step, `rows` from `from` on, if there is one.
    pub fn injection(
        &self,
        stage: usize,
        id: ValueId,
        from: usize,
        rows: usize,
    ) -> Result<Option<TensorData>, StepError> {
        let Some((site, tensor)) = self.at(stage, id).iter().find_map(|s| Some((s, s.injected.as_ref()?))) else {
            return Ok(None);
        };
        let row = site.ty.fixed_elements() as usize;
        let done = |axis: &str| self.done.get(axis).copied().unwrap_or(0) + from;
        let first = site.ty.row_axes().next().map_or(0, done);
        let range = first * row..(first + rows) * row;
        let sliced = match &tensor.data {
            TensorData::F32(x) => x.get(range).map(|x| TensorData::F32(x.to_vec())),
            TensorData::I32(x) => x.get(range).map(|x| TensorData::I32(x.to_vec())),
        };
        sliced.map(Some).ok_or_else(|| {
            StepError::Contract(format!(
                "the tensor injected for `{}` has {} rows, the run has reached row {}",
                site.full,
                tensor.data.len() / row.max(1),
                first + rows
            ))
        })
    }

    /// Keeps a value of this step.
    pub fn trace(&mut self, stage: usize, id: ValueId, data: impl Fn() -> TensorData) {
        let Some(sites) = self.sites.get(&(stage, id)) else { return };
        for site in sites.iter().filter(|s| s.traced) {
            let lengths = || {
                site.ty.axes.iter().filter_map(|a| match a.extent {
                    ir::Extent::Fixed(n) => Some(n as usize),
                    ir::Extent::Rows => None,
                })
            };
            let row: usize = lengths().product();
            let has_rows = site.ty.row_axes().next().is_some();
            let data = data();
            match self.traced.get_mut(&site.full) {
                Some(before) if has_rows => {
                    before.shape[0] += data.len() / row.max(1);
                    match (&mut before.data, data) {
                        (TensorData::F32(x), TensorData::F32(y)) => x.extend(y),
                        (TensorData::I32(x), TensorData::I32(y)) => x.extend(y),
                        _ => {}
                    }
                }
                Some(_) => {}
                None => {
                    let rows = has_rows.then(|| data.len() / row.max(1));
                    let shape = rows.into_iter().chain(lengths()).collect();
                    self.traced.insert(site.full.clone(), Tensor { shape, data });
                }
            }
        }
    }

    /// Counts a finished step's rows.
    pub fn finish_step(&mut self, tokens: usize, wanted: usize) {
        *self.done.entry(ir::TOKEN_ROWS.to_owned()).or_default() += tokens;
        *self.done.entry(ir::WANTED_ROWS.to_owned()).or_default() += wanted;
    }

    /// What was traced, in the probe's order.
    pub fn take(&mut self) -> IndexMap<String, Tensor> {
        let mut traced = std::mem::take(&mut self.traced);
        self.order.iter().filter_map(|name| Some((name.clone(), traced.remove(name)?))).collect()
    }
}

fn check_shape(full: &str, ty: &TensorType, tensor: &Tensor) -> Result<(), ProbeError> {
    let row = ty.fixed_elements() as usize;
    let has_rows = ty.row_axes().next().is_some();
    let elements: usize = tensor.shape.iter().product();
    let (ints, kind) = match &tensor.data {
        TensorData::F32(_) => (false, "float"),
        TensorData::I32(_) => (true, "integer"),
    };
    let fits = if has_rows {
        tensor.shape.first().is_some_and(|rows| rows.checked_mul(row) == Some(elements))
    } else {
        elements == row
    };
    if fits && elements == tensor.data.len() && ints == (ty.dtype == DType::I32) {
        return Ok(());
    }
    Err(ProbeError::Shape { name: full.to_owned(), declared: describe(ty), shape: tensor.shape.clone(), kind })
}

fn check_rows(full: &str, ty: &TensorType, tensor: &Tensor, rows: Option<usize>) -> Result<(), ProbeError> {
    let found = tensor.shape.first().copied().unwrap_or(0);
    match rows {
        Some(needed) if needed != found && ty.row_axes().next().is_some() => {
            Err(ProbeError::Rows { name: full.to_owned(), found, needed })
        }
        _ => Ok(()),
    }
}

fn describe(ty: &TensorType) -> String {
    let axes: Vec<String> = ty
        .axes
        .iter()
        .map(|a| match a.extent {
            ir::Extent::Fixed(n) => format!("{} = {n}", a.name),
            ir::Extent::Rows => a.name.clone(),
        })
        .collect();
    format!("{}[{}]", ty.dtype, axes.join(", "))
}

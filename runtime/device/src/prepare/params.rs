//! Parameters: weights, literals and instance numbers, resolved once per layer instance.

use super::graph::Prepared;
use super::{root, title};
use crate::contract::Rows;
use crate::error::{NOT_LOADED, PrepareError};
use crate::kernels::panels::Panels;
use crate::kernels::{Kernel, Launching};
use crate::store::WeightStore;
use crate::threads::Company;
use crate::view::{Target, View};
use ir::{DType, KernelEntry, Op, Scope, ValueId, WeightRef};
use std::collections::HashMap;
use std::sync::Arc;

/// Data outside the arena.
#[derive(Clone, Debug)]
pub(crate) enum Param {
    F32(Arc<Vec<f32>>),
    I32(Arc<Vec<i32>>),
}

impl Param {
    pub fn view(&self) -> View<'_> {
        match self {
            Param::F32(x) => View::F32(x),
            Param::I32(x) => View::I32(x),
        }
    }
}

/// Parameters of one run of a graph, each by value id.
#[derive(Debug, Default)]
pub(crate) struct Params {
    data: Vec<Option<Param>>,
    panels: Vec<Option<Arc<Panels>>>,
    numbers: Vec<f32>,
}

impl Params {
    fn of(values: usize) -> Params {
        Params { data: vec![None; values], panels: vec![None; values], numbers: vec![0.0; values] }
    }

    /// Data of a leaf that a kernel reads.
    pub fn data(&self, leaf: ValueId) -> Option<&Param> {
        self.data[leaf.0 as usize].as_ref()
    }

    /// The packed weight of a product.
    pub fn panels(&self, product: ValueId) -> Option<&Arc<Panels>> {
        self.panels[product.0 as usize].as_ref()
    }

    /// The number of an operation that has one.
    pub fn number(&self, operation: ValueId) -> f32 {
        self.numbers[operation.0 as usize]
    }
}

/// Computes what is the same in every step from parameters that are there already.
fn constant(graph: &Prepared, id: ValueId, params: &Params) -> Result<Param, PrepareError> {
    let unsupported =
        |fact: String| PrepareError::Unsupported { graph: graph.name.clone(), value: graph.title(id), fact };
    let value = graph.value(id);
    let views: Option<Vec<View<'_>>> = value.operands.iter().map(|o| params.data(*o).map(Param::view)).collect();
    let (Some(kernel), Some(shape), Some(views)) = (&value.kernel, &value.shape, views) else {
        return Err(unsupported("a constant of something that is not there".to_owned()));
    };
    let rows = Rows::default();
    let launch = Launching {
        rows: &rows,
        first: 0,
        pools: None,
        slots: &[],
        panels: None,
        number: params.number(id),
        company: Company::ANY,
        team: None,
    };
    Ok(match value.dtype {
        DType::I32 => {
            let mut numbers = vec![0; shape.row];
            kernel.run(&launch, &views, Target::I32(&mut numbers)).map_err(unsupported)?;
            Param::I32(Arc::new(numbers))
        }
        _ => {
            let mut numbers = vec![0.0; shape.row];
            kernel.run(&launch, &views, Target::F32(&mut numbers)).map_err(unsupported)?;
            Param::F32(Arc::new(numbers))
        }
    })
}

type WeightKey = (Scope, String, Option<usize>);

/// Fetches and packs each weight once, however many instances share it.
pub(crate) struct Loader<'w> {
    weights: &'w dyn WeightStore,
    fetched: HashMap<WeightKey, Arc<Vec<f32>>>,
    packed: HashMap<(WeightKey, usize, usize), Arc<Panels>>,
}

impl<'w> Loader<'w> {
    pub fn new(weights: &'w dyn WeightStore) -> Self {
        Loader { weights, fetched: HashMap::new(), packed: HashMap::new() }
    }

    /// Parameters of a graph, run as instance `instance` of the entry or outside the layers.
    pub fn params(
        &mut self,
        graph: &Prepared,
        entry: &KernelEntry,
        instance: Option<usize>,
    ) -> Result<Params, PrepareError> {
        let mut params = Params::of(graph.values.len());
        let layer = instance.map_or(0, |i| entry.instances[i].layer);
        for id in graph.graph.ids() {
            match &graph.value(id).kernel {
                None => {
                    // Nothing reads a view as such, but a probe may ask for one that has a name.
                    let node = graph.graph.node(id);
                    if node.op.is_view() && node.name.is_some() {
                        self.leaf(graph, entry, instance, root(&graph.graph, id), &mut params)?;
                    }
                    continue;
                }
                Some(Kernel::Attend(_)) => {
                    if let Op::Attend { scale, .. } = &graph.graph.node(id).op {
                        params.numbers[id.0 as usize] = scale.eval(layer) as f32;
                    }
                }
                Some(_) => {}
            }
            for (slot, operand) in graph.value(id).operands.iter().enumerate() {
                let packs = match &graph.value(id).kernel {
                    Some(Kernel::Linear(linear)) if slot == 1 && linear.packs() => Some(linear.matrix()),
                    _ => None,
                };
                match (&graph.graph.node(*operand).op, packs) {
                    (Op::Weight(weight), Some(matrix)) => {
                        let key = self.key(graph, entry, instance, weight)?;
                        params.panels[id.0 as usize] = Some(self.pack(graph, *operand, key, matrix)?);
                    }
                    _ => self.leaf(graph, entry, instance, *operand, &mut params)?,
                }
            }
            if graph.value(id).constant {
                params.data[id.0 as usize] = Some(constant(graph, id, &params)?);
            }
        }
        for (_, id) in &graph.graph.outputs {
            self.leaf(graph, entry, instance, root(&graph.graph, *id), &mut params)?;
        }
        Ok(params)
    }

    fn leaf(
        &mut self,
        graph: &Prepared,
        entry: &KernelEntry,
        instance: Option<usize>,
        id: ValueId,
        params: &mut Params,
    ) -> Result<(), PrepareError> {
        if params.data(id).is_some() {
            return Ok(());
        }
        let layer = instance.map_or(0, |i| entry.instances[i].layer);
        let data = match &graph.graph.node(id).op {
            Op::Weight(weight) => {
                let key = self.key(graph, entry, instance, weight)?;
                Param::F32(self.fetch(graph, id, key)?)
            }
            Op::Literal(numbers) if graph.value(id).dtype == DType::I32 => {
                Param::I32(Arc::new(numbers.iter().map(|x| *x as i32).collect()))
            }
            Op::Literal(numbers) => Param::F32(Arc::new(numbers.clone())),
            Op::Scalar(number) => Param::F32(Arc::new(vec![number.eval(layer) as f32])),
            _ => return Ok(()),
        };
        let needed = graph.value(id).shape.as_ref().map_or(0, |s| s.row);
        let found = data.view().len();
        if found != needed {
            return Err(PrepareError::Unsupported {
                graph: graph.name.clone(),
                value: graph.title(id),
                fact: format!("a constant of {found} elements with a type of {needed}"),
            });
        }
        params.data[id.0 as usize] = Some(data);
        Ok(())
    }

    /// Which weight a reference means in an instance.
    fn key(
        &self,
        graph: &Prepared,
        entry: &KernelEntry,
        instance: Option<usize>,
        weight: &WeightRef,
    ) -> Result<WeightKey, PrepareError> {
        let outside = |name: &str| PrepareError::WeightMissing {
            graph: graph.name.clone(),
            weight: format!("`{name}`"),
            fact: "which belongs to a layer, outside the layers; compile the spec again",
        };
        let layer = |i: usize| entry.instances.get(i).map(|i| i.layer);
        Ok(match weight {
            WeightRef::Model(name) => (Scope::Model, name.clone(), None),
            WeightRef::Layer(name) => {
                let layer = instance.and_then(layer).ok_or_else(|| outside(name))?;
                (Scope::Layer, name.clone(), Some(layer))
            }
            WeightRef::Next { layer: name, last } => match layer(instance.ok_or_else(|| outside(name))? + 1) {
                Some(layer) => (Scope::Layer, name.clone(), Some(layer)),
                None => (Scope::Model, last.clone(), None),
            },
            WeightRef::FirstLayer(name) => {
                let layer = layer(0).ok_or_else(|| outside(name))?;
                (Scope::Layer, name.clone(), Some(layer))
            }
            WeightRef::OfLayer { layer, name } => (Scope::Layer, name.clone(), Some(*layer)),
            WeightRef::Packed { into, .. } => {
                let fact = "which is packed of several, and this executor does not join them; compile for a target without `pack`";
                return Err(PrepareError::WeightMissing {
                    graph: graph.name.clone(),
                    weight: format!("`{into}`"),
                    fact,
                });
            }
        })
    }

    fn fetch(&mut self, graph: &Prepared, id: ValueId, key: WeightKey) -> Result<Arc<Vec<f32>>, PrepareError> {
        let (scope, name, layer) = &key;
        let data = match self.fetched.get(&key) {
            Some(data) => Arc::clone(data),
            None => self.weights.f32(*scope, name, *layer).ok_or_else(|| PrepareError::WeightMissing {
                graph: graph.name.clone(),
                weight: title(*scope, name, *layer),
                fact: NOT_LOADED,
            })?,
        };
        let needed = graph.value(id).shape.as_ref().map_or(0, |s| s.row);
        if data.len() != needed {
            return Err(PrepareError::WeightSize {
                graph: graph.name.clone(),
                weight: title(*scope, name, *layer),
                found: data.len(),
                needed,
            });
        }
        self.fetched.insert(key, Arc::clone(&data));
        Ok(data)
    }

    fn pack(
        &mut self,
        graph: &Prepared,
        id: ValueId,
        key: WeightKey,
        (n, k, slices): (usize, usize, usize),
    ) -> Result<Arc<Panels>, PrepareError> {
        if let Some(panels) = self.packed.get(&(key.clone(), n, k)) {
            return Ok(Arc::clone(panels));
        }
        let known = self.fetched.contains_key(&key);
        let data = self.fetch(graph, id, key.clone())?;
        if !known {
            // Nobody else reads it row by row: only the packed form stays.
            self.fetched.remove(&key);
        }
        let panels = Arc::new(Panels::pack(&data, slices, n, k));
        self.packed.insert((key, n, k), Arc::clone(&panels));
        Ok(panels)
    }
}

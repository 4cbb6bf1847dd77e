//! What every executor of this crate is around its way of running a step: facts, tickets, page copies, probes.

use crate::cache::Cache;
use crate::finish::{Done, page};
use crate::probe::{Probe, ProbeError, Probed, Probing, Sites, Tensor};
use engine::{Arrivals, Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use indexmap::IndexMap;

/// A way of running steps.
pub(crate) trait Runs {
    /// Runs one step to its end. Where layers of its pages are still to come, each is taken before it is read.
    fn run(
        &mut self,
        step: &Step,
        facts: &ExecutorFacts,
        probing: Option<&mut Probing>,
        arrivals: Option<&mut dyn Arrivals>,
    ) -> Result<StepOutput, StepError>;

    /// Whether it takes layers one by one as it comes to them, and does not want all of them first.
    fn takes_arrivals(&self) -> bool {
        false
    }

    /// Cache memory by KV kind.
    fn pools(&mut self) -> &mut Cache;

    /// Graphs and instances of the first entry, where values can be probed.
    fn sites(&self) -> Option<Sites<'_>>;
}

/// The executor over a way of running steps. A step runs where it is submitted.
pub struct Shell<R> {
    facts: ExecutorFacts,
    runs: R,
    probing: Option<Probing>,
    done: Done,
}

impl<R> Shell<R> {
    /// Lets two KV kinds of one format draw from one memory, as large as both. Pages of the two may then overlap unless
    /// whoever hands them out keeps them apart, as an engine does.
    pub(crate) fn share_memory(&mut self)
    where
        R: Runs,
    {
        let pools = self.runs.pools();
        pools.share();
        (self.facts.pool_pages, self.facts.shared_bytes) = (pools.pages(), pools.shared_bytes());
    }

    /// Nothing probed, nothing run.
    pub(crate) fn over(facts: ExecutorFacts, runs: R) -> Self {
        Shell { facts, runs, probing: None, done: Done::default() }
    }
}

impl<R: Runs + Send> Executor for Shell<R> {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        let output = self.runs.run(&step, &self.facts, self.probing.as_mut(), None)?;
        Ok(self.done.keep(output))
    }

    fn takes_arrivals(&self) -> bool {
        self.runs.takes_arrivals()
    }

    fn submit_with(&mut self, step: Step, arrivals: &mut dyn Arrivals) -> Result<Ticket, StepError> {
        let output = self.runs.run(&step, &self.facts, self.probing.as_mut(), Some(arrivals))?;
        Ok(self.done.keep(output))
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        self.done.take(ticket)
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        let pools = self.runs.pools();
        // Every kind has a sink, so this asks for the kind alone.
        page(pools, kind, 0)?;
        for (from, to) in pages {
            let (from, to) = (page(pools, kind, *from)?, page(pools, kind, *to)?);
            pools.copy_page(kind, from, to);
        }
        Ok(())
    }

    fn zero_pages(&mut self, kind: usize, pages: &[PhysicalPage]) -> Result<(), StepError> {
        let pools = self.runs.pools();
        for number in pages {
            let number = page(pools, kind, *number)?;
            pools.zero_page(kind, number);
        }
        Ok(())
    }

    fn read_layer(
        &mut self,
        kind: usize,
        layer: usize,
        number: PhysicalPage,
        out: &mut Vec<u8>,
    ) -> Result<(), StepError> {
        let pools = self.runs.pools();
        let number = page(pools, kind, number)?;
        layer_exists(pools, kind, layer)?;
        pools.read_layer(kind, layer, number, out);
        Ok(())
    }

    fn write_layer(&mut self, kind: usize, layer: usize, number: PhysicalPage, bytes: &[u8]) -> Result<(), StepError> {
        write_layer(self.runs.pools(), kind, layer, number, bytes)
    }
}

/// Writes one layer of a page, if there are such and the bytes are one.
pub(crate) fn write_layer(
    pools: &mut Cache,
    kind: usize,
    layer: usize,
    number: PhysicalPage,
    bytes: &[u8],
) -> Result<(), StepError> {
    let number = page(pools, kind, number)?;
    layer_exists(pools, kind, layer)?;
    if pools.write_layer(kind, layer, number, bytes) {
        return Ok(());
    }
    Err(StepError::Contract(format!("{} bytes are not one layer of a page of KV kind {kind}", bytes.len())))
}

/// Refuses a layer that a kind does not have.
fn layer_exists(pools: &Cache, kind: usize, layer: usize) -> Result<(), StepError> {
    let layers = pools.pool(kind).map_or(0, |p| p.layout.layers.len());
    if layer < layers {
        return Ok(());
    }
    Err(StepError::Contract(format!("layer {layer} of KV kind {kind} is named, it has {layers}")))
}

impl<R: Runs + Send> Probed for Shell<R> {
    fn set_probe(&mut self, probe: Probe) -> Result<(), ProbeError> {
        self.probing = None;
        if probe != Probe::default()
            && let Some(sites) = self.runs.sites()
        {
            self.probing = Some(Probing::new(probe, &sites)?);
        }
        Ok(())
    }

    fn take_trace(&mut self) -> IndexMap<String, Tensor> {
        self.probing.as_mut().map(Probing::take).unwrap_or_default()
    }

    fn value_names(&self) -> Vec<String> {
        self.runs.sites().map(|sites| sites.names()).unwrap_or_default()
    }
}

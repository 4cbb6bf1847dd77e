//! What every executor of this crate is around its way of running a step: facts, tickets, page copies, probes.

use crate::cache::Pool;
use crate::finish::{Done, copy_pages};
use crate::probe::{Probe, ProbeError, Probed, Probing, Sites, Tensor};
use engine::{Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use indexmap::IndexMap;

/// A way of running steps.
pub(crate) trait Runs {
    /// Runs one step to its end.
    fn run(
        &mut self,
        step: &Step,
        facts: &ExecutorFacts,
        probing: Option<&mut Probing>,
    ) -> Result<StepOutput, StepError>;

    /// Cache memory by KV kind.
    fn pools(&mut self) -> &mut [Pool];

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
        let output = self.runs.run(&step, &self.facts, self.probing.as_mut())?;
        Ok(self.done.keep(output))
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        self.done.take(ticket)
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        copy_pages(self.runs.pools(), kind, pages)
    }
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

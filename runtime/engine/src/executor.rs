//! The executor trait: the one door between an engine and a device.

use crate::{DraftFacts, PhysicalPage, Step, StepOutput};
use ir::{KvLayout, Plan, RowsPerSequence};
use std::time::Duration;

/// Names a submitted step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// What an engine must know of an executor before it can plan steps.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutorFacts {
    /// Entries of the logits.
    pub vocab: usize,
    /// Most token rows in a step.
    pub max_tokens: usize,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// Most wanted rows in a step.
    pub max_wanted: usize,
    /// Layouts per KV kind, in the order in which a step's translations stand.
    pub kv: Vec<KvLayout>,
    /// Pages in each kind's pool, the sink page included; with one memory for all kinds, the pages that fit if no other
    /// kind had any.
    pub pool_pages: Vec<usize>,
    /// Bytes of the one memory that two kinds lie in, page `p` of either at `p` times its size; `None` for pools apart.
    pub shared_bytes: Option<u64>,
    /// Whether rows may stand for tokens that the step before is still choosing.
    pub takes_choices: bool,
    /// The drafter, if there is one. Every step of the model then also brings the drafter's own cache up to date: for all
    /// rows, of a block for those that have a token in the output.
    pub draft: Option<DraftFacts>,
}

impl ExecutorFacts {
    /// Facts of an executor that runs a plan's first entry. Limits are those of one bucket, the largest that takes any mixture
    /// of rows, so that every step within them fits. `None` for a plan without buckets.
    pub fn of_plan(plan: &Plan, vocab: usize, pool_pages: &[usize], shared_bytes: Option<u64>) -> Option<Self> {
        let buckets = plan.entries.first().map_or(&[][..], |e| &e.buckets);
        let ragged = buckets.iter().rev().find(|b| b.bucket.rows == RowsPerSequence::Ragged);
        let largest = ragged.or(buckets.last()).map(|b| &b.bucket)?;
        Some(ExecutorFacts {
            vocab,
            max_tokens: largest.tokens as usize,
            max_sequences: largest.sequences as usize,
            max_wanted: largest.wanted as usize,
            kv: plan.kv.clone(),
            pool_pages: pool_pages.to_vec(),
            shared_bytes,
            takes_choices: false,
            draft: None,
        })
    }
}

/// A fault of one step. The executor stays usable; the step left no token.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The step breaks the contract; the text names the field and both facts.
    #[error("step refused: {0}")]
    Contract(String),
    /// The device failed; the text names kernel, region and operation.
    #[error("step failed: {0}")]
    Device(String),
    /// Cache memory is not what it is taken for: nobody that uses it can go on.
    #[error("cache memory could not be changed: {0}")]
    Cache(String),
}

/// Puts one layer's part of a page where the device has it; an error loses the prefix that it belongs to.
pub type Put<'a> = dyn FnMut(PhysicalPage, &[u8]) -> Result<(), StepError> + 'a;

/// Layers of cache pages that come from the host while the step that reads them runs.
pub trait Arrivals {
    /// All layers in the order in which a step comes to them: KV kind, and layer among those of the kind.
    fn order(&self) -> &[(usize, usize)];

    /// Waits for what the step needs of a layer and hands it to `put`, page by page; nothing where all of it is there.
    /// Says when the last of it came, in nanoseconds of a simulated clock, and 0 where time is real.
    fn take(&mut self, kind: usize, layer: usize, put: &mut Put<'_>) -> u64;
}

/// Runs steps. Steps run in the order of submission; at most [`Executor::in_flight_limit`] may be unfinished.
pub trait Executor: Send {
    /// Facts that never change.
    fn facts(&self) -> &ExecutorFacts;

    /// Takes a step. An executor without a device of its own may run it here and now.
    fn submit(&mut self, step: Step) -> Result<Ticket, StepError>;

    /// Whether layers of a step's pages may come while it runs.
    fn takes_arrivals(&self) -> bool {
        false
    }

    /// Takes a step that reads cache pages of which layers are still to come. All have been taken when this returns, each
    /// before the step reads it.
    fn submit_with(&mut self, step: Step, arrivals: &mut dyn Arrivals) -> Result<Ticket, StepError> {
        take_all(arrivals, &mut |kind, layer, page, bytes| self.write_layer(kind, layer, page, bytes));
        self.submit(step)
    }

    /// The output of a step, or `None` while it runs. A ticket is answered once.
    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError>;

    /// How many steps may be submitted before the oldest is polled to its end.
    fn in_flight_limit(&self) -> usize {
        1
    }

    /// Sleeps until a step may be over, `most` at the longest.
    fn wait_for_step(&mut self, most: Duration) {
        std::thread::sleep(most);
    }

    /// Copies whole pages inside one kind's pool, one after the other and after all submitted steps: source, destination.
    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError>;

    /// Makes pages of one kind all zeros, after all submitted steps.
    fn zero_pages(&mut self, _kind: usize, _pages: &[PhysicalPage]) -> Result<(), StepError> {
        Ok(())
    }

    /// Appends one layer's part of a page to `out`, after all submitted steps. `layer` counts the layers of the kind.
    fn read_layer(
        &mut self,
        kind: usize,
        layer: usize,
        _page: PhysicalPage,
        _out: &mut Vec<u8>,
    ) -> Result<(), StepError> {
        Err(StepError::Contract(format!("layer {layer} of KV kind {kind} cannot be read by the host on this device")))
    }

    /// Writes one layer's part of a page as [`Executor::read_layer`] gave it, before all steps submitted later.
    fn write_layer(&mut self, kind: usize, layer: usize, _page: PhysicalPage, _bytes: &[u8]) -> Result<(), StepError> {
        Err(StepError::Contract(format!(
            "layer {layer} of KV kind {kind} cannot be written by the host on this device"
        )))
    }

    /// A step that is done and that nobody needs: its memory serves another.
    fn spare(&mut self) -> Option<Step> {
        None
    }

    /// An output that was read: its memory may serve another.
    fn take_back(&mut self, _output: StepOutput) {}
}

/// Where a layer's part of a page goes: KV kind, layer of the kind, page, bytes.
pub type PutLayer<'a> = dyn FnMut(usize, usize, PhysicalPage, &[u8]) -> Result<(), StepError> + 'a;

/// Takes every layer that has not been taken.
pub fn take_all(arrivals: &mut dyn Arrivals, put: &mut PutLayer<'_>) {
    for at in 0.. {
        let Some((kind, layer)) = arrivals.order().get(at).copied() else { break };
        arrivals.take(kind, layer, &mut |page, bytes| put(kind, layer, page, bytes));
    }
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn facts(&self) -> &ExecutorFacts {
        (**self).facts()
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        (**self).submit(step)
    }

    fn takes_arrivals(&self) -> bool {
        (**self).takes_arrivals()
    }

    fn submit_with(&mut self, step: Step, arrivals: &mut dyn Arrivals) -> Result<Ticket, StepError> {
        (**self).submit_with(step, arrivals)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        (**self).poll(ticket)
    }

    fn in_flight_limit(&self) -> usize {
        (**self).in_flight_limit()
    }

    fn wait_for_step(&mut self, most: Duration) {
        (**self).wait_for_step(most);
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        (**self).copy_pages(kind, pages)
    }

    fn zero_pages(&mut self, kind: usize, pages: &[PhysicalPage]) -> Result<(), StepError> {
        (**self).zero_pages(kind, pages)
    }

    fn read_layer(
        &mut self,
        kind: usize,
        layer: usize,
        page: PhysicalPage,
        out: &mut Vec<u8>,
    ) -> Result<(), StepError> {
        (**self).read_layer(kind, layer, page, out)
    }

    fn write_layer(&mut self, kind: usize, layer: usize, page: PhysicalPage, bytes: &[u8]) -> Result<(), StepError> {
        (**self).write_layer(kind, layer, page, bytes)
    }

    fn spare(&mut self) -> Option<Step> {
        (**self).spare()
    }

    fn take_back(&mut self, output: StepOutput) {
        (**self).take_back(output);
    }
}

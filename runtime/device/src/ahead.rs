//! An executor on a thread of its own: it takes a second step while the first one runs.
//!
//! ```text
//!   engine's thread   plan 1 | plan 2 |  answers of 1, plan 3 |  answers of 2, plan 4
//!   this thread               | step 1        | step 2               | step 3
//! ```
//!
//! A row of the second step may stand for a token that the first one is still choosing; the token is filled in when
//! the second step begins. Pages are zeroed and copied in the order in which that was asked for between the steps. What
//! needs an answer at once (reading and writing layers, steps that wait for layers) waits until nothing is under way.

use engine::{Arrivals, Executor, ExecutorFacts, PhysicalPage, Step, StepError, StepOutput, Ticket};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Steps that may be unfinished: one runs, one waits.
const STEPS: usize = 2;

/// Runs `E`'s steps beside whoever plans them.
pub struct Ahead<E> {
    facts: ExecutorFacts,
    takes_arrivals: bool,
    next: u64,
    shared: Arc<Shared<E>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<E> {
    /// Held for as long as something runs on it.
    executor: Mutex<Inner<E>>,
    queue: Mutex<Queue>,
    /// There is work, or none will come any more.
    has_work: Condvar,
    /// Something is over.
    is_over: Condvar,
}

/// The executor and what its last step chose.
struct Inner<E> {
    executor: E,
    /// By wanted row; `None` where there is no token.
    chosen: Vec<Option<u32>>,
    /// Why cache memory is not what the next step takes it for.
    broken: Option<String>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Work>,
    runs: bool,
    ends: bool,
    over: Vec<(Ticket, Result<StepOutput, StepError>)>,
    /// Steps that are over and outputs that were read, whose memory serves others.
    spare: Vec<Step>,
    read: Vec<StepOutput>,
}

enum Work {
    Step(Ticket, Step),
    Copy(usize, Vec<(PhysicalPage, PhysicalPage)>),
    Zero(usize, Vec<PhysicalPage>),
}

/// No panic leaves anything half done behind these locks: what runs on an executor is caught.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E: Executor + 'static> Ahead<E> {
    /// Starts the thread. Refuses an executor with a drafter: a block is verified when its drafts are known, so there is
    /// no second step to take.
    pub fn new(executor: E) -> Result<Self, std::io::Error> {
        let facts = ExecutorFacts { takes_choices: true, ..executor.facts().clone() };
        if facts.draft.is_some() {
            let text = "an executor with a drafter takes one step at a time";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        let takes_arrivals = executor.takes_arrivals();
        let shared = Arc::new(Shared {
            executor: Mutex::new(Inner { executor, chosen: Vec::new(), broken: None }),
            queue: Mutex::default(),
            has_work: Condvar::new(),
            is_over: Condvar::new(),
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("steps".into()).spawn(move || own.work())?;
        Ok(Ahead { facts, takes_arrivals, next: 0, shared, thread: Some(thread) })
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    fn push(&self, work: Work) {
        locked(&self.shared.queue).waiting.push_back(work);
        self.shared.has_work.notify_one();
    }

    /// The executor when nothing is under way.
    fn at_rest(&self) -> MutexGuard<'_, Inner<E>> {
        let is_busy = |queue: &mut Queue| queue.runs || !queue.waiting.is_empty();
        drop(self.shared.is_over.wait_while(locked(&self.shared.queue), is_busy));
        locked(&self.shared.executor)
    }
}

impl<E: Executor> Shared<E> {
    /// Does what waits, one after the other, until no more will come.
    fn work(&self) {
        loop {
            let queue = locked(&self.queue);
            let waited = self.has_work.wait_while(queue, |queue| queue.waiting.is_empty() && !queue.ends);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(work) = queue.waiting.pop_front() else { return };
            queue.runs = true;
            let read = std::mem::take(&mut queue.read);
            drop(queue);
            let mut inner = locked(&self.executor);
            inner.change(|executor| {
                read.into_iter().for_each(|output| executor.take_back(output));
                Ok(())
            });
            let over = match work {
                Work::Step(ticket, step) => Some((ticket, inner.run(step, None))),
                Work::Copy(kind, pages) => {
                    inner.change(|executor| executor.copy_pages(kind, &pages));
                    None
                }
                Work::Zero(kind, pages) => {
                    inner.change(|executor| executor.zero_pages(kind, &pages));
                    None
                }
            };
            let mut spare = None;
            inner.change(|executor| {
                spare = executor.spare();
                Ok(())
            });
            drop(inner);
            let mut queue = locked(&self.queue);
            queue.runs = false;
            queue.over.extend(over);
            queue.spare.extend(spare);
            drop(queue);
            self.is_over.notify_all();
        }
    }
}

impl<E: Executor> Inner<E> {
    /// Does what nobody waits for, such as a change of cache memory. What goes wrong is told to whoever asks next.
    fn change(&mut self, call: impl FnOnce(&mut E) -> Result<(), StepError>) {
        if let Err(error) = caught(|| call(&mut self.executor)) {
            self.broken.get_or_insert(error.to_string());
        }
    }

    /// Refuses cache memory that is not what it is taken for.
    fn whole(&mut self) -> Result<&mut E, StepError> {
        match &self.broken {
            Some(text) => Err(StepError::Cache(text.clone())),
            None => Ok(&mut self.executor),
        }
    }

    /// Runs a step to its end.
    fn run(&mut self, step: Step, arrivals: Option<&mut dyn Arrivals>) -> Result<StepOutput, StepError> {
        let output = match self.broken.take() {
            Some(text) => Err(StepError::Cache(text)),
            None => caught(|| self.run_filled(step, arrivals)),
        };
        self.chosen.clear();
        match &output {
            Ok(output) => self.chosen.extend(output.tokens.iter().map(|token| token.as_ref().map(|token| token.id))),
            // Rows that follow a step that failed are computed and nobody looks at them.
            Err(_) => self.chosen.resize(self.executor.facts().max_wanted, None),
        }
        output
    }

    /// The same, with tokens for the rows that stand for those of the step before.
    fn run_filled(&mut self, mut step: Step, arrivals: Option<&mut dyn Arrivals>) -> Result<StepOutput, StepError> {
        for token in step.tokens.iter_mut().filter(|token| **token < 0) {
            let wanted = usize::try_from(-1 - i64::from(*token)).ok();
            let Some(chosen) = wanted.and_then(|wanted| self.chosen.get(wanted)) else {
                let (token, made) = (*token, self.chosen.len());
                let text = format!("a row has token {token}, and the step before chose {made} tokens");
                return Err(StepError::Contract(text));
            };
            // A choice that failed leaves a row that nobody looks at.
            *token = chosen.map_or(0, |id| id as i32);
        }
        let ticket = match arrivals {
            Some(arrivals) => self.executor.submit_with(step, arrivals)?,
            None => self.executor.submit(step)?,
        };
        loop {
            match self.executor.poll(ticket)? {
                Some(output) => return Ok(output),
                None => self.executor.wait_for_step(LOOK),
            }
        }
    }
}

/// How long an executor that runs elsewhere is left alone between two looks at it: little against a step, much against a look.
const LOOK: Duration = Duration::from_micros(20);

/// A defect in an executor costs the step in which it shows.
fn caught<T>(call: impl FnOnce() -> Result<T, StepError>) -> Result<T, StepError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(StepError::Device(format!("the executor broke off: {}", text.unwrap_or("no reason given"))))
    })
}

impl<E: Executor + 'static> Executor for Ahead<E> {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn submit(&mut self, step: Step) -> Result<Ticket, StepError> {
        let ticket = self.ticket();
        self.push(Work::Step(ticket, step));
        Ok(ticket)
    }

    fn takes_arrivals(&self) -> bool {
        self.takes_arrivals
    }

    fn submit_with(&mut self, step: Step, arrivals: &mut dyn Arrivals) -> Result<Ticket, StepError> {
        let output = self.at_rest().run(step, Some(arrivals))?;
        let ticket = self.ticket();
        locked(&self.shared.queue).over.push((ticket, Ok(output)));
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket) -> Result<Option<StepOutput>, StepError> {
        let mut queue = locked(&self.shared.queue);
        // Of steps before this one nobody will ask any more.
        queue.over.retain(|(other, _)| other.0 >= ticket.0);
        if let Some(at) = queue.over.iter().position(|(other, _)| *other == ticket) {
            return queue.over.swap_remove(at).1.map(Some);
        }
        let is_it = |work: &Work| matches!(work, Work::Step(other, _) if *other == ticket);
        match queue.runs || queue.waiting.iter().any(is_it) {
            true => Ok(None),
            false => Err(StepError::Contract(format!("ticket {} is not under way", ticket.0))),
        }
    }

    fn in_flight_limit(&self) -> usize {
        STEPS
    }

    fn wait_for_step(&mut self, most: Duration) {
        let queue = locked(&self.shared.queue);
        let is_busy = |queue: &mut Queue| queue.over.is_empty() && (queue.runs || !queue.waiting.is_empty());
        drop(self.shared.is_over.wait_timeout_while(queue, most, is_busy));
    }

    fn copy_pages(&mut self, kind: usize, pages: &[(PhysicalPage, PhysicalPage)]) -> Result<(), StepError> {
        self.push(Work::Copy(kind, pages.to_vec()));
        Ok(())
    }

    fn zero_pages(&mut self, kind: usize, pages: &[PhysicalPage]) -> Result<(), StepError> {
        self.push(Work::Zero(kind, pages.to_vec()));
        Ok(())
    }

    fn read_layer(
        &mut self,
        kind: usize,
        layer: usize,
        page: PhysicalPage,
        out: &mut Vec<u8>,
    ) -> Result<(), StepError> {
        self.at_rest().whole()?.read_layer(kind, layer, page, out)
    }

    fn write_layer(&mut self, kind: usize, layer: usize, page: PhysicalPage, bytes: &[u8]) -> Result<(), StepError> {
        self.at_rest().whole()?.write_layer(kind, layer, page, bytes)
    }

    fn spare(&mut self) -> Option<Step> {
        locked(&self.shared.queue).spare.pop()
    }

    fn take_back(&mut self, output: StepOutput) {
        locked(&self.shared.queue).read.push(output);
    }
}

impl<E> Drop for Ahead<E> {
    /// Waits for the end of what is under way.
    fn drop(&mut self) {
        let mut queue = locked(&self.shared.queue);
        queue.ends = true;
        queue.waiting.clear();
        drop(queue);
        self.shared.has_work.notify_one();
        if let Some(thread) = self.thread.take() {
            // What it ran is caught; there is nothing to hear from it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;

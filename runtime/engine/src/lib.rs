//! Engine: pure state machines between requests and an executor, and the contract they speak.

mod executor;
mod step;

pub use executor::{Executor, ExecutorFacts, StepError, Ticket};
pub use step::{PhysicalPage, SampledToken, Sampling, SequenceRows, Step, StepOutput, VirtualPage, WantedRow};

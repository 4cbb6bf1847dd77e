//! Engine: pure state machines between requests and an executor, and the contract they speak.
//!
//! A request goes through [`Engine::submit`] into the [`Scheduler`]'s queue, gets its pages from the [`PagePool`] when
//! there is room, is read in chunks as long as an executor's largest step, then advances one token a step until a stop
//! token, its limit or [`Engine::abort`]. Nothing here reads a clock, a random source or a file: the executor and
//! every seed are arguments, so the same calls give the same steps.

mod answer;
mod arrivals;
mod constraint;
mod draft;
mod engine;
mod executor;
#[cfg(any(test, feature = "toy"))]
pub mod harness;
mod kv;
mod policy;
mod request;
mod sampling;
mod scheduler;
mod sequence;
pub mod sim;
mod step;
mod tier;
#[cfg(any(test, feature = "toy"))]
pub mod toy;
mod transfer;
mod watch;

pub use answer::{answer, answer_beside, lasting_rows};
pub use constraint::{Constraint, TokenMask, Verdict, admits, forbid, mask_below};
pub use draft::{AcceptRule, Block, Draft, DraftCosts, DraftFacts, DraftLimits, DraftRow, Line, accept, measure};
pub use engine::{Engine, Progress};
pub use executor::{Arrivals, Executor, ExecutorFacts, Put, PutLayer, StepError, Ticket, take_all};
pub use kv::{HostPage, HostUse, Kv, Namespace, PageOp, Pages};
pub use policy::Policy;
pub use request::{Event, FinishReason, PromptScores, Refusal, Request, RequestId, Usage};
pub use sampling::{Found, Law, Row, SampleError, check_sampling, sample, score};
pub use scheduler::{Counts, DraftCounts, Limits, Scheduler, Shares};
pub use step::{PhysicalPage, SampledToken, Sampling, SequenceRows, Step, StepOutput, VirtualPage, WantedRow};
pub use tier::{HostTier, MemoryTier, TierError, Transfer};
pub use watch::Clock;

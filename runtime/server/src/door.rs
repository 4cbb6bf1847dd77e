//! The door to the engine: how many answers may wait, for how long, and why some are turned away.

use engine::Refusal;
use std::time::Duration;

/// What bounds the door to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// Most answers that wait for room, beside those that may run at once; more are turned away.
    pub queued: usize,
    /// A request that has waited for so long and has not started is turned away; `None`: it waits on.
    pub wait: Option<Duration>,
    /// An engine that has work and finishes no step for so long is stuck.
    pub stuck: Duration,
    /// Between two pieces of a stream, where hundreds of streams go on with every step; 0: every token leaves by itself.
    /// Usually ten pieces a second, which still reads as a flow.
    pub pause: Duration,
}

impl Default for Door {
    fn default() -> Self {
        Door { queued: 1024, wait: None, stuck: Duration::from_secs(60), pause: Duration::from_millis(100) }
    }
}

impl Door {
    /// Most answers that can be under way together, of which so many may run.
    pub(crate) fn most_answers(&self, most_running: usize) -> Load {
        Load { running: most_running, waiting: self.queued }
    }

    /// Whether so many more answers find a place. What can start needs none in the queue; once some were found to have no room,
    /// for memory or because as many run as may, none can.
    pub(crate) fn admits(&self, load: Load, stalled: usize, more: usize, most_running: usize) -> bool {
        let (taken, most) = if stalled > 0 {
            (load.waiting, self.queued)
        } else {
            (load.all(), most_running.saturating_add(self.queued))
        };
        taken.saturating_add(more) <= most
    }
}

/// Answers that run and answers that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub running: usize,
    pub waiting: usize,
}

impl Load {
    /// All of them.
    pub fn all(self) -> usize {
        self.running.saturating_add(self.waiting)
    }
}

/// Why a request was not taken.
#[derive(Debug)]
pub(crate) enum Turned {
    /// It could never run.
    Refused(Refusal),
    /// So many answers more than there are places for beside those that run and wait.
    Full(usize, Load),
    /// So many answers could never be under way together: those that may run and those that may wait.
    TooMany(usize, Load),
    /// It has waited for so long.
    Late(Duration),
    /// A request that is not finished has this name.
    Named(String),
    /// The engine does not come back from a step.
    Stuck,
    /// The engine's thread is gone.
    Stopped,
}

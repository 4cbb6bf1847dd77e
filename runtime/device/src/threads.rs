//! How many threads compute.

use crate::team::Gathered;
use std::ops::Range;

/// Threads that cannot be had.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("D0111: {asked} threads are asked for, {found} compute already; ask once, before anything runs")]
pub struct ThreadsError {
    /// Threads asked for.
    pub asked: usize,
    /// Threads there are.
    pub found: usize,
}

/// Lets `threads` threads compute from now on; to be called once, before anything runs. Bits do not depend on it.
pub fn use_threads(threads: usize) -> Result<(), ThreadsError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("compute-{i}"));
    match pool.build_global() {
        Err(_) if rayon::current_num_threads() != threads => {
            Err(ThreadsError { asked: threads, found: rayon::current_num_threads() })
        }
        _ => Ok(()),
    }
}

/// Threads that compute: all processors, unless [`use_threads`] said otherwise.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Who computes beside a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nobody: its rows are all there are, and other threads may help.
    Nobody,
    /// Threads with other rows and the same weights: this one has part `part` of `parts`.
    Others { part: usize, parts: usize },
}

impl Company {
    /// Others that may be busy with anything.
    pub const ANY: Company = Company::Others { part: 0, parts: 1 };

    /// Whether other threads may help.
    pub fn is_nobody(self) -> bool {
        self == Company::Nobody
    }

    /// Which of so many steps through a weight comes first. What two processors read at once comes late to both, so each begins elsewhere.
    pub fn begins(self, steps: usize) -> usize {
        match self {
            Company::Nobody => 0,
            Company::Others { part, parts } => steps * part / parts.max(1),
        }
    }
}

/// Multiplications of one row from which on it pays to wake other threads for one operation. Waking one and waiting for it takes
/// some fifty microseconds, much longer where other programs want the processors, and what a thread finds near is in the
/// other's cache no more. A row waits for its weights, several hundred microseconds for as many.
const WORTH_WAKING: usize = 1 << 22;

/// The same of several rows, which meet a weight together and are done with as many in a quarter of the time.
const WORTH_WAKING_FOR_ROWS: usize = 1 << 24;

/// Multiplications that threads which are awake share out.
const WORTH_SHARING: Range<usize> = 1 << 18..WORTH_WAKING_FOR_ROWS;

/// Whether threads which are awake share out so many multiplications.
pub(crate) fn shares_awake(multiplications: usize, team: &Gathered) -> bool {
    WORTH_SHARING.contains(&multiplications) && team.parts() > 1
}

/// Whether so many multiplications of `rows` rows are shared out among threads.
pub(crate) fn shares(multiplications: usize, rows: usize) -> bool {
    let worth = if rows > 1 { WORTH_WAKING_FOR_ROWS } else { WORTH_WAKING };
    multiplications >= worth && rayon::current_num_threads() > 1
}

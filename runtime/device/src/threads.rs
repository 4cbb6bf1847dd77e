//! How many threads compute.

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

/// Multiplications from which on it pays to wake other threads for one operation. Waking one and waiting for it takes some fifty
/// microseconds, and much longer where other programs want the processors.
const WORTH_WAKING: usize = 1 << 22;

/// Whether so many multiplications are shared out among threads.
pub(crate) fn shares(multiplications: usize) -> bool {
    multiplications >= WORTH_WAKING && rayon::current_num_threads() > 1
}

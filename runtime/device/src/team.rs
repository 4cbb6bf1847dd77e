//! Threads that stay awake from one step of few rows to the next.
//!
//! Such a step takes about a millisecond and its threads part and meet dozens of times, every few ten microseconds. A thread that
//! sleeps needs as long to wake as its part takes, so these look for work without a pause while steps follow each other,
//! and sleep when none came for [`LINGER`]. What a thread that does not come at once costs is noticed, and the team is then left
//! alone for a while: another program has its processor.

use crate::threads;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder, Yield};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How much longer threads may take beside each other than alone for parts to be shared out. Processors that are one core's two halves take
/// nearly twice as long, and lose what they keep near.
const SLOWED: f64 = 1.33;

/// Tries of it: another program may have a processor just then.
const TRIES: usize = 5;

/// After how long it is tried again where threads took from each other, as the program that had a processor may be gone; later ever more
/// seldom.
const AGAIN: Duration = Duration::from_millis(20);

/// Helpers at most: more have too few rows each, and wait for memory.
const MOST_HELPERS: usize = 3;

/// How long a helper looks for work after the last step.
const LINGER: Duration = Duration::from_micros(300);

/// A part that is still not done so long after the others says that its thread does not run.
const STALLED: Duration = Duration::from_micros(400);

/// How long the team is left alone then.
const PAUSE: Duration = Duration::from_millis(20);

/// Times a helper looks for work between two looks at the clock.
const LOOKS: usize = 64;

/// Turns between the end of the last part and that of its bookkeeping, a few ten nanoseconds: whoever waits for the latter in the
/// usual way falls asleep.
const SETTLE: usize = 4;

struct Team {
    pool: ThreadPool,
    helpers: usize,
    began: Instant,
    /// Helpers that were woken, and of these those that look for work already.
    called: AtomicUsize,
    awake: AtomicUsize,
    /// Steps under way.
    steps: AtomicUsize,
    /// Until when nothing is shared, in microseconds since `began`.
    paused_until: AtomicU64,
    /// Whether threads gain from each other, and, where they did not, when that is tried again, in the same microseconds.
    is_apart: AtomicBool,
    tried_again_at: AtomicU64,
}

/// The team of this process; none where one thread computes.
fn team() -> Option<&'static Team> {
    static TEAM: OnceLock<Option<Team>> = OnceLock::new();
    let made = || {
        let helpers = threads::threads().saturating_sub(1).min(MOST_HELPERS);
        // Where threads cannot be had it does without.
        let pool = (helpers > 0).then(|| pool_of(helpers).ok()).flatten()?;
        Some(Team::new(pool, helpers))
    };
    TEAM.get_or_init(made).as_ref()
}

fn pool_of(helpers: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(helpers).thread_name(|i| format!("team-{i}")).build()
}

/// Whether this thread and the helpers compute side by side without taking from each other. Takes a millisecond or two.
fn are_apart(pool: &ThreadPool, helpers: usize) -> bool {
    let least = |times: [f64; TRIES]| times.into_iter().fold(f64::INFINITY, f64::min);
    let alone = least(std::array::from_fn(|_| worked()));
    let together = least(std::array::from_fn(|_| {
        let begun = AtomicUsize::new(0);
        let slowest = Mutex::new(0.0f64);
        let work = || {
            begun.fetch_add(1, Ordering::AcqRel);
            while begun.load(Ordering::Acquire) <= helpers {
                spin_loop();
            }
            let own = worked();
            let mut slowest = slowest.lock().unwrap_or_else(PoisonError::into_inner);
            *slowest = slowest.max(own);
        };
        pool.in_place_scope(|scope| {
            (0..helpers).for_each(|_| scope.spawn(|_| work()));
            work();
        });
        slowest.into_inner().unwrap_or_else(PoisonError::into_inner)
    }));
    together < alone * SLOWED
}

/// Seconds of some multiplications and additions that keep a core busy.
fn worked() -> f64 {
    let begun = Instant::now();
    let mut sums = [[1.0f32; 16]; 8];
    for _ in 0..10_000 {
        let factor = std::hint::black_box(0.999f32);
        for sums in &mut sums {
            sums.iter_mut().for_each(|sum| *sum = *sum * factor + 0.5);
        }
    }
    std::hint::black_box(sums);
    begun.elapsed().as_secs_f64()
}

/// A step under way, for which helpers stay awake.
pub(crate) struct Gathered(&'static Team);

impl Drop for Gathered {
    fn drop(&mut self) {
        self.0.steps.fetch_sub(1, Ordering::Release);
    }
}

/// Wakes the helpers for a step, where threads gain from each other; they come while it runs already.
pub(crate) fn gather() -> Option<Gathered> {
    let team = team()?;
    if team.gains() { team.gather() } else { None }
}

impl Team {
    fn new(pool: ThreadPool, helpers: usize) -> Team {
        let zero = || AtomicUsize::new(0);
        let (called, awake, steps, paused_until) = (zero(), zero(), zero(), AtomicU64::new(0));
        let (is_apart, tried_again_at) = (AtomicBool::new(false), AtomicU64::new(0));
        Team { pool, helpers, began: Instant::now(), called, awake, steps, paused_until, is_apart, tried_again_at }
    }

    /// Whether threads gain from each other. Found at the first step, and if they do not, again from time to time.
    fn gains(&self) -> bool {
        if self.is_apart.load(Ordering::Acquire) {
            return true;
        }
        let (at, now) = (self.tried_again_at.load(Ordering::Acquire), self.now());
        let next = 2 * now + AGAIN.as_micros() as u64;
        // One thread tries; others go on alone meanwhile.
        let tries =
            now >= at && self.tried_again_at.compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let found = tries && are_apart(&self.pool, self.helpers);
        if found {
            self.is_apart.store(true, Ordering::Release);
        }
        found
    }

    fn gather(&'static self) -> Option<Gathered> {
        if self.is_paused() {
            return None;
        }
        self.steps.fetch_add(1, Ordering::AcqRel);
        let one_more = |called: usize| (called < self.helpers).then_some(called + 1);
        while self.called.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok() {
            self.pool.spawn(|| self.keep());
        }
        Some(Gathered(self))
    }

    fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        until > 0 && self.now() < until
    }

    /// Microseconds since the team was made.
    fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// A helper's life: looks for parts until no step has been under way for a while, or nothing is shared.
    fn keep(&self) {
        self.awake.fetch_add(1, Ordering::AcqRel);
        let mut last = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if !matches!(rayon::yield_now(), Some(Yield::Executed)) {
                    spin_loop();
                }
            }
            if self.is_paused() {
                break;
            } else if self.steps.load(Ordering::Acquire) > 0 {
                last = Instant::now();
            } else if last.elapsed() > LINGER {
                break;
            }
        }
        self.awake.fetch_sub(1, Ordering::AcqRel);
        self.called.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Gathered {
    /// In how many parts work may be shared out now.
    pub fn parts(&self) -> usize {
        if self.0.is_paused() { 1 } else { 1 + self.0.awake.load(Ordering::Acquire) }
    }

    /// Runs a few parts, the first on this thread; its error, or else the first of another's. Parts must not use `rayon` themselves: a thread that
    /// waits inside one would take up another's life as a helper.
    pub fn run<T: Send, E: Send>(&self, parts: Vec<T>, run: impl Fn(T) -> Result<(), E> + Sync) -> Result<(), E> {
        let mut parts = parts.into_iter();
        let Some(own) = parts.next() else { return Ok(()) };
        let left = AtomicUsize::new(parts.len());
        let failed = Mutex::new(None);
        let (left, failed, run) = (&left, &failed, &run);
        self.0.pool.in_place_scope(|scope| {
            for part in parts {
                scope.spawn(move |_| {
                    if let Err(error) = run(part) {
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                    left.fetch_sub(1, Ordering::Release);
                });
            }
            let done = run(own);
            self.wait(left);
            done
        })?;
        failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    /// Waits for the parts of others.
    fn wait(&self, left: &AtomicUsize) {
        let mut since = None;
        let mut turns = 0usize;
        while left.load(Ordering::Acquire) > 0 {
            spin_loop();
            turns += 1;
            if turns.is_multiple_of(LOOKS) && since.get_or_insert_with(Instant::now).elapsed() > STALLED {
                let until = self.0.now() + PAUSE.as_micros() as u64;
                self.0.paused_until.store(until, Ordering::Relaxed);
                // Whoever ends the part last wakes this thread.
                return;
            }
        }
        (0..SETTLE).for_each(|_| spin_loop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts run once each, whoever runs them and whether they come in time or not, and an error of any is told.
    #[test]
    fn parts_run_once_and_errors_are_told() {
        let team = Box::leak(Box::new(Team::new(pool_of(2).unwrap(), 2)));
        let gathered = team.gather().unwrap();
        for count in 0..6usize {
            let mut numbers = vec![0; count];
            let run = |(i, number): (usize, &mut usize)| {
                *number += i + 1;
                if i == 4 { Err(i) } else { Ok(()) }
            };
            let done = gathered.run(numbers.iter_mut().enumerate().collect(), run);
            assert_eq!(done, if count > 4 { Err(4) } else { Ok(()) });
            assert_eq!(numbers, (1..=count).collect::<Vec<_>>());
        }
        let mut slow = [false; 2];
        let run = |(i, done): (usize, &mut bool)| {
            std::thread::sleep(STALLED * 4 * i as u32);
            *done = true;
            Ok::<(), ()>(())
        };
        assert_eq!(gathered.run(slow.iter_mut().enumerate().collect(), run), Ok(()));
        assert_eq!(slow, [true; 2]);
        assert!(gathered.parts() <= 1 + team.helpers);
    }
}

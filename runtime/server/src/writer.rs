//! Threads that put on their sockets what a step has said: woken once a step for all its streams, instead of a task for each.
//!
//! A write to a socket costs more than all that led to it. Where a crowd of streams goes on with every step, what follows the
//! first piece of a stream and is not its end waits for a pause to be over, so that tokens of several steps leave together.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Cores that share a writer, and most writers.
const CORES: usize = 8;
const MOST: usize = 4;
/// Streams that are a crowd: at some 10 µs a write, as many take a tenth of a core where steps take 25 ms.
pub(crate) const CROWD: usize = 256;

/// A stream that has something to say.
pub(crate) trait Outlet: Send + Sync {
    /// Marks it as due; whether it was not.
    fn is_first_call(&self) -> bool;
    /// Says what is there to say, as far as that is possible without waiting.
    fn speak(&self, memory: &mut Memory);
    /// Its speaking hit a defect.
    fn break_off(&self);
}

/// Memory that a writer keeps from stream to stream.
#[derive(Default)]
pub(crate) struct Memory {
    pub text: String,
    pub frame: Vec<u8>,
}

type Due = Vec<Arc<dyn Outlet>>;

/// The engine's side: streams that are due are collected during a step, and told when it is over.
pub(crate) struct Writers {
    all: Vec<Writer>,
    /// Between two pieces of a stream in a crowd.
    pause: Duration,
    /// When those that can wait were told.
    told: Option<Instant>,
}

struct Writer {
    due: Due,
    /// Those that can wait.
    patient: Due,
    inbox: Sender<Due>,
    /// Memory of those that were told.
    emptied: Receiver<Due>,
}

impl Writers {
    /// As many as the machine's cores ask for. `pause` lies between two pieces of a stream in a crowd.
    pub fn start(pause: Duration) -> std::io::Result<Writers> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = (0..cores.div_ceil(CORES).min(MOST)).map(|_| Writer::start());
        Ok(Writers { all: all.collect::<std::io::Result<_>>()?, pause, told: None })
    }

    /// A stream has something to say, which can wait or not. One stream always has the same writer, by this number.
    pub fn call(&mut self, stream: Arc<dyn Outlet>, number: u64, can_wait: bool) {
        let place = number % self.all.len().max(1) as u64;
        let Some(writer) = self.all.get_mut(place as usize) else { return };
        // One that waits already may have come to its end.
        match (stream.is_first_call(), can_wait) {
            (true, true) => writer.patient.push(stream),
            (_, false) => writer.due.push(stream),
            (false, true) => {}
        }
    }

    /// The step was over at `now`. Without one, nobody waits.
    pub fn go(&mut self, now: Option<Instant>) {
        let patient: usize = self.all.iter().map(|writer| writer.patient.len()).sum();
        let is_soon = now.zip(self.told).is_some_and(|(now, told)| now.saturating_duration_since(told) < self.pause);
        // Looks at a step that still runs leave nobody waiting, and begin no pause.
        if patient > 0 && (patient < CROWD || !is_soon) {
            self.told = now;
            self.all.iter_mut().for_each(|writer| writer.due.append(&mut writer.patient));
        }
        for writer in self.all.iter_mut().filter(|writer| !writer.due.is_empty()) {
            let memory = writer.emptied.try_recv().unwrap_or_default();
            let _ = writer.inbox.send(std::mem::replace(&mut writer.due, memory));
        }
    }
}

impl Writer {
    fn start() -> std::io::Result<Writer> {
        let (inbox, due) = channel::<Due>();
        let (back, emptied) = channel();
        std::thread::Builder::new().name("writer".into()).spawn(move || {
            let mut memory = Memory::default();
            for mut streams in due {
                streams.drain(..).for_each(|stream| speak(&*stream, &mut memory));
                // The engine may be gone.
                let _ = back.send(streams);
            }
        })?;
        Ok(Writer { due: Vec::new(), patient: Vec::new(), inbox, emptied })
    }
}

/// A defect costs the stream that shows it, not the others.
fn speak(stream: &dyn Outlet, memory: &mut Memory) {
    if catch_unwind(AssertUnwindSafe(|| stream.speak(memory))).is_err() {
        stream.break_off();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Tells what was done with it.
    struct Told {
        name: u32,
        due: AtomicBool,
        tells: Mutex<Sender<(u32, bool)>>,
    }

    impl Outlet for Told {
        fn is_first_call(&self) -> bool {
            !self.due.swap(true, Ordering::AcqRel)
        }

        fn speak(&self, _: &mut Memory) {
            self.due.store(false, Ordering::Release);
            assert!(self.name != 1, "a defect");
            self.tells.lock().unwrap().send((self.name, true)).unwrap();
        }

        fn break_off(&self) {
            self.tells.lock().unwrap().send((self.name, false)).unwrap();
        }
    }

    fn streams(names: std::ops::Range<u32>) -> (Due, Receiver<(u32, bool)>) {
        let (tells, told) = channel();
        let stream = |name| -> Arc<dyn Outlet> {
            Arc::new(Told { name, due: AtomicBool::new(false), tells: Mutex::new(tells.clone()) })
        };
        (names.map(stream).collect(), told)
    }

    #[test]
    fn streams_are_called_once_a_step_and_a_defect_is_ones_own() {
        let (streams, told) = streams(0..3);
        let mut writers = Writers::start(Duration::from_secs(60)).unwrap();
        for _ in 0..3 {
            for stream in streams.iter().chain(&streams) {
                writers.call(stream.clone(), 7, true);
            }
            assert!(told.try_recv().is_err(), "nothing is said before the step is over");
            writers.go(Some(Instant::now()));
            let said: Vec<(u32, bool)> = told.iter().take(3).collect();
            assert_eq!(said, [(0, true), (1, false), (2, true)]);
        }
    }

    #[test]
    fn a_crowd_waits_and_whoever_begins_or_ends_does_not() {
        // As many as wait when two hurry.
        let crowd = CROWD as u32 + 2;
        let (streams, told) = streams(10..10 + crowd);
        let start = Instant::now();
        let mut writers = Writers::start(Duration::from_millis(50)).unwrap();
        let at = |ms| start + Duration::from_millis(ms);
        let step = |writers: &mut Writers, at_ms: Option<u64>, hurried: &[usize]| {
            for (i, stream) in streams.iter().enumerate() {
                writers.call(stream.clone(), 7, !hurried.contains(&i));
            }
            writers.go(at_ms.map(at));
        };
        let heard = |n: u32| told.iter().take(n as usize).map(|(name, _)| name).collect::<Vec<u32>>();
        // Nobody has heard anything yet, so there is nothing to wait for.
        step(&mut writers, Some(0), &[]);
        assert_eq!(heard(crowd).len(), crowd as usize);
        step(&mut writers, Some(20), &[3]);
        step(&mut writers, Some(40), &[3, 5]);
        assert_eq!(heard(3), [13, 13, 15]);
        assert!(told.try_recv().is_err(), "the others wait");
        step(&mut writers, Some(50), &[]);
        // One that could wait and then could not is called once more.
        let mut all = heard(crowd + 1);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), crowd as usize);
        step(&mut writers, Some(60), &[]);
        step(&mut writers, None, &[]);
        assert_eq!(heard(crowd).len(), crowd as usize);
        // Nobody waits for a pause that is over, however often was looked meanwhile.
        step(&mut writers, Some(200), &[]);
        assert_eq!(heard(crowd).len(), crowd as usize);
        (210..290).for_each(|ms| writers.go(Some(at(ms))));
        step(&mut writers, Some(290), &[]);
        assert_eq!(heard(crowd).len(), crowd as usize);
    }
}

//! Threads that put on their sockets what a step has said: woken once a step for all its streams, instead of a task for each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Cores that share a writer, and most writers.
const CORES: usize = 8;
const MOST: usize = 4;

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
pub(crate) struct Writers(Vec<Writer>);

struct Writer {
    due: Due,
    inbox: Sender<Due>,
    /// Memory of those that were told.
    emptied: Receiver<Due>,
}

impl Writers {
    /// As many as the machine's cores ask for.
    pub fn start() -> std::io::Result<Writers> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let all = (0..cores.div_ceil(CORES).min(MOST)).map(|_| Writer::start());
        Ok(Writers(all.collect::<std::io::Result<_>>()?))
    }

    /// A stream has something to say. One stream always has the same writer, by this number.
    pub fn call(&mut self, stream: Arc<dyn Outlet>, number: u64) {
        if !stream.is_first_call() {
            return;
        }
        let place = number % self.0.len().max(1) as u64;
        if let Some(writer) = self.0.get_mut(place as usize) {
            writer.due.push(stream);
        }
    }

    /// The step is over.
    pub fn go(&mut self) {
        for writer in self.0.iter_mut().filter(|writer| !writer.due.is_empty()) {
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
        Ok(Writer { due: Vec::new(), inbox, emptied })
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

    #[test]
    fn streams_are_called_once_a_step_and_a_defect_is_ones_own() {
        let (tells, told) = channel();
        let stream = |name| -> Arc<dyn Outlet> {
            Arc::new(Told { name, due: AtomicBool::new(false), tells: Mutex::new(tells.clone()) })
        };
        let streams: Vec<Arc<dyn Outlet>> = (0..3).map(stream).collect();
        let mut writers = Writers::start().unwrap();
        for _ in 0..3 {
            for stream in streams.iter().chain(&streams) {
                writers.call(stream.clone(), 7);
            }
            assert!(told.try_recv().is_err(), "nothing is said before the step is over");
            writers.go();
            let said: Vec<(u32, bool)> = told.iter().take(3).collect();
            assert_eq!(said, [(0, true), (1, false), (2, true)]);
        }
    }
}

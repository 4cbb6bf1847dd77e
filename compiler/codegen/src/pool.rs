//! Worker processes that translate units side by side.

use crate::generate::Source;
use crate::worker::{Answer, Question};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// Why a pool could not translate.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A worker did not start or ended early.
    #[error("K0001: a worker process of the CUDA compiler ended: {0}")]
    Worker(String),
    /// A unit does not translate: a defect of the generator.
    #[error("K0002: kernel `{name}` does not translate\n{log}")]
    Unit {
        /// The unit.
        name: String,
        /// The CUDA compiler's log.
        log: String,
    },
}

/// How workers are started, and how many.
pub struct Pool {
    /// Starts one worker, which speaks [`crate::serve`] on its standard streams.
    pub command: Box<dyn Fn() -> Command + Sync>,
    /// Most workers at once.
    pub workers: usize,
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(pool: &Pool) -> Result<Worker, PoolError> {
        let mut command = (pool.command)();
        let fault = |e: std::io::Error| PoolError::Worker(e.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(fault)?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Worker { child, input, output: BufReader::new(output) }),
            _ => Err(PoolError::Worker("it has no streams".to_owned())),
        }
    }

    fn ask(&mut self, question: &Question) -> Result<Answer, PoolError> {
        let fault = |e: String| PoolError::Worker(e);
        let text = serde_json::to_string(question).map_err(|e| fault(e.to_string()))?;
        writeln!(self.input, "{text}").and_then(|()| self.input.flush()).map_err(|e| fault(e.to_string()))?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|e| fault(e.to_string()))?;
        serde_json::from_str(&line).map_err(|_| fault(format!("it left `{}` unanswered", question.name)))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It waits for questions; there will be none.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pool {
    /// Translates units; machine code by name. `folder` is for files on the way.
    pub fn translate(
        &self,
        units: &[&Source],
        options: &[String],
        folder: &Path,
    ) -> Result<BTreeMap<String, Vec<u8>>, PoolError> {
        let next = Mutex::new(units.iter());
        let done: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::default();
        let work = || -> Result<(), PoolError> {
            let mut worker: Option<Worker> = None;
            loop {
                let unit = next.lock().ok().and_then(|mut n| n.next().copied());
                let Some(unit) = unit else { return Ok(()) };
                let worker = match &mut worker {
                    Some(worker) => worker,
                    None => worker.insert(Worker::start(self)?),
                };
                let out = folder.join(format!("{}.cubin", unit.name));
                let options = options.to_vec();
                let question = Question { name: unit.name.clone(), text: unit.text.clone(), options, out: out.clone() };
                let answer = worker.ask(&question)?;
                // A remark of the compiler about its own output is as good as an error: nothing may be slower unseen.
                let log = if answer.error.is_empty() { answer.log } else { answer.error };
                if !log.is_empty() {
                    return Err(PoolError::Unit { name: unit.name.clone(), log });
                }
                let cubin = std::fs::read(&out).map_err(|e| PoolError::Worker(e.to_string()))?;
                if let Ok(mut done) = done.lock() {
                    done.insert(unit.name.clone(), cubin);
                }
            }
        };
        let count = self.workers.clamp(1, units.len().max(1));
        let ends: Vec<Result<(), PoolError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
            let lost = |_| Err(PoolError::Worker("its thread stopped".to_owned()));
            threads.into_iter().map(|t| t.join().unwrap_or_else(lost)).collect()
        });
        ends.into_iter().collect::<Result<(), _>>()?;
        Ok(done.into_inner().unwrap_or_default())
    }
}

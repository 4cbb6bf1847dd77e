//! What the engine is told on the command line: who runs when, and what is kept of finished work.

use crate::failure::Failure;
use crate::flags;
use crate::outputs::{self, Read};
use clap::Args;
use device::FileTier;
use engine::{Engine, Executor, HostTier, Limits, MemoryTier, Policy};
use std::path::PathBuf;

/// Flags of the engine.
#[derive(Args)]
pub struct SchedulingArgs {
    /// Who starts first: what came first, what has most of its prompt in the cache, or the highest priority, which may take
    /// a running request's place.
    #[arg(long, value_name = "WHO", default_value = "fcfs", value_parser = ["fcfs", "lpm", "priority"])]
    schedule_policy: String,
    /// How many requests may start before one that came earlier.
    #[arg(long, value_name = "N", default_value_t = Limits::default().most_passed)]
    max_passed: usize,
    /// Most rows of a step, answers and chunks of prompts together; as many as the artifact takes if absent.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    chunked_prefill_size: Option<u32>,
    /// Forget what was computed for a request when it ends.
    #[arg(long)]
    no_prefix_cache: bool,
    /// Memory outside the device for copies of what is cached, in 10^9 bytes; 0 for none.
    #[arg(long, value_name = "GB", default_value_t = 0.0, value_parser = flags::within(0.0..=flags::MOST_GIGABYTES))]
    host_cache_gb: f64,
    /// Folder for these copies, in files instead of memory. What is in it goes when the server ends.
    #[arg(long, value_name = "DIR", requires = "host_cache_gb", value_parser = flags::path)]
    host_cache_dir: Option<PathBuf>,
}

impl SchedulingArgs {
    /// Refuses flags that take back what others ask for.
    pub fn agree(&self) -> Result<(), Failure> {
        let keeps_copies = self.host_cache_gb > 0.0;
        if self.no_prefix_cache && keeps_copies {
            return Err(Failure::usage(
                "R0107: `--host-cache-gb` keeps copies of what `--no-prefix-cache` forgets; leave one out",
            ));
        }
        if self.host_cache_dir.is_some() && !keeps_copies {
            return Err(Failure::usage(
                "R0107: `--host-cache-dir` is for copies, and `--host-cache-gb` asks for none; ask for more than 0, or leave both out",
            ));
        }
        Ok(())
    }

    /// Refuses a folder for copies inside of what is read.
    pub fn apart(&self, read: &[Read<'_>]) -> Result<(), Failure> {
        self.host_cache_dir.iter().try_for_each(|dir| outputs::apart(("--host-cache-dir", dir), read))
    }

    /// As the engine wants it.
    pub fn limits(&self, context_tokens: usize, running: usize) -> Result<Limits, Failure> {
        let policy: Policy = self.schedule_policy.parse().map_err(Failure::usage)?;
        Ok(Limits {
            context_tokens: Some(context_tokens),
            running,
            policy,
            most_passed: self.max_passed,
            step_tokens: self.chunked_prefill_size.map(|n| n as usize),
            keeps_prefixes: !self.no_prefix_cache,
            ..Limits::default()
        })
    }

    /// Whether copies on the host are files.
    pub fn has_files(&self) -> bool {
        self.host_cache_dir.is_some()
    }

    /// The engine with the host tier that is asked for.
    pub fn with_host_tier(&self, engine: Engine<Box<dyn Executor>>) -> Result<Engine<Box<dyn Executor>>, Failure> {
        let bytes = self.host_cache_gb * 1e9;
        if bytes < 1.0 {
            return Ok(engine);
        }
        let pages = engine.scheduler().kv().pages();
        let page: u64 = (0..pages.kinds()).map(|kind| pages.page_bytes(kind)).sum();
        if page as f64 > bytes {
            return Err(Failure::usage(format!(
                "R0118: `--host-cache-gb` {} is {bytes} bytes, and one page of every kind has {page}; raise it, or leave it out for no copies",
                self.host_cache_gb
            )));
        }
        let tier: Box<dyn HostTier> = match &self.host_cache_dir {
            None => Box::new(MemoryTier::new(bytes as u64)),
            Some(dir) => Box::new(FileTier::new(dir, bytes as u64).map_err(|e| {
                let dir = dir.display();
                Failure::output(format!("R0108: `--host-cache-dir` {dir}: {e}; name a folder that can be written"))
            })?),
        };
        Ok(engine.with_host_tier(tier))
    }
}

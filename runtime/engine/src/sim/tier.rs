//! A host tier whose copies take virtual time.

use super::Clock;
use crate::{HostPage, HostTier, TierError, Transfer};
use std::collections::HashMap;

/// The way between device and host: as fast in both directions, each on its own.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bytes a second, of those that the tier is handed.
    pub bytes_per_second: f64,
    /// What every copy takes besides.
    pub seconds: f64,
    /// How far copies to the host may be ahead of the link: so much of them waits where it costs nobody anything.
    pub ahead_seconds: f64,
}

/// Another tier behind a link.
#[derive(Debug)]
pub struct TimedTier<T> {
    inner: T,
    clock: Clock,
    link: Link,
    /// Reads under way: the bytes, and when they are there.
    reads: HashMap<(HostPage, usize), (Vec<u8>, u64)>,
    /// The copy to the host that has to wait, and when it may go.
    writing: Option<(HostPage, usize, u64)>,
    /// When the last layer of a page is on the host.
    written: HashMap<HostPage, u64>,
    free_at_ns: [u64; 2],
}

impl<T: HostTier> TimedTier<T> {
    /// `inner` behind a link.
    pub fn new(inner: T, clock: Clock, link: Link) -> Self {
        TimedTier {
            inner,
            clock,
            link,
            reads: HashMap::new(),
            writing: None,
            written: HashMap::new(),
            free_at_ns: [0; 2],
        }
    }

    /// When a copy of so many bytes that starts now is done; `way` is 0 to the host and 1 back.
    fn done_at(&mut self, way: usize, bytes: usize) -> u64 {
        let took = self.link.seconds + bytes as f64 / self.link.bytes_per_second.max(1.0);
        let Some(free) = self.free_at_ns.get_mut(way) else { return 0 };
        *free = (*free).max(self.clock.now_ns()) + (took * 1e9) as u64;
        *free
    }

    fn start_read(&mut self, page: HostPage, layer: usize) -> Result<(), TierError> {
        if !self.reads.contains_key(&(page, layer)) {
            let mut bytes = Vec::new();
            self.inner.read(page, layer, &mut bytes)?;
            let written = self.written.get(&page).copied().unwrap_or(0);
            let at = self.done_at(1, bytes.len()).max(written);
            self.reads.insert((page, layer), (bytes, at));
        }
        Ok(())
    }
}

impl<T: HostTier> HostTier for TimedTier<T> {
    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        let at = match self.writing {
            Some((p, l, at)) if (p, l) == (page, layer) => at,
            _ => self.done_at(0, bytes.len()),
        };
        if at > self.clock.now_ns() + (self.link.ahead_seconds * 1e9) as u64 {
            self.writing = Some((page, layer, at));
            return Ok(Transfer::Later);
        }
        self.writing = None;
        self.written.insert(page, at);
        self.inner.write(page, layer, bytes)
    }

    fn prefetch(&mut self, page: HostPage, layer: usize) -> bool {
        // What cannot be read is told when it is asked for.
        let _ = self.start_read(page, layer);
        true
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        self.start_read(page, layer)?;
        match self.reads.get(&(page, layer)) {
            Some((_, at)) if *at > self.clock.now_ns() => Ok(Transfer::Later),
            _ => {
                let (bytes, _) = self.reads.remove(&(page, layer)).unwrap_or_default();
                out.clear();
                out.extend_from_slice(&bytes);
                Ok(Transfer::Done)
            }
        }
    }

    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        self.start_read(page, layer)?;
        let (bytes, at) = self.reads.remove(&(page, layer)).unwrap_or_default();
        out.clear();
        out.extend_from_slice(&bytes);
        Ok(at)
    }

    fn forget(&mut self, page: HostPage) {
        self.reads.retain(|(p, _), _| *p != page);
        self.written.remove(&page);
        if self.writing.is_some_and(|(p, ..)| p == page) {
            self.writing = None;
        }
        self.inner.forget(page);
    }
}

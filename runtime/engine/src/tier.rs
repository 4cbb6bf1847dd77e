//! The host tier: where copies of cache pages stand outside the device, behind one trait.

use crate::HostPage;
use std::collections::HashMap;
use std::fmt::Debug;

/// What a tier says to a layer of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It is done.
    Done,
    /// Not yet; ask again with the same arguments.
    Later,
}

/// A copy that could not be written or read. Whoever needed it computes it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("E0311: a copy on the host was lost: {0}; its tokens are computed again")]
pub struct TierError(pub String);

/// Memory outside the device for copies of pages, layer by layer. The engine keeps the books; a tier only keeps bytes.
pub trait HostTier: Send + Debug {
    /// Bytes that copies may take.
    fn bytes(&self) -> u64;

    /// Keeps one layer of a page.
    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError>;

    /// A layer of a page will be read soon, behind those that were announced before. A tier that is slow starts now. False if it
    /// can take no more announcements now; this one is then made again.
    fn prefetch(&mut self, _page: HostPage, _layer: usize) -> bool {
        true
    }

    /// Gives one layer of a page, in place of what stands in `out`.
    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError>;

    /// The same of a layer that is needed now, waiting for it. Says when it was there, in nanoseconds of a simulated clock, and 0
    /// where time is real.
    fn read_now(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<u64, TierError> {
        while self.read(page, layer, out)? == Transfer::Later {
            std::thread::yield_now();
        }
        Ok(0)
    }

    /// Nobody will ask for this page again until it is written anew.
    fn forget(&mut self, page: HostPage);
}

/// Copies in this machine's memory.
#[derive(Debug, Default)]
pub struct MemoryTier {
    bytes: u64,
    pages: HashMap<HostPage, Vec<Vec<u8>>>,
}

impl MemoryTier {
    /// Room for so many bytes.
    pub fn new(bytes: u64) -> Self {
        MemoryTier { bytes, pages: HashMap::new() }
    }
}

impl HostTier for MemoryTier {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write(&mut self, page: HostPage, layer: usize, bytes: &[u8]) -> Result<Transfer, TierError> {
        let layers = self.pages.entry(page).or_default();
        if layers.len() <= layer {
            layers.resize(layer + 1, Vec::new());
        }
        if let Some(place) = layers.get_mut(layer) {
            place.clear();
            place.extend_from_slice(bytes);
        }
        Ok(Transfer::Done)
    }

    fn read(&mut self, page: HostPage, layer: usize, out: &mut Vec<u8>) -> Result<Transfer, TierError> {
        let found = self.pages.get(&page).and_then(|layers| layers.get(layer));
        let bytes = found.ok_or_else(|| TierError(format!("page {page} has no layer {layer}")))?;
        out.clear();
        out.extend_from_slice(bytes);
        Ok(Transfer::Done)
    }

    fn forget(&mut self, page: HostPage) {
        self.pages.remove(&page);
    }
}

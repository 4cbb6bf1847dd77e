//! Books of the host tier: which copies there are, which are wanted, and which may not go away now.

use super::tree::{HostPage, NodeId, Tree};
use super::{Kv, VirtualPage};
use std::collections::{HashMap, VecDeque};

/// A page that has to come from the host before its sequence can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub kind: usize,
    pub page: VirtualPage,
    pub host: HostPage,
}

/// A page on its way to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backup {
    pub node: NodeId,
    pub kind: usize,
    pub page: VirtualPage,
    pub host: HostPage,
    /// When the node was given its page.
    pub born: u64,
}

/// How full the host is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostUse {
    /// Bytes that may be used; 0 without a host tier.
    pub total_bytes: u64,
    /// Bytes that are.
    pub used_bytes: u64,
    /// Pages written since birth.
    pub backed_up_pages: u64,
    /// Pages read back since birth.
    pub loaded_pages: u64,
    /// Copies that went wrong, were given up or had no room, since birth.
    pub dropped_pages: u64,
}

/// Copies on the host.
#[derive(Debug, Default)]
pub(crate) struct Host {
    usage: HostUse,
    /// Kind and size of every copy, complete or under way.
    copies: HashMap<HostPage, u64>,
    /// Readers of a copy.
    locks: HashMap<HostPage, u32>,
    free: Vec<HostPage>,
    next: HostPage,
    wanted: VecDeque<(NodeId, usize)>,
    /// Copies that nobody finds any more and that go with their last reader.
    condemned: Vec<HostPage>,
    /// Copies whose memory on the host is to be given back.
    forgotten: Vec<HostPage>,
}

/// Most copies that wait to be made; the oldest are given up.
const MOST_WANTED: usize = 1 << 16;

impl Host {
    /// Copies may have so many bytes from now on.
    pub fn set_bytes(&mut self, bytes: u64) {
        self.usage.total_bytes = bytes;
    }

    pub fn usage(&self) -> HostUse {
        self.usage
    }

    pub fn is_on(&self) -> bool {
        self.usage.total_bytes > 0
    }

    /// A node's page should be copied.
    pub fn want(&mut self, tree: &Tree, node: NodeId, kind: usize) {
        if self.is_on() && tree.host(node, kind).is_none() {
            self.wanted.push_back((node, kind));
            if self.wanted.len() > MOST_WANTED {
                self.wanted.pop_front();
                self.usage.dropped_pages += 1;
            }
        }
    }

    /// Copies that wait to be made.
    pub fn backlog(&self) -> usize {
        self.wanted.len()
    }

    pub fn next_wanted(&mut self) -> Option<(NodeId, usize)> {
        self.wanted.pop_front()
    }

    /// A place for a copy, if it fits.
    pub fn reserve(&mut self, _kind: usize, bytes: u64) -> Option<HostPage> {
        if self.usage.used_bytes + bytes > self.usage.total_bytes {
            return None;
        }
        let page = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next
        });
        self.usage.used_bytes += bytes;
        self.copies.insert(page, bytes);
        Some(page)
    }

    pub fn lock(&mut self, page: HostPage) {
        *self.locks.entry(page).or_default() += 1;
    }

    /// A reader is done.
    pub fn unlock(&mut self, page: HostPage) {
        if let Some(n) = self.locks.get_mut(&page) {
            *n -= 1;
            if *n == 0 {
                self.locks.remove(&page);
                if let Some(at) = self.condemned.iter().position(|c| *c == page) {
                    self.condemned.swap_remove(at);
                    self.forget(&mut vec![page]);
                }
            }
        }
    }

    /// Copies that no node names any more, and that whoever lost them still holds: they stay until that is over, so that their
    /// numbers mean nothing else meanwhile.
    pub fn condemn(&mut self, pages: &mut Vec<HostPage>) {
        self.condemned.append(pages);
    }

    pub fn is_locked(&self, page: HostPage) -> bool {
        self.locks.contains_key(&page)
    }

    /// Counts pages that were copied or read.
    pub fn tally(&mut self, backed_up: u64, loaded: u64, dropped: u64) {
        self.usage.backed_up_pages += backed_up;
        self.usage.loaded_pages += loaded;
        self.usage.dropped_pages += dropped;
    }

    /// Copies that no node names any more.
    pub fn forget(&mut self, pages: &mut Vec<HostPage>) {
        for page in pages.drain(..) {
            if let Some(bytes) = self.copies.remove(&page) {
                self.usage.used_bytes -= bytes;
                self.free.push(page);
                self.forgotten.push(page);
            }
        }
    }

    /// Copies whose memory the tier can have back.
    pub fn take_forgotten(&mut self) -> Vec<HostPage> {
        std::mem::take(&mut self.forgotten)
    }

    /// What is wrong with the books, if anything.
    pub fn check(&self, named: impl Iterator<Item = HostPage>, backups: &[Backup]) -> Result<(), String> {
        let under_way = backups.iter().map(|b| b.host);
        let mut named: Vec<HostPage> = named.chain(under_way).chain(self.condemned.iter().copied()).collect();
        named.sort_unstable();
        let mut copies: Vec<HostPage> = self.copies.keys().copied().collect();
        copies.sort_unstable();
        if named != copies {
            return Err(format!("the host has copies {copies:?}, nodes, backups and readers name {named:?}"));
        }
        let bytes: u64 = self.copies.values().sum();
        if bytes != self.usage.used_bytes || bytes > self.usage.total_bytes {
            return Err(format!("copies have {bytes} bytes, {:?}", self.usage));
        }
        if let Some(page) = self.condemned.iter().find(|page| !self.locks.contains_key(page)) {
            return Err(format!("copy {page} is lost, and nobody reads it"));
        }
        match self.locks.keys().find(|page| !self.copies.contains_key(page)) {
            Some(page) => Err(format!("copy {page} is read and gone")),
            None => Ok(()),
        }
    }
}

impl Kv {
    /// Readers of copies, for checks.
    pub(crate) fn host_locks(&self) -> u32 {
        self.host.locks.values().sum()
    }
}

//! The cache of keys and values: pages of sequences, the prefix tree behind them, and the books of the host tier.
//!
//! ```text
//! ids.rs     sets of page ids
//! space.rs   physical pages: one budget for all kinds, or one pool each
//! pages.rs   virtual pages: who holds them, where they lie, what a step's tables say
//! tree.rs    what is kept of finished work, by prefix
//! host.rs    which copies the host has, and which are under way
//! ```

mod host;
mod ids;
mod pages;
mod space;
mod tree;

use crate::watch::Watch;
use crate::{ExecutorFacts, VirtualPage};
use std::collections::HashSet;
use std::sync::Arc;
use tree::{Found, NodeId, Tree};

pub use host::HostUse;
pub(crate) use host::{Backup, Host, Load};
pub use pages::{PageOp, Pages};
pub use tree::{HostPage, Namespace};

/// Where memory is short one of so many copies that wait is made between two steps.
const URGENT: usize = 8;

/// The pages of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageTable {
    /// Page of every run of positions from 0 on. Steps share it.
    pub pages: Arc<Vec<VirtualPage>>,
    /// By kind: windows are held from this page on.
    pub window_from: Vec<usize>,
}

/// A prefix that was found, and what taking it would cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefix {
    found: Found,
    /// Pages of the prefix that have to come from the host.
    pub from_host: usize,
    /// By kind: pages that have to be taken so that the prefix is whole on the device.
    pub takes: Vec<usize>,
    /// By kind: pages of the prefix that could be evicted now and cannot any more once it is taken.
    pub locks: Vec<usize>,
    /// The same of virtual pages.
    pub locks_ids: usize,
}

impl Prefix {
    /// Pages that need not be computed.
    pub fn pages(&self) -> usize {
        self.found.path.len()
    }

    /// Pages whose tokens are known, whether or not they can be continued from.
    pub fn whole_pages(&self) -> usize {
        self.found.whole
    }
}

/// Pages, tree and host books.
#[derive(Debug)]
pub struct Kv {
    pages: Pages,
    tree: Tree,
    host: Host,
    keeps_prefixes: bool,
    dropped: Vec<HostPage>,
    /// Pages by kind whose memory is bound and not filled yet: their content is on its way from the host.
    coming: HashSet<(usize, VirtualPage)>,
    /// How long evictions take.
    evictions: Watch,
}

impl Kv {
    /// A cache over the executor's memory.
    pub(crate) fn new(facts: &ExecutorFacts, limit_tokens: usize, keeps_prefixes: bool) -> Result<Self, String> {
        let pages = Pages::new(facts, limit_tokens)?;
        // Without memory there is nothing to keep.
        let keeps_prefixes = keeps_prefixes && pages.kinds() > 0;
        let tree = Tree::new(pages.kinds());
        let (host, dropped, coming, evictions) = Default::default();
        Ok(Kv { pages, tree, host, keeps_prefixes, dropped, coming, evictions })
    }

    /// Books of virtual and physical pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }

    /// What the host tier holds.
    pub fn host_use(&self) -> HostUse {
        self.host.usage()
    }

    pub(crate) fn host_mut(&mut self) -> &mut Host {
        &mut self.host
    }

    /// Pages that are kept of finished work and that nobody else holds.
    pub fn cached_pages(&self) -> usize {
        self.tree.evictable(0, false)
    }

    /// Pages of a kind that could be freed at once.
    pub fn evictable(&self, kind: usize) -> usize {
        self.tree.evictable(kind, self.pages.window(kind).is_some())
    }

    /// Pages evicted since birth.
    pub fn evicted_pages(&self) -> u64 {
        self.tree.evicted_pages
    }

    /// Tokens that fit: those of the kind that is fullest first.
    pub fn capacity_tokens(&self) -> usize {
        self.pages.ids().saturating_mul(self.pages.page_tokens())
    }

    /// Virtual pages that can be had, evicting what is only cached.
    pub fn free_pages(&self) -> usize {
        let free = self.pages.ids() - self.pages.held_ids();
        free + self.tree.evictable(0, false)
    }

    /// Virtual pages in all.
    pub fn total_pages(&self) -> usize {
        self.pages.ids()
    }

    /// The longest sequence that fits into empty memory, one position computed at a time.
    pub(crate) fn longest(&self, most: usize) -> usize {
        let fits = |tokens: usize| {
            let pages: Vec<usize> = (0..self.pages.kinds()).map(|k| self.pages.least_pages(k, tokens)).collect();
            self.pages.fits(&pages, tokens.div_ceil(self.pages.page_tokens()))
        };
        let (mut good, mut bad) = (0, most.saturating_add(1));
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fits(middle) { good = middle } else { bad = middle }
        }
        good
    }

    /// Whether `more` pages of each kind and so many virtual pages can be had, evicting all that is only cached but for
    /// what `prefix` would lock.
    pub(crate) fn has_room(&self, more: &[usize], ids: usize, prefix: &Prefix) -> bool {
        let locks = |k: usize| prefix.locks.get(k).copied().unwrap_or(0);
        let wanted: Vec<usize> = (0..self.pages.kinds())
            .map(|k| {
                (self.pages.used(k) + more.get(k).copied().unwrap_or(0) + locks(k)).saturating_sub(self.evictable(k))
            })
            .collect();
        let wanted_ids = (self.pages.held_ids() + ids + prefix.locks_ids).saturating_sub(self.tree.evictable(0, false));
        self.pages.fits(&wanted, wanted_ids)
    }

    /// Looks a prompt up; at most `most` of its tokens may come from the cache.
    pub(crate) fn find(&self, namespace: &Namespace, tokens: &[u32], most: usize) -> Prefix {
        let kinds = self.pages.kinds();
        let mut prefix = Prefix { takes: vec![0; kinds], locks: vec![0; kinds], ..Prefix::default() };
        if !self.keeps_prefixes {
            return prefix;
        }
        self.tree.find(namespace, tokens, most, &self.pages, &mut prefix.found);
        let n = prefix.pages();
        let firsts: Vec<usize> = (0..kinds).map(|k| self.first_kept(k, n * self.pages.page_tokens())).collect();
        for (i, id) in prefix.found.path.iter().enumerate() {
            let page = self.tree.page(*id);
            prefix.from_host += usize::from(page.is_none());
            prefix.locks_ids += usize::from(page.is_some_and(|p| self.pages.holders(p) == 1));
            for (k, first) in firsts.iter().enumerate() {
                let is_window = self.pages.window(k).is_some();
                if is_window && i < *first {
                    continue;
                }
                let there = if is_window { self.tree.has_window(*id, k) } else { page.is_some() };
                let alone = page.is_some_and(
                    |p| if is_window { self.pages.window_holders(k, p) } else { self.pages.holders(p) } == 1,
                );
                prefix.takes[k] += usize::from(!there);
                prefix.locks[k] += usize::from(there && alone);
            }
        }
        prefix
    }

    /// The first page whose window a sequence keeps when its next position is `position`: as far back as its last whole
    /// page can be continued from.
    pub(crate) fn first_kept(&self, kind: usize, position: usize) -> usize {
        let page_tokens = self.pages.page_tokens();
        self.pages.first_page(kind, position / page_tokens * page_tokens)
    }

    /// Takes a prefix: its pages are held from now on. What has to come from the host stands in `loads`, and its memory is
    /// taken. `None` if that memory is short; nothing is held then.
    pub(crate) fn take(&mut self, prefix: &Prefix, loads: &mut Vec<Load>) -> Option<PageTable> {
        let n = prefix.pages();
        let kinds = self.pages.kinds();
        let boundary = n * self.pages.page_tokens();
        let window_from: Vec<usize> = (0..kinds).map(|k| self.first_kept(k, boundary)).collect();
        let mut table = PageTable { pages: Arc::new(Vec::with_capacity(n)), window_from: vec![usize::MAX; kinds] };
        let path = prefix.found.path.clone();
        let mut is_whole = true;
        // What is there is locked first, so that making room for the rest cannot take it away.
        let held: Vec<Option<VirtualPage>> = path.iter().map(|id| self.tree.page(*id)).collect();
        for (i, page) in held.iter().enumerate().filter_map(|(i, p)| p.map(|p| (i, p))) {
            self.pages.hold(page);
            for k in (0..kinds).filter(|k| i >= window_from[*k] && self.tree.has_window(path[i], *k)) {
                self.pages.hold_window(k, page);
            }
            self.tree.touched(page, &self.pages);
        }
        for (i, id) in path.iter().enumerate() {
            let page = match held[i] {
                Some(page) => page,
                None => match self.mint(&window_from, i) {
                    Some(page) => {
                        let full = (0..kinds).filter(|k| self.pages.window(*k).is_none() || i >= window_from[*k]);
                        loads.extend(
                            full.filter_map(|kind| Some(Load { kind, page, host: self.tree.host(*id, kind)? })),
                        );
                        page
                    }
                    None => {
                        is_whole = false;
                        break;
                    }
                },
            };
            Arc::make_mut(&mut table.pages).push(page);
            for k in 0..kinds {
                if self.keeps(&window_from, k, i) && held[i].is_some() && !self.tree.has_window(*id, k) {
                    if !self.mint_window(k, page) {
                        is_whole = false;
                        break;
                    }
                    loads.extend(self.tree.host(*id, k).map(|host| Load { kind: k, page, host }));
                }
            }
            if !is_whole {
                break;
            }
        }
        if !is_whole {
            self.undo_take(&table, &held, &path, &window_from, loads);
            return None;
        }
        table.window_from = window_from;
        self.tree.use_path(&path, &self.pages);
        for load in loads.iter() {
            self.host.lock(load.host);
            self.coming.insert((load.kind, load.page));
        }
        Some(table)
    }

    /// A page has come from the host, or nobody waits for it any more.
    pub(crate) fn load_over(&mut self, load: &Load) {
        self.host.unlock(load.host);
        self.coming.remove(&(load.kind, load.page));
    }

    /// A prefix could not be had from its copies: nobody finds them any more, and what is computed in their place is copied
    /// anew.
    pub(crate) fn lose_copies(&mut self, loads: &[Load]) {
        let lost: HashSet<HostPage> = loads.iter().map(|load| load.host).collect();
        self.tree.lose_copies(&lost, &self.pages, &mut self.dropped);
        self.host.condemn(&mut self.dropped);
    }

    /// Gives back what a prefix that cannot be had whole had taken already.
    fn undo_take(
        &mut self,
        table: &PageTable,
        held: &[Option<VirtualPage>],
        path: &[NodeId],
        window_from: &[usize],
        loads: &mut Vec<Load>,
    ) {
        for (i, page) in held.iter().enumerate().filter_map(|(i, p)| p.map(|p| (i, p))) {
            for k in 0..self.pages.kinds() {
                let loaded = loads.iter().any(|l| l.page == page && l.kind == k);
                if self.keeps(window_from, k, i) && (loaded || self.tree.has_window(path[i], k)) {
                    self.pages.release_window(k, page);
                }
            }
            self.pages.release(page);
            self.tree.touched(page, &self.pages);
        }
        for (i, page) in table.pages.iter().enumerate().filter(|(i, _)| held[*i].is_none()) {
            for k in 0..self.pages.kinds() {
                if self.keeps(window_from, k, i) {
                    self.pages.release_window(k, *page);
                }
            }
            self.pages.release(*page);
        }
        loads.clear();
    }

    /// Whether a table whose windows begin there keeps the window of page `i`.
    fn keeps(&self, window_from: &[usize], kind: usize, i: usize) -> bool {
        self.pages.window(kind).is_some() && window_from.get(kind).is_some_and(|from| i >= *from)
    }

    /// A new page at place `i` of a sequence, with the windows that are kept there. Evicts what is in its way.
    fn mint(&mut self, window_from: &[usize], i: usize) -> Option<VirtualPage> {
        let windows = (0..self.pages.kinds()).any(|k| self.keeps(window_from, k, i));
        loop {
            match self.pages.mint(windows) {
                Ok(page) => {
                    for k in 0..self.pages.kinds() {
                        if windows && self.pages.window(k).is_some() && !self.keeps(window_from, k, i) {
                            self.pages.release_window(k, page);
                        }
                    }
                    return Some(page);
                }
                Err(kind) => {
                    if !self.evict(kind) {
                        return None;
                    }
                }
            }
        }
    }

    fn mint_window(&mut self, kind: usize, page: VirtualPage) -> bool {
        if self.pages.physical(kind, page) >= 0 {
            return false;
        }
        loop {
            if self.pages.mint_window(kind, page) {
                return true;
            }
            if !self.evict(kind) {
                return false;
            }
        }
    }

    /// Evicts one thing that may make room for a page of a kind.
    fn evict(&mut self, kind: usize) -> bool {
        let is_apart = kind < self.pages.kinds() && !self.pages.is_shared();
        let begun = self.evictions.now();
        let is_gone = self.tree.evict(is_apart.then_some(kind), &mut self.pages);
        self.evictions.over(begun.filter(|_| is_gone));
        is_gone
    }

    /// How long evictions take, for reports.
    pub(crate) fn evictions_mut(&mut self) -> &mut Watch {
        &mut self.evictions
    }

    /// Makes sure that positions `from .. to` of a sequence can be written, of which those before `done` are for certain:
    /// windows that `done` has left are released, a shared page that `from` is in becomes the sequence's own, missing pages are taken. Returns the end of what can be
    /// written, which is `from` if nothing can.
    pub(crate) fn extend(&mut self, table: &mut PageTable, done: usize, from: usize, to: usize) -> usize {
        let page_tokens = self.pages.page_tokens();
        self.advance(table, done);
        if !from.is_multiple_of(page_tokens)
            && from / page_tokens < table.pages.len()
            && !self.own(table, from / page_tokens)
        {
            return from;
        }
        while table.pages.len() * page_tokens < to {
            let i = table.pages.len();
            match self.mint(&table.window_from, i) {
                Some(page) => Arc::make_mut(&mut table.pages).push(page),
                None => return (i * page_tokens).max(from),
            }
        }
        to
    }

    /// Releases the windows that a sequence whose next position is `position` has left behind.
    fn advance(&mut self, table: &mut PageTable, position: usize) {
        for k in 0..table.window_from.len() {
            if self.pages.window(k).is_none() {
                continue;
            }
            let first = self.first_kept(k, position);
            for i in table.window_from[k]..first.min(table.pages.len()) {
                let page = table.pages[i];
                self.pages.release_window(k, page);
                self.tree.touched(page, &self.pages);
            }
            table.window_from[k] = table.window_from[k].max(first);
        }
    }

    /// Makes page `i` of a sequence its own before it is written.
    fn own(&mut self, table: &mut PageTable, i: usize) -> bool {
        let Some(page) = table.pages.get(i).copied() else { return false };
        if self.pages.holders(page) == 1 {
            return true;
        }
        let holds = |k: usize| i >= table.window_from[k];
        let copy = loop {
            match self.pages.copy(page, holds) {
                Ok(copy) => break copy,
                Err(kind) => {
                    if !self.evict(kind) {
                        return false;
                    }
                }
            }
        };
        self.let_go(table, i);
        Arc::make_mut(&mut table.pages)[i] = copy;
        true
    }

    /// Releases page `i` of a sequence, its windows first.
    fn let_go(&mut self, table: &PageTable, i: usize) {
        let Some(page) = table.pages.get(i).copied() else { return };
        for k in 0..table.window_from.len() {
            if self.pages.window(k).is_some() && i >= table.window_from[k] {
                self.pages.release_window(k, page);
            }
        }
        self.pages.release(page);
        self.tree.touched(page, &self.pages);
    }

    /// Releases everything that a sequence holds.
    pub(crate) fn release(&mut self, table: &mut PageTable) {
        for i in (0..table.pages.len()).rev() {
            self.let_go(table, i);
        }
        *table = PageTable::default();
    }

    /// Another sequence's view of the first `tokens` positions. `None` if their windows are gone.
    pub(crate) fn fork(&mut self, table: &PageTable, tokens: usize) -> Option<PageTable> {
        let n = tokens.div_ceil(self.pages.page_tokens());
        let window_from: Vec<usize> = (0..self.pages.kinds()).map(|k| self.first_kept(k, tokens)).collect();
        if n > table.pages.len() || window_from.iter().zip(&table.window_from).any(|(mine, theirs)| mine < theirs) {
            return None;
        }
        let pages: Vec<VirtualPage> = table.pages[..n].to_vec();
        for (i, page) in pages.iter().enumerate() {
            self.pages.hold(*page);
            for k in 0..self.pages.kinds() {
                if self.keeps(&window_from, k, i) {
                    self.pages.hold_window(k, *page);
                }
            }
            self.tree.touched(*page, &self.pages);
        }
        Some(PageTable { pages: Arc::new(pages), window_from })
    }

    /// Keeps the whole pages among the first `tokens.len()` positions of a sequence, and the windows that a continuation
    /// from there needs, or the same tokens once more. Where the tree has a page of the same tokens, the sequence takes
    /// that one over and gives its own back.
    pub(crate) fn insert(&mut self, namespace: &Namespace, tokens: &[u32], table: &mut PageTable) {
        let page_tokens = self.pages.page_tokens();
        let n = (tokens.len() / page_tokens).min(table.pages.len());
        if !self.keeps_prefixes || n == 0 {
            return;
        }
        // The same prompt once more needs its last token computed, so its boundary is the one before that.
        let window_from = |k: usize| match self.first_kept(k, (n * page_tokens).min(tokens.len() - 1)) {
            again if table.window_from[k] <= again => again,
            _ => self.first_kept(k, n * page_tokens),
        };
        let window_from: Vec<usize> = (0..self.pages.kinds()).map(window_from).collect();
        let mut at: Option<NodeId> = None;
        for (i, run) in tokens.chunks_exact(page_tokens).take(n).enumerate() {
            let id = self.tree.enter(namespace, at, run, table.pages[i], &mut self.pages);
            at = Some(id);
            if self.tree.page(id) != Some(table.pages[i]) && !self.share(id, table, i) {
                return;
            }
            for (k, from) in window_from.iter().enumerate() {
                let is_window = self.pages.window(k).is_some();
                // The windows of a boundary are worth keeping only if they reach it from where they begin.
                let reaches = table.window_from[k] <= *from;
                if is_window && reaches && i >= *from {
                    self.tree.keep_window(id, k, &mut self.pages);
                }
                if !is_window || self.tree.has_window(id, k) {
                    self.host.want(&self.tree, id, k);
                }
            }
            self.tree.touched(table.pages[i], &self.pages);
        }
    }

    /// Lets a sequence use the tree's page of the same tokens instead of its own. A window that the tree has lost
    /// becomes the sequence's. False, and nothing has changed, where that window has other holders too, or where the
    /// tree's page is still on its way from the host for somebody else.
    fn share(&mut self, id: NodeId, table: &mut PageTable, i: usize) -> bool {
        let (Some(shared), Some(own)) = (self.tree.page(id), table.pages.get(i).copied()) else { return false };
        let held = |k: usize| i >= table.window_from[k];
        let windows: Vec<usize> =
            (0..self.pages.kinds()).filter(|k| self.pages.window(*k).is_some() && held(*k)).collect();
        if (0..self.pages.kinds()).any(|k| self.coming.contains(&(k, shared))) {
            return false;
        }
        let moves = |k: &&usize| self.pages.physical(**k, shared) < 0;
        if windows.iter().filter(moves).any(|k| self.pages.window_holders(*k, own) != 1) {
            return false;
        }
        self.pages.hold(shared);
        for k in windows {
            if self.pages.physical(k, shared) >= 0 {
                self.pages.hold_window(k, shared);
                self.pages.release_window(k, own);
            } else {
                self.pages.rebind_window(k, own, shared);
            }
        }
        self.pages.release(own);
        self.tree.touched(shared, &self.pages);
        Arc::make_mut(&mut table.pages)[i] = shared;
        true
    }

    /// Forgets everything that is only cached.
    pub(crate) fn clear(&mut self) {
        self.tree.clear(&mut self.pages, &mut self.dropped);
        self.host.forget(&mut self.dropped);
    }

    /// What is cached from now on was computed with other weights; what was cached before is never found again.
    pub(crate) fn next_weights(&mut self) {
        self.clear();
        self.tree.next_weights();
    }

    /// Copies to the host that are to be made without delay: where memory is about to run out, a part of those that wait, so
    /// that all of them are made within a few steps and before their pages go.
    pub(crate) fn urgent_backups(&self) -> usize {
        let backlog = self.host.backlog();
        let (used, total) = self.pages.bytes();
        let each: u64 = (0..self.pages.kinds()).map(|k| self.pages.page_bytes(k)).sum();
        let is_short = total - used < 2 * each * backlog as u64;
        if is_short { backlog.div_ceil(URGENT) } else { 0 }
    }

    /// The next copy to the host that is to be made, if any. It holds nothing: if its page is evicted, it is given up.
    pub(crate) fn next_backup(&mut self) -> Option<Backup> {
        loop {
            let (node, kind) = self.host.next_wanted()?;
            let Some(page) = self.tree.page(node).filter(|p| self.pages.physical(kind, *p) >= 0) else { continue };
            let is_window = self.pages.window(kind).is_some();
            if is_window && !self.tree.has_window(node, kind) || self.tree.host(node, kind).is_some() {
                continue;
            }
            let bytes = self.pages.page_bytes(kind);
            let host = loop {
                if let Some(host) = self.host.reserve(kind, bytes) {
                    break Some(host);
                }
                let host = &self.host;
                if !self.tree.evict_host(&self.pages, &mut self.dropped, |h| host.is_locked(h)) {
                    break None;
                }
                self.host.forget(&mut self.dropped);
            };
            let Some(host) = host else { continue };
            let born = self.tree.born(node).unwrap_or(0);
            return Some(Backup { node, kind, page, host, born });
        }
    }

    /// A copy to the host has ended, well or not.
    pub(crate) fn backed_up(&mut self, backup: &Backup, good: bool) {
        let refused = if good && self.is_current(backup) {
            self.tree.set_host(backup.node, backup.kind, backup.host, &self.pages)
        } else {
            Some(backup.host)
        };
        self.dropped.extend(refused);
        self.host.forget(&mut self.dropped);
    }

    /// Whether the page of a copy under way still holds what it held when the copy began.
    pub(crate) fn is_current(&self, backup: &Backup) -> bool {
        let is_window = self.pages.window(backup.kind).is_some();
        self.tree.born(backup.node) == Some(backup.born)
            && (!is_window || self.tree.has_window(backup.node, backup.kind))
    }

    /// Checks every book against what holders say: the tree and the given tables; `backups` are copies under way.
    pub(crate) fn check<'t>(
        &self,
        tables: impl Iterator<Item = &'t PageTable>,
        backups: &[Backup],
    ) -> Result<(), String> {
        let mut holders = vec![0; self.pages.ids() + 1];
        let mut windows = vec![vec![0; self.pages.ids() + 1]; self.pages.kinds()];
        self.tree.count(&mut holders, &mut windows);
        for table in tables {
            for (i, page) in table.pages.iter().enumerate() {
                holders[*page as usize] += 1;
                for (k, held) in windows.iter_mut().enumerate() {
                    held[*page as usize] += u32::from(self.keeps(&table.window_from, k, i));
                }
            }
        }
        self.pages.check(&holders, &windows)?;
        self.tree.check(&self.pages)?;
        self.host.check(self.tree.host_pages(), backups)
    }
}

#[cfg(test)]
mod tests;

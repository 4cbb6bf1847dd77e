//! Virtual pages: who holds them, and where each KV kind keeps them.
//!
//! A virtual page stands for one run of positions. It lives while somebody holds it. Kinds that keep everything have memory
//! for it that long; a kind with a window has memory for it while somebody holds its *window* as well. Both counts are
//! the only locks there are: a page that a sequence holds beside the prefix tree cannot be evicted.
//!
//! What has to happen to memory before the next step (zeroed pages, moved and copied ones) is written down in order.

use super::space::Space;
use crate::{ExecutorFacts, PhysicalPage, VirtualPage};
use std::sync::Arc;

/// What an executor does to its cache memory between two steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOp {
    /// A page that is handed out is all zeros.
    Zero {
        /// KV kind.
        kind: usize,
        /// The page.
        page: PhysicalPage,
    },
    /// A page is copied over another.
    Copy {
        /// KV kind.
        kind: usize,
        /// Source.
        from: PhysicalPage,
        /// Destination.
        to: PhysicalPage,
    },
}

/// One KV kind's books.
#[derive(Clone, Debug)]
struct Kind {
    window: Option<usize>,
    /// Physical page by virtual page.
    physical: Vec<PhysicalPage>,
    /// Virtual page by physical page, 0 for none.
    owner: Vec<VirtualPage>,
    /// Holders of the window by virtual page; unused where there is no window.
    holders: Vec<u32>,
    tables: Tables,
}

/// Most changes that a table which is not in use remembers; with more it is written anew.
const REMEMBERED: usize = 1024;

/// A translation table that steps may hold.
#[derive(Clone, Debug)]
struct Table {
    entries: Arc<[PhysicalPage]>,
    /// Virtual pages whose entries are old.
    old: Vec<VirtualPage>,
    /// Whether any entry may be.
    all_old: bool,
}

/// As many tables as there are steps under way and one more, each brought up to date when it is next used.
#[derive(Clone, Debug, Default)]
struct Tables {
    copies: Vec<Table>,
    current: usize,
}

impl Tables {
    fn touch(&mut self, page: VirtualPage) {
        for table in &mut self.copies {
            if table.old.len() == REMEMBERED {
                table.all_old = true;
                table.old.clear();
            }
            table.old.push(page);
        }
    }

    /// The table as it is now. One that a step still holds stays as it was planned with.
    fn table(&mut self, physical: &[PhysicalPage]) -> Arc<[PhysicalPage]> {
        let is_new = |t: &&Table| t.old.is_empty() && !t.all_old;
        if let Some(table) = self.copies.get(self.current).filter(is_new) {
            return table.entries.clone();
        }
        for (at, table) in self.copies.iter_mut().enumerate() {
            let Some(entries) = Arc::get_mut(&mut table.entries) else { continue };
            if std::mem::take(&mut table.all_old) {
                entries.copy_from_slice(physical);
            }
            for page in table.old.drain(..) {
                if let (Some(entry), Some(now)) = (entries.get_mut(page as usize), physical.get(page as usize)) {
                    *entry = *now;
                }
            }
            self.current = at;
            return table.entries.clone();
        }
        let entries: Arc<[PhysicalPage]> = physical.into();
        self.current = self.copies.len();
        self.copies.push(Table { entries: entries.clone(), old: Vec::with_capacity(REMEMBERED), all_old: false });
        entries
    }
}

/// Virtual pages and the memory behind them.
#[derive(Clone, Debug)]
pub struct Pages {
    page_tokens: usize,
    kinds: Vec<Kind>,
    space: Space,
    /// Holders by virtual page; 0 for pages that do not exist.
    holders: Vec<u32>,
    free_ids: Vec<VirtualPage>,
    ids: usize,
    ops: Vec<PageOp>,
    /// Pages that moved to make room, since birth.
    moved: u64,
}

impl Pages {
    /// Pages over the executor's memory. A model without a cache gets pages of one token without memory behind them, as
    /// many as `limit_tokens`.
    pub fn new(facts: &ExecutorFacts, limit_tokens: usize) -> Result<Self, String> {
        let page_tokens = facts.kv.first().map_or(1, |kind| kind.page_tokens as usize);
        if let Some(odd) = facts.kv.iter().find(|kind| kind.page_tokens as usize != page_tokens || page_tokens == 0) {
            return Err(format!(
                "E0301: KV kind `{}` has pages of {} tokens and `{}` of {page_tokens}; one page table serves all kinds, compile them with one page size above 0",
                odd.kind,
                odd.page_tokens,
                facts.kv.first().map_or("", |k| &k.kind),
            ));
        }
        if facts.kv.len() != facts.pool_pages.len() {
            return Err(format!(
                "E0302: the executor has {} KV kinds and {} pools; every kind needs one",
                facts.kv.len(),
                facts.pool_pages.len()
            ));
        }
        let sizes: Vec<(u64, usize)> =
            facts.kv.iter().zip(&facts.pool_pages).map(|(k, n)| (k.page_bytes(), *n)).collect();
        let space = Space::new(&sizes, facts.shared_bytes);
        // A kind that keeps everything bounds how many pages there are; windows alone do not.
        let whole = (0..sizes.len()).filter(|k| facts.kv[*k].window.is_none()).map(|k| space.capacity(k)).min();
        let most = VirtualPage::MAX as usize / 2;
        let all: usize = (0..sizes.len()).map(|k| space.capacity(k)).fold(0, usize::saturating_add);
        let ids = whole.unwrap_or(limit_tokens.div_ceil(page_tokens.max(1)).saturating_add(all)).min(most);
        let kind = |(k, layout): (usize, &ir::KvLayout)| {
            let window = layout.window.map(|w| usize::try_from(w).unwrap_or(usize::MAX).max(1));
            let physical = vec![-1; ids + 1];
            let end = space.capacity(k) + if facts.shared_bytes.is_some() { sizes[k].1 } else { 0 };
            let owner = vec![0; end.max(facts.pool_pages[k]) + 1];
            Kind { window, physical, owner, holders: vec![0; ids + 1], tables: Tables::default() }
        };
        let kinds = facts.kv.iter().enumerate().map(kind).collect();
        let free_ids = (1..=ids as VirtualPage).rev().collect();
        Ok(Pages { page_tokens, kinds, space, holders: vec![0; ids + 1], free_ids, ids, ops: Vec::new(), moved: 0 })
    }

    /// Positions in a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// KV kinds.
    pub fn kinds(&self) -> usize {
        self.kinds.len()
    }

    /// Positions that a query of this kind sees, its own included; `None` for all.
    pub fn window(&self, kind: usize) -> Option<usize> {
        self.kinds.get(kind).and_then(|k| k.window)
    }

    /// The first page of a sequence that a query at `position` of this kind may read.
    pub fn first_page(&self, kind: usize, position: usize) -> usize {
        self.window(kind).map_or(0, |w| (position + 1).saturating_sub(w) / self.page_tokens)
    }

    /// Most pages of a kind that one position alone needs to be computed in a sequence of so many positions.
    pub fn least_pages(&self, kind: usize, tokens: usize) -> usize {
        let all = tokens.div_ceil(self.page_tokens);
        self.window(kind).map_or(all, |w| all.min((w - 1).div_ceil(self.page_tokens) + 1))
    }

    /// Virtual pages that there can be, whatever the memory.
    pub fn ids(&self) -> usize {
        self.ids
    }

    /// Virtual pages that somebody holds.
    pub fn held_ids(&self) -> usize {
        self.ids - self.free_ids.len()
    }

    /// Pages of a kind with memory.
    pub fn used(&self, kind: usize) -> usize {
        self.space.used(kind)
    }

    /// Pages of a kind that fit if no other kind had any.
    pub fn capacity(&self, kind: usize) -> usize {
        self.space.capacity(kind)
    }

    /// Bytes of cache memory that are taken, and in all.
    pub fn bytes(&self) -> (u64, u64) {
        (self.space.used_bytes(), self.space.total_bytes())
    }

    /// Bytes of one page of a kind.
    pub fn page_bytes(&self, kind: usize) -> u64 {
        self.space.page_bytes(kind)
    }

    /// Whether all kinds draw from one memory.
    pub fn is_shared(&self) -> bool {
        self.space.is_shared()
    }

    /// Pages that moved to make room for others, since birth.
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether so many pages of each kind and so many virtual pages can be held at once.
    pub fn fits(&self, pages: &[usize], ids: usize) -> bool {
        ids <= self.ids && self.space.fits(pages)
    }

    /// Holders of a page.
    pub fn holders(&self, page: VirtualPage) -> u32 {
        self.holders.get(page as usize).copied().unwrap_or(0)
    }

    /// Holders of a page's window of a kind.
    pub fn window_holders(&self, kind: usize, page: VirtualPage) -> u32 {
        self.kinds.get(kind).and_then(|k| k.holders.get(page as usize)).copied().unwrap_or(0)
    }

    /// Where a kind keeps a page; -1 for nowhere.
    pub fn physical(&self, kind: usize, page: VirtualPage) -> PhysicalPage {
        self.kinds.get(kind).and_then(|k| k.physical.get(page as usize)).copied().unwrap_or(-1)
    }

    /// A new page with memory of every kind that keeps everything, and of the windows asked for, held once. `Err` names a
    /// kind whose memory is short; nothing is taken then. An error of `kinds()` means that virtual ids are short.
    pub fn mint(&mut self, windows: bool) -> Result<VirtualPage, usize> {
        let kinds = self.kinds.len();
        let Some(page) = self.free_ids.pop() else { return Err(kinds) };
        for kind in 0..kinds {
            let is_window = self.window(kind).is_some();
            if (!is_window || windows) && !self.bind(kind, page) {
                (0..kind).for_each(|k| self.unbind(k, page));
                for k in 0..kind {
                    self.count_window(k, page, |_| 0);
                }
                self.free_ids.push(page);
                return Err(kind);
            }
            if is_window && windows {
                self.count_window(kind, page, |_| 1);
            }
        }
        self.count(page, |_| 1);
        Ok(page)
    }

    /// Gives a page that has none memory of a window kind, held once. False if memory is short.
    pub fn mint_window(&mut self, kind: usize, page: VirtualPage) -> bool {
        let bound = self.physical(kind, page) < 0 && self.bind(kind, page);
        if bound {
            self.count_window(kind, page, |_| 1);
        }
        bound
    }

    /// One more holder.
    pub fn hold(&mut self, page: VirtualPage) {
        self.count(page, |n| n + 1);
    }

    /// One more holder of a window that has memory.
    pub fn hold_window(&mut self, kind: usize, page: VirtualPage) {
        self.count_window(kind, page, |n| n + 1);
    }

    /// One holder less; the last one's page is gone. Windows must have been released before.
    pub fn release(&mut self, page: VirtualPage) {
        if self.count(page, |n| n.saturating_sub(1)) == Some(0) {
            for kind in 0..self.kinds.len() {
                self.count_window(kind, page, |_| 0);
                self.unbind(kind, page);
            }
            self.free_ids.push(page);
        }
    }

    /// One holder of a window less; after the last its memory is free.
    pub fn release_window(&mut self, kind: usize, page: VirtualPage) {
        if self.window_holders(kind, page) == 0 {
            return;
        }
        if self.count_window(kind, page, |n| n.saturating_sub(1)) == Some(0) {
            self.unbind(kind, page);
        }
    }

    /// Gives the memory of a window, with its one holder, to another page that has none. False if either does not hold.
    pub fn rebind_window(&mut self, kind: usize, from: VirtualPage, to: VirtualPage) -> bool {
        let physical = self.physical(kind, from);
        if self.window_holders(kind, from) != 1 || self.physical(kind, to) >= 0 || physical < 0 {
            return false;
        }
        self.set(kind, from, -1);
        self.set(kind, to, physical);
        if let Some(owner) = self.kinds.get_mut(kind).and_then(|k| k.owner.get_mut(physical as usize)) {
            *owner = to;
        }
        self.count_window(kind, from, |_| 0);
        self.count_window(kind, to, |_| 1);
        true
    }

    /// A new page with a copy of another's content, for a holder that is about to write. The windows that `page` has are
    /// copied and held once where `windows` says so.
    pub fn copy(&mut self, page: VirtualPage, windows: impl Fn(usize) -> bool) -> Result<VirtualPage, usize> {
        let copy = self.mint(true)?;
        for kind in 0..self.kinds.len() {
            let from = self.physical(kind, page);
            if self.window(kind).is_some() && (from < 0 || !windows(kind)) {
                self.release_window(kind, copy);
            } else {
                self.ops.push(PageOp::Copy { kind, from, to: self.physical(kind, copy) });
            }
        }
        Ok(copy)
    }

    /// Translation of a kind as it is now.
    pub fn translation(&mut self, kind: usize) -> Option<Arc<[PhysicalPage]>> {
        let kind = self.kinds.get_mut(kind)?;
        Some(kind.tables.table(&kind.physical))
    }

    /// Most tables of a kind that there have been at once.
    #[cfg(test)]
    pub(super) fn table_copies(&self) -> usize {
        self.kinds.iter().map(|k| k.tables.copies.len()).max().unwrap_or(0)
    }

    /// What has to happen to memory before the next step, in order.
    pub fn take_ops(&mut self, into: &mut Vec<PageOp>) {
        into.append(&mut self.ops);
    }

    fn count(&mut self, page: VirtualPage, change: impl Fn(u32) -> u32) -> Option<u32> {
        let holders = self.holders.get_mut(page as usize)?;
        *holders = change(*holders);
        Some(*holders)
    }

    fn count_window(&mut self, kind: usize, page: VirtualPage, change: impl Fn(u32) -> u32) -> Option<u32> {
        let holders = self.kinds.get_mut(kind)?.holders.get_mut(page as usize)?;
        *holders = change(*holders);
        Some(*holders)
    }

    fn bind(&mut self, kind: usize, page: VirtualPage) -> bool {
        let physical = loop {
            if let Some(physical) = self.space.take(kind) {
                break physical;
            }
            let Some(moved) = self.space.squeeze(kind) else { return false };
            let Some(other) = self.kinds.get_mut(moved.kind) else { return false };
            let owner = std::mem::take(&mut other.owner[moved.from]);
            other.owner[moved.to] = owner;
            let (from, to) = (moved.from as PhysicalPage, moved.to as PhysicalPage);
            self.set(moved.kind, owner, to);
            self.ops.push(PageOp::Copy { kind: moved.kind, from, to });
            self.moved += 1;
        };
        self.set(kind, page, physical as PhysicalPage);
        if let Some(owner) = self.kinds.get_mut(kind).and_then(|k| k.owner.get_mut(physical)) {
            *owner = page;
        }
        self.ops.push(PageOp::Zero { kind, page: physical as PhysicalPage });
        true
    }

    fn unbind(&mut self, kind: usize, page: VirtualPage) {
        let physical = self.physical(kind, page);
        if let Ok(at) = usize::try_from(physical) {
            self.space.give(kind, at);
            self.set(kind, page, -1);
            if let Some(owner) = self.kinds.get_mut(kind).and_then(|k| k.owner.get_mut(at)) {
                *owner = 0;
            }
        }
    }

    fn set(&mut self, kind: usize, page: VirtualPage, physical: PhysicalPage) {
        let Some(kind) = self.kinds.get_mut(kind) else { return };
        if let Some(entry) = kind.physical.get_mut(page as usize) {
            *entry = physical;
            kind.tables.touch(page);
        }
    }

    /// What is wrong with the books, if anything. `holders` and `windows` are what the holders say themselves: by
    /// virtual page, and by kind and virtual page.
    pub fn check(&self, holders: &[u32], windows: &[Vec<u32>]) -> Result<(), String> {
        self.space.check()?;
        let mut used = vec![0; self.kinds.len()];
        for page in 1..=self.ids {
            let (says, is) = (self.holders[page], holders.get(page).copied().unwrap_or(0));
            if says != is {
                return Err(format!("page {page} counts {says} holders, {is} hold it"));
            }
            for (k, kind) in self.kinds.iter().enumerate() {
                let held = windows.get(k).and_then(|w| w.get(page)).copied().unwrap_or(0);
                if kind.window.is_some() && held != kind.holders[page] {
                    return Err(format!(
                        "page {page} counts {} holders of kind {k}, {held} hold it",
                        kind.holders[page]
                    ));
                }
                let should = if kind.window.is_some() { held > 0 } else { is > 0 };
                let physical = kind.physical[page];
                if should != (physical >= 0) {
                    return Err(format!(
                        "page {page} of kind {k} is at {physical} with {is} holders, {held} of its window"
                    ));
                }
                if physical == 0 || physical > 0 && kind.owner[physical as usize] as usize != page {
                    return Err(format!("memory {physical} of kind {k} has another owner than page {page}"));
                }
                used[k] += usize::from(physical > 0);
            }
        }
        for (k, used) in used.iter().enumerate() {
            if *used != self.space.used(k) {
                return Err(format!("kind {k} has {used} pages with an owner and {} taken", self.space.used(k)));
            }
        }
        let existing = holders.iter().skip(1).filter(|n| **n > 0).count();
        if existing != self.held_ids() {
            return Err(format!("{existing} pages are held and {} ids are out", self.held_ids()));
        }
        Ok(())
    }
}

//! The page pool: which pages of cache memory are free and which sequence holds the others.
//!
//! Virtual and physical ids are the same here, for every KV kind at once: a page is a run of positions, and a kind with
//! a window keeps the pages that its window has left until the sequence ends. Page 0 is the executor's sink and
//! is never handed out.

use crate::{ExecutorFacts, PhysicalPage, VirtualPage};
use std::sync::Arc;

/// Free pages and the translation that steps carry.
#[derive(Clone, Debug)]
pub struct PagePool {
    page_tokens: usize,
    free: Vec<VirtualPage>,
    pages: usize,
    translation: Vec<Arc<[PhysicalPage]>>,
}

impl PagePool {
    /// A pool over the executor's memory. The smallest kind decides how many pages there are; a model without a cache
    /// gets pages of one token without memory behind them, as many as `limit_tokens`.
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
        let smallest = facts.pool_pages.iter().copied().min().unwrap_or(limit_tokens.saturating_add(1));
        let pages = smallest.min(PhysicalPage::MAX as usize).saturating_sub(1);
        let free = (1..=pages as VirtualPage).rev().collect();
        let translation = facts.kv.iter().map(|_| vec![-1; pages + 1].into()).collect();
        Ok(PagePool { page_tokens, free, pages, translation })
    }

    /// Positions that fit when every page is free.
    pub fn capacity_tokens(&self) -> usize {
        self.pages.saturating_mul(self.page_tokens)
    }

    /// Pages that nobody holds.
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Pages in all, the sink not counted.
    pub fn total_pages(&self) -> usize {
        self.pages
    }

    /// Takes the pages for that many positions, or nothing if they are not free.
    pub fn take(&mut self, tokens: usize) -> Option<Vec<VirtualPage>> {
        let rest = self.free.len().checked_sub(tokens.div_ceil(self.page_tokens))?;
        let mut pages = self.free.split_off(rest);
        pages.reverse();
        self.translate(&pages, |page| page as PhysicalPage);
        Some(pages)
    }

    /// Gives pages back.
    pub fn give_back(&mut self, pages: Vec<VirtualPage>) {
        self.translate(&pages, |_| -1);
        self.free.extend(pages.into_iter().rev());
    }

    /// Virtual → physical, per KV kind; -1 for pages that nobody holds.
    pub fn translation(&self) -> &[Arc<[PhysicalPage]>] {
        &self.translation
    }

    /// Changes entries; a table that a step still holds is copied, so the step keeps what it was planned with.
    fn translate(&mut self, pages: &[VirtualPage], to: impl Fn(VirtualPage) -> PhysicalPage) {
        if pages.is_empty() {
            return;
        }
        for table in &mut self.translation {
            let table = Arc::make_mut(table);
            for &page in pages {
                if let Some(entry) = table.get_mut(page as usize) {
                    *entry = to(page);
                }
            }
        }
    }
}

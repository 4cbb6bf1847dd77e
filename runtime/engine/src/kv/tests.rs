//! The cache without a scheduler, in memory so short that prefixes often cannot be had whole.

use super::*;
use crate::toy::facts as toy_facts;
use ir::KvLayout;

/// Numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// One sequence: its tokens, how many of them are computed, what it holds and what has to come for it.
struct Holder {
    tokens: Vec<u32>,
    done: usize,
    table: PageTable,
    loads: Vec<Load>,
}

struct Driver {
    kv: Kv,
    draw: Draw,
    holders: Vec<Holder>,
    backups: Vec<Backup>,
    /// Prefixes that were taken, came from the host in parts, and could not be had.
    taken: [usize; 3],
}

/// Memory of the kinds `windows`, so many pages each; several kinds have pools apart.
fn memory(page_tokens: usize, windows: &[Option<u64>], pages: &[usize]) -> ExecutorFacts {
    let toy = toy_facts(10, page_tokens, 1, 8);
    let kv = windows.iter().map(|window| KvLayout { window: *window, ..toy.kv[0].clone() }).collect();
    ExecutorFacts { kv, pool_pages: pages.iter().map(|n| n + 1).collect(), ..toy }
}

impl Driver {
    fn new(seed: u64) -> Driver {
        let mut draw = Draw(seed);
        let page_tokens = 1 + draw.below(3);
        let mut windows = vec![None, Some(1 + draw.below(9) as u64), Some(1 + draw.below(6) as u64)];
        windows.truncate(2 + draw.below(2));
        if draw.below(4) == 0 {
            windows.remove(0);
        }
        let pages: Vec<usize> = windows.iter().map(|_| 3 + draw.below(9)).collect();
        let mut kv = Kv::new(&memory(page_tokens, &windows, &pages), 24, true).unwrap();
        // Some hosts have no room for all, some for none.
        kv.host_mut().set_bytes([0, 200, 100_000, 100_000][draw.below(4)]);
        Driver { kv, draw, holders: Vec::new(), backups: Vec::new(), taken: [0; 3] }
    }

    fn begin(&mut self) {
        let (talk, len) = (self.draw.below(2), 2 + self.draw.below(22));
        let tokens: Vec<u32> = (0..len).map(|i| if i < 9 { i as u32 } else { (i * (talk + 1)) as u32 }).collect();
        let prefix = self.kv.find(&Namespace::default(), &tokens, len - 1);
        let mut loads = Vec::new();
        match self.kv.take(&prefix, &mut loads) {
            Some(table) => {
                self.taken[0] += 1;
                self.taken[1] += usize::from(!loads.is_empty());
                let done = prefix.pages() * self.kv.pages().page_tokens();
                self.holders.push(Holder { tokens, done, table, loads });
            }
            None => {
                assert!(loads.is_empty());
                self.taken[2] += 1;
            }
        }
    }

    fn act(&mut self) {
        let (at, what) = (self.draw.below(self.holders.len()), self.draw.below(20));
        match what {
            0..4 => return self.begin(),
            4 | 5 => (0..6).for_each(|_| self.backups.extend(self.kv.next_backup())),
            6 | 7 => {
                for backup in std::mem::take(&mut self.backups) {
                    let good = self.draw.below(5) > 0;
                    self.kv.backed_up(&backup, good);
                }
            }
            8 | 9 => {
                self.kv.evict(self.draw.below(self.kv.pages.kinds() + 1));
            }
            _ => {}
        }
        let Some(holder) = self.holders.get_mut(at) else { return };
        match what {
            // What has come is over, and what does not come is given up.
            10 if self.draw.below(3) > 0 => holder.loads.drain(..).for_each(|load| self.kv.load_over(&load)),
            10 => {
                let lost = std::mem::take(&mut holder.loads);
                self.kv.lose_copies(&lost);
                assert!(lost.iter().all(|load| self.kv.tree.host_pages().all(|host| host != load.host)));
                lost.iter().for_each(|load| self.kv.load_over(load));
            }
            11 | 12 => {
                let mut holder = self.holders.swap_remove(at);
                holder.loads.iter().for_each(|load| self.kv.load_over(load));
                self.kv.release(&mut holder.table);
                assert!(holder.table.pages.is_empty());
            }
            13..16 if holder.loads.is_empty() => {
                let to = (holder.done + 1 + self.draw.below(8)).min(holder.tokens.len());
                let end = self.kv.extend(&mut holder.table, holder.done, holder.done, to);
                assert!(end >= holder.done && end <= to);
                holder.done = end;
            }
            16..19 if holder.loads.is_empty() => {
                let tokens = holder.tokens[..holder.done].to_vec();
                self.kv.insert(&Namespace::default(), &tokens, &mut holder.table);
            }
            19 if holder.loads.is_empty() => {
                let (tokens, done) = (holder.tokens.clone(), holder.done);
                if let Some(table) = self.kv.fork(&holder.table, done) {
                    self.holders.push(Holder { tokens, done, table, loads: Vec::new() });
                }
            }
            _ => {}
        }
    }

    fn check(&self) -> Result<(), String> {
        self.kv.check(self.holders.iter().map(|h| &h.table), &self.backups)?;
        let coming: HashSet<(usize, VirtualPage)> =
            self.holders.iter().flat_map(|h| &h.loads).map(|l| (l.kind, l.page)).collect();
        let locks: usize = self.holders.iter().map(|h| h.loads.len()).sum();
        if (locks, &coming) != (self.kv.host_locks() as usize, &self.kv.coming) {
            return Err(format!("{locks} pages are to come, {} are locked", self.kv.host_locks()));
        }
        for h in &self.holders {
            for k in 0..self.kv.pages.kinds() {
                let first = self.kv.first_kept(k, h.done);
                let lost = |i: &usize| self.kv.pages.physical(k, h.table.pages[*i]) <= 0;
                let whole = h.done.div_ceil(self.kv.pages.page_tokens());
                if let Some(i) = (first..whole).find(lost) {
                    return Err(format!("page {i} of kind {k} is gone at {}", h.done));
                }
            }
        }
        Ok(())
    }
}

/// Whatever cannot be had, the books hold; and what is held is all given back.
#[test]
fn short_memory_keeps_its_books() {
    let mut sum = [0; 3];
    for seed in 0..600 {
        let mut driver = Driver::new(seed);
        for action in 0..250 {
            driver.act();
            assert_eq!(driver.check(), Ok(()), "seed {seed}, action {action}");
        }
        for mut holder in std::mem::take(&mut driver.holders) {
            holder.loads.iter().for_each(|load| driver.kv.load_over(load));
            driver.kv.release(&mut holder.table);
        }
        for backup in std::mem::take(&mut driver.backups) {
            driver.kv.backed_up(&backup, true);
        }
        driver.kv.clear();
        assert_eq!(driver.check(), Ok(()), "seed {seed}");
        let (held, (bytes, _), host) = (driver.kv.pages.held_ids(), driver.kv.pages.bytes(), driver.kv.host_use());
        assert_eq!((held, bytes, host.used_bytes), (0, 0, 0), "seed {seed}");
        sum.iter_mut().zip(driver.taken).for_each(|(sum, n)| *sum += n);
    }
    assert!(sum.iter().all(|n| *n > 50), "not all of it was met: {sum:?}");
}

/// Tables that steps hold stay as they were, and the next one is up to date however much has changed.
#[test]
fn tables_follow_many_changes() {
    let mut pages = Pages::new(&memory(2, &[None, Some(4)], &[3000, 3000]), 10_000).unwrap();
    let mut draw = Draw(5);
    let (mut held, mut minted): (Vec<Arc<[crate::PhysicalPage]>>, Vec<VirtualPage>) = (Vec::new(), Vec::new());
    for round in 0..60 {
        for _ in 0..[3, 500, 1500, 2500][round % 4] {
            if minted.len() < 2 || draw.below(5) > 1 {
                minted.extend(pages.mint(draw.below(2) == 0).ok());
            } else {
                let page = minted.swap_remove(draw.below(minted.len()));
                pages.release_window(1, page);
                pages.release(page);
            }
        }
        for kind in 0..2 {
            let table = pages.translation(kind).unwrap();
            let now: Vec<_> = (0..table.len()).map(|page| pages.physical(kind, page as VirtualPage)).collect();
            assert_eq!(table.to_vec(), now, "round {round}");
            held.push(table);
        }
        held.drain(..held.len().saturating_sub([2, 4, 0][round % 3]));
        let copies = pages.table_copies();
        assert!(copies <= 6, "round {round}: {copies} tables");
    }
}

/// How long a sequence may be, to the token.
#[test]
fn the_longest_sequence_is_exact() {
    for (page_tokens, windows, pages, longest) in [
        (4, vec![None, Some(6)], vec![5, 9], 20),
        // The last position needs three pages of the window; without them nothing is longer than they are.
        (4, vec![None, Some(6)], vec![9, 2], 8),
        // A window alone needs its pages and nothing more, so that ids are what ends: 24 tokens' and one for each page.
        (4, vec![Some(6)], vec![3], 24 + 12),
    ] {
        let kv = Kv::new(&memory(page_tokens, &windows, &pages), 23, true).unwrap();
        assert_eq!(kv.longest(1000), longest, "{windows:?} of {pages:?}");
        assert_eq!(kv.longest(7), 7);
    }
}

/// Where no kind keeps everything, ids can be what is short.
#[test]
fn ids_are_room_too() {
    // Seven ids, three pages of a window that sees three positions.
    let mut kv = Kv::new(&memory(1, &[Some(3)], &[3]), 4, true).unwrap();
    kv.host_mut().set_bytes(1000);
    let (space, tokens) = (Namespace::default(), [1, 2, 3]);
    let mut table = kv.take(&Prefix::default(), &mut Vec::new()).unwrap();
    assert_eq!(kv.extend(&mut table, 0, 0, 2), 2);
    kv.insert(&space, &tokens[..2], &mut table);
    while let Some(backup) = kv.next_backup() {
        kv.backed_up(&backup, true);
    }
    kv.release(&mut table);
    // Two ids are cached; a prefix that takes them cannot evict them.
    let prefix = kv.find(&space, &tokens, 2);
    assert_eq!((prefix.pages(), prefix.locks_ids, prefix.from_host), (2, 2, 0));
    assert!(kv.has_room(&[0], 5, &prefix) && !kv.has_room(&[0], 6, &prefix));
    assert!(kv.has_room(&[0], 7, &Prefix::default()) && !kv.has_room(&[0], 8, &Prefix::default()));
    // Without their pages they come from the host, each with an id.
    while kv.evict(kv.pages.kinds()) {}
    let prefix = kv.find(&space, &tokens, 2);
    assert_eq!((prefix.pages(), prefix.locks_ids, prefix.from_host), (2, 0, 2));
}

/// What is handed out is zeroed, and so are windows by themselves.
#[test]
fn pages_are_zeroed_when_they_are_handed_out() {
    let mut pages = Pages::new(&memory(2, &[None, Some(4)], &[4, 4]), 8).unwrap();
    let page = pages.mint(false).unwrap();
    let mut ops = Vec::new();
    pages.take_ops(&mut ops);
    assert_eq!(ops, [PageOp::Zero { kind: 0, page: pages.physical(0, page) }]);
    assert!(pages.mint_window(1, page));
    pages.take_ops(&mut ops);
    assert_eq!(ops[1..], [PageOp::Zero { kind: 1, page: pages.physical(1, page) }]);
}

#[test]
fn kinds_of_two_page_sizes_are_refused_and_one_memory_is_for_two() {
    let mut odd = memory(2, &[None, Some(4)], &[4, 4]);
    odd.kv[1].page_tokens = 3;
    assert!(Pages::new(&odd, 8).is_err_and(|e| e.starts_with("E0301")));
    let none = memory(0, &[None], &[4]);
    assert!(Pages::new(&none, 8).is_err_and(|e| e.starts_with("E0301")));
    let mut short = memory(2, &[None, Some(4)], &[4, 4]);
    short.pool_pages.pop();
    assert!(Pages::new(&short, 8).is_err_and(|e| e.starts_with("E0302")));
    let mut alone = memory(2, &[None], &[4]);
    alone.shared_bytes = Some(1000);
    assert!(!Pages::new(&alone, 8).unwrap().is_shared());
}

/// The host's books: what is wanted has an end, and nothing is where there is no host.
#[test]
fn what_is_wanted_has_an_end() {
    let (mut host, tree) = (Host::default(), Tree::new(1));
    host.want(&tree, 1, 0);
    assert_eq!(host.next_wanted(), None);
    host.set_bytes(1);
    let most = 1 << 16;
    for node in 0..most + 2 {
        host.want(&tree, node, 0);
    }
    assert_eq!((host.next_wanted(), host.usage().dropped_pages), (Some((2, 0)), 2));
    host.tally(1, 2, 3);
    let usage = host.usage();
    assert_eq!((usage.backed_up_pages, usage.loaded_pages, usage.dropped_pages), (1, 2, 5));
    assert_eq!(std::iter::from_fn(|| host.next_wanted()).count(), most as usize - 1);
}

/// Where pools lie apart, what goes is of the pool that is short: windows as long as any is free, and no page for them.
#[test]
fn pools_apart_are_evicted_apart() {
    let mut kv = Kv::new(&memory(1, &[None, Some(2)], &[8, 8]), 24, true).unwrap();
    let mut table = kv.take(&Prefix::default(), &mut Vec::new()).unwrap();
    (0..6).for_each(|at| assert_eq!(kv.extend(&mut table, at, at, at + 1), at + 1));
    kv.insert(&Namespace::default(), &[0, 1, 2, 3, 4, 5], &mut table);
    kv.release(&mut table);
    assert!(kv.evict(1));
    while kv.evict(1) {}
    let left = kv.cached_pages();
    assert!((1..6).contains(&left), "{left}");
    assert!(kv.evict(0));
    assert_eq!(kv.cached_pages(), left - 1);
}

/// Places on the host serve again, so that their numbers do not grow for ever.
#[test]
fn places_on_the_host_are_used_again() {
    let mut kv = Kv::new(&memory(1, &[None], &[8]), 24, true).unwrap();
    kv.host_mut().set_bytes(100);
    let page = kv.host_mut().reserve(0, 60).unwrap();
    assert_eq!(kv.host_mut().reserve(0, 60), None);
    kv.host_mut().forget(&mut vec![page]);
    assert_eq!(kv.host_mut().reserve(0, 60), Some(page));
}

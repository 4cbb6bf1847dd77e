//! Prefixes on their way from the host: layer by layer, in the order in which a step comes to them.
//!
//! ```text
//!   link   l0 l1 l2 l3 l4 l5 l6 l7          the pages of a prefix, one layer after the other
//!   step            s0 s1 s2 s3 s4 s5 s6 s7 each layer of a step that begins with half of them there
//! ```
//!
//! A request joins a step once what is left will come while that step runs, as far as the layers that came tell. What does
//! not come whole costs the request its prefix and nobody else anything.

use crate::kv::Load;
use crate::{Arrivals, HostTier, PhysicalPage, Put};

/// How far the pages of a prefix are, in the order of layers and in each of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Place among the layers of all kinds; those before it are complete.
    pub place: usize,
    /// Place among the prefix's pages.
    pub at: usize,
}

impl Cursor {
    /// The next page of the next layer, if there is one; moves to it.
    pub fn next(&mut self, loads: &[Load], order: &[(usize, usize)]) -> Option<(Load, usize)> {
        loop {
            let (kind, layer) = *order.get(self.place)?;
            let rest = loads.get(self.at..).unwrap_or_default();
            match rest.iter().position(|load| load.kind == kind) {
                Some(skipped) => {
                    self.at += skipped;
                    return loads.get(self.at).map(|load| (*load, layer));
                }
                None => *self = Cursor { place: self.place + 1, at: 0 },
            }
        }
    }

    /// That page is done.
    pub fn pass(&mut self) {
        self.at += 1;
    }
}

/// What becomes of a prefix on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Its request waits for more of it.
    #[default]
    Waits,
    /// Its request may have rows in the next step, which waits for the rest layer by layer.
    Joins,
    /// It did not come whole although a step has rows behind it.
    Lost,
}

/// Layers of all kinds in the order in which a step comes to them: by their number in the model.
pub(crate) fn order_of(kv: &[ir::KvLayout]) -> Vec<(usize, usize)> {
    let of_kind = |(kind, layout): (usize, &ir::KvLayout)| {
        layout.layers.iter().enumerate().map(move |(at, layer)| (*layer, kind, at)).collect::<Vec<_>>()
    };
    let mut all: Vec<(usize, usize, usize)> = kv.iter().enumerate().flat_map(of_kind).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, kind, at)| (kind, at)).collect()
}

/// Whether what is left of a prefix will come while one more step runs, as so many of its layers came while others did.
pub(crate) fn comes_in_time(here: usize, layers: usize, steps: u64) -> bool {
    let left = layers.saturating_sub(here) as u64;
    here > 0 && left.saturating_mul(steps.saturating_add(1)) <= here as u64
}

/// Tells a tier what will be read, as much as it takes; true if that was all.
pub(crate) fn announce(
    tier: &mut dyn HostTier,
    order: &[(usize, usize)],
    loads: &[Load],
    announced: &mut Cursor,
) -> bool {
    while let Some((load, layer)) = announced.next(loads, order) {
        if !tier.prefetch(load.host, layer) {
            return false;
        }
        announced.pass();
    }
    true
}

/// A request's part of what a step waits for.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Where its sequence stands among those that run.
    pub at: usize,
    pub loads: Vec<Load>,
    /// Where the device has those pages.
    pub pages: Vec<PhysicalPage>,
    /// What had come before the step began.
    pub came: Cursor,
    pub announced: Cursor,
    pub is_lost: bool,
}

/// What a step waits for while it runs.
pub(crate) struct Coming<'a> {
    tier: &'a mut dyn HostTier,
    order: &'a [(usize, usize)],
    bytes: &'a mut Vec<u8>,
    expected: Vec<Expected>,
    /// By place in the order: whether the executor has had the layer.
    taken: Vec<bool>,
}

impl<'a> Coming<'a> {
    pub fn new(
        tier: &'a mut dyn HostTier,
        order: &'a [(usize, usize)],
        bytes: &'a mut Vec<u8>,
        expected: Vec<Expected>,
    ) -> Self {
        Coming { tier, order, bytes, expected, taken: vec![false; order.len()] }
    }

    /// What came of each request's part: one whose layers were not all taken is lost.
    pub fn over(mut self) -> Vec<Expected> {
        for one in &mut self.expected {
            one.is_lost |= self.taken.iter().copied().skip(one.came.place).any(|taken| !taken);
        }
        self.expected
    }
}

impl Arrivals for Coming<'_> {
    fn order(&self) -> &[(usize, usize)] {
        self.order
    }

    fn take(&mut self, kind: usize, layer: usize, put: &mut Put<'_>) -> u64 {
        let Some(place) = self.order.iter().position(|of| *of == (kind, layer)) else { return 0 };
        if std::mem::replace(&mut self.taken[place], true) {
            return 0;
        }
        for one in &mut self.expected {
            if !announce(self.tier, self.order, &one.loads, &mut one.announced) {
                break;
            }
        }
        let mut there_ns = 0;
        for one in self.expected.iter_mut().filter(|one| !one.is_lost && one.came.place <= place) {
            let from = if one.came.place == place { one.came.at } else { 0 };
            for (load, page) in one.loads.iter().zip(&one.pages).skip(from).filter(|(load, _)| load.kind == kind) {
                match self.tier.read_now(load.host, layer, self.bytes) {
                    Ok(at_ns) if put(*page, self.bytes).is_ok() => there_ns = there_ns.max(at_ns),
                    _ => {
                        one.is_lost = true;
                        break;
                    }
                }
            }
        }
        there_ns
    }
}

#[cfg(test)]
mod tests;

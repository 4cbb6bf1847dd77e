//! Pages between the device and the host tier, a few layers between two steps.
//!
//! Copies to the host are made of what the tree keeps, one page at a time; prefixes on their way back come layer by
//! layer, and their request runs when the last one is there, or will be when its step needs it. A copy that goes wrong costs its tokens, never a request.

use crate::arrivals::{Coming, announce, order_of};
use crate::kv::{Backup, Load};
use crate::watch::Watch;
use crate::{Executor, HostTier, RequestId, Scheduler, Shares, Step, StepError, Ticket, TierError, Transfer};

/// Layers that move between two steps: to the host, as long as they are not many bytes and memory is not about to run out, and
/// back for each request that waits for them. The pages of a long prompt must be out before others need their memory.
const LAYERS_OUT: usize = 256;
const BYTES_OUT: usize = 8 << 20;
const LAYERS_BACK: usize = 1024;
/// Copies to the host under way at once.
const BACKUPS: usize = 4;

/// The host tier with what is under way.
#[derive(Debug)]
pub(crate) struct Transfers {
    tier: Box<dyn HostTier>,
    /// Layers per KV kind, and those of all kinds in the order in which a step comes to them.
    layers: Vec<usize>,
    order: Vec<(usize, usize)>,
    backups: Vec<(Backup, usize)>,
    bytes: Vec<u8>,
    /// Requests whose prefix is on its way back, and since when.
    coming: Vec<(RequestId, Option<u64>)>,
    /// How long prefixes take that come back whole.
    loads: Watch,
}

/// What a transfer came to.
enum Outcome {
    Done,
    Later,
    Lost,
}

impl Transfers {
    pub fn new(tier: Box<dyn HostTier>, scheduler: &mut Scheduler) -> Self {
        scheduler.kv_mut().host_mut().set_bytes(tier.bytes());
        let layers = scheduler.facts().kv.iter().map(|kind| kind.layers.len()).collect();
        let order = order_of(&scheduler.facts().kv);
        let (backups, bytes, coming, loads) = Default::default();
        Transfers { tier, layers, order, backups, bytes, coming, loads }
    }

    /// How long prefixes take that come back whole, for reports.
    pub fn loads_mut(&mut self) -> &mut Watch {
        &mut self.loads
    }

    /// Copies under way to the host.
    pub fn backups(&self) -> Vec<Backup> {
        self.backups.iter().map(|(backup, _)| *backup).collect()
    }

    /// Moves some layers. True if anything moved or is still to be moved.
    pub fn advance<E: Executor>(&mut self, scheduler: &mut Scheduler, executor: &mut E) -> bool {
        let back = self.load(scheduler, executor);
        let out = self.back_up(scheduler, executor);
        self.forget(scheduler);
        back || out
    }

    /// Tells the tier which pages nobody needs any more.
    fn forget(&mut self, scheduler: &mut Scheduler) {
        for page in scheduler.kv_mut().host_mut().take_forgotten() {
            self.tier.forget(page);
        }
    }

    fn load<E: Executor>(&mut self, scheduler: &mut Scheduler, executor: &mut E) -> bool {
        let mut ends: Vec<(usize, bool)> = Vec::new();
        let waiting: Vec<(usize, RequestId)> = scheduler.loading().map(|(at, s)| (at, s.id)).collect();
        // Those that were given up come no more.
        self.coming.retain(|(id, _)| waiting.iter().any(|(_, other)| id == other));
        for (at, id) in &waiting {
            if !self.coming.iter().any(|(other, _)| other == id) {
                self.coming.push((*id, self.loads.now()));
            }
            match self.load_some(scheduler, executor, *at) {
                Outcome::Done => ends.push((*at, true)),
                Outcome::Lost => ends.push((*at, false)),
                Outcome::Later if executor.takes_arrivals() => scheduler.may_join(*at, self.order.len()),
                Outcome::Later => {}
            }
        }
        // From the last on, so that the places of those before do not move.
        for (at, is_good) in ends.into_iter().rev() {
            self.count(scheduler, at, is_good);
            scheduler.loaded(at, is_good);
        }
        !waiting.is_empty()
    }

    /// Brings some layers of a request's prefix: whether that was all, or there is more.
    fn load_some<E: Executor>(&mut self, scheduler: &mut Scheduler, executor: &mut E, at: usize) -> Outcome {
        for _ in 0..LAYERS_BACK {
            let Some(sequence) = scheduler.loading_at(at) else { return Outcome::Later };
            announce(&mut *self.tier, &self.order, &sequence.loads, &mut sequence.announced);
            let Some((load, layer)) = sequence.came.next(&sequence.loads, &self.order) else { return Outcome::Done };
            match self.load_layer(scheduler, executor, load, layer) {
                Outcome::Done => {}
                other => return other,
            }
            if let Some(sequence) = scheduler.loading_at(at) {
                sequence.came.pass();
            }
        }
        Outcome::Later
    }

    /// Books a prefix that has come whole, or is lost.
    fn count(&mut self, scheduler: &mut Scheduler, at: usize, is_good: bool) {
        let Some(sequence) = scheduler.loading_at(at) else { return };
        let (id, pages) = (sequence.id, sequence.loads.len() as u64);
        let (loaded, lost) = if is_good { (pages, 0) } else { (0, 1) };
        scheduler.kv_mut().host_mut().tally(0, loaded, lost);
        if let Some(place) = self.coming.iter().position(|(other, _)| *other == id) {
            let (_, begun) = self.coming.swap_remove(place);
            self.loads.over(begun.filter(|_| is_good));
        }
    }

    /// Submits a step that waits for layers while it runs.
    pub fn submit<E: Executor>(
        &mut self,
        scheduler: &mut Scheduler,
        executor: &mut E,
        step: Step,
        shares: &Shares,
    ) -> Result<Ticket, StepError> {
        let expected = scheduler.expected(shares);
        let mut coming = Coming::new(&mut *self.tier, &self.order, &mut self.bytes, expected);
        let ticket = executor.submit_with(step, &mut coming)?;
        for one in coming.over() {
            self.count(scheduler, one.at, !one.is_lost);
            scheduler.arrived(one.at, !one.is_lost);
        }
        Ok(ticket)
    }

    fn load_layer<E: Executor>(
        &mut self,
        scheduler: &Scheduler,
        executor: &mut E,
        load: Load,
        layer: usize,
    ) -> Outcome {
        let to = scheduler.kv().pages().physical(load.kind, load.page);
        match self.tier.read(load.host, layer, &mut self.bytes) {
            Ok(Transfer::Later) => Outcome::Later,
            Ok(Transfer::Done) => match executor.write_layer(load.kind, layer, to, &self.bytes) {
                Ok(()) => Outcome::Done,
                Err(_) => Outcome::Lost,
            },
            Err(_) => Outcome::Lost,
        }
    }

    fn back_up<E: Executor>(&mut self, scheduler: &mut Scheduler, executor: &mut E) -> bool {
        let (mut layers, mut bytes, mut pages) = (0, 0, 0);
        let mut any = false;
        let urgent = scheduler.kv().urgent_backups();
        while pages < urgent || layers < LAYERS_OUT && bytes < BYTES_OUT {
            if self.backups.len() < BACKUPS
                && let Some(backup) = scheduler.kv_mut().next_backup()
            {
                self.backups.push((backup, 0));
                // Its place may have been another's until now; a tier told of that later would lose what it gets first.
                self.forget(scheduler);
            }
            let Some((backup, layer)) = self.backups.first().copied() else { break };
            any = true;
            self.bytes.clear();
            match self.save_layer(scheduler, executor, backup, layer) {
                Outcome::Later => break,
                Outcome::Lost => {
                    self.end_backup(scheduler, false);
                    pages += 1;
                }
                Outcome::Done if layer + 1 >= self.layers.get(backup.kind).copied().unwrap_or(0) => {
                    self.end_backup(scheduler, true);
                    pages += 1;
                }
                Outcome::Done => {
                    if let Some((_, done)) = self.backups.first_mut() {
                        *done += 1;
                    }
                }
            }
            layers += 1;
            bytes += self.bytes.len();
        }
        any
    }

    fn save_layer<E: Executor>(
        &mut self,
        scheduler: &Scheduler,
        executor: &mut E,
        backup: Backup,
        layer: usize,
    ) -> Outcome {
        if !scheduler.kv().is_current(&backup) {
            return Outcome::Lost;
        }
        if self.layers.get(backup.kind).copied().unwrap_or(0) == 0 {
            return Outcome::Done;
        }
        let from = scheduler.kv().pages().physical(backup.kind, backup.page);
        let read: Result<(), StepError> = executor.read_layer(backup.kind, layer, from, &mut self.bytes);
        if read.is_err() {
            return Outcome::Lost;
        }
        match self.tier.write(backup.host, layer, &self.bytes) {
            Ok(Transfer::Done) => Outcome::Done,
            Ok(Transfer::Later) => Outcome::Later,
            Err(TierError(_)) => Outcome::Lost,
        }
    }

    fn end_backup(&mut self, scheduler: &mut Scheduler, is_good: bool) {
        let (backup, _) = self.backups.remove(0);
        scheduler.kv_mut().backed_up(&backup, is_good);
        scheduler.kv_mut().host_mut().tally(u64::from(is_good), 0, u64::from(!is_good));
    }
}

//! The ranks of a mesh: which device each runs on, and where they leave numbers for each other.
//!
//! ```text
//! letterbox of a rank, for one group:   block 0                     block 1 …   counters, by block and rank   turns, by block
//!                                       ├ even turn: slot of rank 0, 1, …
//!                                       └ odd turn:  slot of rank 0, 1, …
//! ```

use super::driver::{Argument, BROUGHT_WORDS, Device, Memory, PEERS_WORDS};
use super::walk::{Counts, Loaded};
use artifact::{DeviceCode, Param};
use ir::Mesh;
use std::collections::BTreeMap;

/// Most ranks of a group, as the templates have it.
pub const MOST_RANKS: usize = 8;

/// Where the ranks of an artifact run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Each on a device of its own.
    Apart,
    /// All on the first device, one beside the other: for tests of what they exchange.
    Together,
    /// This rank alone, with the memory of all others on its own device: it starts what a rank starts and moves what a rank moves, but hears itself
    /// from every place.
    Alone(u64),
}

impl Ranks {
    /// Which ranks run.
    pub fn of(self, mesh: &Mesh) -> Vec<u64> {
        match self {
            Ranks::Alone(rank) => vec![rank],
            _ => (0..mesh.ranks().max(1)).collect(),
        }
    }

    /// The device of each rank that runs.
    pub(super) fn devices(self, mesh: &Mesh) -> Result<Vec<Device>, String> {
        let ranks = self.of(mesh);
        if let Ranks::Alone(rank) = self
            && rank >= mesh.ranks().max(1)
        {
            return Err(format!("rank {rank} is to run, {mesh} has ranks 0 to {}", mesh.ranks().max(1) - 1));
        }
        if self == Ranks::Apart && ranks.len() > 1 && Device::count() < ranks.len() {
            let (found, needed) = (Device::count(), ranks.len());
            return Err(format!(
                "the artifact is compiled for {needed} ranks ({mesh}), there are {found} devices; compile it for a smaller mesh"
            ));
        }
        let number = |i: usize| if self == Ranks::Apart { i } else { 0 };
        let devices = (0..ranks.len()).map(|i| Device::open(number(i))).collect::<Result<Vec<_>, _>>()?;
        for (a, b) in devices.iter().flat_map(|a| devices.iter().map(move |b| (a, b))) {
            a.sees(b)?;
        }
        Ok(devices)
    }
}

/// What a group's exchanges need: bytes of a slot, and blocks.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    slot: usize,
    blocks: usize,
}

/// Where other ranks of a group leave numbers for one, in one memory.
struct Letterbox {
    memory: Memory,
    counters: usize,
    turns: usize,
}

/// Letterboxes of a rank by the mesh axes that their groups span.
#[derive(Default)]
pub struct Letterboxes(BTreeMap<Vec<String>, (Needs, Letterbox)>);

impl Letterboxes {
    /// Those that kernels of the code need.
    pub fn new(device: &Device, code: &DeviceCode, mesh: &Mesh) -> Result<Letterboxes, String> {
        let starts = code.entries.iter().flatten().flat_map(|g| &g.regions).flat_map(|r| &r.starts);
        let mut needs: BTreeMap<Vec<String>, Needs> = BTreeMap::new();
        for (start, param) in starts.flat_map(|s| s.params.iter().map(move |p| (s, p))) {
            let Param::Peers { over, slot_bytes } = param else { continue };
            let of = needs.entry(over.clone()).or_default();
            of.slot = of.slot.max(*slot_bytes as usize);
            of.blocks = of.blocks.max(start.grid[0].factor as usize);
        }
        let mut boxes = Letterboxes::default();
        for (over, of) in needs {
            let ranks = mesh.parts(&over) as usize;
            if ranks > MOST_RANKS {
                return Err(format!("{ranks} ranks exchange numbers, {MOST_RANKS} do at most"));
            }
            let counters = of.blocks * 2 * ranks * of.slot;
            let turns = counters + of.blocks * MOST_RANKS * 4;
            let memory = device.allocate(turns + of.blocks * 4)?;
            memory.fill(0, memory.bytes(), 0)?;
            boxes.0.insert(over, (of, Letterbox { memory, counters, turns }));
        }
        Ok(boxes)
    }
}

/// What the kernels of a rank get to know of the others, by the mesh axes of a group.
pub type Known = BTreeMap<Vec<String>, [u64; PEERS_WORDS]>;

/// Makes all ranks known to each other.
pub(super) fn introduce(ranks: &mut [Loaded], mesh: &Mesh, placed: Ranks) -> Result<(), String> {
    let mut all = Vec::new();
    for one in ranks.iter() {
        let mut known = Known::new();
        for over in one.letterboxes.0.keys() {
            known.insert(over.clone(), peers(ranks, one, over, mesh, placed)?);
        }
        all.push(known);
    }
    for (one, known) in ranks.iter_mut().zip(all) {
        one.device.wait()?;
        one.known = known;
    }
    Ok(())
}

fn peers(
    ranks: &[Loaded],
    one: &Loaded,
    over: &[String],
    mesh: &Mesh,
    placed: Ranks,
) -> Result<[u64; PEERS_WORDS], String> {
    let letterbox = |of: &Loaded| -> Result<(Needs, u64, u64, u64), String> {
        let (needs, found) = of.letterboxes.0.get(over).ok_or("a rank has no letterbox")?;
        let address = found.memory.address();
        Ok((*needs, address, address + found.counters as u64, address + found.turns as u64))
    };
    let group = mesh.group(one.rank, over);
    let own_place = group.iter().position(|r| *r == one.rank).ok_or("a rank is not in its group")?;
    let (needs, own_box, told, turns) = letterbox(one)?;
    let mut words = [0u64; PEERS_WORDS];
    for (place, rank) in group.iter().enumerate() {
        let alone = matches!(placed, Ranks::Alone(_));
        let peer = if alone { one } else { ranks.iter().find(|r| r.rank == *rank).ok_or("a rank does not run")? };
        // Alone, a rank leaves its numbers at the places of all others, in its own letterbox.
        let known_as = if alone { place } else { own_place };
        let (_, its_box, its_counters, _) = letterbox(peer)?;
        words[place] = its_box + (known_as * needs.slot) as u64;
        words[MOST_RANKS + place] = its_counters + known_as as u64 * 4;
        words[2 * MOST_RANKS + place] = peer.arena.address().wrapping_sub(one.arena.address());
        let half = 27 * 2 + 2 + place;
        words[half / 2] |= (known_as as u64) << (32 * (half % 2));
    }
    words[24] = own_box;
    words[25] = told;
    words[26] = turns;
    words[27] = needs.slot as u64 | (group.len() as u64) << 32;
    Ok(words)
}

impl Loaded {
    /// What a kernel knows of the other ranks of a group.
    pub(super) fn peers(&self, over: &[String]) -> Result<Argument, String> {
        self.known.get(over).map(|w| Argument::Peers(*w)).ok_or_else(|| format!("no ranks along {}", over.join(", ")))
    }

    /// Token rows that each rank of a group brings along an axis: how many, the first of them among those of all ranks, where the own
    /// begin in each rank's memory, how many there are and the most of a rank.
    pub(super) fn brought(&self, axis: &str, over: &[String], counts: Counts) -> Result<Argument, String> {
        if over != self.spread {
            return Err(format!("rows are spread over {}, not over {}", self.spread.join(", "), over.join(", ")));
        }
        let parts = self.mesh.parts(over).max(1) as usize;
        let rows = (0..parts).map(|place| counts.of(Some(axis), place)).collect::<Result<Vec<_>, _>>()?;
        let first: Vec<usize> = (0..parts).map(|place| rows.iter().take(place).sum()).collect();
        let own = first.get(self.home).copied().unwrap_or(0);
        let mut numbers = vec![0usize; BROUGHT_WORDS * 2];
        for place in 0..parts {
            numbers[place] = rows[place];
            // Alone, a rank is at the place of every other, and takes home what is its own.
            numbers[MOST_RANKS + place] = if self.is_alone { own } else { first[place] };
            numbers[2 * MOST_RANKS + place] = if self.is_alone { first[place] } else { own };
        }
        numbers[3 * MOST_RANKS] = rows.iter().sum();
        numbers[3 * MOST_RANKS + 1] = rows.iter().copied().max().unwrap_or(0);
        let mut words = [0u64; BROUGHT_WORDS];
        for (i, number) in numbers.into_iter().enumerate() {
            let number = i32::try_from(number).map_err(|_| "more rows than a kernel counts")?;
            words[i / 2] |= u64::from(number as u32) << (32 * (i % 2));
        }
        Ok(Argument::Brought(words))
    }
}

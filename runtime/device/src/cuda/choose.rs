//! Choosing tokens on the device: which rows of a step it chooses for, how, and what it found. The kernels are those of `choose.cuh`.

use super::driver::{Argument, Device, Memory, Shape, Staging};
use super::walk::{Counts, Loaded};
use crate::prepare::{RESULT, TOKENS};
use artifact::ChoiceCode;
use engine::{Found, SampleError, WantedRow, check_sampling};
use ir::BucketPlan;
use std::ops::Range;
use std::sync::Arc;

/// Most alternatives that are named beside a token.
const MOST_RANKED: usize = 32;
/// Bytes of `Choice`, `Chosen` and a key, as the templates have them.
const CHOICE_BYTES: usize = 32;
const CHOSEN_BYTES: usize = 32;
const KEY_BYTES: usize = 8;
/// What is done with a row.
const CHOOSES: u32 = 1;
const WEIGHS: u32 = 2;
const DRAWS: u32 = 4;
const SELECTS: u32 = 8;
/// Weights are multiples of one by this.
const WEIGHT_UNITS: f64 = (1u64 << 35) as f64;

/// Which kernels a step needs besides those of its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choosing {
    /// Rows stand for tokens of the step before.
    pub places: bool,
    /// Rows get a token.
    pub chooses: bool,
    weighs: bool,
    selects: bool,
}

/// How a row's token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    does: u32,
    mask: Option<Mask>,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    coin: f32,
    ranked: usize,
}

impl Choice {
    /// The choice for a wanted row; `None` where it is the host's: a row with bias, penalties or listed tokens, more alternatives than are
    /// named here, log-probabilities of another distribution, or parameters that cannot be.
    pub fn of(wanted: &WantedRow, vocab: usize) -> Option<Choice> {
        let s = wanted.sampling.as_ref()?;
        let is_penalised = s.repetition_penalty != 1.0 || s.frequency_penalty != 0.0 || s.presence_penalty != 0.0;
        let is_changed = !s.bias.is_empty() || (is_penalised && !s.seen.is_empty());
        let has_mask = wanted.mask.as_ref().is_none_or(|mask| mask.len() == vocab.div_ceil(32));
        let is_greedy = s.temperature == 0.0;
        let is_plain = wanted.mask.is_none() && (is_greedy || s.temperature == 1.0);
        let ranked = s.logprobs.unwrap_or(0) as usize;
        let is_elsewhere = ranked > MOST_RANKED || !s.listed.is_empty() || (s.untouched_logprobs && !is_plain);
        if is_changed || !has_mask || (s.logprobs.is_some() && is_elsewhere) || check_sampling(s, vocab).is_err() {
            return None;
        }
        let mut does = CHOOSES;
        if !is_greedy {
            does |= if s.top_k > 0 || s.top_p < 1.0 { SELECTS } else { DRAWS | WEIGHS };
        }
        if s.logprobs.is_some() {
            does |= WEIGHS;
        }
        Some(Choice {
            does,
            mask: wanted.mask.clone(),
            temperature: if is_greedy { 1.0 } else { s.temperature },
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            coin: numerics::uniform(s.seed, s.position),
            ranked,
        })
    }

    fn encoded(&self, mask: i32) -> [u32; CHOICE_BYTES / 4] {
        let [temperature, top_p, min_p, coin] =
            [self.temperature, self.top_p, self.min_p, self.coin].map(|x| x.to_bits());
        [self.does, mask as u32, temperature, self.top_k, top_p, min_p, coin, self.ranked as u32]
    }
}

/// The kernels that a step with these choices needs.
pub fn choosing(rows: &[Option<Choice>], places: bool) -> Choosing {
    let any = |what: u32| rows.iter().flatten().any(|c| c.does & what != 0);
    let selects = any(SELECTS) || rows.iter().flatten().any(|c| c.ranked > 0);
    Choosing { places, chooses: any(CHOOSES), weighs: any(WEIGHS), selects }
}

/// Tokens that may be chosen, a bit for each.
type Mask = Arc<[u32]>;

/// Which mask lies where on the device; most rows of most steps share one, which is sent once.
#[derive(Debug, Default)]
pub struct Masks {
    held: Vec<Option<Mask>>,
}

impl Masks {
    /// Places of the rows' masks among `places`, of which there is one for each row at least, and those masks that are not there yet.
    fn place(&mut self, rows: &[Option<Choice>], places: usize) -> (Vec<i32>, Vec<(usize, Mask)>) {
        self.held.resize(places, None);
        let of = |row: &Option<Choice>| row.as_ref().and_then(|c| c.mask.clone());
        let masks: Vec<Option<Mask>> = rows.iter().map(of).collect();
        let is_held = |held: &Option<Mask>, mask: &Mask| held.as_ref().is_some_and(|h| Arc::ptr_eq(h, mask));
        let wanted = |held: &Option<Mask>| masks.iter().flatten().any(|mask| is_held(held, mask));
        let mut free: Vec<usize> = (0..places).filter(|place| !wanted(&self.held[*place])).collect();
        let (mut at, mut new) = (Vec::with_capacity(rows.len()), Vec::new());
        for mask in &masks {
            let Some(mask) = mask else {
                at.push(-1);
                continue;
            };
            let place = self.held.iter().position(|held| is_held(held, mask)).or_else(|| {
                let place = free.pop()?;
                self.held[place] = Some(mask.clone());
                new.push((place, mask.clone()));
                Some(place)
            });
            at.push(place.map_or(-1, |place| place as i32));
        }
        (at, new)
    }
}

/// Device memory around the kernels of a rank.
pub struct Choices {
    code: ChoiceCode,
    most_wanted: usize,
    rows: Memory,
    masks: Memory,
    chosen: Memory,
    left: Memory,
    alternatives: Memory,
}

/// Where a step's answers will be in staging memory.
#[derive(Clone, Debug)]
pub struct Brought {
    chosen: Range<usize>,
    alternatives: Range<usize>,
}

impl Choices {
    /// Memory for steps of so many wanted rows.
    pub fn new(device: &Device, code: &ChoiceCode, most_wanted: usize) -> Result<Choices, String> {
        let words = (code.vocab as usize).div_ceil(32);
        let chosen = device.allocate(most_wanted * CHOSEN_BYTES)?;
        chosen.fill(0, chosen.bytes(), 0xff)?;
        Ok(Choices {
            code: code.clone(),
            most_wanted,
            rows: device.allocate(most_wanted * CHOICE_BYTES)?,
            masks: device.allocate((most_wanted + 1) * words * 4)?,
            chosen,
            left: device.allocate(most_wanted * code.parts as usize * 16)?,
            alternatives: device.allocate(most_wanted * MOST_RANKED * KEY_BYTES)?,
        })
    }

    /// Bytes that a step brings and takes at most.
    pub fn staged_bytes(&self) -> usize {
        self.rows.bytes() + self.masks.bytes() + self.chosen.bytes() + self.alternatives.bytes()
    }

    /// Has the answers for so many rows brought.
    pub fn bring(&self, staging: &mut Staging, wanted: usize, rows: &[Option<Choice>]) -> Result<Brought, String> {
        let ranked = if rows.iter().flatten().any(|c| c.ranked > 0) { wanted } else { 0 };
        Ok(Brought {
            chosen: staging.bring(&self.chosen, 0, wanted * CHOSEN_BYTES)?,
            alternatives: staging.bring(&self.alternatives, 0, ranked * MOST_RANKED * KEY_BYTES)?,
        })
    }
}

/// Sends the rows' choices to all ranks.
pub fn send(
    ranks: &[Loaded],
    staging: &mut [Staging],
    masks: &mut Masks,
    rows: &[Option<Choice>],
) -> Result<(), String> {
    let Some(places) = ranks.first().and_then(|r| r.choices.as_ref()).map(|c| c.most_wanted + 1) else { return Ok(()) };
    let (at, new) = masks.place(rows, places);
    let none = [0u32; CHOICE_BYTES / 4];
    let encoded = rows.iter().zip(at).map(|(row, mask)| row.as_ref().map_or(none, |c| c.encoded(mask)));
    let words: Vec<u32> = encoded.flatten().collect();
    for (rank, staging) in ranks.iter().zip(staging) {
        let Some(own) = &rank.choices else { continue };
        staging.send(&own.rows, 0, bytemuck::cast_slice(&words))?;
        for (place, mask) in &new {
            staging.send(&own.masks, place * mask.len() * 4, bytemuck::cast_slice(mask))?;
        }
    }
    Ok(())
}

/// What was found in a row, from the answers that were brought.
pub fn found(
    staging: &mut Staging,
    brought: &Brought,
    row: usize,
    choice: &Choice,
    vocab: usize,
) -> Result<Result<Found, SampleError>, String> {
    let all = staging.brought(brought.chosen.clone())?;
    let own = all.get(row * CHOSEN_BYTES..(row + 1) * CHOSEN_BYTES).ok_or("no answer for a row")?;
    let word = |i: usize| u32::from_le_bytes([own[i * 4], own[i * 4 + 1], own[i * 4 + 2], own[i * 4 + 3]]);
    let (id, bad) = (word(0) as i32, word(1) as i32);
    if let Ok(token) = usize::try_from(bad) {
        return Ok(Err(SampleError::NotFinite { token, value: f32::from_bits(word(2)).to_string() }));
    }
    let Ok(id) = u32::try_from(id) else { return Ok(Err(SampleError::NoAdmissibleToken { vocab })) };
    let total = (u64::from(word(7)) << 32 | u64::from(word(6))) as f64 / WEIGHT_UNITS;
    let (best, logit) = (f32::from_bits(word(3)), f32::from_bits(word(4)));
    let mut top = Vec::new();
    if choice.ranked > 0 {
        let keys = staging.brought(brought.alternatives.clone())?;
        let begin = row * MOST_RANKED * KEY_BYTES;
        let keys = keys.get(begin..begin + choice.ranked * KEY_BYTES).ok_or("no alternatives for a row")?;
        let key = |b: &[u8]| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]);
        top.extend(keys.chunks_exact(KEY_BYTES).map(key).take_while(|key| *key != 0).map(alternative));
    }
    Ok(Ok(Found { id, logit, best, total, top }))
}

/// The token and the logit that a key stands for.
fn alternative(key: u64) -> (u32, f32) {
    let ascending = (key >> 32) as u32;
    let bits = if ascending >> 31 == 1 { ascending ^ 1 << 31 } else { !ascending };
    (!(key as u32), f32::from_bits(bits))
}

impl Loaded {
    /// Puts tokens that the step before chose where rows stand for them.
    pub fn place_tokens(&self, bucket: &BucketPlan, counts: Counts) -> Result<(), String> {
        let own = self.choices.as_ref().ok_or("the artifact chooses no tokens")?;
        let tokens = bucket.shared.get(TOKENS).ok_or("the plan has no place for tokens")?;
        let tokens = Argument::Address(self.arena.address() + tokens.offset_bytes);
        let rows = Argument::I32(i32::try_from(counts.tokens).map_err(|_| "more rows than a kernel counts")?);
        let threads = self.code.kernels.get(own.code.place).map_or(1, |k| k.threads.max(1));
        let grid = [(counts.tokens as u32).div_ceil(threads), 1];
        self.start_choice(own.code.place, grid, &[tokens, Argument::Address(own.chosen.address()), rows])
    }

    /// Chooses tokens from the logits of a step's wanted rows.
    pub fn choose(&self, bucket: &BucketPlan, counts: Counts, choosing: Choosing) -> Result<(), String> {
        let own = self.choices.as_ref().ok_or("the artifact chooses no tokens")?;
        let logits = bucket.shared.get(RESULT).ok_or("the plan has no place for logits")?;
        let at = |memory: &Memory| Argument::Address(memory.address());
        let row = [
            Argument::Address(self.arena.address() + logits.offset_bytes),
            at(&own.rows),
            at(&own.masks),
            at(&own.chosen),
        ];
        let wanted = counts.wanted as u32;
        let of_parts: Vec<Argument> = row.into_iter().chain([at(&own.left), at(&self.tickets)]).collect();
        let parts = [own.code.parts as u32, wanted];
        self.start_choice(own.code.best, parts, &of_parts)?;
        if choosing.weighs {
            self.start_choice(own.code.weigh, parts, &of_parts)?;
        }
        if choosing.selects {
            let ranked = [at(&own.alternatives), Argument::I32(MOST_RANKED as i32)];
            let of_row: Vec<Argument> = row.into_iter().chain(ranked).collect();
            self.start_choice(own.code.select, [wanted, 1], &of_row)?;
        }
        Ok(())
    }

    fn start_choice(&self, index: usize, grid: [u32; 2], arguments: &[Argument]) -> Result<(), String> {
        if grid.contains(&0) {
            return Ok(());
        }
        let (kernel, code) = self.kernels.get(index).zip(self.code.kernels.get(index)).ok_or("no kernel to choose")?;
        let shape = Shape { grid, threads: code.threads, early: self.early.replace(true) };
        let started = self.device.start(kernel, shape, arguments);
        started.map_err(|e| format!("kernel `{}`, which chooses tokens: {e}", code.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Sampling;

    fn wanted(sampling: Sampling, mask: Option<Arc<[u32]>>) -> WantedRow {
        WantedRow { row: 0, sampling: Some(sampling), mask, logits: false }
    }

    fn does(sampling: Sampling) -> Option<u32> {
        Choice::of(&wanted(sampling, None), 64).map(|c| c.does)
    }

    #[test]
    fn what_the_kernels_do_follows_from_the_parameters() {
        let plain = Sampling::default();
        let warm = Sampling { temperature: 0.5, ..plain.clone() };
        assert_eq!(does(plain.clone()), Some(CHOOSES));
        assert_eq!(does(Sampling { logprobs: Some(0), ..plain.clone() }), Some(CHOOSES | WEIGHS));
        // Greedy rows have no filters.
        assert_eq!(does(Sampling { top_k: 5, top_p: 0.5, ..plain.clone() }), Some(CHOOSES));
        assert_eq!(does(warm.clone()), Some(CHOOSES | WEIGHS | DRAWS));
        assert_eq!(does(Sampling { min_p: 0.1, ..warm.clone() }), Some(CHOOSES | WEIGHS | DRAWS));
        assert_eq!(does(Sampling { top_k: 5, top_p: 0.9, ..warm.clone() }), Some(CHOOSES | SELECTS));
        assert_eq!(does(Sampling { top_p: 0.9, ..warm }), Some(CHOOSES | SELECTS));
        let row = Choice::of(&wanted(Sampling { logprobs: Some(3), ..plain }, None), 64);
        assert!(choosing(&[None, row], false).selects && !choosing(&[None], true).chooses);
    }

    #[test]
    fn rows_that_the_kernels_do_not_know_are_the_hosts() {
        let plain = Sampling::default();
        let hosts = [
            Sampling { bias: vec![(1, 1.0)], ..plain.clone() },
            Sampling { seen: vec![(1, 0, 1)], presence_penalty: 0.5, ..plain.clone() },
            Sampling { logprobs: Some(1), listed: vec![3], ..plain.clone() },
            Sampling { logprobs: Some(33), ..plain.clone() },
            Sampling { logprobs: Some(1), untouched_logprobs: true, temperature: 0.5, ..plain.clone() },
            Sampling { top_p: 0.0, ..plain.clone() },
        ];
        assert!(hosts.into_iter().all(|s| does(s).is_none()));
        assert_eq!(does(Sampling { seen: vec![(1, 0, 1)], ..plain.clone() }), Some(CHOOSES));
        assert_eq!(does(Sampling { listed: vec![3], ..plain.clone() }), Some(CHOOSES));
        // A mask of another vocabulary is an error, which the host tells.
        assert_eq!(Choice::of(&wanted(plain, Some(Arc::from([1, 2, 3]))), 64), None);
        assert_eq!(Choice::of(&WantedRow { row: 0, sampling: None, mask: None, logits: true }, 64), None);
    }

    #[test]
    fn a_mask_is_sent_once_as_long_as_rows_share_it() {
        let of = |mask: &Arc<[u32]>| Choice::of(&wanted(Sampling::default(), Some(mask.clone())), 64);
        let all: Vec<Arc<[u32]>> = (0..4).map(|i| Arc::from([i, i])).collect();
        let none = Choice::of(&wanted(Sampling::default(), None), 64);
        let mut masks = Masks::default();
        let (first, new) = masks.place(&[of(&all[0]), none.clone(), of(&all[0])], 4);
        assert_eq!((first[0], first[1], new.len()), (first[2], -1, 1));
        let (second, new) = masks.place(&[of(&all[1]), of(&all[0]), of(&all[2])], 4);
        assert_eq!((second[1], new.len()), (first[0], 2));
        // Whatever lies there, a row finds its own mask where it is told to.
        for turn in 0..20 {
            let rows = [of(&all[turn % 4]), of(&all[(turn + 1) % 4]), of(&all[(turn * 3) % 4])];
            let (at, _) = masks.place(&rows, 4);
            for (row, place) in rows.iter().zip(at) {
                let held = masks.held[place as usize].as_ref().expect("a mask");
                assert!(Arc::ptr_eq(held, row.as_ref().and_then(|r| r.mask.as_ref()).expect("a mask")));
            }
        }
    }

    #[test]
    fn a_key_tells_its_token_and_its_logit() {
        for x in [0.0f32, -0.0, 1.5, -1.5, f32::MAX, f32::MIN_POSITIVE, -1e-40] {
            let bits = x.to_bits();
            let ascending = if bits >> 31 == 1 { !bits } else { bits ^ 1 << 31 };
            let (id, logit) = alternative(u64::from(ascending) << 32 | u64::from(!7u32));
            assert_eq!((id, logit.to_bits()), (7, bits));
        }
    }
}

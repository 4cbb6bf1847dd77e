//! The kernels that choose tokens against the host's sampler: the same tokens, faults and log-probabilities, or they are wrong.

use super::choose::{Choice, Masks, choosing, found, send};
use super::driver::Staging;
use super::selftest::Verdict;
use super::walk::{Counts, Loaded};
use crate::prepare::{RESULT, TOKENS};
use engine::{SampledToken, Sampling, WantedRow, sample};
use ir::BucketPlan;
use std::sync::Arc;

/// Rounds of rows, each with other logits and other parameters.
const ROUNDS: u64 = 12;
/// Most rows of a round.
const MOST_ROWS: u64 = 16;

/// Compares what every rank chooses from made-up logits; nothing where the artifact has no kernels for it.
pub fn choices(ranks: &[Loaded], staging: &mut [Staging], vocab: usize, seed: u64) -> Result<Option<Verdict>, String> {
    let Some(first) = ranks.first().filter(|r| r.choices.is_some()) else { return Ok(None) };
    let buckets = first.plan.entries.get(first.number).ok_or("there is no entry")?.buckets.iter();
    let most = |b: &BucketPlan| b.bucket.wanted.min(b.bucket.tokens).min(MOST_ROWS) as usize;
    let bucket = buckets.max_by_key(|b| most(b)).ok_or("there is no bucket")?;
    let (choice, kernels) = (first.code.choice.iter().flat_map(|c| c.kernels()), &first.code.kernels);
    let mut verdict = Verdict { kind: "choice".to_owned(), ..Verdict::default() };
    verdict.kernels = choice.filter_map(|(k, _)| kernels.get(k)).map(|k| k.name.clone()).collect();
    for (rank, staging) in ranks.iter().zip(staging) {
        let mut masks = Masks::default();
        for round in 0..ROUNDS {
            let made = |row: usize| made(seed, round * MOST_ROWS + row as u64, vocab);
            let rows: Vec<Made> = (0..most(bucket)).map(made).collect();
            compare(rank, staging, bucket, &mut masks, &rows, &mut verdict)?;
        }
    }
    Ok(Some(verdict))
}

/// A row of logits and what is wanted of it.
struct Made {
    logits: Vec<f32>,
    wanted: WantedRow,
}

/// The row of a number: wide, with many equal logits, with some that are excluded, nearly even, or damaged; greedy or drawn.
fn made(seed: u64, number: u64, vocab: usize) -> Made {
    let draw = |at: u64| numerics::uniform(seed ^ number, at);
    let pick = |of: &[f32], at: u64| of[(draw(at) * of.len() as f32) as usize % of.len()];
    let own = 8 * vocab as u64;
    let wide = |id: u64| (draw(3 * id) + draw(3 * id + 1) + draw(3 * id + 2) - 1.5) * 20.0;
    let logit = |id: u64| match number % 5 {
        0 => wide(id),
        1 => wide(id).floor(),
        2 if draw(4 * vocab as u64 + id) < 0.1 => f32::NEG_INFINITY,
        3 => wide(id) * 0.01,
        _ => wide(id) * 3.0,
    };
    let mut logits: Vec<f32> = (0..vocab as u64).map(logit).collect();
    if number % 16 == 9 {
        logits[(draw(own) * vocab as f32) as usize] = f32::NAN;
    }
    let words = 0..vocab.div_ceil(32) as u64;
    let mask: Arc<[u32]> = words.map(|w| (draw(5 * vocab as u64 + w) * 4294967296.0) as u32).collect();
    let is_drawn = !number.is_multiple_of(4);
    let sampling = Sampling {
        temperature: if is_drawn { pick(&[1.0, 0.7, 2.0, 0.1], own + 1) } else { 0.0 },
        top_k: if is_drawn { pick(&[0.0, 0.0, 1.0, 20.0, 300.0, 6000.0], own + 2) as u32 } else { 0 },
        top_p: pick(&[1.0, 1.0, 0.95, 0.5, 0.999], own + 3),
        min_p: pick(&[0.0, 0.0, 0.05], own + 4),
        logprobs: (number % 3 == 1).then_some((number % 7) as u32 * 3),
        seed,
        position: number,
        ..Sampling::default()
    };
    let mask = (number % 6 == 3).then_some(mask);
    Made { logits, wanted: WantedRow { row: 0, sampling: Some(sampling), mask, logits: false } }
}

fn compare(
    rank: &Loaded,
    staging: &mut Staging,
    bucket: &BucketPlan,
    masks: &mut Masks,
    rows: &[Made],
    verdict: &mut Verdict,
) -> Result<(), String> {
    let place = |name: &str| {
        let found = bucket.shared.get(name).map(|b| b.offset_bytes as usize);
        found.ok_or_else(|| format!("the plan has no place for `{name}`"))
    };
    let logits: Vec<f32> = rows.iter().flat_map(|r| r.logits.iter().copied()).collect();
    rank.arena.write(place(RESULT)?, bytemuck::cast_slice(&logits))?;
    let vocab = logits.len() / rows.len().max(1);
    let choices: Vec<Option<Choice>> = rows.iter().map(|r| Choice::of(&r.wanted, vocab)).collect();
    let counts = Counts { tokens: rows.len(), wanted: rows.len(), shares: None };
    staging.begin()?;
    let (ranks, staged) = (std::slice::from_ref(rank), std::slice::from_mut(staging));
    send(ranks, staged, masks, &choices)?;
    rank.early.set(false);
    rank.choose(bucket, counts, choosing(&choices, true))?;
    let brought = rank.choices.as_ref().ok_or("no choices")?.bring(staging, rows.len(), &choices)?;
    // Rows of the next step, each of which stands for the token of another.
    let stands: Vec<i32> = (0..rows.len()).map(|row| -(((row + 1) % rows.len()) as i32) - 1).collect();
    rank.arena.write(place(TOKENS)?, bytemuck::cast_slice(&stands))?;
    rank.early.set(false);
    rank.place_tokens(bucket, counts)?;
    let mut placed = vec![0u8; rows.len() * 4];
    rank.arena.read(place(TOKENS)?, &mut placed)?;
    let mut ids = Vec::new();
    for (row, (made, choice)) in rows.iter().zip(&choices).enumerate() {
        let (Some(sampling), Some(choice)) = (&made.wanted.sampling, choice) else { continue };
        let wanted = sample(&made.logits, sampling, made.wanted.mask.as_deref()).map_err(|e| e.to_string());
        let made = found(staging, &brought, row, choice, vocab)?;
        let made: Result<SampledToken, String> = made.map(|f| f.report(sampling)).map_err(|e| e.to_string());
        verdict.exact += 1;
        if made != wanted {
            verdict.wrong += 1;
            verdict.first.get_or_insert_with(|| format!("{made:?} against {wanted:?} for {sampling:?}"));
        }
        ids.push(wanted.map_or(0, |token| token.id));
    }
    for (row, word) in placed.chunks_exact(4).enumerate() {
        let token = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        let wanted = ids.get((row + 1) % rows.len()).copied().unwrap_or_default();
        verdict.exact += 1;
        if token != wanted {
            verdict.wrong += 1;
            verdict.first.get_or_insert_with(|| format!("row {row} got token {token}, not {wanted}"));
        }
    }
    Ok(())
}

//! Acceptance: which drafts stand, and which token follows them. A pure function of rows, drafts and draws.
//!
//! Row `i` of a block says how the token behind it is distributed: `p_i`, after everything that a row without drafts goes
//! through. Slot `i` proposed `x_{i+1}`, drawn from `q_i`. Under the token rule `x_{i+1}` stands if
//! `u_i * q_i(x_{i+1}) < p_i(x_{i+1})`; at the first that does not, what is left of `p_i` above `q_i` is drawn from, and
//! behind the last row `p` itself. The block rule weighs beginnings of the block instead: see [`longest`].

use super::{AcceptRule, Block};
use crate::{Law, Row, SampleError, SampledToken, WantedRow};

/// Verifies a block: the tokens of the accepted run and the one behind it, with the text of an error where that one cannot
/// be chosen. `rows` are the block's wanted rows; `logits` gives the logits of a row.
pub fn accept<'l>(
    block: &Block,
    rows: &[WantedRow],
    logits: impl Fn(usize) -> &'l [f32],
) -> (Vec<SampledToken>, Option<String>) {
    let mut run = Vec::with_capacity(rows.len());
    let fault = extend(&mut run, block, rows, &logits).err().map(|error| error.to_string());
    (run, fault)
}

fn extend<'l>(
    run: &mut Vec<SampledToken>,
    block: &Block,
    rows: &[WantedRow],
    logits: &impl Fn(usize) -> &'l [f32],
) -> Result<(), SampleError> {
    let greedy = crate::Sampling::default();
    let is_drawn = rows.first().and_then(|w| w.sampling.as_ref()).is_some_and(|s| s.temperature > 0.0);
    // A row that cannot be read ends the run where it is met, so only whole blocks are weighed.
    let weighed = (block.rule == AcceptRule::Block && is_drawn && block.forced.is_none())
        .then(|| laws(rows, logits).map(|laws| longest(&laws, block)).ok())
        .flatten();
    for (at, wanted) in rows.iter().enumerate() {
        let sampling = wanted.sampling.as_ref().unwrap_or(&greedy);
        let row = Row::new(logits(at), sampling, wanted.mask.as_deref())?;
        let drafted = block.draft.tokens.get(at).copied();
        let stands = drafted.filter(|_| at + 1 < rows.len()).filter(|token| match (block.forced, &weighed) {
            (Some(tokens), _) => at + 1 < tokens,
            (None, Some((accepted, _))) => at < *accepted,
            (None, None) if row.is_greedy() => *token == row.best(),
            (None, None) => token_stands(&row.law(), block, at, *token),
        });
        if let Some(token) = stands {
            run.push(row.report(token));
            continue;
        }
        let coin = coin(block, block.draft.tokens.len());
        let last = match (&weighed, drafted) {
            _ if block.forced.is_some() || row.is_greedy() => row.best(),
            (Some((_, law)), _) => row.draw(law, coin),
            (None, Some(token)) => row.draw(&left(&row.law(), block, at, token, 1.0), coin),
            (None, None) => row.draw(&row.law(), coin),
        };
        run.push(row.report(last));
        break;
    }
    Ok(())
}

/// Probability with which a slot drew a token; what is no probability counts as 0.
fn drawn_with(block: &Block, slot: usize, token: u32) -> f64 {
    let (ids, probabilities) = block.draft.slot(slot);
    let found = ids.iter().zip(probabilities).find(|(id, _)| **id == token).map_or(0.0, |(_, q)| f64::from(*q));
    if found > 0.0 && found <= 1.0 { found } else { 0.0 }
}

/// The draw of a slot, or behind the last slot the one for the token behind the run. One that is missing accepts nothing.
fn coin(block: &Block, slot: usize) -> f32 {
    block.coins.get(slot).copied().unwrap_or(1.0)
}

/// The token rule.
fn token_stands(law: &Law, block: &Block, slot: usize, token: u32) -> bool {
    let q = drawn_with(block, slot, token);
    q > 0.0 && f64::from(coin(block, slot)) * q < law.of_token(token)
}

/// What a row's distribution, times `share`, has above the slot's.
fn above(law: &Law, block: &Block, slot: usize, share: f64) -> Law {
    let mut rest: Vec<(u32, f64)> = law.iter().map(|(id, p)| (id, share * p)).collect();
    for id in block.draft.slot(slot).0 {
        if let Ok(place) = rest.binary_search_by_key(id, |(id, _)| *id)
            && let Some((_, p)) = rest.get_mut(place)
        {
            *p -= drawn_with(block, slot, *id);
        }
    }
    Law::of(rest)
}

/// What the token behind a rejected draft is drawn from. Where nothing is above the slot's distribution, or the draft cannot
/// have come from the slot, it is the row's own.
fn left(law: &Law, block: &Block, slot: usize, token: u32, share: f64) -> Law {
    if drawn_with(block, slot, token) == 0.0 {
        return law.clone();
    }
    let rest = above(law, block, slot, share);
    if rest.is_empty() { law.clone() } else { rest }
}

fn laws<'l>(rows: &[WantedRow], logits: &impl Fn(usize) -> &'l [f32]) -> Result<Vec<Law>, SampleError> {
    let greedy = crate::Sampling::default();
    let law = |(at, wanted): (usize, &WantedRow)| {
        let sampling = wanted.sampling.as_ref().unwrap_or(&greedy);
        Ok(Row::new(logits(at), sampling, wanted.mask.as_deref())?.law())
    };
    rows.iter().enumerate().map(law).collect()
}

/// The block rule: how many drafts stand, and what the token behind them is drawn from.
///
/// `w_i` is the probability that the first `i` drafts are as likely under the model as under the drafter, capped at 1 on
/// the way. From the whole block down, the first `i` drafts stand if a draw is below `h_i`: `w_i` for the whole block, and
/// `R_i / (R_i + 1 - w_i)` for less, with `R_i` what `w_i * p_i` has above `q_i`.
fn longest(laws: &[Law], block: &Block) -> (usize, Law) {
    let slots = block.draft.tokens.len().min(laws.len());
    let mut weights = vec![1.0f64];
    for (slot, (token, law)) in block.draft.tokens.iter().zip(laws).enumerate() {
        let q = drawn_with(block, slot, *token);
        // A draft that no row follows is inadmissible: its weight is 0.
        let ratio = if q > 0.0 && slot + 1 < laws.len() { law.of_token(*token) / q } else { 0.0 };
        let before = weights.last().copied().unwrap_or(0.0);
        weights.push((before * ratio).min(1.0));
    }
    let weight = |i: usize| weights.get(i).copied().unwrap_or(0.0);
    let none = Law::of(Vec::new());
    let law = |i: usize| laws.get(i).unwrap_or(&none);
    let threshold = |i: usize| {
        let w = weight(i);
        if i == slots || w == 0.0 || w == 1.0 {
            return w;
        }
        let above = above(law(i), block, i, w).total();
        above / (above + 1.0 - w)
    };
    let accepted = (1..=slots).rev().find(|i| f64::from(coin(block, i - 1)) < threshold(*i)).unwrap_or(0);
    match block.draft.tokens.get(accepted).filter(|_| accepted < slots) {
        Some(token) => (accepted, left(law(accepted), block, accepted, *token, weight(accepted))),
        None => (accepted, law(accepted).clone()),
    }
}

#[cfg(test)]
mod tests;

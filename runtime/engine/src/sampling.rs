//! Choosing a token from a row of logits: a pure function of the row, the parameters, the mask and one uniform draw.
//!
//! Order: bias, penalties, mask, then (unless greedy) temperature, top-k, top-p, min-p, draw. Each filter works on what
//! the one before it left: top-p's probabilities are renormalised after top-k. The draw inverts the cumulative
//! distribution in the order of token ids, so that filters which drop nothing change nothing. Weights are deterministic f32
//! exponentials, rounded to multiples of 2^-35: f64 sums of up to 2^18 of them are exact, so they have no order, and the same
//! inputs choose the same token everywhere, on a device that sums in parts too.

use crate::{SampledToken, Sampling};
use std::borrow::Cow;
use std::cmp::Ordering;

/// Why no token can be chosen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// Mask, bias and logits leave nothing.
    #[error("E0201: of {vocab} tokens none is admissible: mask and bias exclude all; loosen the grammar or the bias")]
    NoAdmissibleToken {
        /// Entries of the row.
        vocab: usize,
    },
    /// A logit cannot be compared.
    #[error(
        "E0202: the logit of token {token} is {value}, a finite number is needed; the weights or the computation are damaged, `beam-run score` on the same tokens shows where"
    )]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit, spelt out: NaN would make errors incomparable.
        value: String,
    },
    /// A parameter is out of its range.
    #[error("E0203: {name} is {value}, it must be {range}; change it or leave it out")]
    Parameter {
        /// Field of [`Sampling`].
        name: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// A bias or a count names a token that does not exist.
    #[error("E0204: {name} names token {token}, the vocabulary has {vocab}; drop it or correct the id")]
    UnknownToken {
        /// Field of [`Sampling`].
        name: &'static str,
        /// The id.
        token: u32,
        /// Entries of the row.
        vocab: usize,
    },
    /// The mask has another size than the row.
    #[error("E0205: the mask has {words} words of 32 tokens, a vocabulary of {vocab} needs {}; build it for this model", .vocab.div_ceil(32))]
    MaskSize {
        /// Words given.
        words: usize,
        /// Entries of the row.
        vocab: usize,
    },
}

/// Checks everything about the parameters that does not need the logits.
pub fn check_sampling(s: &Sampling, vocab: usize) -> Result<(), SampleError> {
    let check = |ok: bool, name, value: f32, range| {
        if ok { Ok(()) } else { Err(SampleError::Parameter { name, value: value.to_string(), range }) }
    };
    let finite = |x: f32| x.is_finite();
    check(finite(s.temperature) && s.temperature >= 0.0, "temperature", s.temperature, "0 (greedy) or more")?;
    check(s.top_p > 0.0 && s.top_p <= 1.0, "top_p", s.top_p, "more than 0 and at most 1")?;
    check(s.min_p >= 0.0 && s.min_p <= 1.0, "min_p", s.min_p, "from 0 to 1")?;
    let repetition = s.repetition_penalty;
    check(finite(repetition) && repetition > 0.0, "repetition_penalty", repetition, "more than 0")?;
    check(finite(s.frequency_penalty), "frequency_penalty", s.frequency_penalty, "a finite number")?;
    check(finite(s.presence_penalty), "presence_penalty", s.presence_penalty, "a finite number")?;
    for (token, bias) in &s.bias {
        known(*token, vocab, "bias")?;
        check(!bias.is_nan() && *bias < f32::INFINITY, "bias", *bias, "a number below infinity")?;
    }
    s.listed.iter().try_for_each(|token| known(*token, vocab, "listed"))?;
    s.seen.iter().try_for_each(|(token, ..)| known(*token, vocab, "seen"))
}

fn known(token: u32, vocab: usize, name: &'static str) -> Result<(), SampleError> {
    if (token as usize) < vocab { Ok(()) } else { Err(SampleError::UnknownToken { name, token, vocab }) }
}

/// Chooses a token. `mask` admits tokens by bit, in words of 32, lowest first.
pub fn sample(logits: &[f32], sampling: &Sampling, mask: Option<&[u32]>) -> Result<SampledToken, SampleError> {
    Ok(Row::new(logits, sampling, mask)?.chosen())
}

/// A row of logits ready for a choice: bias, penalties and mask are in it.
#[derive(Debug)]
pub struct Row<'a> {
    untouched: &'a [f32],
    sampling: &'a Sampling,
    /// Finite, or -∞ for what may not be chosen.
    processed: Cow<'a, [f32]>,
    best: Candidate,
}

impl<'a> Row<'a> {
    /// Prepares a row; an error says why nothing can be chosen from it.
    pub fn new(logits: &'a [f32], sampling: &'a Sampling, mask: Option<&[u32]>) -> Result<Self, SampleError> {
        check_sampling(sampling, logits.len())?;
        let processed = processed(logits, sampling, mask)?;
        let best = greedy(&processed).ok_or(SampleError::NoAdmissibleToken { vocab: processed.len() })?;
        Ok(Row { untouched: logits, sampling, processed, best })
    }

    /// The most probable token.
    pub fn best(&self) -> u32 {
        self.best.id as u32
    }

    /// Whether the most probable token is taken, without a draw.
    pub fn is_greedy(&self) -> bool {
        self.sampling.temperature == 0.0
    }

    /// The distribution that tokens are drawn from.
    pub fn law(&self) -> Law {
        if self.is_greedy() {
            return Law { weights: vec![(self.best(), 1.0)], total: 1.0 };
        }
        Law::of(kept(&self.processed, self.best, self.sampling))
    }

    /// The token that the request's seed draws at the row's position.
    fn chosen(&self) -> SampledToken {
        let coin = || numerics::uniform(self.sampling.seed, self.sampling.position);
        let id = if self.is_greedy() { self.best() } else { self.draw(&self.law(), coin()) };
        self.report(id)
    }

    /// A token drawn from a distribution, such as the row's own or what is left of it.
    pub fn draw(&self, law: &Law, coin: f32) -> u32 {
        // Only rounding of the sum can leave none: the goal lies on its upper edge.
        law.at(coin).unwrap_or(self.best())
    }

    /// A token with the log-probabilities that were asked for.
    pub fn report(&self, id: u32) -> SampledToken {
        let s = self.sampling;
        if s.untouched_logprobs {
            return reported(self.untouched, id as usize, s, 1.0);
        }
        let temperature = if self.is_greedy() { 1.0 } else { s.temperature };
        reported(&self.processed, id as usize, s, temperature)
    }
}

/// A distribution over token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Law {
    /// Ids with a weight above 0, ascending.
    weights: Vec<(u32, f64)>,
    total: f64,
}

impl Law {
    /// From ids, ascending, and their weights; what has none is left out.
    pub fn of(mut weights: Vec<(u32, f64)>) -> Law {
        weights.retain(|(_, weight)| *weight > 0.0);
        let total = weights.iter().map(|(_, weight)| weight).sum();
        Law { weights, total }
    }

    /// Whether nothing has any weight.
    pub fn is_empty(&self) -> bool {
        self.weights.is_empty()
    }

    /// The sum of all weights as they were given.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Probability of a token.
    pub fn of_token(&self, id: u32) -> f64 {
        match self.weights.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(place) => self.weights.get(place).map_or(0.0, |(_, weight)| weight / self.total),
            Err(_) => 0.0,
        }
    }

    /// Ids, ascending, with their probabilities.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.weights.iter().map(|(id, weight)| (*id, weight / self.total))
    }

    /// The first token at which the sum of probabilities exceeds `coin`; `None` where rounding leaves none.
    pub fn at(&self, coin: f32) -> Option<u32> {
        let goal = self.total * f64::from(coin);
        let mut reached = 0.0;
        let exceeds = |(_, weight): &&(u32, f64)| {
            reached += weight;
            reached > goal
        };
        self.weights.iter().find(exceeds).map(|(id, _)| *id)
    }
}

/// How many units of a weight make 1, the weight of the best token.
const WEIGHT_UNITS: f32 = (1u64 << 35) as f32;

/// The weight of a logit beside the best one, a multiple of `1 / WEIGHT_UNITS`.
fn weight(logit: f32, best: f32, temperature: f32) -> f64 {
    let units = (numerics::exp((logit - best) / temperature) * WEIGHT_UNITS).round_ties_even();
    f64::from(units) / f64::from(WEIGHT_UNITS)
}

/// A token and its processed logit.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: usize,
    logit: f32,
}

/// Most probable first, ties to the lower id.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// The row after bias, penalties and mask: finite, or -∞ for what may not be chosen.
fn processed<'a>(logits: &'a [f32], s: &Sampling, mask: Option<&[u32]>) -> Result<Cow<'a, [f32]>, SampleError> {
    if s.bias.is_empty() && s.seen.is_empty() && mask.is_none() {
        finite(logits)?;
        return Ok(Cow::Borrowed(logits));
    }
    let mut row = logits.to_vec();
    for (token, bias) in &s.bias {
        if let Some(x) = row.get_mut(*token as usize) {
            *x += bias;
        }
    }
    for (token, in_prompt, in_answer) in &s.seen {
        if let Some(x) = row.get_mut(*token as usize) {
            *x = penalised(*x, *in_prompt, *in_answer, s);
        }
    }
    if let Some(mask) = mask {
        if mask.len() != row.len().div_ceil(32) {
            return Err(SampleError::MaskSize { words: mask.len(), vocab: row.len() });
        }
        for (chunk, word) in row.chunks_mut(32).zip(mask) {
            for (bit, x) in chunk.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
        }
    }
    finite(&row)?;
    Ok(Cow::Owned(row))
}

/// Logits that are looked at together: most of a row have nothing of what is searched for.
const TOGETHER: usize = 32;

/// Refuses NaN and +∞.
fn finite(row: &[f32]) -> Result<(), SampleError> {
    // Neither NaN nor +∞ itself is below it.
    if row.chunks(TOGETHER).all(|some| some.iter().fold(true, |all, x| all & (*x < f32::INFINITY))) {
        return Ok(());
    }
    match row.iter().enumerate().find(|(_, x)| x.is_nan() || **x == f32::INFINITY) {
        Some((token, value)) => Err(SampleError::NotFinite { token, value: value.to_string() }),
        None => Ok(()),
    }
}

fn penalised(logit: f32, in_prompt: u32, in_answer: u32, s: &Sampling) -> f32 {
    let mut x = logit;
    if in_prompt + in_answer.min(1) > 0 && s.repetition_penalty != 1.0 {
        x = if x > 0.0 { x / s.repetition_penalty } else { x * s.repetition_penalty };
    }
    if in_answer > 0 {
        x = x - s.frequency_penalty * in_answer as f32 - s.presence_penalty;
    }
    x
}

/// The largest logit, ties to the lower id; `None` if all are -∞.
fn greedy(row: &[f32]) -> Option<Candidate> {
    let mut best: Option<Candidate> = None;
    for (group, some) in row.chunks(TOGETHER).enumerate() {
        let mut least = best.map_or(f32::NEG_INFINITY, |b| b.logit);
        if !some.iter().fold(false, |any, x| any | (*x > least)) {
            continue;
        }
        for (at, &logit) in some.iter().enumerate() {
            if logit > least {
                best = Some(Candidate { id: group * TOGETHER + at, logit });
                least = logit;
            }
        }
    }
    best
}

/// What the filters keep, with weights, in the order of ids. The best token is always kept.
fn kept(row: &[f32], best: Candidate, s: &Sampling) -> Vec<(u32, f64)> {
    let weight = |c: &Candidate| weight(c.logit, best.logit, s.temperature);
    let candidates = row.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY);
    let mut kept: Vec<Candidate> = candidates.map(|(id, logit)| Candidate { id, logit: *logit }).collect();
    let top_k = s.top_k as usize;
    if top_k > 0 && top_k < kept.len() {
        kept.select_nth_unstable_by(top_k - 1, by_rank);
        kept.truncate(top_k);
    }
    if s.top_p < 1.0 {
        kept.sort_unstable_by(by_rank);
        let total: f64 = kept.iter().map(weight).sum();
        let goal = total * f64::from(s.top_p);
        let mut reached = 0.0;
        let enough = kept.iter().position(|c| {
            reached += weight(c);
            reached >= goal
        });
        kept.truncate(enough.map_or(kept.len(), |last| last + 1));
    }
    if s.min_p > 0.0 {
        kept.retain(|c| weight(c) >= f64::from(s.min_p));
    }
    kept.sort_unstable_by_key(|c| c.id);
    kept.iter().map(|c| (c.id as u32, weight(c))).collect()
}

/// The token with the log-probabilities that were asked for, under a row whose logits are divided by `temperature`.
fn reported(row: &[f32], chosen: usize, s: &Sampling, temperature: f32) -> SampledToken {
    let id = chosen as u32;
    let Some(n) = s.logprobs else { return SampledToken { id, logprob: None, top: Vec::new(), listed: Vec::new() } };
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total = row.iter().map(|x| weight(*x, best, temperature)).sum();
    let logprob = |x: f32| logprob(x, best, temperature, total);
    let top = most_probable(row, n as usize);
    SampledToken {
        id,
        logprob: row.get(chosen).map(|x| logprob(*x)),
        top: top.iter().map(|c| (c.id as u32, logprob(c.logit))).collect(),
        listed: s.listed.iter().filter_map(|id| Some((*id, logprob(*row.get(*id as usize)?)))).collect(),
    }
}

/// The log-probability of a logit, from the row's largest and the sum of all its weights.
fn logprob(logit: f32, best: f32, temperature: f32, total: f64) -> f32 {
    (logit - best) / temperature - numerics::log(total as f32)
}

/// The `n` largest of a row, descending; fewer if fewer are admissible.
fn most_probable(row: &[f32], n: usize) -> Vec<Candidate> {
    let candidates = row.iter().enumerate().filter(|(_, x)| **x > f32::NEG_INFINITY);
    let mut ranked: Vec<Candidate> = candidates.map(|(id, logit)| Candidate { id, logit: *logit }).collect();
    if n > 0 && n < ranked.len() {
        ranked.select_nth_unstable_by(n - 1, by_rank);
    }
    ranked.truncate(n);
    ranked.sort_unstable_by(by_rank);
    ranked
}

/// What a device found in a row that it chose from: enough to report the token as [`sample`] does.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The token.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// The largest logit of the row.
    pub best: f32,
    /// The sum of all weights, where log-probabilities are asked for.
    pub total: f64,
    /// The largest logits with their tokens, descending, as many as are asked for.
    pub top: Vec<(u32, f32)>,
}

impl Found {
    /// The token with its log-probabilities. Listed tokens have none here: their logits were not looked at.
    pub fn report(&self, sampling: &Sampling) -> SampledToken {
        let Some(n) = sampling.logprobs else { return SampledToken { id: self.id, ..SampledToken::default() } };
        let is_plain = sampling.temperature == 0.0 || sampling.untouched_logprobs;
        let temperature = if is_plain { 1.0 } else { sampling.temperature };
        let logprob = |x: f32| logprob(x, self.best, temperature, self.total);
        let top = self.top.iter().take(n as usize).map(|(id, x)| (*id, logprob(*x))).collect();
        SampledToken { id: self.id, logprob: Some(logprob(self.logit)), top, listed: Vec::new() }
    }
}

/// A given token's log-probability under untouched logits, with `top` alternatives and the `listed` ids.
pub fn score(logits: &[f32], token: u32, top: u32, listed: &[u32]) -> Result<SampledToken, SampleError> {
    known(token, logits.len(), "prompt")?;
    finite(logits)?;
    let sampling = Sampling { logprobs: Some(top), listed: listed.to_vec(), ..Sampling::default() };
    Ok(reported(logits, token as usize, &sampling, 1.0))
}

#[cfg(test)]
mod tests;

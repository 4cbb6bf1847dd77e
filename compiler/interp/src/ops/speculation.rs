//! `walk`, `probs` and `accept`: a block of tokens drafted slot after slot, and judged.

use super::{expect_axes, floats, ints, result_dtype};
use crate::error::{InterpError, broken};
use crate::ops::sum::sum;
use crate::tensor::{Data, Tensor};
use ir::{AcceptRule, AcceptWhat, DType, Order, TensorType, WalkWhat};

/// Lowest temperature that a walk divides by.
const LEAST_TEMPERATURE: f32 = 1e-5;

/// The axes of the rows in front, with the lengths of the last `N` axes.
type Lengths<'t, const N: usize> = (&'t [(String, usize)], [usize; N]);

/// Takes the last `N` axes off.
fn last<'t, const N: usize>(rule: &'static str, x: &'t Tensor) -> Result<Lengths<'t, N>, InterpError> {
    let at = x.axes().len().checked_sub(N);
    let at = at.ok_or_else(|| broken(rule, format!("{x} has fewer than {N} axes")))?;
    let (rows, inner) = x.axes().split_at(at);
    let mut lengths = [0; N];
    lengths.iter_mut().zip(inner).for_each(|(n, axis)| *n = axis.1);
    Ok((rows, lengths))
}

/// Demands a number of elements.
fn expect(rule: &'static str, x: &Tensor, elements: usize) -> Result<(), InterpError> {
    if x.len() == elements { Ok(()) } else { Err(broken(rule, format!("{x} has not {elements} elements"))) }
}

fn argmax(row: &[f32]) -> usize {
    numerics::top_ids(row, 1).into_iter().next().unwrap_or(0)
}

fn one_hot(n: usize, at: usize) -> Vec<f32> {
    (0..n).map(|i| if i == at { 1.0 } else { 0.0 }).collect()
}

/// `walk`: one token after the other, each among the candidates of its slot by the scores behind the one before.
pub(crate) fn walk(what: WalkWhat, operands: [&Tensor; 4], ty: &TensorType) -> Result<Tensor, InterpError> {
    let [score, ids, temp, coin] = operands;
    let (rows, [slots, before, k]) = last("walk C1", score)?;
    let n: usize = rows.iter().map(|a| a.1).product();
    if before != k || k == 0 {
        return Err(broken("walk C1", format!("{score} goes from {before} candidates to {k}")));
    }
    expect("walk C2", ids, n * slots * k)?;
    expect("walk C3", temp, n)?;
    expect("walk C3", coin, n * slots)?;
    let (scores, ids_data) = (floats("walk C1", score)?, ints("walk C2", ids)?);
    let (temps, coins) = (floats("walk C3", temp)?, floats("walk C3", coin)?);
    let (mut tokens, mut probs) = (Vec::with_capacity(n * slots), Vec::with_capacity(n * slots * k));
    for (row, temperature) in temps.iter().enumerate() {
        let mut at = 0;
        for slot in (0..slots).map(|s| row * slots + s) {
            let from = (slot * k + at) * k;
            let (chosen, q) = walk_slot(&scores[from..from + k], *temperature, coins[slot]);
            tokens.push(ids_data[slot * k + chosen]);
            probs.extend(q);
            at = chosen;
        }
    }
    match what {
        WalkWhat::Tokens => {
            result_dtype("walk C4", ty, DType::I32)?;
            let axes = &ids.axes()[..ids.axes().len() - 1];
            expect_axes("walk C4", ty, axes)?;
            Tensor::new(axes.to_vec(), DType::I32, Data::I32(tokens))
        }
        WalkWhat::Probs => {
            result_dtype("walk C4", ty, DType::F32)?;
            expect_axes("walk C4", ty, ids.axes())?;
            Tensor::new(ids.axes().to_vec(), DType::F32, Data::F32(probs))
        }
    }
}

/// One slot of a walk: which of the candidates with these scores is taken, and the distribution that it was drawn from. A
/// temperature of 0 takes the best one; `coin` is a draw in `[0, 1)`.
pub fn walk_slot(scores: &[f32], temperature: f32, coin: f32) -> (usize, Vec<f32>) {
    if temperature == 0.0 {
        let best = argmax(scores);
        return (best, one_hot(scores.len(), best));
    }
    let t = numerics::max_f32(temperature, LEAST_TEMPERATURE);
    let scaled: Vec<f32> = scores.iter().map(|s| s / t).collect();
    let largest = scaled.iter().copied().fold(f32::NEG_INFINITY, numerics::max_f32);
    let powers: Vec<f32> = scaled.iter().map(|s| numerics::exp(s - largest)).collect();
    let total = sum(&Order::Fold, powers.len(), |i| powers[i]);
    let q: Vec<f32> = powers.iter().map(|p| p / total).collect();
    let mut mass = 0f32;
    let passed = q.iter().filter(|q| {
        mass += **q;
        coin >= mass
    });
    let chosen = passed.count().min(q.len() - 1);
    (chosen, q)
}

/// `probs`: temperature, then the `top_k` most likely, then the fewest of them that hold `top_p` of the mass.
pub(crate) fn probs(operands: [&Tensor; 4], ty: &TensorType) -> Result<Tensor, InterpError> {
    let [z, temp, top_k, top_p] = operands;
    let (_, [vocab]) = last("probs C1", z)?;
    let logits = floats("probs C1", z)?;
    let (temps, counts, shares) = (floats("probs C2", temp)?, ints("probs C2", top_k)?, floats("probs C2", top_p)?);
    expect_axes("probs C3", ty, z.axes())?;
    result_dtype("probs C3", ty, DType::F32)?;
    if counts.len() != temps.len() || shares.len() != temps.len() || vocab == 0 {
        return Err(broken("probs C2", format!("{temp}, {top_k} and {top_p} have different rows")));
    }
    let lines = logits.len() / vocab;
    if temps.is_empty() || !lines.is_multiple_of(temps.len()) {
        return Err(broken("probs C2", format!("{z} has not the rows of {temp}")));
    }
    let per_row = lines / temps.len();
    let mut out = Vec::with_capacity(logits.len());
    for (line, row) in logits.chunks_exact(vocab).enumerate() {
        let i = line / per_row;
        out.extend(distribution(row, temps[i], counts[i], shares[i]));
    }
    Tensor::new(z.axes().to_vec(), DType::F32, Data::F32(out))
}

fn distribution(logits: &[f32], temperature: f32, top_k: i32, top_p: f32) -> Vec<f32> {
    if temperature == 0.0 {
        return one_hot(logits.len(), argmax(logits));
    }
    let kept = usize::try_from(top_k).ok().filter(|k| *k > 0).unwrap_or(logits.len()).min(logits.len());
    let best = numerics::top_ids(logits, kept);
    let scaled = |i: &usize| logits[*i] / temperature;
    let largest = best.first().map_or(0.0, scaled);
    let powers: Vec<f64> = best.iter().map(|i| f64::from(numerics::exp(scaled(i) - largest))).collect();
    let total: f64 = powers.iter().sum();
    let mut before = 0f64;
    let inside = powers.iter().take_while(|power| {
        let stays = before / total < f64::from(top_p);
        before += **power;
        stays
    });
    let count = inside.count();
    let total: f64 = powers[..count].iter().sum();
    let mut out = vec![0f32; logits.len()];
    best.iter().zip(&powers).take(count).for_each(|(i, power)| out[*i] = (power / total) as f32);
    out
}

/// One row of what a rule judges.
struct Judged<'t> {
    tokens: &'t [i32],
    /// Logits or distributions of the target, a line for each token and one more.
    target: Vec<&'t [f32]>,
    /// Candidates of each slot with their probabilities; none under the greedy rule.
    drafted: Vec<(&'t [i32], &'t [f32])>,
    coins: &'t [f32],
}

impl Judged<'_> {
    /// Probability that the drafter gave a token; 0 where what it says is none.
    fn drafted(&self, slot: usize, token: i32) -> f32 {
        let found = self.drafted.get(slot).and_then(|(ids, q)| ids.iter().zip(*q).find(|(id, _)| **id == token));
        found.map_or(0.0, |(_, q)| if *q > 0.0 && *q <= 1.0 { *q } else { 0.0 })
    }

    fn target(&self, slot: usize, token: i32) -> f32 {
        usize::try_from(token).ok().and_then(|i| self.target[slot].get(i).copied()).unwrap_or(0.0)
    }

    fn greedy(&self) -> usize {
        let hit = |(token, line): &(&i32, &&[f32])| argmax(line) as i32 == **token;
        self.tokens.iter().zip(&self.target).take_while(hit).count()
    }

    fn by_token(&self) -> usize {
        let stands = |(slot, token): &(usize, &i32)| {
            let q = self.drafted(*slot, **token);
            q > 0.0 && self.coins[*slot] * q < self.target(*slot, **token)
        };
        self.tokens.iter().enumerate().take_while(stands).count()
    }

    /// The longest run that stands as a whole, and its weight.
    fn by_block(&self) -> (usize, f64) {
        let slots = self.tokens.len();
        let mut weights = vec![1f64];
        for (slot, token) in self.tokens.iter().enumerate() {
            let (p, q) = (f64::from(self.target(slot, *token)), f64::from(self.drafted(slot, *token)));
            let quotient = if q > 0.0 { weights[slot] * p / q } else { 0.0 };
            weights.push(quotient.min(1.0));
        }
        for run in (1..=slots).rev() {
            let weight = weights[run];
            let mut bar = weight;
            if run < slots && weight > 0.0 && weight < 1.0 {
                let left: f64 = self.rest(run, weight).iter().sum();
                bar = left / (left + 1.0 - weight);
            }
            if f64::from(self.coins[run - 1]) < bar {
                return (run, weight);
            }
        }
        (0, 1.0)
    }

    /// `max(weight · p − q, 0)` behind a run; behind the whole block the target's own distribution.
    fn rest(&self, run: usize, weight: f64) -> Vec<f64> {
        let Some((ids, q)) = self.drafted.get(run) else {
            return self.target[run].iter().map(|p| f64::from(*p)).collect();
        };
        let mut left: Vec<f64> = self.target[run].iter().map(|p| weight * f64::from(*p)).collect();
        for (id, q) in ids.iter().zip(*q) {
            if let Some(x) = usize::try_from(*id).ok().and_then(|i| left.get_mut(i)) {
                *x -= f64::from(*q);
            }
        }
        left.into_iter().map(|x| x.max(0.0)).collect()
    }
}

/// The first token at which the running mass passes `coin` of the whole; the last one if none does.
fn drawn(rest: &[f64], coin: f32) -> i32 {
    let bar = f64::from(coin) * rest.iter().sum::<f64>();
    let mut mass = 0f64;
    let below = rest.iter().take_while(|r| {
        mass += **r;
        mass <= bar
    });
    below.count().min(rest.len().saturating_sub(1)) as i32
}

/// `accept`: how many drafted tokens stand, what follows them, and what that was drawn from.
pub(crate) fn accept(
    rule: AcceptRule,
    what: AcceptWhat,
    operands: &[&Tensor],
    ty: &TensorType,
) -> Result<Tensor, InterpError> {
    let (tokens, target, drawing) = match operands {
        [tokens, z] if !rule.draws() => (*tokens, *z, None),
        [tokens, p, ids, q, coin, last] if rule.draws() => (*tokens, *p, Some([*ids, *q, *coin, *last])),
        _ => return Err(broken("accept C1", format!("the rule `{}` takes other operands", rule.word()))),
    };
    let (rows, [slots]) = last("accept C1", tokens)?;
    let (target_rows, [block, vocab]) = last("accept C2", target)?;
    if rows != target_rows || block != slots + 1 || vocab == 0 {
        return Err(broken("accept C2", format!("{target} judges {tokens}")));
    }
    let n: usize = rows.iter().map(|a| a.1).product();
    let (ids_data, lines) = (ints("accept C1", tokens)?, floats("accept C2", target)?);
    let drawing = drawing.map(|d| Drawing::new(d, n * slots, n)).transpose()?;
    let (mut counts, mut bonuses, mut rests) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..n {
        let own = |list: usize| row * list..(row + 1) * list;
        let judged = Judged {
            tokens: &ids_data[own(slots)],
            target: lines[own(block * vocab)].chunks_exact(vocab).collect(),
            drafted: drawing.as_ref().map(|d| d.slots(own(slots))).unwrap_or_default(),
            coins: drawing.as_ref().map(|d| &d.coins[own(slots)]).unwrap_or_default(),
        };
        let (count, weight) = match rule {
            AcceptRule::Greedy => (judged.greedy(), 1.0),
            AcceptRule::Token => (judged.by_token(), 1.0),
            AcceptRule::Block => judged.by_block(),
        };
        counts.push(count as i32);
        match &drawing {
            None => bonuses.push(argmax(judged.target[count]) as i32),
            Some(d) => {
                let rest = judged.rest(count, weight);
                bonuses.push(drawn(&rest, d.last[row]));
                rests.extend(rest.into_iter().map(|x| x as f32));
            }
        }
    }
    let mut axes = rows.to_vec();
    let data = match what {
        AcceptWhat::Count => Data::I32(counts),
        AcceptWhat::Bonus => Data::I32(bonuses),
        AcceptWhat::Rest if drawing.is_some() => {
            axes.extend(target.axes().last().cloned());
            Data::F32(rests)
        }
        AcceptWhat::Rest => return Err(broken("accept C4", "a greedy rule leaves no rest")),
    };
    expect_axes("accept C4", ty, &axes)?;
    result_dtype("accept C4", ty, if what == AcceptWhat::Rest { DType::F32 } else { DType::I32 })?;
    Tensor::new(axes, ty.dtype, data)
}

/// What a rule that draws reads besides.
struct Drawing<'t> {
    ids: &'t [i32],
    q: &'t [f32],
    candidates: usize,
    coins: &'t [f32],
    last: &'t [f32],
}

impl<'t> Drawing<'t> {
    fn new([ids, q, coin, at_end]: [&'t Tensor; 4], slots: usize, rows: usize) -> Result<Self, InterpError> {
        let (_, [candidates]) = last("accept C3", ids)?;
        expect("accept C3", ids, slots * candidates)?;
        expect("accept C3", q, slots * candidates)?;
        expect("accept C3", coin, slots)?;
        expect("accept C3", at_end, rows)?;
        let (ids, q) = (ints("accept C3", ids)?, floats("accept C3", q)?);
        Ok(Drawing { ids, q, candidates, coins: floats("accept C3", coin)?, last: floats("accept C3", at_end)? })
    }

    fn slots(&self, range: std::ops::Range<usize>) -> Vec<(&'t [i32], &'t [f32])> {
        let own = |slot: usize| slot * self.candidates..(slot + 1) * self.candidates;
        range.map(|slot| (&self.ids[own(slot)], &self.q[own(slot)])).collect()
    }
}

#[cfg(test)]
#[path = "speculation_tests.rs"]
mod tests;

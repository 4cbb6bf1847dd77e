//! Acceptance by worked examples, and its distribution by going through every draft and every draw.

use super::*;
use crate::draft::Draft;
use crate::toy::certain;
use crate::{Sampling, TokenMask};
use std::collections::BTreeMap;
use std::sync::Arc;

fn rows(n: usize, sampling: Sampling) -> Vec<WantedRow> {
    (0..n).map(|row| WantedRow { row, sampling: Some(sampling.clone()), mask: None, logits: false }).collect()
}

fn warm() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

/// A block whose slots have the distributions `q`, of all ids.
fn block(drafts: &[u32], q: &[&[f32]], coins: &[f32], rule: AcceptRule) -> Block {
    let candidates = q.iter().flat_map(|q| 0..q.len() as u32).collect();
    let probabilities = q.iter().flat_map(|q| q.iter().copied()).collect();
    let draft = Arc::new(Draft { tokens: drafts.to_vec(), candidates, probabilities });
    Block { sequence: 0, wanted: 0, draft, rule, coins: coins.to_vec(), forced: None }
}

fn ids(block: &Block, rows: &[WantedRow], logits: &[Vec<f32>]) -> Vec<u32> {
    let (run, fault) = accept(block, rows, |row| &logits[row]);
    assert_eq!(fault, None);
    run.iter().map(|token| token.id).collect()
}

fn logs(p: &[f32]) -> Vec<f32> {
    p.iter().map(|p| p.ln()).collect()
}

/// One slot's draft, certain for the drafter.
fn sure(drafts: &[u32]) -> Block {
    let each = drafts.iter().map(|id| (0..50).map(|i| f32::from(u8::from(i == *id))).collect()).collect::<Vec<_>>();
    let q: Vec<&[f32]> = each.iter().map(Vec::as_slice).collect();
    block(drafts, &q, &vec![0.99; drafts.len() + 1], AcceptRule::Token)
}

#[test]
fn a_greedy_run_ends_at_the_first_other_choice() {
    let drafts = sure(&[11, 21, 32]);
    for (says, run) in
        [([11, 21, 40, 7], &[11, 21, 40][..]), ([9, 21, 32, 7], &[9]), ([11, 21, 32, 7], &[11, 21, 32, 7])]
    {
        let logits = says.map(|id| certain(50, id));
        for rule in [AcceptRule::Token, AcceptRule::Block] {
            let block = Block { rule, ..drafts.clone() };
            assert_eq!(ids(&block, &rows(4, Sampling::default()), &logits), run);
            // Draws that leave one token choose it as well.
            let one = Sampling { top_k: 1, ..warm() };
            assert_eq!(ids(&block, &rows(4, one), &logits), run);
        }
    }
}

#[test]
fn draws_accept_strictly_below_the_ratio() {
    let (p, q) = ([0.4f32, 0.1, 0.2, 0.3], [0.5f32, 0.3, 0.2, 0.0]);
    let logits = [logs(&p), logs(&p)];
    let run = |draft: u32, coin: f32| {
        let run = ids(&block(&[draft], &[&q], &[coin, 0.5], AcceptRule::Token), &rows(2, warm()), &logits);
        (run.len() == 2, run[0])
    };
    assert_eq!(run(0, 0.79), (true, 0));
    // What is left above the drafter's distribution is the last id alone.
    assert_eq!(run(0, 0.81), (false, 3));
    assert_eq!(run(1, 0.34), (false, 3));
    assert_eq!(run(1, 0.33), (true, 1));
    assert_eq!(run(2, 0.999), (true, 2));
    // A draft that its slot cannot have drawn is no draft: the row's own distribution follows.
    assert_eq!(run(3, 0.0), (false, 1));
}

/// Where an accept draw is as likely as any, it is enough to try the middles of equal parts that hold no threshold inside.
const PARTS: u32 = 60;
const LAST_PARTS: u32 = 4;

fn middles(n: u32) -> impl Iterator<Item = f32> + Clone {
    (0..n).map(move |i| (i as f32 + 0.5) / n as f32)
}

/// Distribution of each row after the rows before it: it depends on all of them.
fn model(before: &[u32]) -> [f32; 3] {
    let mut p = [0.5, 0.25, 0.25];
    p.rotate_right((before.iter().sum::<u32>() as usize + before.len()) % 3);
    p
}

/// What the drafter draws from, slot by slot.
const Q: [[f32; 3]; 2] = [[0.25, 0.5, 0.25], [0.125, 0.125, 0.75]];

/// Probabilities of all runs, by going through all drafts and draws, and how many tokens a run has on average.
fn enumerate(rule: AcceptRule) -> (BTreeMap<Vec<u32>, f64>, f64) {
    let mut found: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
    let mut tokens = 0.0;
    let each = 1.0 / f64::from(PARTS * PARTS * LAST_PARTS);
    let wanted = rows(3, warm());
    for (a, b) in (0..3u32).flat_map(|a| (0..3u32).map(move |b| (a, b))) {
        let weight = f64::from(Q[0][a as usize] * Q[1][b as usize]) * each;
        let logits = [model(&[]), model(&[a]), model(&[a, b])].map(|p| logs(&p));
        for u in middles(PARTS) {
            for v in middles(PARTS) {
                for last in middles(LAST_PARTS) {
                    let run = ids(&block(&[a, b], &[&Q[0], &Q[1]], &[u, v, last], rule), &wanted, &logits);
                    tokens += weight * run.len() as f64;
                    *found.entry(run).or_default() += weight;
                }
            }
        }
    }
    (found, tokens)
}

/// A run, continued by the model alone, has the model's distribution: over all sequences of three tokens.
#[test]
fn runs_have_the_models_distribution() {
    let mut lengths = Vec::new();
    for rule in [AcceptRule::Token, AcceptRule::Block] {
        let (found, length) = enumerate(rule);
        lengths.push(length);
        for all in 0..27u32 {
            let whole = [all / 9, all / 3 % 3, all % 3];
            let alone =
                |from: usize| -> f64 { (from..3).map(|i| f64::from(model(&whole[..i])[whole[i] as usize])).product() };
            let with: f64 = (1..=3).map(|n| found.get(&whole[..n]).copied().unwrap_or(0.0) * alone(n)).sum();
            // Weights are sums of multiples of powers of two and of 1/60 each.
            assert!((with - alone(0)).abs() < 1e-9, "{rule:?} {whole:?}: {with}, alone {}", alone(0));
        }
    }
    // By hand: the first draft stands in 3 of 4 cases under the token rule.
    assert!(lengths[0] > 1.75 && lengths[1] > lengths[0], "{lengths:?}");
}

/// Two slots of two tokens each: a known mean of either rule.
#[test]
fn the_block_rule_accepts_more() {
    let (p, q) = ([1.0f32 / 3.0, 2.0 / 3.0], [2.0f32 / 3.0, 1.0 / 3.0]);
    let logits = [logs(&p), logs(&p), logs(&p)];
    let mean = |rule| -> f64 {
        let mut sum = 0.0;
        for (a, b) in [(0u32, 0u32), (0, 1), (1, 0), (1, 1)] {
            let weight = f64::from(q[a as usize]) * f64::from(q[b as usize]);
            for (u, v) in middles(12).flat_map(|u| middles(12).map(move |v| (u, v))) {
                let run = ids(&block(&[a, b], &[&q, &q], &[u, v, 0.5], rule), &rows(3, warm()), &logits);
                sum += weight * (run.len() - 1) as f64 / 144.0;
            }
        }
        sum
    };
    let (token, block) = (mean(AcceptRule::Token), mean(AcceptRule::Block));
    assert!((token - 10.0 / 9.0).abs() < 1e-6, "{token}");
    assert!((block - 11.0 / 9.0).abs() < 1e-6, "{block}");
}

/// The last row may have to do with a draft that its mask rules out.
#[test]
fn an_inadmissible_draft_leaves_the_masked_distribution() {
    let (p, q) = ([0.5f32, 0.25, 0.25], [0.25f32, 0.5, 0.25]);
    let mask: TokenMask = vec![0b101];
    let mut found = [0.0; 3];
    for draft in 0..3u32 {
        for (u, last) in middles(12).flat_map(|u| middles(12).map(move |last| (u, last))) {
            let masked = WantedRow { mask: Some(mask.clone().into()), ..rows(1, warm()).remove(0) };
            let wanted = match draft {
                1 => vec![masked],
                _ => vec![masked, rows(1, warm()).remove(0)],
            };
            let run = ids(&block(&[draft], &[&q], &[u, last], AcceptRule::Token), &wanted, &[logs(&p), logs(&p)]);
            found[run[0] as usize] += f64::from(q[draft as usize]) / 144.0;
        }
    }
    // Of a half and a quarter.
    assert!((found[0] - 2.0 / 3.0).abs() < 1e-6 && found[1] == 0.0, "{found:?}");
}

#[test]
fn forced_runs_are_drafts_and_the_best_token() {
    let logits = [9, 8, 7, 6].map(|id| certain(50, id));
    for (forced, run) in [(1, &[9][..]), (3, &[11, 21, 7]), (4, &[11, 21, 32, 6]), (9, &[11, 21, 32, 6])] {
        let block = Block { forced: Some(forced), ..sure(&[11, 21, 32]) };
        assert_eq!(ids(&block, &rows(4, warm()), &logits), run);
    }
}

#[test]
fn what_cannot_be_read_ends_the_run_with_a_fault() {
    let mut logits = [11, 21, 32, 7].map(|id| certain(50, id));
    logits[2][4] = f32::NAN;
    for (rule, sampling) in [(AcceptRule::Token, Sampling::default()), (AcceptRule::Block, warm())] {
        let block = Block { rule, ..sure(&[11, 21, 32]) };
        let (run, fault) = accept(&block, &rows(4, sampling), |row| &logits[row]);
        assert_eq!(run.iter().map(|t| t.id).collect::<Vec<_>>(), [11, 21]);
        assert!(fault.is_some_and(|text| text.starts_with("E0202")));
    }
    // Behind the first rejection nobody looks.
    let block = sure(&[3, 21, 32]);
    assert_eq!(ids(&block, &rows(4, Sampling::default()), &logits), [11]);
}

#[test]
fn logprobs_are_those_of_each_row() {
    let s = Sampling { logprobs: Some(1), ..Sampling::default() };
    let logits = [vec![0.0, 1.0, 3.0], vec![2.0, 1.0, 0.0]];
    let block = block(&[2], &[&[0.0, 0.0, 1.0]], &[0.5, 0.5], AcceptRule::Token);
    let (run, _) = accept(&block, &rows(2, s.clone()), |row| &logits[row]);
    let alone = |row: usize| crate::sample(&logits[row], &s, None).unwrap();
    assert_eq!(run, [alone(0), alone(1)]);
}

//! What each parameter does to the choice, and what cannot be chosen.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const ROW: [f32; 4] = [1.0, 3.0, 3.0, 2.0];

fn id(logits: &[f32], sampling: &Sampling) -> u32 {
    sample(logits, sampling, None).unwrap().id
}

/// The ids that some draw of 2000 chooses.
fn drawn(logits: &[f32], sampling: Sampling) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..2000).map(|position| id(logits, &Sampling { position, ..sampling.clone() })).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn warm() -> Sampling {
    Sampling { temperature: 1.0, seed: 5, ..Sampling::default() }
}

#[test]
fn greedy_takes_the_lower_of_equal_logits() {
    assert_eq!(id(&ROW, &Sampling::default()), 1);
}

#[test]
fn filters_keep_what_they_say() {
    assert_eq!(drawn(&ROW, warm()), [0, 1, 2, 3]);
    assert_eq!(drawn(&ROW, Sampling { top_k: 2, ..warm() }), [1, 2]);
    assert_eq!(drawn(&ROW, Sampling { top_k: 3, ..warm() }), [1, 2, 3]);
    // exp(3) twice, exp(2), exp(1): shares 0.40, 0.40, 0.15, 0.05.
    assert_eq!(drawn(&ROW, Sampling { top_p: 0.3, ..warm() }), [1]);
    assert_eq!(drawn(&ROW, Sampling { top_p: 0.7, ..warm() }), [1, 2]);
    assert_eq!(drawn(&ROW, Sampling { top_p: 0.9, ..warm() }), [1, 2, 3]);
    // exp(-1) = 0.37 and exp(-2) = 0.14 of the most probable.
    assert_eq!(drawn(&ROW, Sampling { min_p: 0.3, ..warm() }), [1, 2, 3]);
    // Renormalised after top-k, the two threes share evenly.
    assert_eq!(drawn(&ROW, Sampling { top_k: 2, top_p: 0.45, ..warm() }), [1]);
}

#[test]
fn shares_of_draws_follow_the_distribution() {
    let n = 20_000;
    let ones = (0..n).filter(|p| id(&[0.0, 2.0], &Sampling { position: *p, temperature: 2.0, ..warm() }) == 1).count();
    let share = 1.0 / (1.0 + (-1.0f64).exp());
    // Six standard deviations of a binomial share.
    let bound = 6.0 * (share * (1.0 - share) / n as f64).sqrt();
    assert!((ones as f64 / n as f64 - share).abs() < bound, "{ones} of {n}, expected {share}");
}

#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let row: Vec<f32> = (0..64).map(|i| (i % 7) as f32 / 8.0).collect();
    let at = |seed, position| id(&row, &Sampling { seed, position, ..warm() });
    let line = |seed| (0..50).map(|p| at(seed, p)).collect::<Vec<_>>();
    assert_eq!(line(1), line(1));
    assert_ne!(line(1), line(2));
}

#[test]
fn bias_penalties_and_mask_move_the_choice() {
    let plain = Sampling::default();
    assert_eq!(id(&ROW, &Sampling { bias: vec![(3, 1.5)], ..plain.clone() }), 3);
    assert_eq!(id(&ROW, &Sampling { bias: vec![(1, f32::NEG_INFINITY)], ..plain.clone() }), 2);
    assert_eq!(id(&ROW, &Sampling { seen: vec![(1, 1, 0)], repetition_penalty: 1.1, ..plain.clone() }), 2);
    assert_eq!(id(&[-1.0, -1.05], &Sampling { seen: vec![(0, 0, 1)], repetition_penalty: 1.1, ..plain.clone() }), 1);
    // Frequency and presence look at the answer only.
    assert_eq!(id(&ROW, &Sampling { seen: vec![(1, 5, 0)], frequency_penalty: 1.0, ..plain.clone() }), 1);
    assert_eq!(id(&ROW, &Sampling { seen: vec![(1, 0, 3), (2, 0, 2)], frequency_penalty: 0.1, ..plain.clone() }), 2);
    assert_eq!(id(&ROW, &Sampling { seen: vec![(1, 0, 3), (2, 0, 1)], presence_penalty: 2.0, ..plain.clone() }), 3);
    assert_eq!(sample(&ROW, &plain, Some(&[0b1001])).unwrap().id, 3);
}

#[test]
fn logprobs_are_of_the_processed_row_at_temperature_one() {
    let s = Sampling { logprobs: Some(2), temperature: 0.0, ..Sampling::default() };
    let token = sample(&[0.0, 0.0, 0.0, -1e9], &s, Some(&[0b1011])).unwrap();
    let half = 0.5f32.ln();
    // One rounding in the sum's logarithm, one in the difference.
    assert!((token.logprob.unwrap() - half).abs() <= 2.0 * f32::EPSILON);
    assert_eq!(token.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
}

/// Logits as models have them: three draws from -1 to 1, times ten.
fn logits(n: u64) -> Vec<f32> {
    let draw = |i| numerics::uniform(11, i) * 2.0 - 1.0;
    (0..n).map(|i| (draw(3 * i) + draw(3 * i + 1) + draw(3 * i + 2)) * 10.0).collect()
}

#[test]
fn weights_have_the_same_sum_in_every_order() {
    let row = logits(1 << 18);
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for temperature in [0.3, 1.0, 5.0] {
        let weights: Vec<f64> = row.iter().map(|x| weight(*x, best, temperature)).collect();
        let forwards: f64 = weights.iter().sum();
        let backwards: f64 = weights.iter().rev().sum();
        let parts: f64 = weights.chunks(77).map(|part| part.iter().sum::<f64>()).rev().sum();
        assert_eq!([backwards, parts], [forwards; 2]);
        let exact: f64 = row.iter().map(|x| f64::from(numerics::exp((x - best) / temperature))).sum();
        // Half a unit each.
        assert!((forwards - exact).abs() <= row.len() as f64 / f64::from(WEIGHT_UNITS), "{forwards} and {exact}");
    }
}

#[test]
fn what_a_device_finds_is_reported_as_if_it_were_chosen_here() {
    let row = logits(500);
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for s in [
        Sampling { logprobs: Some(4), ..Sampling::default() },
        Sampling { logprobs: Some(0), ..warm() },
        Sampling { logprobs: Some(3), temperature: 0.6, top_k: 20, position: 9, ..warm() },
        Sampling { logprobs: Some(3), untouched_logprobs: true, ..warm() },
        warm(),
    ] {
        let wanted = sample(&row, &s, None).unwrap();
        let temperature = if s.temperature == 0.0 { 1.0 } else { s.temperature };
        let total = row.iter().map(|x| weight(*x, best, temperature)).sum();
        let mut top: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
        top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let found = Found { id: wanted.id, logit: row[wanted.id as usize], best, total, top };
        assert_eq!(found.report(&s), wanted);
    }
}

#[test]
fn what_cannot_be_chosen_is_an_error() {
    let plain = Sampling::default();
    let code = |r: Result<SampledToken, SampleError>| r.unwrap_err().to_string().chars().take(5).collect::<String>();
    assert_eq!(code(sample(&ROW, &plain, Some(&[0]))), "E0201");
    assert_eq!(code(sample(&[f32::NEG_INFINITY; 3], &plain, None)), "E0201");
    assert_eq!(code(sample(&[], &plain, None)), "E0201");
    assert_eq!(code(sample(&[0.0, f32::NAN], &plain, None)), "E0202");
    assert_eq!(code(sample(&[0.0, f32::INFINITY], &plain, None)), "E0202");
    assert_eq!(code(sample(&ROW, &plain, Some(&[1, 1]))), "E0205");
    assert_eq!(code(sample(&ROW, &Sampling { bias: vec![(4, 1.0)], ..plain.clone() }, None)), "E0204");
    assert_eq!(code(sample(&ROW, &Sampling { temperature: -1.0, ..plain.clone() }, None)), "E0203");
    assert_eq!(code(sample(&ROW, &Sampling { top_p: 0.0, ..plain.clone() }, None)), "E0203");
    assert_eq!(code(sample(&ROW, &Sampling { top_p: f32::NAN, ..plain.clone() }, None)), "E0203");
    assert_eq!(code(sample(&ROW, &Sampling { min_p: 1.5, ..plain.clone() }, None)), "E0203");
    assert_eq!(code(sample(&ROW, &Sampling { repetition_penalty: 0.0, ..plain }, None)), "E0203");
}

/// Rows of many logits are passed by in groups: the first of equal ones wins, and the first odd one is named, wherever they are.
#[test]
fn long_rows_are_looked_at_from_the_first_to_the_last() {
    let plain = Sampling::default();
    for at in [0, 31, 32, 63, 64, 98] {
        let mut row = [-1.0f32; 99];
        row[98] = 2.0;
        row[at] = 2.0;
        assert_eq!(sample(&row, &plain, None).unwrap().id, at as u32);
        row[98] = f32::NAN;
        row[at] = f32::INFINITY;
        let error = sample(&row, &plain, None).unwrap_err();
        assert!(matches!(error, SampleError::NotFinite { token, .. } if token == at), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Default::default() })]
    #[test]
    fn some_admissible_token_is_always_chosen(
        logits in proptest::collection::vec(prop_oneof![Just(f32::NEG_INFINITY), -50f32..50.0], 1..100),
        top_k in 0u32..5, top_p in 0.01f32..=1.0, min_p in 0f32..=1.0, temperature in 0f32..3.0, position: u64, words: [u32; 4],
    ) {
        let s = Sampling { top_k, top_p, min_p, temperature, position, logprobs: Some(3), ..Sampling::default() };
        let mask = &words[..logits.len().div_ceil(32)];
        let admissible = |i: usize| mask[i / 32] >> (i % 32) & 1 == 1 && logits[i].is_finite();
        match sample(&logits, &s, Some(mask)) {
            Ok(token) => {
                prop_assert!(admissible(token.id as usize));
                prop_assert!(token.logprob.unwrap() <= f32::EPSILON);
            }
            Err(SampleError::NoAdmissibleToken { .. }) => prop_assert!(!(0..logits.len()).any(admissible)),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

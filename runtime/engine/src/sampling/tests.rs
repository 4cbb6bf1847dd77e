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

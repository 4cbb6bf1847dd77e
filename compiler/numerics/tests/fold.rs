//! Every realisation of the order `fold` gives the bits of its definition.

use numerics::{
    ABSENT, GROUP, fold_by, fold_columns, fold_group, fold_halving, fold_map, fold_sum, same_bits, synthetic,
};
use proptest::prelude::*;

/// The definition, with absence spelt out.
fn by_definition(x: &[f32]) -> f32 {
    fn add(a: Option<f32>, b: Option<f32>) -> Option<f32> {
        match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        }
    }
    let mut sums: Vec<Option<f32>> = (0..x.len().div_ceil(8))
        .map(|g| {
            let e = |i: usize| x.get(8 * g + i).copied();
            let pair = |i| add(e(i), e(i + 1));
            add(add(pair(0), pair(2)), add(pair(4), pair(6)))
        })
        .collect();
    let mut p = sums.len().next_power_of_two();
    while p > 1 {
        sums =
            (0..p / 2).map(|i| add(sums.get(i).copied().flatten(), sums.get(i + p / 2).copied().flatten())).collect();
        p /= 2;
    }
    sums.first().copied().flatten().unwrap_or(0.0)
}

/// As `2^log` workers would: each owns the groups congruent to its number, halves them, then the workers halve.
fn by_workers(x: &[f32], log: u32) -> f32 {
    let workers = 1usize << log;
    let sums: Vec<f32> = x.chunks(GROUP).map(fold_group).collect();
    let mut partial: Vec<f32> = (0..workers)
        .filter(|w| *w < sums.len())
        .map(|w| fold_halving(&mut sums.iter().skip(w).step_by(workers).copied().collect::<Vec<_>>()))
        .collect();
    fold_halving(&mut partial)
}

/// As a kernel that cannot skip would: padded with the neutral element to a power of two of groups, all lanes always adding.
fn by_padding(x: &[f32]) -> f32 {
    let groups = x.len().div_ceil(GROUP).next_power_of_two();
    let mut padded = x.to_vec();
    padded.resize(groups * GROUP, ABSENT);
    // Lane j of 8 adds with lane j ^ 1, then ^ 2, then ^ 4: a shuffle tree.
    let mut sums: Vec<f32> = padded
        .chunks(GROUP)
        .map(|g| {
            let mut lanes: Vec<f32> = g.to_vec();
            for step in [1, 2, 4] {
                lanes = (0..GROUP).map(|j| lanes[j] + lanes[j ^ step]).collect();
            }
            lanes[0]
        })
        .collect();
    while sums.len() > 1 {
        let (low, high) = sums.split_at(sums.len() / 2);
        sums = low.iter().zip(high).map(|(a, b)| a + b).collect();
    }
    sums[0]
}

fn row(seed: u64, n: usize) -> Vec<f32> {
    (0..n as u64).map(|i| synthetic(seed, 1, i) * 10f32.powi(synthetic(seed, 2, i) as i32)).collect()
}

#[test]
fn a_short_group_skips_what_is_absent() {
    let x = [1e8f32, 1.0, -1e8, 1.0, 3.0];
    assert_eq!(fold_sum(&x), ((1e8f32 + 1.0) + (-1e8 + 1.0)) + 3.0);
    assert_eq!(fold_sum(&x[..3]), (1e8f32 + 1.0) + -1e8);
}

#[test]
fn zeros_keep_their_sign() {
    assert_eq!(fold_sum(&[]).to_bits(), 0);
    for n in [1, 3, 8, 9, 24, 25] {
        assert_eq!(fold_sum(&vec![-0.0; n]).to_bits(), 0x8000_0000, "{n}");
        assert_eq!(by_padding(&vec![-0.0; n]).to_bits(), 0x8000_0000, "{n}");
    }
}

#[test]
fn five_groups_halve_from_the_top() {
    // Groups of one element each, in effect: seven zeros change nothing.
    let g = [1.0f32, 2f32.powi(-24), 3.0, 5.0, 2f32.powi(-23)];
    let mut x = vec![ABSENT; 40];
    for (i, v) in g.iter().enumerate() {
        x[8 * i] = *v;
    }
    assert_eq!(fold_sum(&x), ((g[0] + g[4]) + g[2]) + (g[1] + g[3]));
}

#[test]
fn realisations_agree_at_every_length() {
    for n in (0..600).chain([1024, 5120, 16_384, 16_385, 20_480, 40_001]) {
        let x = row(n as u64, n);
        let wanted = by_definition(&x);
        assert!(same_bits(fold_sum(&x), wanted), "{n}");
        assert!(same_bits(fold_by(n, |i| x[i]), wanted), "{n}");
        if n > 0 {
            assert!(same_bits(by_padding(&x), wanted), "{n}");
            for log in 0..8 {
                assert!(same_bits(by_workers(&x, log), wanted), "{n} elements, 2^{log} workers");
            }
        }
    }
}

#[test]
fn a_mapped_sum_is_the_sum_of_the_mapped() {
    let x = row(3, 777);
    let squares: Vec<f32> = x.iter().map(|v| v * v).collect();
    assert_eq!(fold_map(&x, |v| v * v).to_bits(), fold_sum(&squares).to_bits());
}

#[test]
fn columns_are_rows_of_the_transpose() {
    for (n, width) in [(0, 3), (1, 1), (5, 4), (8, 7), (19, 3), (130, 5)] {
        let x = row(n as u64, n * width);
        let mut out = vec![1.0; width];
        fold_columns(&x, &mut out);
        for (c, sum) in out.iter().enumerate() {
            let column: Vec<f32> = (0..n).map(|i| x[i * width + c]).collect();
            assert!(same_bits(*sum, by_definition(&column)), "{n} × {width}, column {c}");
        }
    }
    fold_columns(&[1.0, 2.0], &mut []);
}

proptest! {
    #[test]
    fn any_bits_agree_with_the_definition(bits in prop::collection::vec(any::<u32>(), 0..200)) {
        let x: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        prop_assert!(same_bits(fold_sum(&x), by_definition(&x)));
    }
}

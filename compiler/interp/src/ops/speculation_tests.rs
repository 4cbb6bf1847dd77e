//! Hand-sized examples: a walk through a lattice, and the two rules that draw.

use super::*;
use ir::Axis;

fn axes(list: &[(&str, usize)]) -> Vec<(String, usize)> {
    list.iter().map(|(n, l)| ((*n).to_owned(), *l)).collect()
}

fn floats_of(list: &[(&str, usize)], data: Vec<f32>) -> Tensor {
    Tensor::new(axes(list), DType::F32, Data::F32(data)).expect("a tensor")
}

fn ints_of(list: &[(&str, usize)], data: Vec<i32>) -> Tensor {
    Tensor::new(axes(list), DType::I32, Data::I32(data)).expect("a tensor")
}

fn ty(dtype: DType, rows: bool, fixed: &[(&str, u64)]) -> TensorType {
    let rows = rows.then(|| Axis::rows("S"));
    TensorType::new(dtype, rows.into_iter().chain(fixed.iter().map(|(n, l)| Axis::fixed(*n, *l))).collect())
}

/// Three slots of three candidates; the row behind the first candidate of slot 1 is a tie.
fn lattice() -> [Tensor; 2] {
    let slot0 = [2.5, 2.8, 0.0];
    let rest = [
        2.0, 1.4, 2.0, 1.0, 1.9, 1.5, 0.0, 1.4, 0.0, //
        1.4, -0.4, 0.2, -1.1, -0.9, 2.2, 2.4, 1.6, -1.8,
    ];
    let score: Vec<f32> = slot0.iter().cycle().take(9).chain(&rest).copied().collect();
    let ids = vec![10, 11, 12, 20, 21, 22, 30, 31, 32];
    let shape = [("S", 1), ("slots", 3), ("before", 3), ("cand", 3)];
    [floats_of(&shape, score), ints_of(&[("S", 1), ("slots", 3), ("cand", 3)], ids)]
}

fn path(temperature: f32, coins: [f32; 3]) -> (Vec<i32>, Vec<f32>) {
    let [score, ids] = lattice();
    let (temp, coin) =
        (floats_of(&[("S", 1)], vec![temperature]), floats_of(&[("S", 1), ("slots", 3)], coins.to_vec()));
    let run = |what, ty: TensorType| walk(what, [&score, &ids, &temp, &coin], &ty).expect("a walk");
    let tokens = run(WalkWhat::Tokens, ty(DType::I32, true, &[("slots", 3)]));
    let probs = run(WalkWhat::Probs, ty(DType::F32, true, &[("slots", 3), ("cand", 3)]));
    (tokens.ints().expect("ids").to_vec(), probs.floats().expect("numbers").to_vec())
}

#[test]
fn a_greedy_walk_follows_the_scores_behind_each_choice() {
    let (tokens, probs) = path(0.0, [0.9; 3]);
    assert_eq!(tokens, [11, 21, 32]);
    assert_eq!(probs, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn a_drawn_walk_inverts_the_running_mass() {
    let (tokens, probs) = path(1.0, [0.5, 0.7, 0.1]);
    assert_eq!(tokens, [11, 22, 30]);
    let wanted = [0.411194, 0.555053, 0.033753, 0.195759, 0.481489, 0.322752, 0.682909, 0.306851, 0.010241];
    assert!(probs.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{probs:?}");
    let (tokens, probs) = path(0.5, [0.05, 0.62, 0.95]);
    assert_eq!(tokens, [10, 22, 31]);
    assert_eq!(probs[3], probs[5], "a tie");
    // A coin of exactly the running mass goes on; one near 1 stays at the last candidate.
    assert_eq!(path(1.0, [probs[0] * 0.0, 1.0, 1.0]).0[0], 10);
    assert_eq!(path(1.0, [1.0, 1.0, 1.0]).0, [12, 22, 32]);
}

/// One row: tokens, target lines, per slot a dense drafted distribution, coins, last coin.
fn judged(
    rule: AcceptRule,
    tokens: &[i32],
    p: &[Vec<f32>],
    q: &[Vec<f32>],
    coins: &[f32],
    coin: f32,
) -> (i32, i32, Vec<f32>) {
    let (slots, vocab) = (tokens.len(), p[0].len());
    let tokens = ints_of(&[("S", 1), ("slots", slots)], tokens.to_vec());
    let p = floats_of(&[("S", 1), ("block", slots + 1), ("vocab", vocab)], p.concat());
    let all = (0..slots).flat_map(|_| 0..vocab as i32).collect();
    let ids = ints_of(&[("S", 1), ("slots", slots), ("cand", vocab)], all);
    let q = floats_of(&[("S", 1), ("slots", slots), ("cand", vocab)], q.concat());
    let (coins, at_end) =
        (floats_of(&[("S", 1), ("slots", slots)], coins.to_vec()), floats_of(&[("S", 1)], vec![coin]));
    let run =
        |what, ty: TensorType| accept(rule, what, &[&tokens, &p, &ids, &q, &coins, &at_end], &ty).expect("a verdict");
    let row = ty(DType::I32, true, &[]);
    let number = |t: Tensor| t.ints().expect("a number")[0];
    let count = number(run(AcceptWhat::Count, row.clone()));
    let bonus = number(run(AcceptWhat::Bonus, row));
    let rest = run(AcceptWhat::Rest, ty(DType::F32, true, &[("vocab", vocab as u64)]));
    (count, bonus, rest.floats().expect("numbers").to_vec())
}

#[test]
fn a_token_stands_by_the_quotient_of_the_two_distributions() {
    let (p, q) = (vec![vec![0.4, 0.1, 0.2, 0.3]; 2], [vec![0.5, 0.3, 0.2, 0.0]]);
    let one = |token, u| judged(AcceptRule::Token, &[token], &p, &q, &[u], 0.5);
    assert_eq!(one(0, 0.79).0, 1);
    let (count, bonus, rest) = one(0, 0.80);
    assert_eq!((count, bonus), (0, 3));
    assert!(rest[..3].iter().all(|r| *r == 0.0) && (rest[3] - 0.3).abs() < 1e-6, "{rest:?}");
    assert_eq!(one(1, 0.34).0, 0);
}

/// Every draft, coin and bonus of two slots, integrated over a grid of coins: the first two committed tokens have the
/// target's law, whatever the drafter's is, and the block rule commits more than the token rule.
#[test]
fn both_rules_leave_the_targets_distribution() {
    let (p, q) = ([1.0 / 3.0, 2.0 / 3.0], [2.0 / 3.0, 1.0 / 3.0]);
    let grid = 60;
    let coin = |i: usize| (i as f32 + 0.5) / grid as f32;
    let mut means = Vec::new();
    for rule in [AcceptRule::Token, AcceptRule::Block] {
        let (mut first, mut mean) = ([0f64; 2], 0f64);
        for draft in 0..4 {
            let tokens = [draft / 2, draft % 2];
            let drafted = f64::from(q[tokens[0] as usize] * q[tokens[1] as usize]);
            for (a, b) in (0..grid * grid).map(|i| (coin(i / grid), coin(i % grid))) {
                let lines = vec![p.to_vec(); 3];
                let (count, _, rest) = judged(rule, &tokens, &lines, &[q.to_vec(), q.to_vec()], &[a, b], 0.5);
                let share = drafted / (grid * grid) as f64;
                mean += share * f64::from(count);
                let total: f64 = rest.iter().map(|r| f64::from(*r)).sum();
                match count {
                    0 => (0..2).for_each(|v| first[v] += share * f64::from(rest[v]) / total),
                    _ => first[tokens[0] as usize] += share,
                }
            }
        }
        assert!((first[0] - f64::from(p[0])).abs() < 0.01, "{rule:?}: {first:?}");
        means.push(mean);
    }
    assert!((means[0] - 10.0 / 9.0).abs() < 0.02 && (means[1] - 11.0 / 9.0).abs() < 0.02, "{means:?}");
}

#[test]
fn a_greedy_rule_takes_the_targets_best() {
    let verdict = |best: [usize; 4]| {
        let tokens = ints_of(&[("S", 1), ("slots", 3)], vec![11, 21, 32]);
        let z: Vec<f32> = best.iter().flat_map(|t| one_hot(50, *t)).collect();
        let z = floats_of(&[("S", 1), ("block", 4), ("vocab", 50)], z);
        let run =
            |what| accept(AcceptRule::Greedy, what, &[&tokens, &z], &ty(DType::I32, true, &[])).expect("a verdict");
        [AcceptWhat::Count, AcceptWhat::Bonus].map(|what| run(what).ints().expect("a number")[0])
    };
    assert_eq!(verdict([11, 21, 40, 7]), [2, 40]);
    assert_eq!(verdict([9, 21, 32, 7]), [0, 9]);
    assert_eq!(verdict([11, 21, 32, 7]), [3, 7]);
}

#[test]
fn a_distribution_keeps_the_most_likely() {
    let z = floats_of(&[("S", 1), ("vocab", 4)], vec![2.0, 3.0, 1.0, 2.0]);
    let run = |t: f32, k: i32, p: f32| {
        let one = |x| floats_of(&[("S", 1)], vec![x]);
        let out = probs([&z, &one(t), &ints_of(&[("S", 1)], vec![k]), &one(p)], &ty(DType::F32, true, &[("vocab", 4)]));
        out.expect("a distribution").floats().expect("numbers").to_vec()
    };
    assert_eq!(run(0.0, 0, 1.0), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(run(0.7, 1, 1.0), [0.0, 1.0, 0.0, 0.0]);
    let two = run(1.0, 2, 1.0);
    assert!(two[3] == 0.0 && two[2] == 0.0 && (two[0] + two[1] - 1.0).abs() < 1e-6, "ties to the lower index: {two:?}");
    assert_eq!(run(1.0, 0, 0.3), [0.0, 1.0, 0.0, 0.0]);
    assert!(run(1.0, 0, 1.0).iter().all(|p| *p > 0.0));
}

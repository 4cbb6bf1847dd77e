//! Larger, smaller, first: one answer each where IEEE leaves a choice (clause R4).

/// The larger of two; `+0` over `-0`; a NaN if either is one.
#[inline]
pub fn max_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if a == b {
        // Equal numbers differ in bits only as +0 and -0, where `and` keeps the plus.
        f32::from_bits(a.to_bits() & b.to_bits())
    } else if a > b {
        a
    } else {
        b
    }
}

/// The smaller of two; `-0` under `+0`; a NaN if either is one.
#[inline]
pub fn min_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else if a < b {
        a
    } else {
        b
    }
}

/// Whether two numbers are the same value of this project: equal bits, all NaNs being one value.
#[inline]
pub fn same_bits(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Whether `a` stands strictly before `b` in a selection of the largest. A NaN stands behind every number, `-inf`
/// included; `+0` and `-0`, and two NaNs, stand level. Level elements keep the order of their indices.
#[inline]
pub fn outranks(a: f32, b: f32) -> bool {
    a > b || (b.is_nan() && !a.is_nan())
}

/// Index of the largest element, the lowest among equals; `None` for an empty slice.
pub fn argmax(x: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, v) in x.iter().enumerate() {
        if best.is_none_or(|(_, b)| outranks(*v, b)) {
            best = Some((i, *v));
        }
    }
    best.map(|(i, _)| i)
}

/// Indices of the `k` largest, descending, equals by ascending index; all of them if there are fewer.
pub fn top_ids(x: &[f32], k: usize) -> Vec<usize> {
    let order = |a: &usize, b: &usize| {
        if outranks(x[*a], x[*b]) {
            std::cmp::Ordering::Less
        } else if outranks(x[*b], x[*a]) {
            std::cmp::Ordering::Greater
        } else {
            a.cmp(b)
        }
    };
    let mut ids: Vec<usize> = (0..x.len()).collect();
    if k == 0 {
        return Vec::new();
    }
    if k < ids.len() {
        ids.select_nth_unstable_by(k - 1, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ODD: [f32; 8] = [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];

    #[test]
    fn extremes_have_one_answer_in_either_order() {
        for a in ODD {
            for b in ODD {
                assert!(same_bits(max_f32(a, b), max_f32(b, a)), "{a} {b}");
                assert!(same_bits(min_f32(a, b), min_f32(b, a)), "{a} {b}");
                assert!(same_bits(min_f32(a, b), -max_f32(-a, -b)), "{a} {b}");
                assert_eq!(max_f32(a, b).is_nan(), a.is_nan() || b.is_nan());
            }
        }
        assert_eq!(max_f32(0.0, -0.0).to_bits(), 0);
        assert_eq!(min_f32(0.0, -0.0).to_bits(), 0x8000_0000);
    }

    #[test]
    fn ties_go_to_the_lower_index_and_nan_comes_last() {
        let x = [f32::NAN, 1.0, f32::NEG_INFINITY, 3.0, 1.0, 3.0, -0.0, 0.0];
        assert_eq!(top_ids(&x, 8), [3, 5, 1, 4, 6, 7, 2, 0]);
        assert_eq!(top_ids(&x, 3), [3, 5, 1]);
        assert_eq!(top_ids(&x, 0), [0usize; 0]);
        assert_eq!(top_ids(&x, 20).len(), 8);
        assert_eq!(argmax(&x), Some(3));
        assert_eq!(argmax(&[f32::NAN, f32::NAN]), Some(0));
        assert_eq!(argmax(&[]), None);
    }

    proptest! {
        #[test]
        fn a_selection_is_the_head_of_the_sorted_whole(x in prop::collection::vec(-3i8..3, 1..40), k in 1usize..12) {
            let x: Vec<f32> = x.into_iter().map(f32::from).collect();
            let whole = top_ids(&x, x.len());
            prop_assert!(whole.windows(2).all(|w| x[w[0]] > x[w[1]] || (x[w[0]] == x[w[1]] && w[0] < w[1])));
            prop_assert_eq!(&top_ids(&x, k)[..], &whole[..k.min(x.len())]);
            prop_assert_eq!(argmax(&x), whole.first().copied());
        }
    }
}

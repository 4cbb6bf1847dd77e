//! Losses from logits.

/// The losses of a sequence, row by row.
#[derive(Default)]
pub struct Losses {
    values: Vec<f32>,
}

impl Losses {
    /// Takes the logits of a row; `next` is the token that follows it, if one does.
    pub fn row(&mut self, logits: &[f32], next: Option<i32>) {
        if let Some(next) = next {
            self.values.push(loss(logits, next as usize) as f32);
        }
    }

    /// One loss per token: the first has nothing before it and counts as 0.
    pub fn finish(self, tokens: usize) -> Vec<f32> {
        std::iter::once(0.0).chain(self.values).take(tokens).collect()
    }
}

/// `-log softmax(logits)[token]`, in binary64.
pub fn loss(logits: &[f32], token: usize) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| (f64::from(*x) - f64::from(largest)).exp()).sum();
    let own = logits.get(token).map_or(f64::NAN, |x| f64::from(*x));
    f64::from(largest) - own + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_those_of_the_next_token() {
        let mut losses = Losses::default();
        losses.row(&[0.0, 0.0], Some(1));
        losses.row(&[1000.0, 0.0], Some(0));
        losses.row(&[0.0, 1000.0], None);
        assert_eq!(losses.finish(3), [0.0, std::f32::consts::LN_2, 0.0]);
        assert_eq!(Losses::default().finish(0), [0f32; 0]);
    }
}

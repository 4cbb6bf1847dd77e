//! Numbers about many measurements.

use serde_json::{Value, json};

/// The value below which a share of them lies, by the nearest rank; NaN of nothing.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Median, 90th and 99th percentile and mean of what is measured in `unit`.
pub fn spread(mut all: Vec<f64>, unit: &str) -> Value {
    all.sort_by(f64::total_cmp);
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let at = |share| number(percentile(&all, share));
    json!({"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "mean": number(mean), "count": all.len(), "unit": unit})
}

/// A number that JSON has; null for what was not measured.
pub fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { Value::Null }
}

/// Numbers that look random and are the same in every run.
#[derive(Clone, Debug)]
pub struct Draw(pub u64);

impl Draw {
    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.bits() >> 11) % end.max(1)
    }

    /// From 0 to 1, both excluded.
    pub fn share(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// A waiting time whose mean is `mean`: arrivals that know nothing of each other.
    pub fn wait(&mut self, mean: f64) -> f64 {
        -mean * self.share().ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!([0.5, 0.9, 0.99, 0.0].map(|p| percentile(&ten, p)), [5.0, 9.0, 10.0, 1.0]);
        assert!(percentile(&[], 0.5).is_nan() && spread(Vec::new(), "s")["p50"].is_null());
    }

    #[test]
    fn waits_have_their_mean() {
        let mut draw = Draw(1);
        let n = 20_000;
        let mean = (0..n).map(|_| draw.wait(2.0)).sum::<f64>() / f64::from(n);
        // The mean of n waits spreads by 2 / sqrt(n) = 0.014; seven of these.
        assert!((mean - 2.0).abs() < 0.1, "{mean}");
    }
}

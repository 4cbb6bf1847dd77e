//! What `beam-run tune` measured, as `beamc compile --tuning` takes it: a file outside the artifact.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What `format` says in every such file.
const FORMAT: &str = "beam-tuning";
/// Most bytes of such a file: a product takes a few hundred.
const MOST_BYTES: u64 = 1 << 24;

/// A product as far as the choice of its kernel depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Product {
    /// Rows of its weight.
    pub columns: u64,
    /// Terms of a sum.
    pub k: u64,
    /// Token rows that a tile holds.
    pub rows: u64,
}

/// A kernel for a start, with its sums cut into so many shares; its parameters and blocks are those of the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    /// Index of the start in its region.
    pub start: usize,
    /// What it computes.
    pub product: Product,
    /// Shares of a sum.
    pub shares: u64,
    /// Index into `DeviceCode::kernels`.
    pub kernel: usize,
}

/// What was measured of a product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The product.
    pub product: Product,
    /// Shares of a sum that took the least time.
    pub shares: u64,
    /// Microseconds by shares, medians.
    pub micros: BTreeMap<u64, f64>,
}

/// Everything measured on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "what `beam-run tune` writes")]
pub struct Tuning {
    format: String,
    /// Architecture, such as `sm_90a`.
    pub arch: String,
    /// Name of the device.
    pub device: String,
    /// Products in ascending order, each once.
    pub products: Vec<Tuned>,
}

impl Tuning {
    /// Measurements by product and shares: all times that were taken, microseconds. Of each the median counts.
    pub fn of(arch: &str, device: &str, times: BTreeMap<(Product, u64), Vec<f64>>) -> Tuning {
        let mut products: BTreeMap<Product, BTreeMap<u64, f64>> = BTreeMap::new();
        for ((product, shares), mut micros) in times {
            micros.sort_by(f64::total_cmp);
            let median = micros.get(micros.len() / 2).copied();
            products.entry(product).or_default().extend(median.map(|median| (shares, median)));
        }
        let tuned = |(product, micros): (Product, BTreeMap<u64, f64>)| {
            let (shares, _) = micros.iter().min_by(|a, b| a.1.total_cmp(b.1))?;
            Some(Tuned { product, shares: *shares, micros })
        };
        let products = products.into_iter().filter_map(tuned).collect();
        Tuning { format: FORMAT.to_owned(), arch: arch.to_owned(), device: device.to_owned(), products }
    }

    /// Reads a file for an architecture; the error says what is wrong with it.
    pub fn read(path: &Path, arch: &str) -> Result<Tuning, String> {
        let bytes = std::fs::metadata(path).map_err(|e| e.to_string())?.len();
        if bytes > MOST_BYTES {
            return Err(format!("it has {bytes} bytes, such a file has at most {MOST_BYTES}"));
        }
        let text = std::fs::read(path).map_err(|e| e.to_string())?;
        let tuning: Tuning = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        if tuning.format != FORMAT {
            return Err(format!("its format is `{}`, `{FORMAT}` is needed", tuning.format));
        }
        if tuning.arch != arch {
            return Err(format!("it was measured for {}, the target is {arch}", tuning.arch));
        }
        Ok(tuning)
    }

    /// Shares of a product's sums, if it was measured.
    pub fn shares(&self, product: &Product) -> Option<u64> {
        self.products.iter().find(|t| t.product == *product).map(|t| t.shares)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Tuning {
        let product = |rows| Product { columns: 512, k: 4096, rows };
        let times = [
            ((product(16), 1), vec![9.0, 5.0, 7.0]),
            ((product(16), 2), vec![6.5, 6.0, 90.0]),
            ((product(32), 1), vec![3.0]),
        ];
        Tuning::of("sm_90a", "a device", times.into_iter().collect())
    }

    #[test]
    fn the_least_median_counts() {
        let tuning = measured();
        assert_eq!(tuning.shares(&Product { columns: 512, k: 4096, rows: 16 }), Some(2));
        assert_eq!(tuning.shares(&Product { columns: 512, k: 4096, rows: 32 }), Some(1));
        assert_eq!(tuning.shares(&Product { columns: 512, k: 4096, rows: 64 }), None);
        assert_eq!(tuning.products[0].micros, BTreeMap::from([(1, 7.0), (2, 6.5)]));
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_refused_where_it_is_another() {
        let folder = std::env::temp_dir().join(format!("beam-tuning-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("tuning.json");
        let put = |text: &str| std::fs::write(&path, text).expect("a file");
        let text = serde_json::to_string(&measured()).expect("text");
        put(&text);
        assert_eq!(Tuning::read(&path, "sm_90a"), Ok(measured()));
        let refused = |arch: &str| Tuning::read(&path, arch).expect_err("a refusal");
        assert_eq!(refused("sm_103a"), "it was measured for sm_90a, the target is sm_103a");
        put(&text.replace(FORMAT, "other"));
        assert!(refused("sm_90a").starts_with("its format is `other`"));
        put("{}");
        assert!(refused("sm_90a").contains("format"));
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(!refused("sm_90a").is_empty());
    }
}

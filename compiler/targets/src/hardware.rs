//! Hardware facts: numbers of one device, each with its unit and the place it comes from.

use crate::error::TargetError;
use crate::file::FactFile;
use indexmap::IndexMap;

/// Every fact that a target may state: key, unit, what it measures.
pub(crate) const KEYS: [(&str, &str, &str); 14] = [
    ("memory_bytes", "byte", "device memory"),
    ("read_bytes_per_second", "byte/s", "memory read by one kernel"),
    ("copy_bytes_per_second", "byte/s", "memory read plus written by one kernel"),
    ("l2_bytes", "byte", "last cache before memory"),
    ("multiprocessors", "1", "units that run thread blocks"),
    ("shared_bytes_per_multiprocessor", "byte", "shared memory of a unit"),
    ("shared_bytes_per_block", "byte", "most shared memory of a thread block"),
    ("flops_f32", "operation/s", "binary32 arithmetic outside matrix units"),
    ("flops_bf16", "operation/s", "bf16 products added in binary32, matrix units"),
    ("flops_fp8", "operation/s", "fp8 products added in binary32, matrix units"),
    ("flops_fp4", "operation/s", "fp4 products with block scales, matrix units"),
    ("link_bytes_per_second", "byte/s", "to other devices of the mesh, one direction"),
    ("launch_seconds", "s", "from a kernel to the next inside a graph"),
    ("collective_seconds", "s", "exchange of a few kilobytes between all ranks"),
];

/// A number of the hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    /// The number.
    pub value: f64,
    /// Its unit, such as `byte/s`.
    pub unit: &'static str,
    /// What it measures.
    pub what: &'static str,
    /// Where it comes from.
    pub source: String,
}

/// What is known of the devices of a target; a target that states nothing has no floors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hardware {
    /// Facts by key.
    pub facts: IndexMap<&'static str, Fact>,
}

impl Hardware {
    /// A fact by its key.
    pub fn fact(&self, key: &str) -> Option<f64> {
        self.facts.get(key).map(|fact| fact.value)
    }

    /// Facts in the order of the list above.
    pub(crate) fn from_file(form: &IndexMap<String, FactFile>, file: &str) -> Result<Hardware, TargetError> {
        let mut facts = IndexMap::new();
        for (key, unit, what) in KEYS {
            let Some(fact) = form.get(key) else { continue };
            let wrong = |message: String, help: &str| TargetError {
                code: "T0105",
                place: file.to_owned(),
                message,
                help: help.to_owned(),
            };
            if !(fact.value.is_finite() && fact.value > 0.0) {
                return Err(wrong(
                    format!("`hardware.{key}` is {}", fact.value),
                    &format!("give a positive number of {unit}"),
                ));
            }
            if fact.source.trim().is_empty() {
                let help = "name the measurement or data sheet that it comes from";
                return Err(wrong(format!("`hardware.{key}` has no source"), help));
            }
            facts.insert(key, Fact { value: fact.value, unit, what, source: fact.source.clone() });
        }
        Ok(Hardware { facts })
    }
}

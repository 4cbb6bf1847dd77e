//! Any bytes as a JSON file of an artifact, its hash already forged: parsing and verifying may refuse but never panic.
//! The first byte names the file: `m` manifest, `w` weight recipes, `k` kernels, anything else kernels and plan in a pair.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| artifact::fuzz_json(bytes));

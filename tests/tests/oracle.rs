//! The fixtures of the repository agree with the independent implementation. The `oracle` program prints the table.

use suites::oracle::{Oracle, table};

fn holds(name: &str) {
    let rows = Oracle::open(&suites::fixture(name)).run();
    assert!(rows.len() >= 3, "{}", table(&rows));
    assert!(rows.iter().all(|r| r.holds), "{}", table(&rows));
}

#[test]
fn f32() {
    holds("beam-tiny-f32");
}

#[test]
fn bf16() {
    holds("beam-tiny-bf16");
}

#[test]
fn fp8() {
    holds("beam-tiny-fp8");
}

#[test]
fn nvfp4() {
    holds("beam-tiny-nvfp4");
}

#[test]
fn bf16_packed_and_sharded() {
    holds("beam-tiny-bf16-packed");
}

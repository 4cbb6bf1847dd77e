//! Measures the error of the elementary functions: `cargo run --release -p numerics --example ulp [name…]`.
//!
//! Every binary32 argument is tried (for odd and even functions every positive one), against the binary64 function of
//! the platform's mathematics library, whose error of under one binary64 unit is 2^-29 of the units counted here.
//! A unit is the distance between binary32 neighbours at the exact result. Takes some minutes; one line a function.

use std::ops::RangeInclusive;

/// Patterns of every positive number, infinity excluded.
const POSITIVE: RangeInclusive<u32> = 0..=0x7f7f_ffff;
/// Patterns of every negative number.
const NEGATIVE: RangeInclusive<u32> = 0x8000_0000..=0xff7f_ffff;

type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, &'static [RangeInclusive<u32>]);

const CASES: [Case; 7] = [
    ("exp", numerics::exp, f64::exp, &[POSITIVE, NEGATIVE]),
    ("sigmoid", numerics::sigmoid, logistic, &[POSITIVE, NEGATIVE]),
    ("log", numerics::log, f64::ln, &[POSITIVE]),
    ("log1p", numerics::log1p, f64::ln_1p, &[POSITIVE, NEGATIVE]),
    ("tanh", numerics::tanh, f64::tanh, &[POSITIVE]),
    ("sin", numerics::sin, f64::sin, &[POSITIVE]),
    ("cos", numerics::cos, f64::cos, &[POSITIVE]),
];

/// The logistic function; 0 where `exp(-x)` exceeds binary32, as its definition has it.
fn logistic(x: f64) -> f64 {
    let e = (-x).exp();
    if e as f32 == f32::INFINITY { 0.0 } else { 1.0 / (1.0 + e) }
}

/// Distance of binary32 neighbours at `y`.
fn unit(y: f64) -> f64 {
    let exponent = ((y.abs().to_bits() >> 52) as i32 - 1023).max(-126);
    f64::from_bits(((exponent - 23 + 1023) as u64) << 52)
}

/// Error in units; `None` where both are the same special value.
fn error_units(got: f32, exact: f64) -> Option<f64> {
    let rounded = exact as f32;
    if !rounded.is_finite() || !got.is_finite() {
        let same = numerics::same_bits(got, rounded);
        return if same { None } else { Some(f64::INFINITY) };
    }
    Some((f64::from(got) - exact).abs() / unit(exact))
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("| function | largest error (units) | at | not correctly rounded |");
    println!("|---|---|---|---|");
    for (name, function, oracle, ranges) in CASES {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let (mut worst, mut at, mut tried, mut off) = (0.0f64, 0.0f32, 0u64, 0u64);
        for bits in ranges.iter().cloned().flatten() {
            let x = f32::from_bits(bits);
            let exact = oracle(f64::from(x));
            tried += 1;
            let got = function(x);
            off += u64::from(!numerics::same_bits(got, exact as f32));
            if let Some(error) = error_units(got, exact)
                && error > worst
            {
                (worst, at) = (error, x);
            }
        }
        println!("| `{name}` | {worst:.3} | {at:e} | {:.2} % |", 100.0 * off as f64 / tried as f64);
    }
}

//! The elementary functions against a portable binary64 library, sampled over every exponent.
//!
//! The bounds are those of `docs/numerics.md`, measured over every binary32 argument by `examples/ulp.rs`.

type Case = (&'static str, fn(f32) -> f32, fn(f64) -> f64, f64);

const CASES: [Case; 7] = [
    ("exp", numerics::exp, libm::exp, 0.90),
    ("sigmoid", numerics::sigmoid, logistic, 2.49),
    ("log", numerics::log, libm::log, 0.85),
    ("log1p", numerics::log1p, libm::log1p, 0.85),
    ("tanh", numerics::tanh, libm::tanh, 1.07),
    ("sin", numerics::sin, libm::sin, 0.84),
    ("cos", numerics::cos, libm::cos, 0.84),
];

/// The logistic function; 0 where `exp(-x)` exceeds binary32, as its definition has it.
fn logistic(x: f64) -> f64 {
    let e = libm::exp(-x);
    if e as f32 == f32::INFINITY { 0.0 } else { 1.0 / (1.0 + e) }
}

fn unit(y: f64) -> f64 {
    let exponent = ((y.abs().to_bits() >> 52) as i32 - 1023).max(-126);
    f64::from_bits(((exponent - 23 + 1023) as u64) << 52)
}

fn check(bits: u32) {
    let x = f32::from_bits(bits);
    for (name, function, oracle, bound) in CASES {
        let exact = oracle(f64::from(x));
        let (got, rounded) = (function(x), exact as f32);
        if !rounded.is_finite() || !got.is_finite() {
            assert!(numerics::same_bits(got, rounded), "{name}({x:e}) is {got:e}, exactly {exact:e}");
            continue;
        }
        let error = (f64::from(got) - exact).abs() / unit(exact);
        assert!(error <= bound, "{name}({x:e}) is {got:e}, exactly {exact:e}: {error:.3} units");
    }
}

#[test]
fn errors_stay_below_the_stated_bounds() {
    // A step coprime to every power of two visits each exponent and sign about 1,600 times.
    (0..820_000u32).for_each(|i| check(i.wrapping_mul(5237).wrapping_mul(2_654_435_761)));
}

#[test]
fn errors_stay_below_the_stated_bounds_near_one() {
    // Where models live: 2^-4 … 2^5 of either sign.
    for bits in (0x3d80_0000u32..0x4200_0000).step_by(211) {
        check(bits);
        check(bits | 0x8000_0000);
    }
}

#[test]
fn rotary_angles_are_within_one_unit() {
    // Positions up to 2^20 times a few frequencies.
    for inverse in [1.0f32, 0.749_894_2, 0.1, 0.013_335_214, 1.154_781_9e-4] {
        for p in (0..1_048_576u32).step_by(97) {
            check((p as f32 * inverse).to_bits());
        }
    }
}

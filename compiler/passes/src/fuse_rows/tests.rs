//! Chains of row operations: text in, regions out.

use crate::testing::fused_regions as regions;

const ROWS: &str = "rows = true";

#[test]
fn a_norm_and_the_residual_around_it_are_one_region() {
    let text = regions(
        ROWS,
        "x = %z, n = %r",
        "%q: f32[T, hidden] = mul (%x, %x) \
         %s: f32[T] = reduce sum over hidden order fold (%q) \
         %t: f32[T, hidden] = mul (%x, %s) \
         %a: bf16[T, hidden] = round bf16 (%t) \
         %b: f32[T, hidden] = add (%a, %y) \
         %z: bf16[T, hidden] = round bf16 (%b) \
         %c: f32[T, hidden] = mul (%z, %z) \
         %d: f32[T] = reduce sum over hidden order fold (%c) \
         %e: f32[T, hidden] = mul (%z, %d) \
         %r: bf16[T, hidden] = round bf16 (%e)",
    );
    assert_eq!(text, "r rows 5 6 7 8 9 10 11 12 13 14");
}

#[test]
fn nothing_joins_around_a_product_that_stands_between() {
    // `b` reads the product and `a`; `a` and `b` in one region would wait for a product that waits for them.
    let text = regions(
        ROWS,
        "r = %b",
        "%a: f32[T, hidden] = exp (%x) \
         %p: f32[T, wide] = linear over [hidden] order any (%a, %w) \
         %n: f32[T, hidden] = rename wide to hidden (%p) \
         %b: f32[T, hidden] = add (%a, %n)",
    );
    assert_eq!(text, "a rows 5\np matmul 6\nb rows 7 8");
}

#[test]
fn rows_of_other_steps_are_picked_from_memory() {
    // Row t of the result reads another row of `a`, so `a` must be in memory, whole.
    let text = regions(
        "rows = true\ngather = true",
        "r = %b",
        "%a: f32[T, hidden] = exp (%x) \
         %i: i32<T>[three=3] = literal [2.0, 0.0, 1.0] \
         %g: f32[hidden, three=3] = gather over T (%a, %i) \
         %b: f32[hidden, three=3] = exp (%g)",
    );
    assert_eq!(text, "a rows 5\nb rows 7 8");
}

#[test]
fn halves_turn_inside_a_region() {
    let text = regions(
        ROWS,
        "r = %r",
        "%a: bf16[T, part] = slice hidden from 0 len 4 into part (%x) \
         %b: bf16[T, part] = slice hidden from 4 len 4 into part (%x) \
         %c: f32[T, part] = mul (%a, %b) \
         %d: f32[T, part] = sub (%b, %a) \
         %e: f32[T, hidden] = concat into hidden (%c, %d) \
         %r: bf16[T, hidden] = round bf16 (%e)",
    );
    assert_eq!(text, "r rows 5 6 7 8 9 10");
}

#[test]
fn a_target_without_the_flag_keeps_lookups_apart() {
    let values = "%g: bf16[T, hidden] = gather over wide (%w, %at) \
         %b: f32[T, hidden] = exp (%g)";
    assert_eq!(regions(ROWS, "r = %b", values), "g gather 5\nb rows 6");
    assert_eq!(regions("rows = true\ngather = true", "r = %b", values), "b rows 5 6");
}

//! One product and what follows it: text in, regions out.

use crate::testing::fused_regions as regions;

const ALL: &str = "rows = true\ngather = true\nstore = true\ncollective = true\ninterleave_granule = 8\n\
    epilogue = ['matmul', 'grouped_matmul', 'dot', 'attend']\nepilogue_row_elements = 4\nprologue = ['matmul']";

#[test]
fn a_round_and_what_is_done_element_by_element_join_a_product() {
    let text = regions(
        ALL,
        "r = %r",
        "%p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
         %a: bf16[T, wide] = round bf16 (%p) \
         %6: f32[T, wide] = exp (%a) \
         %r: bf16[T, wide] = round bf16 (%6)",
    );
    assert_eq!(text, "r matmul 5 6 7 8");
}

#[test]
fn what_would_only_widen_what_leaves_stays_outside() {
    // The square of a bf16 value is f32, and the value itself leaves too.
    let text = regions(
        ALL,
        "r = %r",
        "%p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
         %a: bf16[T, wide] = round bf16 (%p) \
         %q: f32[T, wide] = mul (%a, %a) \
         %s: f32[T] = reduce sum over wide order fold (%q) \
         %t: f32[T, wide] = mul (%a, %s) \
         %r: bf16[T, wide] = round bf16 (%t)",
    );
    assert_eq!(text, "a matmul 5 6\nr rows 7 8 9 10");
}

#[test]
fn rows_that_a_tile_holds_are_reduced_in_the_epilogue() {
    let chain = |order: &str| {
        format!(
            "%p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
             %h: f32[T, heads, head] = split wide (%p) \
             %a: bf16[T, heads, head] = round bf16 (%h) \
             %s: f32[T, heads] = reduce sum over head order {order} (%a) \
             %t: f32[T, heads, head] = mul (%a, %s) \
             %r: bf16[T, heads, head] = round bf16 (%t)"
        )
    };
    assert_eq!(regions(ALL, "r = %r", &chain("fold")), "r matmul 5 6 7 8 9 10");
    let narrow = ALL.replace("epilogue_row_elements = 4", "epilogue_row_elements = 2");
    assert_eq!(regions(&narrow, "r = %r", &chain("fold")), "a matmul 5 6 7\nr rows 8 9 10");
}

#[test]
fn parts_of_one_product_are_combined_where_a_layout_can_interleave_them() {
    let gated = |start: u64| {
        format!(
            "%p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
             %g: f32[T, part] = slice wide from 0 len 4 into part (%p) \
             %u: f32[T, part] = slice wide from {start} len 4 into part (%p) \
             %m: f32[T, part] = mul (%g, %u) \
             %r: bf16[T, part] = round bf16 (%m)"
        )
    };
    assert_eq!(regions(ALL, "r = %r", &gated(4)), "r matmul 5 6 7 8 9");
    // Parts that overlap lie nowhere side by side.
    assert_eq!(regions(ALL, "r = %r", &gated(2)), "u matmul 5 6 7\nr rows 8 9");
    let never = ALL.replace("interleave_granule = 8", "interleave_granule = 0");
    assert!(regions(&never, "r = %r", &gated(4)).contains("r rows"));
}

#[test]
fn what_only_the_epilogue_reads_is_computed_there_if_no_more_is_read() {
    // The bias is added to rows that are bf16 in memory; the round that makes them reads f32 and stays.
    let text = regions(
        ALL,
        "r = %r",
        "%e: f32[T, hidden] = exp (%y) \
         %g: bf16[T, hidden] = round bf16 (%e) \
         %k: f32[T, hidden] = add (%g, %v) \
         %l: bf16[T, hidden] = round bf16 (%k) \
         %p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
         %n: f32[T, hidden] = rename wide to hidden (%p) \
         %a: bf16[T, hidden] = round bf16 (%n) \
         %m: f32[T, hidden] = mul (%a, %l) \
         %r: bf16[T, hidden] = round bf16 (%m)",
    );
    assert_eq!(text, "r matmul 5 6 7 8 9 10 11 12 13");
}

#[test]
fn selections_make_a_product_a_router() {
    let text = regions(
        "epilogue = ['matmul']\nepilogue_row_elements = 8",
        "i = %i, w = %r",
        "%p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
         %i: i32<wide>[T, part] = top ids 4 over wide into part (%p) \
         %r: f32[T, part] = gather over wide (%p, %i)",
    );
    assert_eq!(text, "i route 5 6\nr gather 7");
    let text = regions(
        "gather = true\nepilogue = ['matmul']\nepilogue_row_elements = 8",
        "i = %i, w = %r",
        "%p: f32[T, wide] = linear over [hidden] order any (%x, %w) \
         %i: i32<wide>[T, part] = top ids 4 over wide into part (%p) \
         %r: f32[T, part] = gather over wide (%p, %i)",
    );
    assert_eq!(text, "r route 5 6 7");
}

#[test]
fn rows_are_picked_as_a_product_reads_them() {
    let text = regions(
        ALL,
        "r = %r",
        "%g: bf16[T, hidden] = gather over wide (%w, %at) \
         %p: f32[T, wide] = linear over [hidden] order any (%g, %w) \
         %r: bf16[T, wide] = round bf16 (%p)",
    );
    assert_eq!(text, "r matmul 5 6 7");
}

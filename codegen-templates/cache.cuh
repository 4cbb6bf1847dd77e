// The paged cache: where a row lies is data, strides and physical pages.
#pragma once
#include "fold.cuh"

constexpr int MOST_KINDS = 8;

// What a step brings besides its rows. Page tables hold the physical page of every page of a sequence, 0 where there is none.
struct Steps {
  const int* sequence;            // of every row
  const int* ends;                // last position of every sequence in this step
  const int* pages[MOST_KINDS];   // by KV kind: sequences by `width`
  int width;
  int start;                      // first position of which anything is cached
};

// Strides in elements, as the plan has them.
template <int PAGE_TOKENS, i64 PAGE, i64 TOKEN, i64 HEAD_STRIDE, i64 VALUE_OFFSET> struct CacheLayout {
  static constexpr u64 HEAD = HEAD_STRIDE, VALUE = VALUE_OFFSET;
  // First element of the first head's key at a position of a sequence; `slot` is where the layer begins in a page.
  static DEVICE u64 cell(const Steps* steps, int kind, int sequence, int position, i64 slot) {
    const int page = steps->pages[kind][(u64)sequence * steps->width + position / PAGE_TOKENS];
    return (u64)page * PAGE + slot + (u64)(position % PAGE_TOKENS) * TOKEN;
  }
};

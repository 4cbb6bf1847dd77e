// The order `fold`: pairwise inside aligned groups of 8, then group i with group i + P/2, halving. One tree, however many
// threads realise it. What is absent is -0, which changes no sum.
#pragma once
#include "numbers.cuh"

DEVICE float absent() { return from_bits(0x80000000u); }
DEVICE float nothing_larger() { return from_bits(0xff800000u); }

// An id inside the own part of an axis; -1 where another rank has it.
DEVICE int own_id(int id, int begin, int end) { return id >= begin && id < end ? id - begin : -1; }

DEVICE float pairwise(const float (&g)[8]) { return ((g[0] + g[1]) + (g[2] + g[3])) + ((g[4] + g[5]) + (g[6] + g[7])); }
DEVICE float largest(const float (&g)[8]) {
  return larger(larger(larger(g[0], g[1]), larger(g[2], g[3])), larger(larger(g[4], g[5]), larger(g[6], g[7])));
}

// Where a kernel ends with its core's numbers and computes nothing from them.
struct Nothing {
  template <class... Args> DEVICE void operator()(Args&&...) const {}
};

struct Sum { static DEVICE float join(float a, float b) { return a + b; } };
struct Max { static DEVICE float join(float a, float b) { return larger(a, b); } };

__device__ constexpr int power_above(int n) { int p = 1; while (p < n) p *= 2; return p; }

// Halves COUNT numbers of one thread from the top; the result stands first.
template <class Op, int COUNT> DEVICE float halve(float (&g)[COUNT]) {
  if constexpr (COUNT > 1) {
    constexpr int HALF = power_above(COUNT) / 2;
#pragma unroll
    for (int i = 0; i + HALF < COUNT; ++i) g[i] = Op::join(g[i], g[i + HALF]);
    float lower[HALF];
#pragma unroll
    for (int i = 0; i < HALF; ++i) lower[i] = g[i];
    return halve<Op, HALF>(lower);
  } else {
    return g[0];
  }
}

// One number per row, from GROUPS group results of each of THREADS threads (group j * THREADS + lane); the same in all of
// them. `meet` has THREADS places where several warps take part, and is used once.
template <class Op, int THREADS, int GROUPS> DEVICE float across(float (&g)[GROUPS], float* meet, int lane) {
  float x = halve<Op, GROUPS>(g);
  if constexpr (THREADS > 32) {
    constexpr int WARPS = THREADS / 32;
    meet[lane] = x;
    __syncthreads();
    float w[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; ++i) w[i] = meet[i * 32 + (lane & 31)];
    x = halve<Op, WARPS>(w);
  }
#pragma unroll
  for (int half = (THREADS > 32 ? 32 : THREADS) / 2; half > 0; half /= 2) x = Op::join(x, shuffle_xor(x, half));
  return x;
}

// A sum in one thread over N terms.
template <int N, class Term> DEVICE float fold_in_thread(Term term) {
  constexpr int GROUPS = (N + 7) / 8;
  float sums[GROUPS];
#pragma unroll
  for (int i = 0; i < GROUPS; ++i) {
    float g[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) g[k] = i * 8 + k < N ? term(i * 8 + k) : absent();
    sums[i] = pairwise(g);
  }
  return halve<Sum, GROUPS>(sums);
}
template <int N, class Term> DEVICE float serial_in_thread(Term term) {
  float total = term(0);
  for (int i = 1; i < N; ++i) total = total + term(i);
  return total;
}
template <int N, class Term> DEVICE float largest_in_thread(Term term) {
  float found = nothing_larger();
  for (int i = 0; i < N; ++i) found = larger(found, term(i));
  return found;
}
// How many of N elements stand before element `own` in descending order, equals by ascending index.
template <int N, class Term> DEVICE int rank_in_thread(Term term, int own) {
  const float x = term(own);
  int rank = 0;
  if (is_nan(x)) {
    for (int i = 0; i < N; ++i) rank += !is_nan(term(i)) || i < own ? 1 : 0;
    return rank;
  }
  // Where none of the two is a NaN, and a NaN compares with nothing.
#pragma unroll 8
  for (int i = 0; i < N; ++i) {
    const float y = term(i);
    rank += (i < own ? y >= x : y > x) ? 1 : 0;
  }
  return rank;
}
// The first K of N elements in the same order, found by a warp: `put(rank, element)` is called once for each, by one thread.
template <int N, int K, class Term, class Put> DEVICE void best_in_warp(Term term, int lane, Put put) {
  // Keys ascend as numbers do, a NaN below all; of equal ones the lower element has the larger key. 0 is none.
  constexpr int OWN = (N + 31) / 32;
  u64 keys[OWN];
#pragma unroll
  for (int i = 0; i < OWN; ++i) {
    const int at = i * 32 + lane;
    // Both zeros are equal.
    const float x = at < N ? term(at) + 0.0f : 0.0f;
    const u32 bits = to_bits(x), ascending = is_nan(x) ? 0 : bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    keys[i] = at < N ? (u64)ascending << 32 | (0xffffffffu - (u32)at) : 0;
  }
#pragma unroll 1
  for (int rank = 0; rank < K; ++rank) {
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < OWN; ++i) best = keys[i] > best ? keys[i] : best;
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      const u64 other = shuffle_xor(best, half);
      best = other > best ? other : best;
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) keys[i] = keys[i] == best ? 0 : keys[i];
    if (lane == 0) put(rank, (int)(0xffffffffu - (u32)best));
  }
}

// Attention over a paged cache: a block per token row and query head; its warps take 32 keys at a time in turn, each
// with a running largest score, and join at the end in the order of the warps.
#pragma once
#include "cache.cuh"

// HEADS query heads read HEADS / SHARE KV heads of D elements. WINDOW 0 sees all. `ends` is null for a causal mask, else the
// last position of each sequence in this step.
template <class Q, class KV, class S, int HEADS, int SHARE, int D, int WINDOW, bool ALL, int WARPS>
struct Attend {
  static constexpr int THREADS = WARPS * 32, PER_LANE = (D + 31) / 32;

  template <class Layout>
  static DEVICE void run(const Q* __restrict__ q, const KV* __restrict__ pool, const Steps* steps, int kind, i64 slot, const int* at,
                         const S* sink, float scale, float* __restrict__ out, int rows) {
    __shared__ float query[D];
    __shared__ float best[WARPS], weight[WARPS];
    __shared__ float sums[WARPS][D];
    wait_for_earlier();
    const int row = blockIdx.x / HEADS, head = blockIdx.x % HEADS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int i = threadIdx.x; i < D; i += THREADS) query[i] = load(q + ((u64)row * HEADS + head) * D + i);
    __syncthreads();
    const int sequence = steps->sequence[row], position = at[row];
    const int last = ALL ? steps->ends[sequence] : position;
    int first = WINDOW > 0 && position + 1 > WINDOW ? position + 1 - WINDOW : 0;
    first = first > steps->start ? first : steps->start;
    float largest_score = nothing_larger(), total = 0.0f;
    float acc[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) acc[i] = 0.0f;
    for (int base = first + warp * 32; base <= last; base += THREADS) {
      const int key = base + lane;
      const bool seen = key <= last;
      u64 cell = 0;
      float score = nothing_larger();
      if (seen) {
        cell = Layout::cell(steps, kind, sequence, key, slot) + (u64)(head / SHARE) * Layout::HEAD;
        float s = 0.0f;
        if constexpr (D % 8 == 0) {
#pragma unroll 4
          for (int i = 0; i < D; i += 8) {
            float k[8];
            load8(k, pool + cell + i);
#pragma unroll
            for (int j = 0; j < 8; ++j) s = fused(query[i + j], k[j], s);
          }
        } else {
          for (int i = 0; i < D; ++i) s = fused(query[i], load(pool + cell + i), s);
        }
        score = s * scale;
      }
      float highest = score;
#pragma unroll
      for (int half = 16; half > 0; half /= 2) highest = larger(highest, shuffle_xor(highest, half));
      highest = larger(highest, largest_score);
      const float kept = exponential(largest_score - highest);
      const float p = seen ? exponential(score - highest) : 0.0f;
      largest_score = highest;
      total = total * kept + p;
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) acc[i] = acc[i] * kept;
      const int count = last - base + 1 < 32 ? last - base + 1 : 32;
      for (int i = 0; i < count; ++i) {
        const float pi = shuffle(p, i);
        const KV* value = pool + shuffle(cell, i) + Layout::VALUE;
#pragma unroll
        for (int d = 0; d < PER_LANE; ++d)
          if (d * 32 + lane < D) acc[d] = fused(pi, load(value + d * 32 + lane), acc[d]);
      }
    }
#pragma unroll
    for (int half = 16; half > 0; half /= 2) total += shuffle_xor(total, half);
    if (lane == 0) { best[warp] = largest_score; weight[warp] = total; }
#pragma unroll
    for (int d = 0; d < PER_LANE; ++d)
      if (d * 32 + lane < D) sums[warp][d * 32 + lane] = acc[d];
    __syncthreads();
    float highest = sink != nullptr ? load(sink + head) : nothing_larger();
    for (int i = 0; i < WARPS; ++i) highest = larger(highest, best[i]);
    float all = 0.0f;
    for (int i = 0; i < WARPS; ++i) all += weight[i] * exponential(best[i] - highest);
    if (sink != nullptr) all += exponential(load(sink + head) - highest);
    for (int e = threadIdx.x; e < D; e += THREADS) {
      float sum = 0.0f;
      for (int i = 0; i < WARPS; ++i) sum += sums[i][e] * exponential(best[i] - highest);
      out[((u64)row * HEADS + head) * D + e] = quotient(sum, all);
    }
  }
};

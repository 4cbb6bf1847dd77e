// Products with a weight, one warp per output column and up to ROWS token rows at once: every weight is read once for
// them. Order of the sum: each lane adds its elements 8 at a time in ascending order, then the lanes halve.
#pragma once
#include "fold.cuh"

// How the rows of a weight alternate: GRANULE rows of the first of CUTS equal runs, as many of the second, and so on.
template <int CUTS, int GRANULE> DEVICE int logical_row(int rows, int row) {
  if constexpr (CUTS <= 1) return row;
  const int run = rows / CUTS, full = run / GRANULE * GRANULE;
  if (row < full * CUTS) return (row / GRANULE % CUTS) * run + row / (GRANULE * CUTS) * GRANULE + row % GRANULE;
  const int rest = row - full * CUTS, left = run - full;
  return rest / left * run + full + rest % left;
}

// The other way round: where row `logical` of the matrix stands; runs are made of whole granules.
template <int CUTS, int GRANULE> DEVICE int physical_row(int rows, int logical) {
  if constexpr (CUTS <= 1) return logical;
  const int run = rows / CUTS, inside = logical % run;
  return inside / GRANULE * (GRANULE * CUTS) + logical / run * GRANULE + inside % GRANULE;
}

template <class T> DEVICE void load_up_to_8(float (&x)[8], const T* p, int left) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i < left ? load(p + i) : 0.0f;
}

// out[row, column] = sum over k of x[row, k] * w[column, k]. Rows beyond `rows` are not read.
template <class X, class W, class Acc, int COLUMNS, int K, int CUTS, int GRANULE, int ROWS, int WARPS>
struct Product {
  static constexpr int THREADS = WARPS * 32;
  static constexpr bool WIDE = K % 8 == 0;

  // `x_row(m)` and `out_row(m)` are the numbers of the rows that stand m-th.
  template <class XRow, class OutRow>
  static DEVICE void tile(const X* __restrict__ x, const W* __restrict__ w, float* __restrict__ out, int column, int count,
                          XRow x_row, OutRow out_row) {
    if (ROWS > 1 && count == 1) some<1>(x, w, out, column, count, x_row, out_row);
    else some<ROWS>(x, w, out, column, count, x_row, out_row);
  }
  // A single row leaves registers for several pieces of the weight at once.
  template <int MOST, class XRow, class OutRow>
  static DEVICE void some(const X* __restrict__ x, const W* __restrict__ w, float* __restrict__ out, int column, int count,
                          XRow x_row, OutRow out_row) {
    constexpr int STEPS = (K + 255) / 256, AT_ONCE = MOST == 1 ? 5 : 1;
    const int lane = threadIdx.x & 31;
    Acc total[MOST];
#pragma unroll
    for (int m = 0; m < MOST; ++m) total[m] = 0;
    const W* weights = w + (u64)column * K;
#pragma unroll AT_ONCE
    for (int step = 0; step < STEPS; ++step) {
      const int k = lane * 8 + step * 256;
      if (K % 256 != 0 && k >= K) break;
      float a[8];
      if constexpr (WIDE) load8(a, weights + k);
      else load_up_to_8(a, weights + k, K - k);
#pragma unroll
      for (int m = 0; m < MOST; ++m) {
        float b[8];
        const X* from = x + (u64)x_row(m < count ? m : count - 1) * K + k;
        if constexpr (WIDE) load8(b, from);
        else load_up_to_8(b, from, K - k);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if constexpr (sizeof(Acc) == 8) total[m] = __fma_rn((double)a[i], (double)b[i], total[m]);
          else total[m] = fused(a[i], b[i], total[m]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < MOST; ++m) {
#pragma unroll
      for (int half = 16; half > 0; half /= 2) total[m] += shuffle_xor(total[m], half);
      if (m < count && lane == 0) out[(u64)out_row(m) * COLUMNS + logical_row<CUTS, GRANULE>(COLUMNS, column)] = (float)total[m];
    }
  }

  // The rows of a block from `begin` on, as a route has them.
  static constexpr int SHARED = 0;
  static DEVICE void block(const X* x, const W* w, float* out, int begin, int count, u8*) {
    const int column = blockIdx.x * WARPS + (threadIdx.x >> 5);
    auto row = [&](int m) { return begin + m; };
    if (column < COLUMNS) tile(x, w, out, column, count, row, row);
  }

  // Dense: grid (columns over WARPS, rows over ROWS).
  static DEVICE void dense(const X* x, const W* w, float* out, int rows) {
    wait_for_earlier();
    const int column = blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int first = blockIdx.y * ROWS;
    if (column >= COLUMNS || first >= rows) return;
    auto row = [&](int m) { return first + m; };
    tile(x, w, out, column, rows - first < ROWS ? rows - first : ROWS, row, row);
  }

  // Each pick reads the slice of the weight that its id names; -1 names none. Grid (columns over WARPS, picks).
  static DEVICE void picked(const X* x, const W* w, const int* ids, float* out, int picks, int picks_per_row) {
    wait_for_earlier();
    const int column = blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int pick = blockIdx.y;
    if (column >= COLUMNS || pick >= picks) return;
    const int id = ids[pick];
    if (id < 0) {
      if ((threadIdx.x & 31) == 0) out[(u64)pick * COLUMNS + logical_row<CUTS, GRANULE>(COLUMNS, column)] = absent();
      return;
    }
    auto from = [&](int) { return pick / picks_per_row; };
    auto to = [&](int) { return pick; };
    tile(x, w + (u64)id * COLUMNS * K, out, column, 1, from, to);
  }
};

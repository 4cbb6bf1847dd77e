// Products of many bf16 rows with a bf16 weight on the matrix units: tiles of 128 rows by 128 columns, the summed axis in
// steps of 32 through a ring of STAGES copies. A row's sum does not depend on which rows stand beside it.
#pragma once
#include "product.cuh"

template <int COLUMNS, int K, int CUTS, int GRANULE> struct Tiles {
  static constexpr int ROWS = 128, WIDTH = 128, STEP = 32, STAGES = 2, THREADS = 256;
  static constexpr int PITCH = STEP + 8;  // 80 bytes: eight rows of a matrix lie in different banks
  static constexpr int STEPS = (K + STEP - 1) / STEP;
  static_assert(K % 8 == 0, "rows of 16-byte pieces");

  static DEVICE void fetch(bf16 (&to)[128][PITCH], const bf16* from, int first, int rows, int k) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = threadIdx.x + i * THREADS, row = piece / 4, at = k + piece % 4 * 8;
      const bool there = first + row < rows && at < K;
      copy16(shared_address(&to[row][piece % 4 * 8]), from + (there ? (u64)(first + row) * K + at : 0), there);
    }
  }

  // Grid (tiles along the columns, tiles along the rows).
  static DEVICE void dense(const bf16* x, const bf16* w, float* out, int rows) {
    __shared__ alignas(16) bf16 a[STAGES][ROWS][PITCH];
    __shared__ alignas(16) bf16 b[STAGES][WIDTH][PITCH];
    const int first = blockIdx.y * ROWS, column = blockIdx.x * WIDTH;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int m0 = warp % 4 * 32, n0 = warp / 4 * 64;  // a warp has 32 rows by 64 columns
    float c[2][8][4];
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) c[i][j][e] = 0.0f;
    wait_for_earlier();
    fetch(a[0], x, first, rows, 0);
    fetch(b[0], w, column, COLUMNS, 0);
    copies_end_here();
    for (int step = 0; step < STEPS; ++step) {
      const int now = step % STAGES;
      if (step + 1 < STEPS) {
        fetch(a[1 - now], x, first, rows, (step + 1) * STEP);
        fetch(b[1 - now], w, column, COLUMNS, (step + 1) * STEP);
      }
      copies_end_here();
      wait_for_copies<1>();
      __syncthreads();
#pragma unroll
      for (int k = 0; k < STEP; k += 16) {
        u32 left[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) load_matrices(left[i], shared_address(&a[now][m0 + i * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          u32 right[4];
          load_matrices(right, shared_address(&b[now][n0 + j * 16 + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            multiply_matrices(c[i][j * 2], left[i], right[0], right[1]);
            multiply_matrices(c[i][j * 2 + 1], left[i], right[2], right[3]);
          }
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = first + m0 + i * 16 + lane / 4 + e / 2 * 8, at = column + n0 + j * 8 + lane % 4 * 2 + e % 2;
          if (row < rows && at < COLUMNS) out[(u64)row * COLUMNS + logical_row<CUTS, GRANULE>(COLUMNS, at)] = c[i][j][e];
        }
  }
};

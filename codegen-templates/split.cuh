// Products of rows of bf16 with a weight of binary32 on the matrix units. A number of the weight is the sum of three of bf16, exactly, so
// every term is exact; what is added in binary32 is a short run along k, and runs are added in binary64.
#pragma once
#include "fold.cuh"

// ROWS token rows of a block, 16 columns of a warp; SPLIT warps share the columns out along k. A warp reads AHEAD steps before it needs them.
template <class W, int COLUMNS, int K, int ROWS, int SPLIT, int WARPS, int AHEAD> struct Split {
  static constexpr int THREADS = WARPS * 32, ACROSS = WARPS / SPLIT * 16, STEPS = (K + 31) / 32, EACH = (STEPS + SPLIT - 1) / SPLIT;
  static constexpr int RUN = 16, PARTS = sizeof(W) == 2 ? 1 : 3;
  static constexpr int SHARED = SPLIT > 1 ? SPLIT * ROWS * ACROSS * 8 : 0;
  static_assert(ROWS % 8 == 0 && WARPS % SPLIT == 0 && K % 8 == 0 && RUN % AHEAD == 0, "whole pieces");

  // What a thread reads of 32 elements along k: four threads share a row, each has 8 that stand side by side.
  struct Step {
    Words4 x[ROWS / 8];
    float w[2][8];
  };
  static DEVICE void read(Step& to, const bf16* x, const W* w, int column, int count, int step, int end) {
    const int lane = threadIdx.x & 31, place = lane / 4, k = step * 32 + lane % 4 * 8;
    const bool there = step < end && k < K;
    // Rows and columns that are not there are read as the last ones.
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i) {
      const int m = i * 8 + place < count ? i * 8 + place : count - 1;
      to.x[i] = there ? *(const Words4*)(x + (u64)m * K + k) : Words4{0, 0, 0, 0};
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int n = column + j * 8 + place < COLUMNS ? column + j * 8 + place : COLUMNS - 1;
      load8(to.w[j], w + (u64)n * K + (there ? k : 0));
    }
  }

  // The elements 4 h to 4 h + 3 of each thread are the 16 of one product.
  static DEVICE void multiply(float (&c)[ROWS / 8][4], const Step& of) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float rest[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) rest[j][e] = of.w[j][h * 4 + e];
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        u32 a[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          float& low = rest[p % 2][p / 2 * 2];
          float& high = rest[p % 2][p / 2 * 2 + 1];
          a[p] = bf16_pair(low, high);
          low = low - from_bits(a[p] << 16);
          high = high - from_bits(a[p] & 0xffff0000u);
        }
#pragma unroll
        for (int i = 0; i < ROWS / 8; ++i) {
          const Words4& x = of.x[i];
          multiply_matrices(c[i], a, h ? x.c : x.a, h ? x.d : x.b);
        }
      }
    }
  }

  // Thread t has columns t / 4 and 8 more, and two rows of each eight.
  template <class Put> static DEVICE void each(const double (&total)[ROWS / 8][4], int column, const Put& put) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) put(i * 8 + lane % 4 * 2 + e % 2, column + lane / 4 + e / 2 * 8, total[i][e]);
  }

  // out[row, column] of `count` rows from `begin` on; `shared` is memory of the block.
  static DEVICE void block(const bf16* all, const W* w, float* out, int begin, int count, u8* shared) {
    const int warp = threadIdx.x / 32, share = warp % SPLIT;
    const int first = blockIdx.x * ACROSS, column = first + warp / SPLIT * 16;
    const bf16* x = all + (u64)begin * K;
    const int end = (share + 1) * EACH < STEPS ? (share + 1) * EACH : STEPS;
    double total[ROWS / 8][4];
    float run[ROWS / 8][4];
#pragma unroll
    for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) total[i][e] = run[i][e] = 0;
    if (column < COLUMNS) {
      Step steps[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) read(steps[a], x, w, column, count, share * EACH + a, end);
      for (int step = share * EACH; step < end; step += RUN) {
#pragma unroll 1
        for (int inner = 0; inner < RUN && step + inner < end; inner += AHEAD) {
#pragma unroll
          for (int a = 0; a < AHEAD; ++a) {
            const Step now = steps[a];
            read(steps[a], x, w, column, count, step + inner + a + AHEAD, end);
            multiply(run, now);
          }
        }
#pragma unroll
        for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            total[i][e] += (double)run[i][e];
            run[i][e] = 0;
          }
      }
    }
    if constexpr (SPLIT == 1) {
      each(total, column, [&](int m, int n, double x) {
        if (m < count && n < COLUMNS) out[(u64)(begin + m) * COLUMNS + n] = (float)x;
      });
    } else {
      double(*shares)[ROWS][ACROSS] = (double(*)[ROWS][ACROSS])shared;
      each(total, column, [&](int m, int n, double x) { shares[share][m][n - first] = x; });
      __syncthreads();
      for (int at = threadIdx.x; at < count * ACROSS; at += THREADS) {
        const int m = at / ACROSS, n = at % ACROSS;
        double sum = 0;
#pragma unroll
        for (int s = 0; s < SPLIT; ++s) sum += shares[s][m][n];
        if (first + n < COLUMNS) out[(u64)(begin + m) * COLUMNS + first + n] = (float)sum;
      }
    }
  }
};

// ---- m_rows_745cae55.cu
// region `m` (rows)
// rows [T], a group of 8 elements a thread
//   const int* p0: i32[T] pos
//   float* p1: f32[T] m
#include "cache.cuh"

constexpr int LANES = 1;
extern "C" __global__ void __launch_bounds__(256) m_rows_745cae55(const int rows, const int* p0, float* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 1;  // T
  const int m2 = load(p0 + (u64)i1);
  const float v3 = (float)m2 + 1.0f;
  const float n0 = v3;
  const float v4 = quotient(n0, 2048.0f);
  const float n1 = v4;
  const float v5 = log_one_plus(n1);
  const float n2 = v5;
  const float v6 = 0.1f * n2;
  const float n3 = v6;
  const float v7_m = exponential(n3);
  const float n4 = v7_m;
  if (lane == 0) store(p1 + (u64)i1, n4);
}

// ---- s_rows_eb503b7d.cu
// region `s` (rows)
// rows [T], a group of 8 elements a thread
//   const int* p0: i32[T] pos
//   float* p1: f32[T, half] c
//   float* p2: f32[T, half] s
#include "cache.cuh"

constexpr int LANES = 2;
__constant__ const float literal0[16] = {1.0f, 0.56234133f, 0.31622776f, 0.17782794f, 0.1f, 0.05623413f, 0.03162278f, 0.017782794f, 0.01f, 0.0056234132f, 0.0031622779f, 0.0017782794f, 0.001f, 0.0005623413f, 0.0003162278f, 0.00017782794f};
extern "C" __global__ void __launch_bounds__(256) s_rows_eb503b7d(const int rows, const int* p0, float* p1, float* p2) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 1;  // T
  // stage 0: 16 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 16) {
      float o6[8];
      float o8[8];
      const int m2 = load(p0 + (u64)i1);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float c3 = literal0[e + k];
        const float v4_rope_angles_angle = (float)m2 * c3;
        const float v5_c = cosine(v4_rope_angles_angle);
        o6[k] = v5_c;
        const float v7_s = sine(v4_rope_angles_angle);
        o8[k] = v7_s;
      }
      store8(p1 + (u64)e + (u64)i1 * 16, o6);
      store8(p2 + (u64)e + (u64)i1 * 16, o8);
    }
  }
}

// ---- norm_rows_32ac1590.cu
// region `norm` (rows)
// rows [T], 32 threads a row
//   const int* p0: i32[T] tokens
//   const bf16* p1: bf16[vocab, hidden] embed
//   bf16* p2: bf16[T, hidden] x
//   const bf16* p3: bf16[hidden] input_norm
//   bf16* p4: bf16[T, hidden] norm
#include "cache.cuh"

constexpr int LANES = 32;
extern "C" __global__ void __launch_bounds__(256) norm_rows_32ac1590(const int rows, const int* p0, const bf16* p1, bf16* p2, const bf16* p3, bf16* p4) {
  wait_for_earlier();
  if (blockIdx.x * 8 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 8 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  // stage 0: 192 elements
  float r0[1][8];
  float g2[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g2[j] = absent();
    if (e < 192) {
      float o6[8];
      float t2[8];
      const int m2 = load(p0 + (u64)i1);
      const int at3 = m2 < 0 ? 0 : m2;
      float m4[8]; load8(m4, p1 + (u64)at3 * 192 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5_x = m2 < 0 ? absent() : m4[k];
        r0[j][k] = v5_x;
        o6[k] = v5_x;
        const float v7 = v5_x * v5_x;
        t2[k] = v7;
      }
      if (live) store8(p2 + (u64)e + (u64)i1 * 192, o6);
      g2[j] = pairwise(t2);
    }
  }
  const float n2 = across<Sum, LANES>(g2, nullptr, lane);
  const float v8 = quotient(n2, 192.0f);
  const float n3 = v8;
  const float v9 = n3 + 1e-6f;
  const float n4 = v9;
  const float v10 = root(n4);
  const float n5 = v10;
  const float v11 = quotient(1.0f, n5);
  const float n6 = v11;
  // stage 2: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o16[8];
      float m13[8]; load8(m13, p3 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v12 = r0[j][k] * n6;
        const float v14 = v12 * m13[k];
        const float v15_norm = round_bf16(v14);
        o16[k] = v15_norm;
      }
      if (live) store8(p4 + (u64)e + (u64)i1 * 192, o16);
    }
  }
}

// ---- attention_k_3_matmul_16_bf4aa8fd.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "stream.cuh"

using Core = Stream<896, 192, 1, 1, 16, 12, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_k_3_matmul_16_bf4aa8fd(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- attention_k_3_matmul_32_febf6a4f.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "stream.cuh"

using Core = Stream<896, 192, 1, 1, 32, 10, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_k_3_matmul_32_febf6a4f(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 221872, "a block");

// ---- attention_k_3_matmul_64_572e3d12.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "stream.cuh"

using Core = Stream<896, 192, 1, 1, 64, 8, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_k_3_matmul_64_572e3d12(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213648, "a block");

// ---- attention_k_3_matmul_128_3de306e6.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "stream.cuh"

using Core = Stream<896, 192, 1, 1, 128, 6, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_k_3_matmul_128_3de306e6(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213616, "a block");

// ---- attention_k_3_matmul_256_ef298b81.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "stream.cuh"

using Core = Stream<896, 192, 1, 1, 256, 4, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_k_3_matmul_256_ef298b81(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213584, "a block");

// ---- attention_k_3_rows_97665896.cu
// region `attention.k#3` (matmul)
// rows [T, heads], 4 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[head_dim] q_norm
//   const float* p2: f32[T, half] c
//   const float* p3: f32[T, half] s
//   bf16* p4: bf16[T, heads, head_dim] attention.q#3
// region `attention.k#3` (matmul)
// rows [T, kv_heads], 4 threads a row
//   const int* p2: i32[T] pos
//   const float* p3: scratch
//   const bf16* p4: bf16[head_dim] k_norm
//   const float* p5: f32[T, half] c
//   const float* p6: f32[T, half] s
// region `attention.k#3` (matmul)
// rows [T, kv_heads], a group of 8 elements a thread
//   const int* p2: i32[T] pos
//   const float* p3: scratch
// region `attention.k#3` (matmul)
// rows [T, heads], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, heads, head_dim] attention.g
#include "cache.cuh"

namespace part0 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const float* p0, const bf16* p1, const float* p2, const float* p3, bf16* p4) {
  wait_for_earlier();
  if (blockIdx.x * 64 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 64 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 12;  // T
  const int i2 = row / 1 % 12;  // heads
  // stage 0: 32 elements
  float r2[1][8];
  float g4[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g4[j] = absent();
    if (e < 32) {
      float t4[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_attention_q = round_bf16(m3[k]);
        r2[j][k] = v4_attention_q;
        const float v5 = v4_attention_q * v4_attention_q;
        t4[k] = v5;
      }
      g4[j] = pairwise(t4);
    }
  }
  const float n4 = across<Sum, LANES>(g4, nullptr, lane);
  const float v6 = quotient(n4, 32.0f);
  const float n5 = v6;
  const float v7 = n5 + 1e-6f;
  const float n6 = v7;
  const float v8 = root(n6);
  const float n7 = v8;
  const float v9 = quotient(1.0f, n7);
  const float n8 = v9;
  __shared__ float s11[64][32];
  // stage 2: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float m11[8]; load8(m11, p1 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v10 = r2[j][k] * n8;
        const float v12 = v10 * m11[k];
        const float v13_attention_q_2 = round_bf16(v12);
        s11[sub][e + k] = v13_attention_q_2;
      }
    }
  }
  group_sync<LANES>();
  // stage 3: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o26[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v24 = e + k < 16 ? [&]() { const float m14 = load(p2 + (u64)e + (u64)i1 * 16 + (u64)k); const float v15 = s11[sub][e + k] * m14; const float m16 = load(p3 + (u64)e + (u64)i1 * 16 + (u64)k); const float v17 = s11[sub][e + k + 16] * m16; const float v18 = v15 - v17; return v18; }() : [&]() { const float m19 = load(p2 + (u64)e + (u64)i1 * 16 + (u64)k + -16); const float v20 = s11[sub][e + k] * m19; const float m21 = load(p3 + (u64)e + (u64)i1 * 16 + (u64)k + -16); const float v22 = s11[sub][e + k + -16] * m21; const float v23 = v20 + v22; return v23; }();
        const float v25_attention_q_3 = round_bf16(v24);
        o26[k] = v25_attention_q_3;
      }
      if (live) store8(p4 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32, o26);
    }
  }
}
}
namespace part1 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, const bf16* p4, const float* p5, const float* p6, bf16* p7) {
  wait_for_earlier();
  if (blockIdx.x * 64 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 64 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 2;  // T
  const int i2 = row / 1 % 2;  // kv_heads
  using Cache1 = CacheLayout<64, 49152, 32, 2048, 4096>;
  const int m3 = load(p2 + (u64)i1);
  const u64 cell1 = Cache1::cell(p0, 1, p0->sequence[i1], m3, x1);
  // stage 0: 32 elements
  float r2[1][8];
  float g4[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g4[j] = absent();
    if (e < 32) {
      float t4[8];
      float m4[8]; load8(m4, p3 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32 + 384);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5_attention_k = round_bf16(m4[k]);
        r2[j][k] = v5_attention_k;
        const float v6 = v5_attention_k * v5_attention_k;
        t4[k] = v6;
      }
      g4[j] = pairwise(t4);
    }
  }
  const float n4 = across<Sum, LANES>(g4, nullptr, lane);
  const float v7 = quotient(n4, 32.0f);
  const float n5 = v7;
  const float v8 = n5 + 1e-6f;
  const float n6 = v8;
  const float v9 = root(n6);
  const float n7 = v9;
  const float v10 = quotient(1.0f, n7);
  const float n8 = v10;
  __shared__ float s11[64][32];
  // stage 2: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float m12[8]; load8(m12, p4 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v11 = r2[j][k] * n8;
        const float v13 = v11 * m12[k];
        const float v14_attention_k_2 = round_bf16(v13);
        s11[sub][e + k] = v14_attention_k_2;
      }
    }
  }
  group_sync<LANES>();
  // stage 3: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o27[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v25 = e + k < 16 ? [&]() { const float m15 = load(p5 + (u64)e + (u64)i1 * 16 + (u64)k); const float v16 = s11[sub][e + k] * m15; const float m17 = load(p6 + (u64)e + (u64)i1 * 16 + (u64)k); const float v18 = s11[sub][e + k + 16] * m17; const float v19 = v16 - v18; return v19; }() : [&]() { const float m20 = load(p5 + (u64)e + (u64)i1 * 16 + (u64)k + -16); const float v21 = s11[sub][e + k] * m20; const float m22 = load(p6 + (u64)e + (u64)i1 * 16 + (u64)k + -16); const float v23 = s11[sub][e + k + -16] * m22; const float v24 = v21 + v23; return v24; }();
        const float v26_attention_k_3 = round_bf16(v25);
        o27[k] = v26_attention_k_3;
      }
      if (live) store8(p7 + (u64)cell1 + (u64)e + (u64)i2 * 2048, o27);
    }
  }
}
}
namespace part2 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, bf16* p4) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 2;  // T
  const int i2 = row / 1 % 2;  // kv_heads
  using Cache1 = CacheLayout<64, 49152, 32, 2048, 4096>;
  const int m3 = load(p2 + (u64)i1);
  const u64 cell1 = Cache1::cell(p0, 1, p0->sequence[i1], m3, x1);
  // stage 0: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o6[8];
      float m4[8]; load8(m4, p3 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32 + 448);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5_attention_v = round_bf16(m4[k]);
        o6[k] = v5_attention_v;
      }
      store8(p4 + (u64)cell1 + (u64)e + (u64)i2 * 2048 + 4096, o6);
    }
  }
}
}
namespace part3 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const float* p0, bf16* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 12;  // T
  const int i2 = row / 1 % 12;  // heads
  // stage 0: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o5[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32 + 512);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_attention_g = round_bf16(m3[k]);
        o5[k] = v4_attention_g;
      }
      store8(p1 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32, o5);
    }
  }
}
}
extern "C" __global__ void __launch_bounds__(256) attention_k_3_rows_97665896(const int rows_0, const float* p0_0, const bf16* p1_0, const float* p2_0, const float* p3_0, bf16* p4_0, const int rows_1, const Steps* p0_1, const i64 x1_1, const int* p2_1, const float* p3_1, const bf16* p4_1, const float* p5_1, const float* p6_1, bf16* p7_1, const int rows_2, const Steps* p0_2, const i64 x1_2, const int* p2_2, const float* p3_2, bf16* p4_2, const int rows_3, const float* p0_3, bf16* p1_3) {
  if (blockIdx.y == 0) part0::run(rows_0, p0_0, p1_0, p2_0, p3_0, p4_0);
  if (blockIdx.y == 1) part1::run(rows_1, p0_1, x1_1, p2_1, p3_1, p4_1, p5_1, p6_1, p7_1);
  if (blockIdx.y == 2) part2::run(rows_2, p0_2, x1_2, p2_2, p3_2, p4_2);
  if (blockIdx.y == 3) part3::run(rows_3, p0_3, p1_3);
}

// ---- attention_o_attend_66848c67.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend_tiles.cuh"

using Core = Decode<12, 6, 32, 64, false, 1>;
using Cache = CacheLayout<64, 49152, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_o_attend_66848c67(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows, float* parts, u32* tickets) {
  Core::run<Cache>(q, pool, steps, 1, slot, at, sink, scale, out, rows, parts, tickets);
}
static_assert(Core::THREADS == 128 && Core::SHARED == 20480, "a block");

// ---- attention_o_attend_dd4727d4.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend_tiles.cuh"

using Core = Decode<12, 6, 32, 64, false, 8>;
using Cache = CacheLayout<64, 49152, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_o_attend_dd4727d4(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows, float* parts, u32* tickets) {
  Core::run<Cache>(q, pool, steps, 1, slot, at, sink, scale, out, rows, parts, tickets);
}
static_assert(Core::THREADS == 128 && Core::SHARED == 20480, "a block");

// ---- attention_o_attend_prompt_ed58cc0a.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend_tiles.cuh"

using Core = Prefill<12, 6, 32, 64, false>;
using Cache = CacheLayout<64, 49152, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_o_attend_prompt_ed58cc0a(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows) {
  Core::run<Cache>(q, pool, steps, 1, slot, at, sink, scale, out, rows);
}
static_assert(Core::THREADS == 256 && Core::SHARED == 20480, "a block");

// ---- attention_o_rows_22c0bacb.cu
// region `attention.o` (attend)
// rows [T, heads], a group of 8 elements a thread
//   const float* p0: scratch
//   const bf16* p1: bf16[T, heads, head_dim] attention.g
//   const bf16* p2: bf16[heads] gate_bias
//   bf16* p3: bf16[T, heads, head_dim] attention.o
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_o_rows_22c0bacb(const int rows, const float* p0, const bf16* p1, const bf16* p2, bf16* p3) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 12;  // T
  const int i2 = row / 1 % 12;  // heads
  // stage 0: 32 elements
  float r6[1][8];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32);
      float m5[8]; load8(m5, p1 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32);
      const float m6 = load(p2 + (u64)i2);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_attention_a = round_bf16(m3[k]);
        const float v7 = m5[k] + m6;
        const float v8_attention_g_2 = round_bf16(v7);
        const float v9 = sigmoid(v8_attention_g_2);
        const float v10_attention_g_3 = round_bf16(v9);
        const float v11 = v4_attention_a * v10_attention_g_3;
        const float v12_attention_o = round_bf16(v11);
        r6[j][k] = v12_attention_o;
      }
    }
  }
  // stage 18446744073709551615: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o13[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o13[k] = r6[j][k];
      }
      store8(p3 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32, o13);
    }
  }
}

// ---- h_matmul_16_6265dbd7.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "stream.cuh"

using Core = Stream<192, 384, 1, 1, 16, 12, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) h_matmul_16_6265dbd7(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- h_matmul_32_fca37a7f.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "stream.cuh"

using Core = Stream<192, 384, 1, 1, 32, 10, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) h_matmul_32_fca37a7f(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 221872, "a block");

// ---- h_matmul_64_d50935d7.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "stream.cuh"

using Core = Stream<192, 384, 1, 1, 64, 8, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) h_matmul_64_d50935d7(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213648, "a block");

// ---- h_matmul_128_f8aaffad.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "stream.cuh"

using Core = Stream<192, 384, 1, 1, 128, 6, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) h_matmul_128_f8aaffad(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213616, "a block");

// ---- h_matmul_256_3bf5cbdc.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "stream.cuh"

using Core = Stream<192, 384, 1, 1, 256, 4, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) h_matmul_256_3bf5cbdc(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213584, "a block");

// ---- h_rows_bd11d95d.cu
// region `h` (matmul)
// rows [T], 32 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[T, hidden] x
//   float x2: f32[] sqrt(((((2.0 * l) + 2.0) - 1.0) / ((2.0 * l) + 2.0)))
//   const bf16* p3: bf16[hidden] attn_out_norm
//   float x4: f32[] (1.0 / sqrt(((2.0 * l) + 2.0)))
//   const bf16* p5: bf16[hidden] mlp_in_norm
//   bf16* p6: bf16[T, hidden] x#2
//   bf16* p7: bf16[T, hidden] h
#include "cache.cuh"

constexpr int LANES = 32;
extern "C" __global__ void __launch_bounds__(256) h_rows_bd11d95d(const int rows, const float* p0, const bf16* p1, float x2, const bf16* p3, float x4, const bf16* p5, bf16* p6, bf16* p7) {
  wait_for_earlier();
  if (blockIdx.x * 8 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 8 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  // stage 0: 192 elements
  float r0[1][8];
  float r13[1][8];
  float g2[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g2[j] = absent();
    if (e < 192) {
      float t2[8];
      float m2[8]; load8(m2, p0 + (u64)e + (u64)i1 * 192);
      float m5[8]; load8(m5, p1 + (u64)e + (u64)i1 * 192);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v3_a = round_bf16(m2[k]);
        r0[j][k] = v3_a;
        const float v4 = v3_a * v3_a;
        const float v6 = m5[k] * x2;
        const float v7_combine_rs = round_bf16(v6);
        r13[j][k] = v7_combine_rs;
        t2[k] = v4;
      }
      g2[j] = pairwise(t2);
    }
  }
  const float n2 = across<Sum, LANES>(g2, nullptr, lane);
  const float v8 = quotient(n2, 192.0f);
  const float n3 = v8;
  const float v9 = n3 + 1e-6f;
  const float n4 = v9;
  const float v10 = root(n4);
  const float n5 = v10;
  const float v11 = quotient(1.0f, n5);
  const float n6 = v11;
  // stage 2: 192 elements
  float r15[1][8];
  float g17[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g17[j] = absent();
    if (e < 192) {
      float t17[8];
      float m13[8]; load8(m13, p3 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v12 = r0[j][k] * n6;
        const float v14 = v12 * m13[k];
        const float v15_norm_2 = round_bf16(v14);
        const float v16 = v15_norm_2 * x4;
        const float v17_combine_bs = round_bf16(v16);
        const float v18 = v17_combine_bs + r13[j][k];
        const float v19_x_2 = round_bf16(v18);
        r15[j][k] = v19_x_2;
        const float v20 = v19_x_2 * v19_x_2;
        t17[k] = v20;
      }
      g17[j] = pairwise(t17);
    }
  }
  const float n17 = across<Sum, LANES>(g17, nullptr, lane);
  const float v21 = quotient(n17, 192.0f);
  const float n18 = v21;
  const float v22 = n18 + 1e-6f;
  const float n19 = v22;
  const float v23 = root(n19);
  const float n20 = v23;
  const float v24 = quotient(1.0f, n20);
  const float n21 = v24;
  // stage 4: 192 elements
  float r24[1][8];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float m26[8]; load8(m26, p5 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v25 = r15[j][k] * n21;
        const float v27 = v25 * m26[k];
        const float v28_h = round_bf16(v27);
        r24[j][k] = v28_h;
      }
    }
  }
  group_sync<LANES>();
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o29[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o29[k] = r15[j][k];
      }
      if (live) store8(p6 + (u64)e + (u64)i1 * 192, o29);
    }
  }
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o30[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o30[k] = r24[j][k];
      }
      if (live) store8(p7 + (u64)e + (u64)i1 * 192, o30);
    }
  }
}

// ---- dense_h_matmul_16_931db5bb.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "stream.cuh"

using Core = Stream<768, 192, 2, 8, 16, 12, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) dense_h_matmul_16_931db5bb(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- dense_h_matmul_32_c4ba9aa9.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "stream.cuh"

using Core = Stream<768, 192, 2, 8, 32, 10, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) dense_h_matmul_32_c4ba9aa9(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 221872, "a block");

// ---- dense_h_matmul_64_750a1548.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "stream.cuh"

using Core = Stream<768, 192, 2, 8, 64, 8, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) dense_h_matmul_64_750a1548(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213648, "a block");

// ---- dense_h_matmul_128_a349bd90.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "stream.cuh"

using Core = Stream<768, 192, 2, 8, 128, 6, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) dense_h_matmul_128_a349bd90(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213616, "a block");

// ---- dense_h_matmul_256_ec42ffd0.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "stream.cuh"

using Core = Stream<768, 192, 2, 8, 256, 4, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) dense_h_matmul_256_ec42ffd0(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213584, "a block");

// ---- dense_h_rows_8cf41c79.cu
// region `dense.h` (matmul)
// rows [T], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, ffn] dense.h
#include "cache.cuh"

constexpr int LANES = 48;
extern "C" __global__ void __launch_bounds__(256) dense_h_rows_8cf41c79(const int rows, const float* p0, bf16* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 1;  // T
  // stage 0: 384 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 384) {
      float o12[8];
      float m2[8]; load8(m2, p0 + (u64)e + (u64)i1 * 768);
      float m4[8]; load8(m4, p0 + (u64)e + (u64)i1 * 768 + 384);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v3_dense_g = round_bf16(m2[k]);
        const float v5_dense_u = round_bf16(m4[k]);
        const float v6 = negated(v3_dense_g);
        const float v7 = exponential(v6);
        const float v8 = 1.0f + v7;
        const float v9 = quotient(v3_dense_g, v8);
        const float v10 = v9 * v5_dense_u;
        const float v11_dense_h = round_bf16(v10);
        o12[k] = v11_dense_h;
      }
      store8(p1 + (u64)e + (u64)i1 * 384, o12);
    }
  }
}

// ---- next_norm_rows_e258751f.cu
// region `next.norm` (matmul)
// rows [T], 32 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[T, hidden] x#2
//   float x2: f32[] sqrt(((((2.0 * l) + 3.0) - 1.0) / ((2.0 * l) + 3.0)))
//   const bf16* p3: bf16[hidden] mlp_out_norm
//   float x4: f32[] (1.0 / sqrt(((2.0 * l) + 3.0)))
//   const bf16* p5: bf16[hidden] next input_norm else norm
//   bf16* p6: bf16[T, hidden] x#3
//   bf16* p7: bf16[T, hidden] next.norm
#include "cache.cuh"

constexpr int LANES = 32;
extern "C" __global__ void __launch_bounds__(256) next_norm_rows_e258751f(const int rows, const float* p0, const bf16* p1, float x2, const bf16* p3, float x4, const bf16* p5, bf16* p6, bf16* p7) {
  wait_for_earlier();
  if (blockIdx.x * 8 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 8 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  // stage 0: 192 elements
  float r0[1][8];
  float r13[1][8];
  float g2[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g2[j] = absent();
    if (e < 192) {
      float t2[8];
      float m2[8]; load8(m2, p0 + (u64)e + (u64)i1 * 192);
      float m5[8]; load8(m5, p1 + (u64)e + (u64)i1 * 192);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v3_h_2 = round_bf16(m2[k]);
        r0[j][k] = v3_h_2;
        const float v4 = v3_h_2 * v3_h_2;
        const float v6 = m5[k] * x2;
        const float v7_combine_rs_2 = round_bf16(v6);
        r13[j][k] = v7_combine_rs_2;
        t2[k] = v4;
      }
      g2[j] = pairwise(t2);
    }
  }
  const float n2 = across<Sum, LANES>(g2, nullptr, lane);
  const float v8 = quotient(n2, 192.0f);
  const float n3 = v8;
  const float v9 = n3 + 1e-6f;
  const float n4 = v9;
  const float v10 = root(n4);
  const float n5 = v10;
  const float v11 = quotient(1.0f, n5);
  const float n6 = v11;
  // stage 2: 192 elements
  float r15[1][8];
  float g17[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g17[j] = absent();
    if (e < 192) {
      float t17[8];
      float m13[8]; load8(m13, p3 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v12 = r0[j][k] * n6;
        const float v14 = v12 * m13[k];
        const float v15_norm_3 = round_bf16(v14);
        const float v16 = v15_norm_3 * x4;
        const float v17_combine_bs_2 = round_bf16(v16);
        const float v18 = v17_combine_bs_2 + r13[j][k];
        const float v19_x_3 = round_bf16(v18);
        r15[j][k] = v19_x_3;
        const float v20 = v19_x_3 * v19_x_3;
        t17[k] = v20;
      }
      g17[j] = pairwise(t17);
    }
  }
  const float n17 = across<Sum, LANES>(g17, nullptr, lane);
  const float v21 = quotient(n17, 192.0f);
  const float n18 = v21;
  const float v22 = n18 + 1e-6f;
  const float n19 = v22;
  const float v23 = root(n19);
  const float n20 = v23;
  const float v24 = quotient(1.0f, n20);
  const float n21 = v24;
  // stage 4: 192 elements
  float r24[1][8];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float m26[8]; load8(m26, p5 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v25 = r15[j][k] * n21;
        const float v27 = v25 * m26[k];
        const float v28_next_norm = round_bf16(v27);
        r24[j][k] = v28_next_norm;
      }
    }
  }
  group_sync<LANES>();
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o29[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o29[k] = r15[j][k];
      }
      if (live) store8(p6 + (u64)e + (u64)i1 * 192, o29);
    }
  }
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o30[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o30[k] = r24[j][k];
      }
      if (live) store8(p7 + (u64)e + (u64)i1 * 192, o30);
    }
  }
}

// ---- combine_rs_2_rows_1476d584.cu
// region `combine.rs#2` (matmul)
// rows [T], 32 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[T, hidden] x
//   float x2: f32[] sqrt(((((2.0 * l) + 2.0) - 1.0) / ((2.0 * l) + 2.0)))
//   const bf16* p3: bf16[hidden] attn_out_norm
//   float x4: f32[] (1.0 / sqrt(((2.0 * l) + 2.0)))
//   float x5: f32[] sqrt(((((2.0 * l) + 3.0) - 1.0) / ((2.0 * l) + 3.0)))
//   const bf16* p6: bf16[hidden] mlp_in_norm
//   bf16* p7: bf16[T, hidden] combine.rs#2
//   bf16* p8: bf16[T, hidden] h
#include "cache.cuh"

constexpr int LANES = 32;
extern "C" __global__ void __launch_bounds__(256) combine_rs_2_rows_1476d584(const int rows, const float* p0, const bf16* p1, float x2, const bf16* p3, float x4, float x5, const bf16* p6, bf16* p7, bf16* p8) {
  wait_for_earlier();
  if (blockIdx.x * 8 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 8 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  // stage 0: 192 elements
  float r0[1][8];
  float r13[1][8];
  float g2[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g2[j] = absent();
    if (e < 192) {
      float t2[8];
      float m2[8]; load8(m2, p0 + (u64)e + (u64)i1 * 192);
      float m5[8]; load8(m5, p1 + (u64)e + (u64)i1 * 192);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v3_a = round_bf16(m2[k]);
        r0[j][k] = v3_a;
        const float v4 = v3_a * v3_a;
        const float v6 = m5[k] * x2;
        const float v7_combine_rs = round_bf16(v6);
        r13[j][k] = v7_combine_rs;
        t2[k] = v4;
      }
      g2[j] = pairwise(t2);
    }
  }
  const float n2 = across<Sum, LANES>(g2, nullptr, lane);
  const float v8 = quotient(n2, 192.0f);
  const float n3 = v8;
  const float v9 = n3 + 1e-6f;
  const float n4 = v9;
  const float v10 = root(n4);
  const float n5 = v10;
  const float v11 = quotient(1.0f, n5);
  const float n6 = v11;
  // stage 2: 192 elements
  float r15[1][8];
  float r26[1][8];
  float g17[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g17[j] = absent();
    if (e < 192) {
      float t17[8];
      float m13[8]; load8(m13, p3 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v12 = r0[j][k] * n6;
        const float v14 = v12 * m13[k];
        const float v15_norm_2 = round_bf16(v14);
        const float v16 = v15_norm_2 * x4;
        const float v17_combine_bs = round_bf16(v16);
        const float v18 = v17_combine_bs + r13[j][k];
        const float v19_x_2 = round_bf16(v18);
        r15[j][k] = v19_x_2;
        const float v20 = v19_x_2 * v19_x_2;
        const float v21 = v19_x_2 * x5;
        const float v22_combine_rs_2 = round_bf16(v21);
        r26[j][k] = v22_combine_rs_2;
        t17[k] = v20;
      }
      g17[j] = pairwise(t17);
    }
  }
  const float n17 = across<Sum, LANES>(g17, nullptr, lane);
  const float v23 = quotient(n17, 192.0f);
  const float n18 = v23;
  const float v24 = n18 + 1e-6f;
  const float n19 = v24;
  const float v25 = root(n19);
  const float n20 = v25;
  const float v26 = quotient(1.0f, n20);
  const float n21 = v26;
  // stage 4: 192 elements
  float r24[1][8];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float m28[8]; load8(m28, p6 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v27 = r15[j][k] * n21;
        const float v29 = v27 * m28[k];
        const float v30_h = round_bf16(v29);
        r24[j][k] = v30_h;
      }
    }
  }
  group_sync<LANES>();
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o31[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o31[k] = r26[j][k];
      }
      if (live) store8(p7 + (u64)e + (u64)i1 * 192, o31);
    }
  }
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o32[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o32[k] = r24[j][k];
      }
      if (live) store8(p8 + (u64)e + (u64)i1 * 192, o32);
    }
  }
}

// ---- sparse_w_route_63a4a716.cu
// region `sparse.w` (route)
// f32[T, experts] from bf16[T, hidden], f32[experts, hidden]
#include "product.cuh"

using Core = Product<bf16, float, double, 16, 192, 1, 1, 8, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) sparse_w_route_63a4a716(const bf16* x, const float* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- sparse_w_rows_efe645b4.cu
// region `sparse.w` (route)
// rows [T], 2 threads a row
//   const float* p0: scratch
//   const float* p1: f32[experts] router_bias
//   float* p2: f32[T, picked] sparse.w
//   int* p3: i32<experts>[T, picked] sparse.route.ids
#include "cache.cuh"

constexpr int LANES = 2;
extern "C" __global__ void __launch_bounds__(256) sparse_w_rows_efe645b4(const int rows, const float* p0, const float* p1, float* p2, int* p3) {
  wait_for_earlier();
  if (blockIdx.x * 128 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 128 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  __shared__ float s0[128][16];
  // stage 0: 16 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 16) {
      float m2[8]; load8(m2, p0 + (u64)e + (u64)i1 * 16);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v3_sparse_route_score = sigmoid(m2[k]);
        s0[sub][e + k] = v3_sparse_route_score;
      }
    }
  }
  group_sync<LANES>();
  __shared__ float s3[128][8];
  for (int at = lane; at < 16; at += LANES) {
    const int i4 = at / 4 % 4;  // groups
    const int i5 = at / 1 % 4;  // member
    const int rank = rank_in_thread<4>([&](int q6) { const float m7 = load(p1 + (u64)i4 * 4 + (u64)q6); const float v8_sparse_route_choice = s0[sub][i4 * 4 + q6] + m7; return v8_sparse_route_choice; }, i5);
    const float m9 = load(p1 + (u64)i4 * 4 + (u64)i5);
    const float v10_sparse_route_choice = s0[sub][i4 * 4 + i5] + m9;
    if (rank < 2) s3[sub][i4 * 2 + rank] = v10_sparse_route_choice;
  }
  group_sync<LANES>();
  __shared__ float s4[128][4];
  // stage 2: 4 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 4) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (e + k >= 4) break;
        const float v12_sparse_route_best = fold_in_thread<2>([&](int q11) { return s3[sub][e * 2 + k * 2 + q11]; });
        s4[sub][e + k] = v12_sparse_route_best;
      }
    }
  }
  group_sync<LANES>();
  __shared__ int s5[128][4];
  for (int at = lane; at < 4; at += LANES) {
    const int i13 = at / 1 % 4;  // groups
    s5[sub][i13] = rank_in_thread<4>([&](int q14) { return s4[sub][q14]; }, i13) < 2;
  }
  group_sync<LANES>();
  __shared__ int s8[128][4];
  for (int at = lane; at < 16; at += LANES) {
    const int i15 = at / 1 % 16;  // experts
    const int rank = rank_in_thread<16>([&](int q16) { const int i17 = (q16) / 4 % 4; const int i18 = (q16) / 1 % 4; const float m19 = load(p1 + (u64)i17 * 4 + (u64)i18); const float v20_sparse_route_choice = s0[sub][i17 * 4 + i18] + m19; const float v21 = (s5[sub][i17] != 0) ? v20_sparse_route_choice : from_bits(0xff800000u); return v21; }, i15);
    if (rank < 4) s8[sub][rank] = i15;
  }
  group_sync<LANES>();
  // stage 5: 4 elements
  float g10[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g10[j] = absent();
    if (e < 4) {
      float t10[8];
      for (int k = 0; k < 8; ++k) t10[k] = absent();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (e + k >= 4) break;
        const int at22 = s8[sub][e + k] < 0 ? 0 : s8[sub][e + k];
        const float v23_sparse_route_p = s8[sub][e + k] < 0 ? absent() : s0[sub][at22];
        t10[k] = v23_sparse_route_p;
      }
      g10[j] = pairwise(t10);
    }
  }
  const float n10 = across<Sum, LANES>(g10, nullptr, lane);
  const float v24 = n10 + 1e-20f;
  const float n11 = v24;
  // stage 7: 4 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 4) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (e + k >= 4) break;
        const int at25 = s8[sub][e + k] < 0 ? 0 : s8[sub][e + k];
        const float v26_sparse_route_p = s8[sub][e + k] < 0 ? absent() : s0[sub][at25];
        const float v27_sparse_w = quotient(v26_sparse_route_p, n11);
        if (live) store(p2 + (u64)e + (u64)i1 * 4 + (u64)k, v27_sparse_w);
      }
    }
  }
  group_sync<LANES>();
  // stage 18446744073709551615: 4 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 4) {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (e + k >= 4) break;
        if (live) store(p3 + (u64)e + (u64)i1 * 4 + (u64)k, s8[sub][e + k]);
      }
    }
  }
}

// ---- sparse_expert_grouped_matmul_sort_1e409c96.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Sorted<16, 16>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_sort_1e409c96(const int* ids, const int picks, int* plan) {
  Core::run(ids, picks, picks, plan);
}
static_assert(Core::THREADS == 1024, "threads");

// ---- sparse_expert_grouped_matmul_16_7fc89b56.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 192, 2, 8, 16, 12, 2>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_16_7fc89b56(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 4), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- sparse_expert_grouped_matmul_16_6a310ace.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 192, 2, 8, 16, 12, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_16_6a310ace(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 4), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- sparse_expert_grouped_matmul_sort_1a296e2f.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Sorted<16, 32>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_sort_1a296e2f(const int* ids, const int picks, int* plan) {
  Core::run(ids, picks, picks, plan);
}
static_assert(Core::THREADS == 1024, "threads");

// ---- sparse_expert_grouped_matmul_32_8f89c177.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 192, 2, 8, 32, 10, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_32_8f89c177(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 4), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 221872, "a block");

// ---- sparse_expert_grouped_matmul_sort_9a0aa8c1.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Sorted<16, 128>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_sort_9a0aa8c1(const int* ids, const int picks, int* plan) {
  Core::run(ids, picks, picks, plan);
}
static_assert(Core::THREADS == 1024, "threads");

// ---- sparse_expert_grouped_matmul_128_7197057a.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 192, 2, 8, 128, 6, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_expert_grouped_matmul_128_7197057a(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 4), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213616, "a block");

// ---- sparse_expert_rows_70d2ef27.cu
// region `sparse.expert` (grouped_matmul)
// rows [T, picked], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, picked, expert_ffn] sparse.expert
#include "cache.cuh"

constexpr int LANES = 12;
extern "C" __global__ void __launch_bounds__(256) sparse_expert_rows_70d2ef27(const int rows, const float* p0, bf16* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 4;  // T
  const int i2 = row / 1 % 4;  // picked
  // stage 0: 96 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 96) {
      float o13[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 768 + (u64)i2 * 192);
      float m5[8]; load8(m5, p0 + (u64)e + (u64)i1 * 768 + (u64)i2 * 192 + 96);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_sparse_expert_g = round_bf16(m3[k]);
        const float v6_sparse_expert_u = round_bf16(m5[k]);
        const float v7 = negated(v4_sparse_expert_g);
        const float v8 = exponential(v7);
        const float v9 = 1.0f + v8;
        const float v10 = quotient(v4_sparse_expert_g, v9);
        const float v11 = v10 * v6_sparse_expert_u;
        const float v12_sparse_expert = round_bf16(v11);
        o13[k] = v12_sparse_expert;
      }
      store8(p1 + (u64)e + (u64)i1 * 384 + (u64)i2 * 96, o13);
    }
  }
}

// ---- sparse_y_grouped_matmul_16_3421f8be.cu
// region `sparse.y` (grouped_matmul)
// f32[T, picked, hidden] from bf16[T, picked, expert_ffn], bf16[experts, hidden, expert_ffn], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 96, 1, 1, 16, 12, 2>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_y_grouped_matmul_16_3421f8be(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 1), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- sparse_y_grouped_matmul_16_26097574.cu
// region `sparse.y` (grouped_matmul)
// f32[T, picked, hidden] from bf16[T, picked, expert_ffn], bf16[experts, hidden, expert_ffn], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 96, 1, 1, 16, 12, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_y_grouped_matmul_16_26097574(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 1), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- sparse_y_grouped_matmul_32_3ed62405.cu
// region `sparse.y` (grouped_matmul)
// f32[T, picked, hidden] from bf16[T, picked, expert_ffn], bf16[experts, hidden, expert_ffn], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 96, 1, 1, 32, 10, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_y_grouped_matmul_32_3ed62405(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 1), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 221872, "a block");

// ---- sparse_y_grouped_matmul_128_f0a5f9cc.cu
// region `sparse.y` (grouped_matmul)
// f32[T, picked, hidden] from bf16[T, picked, expert_ffn], bf16[experts, hidden, expert_ffn], i32<experts>[T, picked]
#include "stream.cuh"

using Core = Stream<192, 96, 1, 1, 128, 6, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) sparse_y_grouped_matmul_128_f0a5f9cc(const __grid_constant__ TensorMap map, const bf16* x, const int* plan, float* out, float* shares, u32* tickets) {
  Core::run(Core::Picked(plan, 1), &map, nullptr, x, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213616, "a block");

// ---- sparse_y_rows_cf1f99fc.cu
// region `sparse.y` (grouped_matmul)
// rows [T, picked], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, picked, hidden] sparse.y
#include "cache.cuh"

constexpr int LANES = 24;
extern "C" __global__ void __launch_bounds__(256) sparse_y_rows_cf1f99fc(const int rows, const float* p0, bf16* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 4;  // T
  const int i2 = row / 1 % 4;  // picked
  // stage 0: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o5[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 768 + (u64)i2 * 192);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_sparse_y = round_bf16(m3[k]);
        o5[k] = v4_sparse_y;
      }
      store8(p1 + (u64)e + (u64)i1 * 768 + (u64)i2 * 192, o5);
    }
  }
}

// ---- next_norm_rows_dccc082a.cu
// region `next.norm` (rows)
// rows [T], 32 threads a row
//   const float* p0: f32[T, picked] sparse.w
//   const bf16* p1: bf16[T, picked, hidden] sparse.y
//   const bf16* p2: bf16[hidden] mlp_out_norm
//   float x3: f32[] (1.0 / sqrt(((2.0 * l) + 3.0)))
//   const bf16* p4: bf16[T, hidden] combine.rs#2
//   const bf16* p5: bf16[hidden] next input_norm else norm
//   bf16* p6: bf16[T, hidden] x#3
//   bf16* p7: bf16[T, hidden] next.norm
#include "cache.cuh"

constexpr int LANES = 32;
extern "C" __global__ void __launch_bounds__(256) next_norm_rows_dccc082a(const int rows, const float* p0, const bf16* p1, const bf16* p2, float x3, const bf16* p4, const bf16* p5, bf16* p6, bf16* p7) {
  wait_for_earlier();
  if (blockIdx.x * 8 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 8 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  // stage 0: 192 elements
  float r4[1][8];
  float g6[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g6[j] = absent();
    if (e < 192) {
      float t6[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v6 = fold_in_thread<4>([&](int q2) { const float m3 = load(p0 + (u64)i1 * 4 + (u64)q2); const float m4 = load(p1 + (u64)e + (u64)i1 * 768 + (u64)k + (u64)q2 * 192); const float v5 = m3 * m4; return v5; });
        const float v7_sparse_t = round_bf16(v6);
        const float v8 = 2.5f * v7_sparse_t;
        const float v9_h_2 = round_bf16(v8);
        r4[j][k] = v9_h_2;
        const float v10 = v9_h_2 * v9_h_2;
        t6[k] = v10;
      }
      g6[j] = pairwise(t6);
    }
  }
  const float n6 = across<Sum, LANES>(g6, nullptr, lane);
  const float v11 = quotient(n6, 192.0f);
  const float n7 = v11;
  const float v12 = n7 + 1e-6f;
  const float n8 = v12;
  const float v13 = root(n8);
  const float n9 = v13;
  const float v14 = quotient(1.0f, n9);
  const float n10 = v14;
  // stage 2: 192 elements
  float r17[1][8];
  float g19[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g19[j] = absent();
    if (e < 192) {
      float t19[8];
      float m16[8]; load8(m16, p2 + (u64)e);
      float m21[8]; load8(m21, p4 + (u64)e + (u64)i1 * 192);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v15 = r4[j][k] * n10;
        const float v17 = v15 * m16[k];
        const float v18_norm_3 = round_bf16(v17);
        const float v19 = v18_norm_3 * x3;
        const float v20_combine_bs_2 = round_bf16(v19);
        const float v22 = v20_combine_bs_2 + m21[k];
        const float v23_x_3 = round_bf16(v22);
        r17[j][k] = v23_x_3;
        const float v24 = v23_x_3 * v23_x_3;
        t19[k] = v24;
      }
      g19[j] = pairwise(t19);
    }
  }
  const float n19 = across<Sum, LANES>(g19, nullptr, lane);
  const float v25 = quotient(n19, 192.0f);
  const float n20 = v25;
  const float v26 = n20 + 1e-6f;
  const float n21 = v26;
  const float v27 = root(n21);
  const float n22 = v27;
  const float v28 = quotient(1.0f, n22);
  const float n23 = v28;
  // stage 4: 192 elements
  float r26[1][8];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float m30[8]; load8(m30, p5 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v29 = r17[j][k] * n23;
        const float v31 = v29 * m30[k];
        const float v32_next_norm = round_bf16(v31);
        r26[j][k] = v32_next_norm;
      }
    }
  }
  group_sync<LANES>();
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o33[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o33[k] = r17[j][k];
      }
      if (live) store8(p6 + (u64)e + (u64)i1 * 192, o33);
    }
  }
  // stage 18446744073709551615: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o34[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        o34[k] = r26[j][k];
      }
      if (live) store8(p7 + (u64)e + (u64)i1 * 192, o34);
    }
  }
}

// ---- attention_k_2_rows_412d1cde.cu
// region `attention.k#2` (matmul)
// rows [T, heads], 4 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[head_dim] q_norm
//   bf16* p2: bf16[T, heads, head_dim] attention.q#2
// region `attention.k#2` (matmul)
// rows [T, kv_heads], 4 threads a row
//   const int* p2: i32[T] pos
//   const float* p3: scratch
//   const bf16* p4: bf16[head_dim] k_norm
// region `attention.k#2` (matmul)
// rows [T, kv_heads], a group of 8 elements a thread
//   const int* p2: i32[T] pos
//   const float* p3: scratch
// region `attention.k#2` (matmul)
// rows [T, heads], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, heads, head_dim] attention.g
#include "cache.cuh"

namespace part0 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const float* p0, const bf16* p1, bf16* p2) {
  wait_for_earlier();
  if (blockIdx.x * 64 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 64 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 12;  // T
  const int i2 = row / 1 % 12;  // heads
  // stage 0: 32 elements
  float r2[1][8];
  float g4[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g4[j] = absent();
    if (e < 32) {
      float t4[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_attention_q = round_bf16(m3[k]);
        r2[j][k] = v4_attention_q;
        const float v5 = v4_attention_q * v4_attention_q;
        t4[k] = v5;
      }
      g4[j] = pairwise(t4);
    }
  }
  const float n4 = across<Sum, LANES>(g4, nullptr, lane);
  const float v6 = quotient(n4, 32.0f);
  const float n5 = v6;
  const float v7 = n5 + 1e-6f;
  const float n6 = v7;
  const float v8 = root(n6);
  const float n7 = v8;
  const float v9 = quotient(1.0f, n7);
  const float n8 = v9;
  // stage 2: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o14[8];
      float m11[8]; load8(m11, p1 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v10 = r2[j][k] * n8;
        const float v12 = v10 * m11[k];
        const float v13_attention_q_2 = round_bf16(v12);
        o14[k] = v13_attention_q_2;
      }
      if (live) store8(p2 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32, o14);
    }
  }
}
}
namespace part1 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, const bf16* p4, bf16* p5) {
  wait_for_earlier();
  if (blockIdx.x * 64 >= rows) return;
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 64 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 2;  // T
  const int i2 = row / 1 % 2;  // kv_heads
  using Cache0 = CacheLayout<64, 16384, 32, 2048, 4096>;
  const int m3 = load(p2 + (u64)i1);
  const u64 cell0 = Cache0::cell(p0, 0, p0->sequence[i1], m3, x1);
  // stage 0: 32 elements
  float r2[1][8];
  float g4[1];
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    g4[j] = absent();
    if (e < 32) {
      float t4[8];
      float m4[8]; load8(m4, p3 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32 + 384);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5_attention_k = round_bf16(m4[k]);
        r2[j][k] = v5_attention_k;
        const float v6 = v5_attention_k * v5_attention_k;
        t4[k] = v6;
      }
      g4[j] = pairwise(t4);
    }
  }
  const float n4 = across<Sum, LANES>(g4, nullptr, lane);
  const float v7 = quotient(n4, 32.0f);
  const float n5 = v7;
  const float v8 = n5 + 1e-6f;
  const float n6 = v8;
  const float v9 = root(n6);
  const float n7 = v9;
  const float v10 = quotient(1.0f, n7);
  const float n8 = v10;
  // stage 2: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o15[8];
      float m12[8]; load8(m12, p4 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v11 = r2[j][k] * n8;
        const float v13 = v11 * m12[k];
        const float v14_attention_k_2 = round_bf16(v13);
        o15[k] = v14_attention_k_2;
      }
      if (live) store8(p5 + (u64)cell0 + (u64)e + (u64)i2 * 2048, o15);
    }
  }
}
}
namespace part2 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, bf16* p4) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 2;  // T
  const int i2 = row / 1 % 2;  // kv_heads
  using Cache0 = CacheLayout<64, 16384, 32, 2048, 4096>;
  const int m3 = load(p2 + (u64)i1);
  const u64 cell0 = Cache0::cell(p0, 0, p0->sequence[i1], m3, x1);
  // stage 0: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o6[8];
      float m4[8]; load8(m4, p3 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32 + 448);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5_attention_v = round_bf16(m4[k]);
        o6[k] = v5_attention_v;
      }
      store8(p4 + (u64)cell0 + (u64)e + (u64)i2 * 2048 + 4096, o6);
    }
  }
}
}
namespace part3 {
constexpr int LANES = 4;
DEVICE void run(const int rows, const float* p0, bf16* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 12;  // T
  const int i2 = row / 1 % 12;  // heads
  // stage 0: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o5[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 896 + (u64)i2 * 32 + 512);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v4_attention_g = round_bf16(m3[k]);
        o5[k] = v4_attention_g;
      }
      store8(p1 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32, o5);
    }
  }
}
}
extern "C" __global__ void __launch_bounds__(256) attention_k_2_rows_412d1cde(const int rows_0, const float* p0_0, const bf16* p1_0, bf16* p2_0, const int rows_1, const Steps* p0_1, const i64 x1_1, const int* p2_1, const float* p3_1, const bf16* p4_1, bf16* p5_1, const int rows_2, const Steps* p0_2, const i64 x1_2, const int* p2_2, const float* p3_2, bf16* p4_2, const int rows_3, const float* p0_3, bf16* p1_3) {
  if (blockIdx.y == 0) part0::run(rows_0, p0_0, p1_0, p2_0);
  if (blockIdx.y == 1) part1::run(rows_1, p0_1, x1_1, p2_1, p3_1, p4_1, p5_1);
  if (blockIdx.y == 2) part2::run(rows_2, p0_2, x1_2, p2_2, p3_2, p4_2);
  if (blockIdx.y == 3) part3::run(rows_3, p0_3, p1_3);
}

// ---- attention_o_rows_1f98f738.cu
// region `attention.o` (attend)
// rows [T, heads], a group of 8 elements a thread
//   const bf16* p0: bf16[T, heads, head_dim] attention.q#2
//   const float* p1: f32[T] m
//   bf16* p2: scratch
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_o_rows_1f98f738(const int rows, const bf16* p0, const float* p1, bf16* p2) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 12;  // T
  const int i2 = row / 1 % 12;  // heads
  // stage 0: 32 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 32) {
      float o7[8];
      float m3[8]; load8(m3, p0 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32);
      const float m4 = load(p1 + (u64)i1);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5 = m3[k] * m4;
        const float v6_attention_q_3 = round_bf16(v5);
        o7[k] = v6_attention_q_3;
      }
      store8(p2 + (u64)e + (u64)i1 * 384 + (u64)i2 * 32, o7);
    }
  }
}

// ---- attention_o_attend_63fb79e8.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend_tiles.cuh"

using Core = Decode<12, 6, 32, 0, false, 1>;
using Cache = CacheLayout<64, 16384, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_o_attend_63fb79e8(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows, float* parts, u32* tickets) {
  Core::run<Cache>(q, pool, steps, 0, slot, at, sink, scale, out, rows, parts, tickets);
}
static_assert(Core::THREADS == 128 && Core::SHARED == 20480, "a block");

// ---- attention_o_attend_90d38109.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend_tiles.cuh"

using Core = Decode<12, 6, 32, 0, false, 8>;
using Cache = CacheLayout<64, 16384, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_o_attend_90d38109(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows, float* parts, u32* tickets) {
  Core::run<Cache>(q, pool, steps, 0, slot, at, sink, scale, out, rows, parts, tickets);
}
static_assert(Core::THREADS == 128 && Core::SHARED == 20480, "a block");

// ---- attention_o_attend_prompt_12a8acf7.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend_tiles.cuh"

using Core = Prefill<12, 6, 32, 0, false>;
using Cache = CacheLayout<64, 16384, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) attention_o_attend_prompt_12a8acf7(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows) {
  Core::run<Cache>(q, pool, steps, 0, slot, at, sink, scale, out, rows);
}
static_assert(Core::THREADS == 256 && Core::SHARED == 20480, "a block");

// ---- result_rows_65832fef.cu
// region `result` (matmul)
// rows [R], a group of 8 elements a thread
//   const int* p0: i32[R] rows
//   const bf16* p1: bf16[T, hidden] norm
//   bf16* p2: scratch
#include "cache.cuh"

constexpr int LANES = 24;
extern "C" __global__ void __launch_bounds__(256) result_rows_65832fef(const int rows, const int* p0, const bf16* p1, bf16* p2) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 1;  // R
  // stage 0: 192 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 192) {
      float o6[8];
      const int m2 = load(p0 + (u64)i1);
      const int at3 = m2 < 0 ? 0 : m2;
      float m4[8]; load8(m4, p1 + (u64)at3 * 192 + (u64)e);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v5_norm_2 = m2 < 0 ? absent() : m4[k];
        o6[k] = v5_norm_2;
      }
      store8(p2 + (u64)e + (u64)i1 * 192, o6);
    }
  }
}

// ---- result_matmul_16_d616fb07.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "stream.cuh"

using Core = Stream<2048, 192, 1, 1, 16, 12, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) result_matmul_16_d616fb07(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 229840, "a block");

// ---- result_matmul_32_95b54dfb.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "stream.cuh"

using Core = Stream<2048, 192, 1, 1, 32, 10, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) result_matmul_32_95b54dfb(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 221872, "a block");

// ---- result_matmul_64_46a04bf8.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "stream.cuh"

using Core = Stream<2048, 192, 1, 1, 64, 8, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) result_matmul_64_46a04bf8(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213648, "a block");

// ---- result_matmul_128_f711c863.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "stream.cuh"

using Core = Stream<2048, 192, 1, 1, 128, 6, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) result_matmul_128_f711c863(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213616, "a block");

// ---- result_matmul_256_887eeaeb.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "stream.cuh"

using Core = Stream<2048, 192, 1, 1, 256, 4, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS, 1) result_matmul_256_887eeaeb(const __grid_constant__ TensorMap map, const __grid_constant__ TensorMap x, const int rows, float* out, float* shares, u32* tickets) {
  Core::run(Core::Dense(rows), &map, &x, nullptr, out, shares, tickets);
}
static_assert(Core::THREADS == 384 && Core::SHARED == 213584, "a block");

// ---- result_rows_a152d473.cu
// region `result` (matmul)
// rows [R], a group of 8 elements a thread
//   const float* p0: scratch
//   float* p1: f32[R, vocab] result
#include "cache.cuh"

constexpr int LANES = 256;
extern "C" __global__ void __launch_bounds__(256) result_rows_a152d473(const int rows, const float* p0, float* p1) {
  wait_for_earlier();
  const u64 unit = (u64)blockIdx.x * 256 + threadIdx.x;
  if (unit >= (u64)rows * LANES) return;
  const int row = (int)(unit / LANES), lane = (int)(unit % LANES);
  const int i1 = row / 1;  // R
  // stage 0: 2048 elements
#pragma unroll
  for (int j = 0; j < 1; ++j) {
    const int e = (lane + j * LANES) * 8;
    if (e < 2048) {
      float o7[8];
      float m2[8]; load8(m2, p0 + (u64)e + (u64)i1 * 2048);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float v3_z = round_bf16(m2[k]);
        const float v4 = quotient(v3_z, 30.0f);
        const float v5 = hyperbolic_tangent(v4);
        const float v6_result = 30.0f * v5;
        o7[k] = v6_result;
      }
      store8(p1 + (u64)e + (u64)i1 * 2048, o7);
    }
  }
}


// ---- m_rows_24b4d40b.cu
// region `m` (rows)
// rows [T], a group of 8 elements a thread
//   const int* p0: i32[T] pos
//   float* p1: f32[T] m
#include "cache.cuh"

constexpr int LANES = 1;
extern "C" __global__ void __launch_bounds__(256) m_rows_24b4d40b(const int rows, const int* p0, float* p1) {
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

// ---- s_rows_18ed106a.cu
// region `s` (rows)
// rows [T], a group of 8 elements a thread
//   const int* p0: i32[T] pos
//   float* p1: f32[T, half] c
//   float* p2: f32[T, half] s
#include "cache.cuh"

constexpr int LANES = 2;
__constant__ const float literal0[16] = {1.0f, 0.56234133f, 0.31622776f, 0.17782794f, 0.1f, 0.05623413f, 0.03162278f, 0.017782794f, 0.01f, 0.0056234132f, 0.0031622779f, 0.0017782794f, 0.001f, 0.0005623413f, 0.0003162278f, 0.00017782794f};
extern "C" __global__ void __launch_bounds__(256) s_rows_18ed106a(const int rows, const int* p0, float* p1, float* p2) {
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

// ---- norm_rows_09dc77a6.cu
// region `norm` (rows)
// rows [T], 32 threads a row
//   const int* p0: i32[T] tokens
//   const bf16* p1: bf16[vocab, hidden] embed
//   bf16* p2: bf16[T, hidden] x
//   const bf16* p3: bf16[hidden] input_norm
//   bf16* p4: bf16[T, hidden] norm
#include "cache.cuh"

constexpr int LANES = 32;
extern "C" __global__ void __launch_bounds__(128) norm_rows_09dc77a6(const int rows, const int* p0, const bf16* p1, bf16* p2, const bf16* p3, bf16* p4) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 4 + sub;
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

// ---- attention_k_3_matmul_876ff62b.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "product.cuh"

using Core = Product<bf16, bf16, float, 896, 192, 1, 1, 8, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) attention_k_3_matmul_876ff62b(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- attention_k_3_matmul_tiles_1afd38c3.cu
// region `attention.k#3` (matmul)
// f32[T, q.k.v.gate] from bf16[T, hidden], bf16[q.k.v.gate, hidden]
#include "tiles.cuh"

using Core = Tiles<896, 192, 1, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) attention_k_3_matmul_tiles_1afd38c3(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- attention_k_3_rows_20cfcf13.cu
// region `attention.k#3` (matmul)
// rows [T, heads], 4 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[head_dim] q_norm
//   const float* p2: f32[T, half] c
//   const float* p3: f32[T, half] s
//   bf16* p4: bf16[T, heads, head_dim] attention.q#3
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(128) attention_k_3_rows_20cfcf13(const int rows, const float* p0, const bf16* p1, const float* p2, const float* p3, bf16* p4) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 32 + sub;
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
  __shared__ float s11[32][32];
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

// ---- attention_k_3_rows_dcf56c66.cu
// region `attention.k#3` (matmul)
// rows [T, kv_heads], 4 threads a row
//   const int* p2: i32[T] pos
//   const float* p3: scratch
//   const bf16* p4: bf16[head_dim] k_norm
//   const float* p5: f32[T, half] c
//   const float* p6: f32[T, half] s
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(128) attention_k_3_rows_dcf56c66(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, const bf16* p4, const float* p5, const float* p6, bf16* p7) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 32 + sub;
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
  __shared__ float s11[32][32];
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

// ---- attention_k_3_rows_aad56621.cu
// region `attention.k#3` (matmul)
// rows [T, kv_heads], a group of 8 elements a thread
//   const int* p2: i32[T] pos
//   const float* p3: scratch
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_k_3_rows_aad56621(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, bf16* p4) {
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

// ---- attention_k_3_rows_547bddf8.cu
// region `attention.k#3` (matmul)
// rows [T, heads], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, heads, head_dim] attention.g
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_k_3_rows_547bddf8(const int rows, const float* p0, bf16* p1) {
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

// ---- attention_o_attend_afdc6a5c.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend.cuh"

using Core = Attend<bf16, bf16, float, 12, 6, 32, 64, false, 4>;
using Cache = CacheLayout<64, 49152, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) attention_o_attend_afdc6a5c(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows) {
  Core::run<Cache>(q, pool, steps, 1, slot, at, sink, scale, out, rows);
}
static_assert(Core::THREADS == 128, "threads");

// ---- attention_o_rows_befb6d4a.cu
// region `attention.o` (attend)
// rows [T, heads], a group of 8 elements a thread
//   const float* p0: scratch
//   const bf16* p1: bf16[T, heads, head_dim] attention.g
//   const bf16* p2: bf16[heads] gate_bias
//   bf16* p3: bf16[T, heads, head_dim] attention.o
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_o_rows_befb6d4a(const int rows, const float* p0, const bf16* p1, const bf16* p2, bf16* p3) {
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

// ---- h_matmul_5571955b.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "product.cuh"

using Core = Product<bf16, bf16, float, 192, 384, 1, 1, 8, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) h_matmul_5571955b(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- h_matmul_tiles_f820769a.cu
// region `h` (matmul)
// f32[T, hidden] from bf16[T, heads, head_dim], bf16[hidden, heads, head_dim]
#include "tiles.cuh"

using Core = Tiles<192, 384, 1, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) h_matmul_tiles_f820769a(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- h_rows_4cd7579d.cu
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
extern "C" __global__ void __launch_bounds__(128) h_rows_4cd7579d(const int rows, const float* p0, const bf16* p1, float x2, const bf16* p3, float x4, const bf16* p5, bf16* p6, bf16* p7) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 4 + sub;
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

// ---- dense_h_matmul_7db2fc43.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "product.cuh"

using Core = Product<bf16, bf16, float, 768, 192, 2, 8, 8, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) dense_h_matmul_7db2fc43(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- dense_h_matmul_tiles_0d78646a.cu
// region `dense.h` (matmul)
// f32[T, ffn_gate.ffn_up] from bf16[T, hidden], bf16[ffn_gate.ffn_up, hidden]
#include "tiles.cuh"

using Core = Tiles<768, 192, 2, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) dense_h_matmul_tiles_0d78646a(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- dense_h_rows_ea1d088d.cu
// region `dense.h` (matmul)
// rows [T], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, ffn] dense.h
#include "cache.cuh"

constexpr int LANES = 48;
extern "C" __global__ void __launch_bounds__(256) dense_h_rows_ea1d088d(const int rows, const float* p0, bf16* p1) {
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

// ---- next_norm_rows_58086a59.cu
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
extern "C" __global__ void __launch_bounds__(128) next_norm_rows_58086a59(const int rows, const float* p0, const bf16* p1, float x2, const bf16* p3, float x4, const bf16* p5, bf16* p6, bf16* p7) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 4 + sub;
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

// ---- combine_rs_2_rows_c0353e64.cu
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
extern "C" __global__ void __launch_bounds__(128) combine_rs_2_rows_c0353e64(const int rows, const float* p0, const bf16* p1, float x2, const bf16* p3, float x4, float x5, const bf16* p6, bf16* p7, bf16* p8) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 4 + sub;
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

// ---- sparse_w_rows_c665e49c.cu
// region `sparse.w` (route)
// rows [T], 2 threads a row
//   const float* p0: scratch
//   const float* p1: f32[experts] router_bias
//   float* p2: f32[T, picked] sparse.w
//   int* p3: i32<experts>[T, picked] sparse.route.ids
#include "cache.cuh"

constexpr int LANES = 2;
extern "C" __global__ void __launch_bounds__(128) sparse_w_rows_c665e49c(const int rows, const float* p0, const float* p1, float* p2, int* p3) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 64 + sub;
  const bool live = wanted < rows;
  const int row = live ? wanted : rows - 1;
  const int i1 = row / 1;  // T
  __shared__ float s0[64][16];
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
  __shared__ float s3[64][8];
  for (int at = lane; at < 16; at += LANES) {
    const int i4 = at / 4 % 4;  // groups
    const int i5 = at / 1 % 4;  // member
    const int rank = rank_in_thread<4>([&](int q6) { const float m7 = load(p1 + (u64)i4 * 4 + (u64)q6); const float v8_sparse_route_choice = s0[sub][i4 * 4 + q6] + m7; return v8_sparse_route_choice; }, i5);
    const float m9 = load(p1 + (u64)i4 * 4 + (u64)i5);
    const float v10_sparse_route_choice = s0[sub][i4 * 4 + i5] + m9;
    if (rank < 2) s3[sub][i4 * 2 + rank] = v10_sparse_route_choice;
  }
  group_sync<LANES>();
  __shared__ float s4[64][4];
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
  __shared__ int s5[64][4];
  for (int at = lane; at < 4; at += LANES) {
    const int i13 = at / 1 % 4;  // groups
    s5[sub][i13] = rank_in_thread<4>([&](int q14) { return s4[sub][q14]; }, i13) < 2;
  }
  group_sync<LANES>();
  __shared__ int s8[64][4];
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

// ---- sparse_expert_grouped_matmul_280483f8.cu
// region `sparse.expert` (grouped_matmul)
// f32[T, picked, x_gate.x_up] from bf16[T, hidden], bf16[experts, x_gate.x_up, hidden], i32<experts>[T, picked]
#include "product.cuh"

using Core = Product<bf16, bf16, float, 192, 192, 2, 8, 1, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) sparse_expert_grouped_matmul_280483f8(const bf16* x, const bf16* w, const int* ids, float* out, const int picks) {
  Core::picked(x, w, ids, out, picks, 4);
}
static_assert(Core::THREADS == 256, "threads");

// ---- sparse_expert_rows_2d1f75d1.cu
// region `sparse.expert` (grouped_matmul)
// rows [T, picked], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, picked, expert_ffn] sparse.expert
#include "cache.cuh"

constexpr int LANES = 12;
extern "C" __global__ void __launch_bounds__(256) sparse_expert_rows_2d1f75d1(const int rows, const float* p0, bf16* p1) {
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

// ---- sparse_y_grouped_matmul_10cb0a78.cu
// region `sparse.y` (grouped_matmul)
// f32[T, picked, hidden] from bf16[T, picked, expert_ffn], bf16[experts, hidden, expert_ffn], i32<experts>[T, picked]
#include "product.cuh"

using Core = Product<bf16, bf16, float, 192, 96, 1, 1, 1, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) sparse_y_grouped_matmul_10cb0a78(const bf16* x, const bf16* w, const int* ids, float* out, const int picks) {
  Core::picked(x, w, ids, out, picks, 1);
}
static_assert(Core::THREADS == 256, "threads");

// ---- sparse_y_rows_60e36cc8.cu
// region `sparse.y` (grouped_matmul)
// rows [T, picked], a group of 8 elements a thread
//   const float* p0: scratch
//   bf16* p1: bf16[T, picked, hidden] sparse.y
#include "cache.cuh"

constexpr int LANES = 24;
extern "C" __global__ void __launch_bounds__(256) sparse_y_rows_60e36cc8(const int rows, const float* p0, bf16* p1) {
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

// ---- next_norm_rows_eedee3a4.cu
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
extern "C" __global__ void __launch_bounds__(128) next_norm_rows_eedee3a4(const int rows, const float* p0, const bf16* p1, const bf16* p2, float x3, const bf16* p4, const bf16* p5, bf16* p6, bf16* p7) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 4 + sub;
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

// ---- attention_k_2_rows_4da9888e.cu
// region `attention.k#2` (matmul)
// rows [T, heads], 4 threads a row
//   const float* p0: scratch
//   const bf16* p1: bf16[head_dim] q_norm
//   bf16* p2: bf16[T, heads, head_dim] attention.q#2
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(128) attention_k_2_rows_4da9888e(const int rows, const float* p0, const bf16* p1, bf16* p2) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 32 + sub;
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

// ---- attention_k_2_rows_3111ca3c.cu
// region `attention.k#2` (matmul)
// rows [T, kv_heads], 4 threads a row
//   const int* p2: i32[T] pos
//   const float* p3: scratch
//   const bf16* p4: bf16[head_dim] k_norm
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(128) attention_k_2_rows_3111ca3c(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, const bf16* p4, bf16* p5) {
  const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
  const int wanted = blockIdx.x * 32 + sub;
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

// ---- attention_k_2_rows_8a42bac7.cu
// region `attention.k#2` (matmul)
// rows [T, kv_heads], a group of 8 elements a thread
//   const int* p2: i32[T] pos
//   const float* p3: scratch
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_k_2_rows_8a42bac7(const int rows, const Steps* p0, const i64 x1, const int* p2, const float* p3, bf16* p4) {
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

// ---- attention_o_rows_1a74d894.cu
// region `attention.o` (attend)
// rows [T, heads], a group of 8 elements a thread
//   const bf16* p0: bf16[T, heads, head_dim] attention.q#2
//   const float* p1: f32[T] m
//   bf16* p2: scratch
#include "cache.cuh"

constexpr int LANES = 4;
extern "C" __global__ void __launch_bounds__(256) attention_o_rows_1a74d894(const int rows, const bf16* p0, const float* p1, bf16* p2) {
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

// ---- attention_o_attend_dd8de328.cu
// region `attention.o` (attend)
// f32[T, heads, head_dim] from bf16[T, heads, head_dim], i32[T]
#include "attend.cuh"

using Core = Attend<bf16, bf16, float, 12, 6, 32, 0, false, 4>;
using Cache = CacheLayout<64, 16384, 32, 2048, 4096>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) attention_o_attend_dd8de328(const bf16* q, const bf16* pool, const Steps* steps, const i64 slot, const int* at, const float* sink, const float scale, float* out, const int rows) {
  Core::run<Cache>(q, pool, steps, 0, slot, at, sink, scale, out, rows);
}
static_assert(Core::THREADS == 128, "threads");

// ---- result_rows_4032296f.cu
// region `result` (matmul)
// rows [R], a group of 8 elements a thread
//   const int* p0: i32[R] rows
//   const bf16* p1: bf16[T, hidden] norm
//   bf16* p2: scratch
#include "cache.cuh"

constexpr int LANES = 24;
extern "C" __global__ void __launch_bounds__(256) result_rows_4032296f(const int rows, const int* p0, const bf16* p1, bf16* p2) {
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

// ---- result_matmul_a52918d5.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "product.cuh"

using Core = Product<bf16, bf16, float, 2048, 192, 1, 1, 8, 8>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) result_matmul_a52918d5(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- result_matmul_tiles_8b2877c1.cu
// region `result` (matmul)
// f32[R, vocab] from bf16[R, hidden], bf16[vocab, hidden]
#include "tiles.cuh"

using Core = Tiles<2048, 192, 1, 1>;
extern "C" __global__ void __launch_bounds__(Core::THREADS) result_matmul_tiles_8b2877c1(const bf16* x, const bf16* w, float* out, const int rows) {
  Core::dense(x, w, out, rows);
}
static_assert(Core::THREADS == 256, "threads");

// ---- result_rows_d2f18df0.cu
// region `result` (matmul)
// rows [R], a group of 8 elements a thread
//   const float* p0: scratch
//   float* p1: f32[R, vocab] result
#include "cache.cuh"

constexpr int LANES = 256;
extern "C" __global__ void __launch_bounds__(256) result_rows_d2f18df0(const int rows, const float* p0, float* p1) {
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


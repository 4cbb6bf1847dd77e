// The prelude: the only file with inline assembly and architecture switches. No header of the toolkit is needed.
// Everything else is plain C++17, so that a host model of this file can run the same kernels.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__

struct bf16 { u16 bits; };
struct alignas(16) Words4 { u32 a, b, c, d; };

DEVICE float from_bits(u32 x) { return __uint_as_float(x); }
DEVICE u32 to_bits(float x) { return __float_as_uint(x); }
// Correctly rounded, whatever the compiler's options.
DEVICE float quotient(float a, float b) { return __fdiv_rn(a, b); }
DEVICE float root(float a) { return __fsqrt_rn(a); }
DEVICE float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

// Nearest even; subnormals stay; a NaN stays one.
DEVICE u16 bf16_bits(float x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
DEVICE u32 bf16_pair(float low, float high) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE float round_bf16(float x) { return from_bits((u32)bf16_bits(x) << 16); }

DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE double shuffle_xor(double x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE u64 shuffle(u64 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

// One element as a number.
DEVICE float load(const float* p) { return *p; }
DEVICE float load(const bf16* p) { return from_bits((u32)p->bits << 16); }
DEVICE int load(const int* p) { return *p; }
DEVICE bool load(const bool* p) { return *p; }
DEVICE void store(float* p, float x) { *p = x; }
DEVICE void store(bf16* p, float x) { p->bits = bf16_bits(x); }
DEVICE void store(int* p, int x) { *p = x; }
DEVICE void store(bool* p, bool x) { *p = x; }

// Eight elements at an address that is a multiple of their size.
DEVICE void load8(float (&x)[8], const bf16* p) {
  const Words4 w = *(const Words4*)p;
  x[0] = from_bits(w.a << 16); x[1] = from_bits(w.a & 0xffff0000u);
  x[2] = from_bits(w.b << 16); x[3] = from_bits(w.b & 0xffff0000u);
  x[4] = from_bits(w.c << 16); x[5] = from_bits(w.c & 0xffff0000u);
  x[6] = from_bits(w.d << 16); x[7] = from_bits(w.d & 0xffff0000u);
}
DEVICE void load8(float (&x)[8], const float* p) {
  const Words4 v = ((const Words4*)p)[0], w = ((const Words4*)p)[1];
  x[0] = from_bits(v.a); x[1] = from_bits(v.b); x[2] = from_bits(v.c); x[3] = from_bits(v.d);
  x[4] = from_bits(w.a); x[5] = from_bits(w.b); x[6] = from_bits(w.c); x[7] = from_bits(w.d);
}
DEVICE void load8(int (&x)[8], const int* p) {
  const Words4 v = ((const Words4*)p)[0], w = ((const Words4*)p)[1];
  x[0] = v.a; x[1] = v.b; x[2] = v.c; x[3] = v.d; x[4] = w.a; x[5] = w.b; x[6] = w.c; x[7] = w.d;
}
DEVICE void store8(bf16* p, const float (&x)[8]) {
  Words4 w;
  w.a = bf16_pair(x[0], x[1]); w.b = bf16_pair(x[2], x[3]); w.c = bf16_pair(x[4], x[5]); w.d = bf16_pair(x[6], x[7]);
  *(Words4*)p = w;
}
DEVICE void store8(float* p, const float (&x)[8]) {
  Words4 v, w;
  v.a = to_bits(x[0]); v.b = to_bits(x[1]); v.c = to_bits(x[2]); v.d = to_bits(x[3]);
  w.a = to_bits(x[4]); w.b = to_bits(x[5]); w.c = to_bits(x[6]); w.d = to_bits(x[7]);
  ((Words4*)p)[0] = v; ((Words4*)p)[1] = w;
}
DEVICE void store8(int* p, const int (&x)[8]) {
  Words4 v, w;
  v.a = x[0]; v.b = x[1]; v.c = x[2]; v.d = x[3]; w.a = x[4]; w.b = x[5]; w.c = x[6]; w.d = x[7];
  ((Words4*)p)[0] = v; ((Words4*)p)[1] = w;
}

// Shared memory as the instructions below name it.
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// Copies 16 bytes to shared memory beside other work, or zeros where `there` is false.
DEVICE void copy16(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
DEVICE void copies_end_here() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }
// Four 8 by 8 matrices of bf16: thread t names row t % 8 of matrix t / 8.
DEVICE void load_matrices(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}
// c += a b for 16 by 16 times 16 by 8.
DEVICE void multiply_matrices(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts of kernels that depend on each other: the next may start, and this one waits for all before it.
DEVICE void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Meets the threads of a group: a part of a warp, or the whole block.
template <int THREADS> DEVICE void group_sync() {
  if constexpr (THREADS > 32) __syncthreads();
  else __syncwarp();
}

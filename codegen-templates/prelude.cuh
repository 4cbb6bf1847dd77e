// The prelude: the only file with inline assembly and architecture switches. No header of the toolkit is needed.
// Everything else is plain C++17, so that a host model of this file can run the same kernels.
#pragma once
#ifdef HOST_MODEL
#include "host_model.hpp"
#else

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
// The nearest whole number, the even one of two; `x` is no less than 0.
DEVICE u64 whole(float x) { return __float2ull_rn(x); }

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
// The larger of two numbers, and the number where one is none.
DEVICE float larger_number(float a, float b) { return fmaxf(a, b); }
// 2 to the power x, with a relative error below 2^-22; for sums that have no order of their own.
DEVICE float two_to(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE double shuffle_xor(double x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE u64 shuffle_xor(u64 x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE int shuffle_xor(int x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEVICE u64 shuffle(u64 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

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
// The same, each matrix turned.
DEVICE void load_matrices_turned(u32 (&r)[4], u32 row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
}
// c += a b for 16 by 16 times 16 by 8.
DEVICE void multiply_matrices(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Starts of kernels that depend on each other: the next may start, and this one waits for all before it.
DEVICE void next_may_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_earlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Brings so many bytes nearer, with all threads of the block.
template <int BYTES> DEVICE void ahead(const void* from) {
  for (int at = threadIdx.x * 128; at < BYTES; at += blockDim.x * 128) asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)from + at));
}

// Shared memory whose size the start gives; it begins at a multiple of 1024 bytes, as swizzled tiles want it.
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) u8 name[]

// Barriers that also count bytes. A wait ends when the phase of this parity has ended.
DEVICE void barrier_begin(u32 barrier, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory"); }
DEVICE void barriers_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 barrier, u32 parity) {
  asm volatile("{ .reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE; bra AGAIN;\nDONE: }" ::"r"(barrier), "r"(parity)
               : "memory");
}
// What ordinary stores wrote to shared memory, the matrix units and the copy engine see from here on.
DEVICE void shared_is_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Meets THREADS threads of a block under a number from 1 to 15.
template <int THREADS> DEVICE void meet(int number) { asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory"); }

// A tile of a matrix in memory, brought by the copy engine: `column` and `row` of its first element.
struct alignas(64) TensorMap { u64 words[16]; };
DEVICE void map_ahead(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
DEVICE void fetch_tile(u32 to, const TensorMap* map, int column, int row, u32 barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
               "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(0x12F0000000000000ull)
               : "memory");
}

// Registers of a warpgroup, given to another.
template <int N> DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// Tickets between blocks: what a block wrote before `take_ticket` is seen by a block whose ticket is later.
DEVICE void publish() { __threadfence(); }
DEVICE u32 take_ticket(u32* counter) { return atomicAdd(counter, 1u); }
// Counts and sums in shared memory; the first gives what was there.
DEVICE u32 count_up(u32* counter) { return atomicAdd(counter, 1u); }
DEVICE void add_up(u32* sum, u32 x) { atomicAdd(sum, x); }
// Lanes of the warp that hold the same number, and what is in such a set.
DEVICE u32 lanes_with(int x) { return __match_any_sync(0xffffffffu, x); }
DEVICE int lowest_lane(u32 lanes) { return __ffs(lanes) - 1; }
DEVICE int lanes_in(u32 lanes) { return __popc(lanes); }
// What other blocks wrote, or memory of this block: never from a cache that others do not see.
DEVICE float load_fresh(const float* p) { return *(const volatile float*)p; }
DEVICE int load_fresh(const int* p) { return *(const volatile int*)p; }
DEVICE u64 load_fresh(const u64* p) { return *(const volatile u64*)p; }
DEVICE void load_fresh4(float (&x)[4], const float* p) {
  asm volatile("ld.relaxed.gpu.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(p));
}

// Memory of other ranks. What a thread posts, and what threads posted that it met, is seen by who hears its announcement, and by whom these
// meet. Who waits for very long ends in a fault: another rank has stopped.
DEVICE void announce(u32* to, u32 turn) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(turn) : "memory"); }
DEVICE void hear(const u32* from, u32 turn) {
  for (u32 tries = 0;; ++tries) {
    u32 x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    if ((int)(x - turn) >= 0) return;
    if (tries == 1u << 26) asm volatile("trap;");
  }
}

// Matrix units: 64 rows of A times N rows of B, both along k in tiles of 128 bytes a row with their 16-byte pieces swizzled.
DEVICE u64 tile_of(u32 address) { return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
#define REGISTERS_4 "%0, %1, %2, %3"
#define REGISTERS_8 REGISTERS_4 ", %4, %5, %6, %7"
#define REGISTERS_16 REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_32 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_64 REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_128 REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OUT_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT_8(d, i) OUT_4(d, i), OUT_4(d, i + 4)
#define OUT_16(d, i) OUT_8(d, i), OUT_8(d, i + 8)
#define OUT_32(d, i) OUT_16(d, i), OUT_16(d, i + 16)
#define OUT_64(d, i) OUT_32(d, i), OUT_32(d, i + 32)
#define OUT_128(d, i) OUT_64(d, i), OUT_64(d, i + 64)
#define PRODUCT_OF(N, R, A, B, P)                                                                                                \
  DEVICE void multiply_tiles(float (&d)[R], u64 a, u64 b, int add) {                                                             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #P ", 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS_##R "}, %" #A ", %" #B ", p, 1, 1, 0, 0; }" \
                 : OUT_##R(d, 0) : "l"(a), "l"(b), "r"(add));                                                                    \
  }
// d = a b, or d += a b where `add` is not 0, for 16 elements along k. Thread t of the warpgroup has of d: row t / 32 * 16 + t % 32 / 4
// (+ 8 for elements 2 and 3 of each four), columns 8 i + t % 4 * 2 + {0, 1} of the i-th four.
PRODUCT_OF(8, 4, 4, 5, 6)
PRODUCT_OF(16, 8, 8, 9, 10)
PRODUCT_OF(32, 16, 16, 17, 18)
PRODUCT_OF(64, 32, 32, 33, 34)
PRODUCT_OF(128, 64, 64, 65, 66)
PRODUCT_OF(256, 128, 128, 129, 130)
// The same with A in registers, as the warp's instruction has it: 16 rows for each warp. Where B is turned, its rows along k have N
// elements side by side: 64 in a tile, tiles of 64 rows behind each other.
DEVICE u64 turned_tile_of(u32 address) { return (u64)((address & 0x3FFFF) >> 4) | (512ull << 16) | (64ull << 32) | (1ull << 62); }
#define PRODUCT_OF_ROWS(NAME, N, R, A0, A1, A2, A3, B, P, TURNED)                                                                       \
  DEVICE void NAME(float (&d)[R], const u32 (&a)[4], u64 b, int add) {                                                                  \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #P ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" REGISTERS_##R "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3     \
                 "}, %" #B ", p, 1, 1, " #TURNED "; }"                                                                                  \
                 : OUT_##R(d, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                       \
  }
PRODUCT_OF_ROWS(multiply_rows, 64, 32, 32, 33, 34, 35, 36, 37, 0)
PRODUCT_OF_ROWS(multiply_rows_turned, 64, 32, 32, 33, 34, 35, 36, 37, 1)
PRODUCT_OF_ROWS(multiply_rows_turned, 128, 64, 64, 65, 66, 67, 68, 69, 1)
#endif

DEVICE float round_bf16(float x) { return from_bits((u32)bf16_bits(x) << 16); }

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

// To memory of another rank.
#ifdef HOST_MODEL
template <class T> DEVICE void post(T* to, float x) { T held; store(&held, x); model::post(to, &held, sizeof held); }
template <class T> DEVICE void post8(T* to, const float (&x)[8]) { alignas(16) T held[8]; store8(held, x); model::post(to, held, sizeof held); }
DEVICE void post_word(Words4* to, const Words4& word) { model::post(to, &word, sizeof word); }
#else
template <class T> DEVICE void post(T* to, float x) { store(to, x); }
// Always 16 bytes at once: the compiler parts such stores where there are many.
DEVICE void post_word(Words4* to, const Words4& w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w.a), "r"(w.b), "r"(w.c), "r"(w.d) : "memory");
}
DEVICE void post8(float* to, const float (&x)[8]) {
  post_word((Words4*)to, {to_bits(x[0]), to_bits(x[1]), to_bits(x[2]), to_bits(x[3])});
  post_word((Words4*)to + 1, {to_bits(x[4]), to_bits(x[5]), to_bits(x[6]), to_bits(x[7])});
}
DEVICE void post8(bf16* to, const float (&x)[8]) {
  post_word((Words4*)to, {bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]), bf16_pair(x[6], x[7])});
}
#endif

// Meets the threads of a group: a part of a warp, or the whole block.
template <int THREADS> DEVICE void group_sync() {
  if constexpr (THREADS > 32) __syncthreads();
  else __syncwarp();
}

// Whether this block is the last of `of` to come here; the counter is then 0 again, and what the others wrote is seen.
DEVICE bool comes_last(u32* ticket, u32 of) {
  __shared__ int last_here;
  publish();
  __syncthreads();
  if (threadIdx.x == 0) {
    last_here = take_ticket(ticket) == of - 1;
    if (last_here) *ticket = 0;
  }
  __syncthreads();
  publish();
  return last_here != 0;
}

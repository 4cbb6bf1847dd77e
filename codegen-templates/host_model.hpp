// The prelude for a processor: fibers stand for threads, one block runs at a time. What is asynchronous happens late: a copy is
// seen when it was waited for, a tile of the copy engine when all threads had their turn, products when they were waited for.
// The matrix units see shared memory through a view of their own, which ordinary copies reach by `shared_is_written`.
#pragma once
#undef _FORTIFY_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

typedef unsigned char u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;
typedef long long i64;
struct bf16 { u16 bits; };
struct alignas(16) Words4 { u32 a, b, c, d; };
// A matrix of 2-byte elements in memory, and the box that is brought at once.
struct alignas(64) TensorMap { const u8* at; u64 columns, rows; u32 box_columns, box_rows; u8 unused[96]; };

#define DEVICE inline
#define __device__
#define __global__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define DYNAMIC_SHARED(name) u8* name = model::shared.data()

namespace model {
constexpr u32 SHARED_BYTES = 232448;  // most that a block of an sm_90 gets
#ifndef HOST_MODEL_PATIENCE
#define HOST_MODEL_PATIENCE 60000
#endif
constexpr u64 PATIENCE = HOST_MODEL_PATIENCE;  // how often a thread asks for another rank's word
struct Index { u32 x, y, z; };
struct Meeting { int here = 0; u64 round = 0; };
struct Barrier { int arrivals, open; i64 bytes; u32 phase; };
struct Copy { u32 to; const void* from; bool there; };
struct Post { void* to; std::vector<u8> bytes; };
struct Tile { u32 to; const TensorMap* map; int column, row; u32 barrier; };
struct Fiber {
  ucontext_t context;  // for its first turn; then `place`, which takes no call of the system
  jmp_buf place;
  bool begun;
  std::vector<u8> stack;
  int thread;
  bool done;
  std::vector<std::vector<Copy>> copies;      // groups, the last one open
  std::vector<Copy> unpublished;              // copied, and not shown to the matrix units yet
  std::vector<std::vector<std::function<void()>>> products;
  std::vector<Post> posts;                    // on their way to other ranks, and no thread was met since
};
inline std::vector<u8> shared, matrix_view;
inline std::vector<Fiber> fibers;
inline std::map<u32, Barrier> barriers;
inline Meeting block_meeting, named[16], warps[64], warpgroups[16];
struct Lane { u32 words[8]; };
inline Lane lanes[1024];
inline std::vector<Tile> tiles;
inline std::vector<Post> met_posts;  // those of threads that met; gone with the next announcement
inline Index block, grid;
inline int threads, current;
inline bool backwards;  // the order in which threads have their turns
inline u64 progress;
inline u32 shared_bytes = SHARED_BYTES;  // what the start gives
inline ucontext_t scheduler;
inline jmp_buf scheduler_place;
inline std::function<void()> body;

[[noreturn]] inline void fault(const char* what) {
  printf("fault: %s, block %u %u, thread %d\n", what, block.x, block.y, fibers.empty() ? -1 : fibers[current].thread);
  fflush(stdout);
  _exit(3);
}
inline Fiber& own() { return fibers[current]; }
inline int thread() { return own().thread; }
inline void turn() {
  if (_setjmp(own().place) == 0) _longjmp(scheduler_place, 1);
}
// Gives a fiber its turn, until it waits.
inline void resume(Fiber& f) {
  if (_setjmp(scheduler_place) != 0) return;
  if (f.begun) _longjmp(f.place, 1);
  f.begun = true;
  setcontext(&f.context);
}
template <class Ready> void wait(Ready ready) {
  while (!ready()) turn();
  ++progress;
}
inline void meet(Meeting& meeting, int of) {
  const u64 round = meeting.round;
  if (++meeting.here == of) { meeting.here = 0; ++meeting.round; ++progress; }
  else wait([&] { return meeting.round != round; });
}
inline void settle(Barrier& b) {
  if (b.open < 0) fault("more arrivals at a barrier than it takes");
  if (b.open == 0 && b.bytes == 0) { b.open = b.arrivals; ++b.phase; ++progress; }
}
inline Barrier& barrier(u32 at) {
  const auto found = barriers.find(at);
  if (found == barriers.end()) fault("a barrier that was not begun");
  return found->second;
}
inline void check(u32 at, u32 bytes) { if (at + bytes > shared_bytes) fault("shared memory ends"); }
inline u32 swizzled(u32 at) { return at ^ (((at >> 7) & 7) << 4); }
inline void bring(const Tile& t) {
  if (t.to % 1024 != 0) fault("a swizzled tile begins at no multiple of 1024 bytes");
  check(t.to, t.map->box_rows * 128);
  for (u32 r = 0; r < t.map->box_rows; ++r)
    for (u32 c = 0; c < t.map->box_columns; ++c) {
      const i64 row = (i64)t.row + r, column = (i64)t.column + c;
      u16 element = 0;
      if (row >= 0 && column >= 0 && (u64)row < t.map->rows && (u64)column < t.map->columns) memcpy(&element, t.map->at + ((u64)row * t.map->columns + column) * 2, 2);
      const u32 to = swizzled(t.to + r * 128 + c * 2);
      memcpy(shared.data() + to, &element, 2);
      memcpy(matrix_view.data() + to, &element, 2);
    }
  Barrier& b = barrier(t.barrier);
  b.bytes -= (i64)t.map->box_rows * t.map->box_columns * 2;
  if (b.bytes < 0) fault("more bytes at a barrier than it expects");
  settle(b);
}
inline void copy(const Copy& c) {
  check(c.to, 16);
  static const u8 nothing[16] = {};
  memcpy(shared.data() + c.to, c.there ? c.from : nothing, 16);
}
inline void post(void* to, const void* from, size_t bytes) { own().posts.push_back({to, std::vector<u8>((const u8*)from, (const u8*)from + bytes)}); }
inline void deliver(std::vector<Post>& posts) {
  for (const Post& p : posts) memcpy(p.to, p.bytes.data(), p.bytes.size());
  posts.clear();
}
inline void posts_meet() {
  met_posts.insert(met_posts.end(), own().posts.begin(), own().posts.end());
  own().posts.clear();
}
inline void entry() {
  body();
  own().done = true;
  ++progress;
  for (;;) turn();
}
inline void run_block() {
  shared.assign(SHARED_BYTES, 0xff);
  matrix_view.assign(SHARED_BYTES, 0xff);
  barriers.clear();
  tiles.clear();
  block_meeting = Meeting();
  std::fill(named, named + 16, Meeting());
  std::fill(warps, warps + 64, Meeting());
  std::fill(warpgroups, warpgroups + 16, Meeting());
  for (int i = 0; i < threads; ++i) {
    Fiber& f = fibers[i];
    f.thread = i;
    f.done = f.begun = false;
    f.copies.assign(1, {});
    f.unpublished.clear();
    f.products.assign(1, {});
    f.posts.clear();
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.data();
    f.context.uc_stack.ss_size = f.stack.size();
    f.context.uc_link = nullptr;
    makecontext(&f.context, entry, 0);
  }
  for (bool live = true; live;) {
    live = false;
    const u64 before = progress;
    for (int turn = 0; turn < threads; ++turn) {
      current = backwards ? threads - 1 - turn : turn;
      if (fibers[current].done) continue;
      live = true;
      resume(fibers[current]);
    }
    current = 0;
    const std::vector<Tile> brought = std::move(tiles);
    tiles.clear();
    for (const Tile& t : brought) { bring(t); ++progress; }
    if (live && before == progress) fault("all threads wait");
  }
  if (!met_posts.empty()) fault("numbers for other ranks were never announced");
  for (const Fiber& f : fibers)
    if (f.copies.size() > 1 || !f.copies[0].empty() || f.products.size() > 1 || !f.posts.empty()) fault("work is left that nobody waited for");
}
inline void start(Index blocks, int of, std::function<void()> kernel) {
  grid = blocks;
  threads = of;
  body = kernel;
  fibers.resize(of);
  for (Fiber& f : fibers) f.stack.resize(96 * 1024);
  for (u32 y = 0; y < blocks.y; ++y)
    for (u32 x = 0; x < blocks.x; ++x) {
      block = Index{x, y, 0};
      run_block();
    }
  fibers.clear();
}
// What every lane of the warp says; valid until the warp meets again.
template <class T> const Lane* of_warp(const T& x) {
  static_assert(sizeof x <= sizeof(Lane), "words of a lane");
  const int t = thread(), warp = t / 32;
  memcpy(&lanes[t], &x, sizeof x);
  meet(warps[warp], std::min(32, threads - warp * 32));
  return lanes + warp * 32;
}
inline void warp_done() { meet(warps[thread() / 32], std::min(32, threads - thread() / 32 * 32)); }
template <class T> T from_lane(T x, int lane) {
  T out;
  memcpy(&out, of_warp(x) + lane, sizeof out);
  warp_done();
  return out;
}
struct ThreadIndex { struct { operator u32() const { return (u32)thread(); } } x; };
}  // namespace model
inline model::ThreadIndex threadIdx;
#define blockIdx (model::block)
#define gridDim (model::grid)
inline void __syncthreads() { model::posts_meet(); model::meet(model::block_meeting, model::threads); }
inline void __syncwarp() { model::meet(model::warps[model::thread() / 32], std::min(32, model::threads - model::thread() / 32 * 32)); }
inline int __clzll(i64 x) { return __builtin_clzll((u64)x); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __int_as_float(int x) { float f; memcpy(&f, &x, 4); return f; }

DEVICE float from_bits(u32 x) { float f; memcpy(&f, &x, 4); return f; }
DEVICE u32 to_bits(float x) { u32 u; memcpy(&u, &x, 4); return u; }
DEVICE float quotient(float a, float b) { return a / b; }
DEVICE float root(float a) { return std::sqrt(a); }
DEVICE float fused(float a, float b, float c) { return std::fma(a, b, c); }
DEVICE u64 whole(float x) { return (u64)std::nearbyint(x); }
DEVICE u16 bf16_bits(float x) {
  const u32 u = to_bits(x);
  if (x != x) return 0x7fff;
  return (u16)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
DEVICE u32 bf16_pair(float low, float high) { return (u32)bf16_bits(low) | (u32)bf16_bits(high) << 16; }
DEVICE float larger_number(float a, float b) { return std::fmax(a, b); }
DEVICE float two_to(float x) { return std::exp2(x); }
DEVICE float shuffle_xor(float x, int mask) { return model::from_lane(x, (model::thread() & 31) ^ mask); }
DEVICE double shuffle_xor(double x, int mask) { return model::from_lane(x, (model::thread() & 31) ^ mask); }
DEVICE u64 shuffle_xor(u64 x, int mask) { return model::from_lane(x, (model::thread() & 31) ^ mask); }
DEVICE int shuffle_xor(int x, int mask) { return model::from_lane(x, (model::thread() & 31) ^ mask); }
DEVICE float shuffle(float x, int lane) { return model::from_lane(x, lane); }
DEVICE u64 shuffle(u64 x, int lane) { return model::from_lane(x, lane); }
DEVICE int shuffle(int x, int lane) { return model::from_lane(x, lane); }
DEVICE u32 lanes_with(int x) {
  const model::Lane* all = model::of_warp(x);
  u32 same = 0;
  for (int lane = 0; lane < 32; ++lane) same |= ((int)all[lane].words[0] == x ? 1u : 0u) << lane;
  model::warp_done();
  return same;
}
DEVICE int lowest_lane(u32 lanes) { return __builtin_ffs((int)lanes) - 1; }
DEVICE int lanes_in(u32 lanes) { return __builtin_popcount(lanes); }
DEVICE void publish() {}
DEVICE u32 take_ticket(u32* counter) { return (*counter)++; }
DEVICE u32 count_up(u32* counter) { return (*counter)++; }
DEVICE void add_up(u32* sum, u32 x) { *sum += x; }
DEVICE float load_fresh(const float* p) { return *p; }
DEVICE int load_fresh(const int* p) { return *p; }
DEVICE u64 load_fresh(const u64* p) { return *p; }
DEVICE void load_fresh4(float (&x)[4], const float* p) { memcpy(x, p, sizeof x); }

// Ranks are processes; how far each is stands in memory that they share.
DEVICE void announce(u32* to, u32 turn) {
  model::deliver(model::met_posts);
  model::deliver(model::own().posts);
  __atomic_store_n(to, turn, __ATOMIC_RELEASE);
}
DEVICE void hear(const u32* from, u32 turn) {
  for (u64 tries = 0; (int)(__atomic_load_n(from, __ATOMIC_ACQUIRE) - turn) < 0; ++tries) {
    if (tries > model::PATIENCE) model::fault("another rank is never heard");
    if (tries % 4 == 3) sched_yield();
    ++model::progress;
    model::turn();
  }
}

DEVICE u32 shared_address(const void* p) { return (u32)((const u8*)p - model::shared.data()); }
DEVICE void copy16(u32 to, const void* from, bool there) { model::own().copies.back().push_back({to, from, there}); }
DEVICE void copies_end_here() { model::own().copies.emplace_back(); }
template <int LEFT> DEVICE void wait_for_copies() {
  auto& groups = model::own().copies;
  while ((int)groups.size() - 1 > LEFT) {
    for (const auto& c : groups.front()) { model::copy(c); model::own().unpublished.push_back(c); }
    groups.erase(groups.begin());
  }
}
DEVICE void shared_is_written() {
  for (const auto& c : model::own().unpublished) memcpy(model::matrix_view.data() + c.to, model::shared.data() + c.to, 16);
  model::own().unpublished.clear();
}
DEVICE void barrier_begin(u32 at, u32 arrivals) { model::barriers[at] = {(int)arrivals, (int)arrivals, 0, 0}; }
DEVICE void barriers_begun() {}
DEVICE void barrier_arrive(u32 at) { auto& b = model::barrier(at); --b.open; model::settle(b); }
DEVICE void barrier_expect(u32 at, u32 bytes) { auto& b = model::barrier(at); b.bytes += bytes; --b.open; model::settle(b); }
DEVICE void barrier_wait(u32 at, u32 parity) { auto& b = model::barrier(at); model::wait([&] { return (b.phase & 1) != parity; }); }
template <int THREADS> DEVICE void meet(int number) { model::meet(model::named[number], THREADS); }
DEVICE void map_ahead(const TensorMap*) {}
DEVICE void fetch_tile(u32 to, const TensorMap* map, int column, int row, u32 barrier) { model::tiles.push_back({to, map, column, row, barrier}); }
template <int N> DEVICE void fewer_registers() {}
template <int N> DEVICE void more_registers() {}
template <int BYTES> DEVICE void ahead(const void*) {}
DEVICE void next_may_start() {}
DEVICE void wait_for_earlier() {}

// Matrices of the warp's instructions, through the lanes' exchange.
DEVICE void load_matrices(u32 (&r)[4], u32 row) {
  const int lane = model::thread() & 31;
  const model::Lane* rows = model::of_warp(row);
  for (int m = 0; m < 4; ++m) {
    const u32 at = rows[m * 8 + lane / 4].words[0] + lane % 4 * 4;
    model::check(at, 4);
    memcpy(&r[m], model::shared.data() + at, 4);
  }
  model::warp_done();
}
DEVICE void load_matrices_turned(u32 (&r)[4], u32 row) {
  const int lane = model::thread() & 31;
  const model::Lane* rows = model::of_warp(row);
  for (int m = 0; m < 4; ++m)
    for (int i = 0; i < 2; ++i) {
      const u32 at = rows[m * 8 + lane % 4 * 2 + i].words[0] + lane / 4 * 2;
      model::check(at, 2);
      memcpy((u16*)&r[m] + i, model::shared.data() + at, 2);
    }
  model::warp_done();
}
DEVICE float half_of(u32 pair, int which) { return from_bits(which ? pair & 0xffff0000u : pair << 16); }
DEVICE void multiply_matrices(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int lane = model::thread() & 31;
  const model::Lane own = {{a[0], a[1], a[2], a[3], b0, b1, 0, 0}};
  const model::Lane* all = model::of_warp(own);
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    float sum = c[e];
    for (int k = 0; k < 16; ++k)
      sum += half_of(all[row % 8 * 4 + k % 8 / 2].words[row / 8 + k / 8 * 2], k % 2) * half_of(all[column * 4 + k % 8 / 2].words[4 + k / 8], k % 2);
    c[e] = sum;
  }
  model::warp_done();
}

DEVICE u64 tile_of(u32 address) { return (u64)((address & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }
DEVICE void products_begin() {}
DEVICE void products_end() { model::own().products.emplace_back(); }
// Products of a warpgroup end for all of its warps.
template <int LEFT> DEVICE void wait_for_products() {
  auto& groups = model::own().products;
  while ((int)groups.size() - 1 > LEFT) {
    for (auto& product : groups.front()) product();
    groups.erase(groups.begin());
  }
  model::meet(model::warpgroups[model::thread() / 128], 128);
}
DEVICE float matrix_element(u64 tile, int row, int k) {
  if (tile >> 62 != 1) model::fault("a tile without its swizzle");
  const u32 at = (u32)(tile & 0x3fff) * 16 + (row / 8) * (u32)((tile >> 32 & 0x3fff) * 16) + (row % 8) * 128 + k * 2;
  model::check(at, 2);
  u16 bits;
  memcpy(&bits, model::matrix_view.data() + model::swizzled(at), 2);
  return from_bits((u32)bits << 16);
}
template <int R> DEVICE void multiply_tiles(float (&d)[R], u64 a, u64 b, int add) {
  float* to = d;
  const int t = model::thread() & 127;
  model::own().products.back().push_back([=] {
    const int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < R; ++i) {
      float sum = add ? to[i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += matrix_element(a, row + i % 4 / 2 * 8, k) * matrix_element(b, i / 4 * 8 + column + i % 2, k);
      to[i] = sum;
    }
  });
}
DEVICE u64 turned_tile_of(u32 address) { return (u64)((address & 0x3FFFF) >> 4) | (512ull << 16) | (64ull << 32) | (1ull << 62); }
DEVICE float turned_element(u64 tile, int n, int k) {
  const u32 at = (u32)(tile & 0x3fff) * 16 + n / 64 * (u32)((tile >> 16 & 0x3fff) * 16) + k / 8 * (u32)((tile >> 32 & 0x3fff) * 16) + k % 8 * 128 + n % 64 * 2;
  model::check(at, 2);
  u16 bits;
  memcpy(&bits, model::matrix_view.data() + model::swizzled(at), 2);
  return from_bits((u32)bits << 16);
}
template <int R, class Element> void multiply_registers(float (&d)[R], const u32 (&a)[4], u64 b, int add, Element element) {
  const int lane = model::thread() & 31;
  const model::Lane own = {{a[0], a[1], a[2], a[3], 0, 0, 0, 0}};
  const model::Lane* all = model::of_warp(own);
  std::vector<float> left(32);  // rows g and g + 8, 16 elements each
  for (int row = 0; row < 2; ++row)
    for (int k = 0; k < 16; ++k) left[row * 16 + k] = half_of(all[lane / 4 * 4 + k % 8 / 2].words[row + k / 8 * 2], k % 2);
  model::warp_done();
  float* to = d;
  model::own().products.back().push_back([=] {
    for (int i = 0; i < R; ++i) {
      float sum = add ? to[i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += left[i % 4 / 2 * 16 + k] * element(b, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
      to[i] = sum;
    }
  });
}
template <int R> void multiply_rows(float (&d)[R], const u32 (&a)[4], u64 b, int add) { multiply_registers(d, a, b, add, matrix_element); }
template <int R> void multiply_rows_turned(float (&d)[R], const u32 (&a)[4], u64 b, int add) { multiply_registers(d, a, b, add, turned_element); }

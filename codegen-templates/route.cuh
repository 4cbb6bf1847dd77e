// A product whose rows are selected from: blocks leave a row's numbers in memory, the block that ends a group of rows last brings them
// to shared memory and selects, and the block that ends the step's last rows does what needs all of them.
#pragma once
#include "split.cuh"
#include "stream.cuh"

template <class Core, int COLUMNS, int ROWS, int EXTRA> struct Route {
  static constexpr int THREADS = Core::THREADS, WARPS = THREADS / 32, PITCH = (COLUMNS + 3) / 4 * 4;
  static constexpr int EXTRA_AT = ROWS * PITCH * 4;
  static constexpr int SHARED = EXTRA_AT + EXTRA > Core::SHARED ? EXTRA_AT + EXTRA : Core::SHARED;

  // Rows in shared memory, as what is computed from them sees them.
  struct Lines {
    const float* numbers;
    u8* extra;
    int begin, count, own;
    template <int START, int LENGTH> DEVICE int first(int) const { return START; }
    template <int START, int LENGTH> DEVICE bool holds() const { return true; }
    template <int START, int LENGTH, int UNIT> DEVICE int across() const { return LENGTH / UNIT; }
    DEVICE const float* at(int line, int logical) const { return numbers + line * PITCH + logical; }
    DEVICE int to(int line) const { return begin + line; }
    DEVICE bool has(int) const { return true; }
    DEVICE void meet() const { __syncthreads(); }
  };

  // Grid (columns over those of a block of the core, rows over ROWS).
  template <class X, class W, class Ends, class After>
  static DEVICE void run(const X* x, const W* w, float* out, int rows, u32* tickets, const Ends& ends, const After& after) {
    DYNAMIC_SHARED(memory);
    wait_for_earlier();
    const int begin = blockIdx.y * ROWS, count = rows - begin < ROWS ? rows - begin : ROWS;
    Core::block(x, w, out, begin, count, memory);
    if (!comes_last(tickets + blockIdx.y, gridDim.x)) return;
    float* numbers = (float*)memory;
    for (int i = threadIdx.x; i < count * COLUMNS; i += THREADS) numbers[i / COLUMNS * PITCH + i % COLUMNS] = load_fresh(out + (u64)begin * COLUMNS + i);
    __syncthreads();
    ends(Lines{numbers, memory + EXTRA_AT, begin, count, (int)threadIdx.x});
    if (!comes_last(tickets + gridDim.y, gridDim.y)) return;
    after(0);
  }
};

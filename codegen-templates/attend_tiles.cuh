// Attention of bf16 over a paged cache on the matrix units. Query heads that share a KV head stand beside each other as rows of a
// tile, so keys and values are read once for all of them.
//
//   Decode   a block has 16 query rows and a part of their keys; its warps take 16 keys at a time in turn, each with a running largest
//            score. Parts of the context meet in memory; who comes last joins them in the order of the keys.
//   Prefill  a block has 128 query rows, 16 a warp; keys and values come 64 at a time for all warps.
//
// Weights of the sum are split into two bf16 numbers, so the sum errs as one in binary32 does.
#pragma once
#include "cache.cuh"

// Two elements of a query row as they are in memory.
template <int HEADS, int D> struct AsTheyAre {
  DEVICE u32 operator()(const bf16* rows, int row, int head, int at) const { return *(const u32*)(rows + ((u64)row * HEADS + head) * D + at); }
};

// 16 query rows of a warp. Row g = lane / 4 and row g + 8 are the thread's.
template <int HEADS, int SHARE, int D, int WINDOW, bool ALL> struct Queries {
  static constexpr int PITCH = D + 8, DEPTH = D / 16;
  static_assert(D % 16 == 0 && D <= 128, "a head");
  u32 q[DEPTH][4];
  float o[D / 8][4];
  float most[2], total[2];
  int sequence[2], first[2], last[2];
  // Of the warp: keys that some row sees, and keys that all rows see, as they are of one sequence.
  int some_first, some_last, all_first, all_last, all_sequence;

  // `token(i)` is the token row of query row i, -1 for none; `head(i)` its query head.
  // `read` gives two elements of a row of heads.
  template <class Token, class Head, class Read>
  DEVICE void begin(const bf16* rows, const Steps* steps, const int* at, Token token, Head head, const Read& read) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = lane / 4 + r * 8, row = token(i);
      most[r] = nothing_larger();
      total[r] = 0.0f;
      sequence[r] = -1;
      first[r] = 0;
      last[r] = -1;
      if (row >= 0) {
        const int position = at[row];
        sequence[r] = steps->sequence[row];
        last[r] = ALL ? steps->ends[sequence[r]] : position;
        first[r] = WINDOW > 0 && position + 1 > WINDOW ? position + 1 - WINDOW : 0;
        if (first[r] < steps->start) first[r] = steps->start;
      }
#pragma unroll
      for (int k = 0; k < DEPTH; ++k) {
        q[k][r] = row < 0 ? 0u : read(rows, row, head(i), k * 16 + lane % 4 * 2);
        q[k][r + 2] = row < 0 ? 0u : read(rows, row, head(i), k * 16 + lane % 4 * 2 + 8);
      }
    }
    some_first = lowest(first[0], first[1]);
    some_last = -lowest(-last[0], -last[1]);
    all_first = -lowest(-first[0], -first[1]);
    all_last = lowest(last[0], last[1]);
    int from = lowest(sequence[0], sequence[1]), to = -lowest(-sequence[0], -sequence[1]);
#pragma unroll
    for (int half = 16; half >= 4; half /= 2) {
      some_first = lowest(some_first, shuffle_xor(some_first, half));
      some_last = -lowest(-some_last, -shuffle_xor(some_last, half));
      all_first = -lowest(-all_first, -shuffle_xor(all_first, half));
      all_last = lowest(all_last, shuffle_xor(all_last, half));
      from = lowest(from, shuffle_xor(from, half));
      to = -lowest(-to, -shuffle_xor(to, half));
    }
    all_sequence = from == to ? from : -2;
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] = 0.0f;
  }
  static DEVICE int lowest(int a, int b) { return a < b ? a : b; }

  // Scores of 8 TILES keys become weights; what was summed is to be scaled by `kept`, to the largest score so far.
  template <int TILES> DEVICE void weigh_only(float (&s)[TILES][4], int base, int of, bool clear, float scale, float (&scaled)[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < TILES; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = s[n][e] * scale;
    if (!clear) {
#pragma unroll
      for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int key = base + n * 8 + lane % 4 * 2 + e % 2, r = e / 2;
          if (key < first[r] || key > last[r] || sequence[r] != of) s[n][e] = nothing_larger();
        }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float highest = most[r];
#pragma unroll
      for (int n = 0; n < TILES; ++n) highest = maximum(highest, maximum(s[n][r * 2], s[n][r * 2 + 1]));
      highest = maximum(highest, shuffle_xor(highest, 1));
      highest = maximum(highest, shuffle_xor(highest, 2));
      // Where no key was seen yet, every weight is 2 to the power of minus infinity.
      const float from = highest == nothing_larger() ? 0.0f : highest;
      scaled[r] = two_to(most[r] - from);
      most[r] = highest;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < TILES; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][r * 2 + e];
          x = two_to(x - from);
          sum += x;
        }
      total[r] = fused(total[r], scaled[r], sum);
    }
  }
  template <int TILES> DEVICE void weigh(float (&s)[TILES][4], int base, int of, bool clear, float scale) {
    float kept[2];
    weigh_only<TILES>(s, base, of, clear, scale, kept);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[j][e] = o[j][e] * kept[e / 2];
  }
  // Weights of 16 keys as two numbers each, in the order in which an instruction takes them.
  static DEVICE void halves(u32 (&high)[4], u32 (&low)[4], const float (&first)[4], const float (&second)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = i < 2 ? first[i * 2] : second[i * 2 - 4], b = i < 2 ? first[i * 2 + 1] : second[i * 2 - 3];
      high[i] = bf16_pair(a, b);
      low[i] = bf16_pair(a - from_bits(high[i] << 16), b - from_bits(high[i] & 0xffff0000u));
    }
  }

  // The next KEYS keys of a sequence, the first at position `base`; `scale` turns a product into a power of two.
  template <int KEYS> DEVICE void take(const bf16* keys, const bf16* values, int base, int of, float scale) {
    if (base > some_last || base + KEYS <= some_first) return;
    const bool clear = all_sequence == of && base >= all_first && base + KEYS - 1 <= all_last;
    const int lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
    float s[KEYS / 8][4];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < DEPTH; ++k)
#pragma unroll
      for (int n = 0; n < KEYS / 16; ++n) {
        u32 b[4];
        load_matrices(b, shared_address(keys + (n * 16 + matrix / 2 * 8 + line) * PITCH + k * 16 + matrix % 2 * 8));
        multiply_matrices(s[n * 2], q[k], b[0], b[1]);
        multiply_matrices(s[n * 2 + 1], q[k], b[2], b[3]);
      }
    weigh<KEYS / 8>(s, base, of, clear, scale);
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      u32 high[4], low[4];
      halves(high, low, s[k * 2], s[k * 2 + 1]);
#pragma unroll
      for (int j = 0; j < D / 16; ++j) {
        u32 b[4];
        load_matrices_turned(b, shared_address(values + (k * 16 + matrix % 2 * 8 + line) * PITCH + j * 16 + matrix / 2 * 8));
        multiply_matrices(o[j * 2], high, b[0], b[1]);
        multiply_matrices(o[j * 2 + 1], high, b[2], b[3]);
        multiply_matrices(o[j * 2], low, b[0], b[1]);
        multiply_matrices(o[j * 2 + 1], low, b[2], b[3]);
      }
    }
  }

  // The threads of a row have parts of its total.
  DEVICE void end() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      total[r] += shuffle_xor(total[r], 1);
      total[r] += shuffle_xor(total[r], 2);
    }
  }
  static DEVICE float maximum(float a, float b) { return larger_number(a, b); }
};

constexpr float LOG2_E = 1.44269504f;

// GROUP token rows are taken together: those of one sequence, where sequences have so many.
// With EXTRA bytes of shared memory it ends with what is computed from its rows.
template <int HEADS, int SHARE, int D, int WINDOW, bool ALL, int GROUP, int EXTRA = 0> struct Decode {
  using Tile = Queries<HEADS, SHARE, D, WINDOW, ALL>;
  using AsIs = AsTheyAre<HEADS, D>;
  static constexpr int WARPS = 4, THREADS = WARPS * 32, KEYS = 16, STAGES = 2, KV_HEADS = HEADS / SHARE;
  static constexpr int TILES = (GROUP * SHARE + 15) / 16, PITCH = Tile::PITCH;
  static constexpr int STAGE = 2 * KEYS * PITCH * 2, SHARED = WARPS * STAGES * STAGE;
  static constexpr int PART = 16 * (D + 2), MOST_PARTS = 64;
  static constexpr int LINE = D + 4, LINES_AT = WARPS * PART * 4, EXTRA_AT = LINES_AT + 16 * LINE * 4;
  static_assert(SHARED >= EXTRA_AT + EXTRA, "results take the place of keys");

  // Query rows in shared memory, as what is computed from them sees them.
  template <class Token, class Head> struct Lines {
    const Token& token;
    const Head& head;
    const float* numbers;
    u8* extra;
    int count, own;
    template <int START, int LENGTH> DEVICE int first(int line) const { return head(line) * D; }
    template <int START, int LENGTH> DEVICE bool holds() const { return true; }
    DEVICE const float* at(int line, int logical) const { return numbers + line * LINE + logical - head(line) * D; }
    DEVICE int to(int line) const { return has(line) ? token(line) : token(0); }
    DEVICE bool has(int line) const { return token(line) >= 0; }
    DEVICE void meet() const { __syncthreads(); }
  };

  template <class Layout, class S, class Read, class Ends>
  static DEVICE void run(const bf16* q, const bf16* pool, const Steps* steps, int kind, i64 slot, const int* at, const S* sink, float scale,
                         float* out, int rows, float* parts, u32* tickets, const Read& read, const Ends& ends) {
    DYNAMIC_SHARED(memory);
    __shared__ int last_here;
    wait_for_earlier();
    next_may_start();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv = blockIdx.x % KV_HEADS, place = blockIdx.x / KV_HEADS, part = blockIdx.y, most_parts = gridDim.y;
    const int group = place / TILES * GROUP, tile = place % TILES * 16;
    auto token = [&](int i) { const int row = group + (tile + i) / SHARE; return tile + i < GROUP * SHARE && row < rows ? row : -1; };
    auto head = [&](int i) { return kv * SHARE + (tile + i) % SHARE; };
    const int one = token(0);
    if (one < 0) return;
    Tile mine;
    mine.begin(q, steps, at, token, head, read);
    int end = one;
    while (end + 1 < rows && (end + 1 - group) * SHARE < tile + 16 && end + 1 < group + GROUP) ++end;
    int active = 1;
    for (int row = one; row <= end;) {
      const int sequence = steps->sequence[row];
      int stop = row;
      while (stop < end && steps->sequence[stop + 1] == sequence) ++stop;
      const int last = ALL ? steps->ends[sequence] : at[stop];
      int first = WINDOW > 0 && at[row] + 1 > WINDOW ? at[row] + 1 - WINDOW : 0;
      if (first < steps->start) first = steps->start;
      first = first / KEYS * KEYS;
      // Parts are as long as they come out, in whole rounds of the warps.
      const int length = last + 1 - first, each = (length + most_parts * WARPS * KEYS - 1) / (most_parts * WARPS * KEYS) * (WARPS * KEYS);
      const int count = (length + each - 1) / each;
      if (count > active) active = count;
      const int from = first + part * each, to = from + each - 1 < last ? from + each - 1 : last;
      walk<Layout>(mine, pool, steps, kind, slot, sequence, kv, from + warp * KEYS, to, memory, scale * LOG2_E);
      row = stop + 1;
    }
    if (part >= active) return;
    mine.end();
    // Warps meet in shared memory: for each row its numbers, its largest score, its total.
    __syncthreads();
    float* meeting = (float*)memory;
    keep(mine, meeting + warp * PART, lane);
    __syncthreads();
    if (active == 1) {
      join(meeting, WARPS, sink, out, token, head, true, nullptr, memory, ends);
      return;
    }
    float* own = parts + ((u64)blockIdx.x * most_parts + part) * PART;
    join(meeting, WARPS, sink, out, token, head, false, own, memory, ends);
    publish();
    __syncthreads();
    if (threadIdx.x == 0) {
      last_here = take_ticket(tickets + blockIdx.x) == (u32)(active - 1);
      if (last_here) tickets[blockIdx.x] = 0;
    }
    __syncthreads();
    if (!last_here) return;
    publish();
    join(parts + (u64)blockIdx.x * most_parts * PART, active, sink, out, token, head, true, nullptr, memory, ends);
  }

  // One warp's keys: from `base` on, every WARPS-th tile, to `last`.
  template <class Layout>
  static DEVICE void walk(Tile& mine, const bf16* pool, const Steps* steps, int kind, i64 slot, int sequence, int kv, int base, int last,
                          u8* memory, float scale) {
    bf16* ring = (bf16*)(memory + threadIdx.x / 32 * STAGES * STAGE);
    const int step = WARPS * KEYS;
    int ahead = base;
    for (int i = 0; i < STAGES - 1; ++i, ahead += step) fetch<Layout>(ring + i * STAGE / 2, pool, steps, kind, slot, sequence, kv, ahead, last);
    int stage = 0;
    for (int key = base; key <= last; key += step, ahead += step) {
      wait_for_copies<STAGES - 2>();
      __syncwarp();
      const int next = stage + STAGES - 1 < STAGES ? stage + STAGES - 1 : stage - 1;
      fetch<Layout>(ring + next * STAGE / 2, pool, steps, kind, slot, sequence, kv, ahead, last);
      mine.template take<KEYS>(ring + stage * STAGE / 2, ring + stage * STAGE / 2 + KEYS * PITCH, key, sequence, scale);
      stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
    wait_for_copies<0>();
    __syncwarp();
  }
  template <class Layout>
  static DEVICE void fetch(bf16* to, const bf16* pool, const Steps* steps, int kind, i64 slot, int sequence, int kv, int base, int last) {
    const int lane = threadIdx.x % 32;
    if (base <= last) {
      const int key = base + lane % KEYS < last ? base + lane % KEYS : last;
      const u64 cell = Layout::cell(steps, kind, sequence, key, slot) + (u64)kv * Layout::HEAD;
#pragma unroll
      for (int i = 0; i < KEYS * D / 8 / 32; ++i) {
        const int piece = i * 32 + lane, row = piece / (D / 8), c = piece % (D / 8) * 8;
        const u64 from = shuffle(cell, row);
        const bool there = base + row <= last;
        copy16(shared_address(to + row * PITCH + c), pool + from + c, there);
        copy16(shared_address(to + (KEYS + row) * PITCH + c), pool + from + Layout::VALUE + c, there);
      }
    }
    copies_end_here();
  }
  static DEVICE void keep(const Tile& mine, float* to, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + r * 8;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        to[row * D + j * 8 + lane % 4 * 2] = mine.o[j][r * 2];
        to[row * D + j * 8 + lane % 4 * 2 + 1] = mine.o[j][r * 2 + 1];
      }
      if (lane % 4 == 0) {
        to[16 * D + row] = mine.most[r];
        to[16 * D + 16 + row] = mine.total[r];
      }
    }
  }
  // Joins at most MOST_PARTS parts in order; the result goes to `out`, or as a part to `part`.
  template <class S, class Token, class Head, class Ends>
  static DEVICE void join(const float* parts, int count, const S* sink, float* out, Token token, Head head, bool all_here, float* part, u8* memory,
                          const Ends& ends) {
    float* lines = (float*)(memory + LINES_AT);
    __shared__ float shares[16][MOST_PARTS + 1], totals[16];
    // A warp has rows; its lanes have parts.
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < 16; row += WARPS) {
      if (token(row) < 0) continue;
      const bool sinks = all_here && sink != nullptr;
      const float own = sinks ? load(sink + head(row)) * LOG2_E : nothing_larger();
      float highest = own;
      for (int p = lane; p < count; p += 32) highest = Tile::maximum(highest, load_fresh(parts + (u64)p * PART + 16 * D + row));
#pragma unroll
      for (int half = 16; half > 0; half /= 2) highest = Tile::maximum(highest, shuffle_xor(highest, half));
      float all = sinks && lane == 0 ? two_to(own - highest) : 0.0f;
      for (int p = lane; p < count; p += 32) {
        const float most = load_fresh(parts + (u64)p * PART + 16 * D + row);
        const float share = most == nothing_larger() ? 0.0f : two_to(most - highest);
        shares[row][p] = share;
        all += load_fresh(parts + (u64)p * PART + 16 * D + 16 + row) * share;
      }
#pragma unroll
      for (int half = 16; half > 0; half /= 2) all += shuffle_xor(all, half);
      if (lane == 0) {
        totals[row] = all;
        if (!all_here) {
          part[16 * D + row] = highest;
          part[16 * D + 16 + row] = all;
        }
      }
    }
    __syncthreads();
    for (int i = threadIdx.x * 4; i < 16 * D; i += THREADS * 4) {
      const int row = i / D, to = token(row);
      if (to < 0) continue;
      float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 16
      for (int p = 0; p < count; ++p) {
        float x[4];
        load_fresh4(x, parts + (u64)p * PART + i);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[e] = fused(x[e], shares[row][p], sum[e]);
      }
      float* to_row = all_here ? lines + row * LINE + i % D : part + i;
#pragma unroll
      for (int e = 0; e < 4; ++e) to_row[e] = all_here ? quotient(sum[e], totals[row]) : sum[e];
      if (all_here && out != nullptr) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out[((u64)to * HEADS + head(row)) * D + i % D + e] = to_row[e];
      }
    }
    __syncthreads();
    if (all_here) ends(Lines<Token, Head>{token, head, lines, memory + EXTRA_AT, 16, (int)threadIdx.x});
  }
};

template <int HEADS, int SHARE, int D, int WINDOW, bool ALL> struct Prefill {
  using Tile = Queries<HEADS, SHARE, D, WINDOW, ALL>;
  static constexpr int WARPS = 8, THREADS = WARPS * 32, KEYS = 64, STAGES = 2, ROWS = WARPS * 16, PITCH = Tile::PITCH;
  static constexpr int STAGE = 2 * KEYS * PITCH * 2, SHARED = STAGES * STAGE;

  // Grid (tiles of query rows, KV heads); the tiles with most keys begin first.
  template <class Layout, class S>
  static DEVICE void run(const bf16* q, const bf16* pool, const Steps* steps, int kind, i64 slot, const int* at, const S* sink, float scale,
                         float* out, int rows) {
    DYNAMIC_SHARED(memory);
    wait_for_earlier();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, kv = blockIdx.y;
    const int base = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, own = base + warp * 16;
    auto token = [&](int i) { return (own + i) / SHARE < rows ? (own + i) / SHARE : -1; };
    auto head = [&](int i) { return kv * SHARE + (own + i) % SHARE; };
    Tile mine;
    mine.begin(q, steps, at, token, head, AsTheyAre<HEADS, D>());
    const int end = (base + ROWS - 1) / SHARE < rows ? (base + ROWS - 1) / SHARE : rows - 1;
    for (int row = base / SHARE; row <= end;) {
      const int sequence = steps->sequence[row];
      int stop = row;
      while (stop < end && steps->sequence[stop + 1] == sequence) ++stop;
      const int last = ALL ? steps->ends[sequence] : at[stop];
      int first = WINDOW > 0 && at[row] + 1 > WINDOW ? at[row] + 1 - WINDOW : 0;
      if (first < steps->start) first = steps->start;
      first = first / 16 * 16;
      bf16* stages = (bf16*)memory;
      fetch<Layout>(stages, pool, steps, kind, slot, sequence, kv, first, last);
      int stage = 0;
      for (int key = first; key <= last; key += KEYS) {
        fetch<Layout>(stages + (1 - stage) * STAGE / 2, pool, steps, kind, slot, sequence, kv, key + KEYS, last);
        wait_for_copies<1>();
        __syncthreads();
        const bf16* keys = stages + stage * STAGE / 2;
        mine.template take<KEYS>(keys, keys + KEYS * PITCH, key, sequence, scale * LOG2_E);
        __syncthreads();
        stage = 1 - stage;
      }
      wait_for_copies<0>();
      __syncthreads();
      row = stop + 1;
    }
    mine.end();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = lane / 4 + r * 8, to = token(i);
      if (to < 0) continue;
      float all = mine.total[r], kept = 1.0f;
      if (sink != nullptr) {
        const float x = load(sink + head(i)) * LOG2_E, highest = Tile::maximum(x, mine.most[r]);
        kept = two_to(mine.most[r] - highest);
        all = all * kept + two_to(x - highest);
      }
      float* row = out + ((u64)to * HEADS + head(i)) * D;
      const float share = quotient(kept, all);
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        row[j * 8 + lane % 4 * 2] = mine.o[j][r * 2] * share;
        row[j * 8 + lane % 4 * 2 + 1] = mine.o[j][r * 2 + 1] * share;
      }
    }
  }
  template <class Layout>
  static DEVICE void fetch(bf16* to, const bf16* pool, const Steps* steps, int kind, i64 slot, int sequence, int kv, int base, int last) {
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int piece = threadIdx.x; piece < KEYS * PIECES; piece += THREADS) {
      const int row = piece / PIECES, c = piece % PIECES * 8, key = base + row;
      const bool there = key <= last;
      const u64 cell = Layout::cell(steps, kind, sequence, there ? key : last, slot) + (u64)kv * Layout::HEAD + c;
      copy16(shared_address(to + row * PITCH + c), pool + cell, there);
      copy16(shared_address(to + (KEYS + row) * PITCH + c), pool + cell + Layout::VALUE, there);
    }
    copies_end_here();
  }
};

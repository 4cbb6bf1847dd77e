// Products of bf16 rows with a bf16 weight, the weight streamed once through all multiprocessors by the copy engine.
//
//   warp 0     brings tiles of the weight, 128 rows by 64 elements, and of rows that lie side by side
//   warps 1-3  bring picked rows, in the same swizzled form; many of them are put side by side before (`Gather`)
//   the rest   two warpgroups, each 64 rows of the weight times ROWS token rows on the matrix units
//
// A tile's sum may be cut along k into SPLIT shares. Who ends the last share of a tile adds them all, in the order of k: a row's bits
// depend neither on its place, nor on other rows, nor on who came last.
#pragma once
#include "product.cuh"

// What one block does of one tile: k-blocks from `first` to `last` of tile `number`.
struct Share { int number, part, first, last; };

template <int STEPS, int SPLIT> struct Shares {
  int units, unit;
  DEVICE Shares(int tiles) : units(tiles * SPLIT), unit(blockIdx.x) {}
  DEVICE bool next(Share& share) {
    if (unit >= units) return false;
    const int part = unit % SPLIT;
    share = Share{unit / SPLIT, part, STEPS * part / SPLIT, STEPS * (part + 1) / SPLIT};
    unit += gridDim.x;
    return true;
  }
};

// COLUMNS by K is the weight of one group. Rows of `out` are binary32 numbers in the order that `logical_row` gives.
// With EXTRA bytes of shared memory the kernel ends with what is computed from its tiles.
template <int COLUMNS, int K, int CUTS, int GRANULE, int ROWS, int STAGES, int SPLIT, int EXTRA = 0> struct Stream {
  static constexpr int THREADS = 384, WIDTH = 128, STEP = 64, LAG = STAGES - 2 < 4 ? STAGES - 2 : 4;
  static constexpr int STEPS = (K + STEP - 1) / STEP, ACROSS = (COLUMNS + WIDTH - 1) / WIDTH;
  static constexpr int WEIGHT_BYTES = WIDTH * 128, ROW_BYTES = ROWS * 128, STAGE = WEIGHT_BYTES + ROW_BYTES;
  static constexpr int CHUNK = ROWS < 32 ? ROWS : 32, PITCH = WIDTH + 4;
  static constexpr int TILE_AT = STAGES * STAGE, BARS_AT = TILE_AT + CHUNK * PITCH * 4;
  static constexpr int EXTRA_AT = BARS_AT + STAGES * 16 + 16, SHARED = EXTRA_AT + EXTRA;
  static constexpr int LOADERS = 96, PASSES = (ROWS * 8 + LOADERS - 1) / LOADERS;
  static_assert(K % 8 == 0, "rows of 16-byte pieces");
  // A stage is free once the next one's products are under way, so rows must not stay behind by all stages but one.
  static_assert(STAGES >= 3, "stages");

  // Which rows a tile has: `count` of them, the m-th read from row `from(m)` and written to row `to(m)`.
  struct Dense {
    static constexpr bool GROUPED = false, SIDE_BY_SIDE = true;
    int rows, first, count;
    DEVICE Dense(int rows_) : rows(rows_), first(0), count(0) {}
    DEVICE int tiles() const { return (rows + ROWS - 1) / ROWS * ACROSS; }
    // Tiles that share rows or columns run at the same time: bands of 8 row tiles, columns slow.
    DEVICE int column(int tile) {
      const int down = (rows + ROWS - 1) / ROWS, band = tile / (8 * ACROSS), inside = tile - band * 8 * ACROSS;
      const int high = down - band * 8 < 8 ? down - band * 8 : 8;
      first = (band * 8 + inside % high) * ROWS;
      count = rows - first < ROWS ? rows - first : ROWS;
      return inside / high;
    }
    DEVICE int weight_row(int column) const { return column * WIDTH; }
    DEVICE int from(int m) const { return first + m; }
    DEVICE int to(int m) const { return first + m; }
  };
  struct Picked {
    static constexpr bool GROUPED = true, SIDE_BY_SIDE = false;
    const int* plan;  // what `Sorted` leaves
    int each, group, first, count, is_absent;
    DEVICE Picked(const int* plan_, int each_) : plan(plan_), each(each_), group(0), first(0), count(0), is_absent(0) {}
    DEVICE int tiles() const { return plan[0] * ACROSS; }
    DEVICE int column(int tile) {
      const int* entry = plan + 4 + tile / ACROSS * 4;
      group = entry[0];
      first = entry[1];
      count = entry[2];
      is_absent = entry[3];
      return tile % ACROSS;
    }
    DEVICE int weight_row(int column) const { return group * COLUMNS + column * WIDTH; }
    DEVICE int to(int m) const { return plan[plan[1] + first + m]; }
    DEVICE int from(int m) const { return to(m) / each; }
  };
  // The same where `Gather` has put the rows side by side. A tile ends in rows of the next group where its own are fewer; nobody looks at those.
  struct Gathered : Picked {
    static constexpr bool SIDE_BY_SIDE = true;
    DEVICE Gathered(const int* plan_) : Picked(plan_, 1) {}
    DEVICE int from(int m) const { return this->first + m; }
  };

  // Rows of the result in shared memory, as what is computed from them sees them: `count` lines of a tile's columns.
  template <class Source> struct Lines {
    const Source& source;
    const float* numbers;
    u8* extra;
    int chunk, count, column, own;
    // Columns from START on, LENGTH of them, are one of CUTS that alternate: the first here, how many units, whether any.
    static constexpr int OF_CUT = WIDTH / CUTS;
    template <int START, int LENGTH> DEVICE int first(int) const { return column / CUTS > START ? column / CUTS : START; }
    template <int START, int LENGTH> DEVICE bool holds() const {
      return column / CUTS + OF_CUT > START && column / CUTS < START + LENGTH;
    }
    template <int START, int LENGTH, int UNIT> DEVICE int across() const {
      const int from = first<START, LENGTH>(0), to = column / CUTS + OF_CUT < START + LENGTH ? column / CUTS + OF_CUT : START + LENGTH;
      return to > from ? (to - from) / UNIT : 1;
    }
    DEVICE const float* at(int line, int logical) const { return numbers + line * PITCH + physical_row<CUTS, GRANULE>(COLUMNS, logical) - column; }
    DEVICE int to(int line) const { return source.to(chunk + line); }
    DEVICE bool has(int) const { return true; }
    DEVICE void meet() const { ::meet<256>(2); }
  };

  // `rows_map` brings rows that lie side by side, `x` is where picked rows are.
  template <class Source, class Ends>
  static DEVICE void run(Source source, const TensorMap* map, const TensorMap* rows_map, const bf16* x, float* out, float* shares, u32* tickets, const Ends& ends) {
    DYNAMIC_SHARED(memory);
    const u32 base = shared_address(memory);
    const u32 full = base + BARS_AT, empty = full + STAGES * 8;
    int* last_here = (int*)(memory + BARS_AT + STAGES * 16);
    if (threadIdx.x == 0) {
      map_ahead(map);
      if constexpr (Source::SIDE_BY_SIDE) map_ahead(rows_map);
      for (int s = 0; s < STAGES; ++s) {
        barrier_begin(full + s * 8, Source::SIDE_BY_SIDE ? 1 : 1 + LOADERS / 32);
        barrier_begin(empty + s * 8, 2);
      }
      barriers_begun();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      fewer_registers<72>();
      if constexpr (Source::SIDE_BY_SIDE) {
        if (threadIdx.x == 0) both(source, map, rows_map, base, full, empty);
      } else {
        if (threadIdx.x == 0) weights(source, map, base, full, empty);
        else if (threadIdx.x >= 32) rows(source, x, base, full, empty);
      }
    } else {
      more_registers<216>();
      multiply(source, out, shares, tickets, memory, base, full, empty, last_here, ends);
    }
  }

  // One weight for all rows does not come from an earlier kernel, so it is under way before that has ended. Which of several are needed does.
  template <class Source>
  static DEVICE void both(Source source, const TensorMap* map, const TensorMap* rows_map, u32 base, u32 full, u32 empty) {
    Share share;
    int begun = 0;
    if constexpr (!Source::GROUPED) {
      Shares<STEPS, SPLIT> ahead(source.tiles());
      while (begun < STAGES && ahead.next(share)) {
        const int row = source.weight_row(source.column(share.number));
        for (int k = share.first; k < share.last && begun < STAGES; ++k, ++begun) {
          barrier_expect(full + begun * 8, STAGE);
          fetch_tile(base + begun * STAGE, map, k * STEP, row, full + begun * 8);
        }
      }
    }
    wait_for_earlier();
    Shares<STEPS, SPLIT> mine(source.tiles());
    u32 stage = 0, phase = 0;
    int done = 0;
    while (mine.next(share)) {
      const int row = source.weight_row(source.column(share.number));
      for (int k = share.first; k < share.last; ++k, ++done) {
        if (done >= begun) {
          barrier_wait(empty + stage * 8, phase ^ 1);
          barrier_expect(full + stage * 8, STAGE);
          fetch_tile(base + stage * STAGE, map, k * STEP, row, full + stage * 8);
        }
        fetch_tile(base + stage * STAGE + WEIGHT_BYTES, rows_map, k * STEP, source.from(0), full + stage * 8);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
    }
    next_may_start();
  }

  template <class Source> static DEVICE void weights(Source source, const TensorMap* map, u32 base, u32 full, u32 empty) {
    // Which weights are needed is known once rows are sorted.
    wait_for_earlier();
    Shares<STEPS, SPLIT> mine(source.tiles());
    Share share;
    u32 stage = 0, phase = 0;
    while (mine.next(share)) {
      const int row = source.weight_row(source.column(share.number));
      for (int k = share.first; k < share.last; ++k) {
        barrier_wait(empty + stage * 8, phase ^ 1);
        barrier_expect(full + stage * 8, WEIGHT_BYTES);
        fetch_tile(base + stage * STAGE, map, k * STEP, row, full + stage * 8);
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
    }
    next_may_start();
  }

  template <class Source> static DEVICE void rows(Source source, const bf16* x, u32 base, u32 full, u32 empty) {
    wait_for_earlier();
    // A thread has one of the 8 pieces of a line, of every 12th row.
    const int own = threadIdx.x - 32, piece = own % 8;
    Shares<STEPS, SPLIT> mine(source.tiles());
    Share share;
    u32 stage = 0, phase = 0, behind = 0;
    int started = 0;
    while (mine.next(share)) {
      source.column(share.number);
      int from[PASSES];
#pragma unroll
      for (int i = 0; i < PASSES; ++i) {
        const int m = own / 8 + i * (LOADERS / 8);
        from[i] = m < source.count ? source.from(m) : -1;
      }
      for (int k = share.first; k < share.last; ++k) {
        barrier_wait(empty + stage * 8, phase ^ 1);
        const u32 to = base + stage * STAGE + WEIGHT_BYTES;
        const int at = k * STEP + piece * 8;
#pragma unroll
        for (int i = 0; i < PASSES; ++i) {
          const int m = own / 8 + i * (LOADERS / 8);
          const bool there = from[i] >= 0 && at < K;
          if (m < ROWS) copy16(to + m * 128 + ((piece ^ (m & 7)) << 4), x + (there ? (u64)from[i] * K + at : 0), there);
        }
        copies_end_here();
        if (++started > LAG) {
          wait_for_copies<LAG>();
          arrive(full + behind * 8);
          if (++behind == STAGES) behind = 0;
        }
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
    }
    wait_for_copies<0>();
    for (int left = started < LAG ? started : LAG; left > 0; --left) {
      arrive(full + behind * 8);
      if (++behind == STAGES) behind = 0;
    }
  }
  static DEVICE void arrive(u32 barrier) {
    shared_is_written();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  template <class Source, class Ends>
  static DEVICE void multiply(Source source, float* out, float* shares, u32* tickets, u8* memory, u32 base, u32 full, u32 empty, int* last_here, const Ends& ends) {
    const int half = threadIdx.x / 128 - 1, own = threadIdx.x % 128;
    wait_for_earlier();
    Shares<STEPS, SPLIT> mine(source.tiles());
    Share share;
    u32 stage = 0, phase = 0;
    while (mine.next(share)) {
      const int column = source.column(share.number) * WIDTH;
      float d[ROWS / 2];
      u32 before = 0;
      for (int k = share.first; k < share.last; ++k) {
        barrier_wait(full + stage * 8, phase);
        products_begin();
        const u64 a = tile_of(base + stage * STAGE + half * 64 * 128), b = tile_of(base + stage * STAGE + WEIGHT_BYTES);
#pragma unroll
        for (int j = 0; j < 4; ++j) multiply_tiles(d, a + 2 * j, b + 2 * j, k != share.first || j != 0);
        products_end();
        wait_for_products<1>();
        if (k != share.first && own == 0) barrier_arrive(empty + before * 8);
        before = stage;
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
      }
      wait_for_products<0>();
      if (own == 0) barrier_arrive(empty + before * 8);
      if constexpr (SPLIT > 1) {
        float* kept = shares + (u64)share.number * SPLIT * ROWS * WIDTH;
        keep(d, kept + share.part * ROWS * WIDTH, half, own);
        publish();
        meet<256>(1);
        if (threadIdx.x == 128) {
          *last_here = take_ticket(tickets + share.number) == (u32)(SPLIT - 1);
          if (*last_here) tickets[share.number] = 0;
        }
        meet<256>(1);
        if (!*last_here) continue;
        publish();
#pragma unroll
        for (int i = 0; i < ROWS / 2; ++i) d[i] = 0.0f;
#pragma unroll
        for (int part = 0; part < SPLIT; ++part) add(d, kept + part * ROWS * WIDTH, half, own);
      }
      if constexpr (Source::GROUPED)
        if (source.is_absent)
#pragma unroll
          for (int i = 0; i < ROWS / 2; ++i) d[i] = absent();
      finish(d, source, column, out, memory, half, own, ends);
    }
  }

  static DEVICE void keep(const float (&d)[ROWS / 2], float* to, int half, int own) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) to[(half * (ROWS / 2) + i) * 128 + own] = d[i];
  }
  static DEVICE void add(float (&d)[ROWS / 2], const float* from, int half, int own) {
#pragma unroll
    for (int i = 0; i < ROWS / 2; ++i) d[i] += load_fresh(from + (half * (ROWS / 2) + i) * 128 + own);
  }

  // From registers through shared memory to rows, a chunk of rows at a time, and to what is computed from them.
  template <class Source, class Ends>
  static DEVICE void finish(const float (&d)[ROWS / 2], const Source& source, int column, float* out, u8* memory, int half, int own, const Ends& ends) {
    float(*tile)[PITCH] = (float(*)[PITCH])(memory + TILE_AT);
    const int weight = half * 64 + own / 32 * 16 + own % 32 / 4, token = own % 4 * 2;
#pragma unroll 1
    for (int chunk = 0; chunk < ROWS; chunk += CHUNK) {
      if (chunk >= source.count) break;
      meet<256>(2);
#pragma unroll
      for (int of = 0; of < ROWS; of += CHUNK) {
        if (of != chunk) continue;  // registers have numbers that are known here
#pragma unroll
        for (int i = 0; i < CHUNK / 8; ++i)
#pragma unroll
          for (int e = 0; e < 4; ++e) tile[i * 8 + token + e % 2][weight + e / 2 * 8] = d[(of / 8 + i) * 4 + e];
      }
      meet<256>(2);
      const int count = source.count - chunk < CHUNK ? source.count - chunk : CHUNK;
      if (out != nullptr) {
        for (int at = threadIdx.x - 128; at < count * WIDTH; at += 256) {
          const int m = at / WIDTH, c = at % WIDTH;
          if (column + c < COLUMNS) out[(u64)source.to(chunk + m) * COLUMNS + logical_row<CUTS, GRANULE>(COLUMNS, column + c)] = tile[m][c];
        }
      }
      ends(Lines<Source>{source, tile[0], memory + EXTRA_AT, chunk, count, column, (int)threadIdx.x - 128});
    }
  }
};

// Rows that picks read, side by side in the order in which `Sorted` has left the picks; a warp brings a row. Grid (picks over ROWS).
template <int K, int ROWS> struct Gather {
  static constexpr int THREADS = ROWS * 32, PIECES = K / 8, AHEAD = 4;
  static_assert(K % 8 == 0, "rows of 16-byte pieces");
  static DEVICE void run(const bf16* x, const int* plan, int each, bf16* out) {
    wait_for_earlier();
    const int at = blockIdx.x * ROWS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (at >= plan[2]) return;
    const Words4* from = (const Words4*)(x + (u64)(plan[plan[1] + at] / each) * K);
    Words4* to = (Words4*)(out + (u64)at * K);
    for (int begin = lane; begin < PIECES; begin += 32 * AHEAD) {
      Words4 piece[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a)
        if (begin + a * 32 < PIECES) piece[a] = from[begin + a * 32];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a)
        if (begin + a * 32 < PIECES) to[begin + a * 32] = piece[a];
    }
  }
};

// Sorts picks by the group that they name, stably, and cuts each group's picks into tiles of at most ROWS. Those that name none (-1: another
// rank has it) are a group behind all others, whose weight lies behind the matrix; there are none where ALL is GROUPS.
//   plan[0] tiles, plan[1] where the sorted picks begin; from 4 on for each tile: group, first, count, whether it is none; then the picks.
template <int GROUPS, int ROWS, int WARPS = 32, int ALL = GROUPS + 1> struct Sorted {
  static constexpr int THREADS = WARPS * 32, EACH = (ALL + THREADS - 1) / THREADS;
  static DEVICE int named(const int* ids, int at) {
    const int id = load_fresh(ids + at);
    return ALL > GROUPS && id < 0 ? GROUPS : id;
  }
  static DEVICE void run(const int* ids, int picks, int most_tiles, int* plan) {
    __shared__ int counts[WARPS][ALL];
    __shared__ int begins[EACH * THREADS], tiles_before[EACH * THREADS];
    wait_for_earlier();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = (picks + WARPS * 32 - 1) / (WARPS * 32) * 32;
    const int first = warp * part, end = first + part < picks ? first + part : picks;
    for (int i = threadIdx.x; i < WARPS * ALL; i += THREADS) counts[i / ALL][i % ALL] = 0;
    __syncthreads();
    for (int at = first; at < first + part; at += 32) {
      const int id = at + lane < end ? named(ids, at + lane) : -1;
      const u32 same = lanes_with(id);
      if (id >= 0 && lowest_lane(same) == lane) counts[warp][id] += lanes_in(same);
      __syncwarp();
    }
    __syncthreads();
    // Of each group: its picks, then where each warp's begin. A thread has every THREADS-th group.
    int totals[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int g = i * THREADS + threadIdx.x;
      int total = 0;
      if (g < ALL)
        for (int w = 0; w < WARPS; ++w) {
          const int n = counts[w][g];
          counts[w][g] = total;
          total += n;
        }
      totals[i] = total;
      begins[g] = total;
      tiles_before[g] = (total + ROWS - 1) / ROWS;
    }
    __syncthreads();
    for (int step = 1; step < EACH * THREADS; step *= 2) {
      int a[EACH], b[EACH];
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int g = i * THREADS + threadIdx.x;
        a[i] = g >= step ? begins[g - step] : 0;
        b[i] = g >= step ? tiles_before[g - step] : 0;
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        begins[i * THREADS + threadIdx.x] += a[i];
        tiles_before[i * THREADS + threadIdx.x] += b[i];
      }
      __syncthreads();
    }
    const int picks_at = 4 + most_tiles * 4;
    if (threadIdx.x == 0) {
      plan[0] = tiles_before[EACH * THREADS - 1];
      plan[1] = picks_at;
      plan[2] = begins[EACH * THREADS - 1];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
      const int g = i * THREADS + threadIdx.x, total = totals[i];
      if (g >= ALL) break;
      const int begin = begins[g] - total, count = (total + ROWS - 1) / ROWS, tile = tiles_before[g] - count;
      for (int t = 0; t < count; ++t) {
        int* entry = plan + 4 + (tile + t) * 4;
        entry[0] = g;
        entry[1] = begin + t * ROWS;
        entry[2] = total - t * ROWS < ROWS ? total - t * ROWS : ROWS;
        entry[3] = g == GROUPS;
      }
      begins[g] = begin;
    }
    __syncthreads();
    for (int at = first; at < first + part; at += 32) {
      const int id = at + lane < end ? named(ids, at + lane) : -1;
      const u32 same = lanes_with(id);
      if (id >= 0) plan[picks_at + begins[id] + counts[warp][id] + lanes_in(same & ((1u << lane) - 1u))] = at + lane;
      __syncwarp();
      if (id >= 0 && lowest_lane(same) == lane) counts[warp][id] += lanes_in(same);
      __syncwarp();
    }
  }
};

// Attention of prompts on the matrix units of warpgroups: a block has 128 query rows, 64 for each of two warpgroups. A third one
// brings keys and values 64 at a time, page by page, into a ring of tiles.
#pragma once
#include "attend_tiles.cuh"

template <int HEADS, int SHARE, int D, int WINDOW, bool ALL> struct Prompt {
  using Tile = Queries<HEADS, SHARE, D, WINDOW, ALL>;
  static constexpr int THREADS = 384, ROWS = 128, KEYS = 64, STAGES = 5, LAG = 2, LOADERS = 128;
  static constexpr int HALF = KEYS * 128, PART = D / 64 * HALF, STAGE = 2 * PART, BARS_AT = STAGES * STAGE, SHARED = BARS_AT + STAGES * 16;
  static_assert(D % 64 == 0, "tiles of 64 elements");

  // Runs of rows of one sequence in the block's tile, and their keys.
  struct Run { int sequence, first, last; };
  struct Runs {
    const Steps* steps;
    const int* at;
    int row, end;
    DEVICE Runs(const Steps* steps_, const int* at_, int base, int rows) : steps(steps_), at(at_) {
      row = base / SHARE;
      end = (base + ROWS - 1) / SHARE < rows ? (base + ROWS - 1) / SHARE : rows - 1;
    }
    DEVICE bool next(Run& run) {
      if (row > end) return false;
      run.sequence = steps->sequence[row];
      int stop = row;
      while (stop < end && steps->sequence[stop + 1] == run.sequence) ++stop;
      run.last = ALL ? steps->ends[run.sequence] : at[stop];
      run.first = WINDOW > 0 && at[row] + 1 > WINDOW ? at[row] + 1 - WINDOW : 0;
      if (run.first < steps->start) run.first = steps->start;
      run.first = run.first / 16 * 16;
      row = stop + 1;
      return true;
    }
  };
  // Their tiles of keys, one after the other.
  struct Keys {
    Runs runs;
    Run run;
    int key;
    DEVICE Keys(const Runs& of) : runs(of), run{-1, 0, -1}, key(0) {}
    DEVICE bool next() {
      key += KEYS;
      while (key > run.last) {
        if (!runs.next(run)) return false;
        key = run.first;
      }
      return true;
    }
  };

  // Grid (tiles of query rows, KV heads); the tiles with most keys begin first.
  template <class Layout, class S>
  static DEVICE void run(const bf16* q, const bf16* pool, const Steps* steps, int kind, i64 slot, const int* at, const S* sink, float scale,
                         float* out, int rows) {
    DYNAMIC_SHARED(memory);
    const u32 base = shared_address(memory), full = base + BARS_AT, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
      for (int s = 0; s < STAGES; ++s) {
        barrier_begin(full + s * 8, LOADERS / 32);
        barrier_begin(empty + s * 8, 2);
      }
      barriers_begun();
    }
    __syncthreads();
    wait_for_earlier();
    const int first_row = (int)(gridDim.x - 1 - blockIdx.x) * ROWS, kv = blockIdx.y;
    if (threadIdx.x < 128) {
      fewer_registers<40>();
      load_tiles<Layout>(pool, steps, kind, slot, Runs(steps, at, first_row, rows), kv, base, full, empty);
    } else {
      more_registers<232>();
      attend(q, steps, at, sink, scale * LOG2_E, out, rows, first_row, kv, base, full, empty);
    }
  }

  template <class Layout>
  static DEVICE void load_tiles(const bf16* pool, const Steps* steps, int kind, i64 slot, Runs runs, int kv, u32 base, u32 full, u32 empty) {
    // A thread has one of the pieces of a row, of every 8th or 16th row.
    constexpr int PIECES = D / 8, EACH = LOADERS / PIECES, PASSES = KEYS / EACH;
    const int piece = threadIdx.x % PIECES, own = threadIdx.x / PIECES;
    Keys tile(runs);
    u32 stage = 0, phase = 0, behind = 0;
    int started = 0;
    while (tile.next()) {
      u64 cells[PASSES];
#pragma unroll
      for (int i = 0; i < PASSES; ++i) {
        const int of = tile.key + own + i * EACH;
        cells[i] = Layout::cell(steps, kind, tile.run.sequence, of <= tile.run.last ? of : tile.run.last, slot) + (u64)kv * Layout::HEAD + piece * 8;
      }
      barrier_wait(empty + stage * 8, phase ^ 1);
      const u32 to = base + stage * STAGE + piece / 8 * HALF;
#pragma unroll
      for (int i = 0; i < PASSES; ++i) {
        const int row = own + i * EACH;
        const bool there = tile.key + row <= tile.run.last;
        const u32 place = to + row * 128 + ((piece % 8 ^ (row & 7)) << 4);
        copy16(place, pool + cells[i], there);
        copy16(place + PART, pool + cells[i] + Layout::VALUE, there);
      }
      copies_end_here();
      if (++started > LAG) {
        wait_for_copies<LAG>();
        arrive(full + behind * 8);
        behind = behind + 1 < STAGES ? behind + 1 : 0;
      }
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    wait_for_copies<0>();
    for (int left = started < LAG ? started : LAG; left > 0; --left) {
      arrive(full + behind * 8);
      behind = behind + 1 < STAGES ? behind + 1 : 0;
    }
  }
  static DEVICE void arrive(u32 barrier) {
    shared_is_written();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  static DEVICE void score(float (&s)[KEYS / 8][4], const Tile& mine, u32 keys) {
    float(&scores)[KEYS / 2] = (float(&)[KEYS / 2])s;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) multiply_rows(scores, mine.q[k], tile_of(keys + k / 4 * HALF) + k % 4 * 2, k != 0);
    products_end();
  }
  static DEVICE void sum(float (&o)[D / 2], const u32 (&high)[KEYS / 16][4], const u32 (&low)[KEYS / 16][4], u32 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
      multiply_rows_turned(o, high[k], turned_tile_of(values + k * 2048), 1);
      multiply_rows_turned(o, low[k], turned_tile_of(values + k * 2048), 1);
    }
    products_end();
  }

  template <class S>
  static DEVICE void attend(const bf16* q, const Steps* steps, const int* at, const S* sink, float scale, float* out, int rows, int first_row,
                            int kv, u32 base, u32 full, u32 empty) {
    const int lane = threadIdx.x % 32, own = first_row + (int)(threadIdx.x - 128) / 32 * 16;
    auto token = [&](int i) { return (own + i) / SHARE < rows ? (own + i) / SHARE : -1; };
    auto head = [&](int i) { return kv * SHARE + (own + i) % SHARE; };
    Tile mine;
    mine.begin(q, steps, at, token, head, AsTheyAre<HEADS, D>());
    float o[D / 2];
#pragma unroll
    for (int i = 0; i < D / 2; ++i) o[i] = 0.0f;
    // While scores of a tile become weights, the values of the tile before are summed. Every row sees at least itself, so there is
    // a tile.
    Keys tile(Runs(steps, at, first_row, rows));
    float s[KEYS / 8][4], kept[2];
    u32 high[KEYS / 16][4], low[KEYS / 16][4];
    u32 stage = 0, phase = 0, before = 0;
    tile.next();
    barrier_wait(full, 0);
    products_begin();
    score(s, mine, base);
    wait_for_products<0>();
    // Nothing is summed yet that these scores could scale.
    const bool all_seen = mine.all_sequence == tile.run.sequence && tile.key >= mine.all_first && tile.key + KEYS - 1 <= mine.all_last;
    mine.template weigh_only<KEYS / 8>(s, tile.key, tile.run.sequence, all_seen, scale, kept);
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) Tile::halves(high[k], low[k], s[k * 2], s[k * 2 + 1]);
    while (tile.next()) {
      before = stage;
      if (++stage == STAGES) { stage = 0; phase ^= 1; }
      barrier_wait(full + stage * 8, phase);
      products_begin();
      score(s, mine, base + stage * STAGE);
      sum(o, high, low, base + before * STAGE + PART);
      wait_for_products<1>();
      const bool clear = mine.all_sequence == tile.run.sequence && tile.key >= mine.all_first && tile.key + KEYS - 1 <= mine.all_last;
      mine.template weigh_only<KEYS / 8>(s, tile.key, tile.run.sequence, clear, scale, kept);
      wait_for_products<0>();
      if (threadIdx.x % 128 == 0) barrier_arrive(empty + before * 8);
#pragma unroll
      for (int i = 0; i < D / 2; ++i) o[i] = o[i] * kept[i % 4 / 2];
#pragma unroll
      for (int k = 0; k < KEYS / 16; ++k) Tile::halves(high[k], low[k], s[k * 2], s[k * 2 + 1]);
    }
    products_begin();
    sum(o, high, low, base + stage * STAGE + PART);
    wait_for_products<0>();
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + stage * 8);
    mine.end();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = lane / 4 + r * 8, to = token(i);
      if (to < 0) continue;
      float all = mine.total[r], share = 1.0f;
      if (sink != nullptr) {
        const float x = load(sink + head(i)) * LOG2_E, highest = Tile::maximum(x, mine.most[r]);
        share = two_to(mine.most[r] - highest);
        all = all * share + two_to(x - highest);
      }
      share = quotient(share, all);
      float* row = out + ((u64)to * HEADS + head(i)) * D;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        row[j * 8 + lane % 4 * 2] = o[j * 4 + r * 2] * share;
        row[j * 8 + lane % 4 * 2 + 1] = o[j * 4 + r * 2 + 1] * share;
      }
    }
  }
};

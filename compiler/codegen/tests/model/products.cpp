// Streaming products, dense and picked, against sums in binary64: exit code 1 where a number differs, 3 where the model stops.
#include "route.cuh"

static std::vector<u16> draw(size_t n, u32 seed) {
  std::vector<u16> out(n);
  for (auto& x : out) {
    seed = seed * 1664525u + 1013904223u;
    x = bf16_bits(((int)(seed >> 8) % 2001 - 1000) * 1e-3f);
  }
  return out;
}
static double number(u16 bits) { return from_bits((u32)bits << 16); }
static TensorMap map_of(const std::vector<u16>& of, u64 columns, u64 rows, u32 box_rows) {
  TensorMap map{};
  map.at = (const u8*)of.data();
  map.columns = columns;
  map.rows = rows;
  map.box_columns = 64;
  map.box_rows = box_rows;
  return map;
}
static void compare(const char* what, int row, int column, double found, double wanted, int terms) {
  // Numbers are below 1, so a sum of n terms errs by less than n 2^-22.
  if (std::fabs(found - wanted) <= terms * 2.4e-7) return;
  printf("%s: row %d column %d is %f, not %f\n", what, row, column, found, wanted);
  exit(1);
}
static void settled(const std::vector<u32>& tickets) {
  for (u32 t : tickets)
    if (t != 0) { puts("a ticket is left"); exit(1); }
}

// What generated strands do with a tile. Products of elements of two cuts that alternate; and sums of rows of ROW elements.
template <int COLUMNS> struct Pairs {
  float* out;
  template <class Tile> DEVICE void operator()(const Tile& tile) const {
    constexpr int RUN = COLUMNS / 2;
    const int each = tile.template across<0, RUN, 8>(), units = tile.template holds<0, RUN>() ? tile.count * each : 0;
    for (int at = tile.own; at < units; at += 256) {
      const int line = at / each, first = tile.template first<0, RUN>(line) + at % each * 8;
      float a[8], b[8];
      load8(a, tile.at(line, first));
      load8(b, tile.at(line, first + RUN));
      for (int k = 0; k < 8; ++k) out[(u64)tile.to(line) * RUN + first + k] = a[k] * b[k];
    }
  }
};
template <int START, int LENGTH, int ROW> struct Sums {
  float* out;
  template <class Tile> DEVICE void operator()(const Tile& tile) const {
    constexpr int LANES = ROW / 8;
    const int each = tile.template across<START, LENGTH, ROW>(), units = tile.template holds<START, LENGTH>() ? tile.count * each : 0;
    const int lane = tile.own % LANES, sub = tile.own / LANES;
    float(*kept)[ROW] = (float(*)[ROW])tile.extra;
    for (int begun = 0; begun < units; begun += 256 / LANES) {
      const int at = begun + sub < units ? begun + sub : units - 1, line = at / each;
      const int first = tile.template first<START, LENGTH>(line) + at % each * ROW;
      load8(*(float(*)[8])(kept[sub] + lane * 8), tile.at(line, first + lane * 8));
      group_sync<LANES>();
      float sum = 0.0f;
      for (int k = 0; k < ROW; ++k) sum += kept[sub][k];
      if (begun + sub < units && lane == 0) out[tile.to(line) * (LENGTH / ROW) + (first - START) / ROW] = sum;
      group_sync<LANES>();
    }
  }
};

template <int COLUMNS, int K, int CUTS, int GRANULE, int ROWS, int STAGES, int SPLIT> void dense(int rows, u32 blocks) {
  using Core = Stream<COLUMNS, K, CUTS, GRANULE, ROWS, STAGES, SPLIT>;
  const auto x = draw((size_t)rows * K, 1), w = draw((size_t)COLUMNS * K, 2);
  std::vector<float> out((size_t)rows * COLUMNS, NAN), shares((size_t)Core::ACROSS * SPLIT * ROWS * 128, NAN);
  std::vector<u32> tickets(Core::ACROSS, 0);
  const TensorMap map = map_of(w, K, COLUMNS, 128), x_map = map_of(x, K, rows, ROWS);
  model::start({blocks, 1, 1}, Core::THREADS, [&] {
    Core::run(typename Core::Dense(rows), &map, &x_map, nullptr, out.data(), shares.data(), tickets.data(), Nothing());
  });
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < COLUMNS; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += number(x[(size_t)r * K + k]) * number(w[(size_t)n * K + k]);
      compare("dense", r, n, out[(size_t)r * COLUMNS + logical_row<CUTS, GRANULE>(COLUMNS, n)], sum, K);
    }
  settled(tickets);
}

// With GATHERS rows that are picked are put side by side before.
template <int COLUMNS, int K, int ROWS, int STAGES, int SPLIT, int GROUPS, bool GATHERS = false> void picked(int tokens, int per_row, int each, u32 blocks) {
  using Core = Stream<COLUMNS, K, 1, 1, ROWS, STAGES, SPLIT>;
  const int picks = tokens * per_row;
  std::vector<int> ids(picks), plan(4 + 5 * picks, -7);
  u32 seed = 5;
  for (auto& id : ids) {
    seed = seed * 1664525u + 1013904223u;
    id = (seed >> 20) % 5 == 0 ? 0 : (int)((seed >> 10) % GROUPS);
    if ((seed >> 15) % 7 == 0) id = -1;
  }
  const auto x = draw((size_t)picks / each * K, 1), w = draw((size_t)GROUPS * COLUMNS * K, 2);
  std::vector<float> out((size_t)picks * COLUMNS, NAN), shares((size_t)picks * Core::ACROSS * SPLIT * ROWS * 128, NAN);
  std::vector<u32> tickets((size_t)picks * Core::ACROSS, 0);
  const TensorMap map = map_of(w, K, (u64)GROUPS * COLUMNS, 128);
  model::start({1, 1, 1}, 1024, [&] { Sorted<GROUPS, ROWS>::run(ids.data(), picks, picks, plan.data()); });
  // Rows behind the last are poison.
  std::vector<u16> side((size_t)(picks + ROWS) * K, 0x7fc0);
  const TensorMap side_map = map_of(side, K, picks, ROWS);
  using Gathers = Gather<K, 4>;
  if (GATHERS) model::start({(u32)(picks + 3) / 4, 1, 1}, Gathers::THREADS, [&] { Gathers::run((const bf16*)x.data(), plan.data(), each, (bf16*)side.data()); });
  model::start({blocks, 1, 1}, Core::THREADS, [&] {
    if constexpr (GATHERS) return Core::run(typename Core::Gathered(plan.data()), &map, &side_map, nullptr, out.data(), shares.data(), tickets.data(), Nothing());
    Core::run(typename Core::Picked(plan.data(), each), &map, nullptr, (const bf16*)x.data(), out.data(), shares.data(), tickets.data(), Nothing());
  });
  for (int p = 0; p < picks; ++p)
    for (int n = 0; n < COLUMNS; ++n) {
      double sum = 0;
      if (ids[p] < 0) {
        const float found = out[(size_t)p * COLUMNS + n];
        if (to_bits(found) != to_bits(-0.0f)) { printf("picked: nobody's pick %d, column %d is %a\n", p, n, found); exit(1); }
        continue;
      }
      for (int k = 0; k < K; ++k) sum += number(x[(size_t)(p / each) * K + k]) * number(w[((size_t)ids[p] * COLUMNS + n) * K + k]);
      compare("picked", p, n, out[(size_t)p * COLUMNS + n], sum, K);
    }
  settled(tickets);
}

// The same through tiles: the core's own numbers stay in the kernel.
template <int COLUMNS, int K, int CUTS, int ROWS, int START, int LENGTH, int ROW> void tiles(int rows, u32 blocks) {
  using Core = Stream<COLUMNS, K, CUTS, 8, ROWS, 4, 2, 256 * 8 * 4>;
  const auto x = draw((size_t)rows * K, 1), w = draw((size_t)COLUMNS * K, 2);
  std::vector<float> pairs((size_t)rows * COLUMNS / 2, NAN), sums((size_t)rows * (LENGTH / ROW), NAN), shares((size_t)(rows + ROWS - 1) / ROWS * Core::ACROSS * 2 * ROWS * 128, NAN);
  std::vector<u32> tickets((rows + ROWS - 1) / ROWS * Core::ACROSS, 0);
  const TensorMap map = map_of(w, K, COLUMNS, 128), x_map = map_of(x, K, rows, ROWS);
  model::start({blocks, 1, 1}, Core::THREADS, [&] {
    float* none = nullptr;
    if constexpr (CUTS == 2) Core::run(typename Core::Dense(rows), &map, &x_map, nullptr, none, shares.data(), tickets.data(), Pairs<COLUMNS>{pairs.data()});
    else Core::run(typename Core::Dense(rows), &map, &x_map, nullptr, none, shares.data(), tickets.data(), Sums<START, LENGTH, ROW>{sums.data()});
  });
  for (int r = 0; r < rows; ++r) {
    std::vector<double> all(COLUMNS, 0.0);
    for (int n = 0; n < COLUMNS; ++n)
      for (int k = 0; k < K; ++k) all[logical_row<CUTS, 8>(COLUMNS, n)] += number(x[(size_t)r * K + k]) * number(w[(size_t)n * K + k]);
    if (CUTS == 2)
      for (int n = 0; n < COLUMNS / 2; ++n) compare("pairs", r, n, pairs[(size_t)r * COLUMNS / 2 + n], all[n] * all[n + COLUMNS / 2], K * 16);
    else
      for (int n = 0; n < LENGTH / ROW; ++n) {
        double sum = 0;
        for (int k = 0; k < ROW; ++k) sum += all[START + n * ROW + k];
        compare("sums", r, n, sums[r * (LENGTH / ROW) + n], sum, K * ROW);
      }
  }
  settled(tickets);
}

// A route: the largest number of each row names its pick; picks are sorted by who comes last.
template <int COLUMNS> struct Largest {
  int* ids;
  template <class Tile> DEVICE void operator()(const Tile& tile) const {
    for (int line = tile.own; line < tile.count; line += 256) {
      int best = 0;
      for (int c = 1; c < COLUMNS; ++c)
        if (*tile.at(line, c) > *tile.at(line, best)) best = c;
      ids[tile.to(line)] = best;
    }
  }
};
// The same by a warp for each row, and the next largest, of numbers of which some are equal and one is none.
static bool is_none(int c) { return c == 5; }
static int stands_for(int c) { return c % 7 == 3 ? c - 1 : c; }
constexpr int NEXT = 64;  // places from a row's pick to its next
template <int COLUMNS> struct Two {
  int* ids;
  template <class Tile> DEVICE void operator()(const Tile& tile) const {
    const int lane = tile.own % 32, sub = tile.own / 32;
    int(*kept)[2] = (int(*)[2])tile.extra;
    for (int begun = 0; begun < tile.count; begun += 8) {
      const int line = begun + sub < tile.count ? begun + sub : tile.count - 1;
      best_in_warp<COLUMNS, 2>([&](int c) { return is_none(c) ? from_bits(0x7fc00000) : *tile.at(line, stands_for(c)); }, lane,
                               [&](int rank, int at) { kept[sub][rank] = at; });
      group_sync<32>();
      if (begun + sub < tile.count && lane == 0) ids[tile.to(line)] = kept[sub][0], ids[tile.to(line) + NEXT] = kept[sub][1];
      group_sync<32>();
    }
  }
};
// Weights of binary32 whose lower halves count: a product that drops them is further off than `compare` allows.
template <class W> std::vector<W> weights(size_t n);
template <> std::vector<u16> weights<u16>(size_t n) { return draw(n, 2); }
template <> std::vector<float> weights<float>(size_t n) {
  std::vector<float> out;
  u32 seed = 2;
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    out.push_back(((int)(seed >> 4) - (1 << 27)) * (1.0f / (1 << 27)));
  }
  return out;
}
static double number(float x) { return x; }

template <class Core, class Ends, class W, int COLUMNS, int K, int ROWS> void route(int rows, int across) {
  using Own = Route<Core, COLUMNS, ROWS, 8 * 2 * 4>;
  const auto x = draw((size_t)rows * K, 1);
  const auto w = weights<W>((size_t)COLUMNS * K);
  std::vector<float> out((size_t)rows * COLUMNS, NAN);
  std::vector<int> ids(NEXT * 2, -1), plan(4 + 5 * rows, -7), wanted(rows, 0), sorted(4 + 5 * rows, -7);
  const u32 down = (rows + ROWS - 1) / ROWS;
  std::vector<u32> tickets(down + 1, 0);
  using Stored = typename std::conditional<sizeof(W) == 2, bf16, float>::type;
  model::start({(u32)(COLUMNS + across - 1) / across, down, 1}, Own::THREADS, [&] {
    Own::run((const bf16*)x.data(), (const Stored*)w.data(), out.data(), rows, tickets.data(), Ends{ids.data()},
             [&](int) { Sorted<COLUMNS, 16, 8, COLUMNS>::run(ids.data(), rows, rows, plan.data()); });
  });
  constexpr bool TWO = std::is_same<Ends, Two<COLUMNS>>::value;
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < COLUMNS; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += number(x[(size_t)r * K + k]) * number(w[(size_t)n * K + k]);
      // Runs of up to 512 are added in binary32.
      compare("route", r, n, out[(size_t)r * COLUMNS + n], sum, K < 512 ? K : 512);
    }
    auto is_before = [&](int a, int b) {
      const float x = out[(size_t)r * COLUMNS + stands_for(a)], y = out[(size_t)r * COLUMNS + stands_for(b)];
      return x > y || (x == y && a < b);
    };
    int next = -1;
    for (int n = 1; n < COLUMNS; ++n) {
      if (!TWO && out[(size_t)r * COLUMNS + n] > out[(size_t)r * COLUMNS + wanted[r]]) wanted[r] = n;
      if (!TWO || is_none(n)) continue;
      if (is_before(n, wanted[r])) next = wanted[r], wanted[r] = n;
      else if (next < 0 || is_before(n, next)) next = n;
    }
    if (TWO && ids[r + NEXT] != next) { printf("route: row %d picks %d next, not %d\n", r, ids[r + NEXT], next); exit(1); }
    if (ids[r] != wanted[r]) { printf("route: row %d picks %d, not %d\n", r, ids[r], wanted[r]); exit(1); }
  }
  model::start({1, 1, 1}, 1024, [&] { Sorted<COLUMNS, 16>::run(wanted.data(), rows, rows, sorted.data()); });
  if (plan != sorted) { puts("picks are sorted otherwise"); exit(1); }
  settled(tickets);
}
template <int COLUMNS, int K> void apart(int rows) {
  route<Product<bf16, bf16, double, COLUMNS, K, 1, 1, 8, 8>, Largest<COLUMNS>, u16, COLUMNS, K, 8>(rows, 8);
}
template <class W, int COLUMNS, int K, int ROWS, int SPLIT, int AHEAD> void split(int rows) {
  using Stored = typename std::conditional<sizeof(W) == 2, bf16, float>::type;
  route<Split<Stored, COLUMNS, K, ROWS, SPLIT, 8, AHEAD>, Two<COLUMNS>, W, COLUMNS, K, ROWS>(rows, 8 / SPLIT * 16);
}

int main() {
  for (bool backwards : {false, true}) {
    model::backwards = backwards;
    dense<384, 192, 1, 1, 16, 3, 3>(5, 5);
    dense<256, 320, 2, 8, 16, 4, 2>(13, 3);
    dense<200, 136, 1, 1, 64, 3, 1>(70, 2);
    picked<128, 192, 16, 4, 2, 6>(15, 3, 3, 5);
    picked<200, 136, 16, 3, 1, 6, true>(15, 3, 3, 5);
    picked<96, 1032, 32, 3, 1, 3, true>(23, 2, 1, 2);
    tiles<256, 192, 2, 16, 0, 0, 8>(13, 3);
    tiles<320, 192, 2, 64, 0, 0, 8>(70, 3);
    tiles<328, 192, 1, 64, 96, 224, 32>(70, 2);
    apart<300, 72>(21);
    split<float, 301, 72, 16, 8, 4>(21);
    split<float, 75, 1176, 16, 1, 2>(21);
    split<u16, 75, 1176, 8, 4, 2>(5);
    picked<96, 136, 16, 3, 1, 6>(43, 2, 1, 4);
  }
  puts("right");
}

// Streaming products, dense and picked, against sums in binary64: exit code 1 where a number differs, 3 where the model stops.
#include "stream.cuh"

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

template <int COLUMNS, int K, int CUTS, int GRANULE, int ROWS, int STAGES, int SPLIT> void dense(int rows, u32 blocks) {
  using Core = Stream<COLUMNS, K, CUTS, GRANULE, ROWS, STAGES, SPLIT>;
  const auto x = draw((size_t)rows * K, 1), w = draw((size_t)COLUMNS * K, 2);
  std::vector<float> out((size_t)rows * COLUMNS, NAN), shares((size_t)Core::ACROSS * SPLIT * ROWS * 128, NAN);
  std::vector<u32> tickets(Core::ACROSS, 0);
  const TensorMap map = map_of(w, K, COLUMNS, 128), x_map = map_of(x, K, rows, ROWS);
  model::start({blocks, 1, 1}, Core::THREADS, [&] {
    Core::run(typename Core::Dense(rows), &map, &x_map, nullptr, out.data(), shares.data(), tickets.data());
  });
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < COLUMNS; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += number(x[(size_t)r * K + k]) * number(w[(size_t)n * K + k]);
      compare("dense", r, n, out[(size_t)r * COLUMNS + logical_row<CUTS, GRANULE>(COLUMNS, n)], sum, K);
    }
  settled(tickets);
}

template <int COLUMNS, int K, int ROWS, int STAGES, int SPLIT, int GROUPS> void picked(int tokens, int per_row, int each, u32 blocks) {
  using Core = Stream<COLUMNS, K, 1, 1, ROWS, STAGES, SPLIT>;
  const int picks = tokens * per_row;
  std::vector<int> ids(picks), plan(4 + 5 * picks, -7);
  u32 seed = 5;
  for (auto& id : ids) {
    seed = seed * 1664525u + 1013904223u;
    id = (seed >> 20) % 5 == 0 ? 0 : (int)((seed >> 10) % GROUPS);
  }
  const auto x = draw((size_t)picks / each * K, 1), w = draw((size_t)GROUPS * COLUMNS * K, 2);
  std::vector<float> out((size_t)picks * COLUMNS, NAN), shares((size_t)picks * Core::ACROSS * SPLIT * ROWS * 128, NAN);
  std::vector<u32> tickets((size_t)picks * Core::ACROSS, 0);
  const TensorMap map = map_of(w, K, (u64)GROUPS * COLUMNS, 128);
  model::start({1, 1, 1}, 1024, [&] { Sorted<GROUPS, ROWS>::run(ids.data(), picks, picks, plan.data()); });
  model::start({blocks, 1, 1}, Core::THREADS, [&] {
    Core::run(typename Core::Picked(plan.data(), each), &map, nullptr, (const bf16*)x.data(), out.data(), shares.data(), tickets.data());
  });
  for (int p = 0; p < picks; ++p)
    for (int n = 0; n < COLUMNS; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += number(x[(size_t)(p / each) * K + k]) * number(w[((size_t)ids[p] * COLUMNS + n) * K + k]);
      compare("picked", p, n, out[(size_t)p * COLUMNS + n], sum, K);
    }
  settled(tickets);
}

int main() {
  for (bool backwards : {false, true}) {
    model::backwards = backwards;
    dense<384, 192, 1, 1, 16, 3, 3>(5, 5);
    dense<256, 320, 2, 8, 16, 4, 2>(13, 3);
    dense<200, 136, 1, 1, 64, 3, 1>(70, 2);
    picked<128, 192, 16, 4, 2, 6>(15, 3, 3, 5);
    picked<96, 136, 16, 3, 1, 6>(43, 2, 1, 4);
  }
  puts("right");
}

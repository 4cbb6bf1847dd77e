// Attention over a paged cache, decoding and prompts, against sums in binary64: exit code 1 where a number differs, 3 where the
// model stops.
#include "attend_prompt.cuh"

static u32 seed = 1;
static float draw() {
  seed = seed * 1664525u + 1013904223u;
  return ((int)(seed >> 8) % 2001 - 1000) * 2e-3f;
}
static double number(u16 bits) { return from_bits((u32)bits << 16); }
constexpr int PAGE = 16;

// Sequences as they are after a step, and how many rows of each the step has.
struct Lengths { std::vector<int> whole, rows; };

template <int HEADS, int SHARE, int D> struct Case {
  static constexpr int KV = HEADS / SHARE, TOKEN = KV * D * 2;
  using Cache = CacheLayout<PAGE, (i64)PAGE * TOKEN, TOKEN, D, KV * D>;
  std::vector<int> pages, sequence, at, ends;
  std::vector<u16> pool, q;
  std::vector<float> sink, out, parts;
  std::vector<u32> tickets;
  Steps steps{};
  int rows, width = 1;

  Case(const Lengths& of) : sink(HEADS), parts(1 << 19, NAN), tickets(256, 0) {
    for (int n : of.whole) width = std::max(width, (n + PAGE - 1) / PAGE);
    const int count = (int)of.whole.size() * width;
    for (int p = 0; p < count; ++p) pages.push_back(p + 1);
    for (int p = 0; p < count; ++p) std::swap(pages[p], pages[(p * 7 + 3) % count]);
    pool.resize((size_t)(count + 1) * PAGE * TOKEN);
    for (auto& x : pool) x = bf16_bits(draw());
    for (size_t s = 0; s < of.whole.size(); ++s) {
      for (int r = 0; r < of.rows[s]; ++r) {
        sequence.push_back((int)s);
        at.push_back(of.whole[s] - of.rows[s] + r);
      }
      ends.push_back(of.whole[s] - 1);
    }
    rows = (int)sequence.size();
    q.resize((size_t)rows * HEADS * D);
    for (auto& x : q) x = bf16_bits(draw());
    for (auto& x : sink) x = draw();
    out.assign((size_t)rows * HEADS * D, NAN);
    steps.sequence = sequence.data();
    steps.ends = ends.data();
    steps.pages[0] = pages.data();
    steps.width = width;
  }

  void check(int window, bool all, bool sinks, double scale) {
    for (int t = 0; t < rows; ++t)
      for (int h = 0; h < HEADS; ++h) {
        const int s = sequence[t], last = all ? ends[s] : at[t], first = window > 0 ? std::max(0, at[t] + 1 - window) : 0;
        std::vector<double> weights;
        double total = sinks ? std::exp((double)sink[h]) : 0.0;
        auto cell = [&](int key) { return (size_t)pages[s * width + key / PAGE] * PAGE * TOKEN + (size_t)(key % PAGE) * TOKEN + h / SHARE * D; };
        for (int key = first; key <= last; ++key) {
          double score = 0;
          for (int d = 0; d < D; ++d) score += number(q[((size_t)t * HEADS + h) * D + d]) * number(pool[cell(key) + d]);
          weights.push_back(std::exp(score * scale));
          total += weights.back();
        }
        for (int d = 0; d < D; ++d) {
          double wanted = 0;
          for (int key = first; key <= last; ++key) wanted += weights[key - first] / total * number(pool[cell(key) + KV * D + d]);
          const double found = out[((size_t)t * HEADS + h) * D + d];
          if (std::fabs(found - wanted) <= 1e-4) continue;
          printf("row %d head %d element %d is %f, not %f\n", t, h, d, found, wanted);
          exit(1);
        }
      }
    for (u32 t : tickets)
      if (t != 0) { puts("a ticket is left"); exit(1); }
  }
};

template <int HEADS, int SHARE, int D, int WINDOW, bool ALL, int GROUP> void decode(const Lengths& of, u32 parts, bool sinks) {
  using Core = Decode<HEADS, SHARE, D, WINDOW, ALL, GROUP>;
  Case<HEADS, SHARE, D> c(of);
  const u32 blocks = (c.rows + GROUP - 1) / GROUP * Core::TILES * c.KV;
  model::start({blocks, parts, 1}, Core::THREADS, [&] {
    Core::template run<typename Case<HEADS, SHARE, D>::Cache>((const bf16*)c.q.data(), (const bf16*)c.pool.data(), &c.steps, 0, (i64)0, c.at.data(),
                                                              sinks ? c.sink.data() : nullptr, 0.1f, c.out.data(), c.rows, c.parts.data(), c.tickets.data(),
                                                              typename Core::AsIs(), Nothing());
  });
  c.check(WINDOW, ALL, sinks, (double)0.1f);
}

template <template <int, int, int, int, bool> class Core, int HEADS, int SHARE, int D, int WINDOW, bool ALL> void prompt(const Lengths& of, bool sinks) {
  using Kernel = Core<HEADS, SHARE, D, WINDOW, ALL>;
  Case<HEADS, SHARE, D> c(of);
  model::start({(u32)(c.rows * SHARE + 127) / 128, (u32)c.KV, 1}, Kernel::THREADS, [&] {
    Kernel::template run<typename Case<HEADS, SHARE, D>::Cache>((const bf16*)c.q.data(), (const bf16*)c.pool.data(), &c.steps, 0, (i64)0, c.at.data(),
                                                                sinks ? c.sink.data() : nullptr, 0.1f, c.out.data(), c.rows);
  });
  c.check(WINDOW, ALL, sinks, (double)0.1f);
}

int main() {
  for (bool backwards : {false, true}) {
    model::backwards = backwards;
    decode<12, 6, 32, 0, false, 1>({{300, 317, 1}, {1, 1, 1}}, 4, true);
    decode<12, 6, 32, 128, false, 1>({{200, 17}, {1, 1}}, 2, false);
    decode<6, 6, 32, 0, false, 8>({{200, 217, 40}, {8, 3, 5}}, 2, false);
    prompt<Prefill, 6, 6, 32, 50, false>({{100, 90, 3}, {37, 90, 1}}, true);
    prompt<Prompt, 6, 6, 64, 0, false>({{100, 90, 3}, {37, 90, 1}}, true);
    prompt<Prompt, 2, 2, 64, 0, true>({{470}, {9}}, false);
    prompt<Prompt, 2, 2, 128, 50, false>({{150, 60}, {70, 1}}, false);
  }
  puts("right");
}

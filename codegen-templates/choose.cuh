// Choosing tokens from rows of logits as the host's sampler does, token for token:
//
//   best    a part of a row by block ─► the row's largest logit, its token where the choice is greedy
//   weigh   a part of a row by block ─► the sum of the row's weights, its token where nothing drops tokens from the draw but min-p
//   select  a block by row           ─► the most probable alternatives; the token where top-k or top-p drop others
//   place   chosen tokens to where the next step's rows read them
//
// A weight is e^((x - best) / temperature) as a multiple of 2^-35. The sum of 2^18 of them is exact, so it has no order.
#pragma once
#include "fold.cuh"

// What is done with a row.
constexpr u32 CHOOSES = 1, WEIGHS = 2, DRAWS = 4, SELECTS = 8;
constexpr float WEIGHT_UNITS = 34359738368.0f;

// How a row's token is chosen; `mask` is the place of the row's mask among the masks, -1 for none, `ranked` how many alternatives are named.
struct Choice {
  u32 does;
  int mask;
  float temperature;
  u32 top_k;
  float top_p, min_p, coin;
  u32 ranked;
};

// What was chosen: the token, -1 where there is none; the first admissible token whose logit is no finite number, -1 where all are; its bits;
// the largest logit, the token's own, and the sum of all weights.
struct Chosen {
  int id, bad;
  u32 bad_bits;
  float best, logit;
  u32 unused;
  u64 total;
};

DEVICE float infinity() { return from_bits(0x7f800000u); }
// Ascends as numbers do, -0 below +0; of equal numbers the lower id has the larger key. What may not be chosen has 0.
DEVICE u64 key_of(float x, int id) {
  if (x == negated(infinity())) return 0;
  const u32 bits = to_bits(x), ascending = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
  return (u64)ascending << 32 | (0xffffffffu - (u32)id);
}
DEVICE int id_of(u64 key) { return (int)(0xffffffffu - (u32)key); }
DEVICE u64 larger_key(u64 a, u64 b) { return a > b ? a : b; }

// The logits of a row with its mask.
struct Line {
  const float* x;
  const u32* mask;
  float best, temperature;
  DEVICE float at(int id) const { return mask == nullptr || (mask[id >> 5] >> (id & 31) & 1) != 0 ? x[id] : negated(infinity()); }
  DEVICE u64 weight(float logit) const { return whole(exponential(quotient(logit - best, temperature)) * WEIGHT_UNITS); }
};

template <int VOCAB> DEVICE Line line_of(const float* logits, const u32* masks, const Choice& own, int row, float best) {
  return Line{logits + (u64)row * VOCAB, own.mask < 0 ? nullptr : masks + (u64)own.mask * ((VOCAB + 31) / 32), best, own.temperature};
}

// One number from all threads of a block, the same in all of them.
template <int THREADS> struct Block {
  static constexpr int WARPS = THREADS / 32;
  template <class Join> static DEVICE u64 joined(u64 x, Join join) {
    __shared__ u64 meet[WARPS];
#pragma unroll
    for (int half = 16; half > 0; half /= 2) x = join(x, shuffle_xor(x, half));
    if (threadIdx.x % 32 == 0) meet[threadIdx.x / 32] = x;
    __syncthreads();
    x = meet[0];
#pragma unroll
    for (int w = 1; w < WARPS; ++w) x = join(x, meet[w]);
    __syncthreads();
    return x;
  }
  static DEVICE u64 sum(u64 x) {
    return joined(x, [](u64 a, u64 b) { return a + b; });
  }
  static DEVICE u64 largest(u64 x) { return joined(x, larger_key); }
};

// The first number of low .. high for which `holds`, and for all behind it; high where there is none.
template <class Holds> DEVICE u64 first_where(u64 low, u64 high, Holds holds) {
  while (low < high) {
    const u64 middle = low + (high - low) / 2;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

// Parts of a row, a block each, EACH numbers by thread; what blocks leave for the last of them has two words by part.
template <int VOCAB, int THREADS, int EACH> struct Parts {
  static constexpr int PART = THREADS * EACH, PARTS = (VOCAB + PART - 1) / PART;
  static_assert(PARTS <= 32 && VOCAB <= 1 << 18, "sums of weights are exact");
  using Own = Block<THREADS>;

  // Grid (parts, rows).
  static DEVICE void best(const float* logits, const Choice* choices, const u32* masks, Chosen* chosen, u64* left, u32* tickets) {
    wait_for_earlier();
    const int row = blockIdx.y;
    const Choice own = choices[row];
    if ((own.does & CHOOSES) == 0) return;
    const Line line = line_of<VOCAB>(logits, masks, own, row, 0.0f);
    // The first token that is no number is the largest complement; 0 where there is none.
    u64 key = 0, bad = 0;
#pragma unroll 8
    for (int e = 0; e < EACH; ++e) {
      const int id = blockIdx.x * PART + e * THREADS + threadIdx.x;
      const float x = id < VOCAB ? line.at(id) : negated(infinity());
      if (is_nan(x) || x == infinity()) bad = larger_key(bad, ~(u64)id);
      // Both zeros are equal.
      else key = larger_key(key, key_of(x + 0.0f, id));
    }
    key = Own::largest(key);
    bad = Own::largest(bad);
    u64* own_left = left + (u64)row * PARTS * 2;
    if (threadIdx.x == 0) {
      own_left[blockIdx.x * 2] = key;
      own_left[blockIdx.x * 2 + 1] = bad;
    }
    if (!comes_last(tickets + row, PARTS)) return;
    const bool has_part = threadIdx.x < PARTS;
    key = Own::largest(has_part ? load_fresh(own_left + threadIdx.x * 2) : 0);
    bad = Own::largest(has_part ? load_fresh(own_left + threadIdx.x * 2 + 1) : 0);
    if (threadIdx.x != 0) return;
    const int id = key == 0 || bad != 0 ? -1 : id_of(key), bad_id = bad == 0 ? -1 : (int)~bad;
    const float logit = id < 0 ? 0.0f : line.x[id];
    chosen[row] = Chosen{id, bad_id, bad_id < 0 ? 0 : to_bits(line.x[bad_id]), logit, logit, 0, 0};
  }

  // Grid (parts, rows).
  static DEVICE void weigh(const float* logits, const Choice* choices, const u32* masks, Chosen* chosen, u64* left, u32* tickets) {
    wait_for_earlier();
    const int row = blockIdx.y;
    const Choice own = choices[row];
    const Chosen found = chosen[row];
    if ((own.does & WEIGHS) == 0 || found.id < 0) return;
    const Line line = line_of<VOCAB>(logits, masks, own, row, found.best);
    const double least = (double)own.min_p * WEIGHT_UNITS;
    const auto kept = [&](u64 weight) { return (double)weight >= least ? weight : 0; };
    u64 all = 0, drawn = 0;
    for (int e = 0; e < EACH; ++e) {
      const int id = blockIdx.x * PART + e * THREADS + threadIdx.x;
      const u64 weight = id < VOCAB ? line.weight(line.at(id)) : 0;
      all += weight;
      drawn += kept(weight);
    }
    all = Own::sum(all);
    drawn = Own::sum(drawn);
    u64* own_left = left + (u64)row * PARTS * 2;
    if (threadIdx.x == 0) {
      own_left[blockIdx.x * 2] = all;
      own_left[blockIdx.x * 2 + 1] = drawn;
    }
    if (!comes_last(tickets + row, PARTS)) return;
    const bool has_part = threadIdx.x < PARTS;
    all = Own::sum(has_part ? load_fresh(own_left + threadIdx.x * 2) : 0);
    if (threadIdx.x == 0) chosen[row].total = all;
    if ((own.does & DRAWS) == 0) return;
    drawn = has_part ? load_fresh(own_left + threadIdx.x * 2 + 1) : 0;
    const double goal = (double)Own::sum(drawn) * (double)own.coin;
    // The part, then the thread's run, then the token in which the sum of weights in the order of ids passes the goal.
    const int part = (int)first_where(0, PARTS - 1, [&](u64 p) { return (double)Own::sum(threadIdx.x <= p ? drawn : 0) > goal; });
    const u64 before = Own::sum((int)threadIdx.x < part ? drawn : 0);
    const int begin = part * PART + threadIdx.x * EACH;
    u64 run = 0;
    for (int e = 0; e < EACH; ++e) run += begin + e < VOCAB ? kept(line.weight(line.at(begin + e))) : 0;
    const auto passes = [&](u64 t) { return (double)(before + Own::sum(threadIdx.x <= t ? run : 0)) > goal; };
    const int thread = (int)first_where(0, THREADS - 1, passes);
    u64 reached = before + Own::sum((int)threadIdx.x < thread ? run : 0);
    if ((int)threadIdx.x != thread) return;
    for (int id = begin; id < begin + EACH && id < VOCAB; ++id) {
      const float x = line.at(id);
      reached += kept(line.weight(x));
      if ((double)reached > goal) {
        chosen[row].id = id;
        chosen[row].logit = x;
        return;
      }
    }
  }
};

// Rows that are selected from, a block each. The most probable tokens, as far as LIST holds them, are searched in shared memory, and the
// whole row where they do not do.
template <int VOCAB, int THREADS, int LIST> struct Selected {
  static constexpr int BINS = 2048, BINS_OF_ONE = 32, SHARED = LIST * 16;
  using Own = Block<THREADS>;

  // Tokens that are looked through, by key and weight.
  struct Source {
    Line line;
    const u64 *keys, *weights;
    bool is_listed;
    int count;
    template <class Wanted> DEVICE u64 counts(Wanted wanted) const {
      u64 n = 0;
      if (is_listed)
        for (int i = threadIdx.x; i < count; i += THREADS) n += wanted(keys[i]) ? 1 : 0;
      else
        for (int id = threadIdx.x; id < VOCAB; id += THREADS) n += wanted(key_of(line.at(id), id)) ? 1 : 0;
      return Own::sum(n);
    }
    template <class Taken> DEVICE u64 weighs(Taken taken) const {
      u64 sum = 0;
      if (is_listed)
        for (int i = threadIdx.x; i < count; i += THREADS) sum += taken(keys[i], weights[i]);
      else
        for (int id = threadIdx.x; id < VOCAB; id += THREADS) {
          const float x = line.at(id);
          sum += taken(key_of(x, id), line.weight(x));
        }
      return Own::sum(sum);
    }
    // The largest key below another.
    DEVICE u64 below(u64 limit) const {
      u64 best = 0;
      const auto look = [&](u64 key) { best = key < limit ? larger_key(best, key) : best; };
      if (is_listed)
        for (int i = threadIdx.x; i < count; i += THREADS) look(keys[i]);
      else
        for (int id = threadIdx.x; id < VOCAB; id += THREADS) look(key_of(line.at(id), id));
      return Own::largest(best);
    }
  };

  // How far below the best a logit is, in steps.
  static DEVICE int bin_of(float best, float x) {
    const float steps = (best - x) * (float)BINS_OF_ONE;
    return steps < (float)(BINS - 1) ? (int)steps : BINS - 1;
  }

  // Grid (rows).
  static DEVICE void run(const float* logits, const Choice* choices, const u32* masks, Chosen* chosen, u64* alternatives, int most_ranked) {
    DYNAMIC_SHARED(memory);
    __shared__ u32 bins[BINS];
    __shared__ u32 listed;
    wait_for_earlier();
    const int row = blockIdx.x;
    const Choice own = choices[row];
    const Chosen found = chosen[row];
    const bool selects = (own.does & SELECTS) != 0;
    if ((!selects && own.ranked == 0) || found.id < 0) return;
    const Line line = line_of<VOCAB>(logits, masks, own, row, found.best);
    u64 *keys = (u64*)memory, *weights = keys + LIST;
    if (threadIdx.x == 0) listed = 0;
    for (int i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
    for (int id = threadIdx.x; id < VOCAB; id += THREADS) {
      const float x = line.at(id);
      if (x != negated(infinity())) count_up(bins + bin_of(found.best, x));
    }
    __syncthreads();
    const auto up_to = [&](u64 bin) {
      u64 n = 0;
      for (int i = threadIdx.x; i < BINS; i += THREADS) n += (u64)i <= bin ? bins[i] : 0;
      return Own::sum(n);
    };
    const u64 admissible = up_to(BINS - 1);
    // As few bins as hold all that is needed; where nobody knows what is, as many as there is room for.
    const bool is_open = selects && own.top_k == 0;
    u64 needed = selects && own.top_k > own.ranked ? own.top_k : own.ranked;
    needed = needed < admissible ? needed : admissible;
    const u64 wished = is_open && admissible > LIST ? LIST : is_open ? admissible : needed;
    u64 ends = first_where(0, BINS, [&](u64 bin) { return up_to(bin) >= wished; }) + 1;
    if (up_to(ends - 1) > LIST) --ends;
    for (int id = threadIdx.x; id < VOCAB; id += THREADS) {
      const float x = line.at(id);
      if (x == negated(infinity()) || (u64)bin_of(found.best, x) >= ends) continue;
      const u32 place = count_up(&listed);
      keys[place] = key_of(x, id);
      weights[place] = line.weight(x);
    }
    __syncthreads();
    Source source{line, keys, weights, listed >= needed, (int)listed};

    u64 last = ~0ull;
    for (u32 rank = 0; rank < own.ranked && rank < (u32)most_ranked; ++rank) {
      last = source.below(last);
      if (threadIdx.x == 0) alternatives[(u64)row * most_ranked + rank] = last;
    }
    if (!selects) return;

    // Kept is what has no smaller key than `least`; none has a larger one than the best would have with the first id.
    const u64 most = key_of(found.best + 0.0f, 0);
    u64 least = 0, all = found.total;
    if (own.top_k > 0) {
      const auto enough = [&](u64 negative) { return source.counts([&](u64 key) { return key != 0 && key >= ~negative; }) >= own.top_k; };
      if (own.top_k < admissible) least = ~first_where(~most, ~0ull, enough);
      all = source.weighs([&](u64 key, u64 weight) { return key >= least ? weight : 0; });
    }
    if (own.top_p < 1.0f) {
      const double goal = (double)all * (double)own.top_p;
      const auto enough = [&](u64 negative) { return (double)source.weighs([&](u64 key, u64 weight) { return key >= ~negative ? weight : 0; }) >= goal; };
      if (source.is_listed && !enough(~0ull)) source.is_listed = false;
      least = ~first_where(~most, ~least, enough);
    }
    const double floor = (double)own.min_p * WEIGHT_UNITS;
    const auto drawn = [&](u64 limit) {
      return (double)source.weighs([&](u64 key, u64 weight) { return key >= least && (double)weight >= floor && (u64)id_of(key) < limit ? weight : 0; });
    };
    const double goal = drawn(VOCAB) * (double)own.coin;
    const int id = (int)first_where(0, VOCAB, [&](u64 id) { return drawn(id + 1) > goal; });
    if (threadIdx.x != 0 || id == VOCAB) return;
    chosen[row].id = id;
    chosen[row].logit = line.x[id];
  }
};

// Rows that stand for a token of the step before get it; where none was chosen, nobody looks at what is computed.
struct Placed {
  static constexpr int THREADS = 256;
  static DEVICE void run(int* tokens, const Chosen* chosen, int rows) {
    wait_for_earlier();
    const int row = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows || tokens[row] >= 0) return;
    const int id = chosen[-1 - tokens[row]].id;
    tokens[row] = id < 0 ? 0 : id;
  }
};

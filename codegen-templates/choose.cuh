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

// The first number of low .. high for which `holds`, and for all behind it; high where there is none.
template <class Holds> DEVICE u64 first_where(u64 low, u64 high, Holds holds) {
  while (low < high) {
    const u64 middle = low + (high - low) / 2;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
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

  // Calls `take` in one thread with the first of begin .. end at which `before` and the sum of weights pass the goal, where there is one;
  // each thread has `each` ids that follow each other.
  template <class Weight, class Take> static DEVICE void passing(int begin, int each, int end, u64 before, double goal, Weight weight, Take take) {
    const int first = begin + threadIdx.x * each, last = first + each < end ? first + each : end;
    u64 run = 0;
    for (int id = first; id < last; ++id) run += weight(id);
    const int thread = (int)first_where(0, THREADS - 1, [&](u64 t) { return (double)(before + sum(threadIdx.x <= t ? run : 0)) > goal; });
    u64 reached = before + sum((int)threadIdx.x < thread ? run : 0);
    if ((int)threadIdx.x != thread) return;
    for (int id = first; id < last; ++id) {
      reached += weight(id);
      if ((double)reached > goal) {
        take(id);
        return;
      }
    }
  }
};

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
    // The part, then the token, in which the sum of weights in the order of ids passes the goal.
    const int part = (int)first_where(0, PARTS - 1, [&](u64 p) { return (double)Own::sum(threadIdx.x <= p ? drawn : 0) > goal; });
    const u64 before = Own::sum((int)threadIdx.x < part ? drawn : 0);
    const auto weight = [&](int id) { return kept(line.weight(line.at(id))); };
    const int begin = part * PART, end = begin + PART < VOCAB ? begin + PART : VOCAB;
    Own::passing(begin, EACH, end, before, goal, weight, [&](int id) {
      chosen[row].id = id;
      chosen[row].logit = line.x[id];
    });
  }
};

// Rows that are selected from, a block each. Counts and weights by *bin*, which are steps below the best, say in which bin a threshold lies;
// its tokens are brought to shared memory. Of a bin that is too full, counts and weights by digits of the keys say which.
template <int VOCAB, int THREADS, int LIST> struct Selected {
  static constexpr int BINS = 2048, BINS_OF_ONE = 32, SHARED = LIST * 16, WARPS = THREADS / 32, AHEAD = 8, MOST_RANKED = 32;
  static constexpr int SEGMENT = (VOCAB + WARPS - 1) / WARPS;
  static DEVICE constexpr int digits(int n) { return n * 2 > LIST || n == BINS ? n : digits(n * 2); }
  static constexpr int DIGITS = digits(2);
  static_assert(LIST > MOST_RANKED, "all that is ranked");
  using Own = Block<THREADS>;

  // How far below the best a logit is, in steps.
  static DEVICE int bin_of(float best, float x) {
    const float steps = (best - x) * (float)BINS_OF_ONE;
    return steps < (float)(BINS - 1) ? (int)steps : BINS - 1;
  }
  // Every token that may be chosen, several loads ahead.
  template <class Do> static DEVICE void each(const Line& line, Do what) {
    for (int begin = threadIdx.x; begin < VOCAB; begin += THREADS * AHEAD) {
      float x[AHEAD];
#pragma unroll
      for (int a = 0; a < AHEAD; ++a) x[a] = begin + a * THREADS < VOCAB ? line.at(begin + a * THREADS) : negated(infinity());
#pragma unroll
      for (int a = 0; a < AHEAD; ++a)
        if (x[a] != negated(infinity())) what(begin + a * THREADS, x[a]);
    }
  }

  struct Sums { u64 count, mass; };
  // Counts and weights of tokens by place. A weight is three pieces of 12 bits: words are added in shared memory at once, longer numbers one after the other.
  struct Tally {
    u32* words;
    int places;
    DEVICE void clear() const {
      __syncthreads();
      for (int i = threadIdx.x; i < 4 * places; i += THREADS) words[i] = 0;
      __syncthreads();
    }
    DEVICE void add(int place, u64 weight) const {
      count_up(words + place);
#pragma unroll
      for (int p = 0; p < 3; ++p) {
        const u32 piece = (u32)(weight >> 12 * p) & 0xfffu;
        if (piece != 0) add_up(words + (p + 1) * places + place, piece);
      }
    }
    // Of all places before one.
    DEVICE u64 count(u64 end) const {
      u64 n = 0;
      for (int i = threadIdx.x; i < places; i += THREADS) n += (u64)i < end ? words[i] : 0;
      return Own::sum(n);
    }
    DEVICE u64 mass(u64 end) const {
      u64 sum = 0;
      for (int i = threadIdx.x; i < places; i += THREADS)
        if ((u64)i < end) sum += words[places + i] + ((u64)words[2 * places + i] << 12) + ((u64)words[3 * places + i] << 24);
      return Own::sum(sum);
    }
    DEVICE Sums sums(u64 end) const { return Sums{count(end), mass(end)}; }
  };

  // Tokens of the bins begin .. end whose keys are low .. high, by key and weight, in shared memory.
  struct Source {
    Line line;
    u64 *keys, *weights;
    u32* listed;
    int begin, end, count;
    u64 low, high;
    // Those of the bins first .. last, of which there are `of`. Where they are too many, those around the token at which `full` holds first of the sums of
    // it and all larger ones. Gives the sums of what is larger than all that is listed, `before` being those of the bins before; with `all` that is listed too.
    template <class Full> DEVICE Sums gather(int first, int last, u64 of, Sums before, bool all, Full full) {
      constexpr float STEP = 1.0f / BINS_OF_ONE;
      begin = first;
      end = last;
      // Beyond the bins by more than what rounds; what their tokens are, bins say.
      const u64 top = key_of(line.best - (float)(first > 0 ? first - 1 : 0) * STEP + 0.0f, 0);
      high = top;
      low = last == BINS ? 1 : key_of(line.best - (float)(last + 1) * STEP, VOCAB - 1);
      const Tally tally{(u32*)keys, DIGITS};
      while (of + MOST_RANKED > (u64)LIST && low < high) {
        const u64 span = high - low;
        int shift = 0;
        while (span >> shift >= (u64)DIGITS) ++shift;
        tally.clear();
        each(line, [&](int id, float x) {
          const u64 key = key_of(x, id);
          if (holds(x, key)) tally.add((int)((high - key) >> shift), line.weight(x));
        });
        __syncthreads();
        const u64 at = first_where(0, span >> shift, [&](u64 digit) {
          const Sums own = tally.sums(digit + 1);
          return full(Sums{before.count + own.count, before.mass + own.mass});
        });
        const Sums own = tally.sums(at);
        before = Sums{before.count + own.count, before.mass + own.mass};
        of = tally.words[at];
        if (span >> shift > at) low = high - ((at + 1) << shift) + 1;
        high -= at << shift;
      }
      if (all) high = top;
      __syncthreads();
      if (threadIdx.x == 0) *listed = 0;
      __syncthreads();
      each(line, [&](int id, float x) {
        const u64 key = key_of(x, id);
        if (!holds(x, key)) return;
        const u32 place = count_up(listed);
        keys[place] = key;
        weights[place] = line.weight(x);
      });
      __syncthreads();
      count = (int)*listed;
      return before;
    }
    DEVICE bool holds(float x, u64 key) const {
      const int bin = bin_of(line.best, x);
      return bin >= begin && bin < end && key >= low && key <= high;
    }
    template <class Do> DEVICE void tokens(Do what) const {
      for (int i = threadIdx.x; i < count; i += THREADS) what(keys[i], weights[i]);
    }
    // Of tokens whose key is no less than another: their number, or their weights.
    DEVICE u64 counts(u64 least) const {
      u64 n = 0;
      tokens([&](u64 key, u64) { n += key >= least ? 1 : 0; });
      return Own::sum(n);
    }
    DEVICE u64 weighs(u64 least) const {
      u64 sum = 0;
      tokens([&](u64 key, u64 weight) { sum += key >= least ? weight : 0; });
      return Own::sum(sum);
    }
    // The largest key below another; 0 where there is none.
    DEVICE u64 below(u64 limit) const {
      u64 best = 0;
      tokens([&](u64 key, u64) { best = key < limit ? larger_key(best, key) : best; });
      return Own::largest(best);
    }
    // The largest key that is listed, or between those that are, for which `holds`, and for all below it.
    template <class Holds> DEVICE u64 threshold(Holds holds) const {
      return ~first_where(~high, ~low, [&](u64 negative) { return holds(~negative); });
    }
  };

  // Grid (rows).
  static DEVICE void run(const float* logits, const Choice* choices, const u32* masks, Chosen* chosen, u64* alternatives, int most_ranked) {
    DYNAMIC_SHARED(memory);
    __shared__ u32 words[4 * BINS];
    __shared__ u32 listed;
    wait_for_earlier();
    const int row = blockIdx.x;
    const Choice own = choices[row];
    const Chosen found = chosen[row];
    const bool selects = (own.does & SELECTS) != 0;
    if ((!selects && own.ranked == 0) || found.id < 0) return;
    const Line line = line_of<VOCAB>(logits, masks, own, row, found.best);
    const Tally bins{words, BINS};
    bins.clear();
    each(line, [&](int, float x) { bins.add(bin_of(found.best, x), selects ? line.weight(x) : 0); });
    __syncthreads();
    const u64 admissible = bins.count(BINS);
    Source source{line, (u64*)memory, (u64*)memory + LIST, &listed, 0, 0, 0, 0, 0};
    if (own.ranked > 0) {
      const u64 needed = own.ranked < admissible ? own.ranked : admissible;
      const int end = (int)first_where(1, BINS, [&](u64 bin) { return bins.count(bin) >= needed; });
      source.gather(0, end, bins.count(end), Sums{0, 0}, true, [&](const Sums& sums) { return sums.count >= needed; });
      u64 last = ~0ull;
      for (u32 rank = 0; rank < own.ranked && rank < (u32)most_ranked; ++rank) {
        last = source.below(last);
        if (threadIdx.x == 0) alternatives[(u64)row * most_ranked + rank] = last;
      }
    }
    if (!selects) return;

    // Kept is what has no smaller key than `least`.
    u64 least = 0, all = bins.mass(BINS);
    int edge = BINS - 1;  // the last bin of which any is kept
    if (own.top_k > 0 && own.top_k < admissible) {
      edge = (int)first_where(1, BINS, [&](u64 bin) { return bins.count(bin) >= own.top_k; }) - 1;
      const Sums before = source.gather(edge, edge + 1, words[edge], bins.sums(edge), false, [&](const Sums& sums) { return sums.count >= own.top_k; });
      least = source.threshold([&](u64 key) { return before.count + source.counts(key) >= own.top_k; });
      all = before.mass + source.weighs(least);
    }
    if (own.top_p < 1.0f) {
      const double goal = (double)all * (double)own.top_p;
      const int at = (int)first_where(0, edge, [&](u64 bin) { return (double)bins.mass(bin + 1) >= goal; });
      const Sums before = source.gather(at, at + 1, words[at], bins.sums(at), false, [&](const Sums& sums) { return (double)sums.mass >= goal; });
      least = source.threshold([&](u64 key) { return (double)(before.mass + source.weighs(key)) >= goal; });
    }
    const double floor = (double)own.min_p * WEIGHT_UNITS;
    const auto kept = [&](int id) {
      const float x = id < VOCAB ? line.at(id) : negated(infinity());
      const u64 weight = line.weight(x);
      return x != negated(infinity()) && key_of(x, id) >= least && (double)weight >= floor ? weight : 0;
    };
    // The warp's segment, then the token.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u64 part = 0;
#pragma unroll 8
    for (int i = lane; i < SEGMENT; i += 32) part += warp * SEGMENT + i < VOCAB ? kept(warp * SEGMENT + i) : 0;
    const double goal = (double)Own::sum(part) * (double)own.coin;
    const int segment = (int)first_where(0, WARPS - 1, [&](u64 w) { return (double)Own::sum((u64)warp <= w ? part : 0) > goal; });
    const u64 before = Own::sum(warp < segment ? part : 0);
    const int begin = segment * SEGMENT, end = begin + SEGMENT < VOCAB ? begin + SEGMENT : VOCAB;
    Own::passing(begin, (SEGMENT + THREADS - 1) / THREADS, end, before, goal, kept, [&](int id) {
      chosen[row].id = id;
      chosen[row].logit = line.x[id];
    });
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

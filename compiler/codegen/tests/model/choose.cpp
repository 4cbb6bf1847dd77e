// Tokens chosen from rows of logits against a sampler that sorts: exit code 1 where a token differs, 3 where the model stops.
#include "choose.cuh"

constexpr int VOCAB = 1000, WORDS = (VOCAB + 31) / 32, MOST_RANKED = 8;
using OfParts = Parts<VOCAB, 64, 4>;
using OfFew = Selected<VOCAB, 64, 48>;
using OfMany = Selected<VOCAB, 64, 700>;

static u64 state = 1;
static u32 draw() {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return (u32)(state >> 33);
}
static float even() { return (draw() >> 7) * 0x1p-24f; }

struct Case {
  Choice choice;
  std::vector<float> x;
  std::vector<u32> mask;
  bool admits(int id) const { return choice.mask < 0 || (mask[id / 32] >> id % 32 & 1); }
  float at(int id) const { return admits(id) ? x[id] : -INFINITY; }
};
struct Wanted {
  int id, bad;
  std::vector<int> ranked;
  double total;
};

// What stands before: the larger number, +0 before -0, the lower id.
static bool before(const Case& c, int a, int b) {
  const u64 x = key_of(c.x[a], a), y = key_of(c.x[b], b);
  return x > y;
}

static Wanted reference(const Case& c) {
  const Choice& s = c.choice;
  Wanted out{-1, -1, {}, 0};
  for (int id = VOCAB - 1; id >= 0; --id)
    if (std::isnan(c.at(id)) || c.at(id) == INFINITY) out.bad = id;
  if (out.bad >= 0) return out;
  float best = -INFINITY;
  for (int id = 0; id < VOCAB; ++id)
    if (c.at(id) > best) best = c.at(id), out.id = id;
  if (out.id < 0) return out;
  auto weight = [&](int id) { return (double)std::nearbyint(exponential((c.at(id) - best) / s.temperature) * 0x1p35f) * 0x1p-35; };
  std::vector<int> kept;
  for (int id = 0; id < VOCAB; ++id) {
    out.total += weight(id);
    if (c.at(id) > -INFINITY) kept.push_back(id);
  }
  std::sort(kept.begin(), kept.end(), [&](int a, int b) { return before(c, a, b); });
  out.ranked.assign(kept.begin(), kept.begin() + std::min<size_t>(s.ranked, kept.size()));
  if ((s.does & (DRAWS | SELECTS)) == 0) return out;
  if (s.top_k > 0 && s.top_k < kept.size()) kept.resize(s.top_k);
  if (s.top_p < 1.0f) {
    double total = 0, reached = 0;
    for (int id : kept) total += weight(id);
    for (size_t i = 0; i < kept.size(); ++i)
      if ((reached += weight(kept[i])) >= total * (double)s.top_p) { kept.resize(i + 1); break; }
  }
  kept.erase(std::remove_if(kept.begin(), kept.end(), [&](int id) { return weight(id) < (double)s.min_p; }), kept.end());
  std::sort(kept.begin(), kept.end());
  double total = 0, reached = 0;
  for (int id : kept) total += weight(id);
  for (int id : kept)
    if ((reached += weight(id)) > total * (double)s.coin) { out.id = id; break; }
  return out;
}

static Case made(int number) {
  Case c;
  for (int id = 0; id < VOCAB; ++id) {
    const float wide = (even() + even() + even() - 1.5f) * 20.0f;
    switch (number % 6) {
      case 0: c.x.push_back(wide); break;
      case 1: c.x.push_back(std::floor(wide)); break;               // many equals
      case 2: c.x.push_back(id % 7 == 3 ? -INFINITY : wide); break;
      case 3: c.x.push_back(even() < 0.5f ? 0.0f : -0.0f); break;   // all equal, of both signs
      case 4: c.x.push_back(wide * 0.01f); break;                   // nearly even
      default: c.x.push_back(wide * 4.0f); break;
    }
    if (number % 6 != 3 && even() < 0.01f) c.x.back() = even() < 0.5f ? 0.0f : -0.0f;
  }
  for (int w = 0; w < WORDS; ++w) c.mask.push_back(draw() << 16 ^ draw());
  // The last token is the best of some rows, so that the last part's end shows.
  if (number % 5 == 4) c.x[VOCAB - 1] = 90.0f, c.mask[WORDS - 1] |= 1u << (VOCAB - 1) % 32;
  if (number % 31 == 7) std::fill(c.mask.begin(), c.mask.end(), 0);
  if (number % 31 == 11) c.mask.assign(WORDS, 0), c.mask[draw() % (WORDS - 1)] = 0x00040000;
  if (number % 17 == 5) c.x[draw() % VOCAB] = NAN, c.x[draw() % VOCAB] = INFINITY;
  if (number % 17 == 6) c.x[300] = NAN, c.mask[300 / 32] &= ~(1u << 300 % 32);  // masked: no fault
  Choice& s = c.choice;
  s = Choice{CHOOSES, number % 3 == 1 || number % 17 == 6 ? 0 : -1, 1.0f, 0, 1.0f, 0.0f, even(), (u32)(number % 4 == 2 ? 5 : number % 4 == 3 ? MOST_RANKED : 0)};
  if (number % 7 != 0) {
    const float heats[] = {1.0f, 0.7f, 3.0f, 0.05f}, shares[] = {1.0f, 0.9f, 0.2f, 0.999f, 0.5f}, floors[] = {0.0f, 0.0f, 0.1f, 1.0f};
    const u32 most[] = {0, 1, 20, 0, 60, 300, 999, 5000};
    s.temperature = heats[draw() % 4];
    s.top_k = most[draw() % 8];
    s.top_p = shares[draw() % 5];
    s.min_p = floors[draw() % 4];
    if (number % 13 == 1) s.coin = 0.0f;
    if (number % 13 == 2) s.coin = 1.0f - 0x1p-24f;
    s.does |= s.top_k > 0 || s.top_p < 1.0f ? SELECTS : DRAWS;
  }
  if ((s.does & DRAWS) || s.ranked > 0) s.does |= WEIGHS;
  return c;
}

static void wrong(const char* what, int number, double found, double wanted) {
  printf("%s of case %d is %g, not %g\n", what, number, found, wanted);
  exit(1);
}

int main() {
  constexpr int ROWS = 5;
  for (int begin = 0; begin < 240; begin += ROWS) {
    model::backwards = begin / ROWS % 2 == 1;
    std::vector<Case> cases;
    std::vector<float> logits;
    std::vector<Choice> choices;
    std::vector<u32> masks, tickets(ROWS, 0);
    for (int r = 0; r < ROWS; ++r) {
      Case c = made(begin + r);
      if (c.choice.mask >= 0) c.choice.mask = r;
      logits.insert(logits.end(), c.x.begin(), c.x.end());
      masks.insert(masks.end(), c.mask.begin(), c.mask.end());
      choices.push_back(c.choice);
      cases.push_back(c);
    }
    // A row that nobody wants a token of stays as it is.
    choices[1].does = choices[1].ranked = 0;
    std::vector<Chosen> chosen(ROWS, Chosen{-7, -7, 0, 0, 0, 0, 0});
    std::vector<u64> left(ROWS * OfParts::PARTS * 2, ~0ull), ranked(ROWS * MOST_RANKED, ~0ull);
    const float* x = logits.data();
    model::start({OfParts::PARTS, ROWS, 0}, 64, [&] { OfParts::best(x, choices.data(), masks.data(), chosen.data(), left.data(), tickets.data()); });
    model::start({OfParts::PARTS, ROWS, 0}, 64, [&] { OfParts::weigh(x, choices.data(), masks.data(), chosen.data(), left.data(), tickets.data()); });
    std::vector<Chosen> again = chosen;
    const auto select = [&](auto kind) {
      using Kind = decltype(kind);
      for (int r = 0; r < ROWS; ++r) {
        const auto run = [&] { Kind::run(x + r * VOCAB, &choices[r], masks.data(), &chosen[r], &ranked[r * MOST_RANKED], MOST_RANKED); };
        model::start({1, 1, 0}, 64, run);
        for (u32 i = Kind::SHARED; i < model::SHARED_BYTES; ++i)
          if (model::shared[i] != 0xff) wrong("memory behind the block's own", begin + r, i, Kind::SHARED);
      }
      model::start({ROWS, 1, 0}, 64, [&] { Kind::run(x, choices.data(), masks.data(), again.data(), ranked.data(), MOST_RANKED); });
    };
    if (begin / ROWS % 4 < 2) select(OfFew());
    else select(OfMany());
    for (int r = 0; r < ROWS; ++r) {
      const int number = begin + r;
      if (again[r].id != chosen[r].id) wrong("the token among other rows", number, again[r].id, chosen[r].id);
      if (r == 1) {
        if (chosen[r].id != -7) wrong("a token that nobody wants", number, chosen[r].id, -7);
        continue;
      }
      const Wanted wanted = reference(cases[r]);
      if (chosen[r].id != wanted.id) wrong("the token", number, chosen[r].id, wanted.id);
      if (chosen[r].bad != wanted.bad) wrong("the fault", number, chosen[r].bad, wanted.bad);
      if (wanted.bad >= 0 && chosen[r].bad_bits != to_bits(cases[r].x[wanted.bad])) wrong("the faulty number", number, chosen[r].bad_bits, to_bits(cases[r].x[wanted.bad]));
      if (wanted.id < 0) continue;
      if (chosen[r].logit != cases[r].x[wanted.id]) wrong("the logit", number, chosen[r].logit, cases[r].x[wanted.id]);
      if ((choices[r].does & WEIGHS) && chosen[r].total * 0x1p-35 != wanted.total) wrong("the sum", number, chosen[r].total * 0x1p-35, wanted.total);
      for (u32 i = 0; i < choices[r].ranked; ++i) {
        const u64 key = ranked[r * MOST_RANKED + i];
        const int id = key == 0 ? -1 : id_of(key), other = i < wanted.ranked.size() ? wanted.ranked[i] : -1;
        if (id != other) wrong("an alternative", number, id, other);
      }
    }
    for (u32 t : tickets)
      if (t != 0) wrong("a ticket", begin, t, 0);
  }
  int tokens[300];
  Chosen chosen[3] = {{5, -1}, {-1, 2}, {9, -1}};
  for (int i = 0; i < 300; ++i) tokens[i] = i % 4 - 3;
  model::start({2, 1, 0}, Placed::THREADS, [&] { Placed::run(tokens, chosen, 298); });
  const int wanted[4] = {9, 0, 5, 0};
  for (int i = 0; i < 300; ++i)
    if (tokens[i] != (i < 298 ? wanted[i % 4] : i % 4 - 3)) wrong("a row's token", i, tokens[i], wanted[i % 4]);
  puts("right");
}

// Sums over ranks and parts put together, each rank a process, and one rank that hears itself from every place: exit code 1 where a bit
// differs, 3 where the model stops.
#include "seam.cuh"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

constexpr int THREADS = 64, BLOCKS = 2, MOST_ROWS = 7, ROW = 48, ROWS = 4, WORDS = 3;
constexpr u32 SLOT = ROWS * ROW * 4 + 16;

// What ranks share: letterboxes, counters, and arenas that others write to.
struct Shared {
  u8 box[MOST_RANKS][BLOCKS * 2 * MOST_RANKS * SLOT];
  u32 counters[MOST_RANKS][BLOCKS * MOST_RANKS];
  u32 turns[MOST_RANKS][BLOCKS];
  Words4 whole[MOST_RANKS][104 * WORDS];  // 104: eight ranks with 13 rows each
};

static float term(int rank, int launch, int row, int at) {
  const u32 x = (u32)(rank * 7919 + launch * 104729 + row * 1299709 + at * 15485863) * 2654435761u;
  return ((int)(x >> 8) % 20001 - 10000) * (x & 1 ? 1e-3f : 1e3f);
}

static Peers known(Shared* all, int ranks, int own, bool alone) {
  Peers p{};
  for (int r = 0; r < ranks; ++r) {
    const int as = alone ? r : own, of = alone ? own : r;
    p.box[r] = all->box[of] + as * SLOT;
    p.tell[r] = all->counters[of] + as;
    p.shift[r] = (u8*)all->whole[of] - (u8*)all->whole[own];
    p.as[r] = as;
  }
  p.own_box = all->box[own];
  p.told = all->counters[own];
  p.turns = all->turns[own];
  p.slot = SLOT;
  p.ranks = ranks;
  return p;
}

static void wrong(const char* what, int rank, int row, int at, float found, float wanted) {
  printf("%s of rank %d, row %d, element %d is %a, not %a\n", what, rank, row, at, found, wanted);
  fflush(stdout);
  _exit(1);
}

template <int RANKS, class T, class Order> void kernel(const Peers& peers, const float* x, float* out, int rows) {
  constexpr int LANES = THREADS / ROWS;
  Link<RANKS, T, ROW, ROWS, Order> link(peers, rows);
  for (; link.begin < rows; link.next()) {
    link.open();
    const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
    const bool live = link.begin + sub < link.rows;
    const int row = live ? link.begin + sub : link.rows - 1;
    for (int e = lane * 8; e < ROW; e += LANES * 8) {
      float o[8];
      load8(o, x + row * ROW + e);
      if (live) link.send8(sub, e, o);
    }
    link.exchange();
    for (int e = lane * 8; e < ROW; e += LANES * 8) {
      float m[8];
      link.take8(m, sub, e);
      if (live) store8(out + row * ROW + e, m);
    }
  }
  link.close();
}

template <int RANKS, class T, class Order> void sums(Shared* all, int rank, bool alone, int launch, int rows) {
  const Peers peers = known(all, RANKS, rank, alone);
  std::vector<float> x(rows * ROW), out(rows * ROW, NAN);
  auto own = [&](int r, int row, int at) {
    const float given = term(alone ? rank : r, launch, row, at);
    return sizeof(T) == 2 ? round_bf16(given) : given;
  };
  for (int i = 0; i < rows * ROW; ++i) x[i] = term(rank, launch, i / ROW, i % ROW);
  model::start({BLOCKS, 1, 1}, THREADS, [&] { kernel<RANKS, T, Order>(peers, x.data(), out.data(), rows); });
  for (int i = 0; i < rows * ROW; ++i) {
    const int row = i / ROW, at = i % ROW;
    const float wanted = Order::template sum<RANKS>([&](int r) { return own(r, row, at); });
    if (to_bits(out[i]) != to_bits(wanted)) wrong("a sum", rank, row, at, out[i], wanted);
  }
}

template <int RANKS> void parts(Shared* all, int rank, bool alone, int rows) {
  const Peers peers = known(all, RANKS, rank, alone);
  std::vector<Words4> part(rows * WORDS);
  for (u32 i = 0; i < part.size(); ++i) part[i] = {(u32)rank, i, i * i, ~i};
  model::start({BLOCKS, 1, 1}, THREADS, [&] { Joined<RANKS, WORDS, THREADS>::run(peers, (const u8*)part.data(), (u8*)all->whole[rank], rows); });
  for (int row = 0; row < rows; ++row)
    for (int r = 0; r < RANKS; ++r)
      for (int w = 0; w < WORDS; ++w) {
        const Words4 found = all->whole[rank][(row * RANKS + r) * WORDS + w];
        const u32 i = row * WORDS + w, from = alone ? rank : r;
        if (found.a != from || found.b != i || found.c != i * i || found.d != ~i) wrong("a part", rank, row, r, found.a, from);
      }
}

// Rows that ranks bring: `given` by place. Alone, a rank is at every place with its own.
static Brought brought(const std::vector<int>& given, int own, bool alone) {
  Brought b{};
  const int ranks = (int)given.size();
  for (int r = 0, first = 0; r < ranks; ++r) {
    const int rows = alone ? given[own] : given[r];
    b.rows[r] = rows;
    b.first[r] = b.at[r] = first;
    first += rows;
    b.all = first;
    b.most = std::max(b.most, rows);
  }
  const int first = b.first[own];
  for (int r = 0; r < ranks; ++r) (alone ? b.first : b.at)[r] = first;
  return b;
}

template <int RANKS> void rows(Shared* all, int rank, bool alone, const std::vector<int>& given) {
  const Peers peers = known(all, RANKS, rank, alone);
  const Brought of = brought(given, rank, alone);
  const int own = given[rank];
  std::vector<Words4> part(own * WORDS);
  for (u32 i = 0; i < part.size(); ++i) part[i] = {(u32)rank, i, i * i, ~i};
  model::start({BLOCKS, 1, 1}, THREADS, [&] { Rows<RANKS, WORDS, THREADS>::run(peers, of, (const u8*)part.data(), (u8*)all->whole[rank], own); });
  int at = 0;
  for (int r = 0; r < RANKS; ++r)
    for (u32 i = 0; i < (u32)of.rows[r] * WORDS; ++i, ++at) {
      const Words4 found = all->whole[rank][at];
      const u32 from = alone ? rank : r;
      if (found.a != from || found.b != i || found.c != i * i || found.d != ~i) wrong("a row", rank, r, i, found.a, from);
    }
}

template <int RANKS> void rows_kernel(const Peers& peers, const Brought& of, const float* x, float* out, int own) {
  constexpr int LANES = THREADS / ROWS;
  Home<RANKS, float, ROW, ROWS, Ascending> link(peers, of, own);
  while (link.more()) {
    link.open();
    const int lane = threadIdx.x % LANES, sub = threadIdx.x / LANES;
    for (int rank = 0; rank < RANKS; ++rank) {
      if (!link.towards(rank)) continue;
      const bool live = link.begin + sub < link.rows;
      const int row = live ? link.begin + sub : link.rows - 1;
      for (int e = lane * 8; e < ROW; e += LANES * 8) {
        float o[8];
        load8(o, x + row * ROW + e);
        if (live && e == 8) for (int i = 0; i < 8; ++i) link.send(sub, e + i, o[i]);
        else if (live) link.send8(sub, e, o);
      }
    }
    link.exchange();
    if (link.back()) {
      const bool live = link.begin + sub < link.rows;
      for (int e = lane * 8; e < ROW && live; e += LANES * 8) {
        float m[8];
        link.take8(m, sub, e);
        store8(out + (link.begin + sub) * ROW + e, m);
      }
    }
    link.next();
  }
  link.close();
}

template <int RANKS> void home(Shared* all, int rank, bool alone, int launch, const std::vector<int>& given) {
  const Peers peers = known(all, RANKS, rank, alone);
  const Brought of = brought(given, rank, alone);
  const int own = given[rank];
  std::vector<float> x(of.all * ROW), out(own * ROW, NAN);
  for (int i = 0; i < of.all * ROW; ++i) x[i] = term(rank, launch, i / ROW, i % ROW);
  model::start({BLOCKS, 1, 1}, THREADS, [&] { rows_kernel<RANKS>(peers, of, x.data(), out.data(), own); });
  for (int i = 0; i < own * ROW; ++i) {
    const int row = (alone ? of.first : of.at)[0] + i / ROW, at = i % ROW;
    const float wanted = Ascending::sum<RANKS>([&](int r) { return term(alone ? rank : r, launch, row, at); });
    if (to_bits(out[i]) != to_bits(wanted)) wrong("a row's sum", rank, row, at, out[i], wanted);
  }
}

// Launches of different sizes one after the other, as a step has them; how often blocks met is known.
template <int RANKS> void rank_of(Shared* all, int rank, bool alone) {
  sums<RANKS, float, Ascending>(all, rank, alone, 0, 7);
  sums<RANKS, float, Tree>(all, rank, alone, 1, 1);
  parts<RANKS>(all, rank, alone, MOST_ROWS);
  sums<RANKS, bf16, Ascending>(all, rank, alone, 2, 5);
  sums<RANKS, float, Ascending>(all, rank, alone, 3, 7);
  // Many rows of some ranks, few or none of others.
  const std::vector<int> many = {13, 3, 0, 9, 1, 0, 2, 5}, few = {2, 0, 1, 0, 0, 0, 0, 0};
  const auto of = [](const std::vector<int>& all) { return std::vector<int>(all.begin(), all.begin() + RANKS); };
  rows<RANKS>(all, rank, alone, of(many));
  home<RANKS>(all, rank, alone, 4, of(many));
  rows<RANKS>(all, rank, alone, of(few));
  home<RANKS>(all, rank, alone, 5, of(few));
  home<RANKS>(all, rank, alone, 6, of(many));
  const bool both = brought(of(many), rank, alone).all * WORDS > THREADS;
  const u32 met[BLOCKS] = {1 + 1 + 2 + 1 + 1 + 2 + 2 + 2 + 1 + 2, 1 + 1 + 1 + 2u * both + 2 + 2};
  for (int b = 0; b < BLOCKS; ++b)
    if (all->turns[rank][b] != met[b]) wrong("turns", rank, b, 0, all->turns[rank][b], met[b]);
}

static Shared* fresh() {
  Shared* all = (Shared*)mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memset(all->box, 0xff, sizeof all->box);
  memset(all->whole, 0xff, sizeof all->whole);
  return all;
}

template <int RANKS> void together() {
  Shared* all = fresh();
  pid_t children[RANKS];
  for (int r = 0; r < RANKS; ++r)
    if ((children[r] = fork()) == 0) {
      rank_of<RANKS>(all, r, false);
      _exit(0);
    }
  // Who fails first says why; the others may wait for it for ever.
  int worst = 0;
  for (int left = RANKS; left > 0 && worst == 0; --left) {
    int status = 0;
    waitpid(-1, &status, 0);
    worst = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
  }
  for (int r = 0; r < RANKS && worst != 0; ++r) kill(children[r], SIGKILL);
  munmap(all, sizeof(Shared));
  if (worst != 0) exit(worst);
}

int main() {
  for (bool backwards : {false, true}) {
    model::backwards = backwards;
    Shared* all = fresh();
    rank_of<8>(all, 0, true);
    munmap(all, sizeof(Shared));
    together<2>();
    together<4>();
    together<8>();
  }
  puts("right");
}

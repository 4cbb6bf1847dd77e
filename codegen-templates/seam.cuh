// Exchanges between ranks over each other's memory. A block of a rank meets the same block of every other rank, so the grid is the same
// everywhere and all its blocks run at once. A block has a place of its own in each rank's letterbox, twice: what is sent
// next never meets what another rank still reads, since who sends again has heard from all that they went on.
#pragma once
#include "cache.cuh"

constexpr int MOST_RANKS = 8;

// The ranks of a group as one of them sees them, by their places in it.
struct Peers {
  u8* box[MOST_RANKS];       // where the own numbers lie in each rank's letterbox
  u32* tell[MOST_RANKS];     // counters there by which this rank says how far it is
  i64 shift[MOST_RANKS];     // from an address of the own arena to the same place of each rank's
  const u8* own_box;
  const u32* told;           // the own counters, by which others say how far they are
  u32* turns;                // of every block: its exchanges so far
  u32 slot, ranks;           // bytes of a rank's place in a letterbox
  int as[MOST_RANKS];        // the place under which this rank is known to each
};

// A meeting of a block with the same block of all other ranks.
template <int RANKS> struct Meeting {
  const Peers& peers;
  u32 turn;
  DEVICE Meeting(const Peers& of) : peers(of), turn(of.turns[blockIdx.x]) {}
  DEVICE void meet() {
    __syncthreads();
    if (threadIdx.x < RANKS) {
      announce(peers.tell[threadIdx.x] + blockIdx.x * MOST_RANKS, turn);
      hear(peers.told + blockIdx.x * MOST_RANKS + threadIdx.x, turn);
    }
    __syncthreads();
  }
  DEVICE void end() const {
    if (threadIdx.x == 0) peers.turns[blockIdx.x] = turn;
  }
};

struct Ascending {
  template <int N, class Term> static DEVICE float sum(Term term) { return serial_in_thread<N>(term); }
};
struct Tree {
  template <int N, class Term> static DEVICE float sum(Term term) { return fold_in_thread<N>(term); }
};

// Rows of ROW numbers that all ranks add: ROWS of them at once in a block.
template <int RANKS, class T, int ROW, int ROWS, class Order> struct Link {
  static constexpr bool WIDE = ROW % 8 == 0;
  Meeting<RANKS> meeting;
  int begin, rows;
  u64 area;
  DEVICE Link(const Peers& peers, int all) : meeting(peers), begin(blockIdx.x * ROWS), rows(all), area(0) {}
  DEVICE void open() {
    ++meeting.turn;
    area = (u64)(blockIdx.x * 2 + (meeting.turn & 1)) * meeting.peers.slot * RANKS;
  }
  DEVICE void send(int line, int at, float x) const {
#pragma unroll
    for (int r = 0; r < RANKS; ++r) post((T*)(meeting.peers.box[r] + area) + line * ROW + at, x);
  }
  DEVICE void send8(int line, int at, const float (&x)[8]) const {
#pragma unroll
    for (int r = 0; r < RANKS; ++r) post8((T*)(meeting.peers.box[r] + area) + line * ROW + at, x);
  }
  DEVICE void exchange() { meeting.meet(); }
  DEVICE const T* of(int rank) const { return (const T*)(meeting.peers.own_box + area + (u64)rank * meeting.peers.slot); }
  DEVICE float take(int line, int at) const {
    return Order::template sum<RANKS>([&](int r) { return load(of(r) + line * ROW + at); });
  }
  DEVICE void take8(float (&x)[8], int line, int at) const {
    float terms[RANKS][8];
#pragma unroll
    for (int r = 0; r < RANKS; ++r) load8(terms[r], of(r) + line * ROW + at);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = Order::template sum<RANKS>([&](int r) { return terms[r][i]; });
  }
  DEVICE void next() { begin += gridDim.x * ROWS; }
  DEVICE void close() const { meeting.end(); }
};

// Parts of WORDS 16-byte words put together by the ranks' places, row by row. What others write to goes unread by the time that they say so.
template <int RANKS, int WORDS, int THREADS> struct Joined {
  static DEVICE void run(const Peers& peers, const u8* part, u8* whole, int rows) {
    wait_for_earlier();
    const u64 all = (u64)rows * WORDS;
    if ((u64)blockIdx.x * THREADS >= all) return;
    Meeting<RANKS> meeting(peers);
    ++meeting.turn;
    meeting.meet();
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < all; i += (u64)gridDim.x * THREADS) {
      const Words4 word = ((const Words4*)part)[i];
#pragma unroll
      for (int r = 0; r < RANKS; ++r) {
        Words4* to = (Words4*)(whole + peers.shift[r]) + (i / WORDS * RANKS + peers.as[r]) * WORDS + i % WORDS;
        post_word(to, word);
      }
    }
    ++meeting.turn;
    meeting.meet();
    meeting.end();
  }
};

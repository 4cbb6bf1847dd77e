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

// Token rows that ranks of a group bring, each its own, by their places.
struct Brought {
  int rows[MOST_RANKS];      // how many
  int first[MOST_RANKS];     // the first among those of all ranks, one rank's behind the other's
  int at[MOST_RANKS];        // the same of the own rows, in each rank's memory
  int all, most;             // how many all ranks have, and the one that has most
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

// Rows of WORDS 16-byte words that every rank brings, on all ranks, one rank's behind the other's.
template <int RANKS, int WORDS, int THREADS> struct Rows {
  static DEVICE void run(const Peers& peers, const Brought& brought, const u8* own, u8* whole, int rows) {
    wait_for_earlier();
    // As many blocks as the rows of all take, so that the same ones meet on every rank.
    const u64 needed = ((u64)brought.all * WORDS + THREADS - 1) / THREADS, blocks = needed < gridDim.x ? needed : gridDim.x;
    if (blockIdx.x >= blocks) return;
    Meeting<RANKS> meeting(peers);
    ++meeting.turn;
    meeting.meet();
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < (u64)rows * WORDS; i += blocks * THREADS) {
      const Words4 word = ((const Words4*)own)[i];
#pragma unroll
      for (int r = 0; r < RANKS; ++r) post_word((Words4*)(whole + peers.shift[r]) + (u64)brought.at[r] * WORDS + i, word);
    }
    ++meeting.turn;
    meeting.meet();
    meeting.end();
  }
};

// Rows of ROW numbers that all ranks add and of which each takes its own: ROWS of every rank at once in a block.
template <int RANKS, class T, int ROW, int ROWS, class Order> struct Home : Link<RANKS, T, ROW, ROWS, Order> {
  using Own = Link<RANKS, T, ROW, ROWS, Order>;
  const Brought& brought;
  int round, own, to;
  DEVICE Home(const Peers& peers, const Brought& of, int rows) : Own(peers, rows), brought(of), round(blockIdx.x * ROWS), own(rows), to(0) {}
  DEVICE bool more() const { return round < brought.most; }
  // Goes on to what is added for a rank; whether it takes any rows.
  DEVICE bool towards(int rank) {
    __syncthreads();
    to = rank;
    this->begin = brought.first[rank] + round;
    this->rows = brought.first[rank] + brought.rows[rank];
    return this->begin < this->rows;
  }
  // Goes on to the own rows, which all ranks have sent.
  DEVICE bool back() {
    this->begin = round;
    this->rows = own;
    return round < own;
  }
  DEVICE void send(int line, int at, float x) const { post((T*)(this->meeting.peers.box[to] + this->area) + line * ROW + at, x); }
  DEVICE void send8(int line, int at, const float (&x)[8]) const { post8((T*)(this->meeting.peers.box[to] + this->area) + line * ROW + at, x); }
  DEVICE void next() { round += gridDim.x * ROWS; }
};

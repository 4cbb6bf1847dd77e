// What a library of one kernel, built over the host model, shows to `host_driver.cpp`.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace model {
// How a kernel is started: blocks, threads of each, bytes of shared memory, whether threads have their turns backwards, and where each
// parameter stands.
struct Entry {
  size_t count;
  const size_t* sizes;
  void (*run)(unsigned x, unsigned y, unsigned threads, unsigned shared_bytes, bool backwards, void** given);
};
// A map for the copy engine, as the model reads it.
struct MapWords { uint64_t at, columns, rows; uint32_t box_columns, box_rows; };
}  // namespace model

#ifdef HOST_MODEL
#include <tuple>
#include <type_traits>
#include <utility>

namespace model {
template <auto KERNEL> struct Started;
template <class... P, void (*KERNEL)(P...)> struct Started<KERNEL> {
  static constexpr size_t SIZES[] = {sizeof(P)...};
  template <size_t... I> static void with(unsigned x, unsigned y, unsigned threads, void** given, std::index_sequence<I...>) {
    std::tuple<std::remove_cv_t<P>...> held;
    (memcpy((void*)&std::get<I>(held), given[I], sizeof(P)), ...);
    start({x, y, 1}, (int)threads, [&] { KERNEL(std::get<I>(held)...); });
  }
  static void run(unsigned x, unsigned y, unsigned threads, unsigned bytes, bool turned, void** given) {
    shared_bytes = bytes;
    backwards = turned;
    with(x, y, threads, given, std::index_sequence_for<P...>());
  }
  static constexpr Entry ENTRY = {sizeof...(P), SIZES, run};
};
}  // namespace model
#define HOST_ENTRY(name) extern "C" { extern const model::Entry name##_entry; const model::Entry name##_entry = model::Started<name>::ENTRY; }
#endif

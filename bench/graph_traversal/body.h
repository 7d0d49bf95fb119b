// bench/graph_traversal/body.h - what a node does: a short or a long row of dependent multiply-adds on a slot
// of its own.
//
// Each slot has its cache line, so that two nodes never share one. Every run of a body moves its slot one
// step along a fixed sequence: check_slots() tells whether each node ran as often as it should have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::bench {

struct alignas(64) Slot {
  std::uint64_t value = 1;
};

inline std::uint64_t multiply_add(std::uint64_t x) {
  x = x * 6364136223846793005U + 1442695040888963407U;
#if defined(__GNUC__)
  asm volatile("" : "+r"(x));  // one step is one step: nothing is folded
#endif
  return x;
}

// About 10 ns from its first step to its last. A processor that runs ahead overlaps neighbours that do not
// depend on each other, so that a loop over many of them takes less a node.
struct ShortBody {
  Slot* slot;
  void operator()() const {
    std::uint64_t x = slot->value;
    for (int step = 0; step < 13; ++step) x = multiply_add(x);
    slot->value = x;
  }
};

// As long as `steps` says.
struct LongBody {
  Slot* slot;
  std::uint64_t steps;
  void operator()() const {
    std::uint64_t x = slot->value;
    for (std::uint64_t step = 0; step < steps; ++step) x = multiply_add(x);
    slot->value = x;
  }
};

enum class BodyKind : std::uint8_t { kShort, kLong };

struct Body {
  BodyKind kind = BodyKind::kShort;
  std::uint64_t long_steps = 0;
  double seconds() const { return kind == BodyKind::kShort ? 10e-9 : 1e-6; }  // the cost hint
};

// Calls `use` with the function object for a slot: rivals store it as they like best.
template <class Use>
auto with_body(const Body& body, Slot& slot, Use use) {
  return body.kind == BodyKind::kShort ? use(ShortBody{&slot}) : use(LongBody{&slot, body.long_steps});
}

// Steps of a LongBody that take a microsecond here.
std::uint64_t calibrate_long_steps();
// Nanoseconds of one ShortBody called through std::function, slot in cache.
double measure_short_body();

}  // namespace lockstep::bench

// tests/support/failing_allocations.h - memory that runs out when a test says so, and a count of allocations.
//
//   for (std::int64_t n = 1;; ++n) {
//     FailingAllocations failing({.nth = n, .of = FailingAllocations::Of::kProcess});
//     try { program.run(feeds); } catch (const std::exception&) {}
//     if (!failing.reached()) break;                     // no allocation is left that could fail
//   }
//
// Replaces operator new of the executable that links failing_allocations.cpp (tests/CMakeLists.txt says which):
// what goes to malloc past it, tensors' memory and exceptions among it, neither fails nor counts. What a FakeGpu
// needs for itself does not fail. Sanitizers have an operator new of their own: there nothing fails and nothing
// is counted, and tests skip (kAllocationsFail).
//
// Thread safety: one FailingAllocations at a time for the process, or one a thread.
#pragma once

#include <cstdint>

#include "support/sanitizers.h"

namespace lockstep::testing {

inline constexpr bool kAllocationsFail = !kSanitized;

// Calls of operator new so far, by all threads.
std::int64_t allocations_so_far();

// While it lives, the n-th allocation from its beginning on throws std::bad_alloc, and so do the ones after it,
// `times` in all.
class FailingAllocations {
 public:
  enum class Of : std::uint8_t { kThisThread, kProcess };
  struct Which {
    std::int64_t nth = 1;
    Of of = Of::kThisThread;
    std::int64_t times = 1;
  };
  explicit FailingAllocations(const Which& which);
  ~FailingAllocations();
  FailingAllocations(const FailingAllocations&) = delete;
  FailingAllocations& operator=(const FailingAllocations&) = delete;

  // Has one failed?
  bool reached() const;

 private:
  Of of_;
};

}  // namespace lockstep::testing

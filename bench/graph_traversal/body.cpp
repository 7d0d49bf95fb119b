#include "body.h"

#include <algorithm>
#include <functional>

#include "support/measure.h"

namespace lockstep::bench {

std::uint64_t calibrate_long_steps() {
  constexpr std::uint64_t kSteps = 100'000;
  Slot slot;
  double best = 1;
  for (int trial = 0; trial < 50; ++trial) {
    const double begin = now();
    LongBody{&slot, kSteps}();
    best = std::min(best, now() - begin);
  }
  return static_cast<std::uint64_t>(1e-6 / best * static_cast<double>(kSteps));
}

double measure_short_body() {
  constexpr std::size_t kCalls = 10'000;
  std::vector<Slot> slots(16);
  std::vector<std::function<void()>> calls;
  for (Slot& slot : slots) calls.emplace_back(ShortBody{&slot});
  double best = 1;
  for (int trial = 0; trial < 50; ++trial) {
    const double begin = now();
    for (std::size_t call = 0; call < kCalls; ++call) calls[call % calls.size()]();
    best = std::min(best, now() - begin);
  }
  return best / static_cast<double>(kCalls) * 1e9;
}

}  // namespace lockstep::bench

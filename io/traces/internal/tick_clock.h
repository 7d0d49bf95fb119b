// io/traces/internal/tick_clock.h - time stamps for a few nanoseconds each: the CPU's own counter.
//
// cntvct_el0 on 64-bit Arm, the time-stamp counter on x86-64 (taken to run at one rate on all cores, as it
// does on every CPU of the last decade), steady_clock elsewhere. A TickClock remembers when it was made and
// turns stamps into nanoseconds since.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep::internal {

inline std::uint64_t read_ticks() {
#if defined(__aarch64__)
  std::uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#elif defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

class TickClock {
 public:
  TickClock() : began_(now()) {}

  // Takes the rate from the CPU if it reports one, else from the time since this clock was made (waiting
  // until that is at least a few milliseconds).
  double nanoseconds_per_tick() const {
#if defined(__aarch64__)
    std::uint64_t rate = 0;
    asm volatile("mrs %0, cntfrq_el0" : "=r"(rate));
    return 1e9 / static_cast<double>(rate);
#else
    constexpr auto kEnough = std::chrono::milliseconds(5);
    for (;;) {
      const Moment at = now();
      const auto passed = at.time - began_.time;
      const std::uint64_t ticks = at.ticks - began_.ticks;
      if (passed < kEnough || ticks == 0) continue;
      return static_cast<double>(std::chrono::nanoseconds(passed).count()) / static_cast<double>(ticks);
    }
#endif
  }
  std::uint64_t first() const { return began_.ticks; }
  std::chrono::steady_clock::time_point first_time() const { return began_.time; }

 private:
  struct Moment {
    std::chrono::steady_clock::time_point time;
    std::uint64_t ticks = 0;
  };
  // The same moment on both clocks. The thread may be preempted between two readings, but hardly in every
  // try.
  static Moment now() {
    constexpr int kTries = 8;
    Moment best;
    std::uint64_t narrowest = ~std::uint64_t{0};
    for (int i = 0; i < kTries; ++i) {
      const std::uint64_t before = read_ticks();
      const auto time = std::chrono::steady_clock::now();
      const std::uint64_t width = read_ticks() - before;
      if (width >= narrowest) continue;
      narrowest = width;
      best = {time, before + width / 2};
    }
    return best;
  }

  Moment began_;
};

}  // namespace lockstep::internal

// The rival: what one writes who needs just this. Threads pinned to processors; a barrier that spins; then
// each thread sums its own part of all arrays in registers and writes it to all of them, in one pass over
// memory; a barrier that spins.
#include <algorithm>
#include <atomic>
#include <stdexcept>

#include <sched.h>

#include "rivals.h"
#include "threads.h"

namespace lockstep::bench {
namespace {

typedef float Floats __attribute__((vector_size(16)));

class SpinningBarrier {
 public:
  SpinningBarrier(int count, bool crowded) : count_(count), crowded_(crowded) {}
  void arrive_and_wait() {
    const unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    // With more threads than processors the one that is waited for may need this processor.
    while (phase_.load(std::memory_order_acquire) == phase) {
      if (crowded_) sched_yield();
    }
  }

 private:
  const int count_;
  const bool crowded_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

// [begin, end) of n arrays; whole cache lines, but for the last part.
template <int n>
void sum_part(const Arrays& arrays, std::int64_t begin, std::int64_t end) {
  float* array[n];
  for (int p = 0; p < n; ++p) array[p] = arrays[p];
  std::int64_t i = begin;
  for (; i + 16 <= end; i += 16) {
    Floats a = *reinterpret_cast<const Floats*>(array[0] + i);
    Floats b = *reinterpret_cast<const Floats*>(array[0] + i + 4);
    Floats c = *reinterpret_cast<const Floats*>(array[0] + i + 8);
    Floats d = *reinterpret_cast<const Floats*>(array[0] + i + 12);
    for (int p = 1; p < n; ++p) {
      a += *reinterpret_cast<const Floats*>(array[p] + i);
      b += *reinterpret_cast<const Floats*>(array[p] + i + 4);
      c += *reinterpret_cast<const Floats*>(array[p] + i + 8);
      d += *reinterpret_cast<const Floats*>(array[p] + i + 12);
    }
    for (int p = 0; p < n; ++p) {
      *reinterpret_cast<Floats*>(array[p] + i) = a;
      *reinterpret_cast<Floats*>(array[p] + i + 4) = b;
      *reinterpret_cast<Floats*>(array[p] + i + 8) = c;
      *reinterpret_cast<Floats*>(array[p] + i + 12) = d;
    }
  }
  for (; i < end; ++i) {
    float sum = array[0][i];
    for (int p = 1; p < n; ++p) sum += array[p][i];
    for (int p = 0; p < n; ++p) array[p][i] = sum;
  }
}

class ByHand final : public Rival {
 public:
  explicit ByHand(const Arrays& arrays)
      : arrays_(arrays),
        crowded_(arrays.participants() > static_cast<int>(std::thread::hardware_concurrency())),
        barrier_(arrays.participants(), crowded_),
        threads_(arrays.participants(), true) {}

  std::string name() const override { return "by hand"; }

  void run(std::int64_t floats, std::size_t times) override {
    const std::int64_t n = arrays_.participants();
    const std::int64_t part = ((floats + n - 1) / n + 15) / 16 * 16;
    threads_.run([&](int participant) {
      const std::int64_t begin = std::min(floats, participant * part);
      const std::int64_t end = std::min(floats, begin + part);
      for (std::size_t i = 0; i < times; ++i) {
        barrier_.arrive_and_wait();
        switch (n) {
          case 2: sum_part<2>(arrays_, begin, end); break;
          case 4: sum_part<4>(arrays_, begin, end); break;
          default: sum_part<8>(arrays_, begin, end); break;
        }
        barrier_.arrive_and_wait();
      }
    });
  }

 private:
  const Arrays& arrays_;
  const bool crowded_;
  SpinningBarrier barrier_;
  Threads threads_;
};

}  // namespace

std::unique_ptr<Rival> make_by_hand(const Arrays& arrays) {
  const int n = arrays.participants();
  if (n != 2 && n != 4 && n != 8) throw std::invalid_argument("by hand: written for 2, 4 and 8 participants");
  return std::make_unique<ByHand>(arrays);
}

}  // namespace lockstep::bench

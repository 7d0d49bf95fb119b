// bench/support/measure.h - timing that says when it cannot be trusted.
//
//   Sampler sampler({.rounds = 21});
//   Samples samples = sampler.alternate({{"ours", run_ours}, {"theirs", run_theirs}});
//   Spread ratio = spread(ratios(samples.seconds[0], samples.seconds[1]));
//
// alternate() runs rounds; in each round every contender has one slice of a few milliseconds, in an order
// that rotates from round to round, so that whatever drifts (clock, heat, neighbours) drifts for all of them.
// A slice sleeps first (so that the threads of the contender before have gone to sleep), makes one run that
// is not counted (so that caches and workers are warm), then times as many runs as fill it.
//
// A round in which other processes used CPU is discarded: the run times of every other thread of the machine,
// which the kernel keeps in nanoseconds, are read before and after it. Where too many rounds go that way, the
// quietest ones are kept and the samples are marked noisy.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace lockstep::bench {

double now();      // seconds, monotonic
double cpu_now();  // seconds of CPU time that this process has used, on all threads
// Bytes that malloc has handed out and not got back, its own overhead included.
std::size_t live_heap_bytes();
// From now on freed memory stays in the process, so that a second trial finds its pages mapped, whatever its
// size.
void keep_freed_memory();

struct Spread {
  double q1 = 0;
  double median = 0;
  double q3 = 0;
};
Spread spread(std::vector<double> values);
std::vector<double> ratios(std::span<const double> numerators, std::span<const double> denominators);
std::vector<double> differences(std::span<const double> minuends, std::span<const double> subtrahends);

// CPU time that other processes use between two moments. Those that this one has started are its own.
class Neighbours {
 public:
  Neighbours();
  // Seconds of CPU time since the last call (or construction) that were not this process's or its
  // descendants'.
  double used();

 private:
  struct Reading {
    std::unordered_map<std::uint64_t, double> threads;  // of other processes: seconds run so far
    double busy = 0;                                    // of the machine, in the kernel's coarse count
    double stolen = 0;                                  // by other virtual machines
    double own = 0;                                     // and of its descendants
    std::uint64_t forks = 0;
  };
  static Reading read();
  Reading last_;
};

struct Contender {
  std::string name;
  std::function<void(std::size_t)> run;  // that many times
};

struct SamplerOptions {
  std::size_t rounds = 21;       // to keep
  double slice_seconds = 0.010;  // of one contender in one round
  double pause_seconds = 0.002;  // before it
  // A round is discarded where others used more than this part of its time.
  double tolerance = 0.02;
  // Rounds that may be discarded: in one call, and in the life of the sampler.
  std::size_t patience = 21;
  std::size_t total_patience = 210;
};

struct Samples {
  std::vector<std::vector<double>> seconds;  // [contender][round], of one run
  std::size_t discarded = 0;
  bool noisy = false;  // some of the rounds kept were disturbed
};

class Sampler {
 public:
  explicit Sampler(SamplerOptions options) : options_(options) {}
  Samples alternate(std::span<const Contender> contenders);
  std::size_t kept() const { return kept_; }
  std::size_t discarded() const { return discarded_; }
  std::size_t noisy() const { return noisy_; }  // disturbed, and kept all the same

 private:
  double slice(const Contender& contender, std::size_t repeats) const;

  SamplerOptions options_;
  std::size_t kept_ = 0;
  std::size_t discarded_ = 0;
  std::size_t noisy_ = 0;
};

}  // namespace lockstep::bench

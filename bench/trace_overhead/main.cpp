// bench_trace_overhead - what recording a run costs: steps of nodes of about a microsecond, with a recorder
// and without.
//
//   bench_trace_overhead [--quick] [--json FILE]
//
// One chain on one thread, where calls follow each other; and two chains on two threads. Both contenders run
// the same program, in turns.
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/core/runtime.h"
#include "lockstep/io/traces/trace.h"
#include "support/report.h"
#include "support/small_chain.h"

namespace lockstep::bench {
namespace {

constexpr int kOps = 500;
constexpr double kNodeSeconds = 1e-6;
constexpr double kTarget = 1.05;

// As many floats as make a node of the chain take a microsecond on one thread.
std::int64_t floats_of_a_microsecond() {
  const Runtime runtime({.threads = 1});
  for (std::int64_t elements = 256;; elements += elements / 4) {
    Runner runner(small_chains(1, kOps, elements), runtime, random_floats(elements));
    std::vector<double> seconds;
    for (int i = 0; i < 9; ++i) {
      const double begin = now();
      runner.run(1);
      seconds.push_back(now() - begin);
    }
    if (spread(seconds).median >= kOps * kNodeSeconds) return elements;
  }
}

void measure(Report& report, int chains, std::int64_t elements) {
  const Runtime runtime({.threads = static_cast<std::size_t>(chains)});
  Runner runner(small_chains(chains, kOps, elements), runtime, random_floats(elements));
  TraceRecorder recorder;
  const RunOptions recorded = {.observer = &recorder};
  runner.run(20, recorded);
  const std::vector<Contender> contenders = {
      {"without", [&](std::size_t n) { runner.run(n); }},
      {"with a recorder", [&](std::size_t n) { runner.run(n, recorded); }}};
  const Samples samples = report.sampler().alternate(contenders);
  const Spread ratio = spread(ratios(samples.seconds[1], samples.seconds[0]));
  std::printf("%-8d ", chains);
  for (const std::vector<double>& seconds : samples.seconds) Report::show(spread(seconds), 1e9 / kOps, 28);
  Report::show(spread(differences(samples.seconds[1], samples.seconds[0])), 1e9 / kOps, 24);
  Report::show(ratio, 1, 20);
  std::printf("%s\n", samples.noisy ? " NOISY" : "");
  std::fflush(stdout);
  const std::string where = std::to_string(chains) + (samples.noisy ? " threads (noisy)" : " threads");
  report.verdicts().at_most("a recorded run, of one that is not", where, ratio.median, kTarget);
  report.record(std::to_string(chains), contenders, samples);
}

void run(Report& report) {
  const std::int64_t elements = floats_of_a_microsecond();
  std::printf("chains of %d nodes on %lld floats: ns a node and thread, median [q1..q3]\n", kOps,
              static_cast<long long>(elements));
  std::printf("%-8s %-28s %-28s %-24s %s\n", "threads", "without", "with a recorder", "difference", "ratio");
  for (const int chains : {1, 2}) measure(report, chains, elements);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Report report(argc, argv, "bench_trace_overhead");
  lockstep::bench::run(report);
  report.finish();
}

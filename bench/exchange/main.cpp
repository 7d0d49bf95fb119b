// bench_exchange - the sum of arrays of floats over processes on this machine: Lockstep's exchange,
// through memory that they share and over TCP, and Gloo's ring.
//
//   bench_exchange [--quick] [--json FILE]
//
// 2 and 4 processes, arrays of 1 KiB to 64 MiB, in place. All take turns in one run.
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/measure.h"
#include "support/report.h"
#include "team.h"

namespace lockstep::bench {
namespace {

void measure(Report& report, Team& team, std::int64_t kib) {
  const std::int64_t floats = kib * 256;
  std::vector<Contender> contenders;
  for (const char* name : {"Lockstep", "over TCP", "Gloo's ring"}) {
    const std::size_t who = contenders.size();
    if (!team.check(who, floats)) throw std::runtime_error(std::string("wrong sums: ") + name);
    contenders.push_back({name, [&team, who, floats](std::size_t times) { team.run(who, floats, times); }});
  }
  const Samples samples = report.sampler().alternate(contenders);
  const std::string row = std::to_string(team.size()) + "x" + std::to_string(kib) + "K";
  std::printf("%-9s", row.c_str());
  for (const std::vector<double>& seconds : samples.seconds) Report::show(spread(seconds), 1e6, 28);
  const bool is_small = kib <= 64;
  for (std::size_t who = 0; who < 2; ++who) {
    const Spread speed = spread(ratios(samples.seconds[2], samples.seconds[who]));
    Report::show(speed, 1, 20);
    report.verdicts().at_least(std::string(who == 0 ? "" : "over TCP, ") + "of the speed of Gloo's ring, " +
                                   (is_small ? "up to 64 KiB" : "beyond 64 KiB"),
                               row + (samples.noisy ? " (noisy)" : ""), speed.median, is_small ? 1.5 : 1);
  }
  std::printf("%s\n", samples.noisy ? "NOISY" : "");
  std::fflush(stdout);
  report.record(row, contenders, samples);
}

void run(Report& report) {
  constexpr std::int64_t kMostKib = 64 << 10;
  // All processes are made before there is any thread.
  std::vector<std::unique_ptr<Team>> teams;
  for (const int size : {2, 4})
    teams.push_back(std::make_unique<Team>(
        size, kMostKib * 256, std::vector<MakeExchanger>{make_lockstep, make_connected, make_gloo_ring}));
  std::printf("all-reduce of f32 over processes, in place: us an operation, median [q1..q3]\n");
  std::printf("%-9s%-28s %-28s %-28s %-20s %s\n", "", "Lockstep", "over TCP", "Gloo's ring",
              "of the ring's speed", "over TCP");
  for (const auto& team : teams) {
    team->connect();
    for (std::int64_t kib = 1; kib <= kMostKib; kib *= report.is_quick() ? 16 : 4)
      measure(report, *team, kib);
  }
  report.finish();
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Report report(argc, argv, "bench_exchange");
  try {
    lockstep::bench::run(report);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_exchange: %s\n", error.what());
    return 1;
  }
  return 0;
}

// tools/profile.cpp - lockstep profile: many runs of a graph, and where their time goes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <vector>

#include "commands.h"
#include "graph_input.h"
#include "lockstep/io/traces/device_rates.h"
#include "lockstep/io/traces/trace.h"
#include "lockstep/io/traces/trace_summary.h"
#include "progress.h"
#include "runner.h"

namespace lockstep::tools {

namespace {

double seconds_of_run(const Runner& runner, Observer* observer) {
  const auto start = std::chrono::steady_clock::now();
  runner.run(observer);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_times(std::vector<double> seconds) {
  std::ranges::sort(seconds);
  const bool is_long = seconds[seconds.size() / 2] >= 1e-3;
  const auto at = [&](double share) {
    const auto place = std::lround(share * static_cast<double>(seconds.size() - 1));
    return seconds[static_cast<std::size_t>(place)] * (is_long ? 1e3 : 1e6);
  };
  std::cout << std::fixed << std::setprecision(3) << (is_long ? "milliseconds" : "microseconds")
            << " a run: least " << at(0) << ", median " << at(0.5) << ", 90% below " << at(0.9) << ", most "
            << at(1) << " (" << seconds.size() << " runs, not traced)\n";
}

void print_plan(const PlanSummary& plan) {
  std::cout << "plan: " << plan.nodes << " nodes, " << plan.calls << " kernel calls in " << plan.clusters
            << " clusters on up to " << plan.lanes << " threads, " << plan.planned_bytes
            << " bytes for intermediate values\n";
  std::size_t calls = 0, recorded = 0;
  for (const SegmentSummary& segment : plan.segments) {
    calls += segment.calls;
    if (segment.records) recorded += segment.calls;
  }
  if (calls > 0) std::cout << "on streams of devices: " << calls << " calls";
  if (recorded > 0) {
    std::cout << ", " << recorded
              << " of them replayed as recordings; the times below are of runs that put each there by itself";
  }
  if (calls > 0) std::cout << '\n';
  std::cout << '\n';
}

RateOptions rate_options(const ProfileCommand& command) {
  RateOptions options;
  options.allow_tf32 = command.settings.allow_tf32;
  options.bytes_per_second = 1e9 * static_cast<double>(command.copy_rate);
  options.flops_per_second = 1e9 * static_cast<double>(command.peak);
  options.measure = !command.no_measure;
  return options;
}

}  // namespace

int run_command(const ProfileCommand& command) {
  if (command.settings.trace == "-")
    throw UsageError("profile: --trace: the summary goes to standard output: name a file for the trace");
  const Runner runner(command.settings);
  std::vector<double> seconds;
  TraceRecorder recorder;
  {
    // Timed first without an observer, then traced.
    Progress progress("run", command.warmup + 2 * command.runs);
    for (std::uint64_t i = 0; i < command.warmup + command.runs; ++i) {
      progress.at(i + 1);
      const double took = seconds_of_run(runner, nullptr);
      if (i >= command.warmup) seconds.push_back(took);
    }
    for (std::uint64_t i = 0; i < command.runs; ++i) {
      progress.at(command.warmup + command.runs + i + 1);
      runner.run(&recorder);
    }
  }
  const Trace trace = recorder.trace();
  print_times(std::move(seconds));
  print_plan(runner.plan());
  std::vector<DeviceRates> rates;
  const RateOptions options = rate_options(command);
  if (options.measure || options.bytes_per_second > 0 || options.flops_per_second > 0)
    rates = measure_rates(runner.runtime(), trace, options);
  std::cout << to_text(summarize(trace, rates), {.max_nodes = command.nodes});
  if (!command.settings.trace.empty()) write_output(command.settings.trace, to_chrome_trace(trace));
  return kSuccess;
}

}  // namespace lockstep::tools

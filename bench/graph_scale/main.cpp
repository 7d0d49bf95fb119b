// bench/graph_scale - does work on graphs grow no faster than the graphs?
//
//   bench_graph_scale [--quick] [--json FILE]        --quick: without the 10^6
//
// Method and targets: bench/README.md. Exit status: 0, also where targets are missed; 2 for a wrong argument.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "operations.h"
#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {
namespace {

struct Size {
  std::size_t nodes;
  int repeats;
};
constexpr std::array<Size, 3> kSizes = {{{10'000, 9}, {100'000, 5}, {1'000'000, 3}}};

double limit_of(const std::string& operation) {
  return operation == "print" || operation == "parse" ? 4.0 : 1.5;
}

const Timing* find(const Measured& measured, const std::string& operation) {
  const auto place = std::find_if(measured.timings.begin(), measured.timings.end(),
                                  [&](const Timing& timing) { return timing.operation == operation; });
  return place == measured.timings.end() ? nullptr : &*place;
}

int bench_main(int argc, char** argv) {
  std::size_t sizes = kSizes.size();
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      sizes = 2;
    } else if (flag == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "cannot use %s\nbench_graph_scale [--quick] [--json FILE]\n", flag.c_str());
      return 2;
    }
  }

  keep_freed_memory();
  std::vector<Measured> ours;
  std::vector<Measured> rivals;
  for (std::size_t s = 0; s < sizes; ++s) {
    rivals.push_back(measure_taskflow(kSizes[s].nodes, kSizes[s].repeats));
    ours.push_back(measure_lockstep(kSizes[s].nodes, kSizes[s].repeats));
  }

  Verdicts verdicts;
  std::string cells;
  std::printf(
      "ns a node, in CPU time, the best of a few (Taskflow beside, where it has such an operation)\n  %-34s",
      "");
  for (std::size_t s = 0; s < sizes; ++s) std::printf(" %10zu %10s", kSizes[s].nodes, "Taskflow");
  std::printf(" %12s %10s\n", "largest, s", "exponent");
  for (const Timing& timing : ours.front().timings) {
    std::printf("  %-34s", timing.operation.c_str());
    std::vector<double> seconds;
    for (std::size_t s = 0; s < sizes; ++s) {
      const auto nodes = static_cast<double>(kSizes[s].nodes);
      seconds.push_back(find(ours[s], timing.operation)->seconds);
      std::printf(" %10.0f", seconds.back() * 1e9 / nodes);
      const Timing* rival = find(rivals[s], timing.operation);
      if (rival == nullptr) {
        std::printf(" %10s", "");
      } else {
        std::printf(" %10.0f", rival->seconds * 1e9 / nodes);
      }
      char line[256];
      std::snprintf(line, sizeof line, R"(%s{"operation": "%s", "nodes": %zu, "seconds": %.6f})",
                    cells.empty() ? "\n  " : ",\n  ", timing.operation.c_str(), kSizes[s].nodes,
                    seconds.back());
      cells += line;
    }
    const double exponent = std::log10(seconds[sizes - 1] / seconds[sizes - 2]);  // sizes grow by ten
    std::printf(" %12.3f %10.2f\n", seconds.back(), exponent);
    verdicts.at_most("exponent, last tenfold growth", timing.operation, exponent, 1.15);
    if (sizes == kSizes.size()) {
      const bool text = limit_of(timing.operation) > 2;
      verdicts.at_most(text ? "seconds at 10^6 nodes, print and parse" : "seconds at 10^6 nodes",
                       timing.operation, seconds.back(), limit_of(timing.operation));
    }
  }
  std::printf("  %-34s", "live heap, bytes a node");
  for (std::size_t s = 0; s < sizes; ++s)
    std::printf(" %10.0f %10.0f", ours[s].bytes_a_node, rivals[s].bytes_a_node);
  std::printf("\n");
  verdicts.at_most("bytes a node", "", ours.back().bytes_a_node, 400);
  verdicts.print();
  if (!json.empty()) {
    std::ofstream(json) << "{\"cells\": [" << cells << "\n],\n\"targets\": " << verdicts.json() << "}\n";
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::bench_main(argc, argv); }

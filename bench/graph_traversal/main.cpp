// bench/graph_traversal - what it costs to walk a graph: Lockstep beside its rivals, in one run.
//
//   bench_graph_traversal [--quick] [--shape NAME] [--body short|long] [--workers 1|2] [--rounds N] [--json FILE]
//
// Method and targets: bench/README.md. Exit status: 0, also where targets are missed; 2 for a wrong argument.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rival.h"
#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {
namespace {

enum Who : std::size_t { kSequential, kTaskflow, kTbb, kTbbLight, kLockstep, kRivals };
constexpr std::array<const char*, kRivals> kNames = {"sequential", "Taskflow", "oneTBB", "oneTBB light",
                                                     "Lockstep"};
// The shapes on which two threads can help as much as there are nodes for them.
constexpr std::array<const char*, 4> kWide = {"independent", "layered", "wavefront", "overlapped"};

struct Arguments {
  std::string shape;
  std::optional<BodyKind> body;
  std::size_t workers = 0;  // 0: 1 and 2
  std::size_t rounds = 15;
  double slice_seconds = 0.010;
  std::string json;
};

struct Cell {
  Samples samples;
  double nodes = 1;
  Spread per_node(Who who) const {
    std::vector<double> values = samples.seconds[who];
    for (double& value : values) value *= 1e9 / nodes;
    return spread(std::move(values));
  }
  Spread ratio(Who a, Who b) const { return spread(ratios(samples.seconds[a], samples.seconds[b])); }
  double excess_per_node() const {
    return spread(differences(samples.seconds[kLockstep], samples.seconds[kSequential])).median * 1e9 / nodes;
  }
};

std::unique_ptr<Rival> make_rival(Who who, std::size_t workers) {
  switch (who) {
    case kSequential: return make_sequential();
    case kTaskflow: return make_taskflow(workers);
    case kTbb: return make_tbb_flow(workers);
    case kTbbLight: return make_tbb_flow_lightweight(workers);
    default: return make_lockstep(workers);
  }
}

const char* name_of(BodyKind body) { return body == BodyKind::kShort ? "10 ns" : "1 us"; }

void check_slots(const Shape& shape, const std::vector<Slot>& slots, const char* rival) {
  for (const Slot& slot : slots) {
    if (slot.value != slots.front().value || slot.value == Slot().value) {
      std::fprintf(stderr, "%s, %s: some node did not run as often as the others\n", rival,
                   shape.name.c_str());
      std::exit(1);
    }
  }
}

class Bench {
 public:
  explicit Bench(const Arguments& arguments)
      : arguments_(arguments),
        sampler_({.rounds = arguments.rounds,
                  .slice_seconds = arguments.slice_seconds,
                  .patience = arguments.rounds,
                  .total_patience = 8 * arguments.rounds}) {
    for (Shape& shape : all_shapes()) {
      if (arguments.shape.empty() || arguments.shape == shape.name) shapes_.push_back(std::move(shape));
    }
  }

  bool has_shapes() const { return !shapes_.empty(); }

  void run() {
    long_steps_ = calibrate_long_steps();
    std::printf("bodies: short %.1f ns in a loop over std::function; long %llu multiply-adds, 1 us\n",
                measure_short_body(), static_cast<unsigned long long>(long_steps_));
    // First, while no pool holds memory to give again.
    measure_building();
    for (const BodyKind body : {BodyKind::kShort, BodyKind::kLong}) {
      if (arguments_.body.value_or(body) != body) continue;
      for (const std::size_t workers : {std::size_t{1}, std::size_t{2}}) {
        if (arguments_.workers == 0 || arguments_.workers == workers) measure_running(body, workers);
      }
    }
    print_building();
    std::printf("\nrounds: %zu kept, %zu discarded because other processes ran", sampler_.kept(),
                sampler_.discarded());
    if (sampler_.noisy() > 0) {
      std::printf("; %zu of those kept are NOISY: too many were disturbed, the quietest stand in",
                  sampler_.noisy());
    }
    std::printf("\n");
    verdicts_.print();
    if (!arguments_.json.empty()) {
      std::ofstream(arguments_.json) << "{\"cells\": [" << json_ << "\n],\n\"targets\": " << verdicts_.json()
                                     << "}\n";
    }
  }

 private:
  struct Building {
    std::string shape;
    double taskflow_ns = 0, builder_ns = 0, compile_ns = 0;  // a node
    double taskflow_bytes = 0, lockstep_bytes = 0;           // a node
  };

  // The fastest of a few, each into fresh objects that live on: no pool helps the later ones.
  void measure_building() {
    const Body body{BodyKind::kShort, long_steps_};
    for (const Shape& shape : shapes_) {
      if (shape.nodes() == 1) continue;
      Building building{shape.name, 1e9, 1e9, 1e9, 0, 0};
      const auto nodes = static_cast<double>(shape.nodes());
      std::vector<Slot> slots(shape.nodes());
      std::vector<std::unique_ptr<Rival>> rivals;
      for (int trial = 0; trial < 3; ++trial) {
        for (const Who who : {kTaskflow, kLockstep}) {
          rivals.push_back(make_rival(who, 1));
          const std::size_t before = live_heap_bytes();
          const BuildTimes times = rivals.back()->build(shape, body, slots);
          const double bytes = static_cast<double>(live_heap_bytes() - before) / nodes;
          if (who == kTaskflow) {
            building.taskflow_ns = std::min(building.taskflow_ns, times.build * 1e9 / nodes);
            building.taskflow_bytes = std::max(building.taskflow_bytes, bytes);
          } else {
            building.builder_ns = std::min(building.builder_ns, times.build * 1e9 / nodes);
            building.compile_ns = std::min(building.compile_ns, times.compile * 1e9 / nodes);
            building.lockstep_bytes = std::max(building.lockstep_bytes, bytes);
          }
        }
      }
      buildings_.push_back(building);
    }
  }

  void print_building() const {
    if (buildings_.empty()) return;
    std::printf("\nBuilding, ns a node and bytes a node (on the heap, after building)\n");
    std::printf("  %-12s %10s %10s %10s %10s   %10s %10s\n", "", "Taskflow", "Lockstep", "= builder",
                "+ compile", "Taskflow B", "Lockstep B");
    for (const Building& b : buildings_) {
      std::printf("  %-12s %10.0f %10.0f %10.0f %10.0f   %10.0f %10.0f\n", b.shape.c_str(), b.taskflow_ns,
                  b.builder_ns + b.compile_ns, b.builder_ns, b.compile_ns, b.taskflow_bytes,
                  b.lockstep_bytes);
    }
  }

  void measure_running(BodyKind kind, std::size_t workers) {
    std::printf("\n%s bodies, %zu worker%s: ns a node (one: ns a run), median [quartiles]\n", name_of(kind),
                workers, workers == 1 ? "" : "s");
    std::printf("  %-12s", "");
    for (const char* name : kNames) std::printf(" %-22s", name);
    std::printf(" %-19s %-19s %s\n", "L/Taskflow", "L/oneTBB light",
                kind == BodyKind::kShort ? "L-seq, ns" : "speed-up: Taskflow oneTBB light Lockstep");
    std::array<std::unique_ptr<Rival>, kRivals> rivals;
    for (std::size_t who = 0; who < kRivals; ++who) rivals[who] = make_rival(static_cast<Who>(who), workers);

    for (const Shape& shape : shapes_) {
      const Body body{kind, long_steps_};
      std::vector<std::vector<Slot>> slots(kRivals, std::vector<Slot>(shape.nodes()));
      std::vector<Contender> contenders;
      for (std::size_t who = 0; who < kRivals; ++who) {
        rivals[who]->build(shape, body, slots[who]);
        contenders.push_back({kNames[who], [&rival = *rivals[who]](std::size_t times) { rival.run(times); }});
      }
      Cell cell{sampler_.alternate(contenders), static_cast<double>(shape.nodes())};
      for (std::size_t who = 0; who < kRivals; ++who) check_slots(shape, slots[who], kNames[who]);
      print(cell, shape, kind, rivals[kLockstep]->remark());
      judge(cell, shape, kind, workers);
      record(cell, shape, kind, workers);
    }
  }

  static void print(const Cell& cell, const Shape& shape, BodyKind kind, const std::string& remark) {
    const auto show = [](const Spread& s, int width, int digits) {
      char text[64];
      std::snprintf(text, sizeof text, "%.*f [%.*f..%.*f]", digits, s.median, digits, s.q1, digits, s.q3);
      std::printf(" %-*s", width, text);
    };
    std::printf("  %-12s", shape.name.c_str());
    for (std::size_t who = 0; who < kRivals; ++who) show(cell.per_node(static_cast<Who>(who)), 22, 1);
    show(cell.ratio(kLockstep, kTaskflow), 19, 2);
    show(cell.ratio(kLockstep, kTbbLight), 19, 2);
    if (kind == BodyKind::kShort) {
      std::printf(" %+.1f", cell.excess_per_node());
    } else {
      for (const Who who : {kTaskflow, kTbb, kTbbLight, kLockstep}) {
        std::printf(" %.2f", cell.ratio(kSequential, who).median);
      }
    }
    std::printf("  %s%s\n", remark.c_str(), cell.samples.noisy ? "  NOISY" : "");
    std::fflush(stdout);
  }

  void judge(const Cell& cell, const Shape& shape, BodyKind kind, std::size_t workers) {
    const std::string where =
        shape.name + "/" + std::to_string(workers) + (cell.samples.noisy ? " (noisy)" : "");
    const double speed_up = cell.ratio(kSequential, kLockstep).median;
    if (shape.name == "one" && kind == BodyKind::kShort) {
      verdicts_.at_most("one-node program, us a run", where, cell.per_node(kLockstep).median * 1e-3, 0.5);
    } else if (kind == BodyKind::kShort) {
      verdicts_.at_most("10 ns bodies: of Taskflow's time", where, cell.ratio(kLockstep, kTaskflow).median,
                        0.35);
      verdicts_.at_most("10 ns bodies: of lightweight oneTBB's time", where,
                        cell.ratio(kLockstep, kTbbLight).median, 0.45);
      verdicts_.at_most("10 ns bodies: ns a node above sequential", where, cell.excess_per_node(), 6);
    } else if (workers == 2) {
      if (std::find(kWide.begin(), kWide.end(), shape.name) != kWide.end()) {
        verdicts_.at_least("1 us bodies, 2 workers: speed-up, wide shapes", where, speed_up, 1.85);
      }
      if (shape.name == "gated") {
        verdicts_.at_least("1 us bodies, 2 workers: speed-up, gated replicas", where, speed_up, 1.45);
      }
      if (shape.name == "chain") {
        verdicts_.at_most("1 us bodies, 2 workers: chain, of sequential", where, 1 / speed_up, 1.03);
      }
      for (const Who who : {kTaskflow, kTbb, kTbbLight}) {
        verdicts_.at_most("1 us bodies, 2 workers: of the best rival's time", where + " " + kNames[who],
                          cell.ratio(kLockstep, who).median, 1);
      }
    }
  }

  void record(const Cell& cell, const Shape& shape, BodyKind kind, std::size_t workers) {
    for (std::size_t who = 0; who < kRivals; ++who) {
      const Spread s = cell.per_node(static_cast<Who>(who));
      char line[512];
      std::snprintf(
          line, sizeof line,
          R"(%s{"shape": "%s", "body": "%s", "workers": %zu, "rival": "%s", "ns_a_node": [%.3f, %.3f, %.3f], )"
          R"("discarded": %zu, "noisy": %s})",
          json_.empty() ? "\n  " : ",\n  ", shape.name.c_str(), name_of(kind), workers, kNames[who], s.q1,
          s.median, s.q3, cell.samples.discarded, cell.samples.noisy ? "true" : "false");
      json_ += line;
    }
  }

  Arguments arguments_;
  Sampler sampler_;
  std::vector<Shape> shapes_;
  std::uint64_t long_steps_ = 0;
  std::vector<Building> buildings_;
  Verdicts verdicts_;
  std::string json_;
};

int usage(const char* what) {
  std::fprintf(stderr,
               "%s\nbench_graph_traversal [--quick] [--shape chain|independent|wavefront|tree|layered|gated|"
               "overlapped|one]\n    [--body short|long] [--workers 1|2] [--rounds N] [--json FILE]\n",
               what);
  return 2;
}

int bench_main(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      arguments.rounds = 5;
      arguments.slice_seconds = 0.005;
      continue;
    }
    if (i + 1 == argc) return usage("a flag lacks its value, or is unknown");
    const std::string value = argv[++i];
    if (flag == "--shape") {
      arguments.shape = value;
    } else if (flag == "--body" && (value == "short" || value == "long")) {
      arguments.body = value == "short" ? BodyKind::kShort : BodyKind::kLong;
    } else if (flag == "--workers" && (value == "1" || value == "2")) {
      arguments.workers = value == "1" ? 1 : 2;
    } else if (flag == "--rounds" && std::atoi(value.c_str()) > 0) {
      arguments.rounds = static_cast<std::size_t>(std::atoi(value.c_str()));
    } else if (flag == "--json") {
      arguments.json = value;
    } else {
      return usage(("cannot use " + flag + " " + value).c_str());
    }
  }
  Bench bench(arguments);
  if (!bench.has_shapes()) return usage(("no shape is called " + arguments.shape).c_str());
  bench.run();
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::bench_main(argc, argv); }

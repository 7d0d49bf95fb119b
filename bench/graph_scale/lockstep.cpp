#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "layers.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "operations.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kSources = 8;     // placeholders, and constants
constexpr std::size_t kWorkEvery = 12;  // one node in so many is work for a pass

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "bench_graph_scale: %s\n", what);
  std::exit(1);
}

Graph build(std::size_t n, bool with_work) {
  GraphBuilder builder;
  std::vector<Value> sources;
  std::vector<Value> constants;
  for (std::size_t s = 0; s < kSources; ++s) {
    sources.push_back(builder.placeholder("x" + std::to_string(s), DType::kF32, {4}));
    constants.push_back(
        builder.constant(Tensor::full(DType::kF32, {4}, static_cast<double>(s)), "c" + std::to_string(s)));
  }
  Layers layers;
  std::vector<Value> made;
  made.reserve(n);
  for (std::size_t k = 0; k < n; ++k) {
    if (!Layers::has_inputs(k)) {
      made.push_back(add(sources[k % kSources], constants[k / kSources % kSources]));
      continue;
    }
    const auto [a, b] = layers.inputs(k);
    if (!with_work || k % kWorkEvery != 0) {
      made.push_back(add(made[a], made[b]));
      continue;
    }
    switch (k / kWorkEvery % 4) {
      case 0:  // an identity
        made.push_back(identity(made[a]));
        break;
      case 1:  // known beforehand
        made.push_back(add(constants[k % kSources], constants[k / kSources % kSources]));
        break;
      case 2:  // the same twice
        made.push_back(add(made[a], made[b]));
        made.back() = add(made.back(), add(made[a], made[b]));
        break;
      default:  // read by nobody
        made.push_back(made[a]);
        add(made[a], made[b]);
    }
  }
  for (std::size_t k = n - std::min(n, Layers::kWidth); k < n; ++k) builder.result(made[k]);
  return builder.finish();
}

// The best of some trials; `prepare` runs before each, outside the clock.
double best_of(int repeats, const std::function<void()>& prepare, const std::function<void()>& run) {
  double best = 1e9;
  for (int trial = 0; trial < repeats; ++trial) {
    prepare();
    const double begin = cpu_now();
    run();
    best = std::min(best, cpu_now() - begin);
  }
  return best;
}

}  // namespace

Measured measure_lockstep(std::size_t n, int repeats) {
  Measured measured;
  const auto note = [&](const char* operation, const std::function<void()>& prepare,
                        const std::function<void()>& run) {
    measured.timings.push_back({operation, best_of(repeats, prepare, run)});
  };
  const auto nothing = [] {};

  const std::size_t before = live_heap_bytes();
  std::optional<Graph> graph;
  note(
      "build", [&] { graph.reset(); }, [&] { graph = build(n, false); });
  measured.bytes_a_node =
      static_cast<double>(live_heap_bytes() - before) / static_cast<double>(graph->size());

  std::optional<Graph> other;
  note(
      "clone", [&] { other.reset(); }, [&] { other = *graph; });
  note("verify", nothing, [&] { verify(*graph); });
  std::string text;
  note(
      "print", [&] { text = {}; }, [&] { text = print(*graph); });
  note(
      "parse", [&] { other.reset(); }, [&] { other = parse(text); });
  std::uint64_t hash = 0;
  note("structural hash", nothing, [&] { hash = structural_hash(*graph); });
  bool same = false;
  note("same structure", nothing, [&] { same = same_structure(*graph, *other); });
  require(same && hash == structural_hash(*other), "a graph does not come back from its text");

  graph = build(n, true);
  for (const char* name : {"dead-node-elimination", "common-subexpression-elimination", "constant-folding",
                           "identity-removal"}) {
    const std::unique_ptr<Pass> pass = PassRegistry::global().make(name);
    PassContext context;
    PassOutcome outcome = PassOutcome::kUnchanged;
    note(
        name, [&] { other = *graph; }, [&] { outcome = pass->run(*other, context); });
    require(outcome == PassOutcome::kChanged, "a pass found nothing to do");
  }
  return measured;
}

}  // namespace lockstep::bench

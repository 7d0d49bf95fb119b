// bench/pipeline_scale - does distributing a step grow no faster than the step?
//
//   bench_pipeline_scale [--quick] [--json FILE]        --quick: one trial of each, without the fully checked runs
//
// Method and targets: bench/README.md. Exit status: 0, also where targets are missed; 2 for a wrong argument.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/mirrored.h"
#include "support/measure.h"
#include "support/verdict.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kReplicas = 8;
constexpr std::size_t kTheStep = 100'000;  // nodes of the step that has to be distributed in time
constexpr std::size_t kSmallest = 12'500;  // about 10^5 nodes for 8 replicas, and the largest makes 10^6
constexpr std::size_t kLargest = 143'000;

// A deep MLP's training step of about so many nodes: matrices and biases of their own in each layer, relu,
// mean square error, gradients, SGD.
Graph make_step(std::size_t nodes) {
  constexpr std::int64_t kWidth = 4;
  constexpr std::size_t kNodesALayer = 12;
  GraphBuilder builder;
  std::vector<std::vector<Value>> inputs_of_all(2);
  for (std::size_t r = 0; r < kReplicas; ++r) {
    const auto replica = static_cast<std::int64_t>(r);
    inputs_of_all[0].push_back(builder.placeholder(copy_name("x", replica), DType::kF32, {kUnknown, kWidth}));
    inputs_of_all[1].push_back(builder.placeholder(copy_name("y", replica), DType::kF32, {kUnknown, kWidth}));
  }
  const Tensor weights = Tensor::full(DType::kF32, {kWidth, kWidth}, 0.25);
  const Tensor bias = Tensor::zeros({kWidth});
  std::vector<VariableRef> variables;  // a layer's weights, its bias, the next one's weights, ...
  for (std::size_t layer = 0; layer < nodes / kNodesALayer; ++layer) {
    variables.push_back(builder.variable("w" + std::to_string(layer), weights));
    variables.push_back(builder.variable("b" + std::to_string(layer), bias));
  }
  const auto losses = replicated(
      builder, kReplicas, {}, inputs_of_all, [&](std::span<const Value> inputs) -> std::vector<Value> {
        GraphBuilder& inner = inputs[0].builder();
        Value h = inputs[0];
        for (std::size_t i = 0; i < variables.size(); i += 2)
          h = relu(matmul(h, inner.read(variables[i])) + inner.read(variables[i + 1]));
        Value loss = global_mean(square(h - inputs[1]));
        Sgd(0.05).minimize(loss, variables);
        return {loss};
      });
  for (const Value& loss : losses[0]) builder.result(loss);
  return builder.finish();
}

struct Trial {
  double seconds = 0;  // CPU time of the whole pipeline
  std::size_t nodes = 0;
  std::vector<PassReport> passes;
};

// The best of some runs.
Trial distribute(const Strategy& strategy, const Graph& step, PipelineChecks checks, int repeats) {
  Trial best;
  for (int i = 0; i < repeats; ++i) {
    Graph graph = step;
    PassPipeline pipeline = strategy.pipeline();
    PassContext context{&strategy.runtime().topology()};
    const double begin = cpu_now();
    PipelineReport report = pipeline.run(graph, context, {.verify = checks});
    const double seconds = cpu_now() - begin;
    if (i > 0 && seconds >= best.seconds) continue;
    best = {seconds, report.passes.back().nodes_after, std::move(report.passes)};
  }
  return best;
}

struct Row {
  std::size_t step_nodes;
  Trial unchecked, as_users, checked;
};

double exponent(const Trial& small, const Trial& large) {
  return std::log(large.seconds / small.seconds) /
         std::log(static_cast<double>(large.nodes) / static_cast<double>(small.nodes));
}

std::string json_of(const Row& row) {
  std::string passes;
  for (const PassReport& pass : row.unchecked.passes) {
    char line[160];
    std::snprintf(line, sizeof line, R"(%s"%s": %.6f)", passes.empty() ? "" : ", ", pass.name.c_str(),
                  pass.seconds);
    passes += line;
  }
  char line[256];
  std::snprintf(
      line, sizeof line,
      R"({"step_nodes": %zu, "nodes": %zu, "unchecked": %.6f, "default": %.6f, "checked": %.6f, "passes": {)",
      row.step_nodes, row.as_users.nodes, row.unchecked.seconds, row.as_users.seconds, row.checked.seconds);
  return line + passes + "}}";
}

int bench_main(int argc, char** argv) {
  int repeats = 3;
  bool quick = false;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--quick") {
      quick = true;
      repeats = 1;
    } else if (flag == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else {
      std::fprintf(stderr, "cannot use %s\nbench_pipeline_scale [--quick] [--json FILE]\n", flag.c_str());
      return 2;
    }
  }

  keep_freed_memory();
  std::vector<std::string> devices;
  for (std::size_t r = 0; r < kReplicas; ++r) devices.push_back("cpu:" + std::to_string(r));
  const MirroredStrategy strategy({.devices = devices});
  std::vector<Row> rows;
  for (const std::size_t nodes : {kSmallest, kTheStep, kLargest}) {
    const Graph step = make_step(nodes);
    Row row{.step_nodes = count_nodes(step), .unchecked = {}, .as_users = {}, .checked = {}};
    row.unchecked = distribute(strategy, step, PipelineChecks::kNever, repeats);
    row.as_users = distribute(strategy, step, strategy.options().base.checks, repeats);
    if (!quick) row.checked = distribute(strategy, step, PipelineChecks::kAlways, repeats);
    rows.push_back(std::move(row));
  }

  std::printf("seconds of CPU time, the best of %d, for %zu replicas\n  %-40s", repeats, kReplicas,
              "nodes of the step");
  const auto line = [&](const char* what, auto figure) {
    std::printf("\n  %-40s", what);
    for (const Row& row : rows) std::printf(" %10.3f", figure(row));
  };
  for (const Row& row : rows) std::printf(" %10zu", row.step_nodes);
  std::printf("\n  %-40s", "nodes in the end");
  for (const Row& row : rows) std::printf(" %10zu", row.as_users.nodes);
  for (std::size_t p = 0; p < rows[0].unchecked.passes.size(); ++p)
    line(rows[0].unchecked.passes[p].name.c_str(),
         [p](const Row& row) { return row.unchecked.passes[p].seconds; });
  line("all, unchecked", [](const Row& row) { return row.unchecked.seconds; });
  line("all, checked as by default", [](const Row& row) { return row.as_users.seconds; });
  if (!quick) line("all, checked after each pass", [](const Row& row) { return row.checked.seconds; });
  std::printf("\n\n");

  Verdicts verdicts;
  verdicts.at_most("a step of 100,000 nodes, as by default, s", "", rows[1].as_users.seconds, 4);
  verdicts.at_most("exponent, as by default", "", exponent(rows[0].as_users, rows[2].as_users), 1.15);
  verdicts.at_most("exponent, unchecked", "", exponent(rows[0].unchecked, rows[2].unchecked), 1.15);
  verdicts.print();
  if (!json.empty()) {
    std::string cells;
    for (const Row& row : rows) cells += (cells.empty() ? "\n  " : ",\n  ") + json_of(row);
    std::ofstream(json) << "{\"cells\": [" << cells << "\n],\n\"targets\": " << verdicts.json() << "}\n";
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::bench_main(argc, argv); }

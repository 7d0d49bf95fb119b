// graph/transform/bisect.h - bisection by meaning: which pass changed what the graph computes?
//
//   BisectReport report = bisect(graph, pipeline, {.feeds = {{"x", x}}});
//   if (report.found) std::cerr << report.found->to_string() << '\n';
//   // fuse-scales: result 0 differs in element 5: 3.25 before, 3.5 after (step 0)
//
// The graph is interpreted before the first pass and after each, on the same feeds, from the same state and
// seed; the report names the first pass after which a result or a variable differs. A pass after which the
// graph can no longer run counts too. Everything that the pipeline itself checks is checked as well.
// Thread safety: one thread at a time per pipeline; the graph is only read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/pipeline.h"

namespace lockstep {

struct BisectOptions {
  Interpreter::Feeds feeds = {};
  std::uint64_t seed = 0;
  // Runs of the graph, each from the state that the previous one left.
  int steps = 1;
  // 0: bits must agree. Else elements a and b agree if |a - b| <= tolerance * max(1, |a|, |b|), or if both
  // are NaN.
  double tolerance = 0;
};

struct Difference {
  std::string what;           // "result 0", "variable 'w'"
  std::int64_t element = -1;  // the first one that differs; -1: specs differ, or the run failed
  std::string before;         // that element, or the spec
  std::string after;          // that element, or the spec, or the error
  int step = 0;
};

struct BisectFinding {
  std::string pass;
  std::size_t index = 0;  // position of the pass in the pipeline
  Difference difference;
  LOCKSTEP_API std::string to_string() const;
};

struct BisectReport {
  std::optional<BisectFinding> found;  // absent: every pass kept the meaning
  PipelineReport pipeline;
};

// The caller's graph is not changed. Throws what the pipeline throws, and what running the original graph
// throws.
LOCKSTEP_API BisectReport bisect(const Graph& graph, PassPipeline& pipeline,
                                 const BisectOptions& options = {});
// The first difference between two tensors, or none.
LOCKSTEP_API std::optional<Difference> first_difference(const Tensor& before, const Tensor& after,
                                                        double tolerance = 0);

}  // namespace lockstep

// graph/transform/pipeline.h - passes in order, each held to its contract.
//
//   PassPipeline pipeline = PassRegistry::global().parse_pipeline("constant-folding,dead-node-elimination");
//   PassContext context;
//   PipelineReport report = pipeline.run(graph, context);
//
// The graph is verified before the first pass and after each; the outcome that a pass claims is compared with
// what happened to the graph's structure. A failure in a pass surfaces as a PassError that names the pass:
// "after insert-all-reduce: ..." if it broke its contract. Passes work on a copy, which moves into place at
// the end: on failure the caller's graph is unchanged (the copy costs about as much as one cheap pass).
// PipelineChecks::kEnds checks only before the first and after the last pass, and still names the pass at
// fault.
//
// Thread safety: one thread at a time per pipeline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct PassReport {
  std::string name;
  PassOutcome outcome = PassOutcome::kUnchanged;
  double seconds = 0;            // of the pass itself
  std::size_t nodes_before = 0;  // those inside regions included
  std::size_t nodes_after = 0;
};

struct PipelineReport {
  PassOutcome outcome = PassOutcome::kUnchanged;  // kChanged if any pass changed the graph
  double seconds = 0;                             // of everything, checks and the copy included
  std::vector<PassReport> passes;
};

// Sees each pass before and after it runs: dumps, timings, bisection. Hooks may throw, which ends the run.
class LOCKSTEP_API PassInstrumentation {
 public:
  virtual ~PassInstrumentation();
  virtual void before_pass(const Pass& pass, const Graph& graph, std::size_t index);
  virtual void after_pass(const Pass& pass, const Graph& graph, std::size_t index, const PassReport& report);
  // Gets the graph as the pass left it, which may break any rule.
  virtual void pass_failed(const Pass& pass, const Graph& graph, std::size_t index,
                           const std::exception& error);
};

enum class PipelineChecks : std::uint8_t {
  kAlways,  // verify before and after each pass, and check claimed outcomes: about doubles the cost
  // Verify before the first pass and after the last. If that fails, the passes run again on the original
  // graph, each of them checked, so that the error names the one at fault (instrumentation sees the second
  // run too, from index 0 on). The outcome that a pass claims is trusted.
  kEnds,
  kNever,  // trust the passes
};
// What strategies and optimize() do by default: kAlways in a library built without NDEBUG, as for tests, and
// kEnds in a release.
LOCKSTEP_API PipelineChecks default_checks() noexcept;

struct PipelineOptions {
  PipelineChecks verify = PipelineChecks::kAlways;
  // Called in this order; they must outlive the run.
  std::vector<PassInstrumentation*> instrumentation = {};
};

class LOCKSTEP_API PassPipeline {
 public:
  PassPipeline();
  ~PassPipeline();
  PassPipeline(PassPipeline&&) noexcept;
  PassPipeline& operator=(PassPipeline&&) noexcept;

  PassPipeline& add(std::unique_ptr<Pass> pass);  // throws InvalidArgument for null
  PassPipeline& append(PassPipeline other);       // all passes of another pipeline
  std::size_t size() const;
  const Pass& pass(std::size_t index) const;

  // Throws VerifyError if the graph is invalid to begin with, PassError for every later failure.
  PipelineReport run(Graph& graph, PassContext& context, const PipelineOptions& options = {});
  PipelineReport run(Graph& graph, const PipelineOptions& options = {});

  // "constant-folding(max_bytes=1MiB),dead-node-elimination": parses back to an equal pipeline.
  std::string to_string() const;

 private:
  // After the pass of that number has failed: throws an error that names the earlier pass that left the graph
  // invalid, if there is one.
  void blame_earlier(std::size_t failed, const Graph& original, const PassContext& given,
                     const std::vector<PassInstrumentation*>& instrumentation);
  // Verifies the graph that the passes made; throws an error that names the pass at fault.
  void check_end(const Graph& made, const Graph& original, PassContext& context,
                 const std::vector<PassInstrumentation*>& instrumentation);

  std::vector<std::unique_ptr<Pass>> passes_;
};

// Nodes of a graph, those inside regions included.
LOCKSTEP_API std::size_t count_nodes(const Graph& graph);

}  // namespace lockstep

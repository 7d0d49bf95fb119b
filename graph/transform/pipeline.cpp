// graph/transform/pipeline.cpp - passes in order, each held to its contract.
#include "lockstep/graph/transform/pipeline.h"

#include <chrono>
#include <utility>

#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/check/verifier.h"

namespace lockstep {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

bool holds_lambda(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    for (const Attribute& attribute : node.attributes()) {
      if (type_of(attribute.value) == AttributeType::kLambda) return true;
    }
    for (const Graph& region : node.regions()) {
      if (holds_lambda(region)) return true;
    }
  }
  return false;
}

// Runs one pass; anything it throws becomes a PassError that names it.
PassOutcome run_pass(Pass& pass, Graph& graph, PassContext& context) {
  try {
    return pass.run(graph, context);
  } catch (const PassError& error) {
    if (error.pass() == pass.name()) throw;
    std::throw_with_nested(PassError(pass.name(), error.message(), error.place(), error.code()));
  } catch (const Error& error) {
    std::throw_with_nested(PassError(pass.name(), error.message(), error.place(), error.code()));
  } catch (const std::exception& error) {
    std::throw_with_nested(
        PassError(pass.name(), message_of(error), {}, code_of(error, ErrorCode::kInternal)));
  } catch (...) {
    std::throw_with_nested(
        PassError(pass.name(), "threw something that is not an exception", {}, ErrorCode::kInternal));
  }
}

// Checks the pass's contract; `hash` is that of the graph before the pass, and is set to that of the graph
// after it.
void check_contract(const Pass& pass, const Graph& graph, const PassContext& context, PassOutcome claimed,
                    std::uint64_t& hash) {
  try {
    verify(graph, context.topology);
  } catch (const VerifyError& error) {
    std::throw_with_nested(PassError::after(pass.name(), error.message(), error.place()));
  }
  const std::uint64_t before = std::exchange(hash, structural_hash(graph));
  if (claimed == PassOutcome::kUnchanged && hash != before) {
    throw PassError::after(pass.name(),
                           "claims to have changed nothing, but the graph differs; return kChanged");
  }
  // The code inside lambda nodes cannot be compared: if there are any, a pass may have changed only that.
  if (claimed == PassOutcome::kChanged && hash == before && !holds_lambda(graph)) {
    throw PassError::after(pass.name(),
                           "claims to have changed the graph, but nothing differs; return kUnchanged");
  }
}

}  // namespace

PassInstrumentation::~PassInstrumentation() = default;
void PassInstrumentation::before_pass(const Pass& /*pass*/, const Graph& /*graph*/, std::size_t /*index*/) {}
void PassInstrumentation::after_pass(const Pass& /*pass*/, const Graph& /*graph*/, std::size_t /*index*/,
                                     const PassReport& /*report*/) {}
void PassInstrumentation::pass_failed(const Pass& /*pass*/, const Graph& /*graph*/, std::size_t /*index*/,
                                      const std::exception& /*error*/) {}

PipelineChecks default_checks() noexcept {
#ifdef NDEBUG
  return PipelineChecks::kEnds;
#else
  return PipelineChecks::kAlways;
#endif
}

PassPipeline::PassPipeline() = default;
PassPipeline::~PassPipeline() = default;
PassPipeline::PassPipeline(PassPipeline&&) noexcept = default;
PassPipeline& PassPipeline::operator=(PassPipeline&&) noexcept = default;

PassPipeline& PassPipeline::add(std::unique_ptr<Pass> pass) {
  if (pass == nullptr) throw InvalidArgument("a pipeline was given no pass where one was expected");
  passes_.push_back(std::move(pass));
  return *this;
}

std::size_t PassPipeline::size() const { return passes_.size(); }
const Pass& PassPipeline::pass(std::size_t index) const { return *passes_.at(index); }

PassPipeline& PassPipeline::append(PassPipeline other) {
  for (std::unique_ptr<Pass>& pass : other.passes_) passes_.push_back(std::move(pass));
  return *this;
}

PipelineReport PassPipeline::run(Graph& graph, const PipelineOptions& options) {
  PassContext context;
  return run(graph, context, options);
}

PipelineReport PassPipeline::run(Graph& graph, PassContext& given, const PipelineOptions& options) {
  const Stopwatch whole;
  Analyses analyses;
  PassContext context = given;
  context.analyses = &analyses;
  const bool checking = options.verify == PipelineChecks::kAlways;
  PipelineReport report;
  if (options.verify != PipelineChecks::kNever) verify(graph, context.topology);
  if (passes_.empty()) return report;

  Graph work = graph;
  std::uint64_t hash = checking ? structural_hash(work) : 0;
  std::size_t nodes = count_nodes(work);
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    Pass& pass = *passes_[i];
    for (PassInstrumentation* observer : options.instrumentation) observer->before_pass(pass, work, i);
    PassReport& entry = report.passes.emplace_back();
    entry.name = pass.name();
    entry.nodes_before = nodes;
    try {
      const Stopwatch watch;
      entry.outcome = run_pass(pass, work, context);
      entry.seconds = watch.seconds();
      if (checking) check_contract(pass, work, context, entry.outcome, hash);
    } catch (const std::exception& error) {
      if (options.verify == PipelineChecks::kEnds) blame_earlier(i, graph, given, options.instrumentation);
      for (PassInstrumentation* observer : options.instrumentation)
        observer->pass_failed(pass, work, i, error);
      throw;
    }
    if (entry.outcome == PassOutcome::kChanged) {
      nodes = count_nodes(work);
      report.outcome = PassOutcome::kChanged;
    }
    entry.nodes_after = nodes;
    for (PassInstrumentation* observer : options.instrumentation) observer->after_pass(pass, work, i, entry);
  }
  if (options.verify == PipelineChecks::kEnds && report.outcome == PassOutcome::kChanged)
    check_end(work, graph, context, options.instrumentation);
  if (report.outcome == PassOutcome::kChanged) graph = std::move(work);
  report.seconds = whole.seconds();
  return report;
}

void PassPipeline::blame_earlier(std::size_t failed, const Graph& original, const PassContext& given,
                                 const std::vector<PassInstrumentation*>& instrumentation) {
  Analyses analyses, records;
  PassContext context = given;
  context.analyses = &analyses;
  context.records = &records;
  Graph again = original;
  for (std::size_t i = 0; i < failed; ++i) {
    try {
      passes_[i]->run(again, context);
    } catch (...) {
      return;  // it went well the first time: the error of then says more
    }
    try {
      verify(again, context.topology);
    } catch (const VerifyError& error) {
      const PassError blamed = PassError::after(passes_[i]->name(), error.message(), error.place());
      for (PassInstrumentation* observer : instrumentation)
        observer->pass_failed(*passes_[i], again, i, blamed);
      std::throw_with_nested(blamed);
    }
  }
}

void PassPipeline::check_end(const Graph& made, const Graph& original, PassContext& context,
                             const std::vector<PassInstrumentation*>& instrumentation) {
  try {
    verify(made, context.topology);
  } catch (const VerifyError& error) {
    Graph again = original;
    run(again, context, {.verify = PipelineChecks::kAlways, .instrumentation = instrumentation});
    // The second run went well: some pass is not deterministic.
    const PassError blamed = PassError::after(passes_.back()->name(), error.message(), error.place());
    for (PassInstrumentation* observer : instrumentation)
      observer->pass_failed(*passes_.back(), made, passes_.size() - 1, blamed);
    std::throw_with_nested(blamed);
  }
}

std::string PassPipeline::to_string() const {
  std::string text;
  for (const std::unique_ptr<Pass>& pass : passes_) {
    if (!text.empty()) text += ',';
    text += pass->to_string();
  }
  return text;
}

std::size_t count_nodes(const Graph& graph) {
  std::size_t count = graph.size();
  for (const NodeId id : graph.region_owners()) {
    for (const Graph& region : graph.node(id).regions()) count += count_nodes(region);
  }
  return count;
}

}  // namespace lockstep

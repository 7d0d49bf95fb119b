// tools/runner.h - a graph ready to run on its feeds: plainly, or distributed by a strategy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "feeds.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep::tools {

class Runner {
 public:
  // Reads, distributes and compiles the graph, and puts its feeds in order. Throws UsageError for settings
  // that contradict each other, InvalidArgument for feeds that are missing or not asked for.
  explicit Runner(const RunSettings& settings);

  struct Result {
    std::string name;
    PerReplica<Tensor> value;
  };
  std::vector<Result> run(Observer* observer = nullptr) const;
  // The number of tensors that a run returns: one for each result, or one for each replica of it.
  std::size_t num_tensors() const { return program().graph().results().size(); }

  const Program& program() const { return step_ ? step_->program() : program_; }
  const Runtime& runtime() const { return program().runtime(); }
  VariableStore& variables() const { return program().variables(); }
  PlanSummary plan() const;

 private:
  void distribute(const RunSettings& settings, Graph graph, const Feeds& feeds);
  void compile_plain(const RunSettings& settings, Graph graph, const Feeds& feeds);

  std::unique_ptr<Strategy> strategy_;
  std::optional<Step> step_;                   // with a strategy
  Program program_;                            // without
  std::vector<PerReplica<Tensor>> arguments_;  // of the step
  std::vector<Tensor> ordered_;                // of the program
  std::vector<std::string> names_;             // of results
};

}  // namespace lockstep::tools

// io/drawings/pipeline_recorder.cpp - keeps the graph as it was after each pass, to be looked at.
#include "lockstep/io/drawings/pipeline_recorder.h"

#include "lockstep/core/error.h"
#include "lockstep/strategies/strategy.h"

namespace lockstep {

std::vector<ViewStage> PipelineRecording::views() const {
  std::vector<ViewStage> views;
  for (const Stage& stage : stages) views.push_back({stage.name, &stage.graph});
  return views;
}

PipelineRecorder::PipelineRecorder() = default;
PipelineRecorder::PipelineRecorder(Options options) : options_(options) {}
PipelineRecorder::~PipelineRecorder() = default;

void PipelineRecorder::before_pass(const Pass&, const Graph& graph, std::size_t index) {
  if (index != 0) return;
  recording_ = {};
  recording_.stages.push_back({"before", {}, graph});
}

void PipelineRecorder::after_pass(const Pass& pass, const Graph& graph, std::size_t,
                                  const PassReport& report) {
  if (report.outcome == PassOutcome::kUnchanged && !options_.unchanged) {
    recording_.left_out.emplace_back(pass.name());
    return;
  }
  recording_.stages.push_back({std::string(pass.name()), pass.to_string(), graph, report});
}

void PipelineRecorder::pass_failed(const Pass& pass, const Graph& graph, std::size_t,
                                   const std::exception& error) {
  PassReport report;
  report.name = pass.name();
  recording_.stages.push_back(
      {std::string(pass.name()) + " (failed)", pass.to_string(), graph, report, describe(error)});
}

PipelineRecording record_pipeline(const Strategy& strategy, const Graph& step_graph,
                                  PipelineRecorder::Options options) {
  PipelineRecorder recorder(options);
  Graph graph = step_graph;
  PassContext context{&strategy.runtime().topology()};
  strategy.pipeline().run(graph, context, {.instrumentation = {&recorder}});
  return recorder.recording();
}

}  // namespace lockstep

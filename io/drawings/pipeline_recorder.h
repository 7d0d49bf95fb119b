// io/drawings/pipeline_recorder.h - keeps the graph as it was after each pass, to be looked at.
//
//   PipelineRecorder recorder;
//   pipeline.run(graph, {.instrumentation = {&recorder}});
//   write_file_whole("passes.html", to_html(recorder.recording()));
//
// or, for the passes that a strategy runs on a step:
//
//   write_html(record_pipeline(strategy, train.step_graph()), "passes.html");
//
// Costs one copy of the graph per pass that changed it. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/io/drawings/graph_view.h"

namespace lockstep {

class Strategy;

// A graph on its way through a pipeline.
struct LOCKSTEP_API PipelineRecording {
  struct Stage {
    std::string name;  // "before", then the passes by name
    std::string pass;  // with its options; empty for the first stage
    Graph graph;
    PassReport report = {};
    std::string error = {};  // of a pass that failed; `graph` is as that pass left it
  };
  std::vector<Stage> stages;             // the graph to begin with, then one for each pass that is kept
  std::vector<std::string> left_out;     // passes that changed nothing
  std::vector<ViewStage> views() const;  // pointers into this object
};

class LOCKSTEP_API PipelineRecorder : public PassInstrumentation {
 public:
  struct Options {
    bool unchanged = false;  // keep a stage for passes that changed nothing, too
  };
  PipelineRecorder();
  explicit PipelineRecorder(Options options);
  ~PipelineRecorder() override;

  void before_pass(const Pass& pass, const Graph& graph, std::size_t index) override;
  void after_pass(const Pass& pass, const Graph& graph, std::size_t index, const PassReport& report) override;
  void pass_failed(const Pass& pass, const Graph& graph, std::size_t index,
                   const std::exception& error) override;

  // Of the last run; a run begins with the pipeline's first pass.
  const PipelineRecording& recording() const { return recording_; }

 private:
  Options options_;
  PipelineRecording recording_;
};

// Runs the strategy's passes once more on a step that was traced for it, and keeps the graph after each. (The
// passes give the same graphs as when the function was made.) Throws what the passes throw.
LOCKSTEP_API PipelineRecording record_pipeline(const Strategy& strategy, const Graph& step_graph,
                                               PipelineRecorder::Options options = {});

}  // namespace lockstep

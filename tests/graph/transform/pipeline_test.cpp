// Tests: graph/transform/pipeline.cpp, graph/transform/rewriter.cpp
#include "lockstep/graph/transform/pipeline.h"

#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/dead_node_elimination.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/rewriter.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A pass that does what a test says.
class Scripted final : public Pass {
 public:
  using Script = std::function<PassOutcome(Graph&)>;
  Scripted(std::string name, Script script) : name_(std::move(name)), script_(std::move(script)) {}
  std::string_view name() const override { return name_; }

 private:
  PassOutcome run_on(Graph& graph, PassContext& /*context*/) override { return script_(graph); }
  std::string name_;
  Script script_;
};

PassPipeline one(std::string name, Scripted::Script script) {
  PassPipeline pipeline;
  pipeline.add(std::make_unique<Scripted>(std::move(name), std::move(script)));
  return pipeline;
}

// Keeps what is said of passes that fail.
struct FailureLog final : PassInstrumentation {
  void pass_failed(const Pass& pass, const Graph&, std::size_t, const std::exception& error) override {
    failures.push_back(str(pass.name(), ": ", error.what()));
  }
  std::vector<std::string> failures;
};

Graph small_graph() {
  return parse(R"(
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %dead = relu(%a) : f32[4]
      return %a
    )",
               "small.lks");
}

// Runs the pipeline, which must throw, and checks that the graph is as it was.
template <class Exception>
Exception failure_of(PassPipeline pipeline, const PipelineOptions& options = {}) {
  Graph graph = small_graph();
  const Graph before = graph;
  try {
    pipeline.run(graph, options);
  } catch (const Exception& error) {
    EXPECT_TRUE(same_structure(graph, before)) << "a failing pipeline changed the graph";
    return error;
  }
  throw std::logic_error("the pipeline did not throw");
}

std::string nested_in(const std::exception& error) {
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& inner) {
    return inner.what();
  }
  return {};
}

TEST(PassPipeline, ReportsEachPass) {
  Graph graph = small_graph();
  PassPipeline pipeline;
  pipeline.add(make_dead_node_elimination()).add(make_dead_node_elimination());
  const PipelineReport report = pipeline.run(graph);
  EXPECT_EQ(report.outcome, PassOutcome::kChanged);
  ASSERT_EQ(report.passes.size(), 2U);
  EXPECT_EQ(report.passes[0].name, "dead-node-elimination");
  EXPECT_EQ(report.passes[0].outcome, PassOutcome::kChanged);
  EXPECT_EQ(report.passes[0].nodes_before, 3U);
  EXPECT_EQ(report.passes[0].nodes_after, 2U);
  EXPECT_EQ(report.passes[1].outcome, PassOutcome::kUnchanged);
  EXPECT_EQ(report.passes[1].nodes_after, 2U);
  EXPECT_GE(report.seconds, report.passes[0].seconds);
  EXPECT_EQ(graph.size(), 2U);
}

TEST(PassPipeline, NoPassesChangeNothing) {
  Graph graph = small_graph();
  EXPECT_EQ(PassPipeline().run(graph).outcome, PassOutcome::kUnchanged);
  EXPECT_EQ(PassPipeline().to_string(), "");
  EXPECT_THROW(PassPipeline().add(nullptr), InvalidArgument);
}

TEST(PassPipeline, ABrokenGraphIsRefusedBeforeTheFirstPass) {
  Graph graph = small_graph();
  graph.erase(graph.find("a"));
  bool ran = false;
  PassPipeline pipeline = one("never", [&](Graph&) {
    ran = true;
    return PassOutcome::kUnchanged;
  });
  EXPECT_THROW(pipeline.run(graph), VerifyError);
  EXPECT_FALSE(ran);
}

TEST(PassPipeline, NamesThePassThatBrokeTheGraph) {
  const auto breaks = [](Graph& graph) {
    graph.erase(graph.find("a"));
    return PassOutcome::kChanged;
  };
  const auto error = failure_of<PassError>(one("breaks-things", breaks));
  EXPECT_EQ(error.pass(), "breaks-things");
  EXPECT_THAT(error.message(), HasSubstr("after breaks-things: "));
}

TEST(PassPipeline, APassThatHidesAChangeIsCaught) {
  const auto error = failure_of<PassError>(one("hides", [](Graph& graph) {
    graph.rename(graph.find("a"), "b");
    return PassOutcome::kUnchanged;
  }));
  EXPECT_THAT(error.message(), HasSubstr("after hides: claims to have changed nothing"));
}

TEST(PassPipeline, APassThatBoastsIsCaught) {
  const auto error = failure_of<PassError>(one("boasts", [](Graph&) { return PassOutcome::kChanged; }));
  EXPECT_THAT(error.message(), HasSubstr("after boasts: claims to have changed the graph"));
}

TEST(PassPipeline, CodeInLambdasMayChangeUnseen) {
  GraphBuilder b;
  b.call("f", [] {});
  Graph graph = b.finish();
  EXPECT_EQ(one("new-code", [](Graph&) { return PassOutcome::kChanged; }).run(graph).outcome,
            PassOutcome::kChanged);
}

TEST(PassPipeline, WithoutChecksPassesAreTrusted) {
  Graph graph = small_graph();
  PassPipeline pipeline = one("boasts", [](Graph&) { return PassOutcome::kChanged; });
  EXPECT_EQ(pipeline.run(graph, {.verify = PipelineChecks::kNever}).outcome, PassOutcome::kChanged);
}

TEST(PassPipeline, ChecksOfTheEndsNameThePassAtFault) {
  PassPipeline pipeline;
  pipeline.add(make_dead_node_elimination());
  pipeline.append(one("breaks-things", [](Graph& graph) {
    graph.erase(graph.find("a"));
    return PassOutcome::kChanged;
  }));
  pipeline.append(one("innocent", [](Graph& graph) {
    graph.add_result({graph.find("x"), 0});
    return PassOutcome::kChanged;
  }));
  FailureLog log;
  const auto error = failure_of<PassError>(std::move(pipeline),
                                           {.verify = PipelineChecks::kEnds, .instrumentation = {&log}});
  EXPECT_EQ(error.pass(), "breaks-things");
  EXPECT_THAT(error.message(), HasSubstr("after breaks-things: "));
  EXPECT_THAT(log.failures, ElementsAre(str("breaks-things: ", error.what())));
}

TEST(PassPipeline, ChecksOfTheEndsBlameThePassThatBrokeTheGraphBeforeAnotherFailed) {
  int runs = 0;
  const auto broken = [&](const Scripted::Script& later) {
    PassPipeline pipeline;
    pipeline.add(make_dead_node_elimination());
    pipeline.append(one("breaks-things", [&](Graph& graph) {
      ++runs;
      graph.erase(graph.find("a"));
      return PassOutcome::kChanged;
    }));
    pipeline.append(one("stumbles", later));
    return pipeline;
  };
  FailureLog log;
  const PipelineOptions options{.verify = PipelineChecks::kEnds, .instrumentation = {&log}};
  const auto error = failure_of<PassError>(
      broken([](Graph&) -> PassOutcome { throw std::logic_error("where is it?"); }), options);
  EXPECT_THAT(error.message(), HasSubstr("after breaks-things: "));
  EXPECT_THAT(log.failures, ElementsAre(str("breaks-things: ", error.what())));
  EXPECT_EQ(runs, 2);
  // What fails by itself is still said of the pass that fails.
  PassPipeline alone = one("renames", [](Graph& graph) {
    graph.rename(graph.find("a"), "b");
    return PassOutcome::kChanged;
  });
  alone.append(one("stumbles", [](Graph&) -> PassOutcome { throw std::logic_error("where is it?"); }));
  EXPECT_EQ(failure_of<PassError>(std::move(alone), options).pass(), "stumbles");
}

TEST(PassPipeline, ChecksOfTheEndsRefuseABrokenGraphAndTrustClaims) {
  Graph graph = small_graph();
  PassPipeline pipeline = one("boasts", [](Graph&) { return PassOutcome::kChanged; });
  EXPECT_EQ(pipeline.run(graph, {.verify = PipelineChecks::kEnds}).outcome, PassOutcome::kChanged);
  graph.erase(graph.find("a"));
  EXPECT_THROW(pipeline.run(graph, {.verify = PipelineChecks::kEnds}), VerifyError);
}

TEST(PassPipeline, WhatBreaksAGraphOnlyOnceIsSaidOfTheLastPass) {
  bool first = true;
  PassPipeline pipeline = one("fickle", [&](Graph& graph) {
    if (std::exchange(first, false)) {
      graph.erase(graph.find("a"));
    } else {
      graph.rename(graph.find("a"), "b");
    }
    return PassOutcome::kChanged;
  });
  FailureLog log;
  const auto error = failure_of<PassError>(std::move(pipeline),
                                           {.verify = PipelineChecks::kEnds, .instrumentation = {&log}});
  EXPECT_THAT(error.message(), HasSubstr("after fickle: "));
  EXPECT_THAT(log.failures, ElementsAre(str("fickle: ", error.what())));
}

TEST(PassPipeline, WhatAPassRefusesPassesThrough) {
  const auto error = failure_of<PassError>(one("refuses", [](Graph& graph) -> PassOutcome {
    throw PassError("refuses", "cannot be replicated", place_of(graph.node(graph.find("a"))));
  }));
  EXPECT_EQ(error.message(), "refuses: cannot be replicated");
  EXPECT_EQ(error.place().node, "a");
  EXPECT_EQ(error.place().line, 3U);
}

TEST(PassPipeline, AnErrorOfAnotherPassGetsTheNameOfThisOne) {
  const auto error =
      failure_of<PassError>(one("outer", [](Graph&) -> PassOutcome { throw PassError("inner", "no"); }));
  EXPECT_EQ(error.pass(), "outer");
  EXPECT_EQ(error.message(), "outer: inner: no");
}

TEST(PassPipeline, OtherErrorsAreWrappedWithTheOriginalNested) {
  const auto error = failure_of<PassError>(one("throws", [](Graph& graph) -> PassOutcome {
    graph.rename(graph.find("a"), "b");
    throw std::out_of_range("vector::at");
  }));
  EXPECT_EQ(error.pass(), "throws");
  EXPECT_EQ(error.message(), "throws: vector::at");
  try {
    PassPipeline pipeline = one("throws", [](Graph&) -> PassOutcome { throw NotFound("no such device"); });
    Graph graph = small_graph();
    pipeline.run(graph);
    FAIL();
  } catch (const PassError& wrapped) {
    EXPECT_EQ(wrapped.code(), ErrorCode::kNotFound);
    EXPECT_THAT(nested_in(wrapped), HasSubstr("no such device"));
  }
}

TEST(PassPipeline, LaterFailuresUndoEarlierPasses) {
  PassPipeline pipeline;
  pipeline.add(make_dead_node_elimination());
  pipeline.append(one("refuses", [](Graph&) -> PassOutcome { throw PassError("refuses", "no"); }));
  failure_of<PassError>(std::move(pipeline));
}

TEST(PassPipeline, InstrumentationSeesEveryPass) {
  struct Recorder final : PassInstrumentation {
    void before_pass(const Pass& pass, const Graph& graph, std::size_t index) override {
      events.push_back(str("before ", index, " ", pass.name(), " ", graph.size()));
    }
    void after_pass(const Pass& pass, const Graph& graph, std::size_t index,
                    const PassReport& report) override {
      events.push_back(
          str("after ", index, " ", pass.name(), " ", graph.size(), " ", to_string(report.outcome)));
    }
    void pass_failed(const Pass& pass, const Graph& graph, std::size_t index,
                     const std::exception&) override {
      events.push_back(str("failed ", index, " ", pass.name(), " ", graph.size()));
    }
    std::vector<std::string> events;
  } recorder;
  PassPipeline pipeline;
  pipeline.add(make_dead_node_elimination());
  pipeline.append(one("refuses", [](Graph&) -> PassOutcome { throw PassError("refuses", "no"); }));
  failure_of<PassError>(std::move(pipeline), {.instrumentation = {&recorder}});
  EXPECT_THAT(recorder.events,
              ElementsAre("before 0 dead-node-elimination 3", "after 0 dead-node-elimination 2 changed",
                          "before 1 refuses 2", "failed 1 refuses 2"));
}

// Keeps a number for those who come after it, and notes which number it finds.
class Remembers final : public Pass {
 public:
  Remembers(int number, std::vector<int>& found) : number_(number), found_(found) {}
  std::string_view name() const override { return "remembers"; }

 private:
  PassOutcome run_on(Graph& /*graph*/, PassContext& context) override {
    const auto before = context.analyses->find<int>();
    found_.push_back(before == nullptr ? 0 : *before);
    context.analyses->keep(std::make_shared<const int>(number_));
    return PassOutcome::kUnchanged;
  }
  int number_;
  std::vector<int>& found_;
};

TEST(PassPipeline, WhatPassesFindOutLastsUntilTheGraphChanges) {
  std::vector<int> found;
  PassPipeline pipeline;
  pipeline.add(std::make_unique<Remembers>(1, found));
  pipeline.add(std::make_unique<Remembers>(2, found));
  pipeline.add(make_dead_node_elimination());
  pipeline.add(std::make_unique<Remembers>(3, found));
  for (int run = 0; run < 2; ++run) {
    Graph graph = small_graph();
    pipeline.run(graph);
  }
  EXPECT_THAT(found, ElementsAre(0, 1, 0, 0, 1, 0));
}

TEST(PassPipeline, IdsHaveNoGapsAfterAPass) {
  Graph graph = small_graph();
  one("erases", [](Graph& g) {
    g.erase(g.find("dead"));
    return PassOutcome::kChanged;
  }).run(graph);
  EXPECT_EQ(graph.id_bound(), graph.size());
}

}  // namespace
}  // namespace lockstep

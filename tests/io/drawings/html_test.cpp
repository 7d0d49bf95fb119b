// Tests: io/drawings/html.cpp, io/drawings/node_facts.cpp, io/drawings/scope_drawings.cpp
#include "lockstep/io/drawings/html.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/io/files/files.h"
#include "lockstep/strategies/mirrored.h"
#include "support/drawn_graphs.h"
#include "support/json.h"
#include "support/temporary_folder.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing::Json;
using ::testing::Not;
using testing::test_devices;

#define LOCKSTEP_NEEDS_GRAPHVIZ() \
  if (const Decision there = has_graphviz(); !there) GTEST_SKIP() << there.reason()

// The data inside a page: an element of it.
Json data_of(const std::string& page, const std::string& element = "data") {
  const std::string begin = "id=\"" + element + "\">";
  const std::size_t from = page.find(begin) + begin.size();
  return Json::parse(std::string_view(page).substr(from, page.find("</script>", from) - from));
}

const Json& node_of(const Json& data, const std::string& name) {
  for (const Json& node : data["nodes"].list()) {
    if (node["n"].text() == name) return node;
  }
  throw NotFound("no box " + name);
}

// Of a box in its last stage.
Json facts_of(const std::string& page, const std::string& name) {
  const Json data = data_of(page);
  const Json& node = node_of(data, name);
  const Json drawing = data_of(page, str("drawing", static_cast<int>(node["s"].number())));
  return drawing["f"][static_cast<std::size_t>(node["a"].list().back()[5].number())];
}

TEST(Html, IsOneFileWithADrawingPerScope) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  const Graph graph = testing::layered_graph(12, 4);
  const std::string page = to_html(graph, {.title = "<layers> & more"});
  EXPECT_THAT(page, HasSubstr("<title>&lt;layers&gt; &amp; more</title>"));
  // Nothing is fetched from anywhere.
  for (const char* link : {"src=", "href=", "@import", "fetch(", "url("})
    EXPECT_THAT(page, Not(HasSubstr(link)));
  const Json data = data_of(page);
  for (std::size_t scope = 0; scope < data["scopes"].list().size(); ++scope) {
    const Json drawing = data_of(page, str("drawing", scope));
    EXPECT_THAT(drawing["svg"].text(), HasSubstr("</svg>"));
    for (std::size_t i = 0; i < drawing["e"].list().size(); ++i)
      EXPECT_THAT(drawing["svg"].text(), HasSubstr(str("id=\"e", i, "\"")));
  }
  EXPECT_EQ(data["scopes"][0]["z"][0].number(), static_cast<double>(graph.size()));
  const Json& relu = node_of(data, "model/layer_0/relu");
  EXPECT_EQ(relu["a"][0][2].number(), 4);  // replicas
}

TEST(Html, NoTextEndsTheScript) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  const Graph graph = parse(R"text(
      %"</script><script>alert(1)" = placeholder() : f32[]
      return %"</script><script>alert(1)"
  )text");
  const std::string page = to_html(graph, {.title = "</title><script>alert(2)</script>"});
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_EQ(data_of(page)["nodes"][0]["n"].text(), "</script><script>alert(1)");
}

// What a mirrored step looks like, pass by pass.
TEST(Html, ShowsAStrategysPassesOnOneLayout) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  MirroredStrategy strategy({.devices = test_devices(2), .share_mirrored = false, .optimize = false});
  auto scope = strategy.scope();
  const Variable w("w", Tensor::zeros({4, 1}));
  const Sgd sgd(0.1F);
  const auto step = strategy.function({{DType::kF32, {kUnknown, 4}, "x"}}, [=](Value x) {
    const Value loss = global_mean(square(matmul(x, w)));
    sgd.minimize(loss, {w});
    return loss;
  });
  const PipelineRecording recording = record_pipeline(strategy, step.step_graph());
  ASSERT_GT(recording.stages.size(), 3U);
  EXPECT_EQ(count_nodes(recording.stages.back().graph), count_nodes(step.replicated_graph()));

  const std::string page = to_html(recording);
  const Json data = data_of(page);
  std::map<std::string, std::size_t> stage;
  for (std::size_t s = 0; s < data["stages"].list().size(); ++s) stage[data["stages"][s]["n"].text()] = s;
  ASSERT_TRUE(stage.contains("insert-all-reduce") && stage.contains("replicate"));

  // The product is one box from the trace to the end, first twice in a region, then cloned.
  const Json& product = node_of(data, "matmul");
  EXPECT_EQ(product["a"].list().size(), data["stages"].list().size());
  const Json& cloned = product["a"][stage["replicate"]];
  EXPECT_EQ(cloned[1].number(), static_cast<double>(ViewChange::kRemade));
  EXPECT_EQ(cloned[2].number(), 2);
  const Json facts = facts_of(page, "matmul");
  EXPECT_EQ(facts["lat"].text(), "per replica");
  EXPECT_EQ(facts["by"].text(), "replicate");
  EXPECT_THAT(facts["site"].text(), HasSubstr("html_test.cpp"));
  EXPECT_GT(facts["fl"].number(), 0);
  if (!testing::on_gpus()) {  // between two memories the clones part: one takes a copy
    EXPECT_EQ(facts["dev"].list().size(), 2U);
  }
  // Each replica has a feed of its own. What a clone stems from is gone by now: an earlier stage knows its
  // name.
  EXPECT_EQ(facts_of(page, "x")["lat"].text(), "per replica");
  EXPECT_EQ(facts["from"].text(), "matmul");

  // The all-reduce appears with its pass.
  bool added = false;
  for (const Json& node : data["nodes"].list()) {
    const Json& first = node["a"][0];
    const std::string& op = data["ops"][static_cast<std::size_t>(node["o"].number())].text();
    added = added || (op == "all_reduce" && node["k"].text() == "collective" &&
                      first[0].number() == static_cast<double>(stage["insert-all-reduce"]) &&
                      first[1].number() == static_cast<double>(ViewChange::kAdded));
  }
  EXPECT_TRUE(added);
}

TEST(Html, SaysThatGraphsFromTextAreComparedByName) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  const Graph before = parse(testing::kTwoReplicas), after = parse(testing::kTwoReplicas);
  const Json data = data_of(to_html(before, after));
  EXPECT_TRUE(data["stages"][1].contains("b"));
  for (const Json& node : data["nodes"].list())
    EXPECT_EQ(node["a"][1][1].number(), static_cast<double>(ViewChange::kNone)) << node["n"].text();
  const Graph copy = before;
  EXPECT_FALSE(data_of(to_html(before, copy))["stages"][1].contains("b"));
}

TEST(Html, LabelsSayWhatHoldsAtEachStage) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %m/same = identity(%x) : f32[2]
      %m/y = neg(%m/same) : f32[2]
      %m/z = add(%m/y, %m/y) : f32[2]
      return %m/z
  )");
  const Graph before = graph;
  PassRegistry::global().parse_pipeline("identity-removal").run(graph);
  const std::string page = to_html(before, graph);
  const Json drawing = data_of(page, "drawing0");
  ASSERT_EQ(drawing["t"].list().size(), 1U);
  const Json& labels = drawing["t"][0][1];
  EXPECT_EQ(labels[0][1].text(), "m\n3 nodes");
  EXPECT_EQ(labels[1][0].number(), 1);
  EXPECT_EQ(labels[1][1].text(), "m\n2 nodes");
}

TEST(Html, StubsThatAreJoinedSayWhatTheyStandFor) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  std::string text;
  for (int i = 0; i < 20; ++i) {
    const std::string spec = str(" : f32[", i + 1, "]\n");
    text += str("%x", i, " = placeholder()", spec, "%m/n", i, " = neg(%x", i, ")", spec);
  }
  const Graph graph = parse(text);
  const Json drawing = data_of(to_html(graph), "drawing1");
  EXPECT_EQ(drawing["mb"].list().size(), 4U);
  EXPECT_THAT(drawing["svg"].text(), HasSubstr("and 4 more"));
  // Every edge says what flows.
  for (const Json& edge : drawing["e"].list()) EXPECT_THAT(edge[4].text(), HasSubstr("f32["));
}

TEST(Html, JoinsStagesWhereThereAreTooMany) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  PipelineRecording recording;
  const Graph graph = parse("%x = placeholder() : f32[]\nreturn %x\n");
  for (int i = 0; i < 100; ++i) recording.stages.push_back({str("pass-", i), str("pass-", i), graph});
  const Json data = data_of(to_html(recording));
  ASSERT_EQ(data["stages"].list().size(), GraphView::kMaxStages);
  EXPECT_EQ(data["stages"][0]["n"].text(), "pass-0");
  EXPECT_THAT(data["stages"].list().back()["n"].text(), HasSubstr("pass-99"));
  std::string passes;
  for (const Json& stage : data["stages"].list()) passes += stage["p"].text() + ",";
  for (int i = 0; i < 100; ++i) EXPECT_THAT(passes, HasSubstr(str("pass-", i, ",")));
}

TEST(Html, ReplacesAFile) {
  LOCKSTEP_NEEDS_GRAPHVIZ();
  const TemporaryFolder folder;
  const Graph before = parse("%x = placeholder() : f32[]\nreturn %x\n");
  Graph after = before;
  write_html(before, folder / "g.html");
  write_html(before, after, folder / "g.html");
  EXPECT_EQ(data_of(read_file(folder / "g.html"))["stages"].list().size(), 2U);
  EXPECT_THROW(write_html(before, folder / "no" / "g.html"), Error);
}

TEST(Html, SaysWhatToInstall) {
  try {
    to_html(parse("%x = placeholder() : f32[]\n"), {.graphviz = {.program = "no-such-graphviz"}});
    FAIL() << "there is no such program";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.message(), HasSubstr("install Graphviz"));
  }
}

}  // namespace
}  // namespace lockstep

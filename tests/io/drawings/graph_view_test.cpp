// Tests: io/drawings/graph_view.cpp, io/drawings/graph_view_fold.cpp, io/drawings/pipeline_recorder.cpp,
//        io/drawings/view_likeness.cpp
#include "lockstep/io/drawings/graph_view.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/pipeline.h"
#include "lockstep/io/drawings/pipeline_recorder.h"
#include "support/drawn_graphs.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const ViewNode* find(const GraphView& view, std::string_view name) {
  for (const ViewNode& node : view.nodes()) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

const ViewScope* find_scope(const GraphView& view, std::string_view name) {
  for (const ViewScope& scope : view.scopes()) {
    if (scope.name == name) return &scope;
  }
  return nullptr;
}

std::map<std::string, std::uint64_t> copies_by_name(const GraphView& view) {
  std::map<std::string, std::uint64_t> copies;
  for (const ViewNode& node : view.nodes()) copies[node.name] = node.last().copies;
  return copies;
}

// "from -> to", "from => to" for control edges.
std::set<std::string> edges_of(const GraphView& view) {
  std::set<std::string> edges;
  for (const ViewEdge& edge : view.edges())
    edges.insert(view.nodes()[edge.from].name + (edge.control ? " => " : " -> ") +
                 view.nodes()[edge.to].name);
  return edges;
}

TEST(GraphView, DrawsEqualReplicasOnce) {
  const Graph graph = parse(testing::kTwoReplicas);
  const GraphView folded(graph);
  EXPECT_EQ(copies_by_name(folded), (std::map<std::string, std::uint64_t>{
                                        {"x", 2}, {"a", 2}, {"layer/b", 2}, {"sum", 1}, {"log", 1}}));
  EXPECT_THAT(edges_of(folded),
              UnorderedElementsAre("x -> a", "a -> layer/b", "layer/b -> sum", "sum -> log", "a => log"));
  const GraphView apart(graph, {.fold_replicas = false});
  EXPECT_EQ(apart.nodes().size(), graph.size());
  EXPECT_NE(find(apart, "replica_1/layer/b"), nullptr);
}

TEST(GraphView, KeepsReplicasApartThatDiffer) {
  const Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %"x/replica_1" = placeholder() : f32[4]
      %a = square(%x) : f32[4] replica 0
      %"replica_1/a" = neg(%"x/replica_1") : f32[4] replica 1
      %b = relu(%a) : f32[4] replica 0
      %"replica_1/b" = relu(%"replica_1/a") : f32[4] replica 1
      return %b, %"replica_1/b"
  )");
  const GraphView view(graph);
  // Equal ops on values that are not equal are not equal either.
  EXPECT_EQ(copies_by_name(view), (std::map<std::string, std::uint64_t>{
                                      {"x", 2}, {"a", 1}, {"replica_1/a", 1}, {"b", 1}, {"replica_1/b", 1}}));
}

TEST(GraphView, DrawsRepeatedLayersOnce) {
  const Graph graph = testing::layered_graph(12, 1);
  const GraphView view(graph);
  const ViewScope* layer = find_scope(view, "model/layer_0");
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->copies.size(), 11U);  // all but the odd one, which stands by itself
  EXPECT_TRUE(layer->chained);
  EXPECT_THAT(layer->sizes, ElementsAre(11U * 3));
  EXPECT_THAT(view.scopes()[0].sizes, ElementsAre(graph.size()));
  const ViewScope* odd = find_scope(view, "model/layer_5");
  ASSERT_NE(odd, nullptr);
  EXPECT_TRUE(odd->copies.empty());
  EXPECT_EQ(find_scope(view, "model/layer_1"), nullptr);

  // Nodes of a folded copy know where they are drawn; edges lead to and from there.
  const ViewNode* hidden = find(view, "model/layer_11/add");
  ASSERT_NE(hidden, nullptr);
  EXPECT_EQ(view.nodes()[hidden->drawn_as].name, "model/layer_0/add");
  EXPECT_THAT(edges_of(view), ::testing::Contains("model/layer_0/add -> head"));
  EXPECT_EQ(GraphView(graph, {.fold_layers = false}).scopes().size(), 14U);
}

TEST(GraphView, DrawsLayersOnceThatHoldRegions) {
  std::string text = "%p = placeholder() : bool[]\n%x = placeholder() : f32[]\n", before = "%x";
  for (int i = 0; i < 4; ++i) {
    // Nodes inside are named after something outside, in another layer perhaps.
    text += str("%model/layer_", i, "/c = cond(%p, ", before, ") : f32[] {\n region {\n  %of_", i,
                "/v = placeholder() : f32[]\n  %n = neg(%of_", i,
                "/v) : f32[]\n  return %n\n }\n region {\n  %v_", i, " = placeholder() : f32[]\n  return %v_",
                i, "\n }\n}\n");
    text += str("%model/layer_", i, "/r = relu(%model/layer_", i, "/c) : f32[]\n");
    before = str("%model/layer_", i, "/r");
  }
  const Graph graph = parse(text);
  const GraphView view(graph);
  const ViewScope* layer = find_scope(view, "model/layer_0");
  ASSERT_NE(layer, nullptr);
  EXPECT_EQ(layer->copies.size(), 4U);
  const ViewNode* inner = find(view, "model/layer_3/c/else/v_3");
  ASSERT_NE(inner, nullptr);
  EXPECT_EQ(view.nodes()[inner->drawn_as].name, "model/layer_0/c/else/v_0");
}

TEST(GraphView, PutsRegionsIntoScopesOfTheirNode) {
  const Graph graph = parse(R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[]
      %c = cond(%p, %x) : f32[] {
        region {
          %v = placeholder() : f32[]
          %twice = add(%v, %v) : f32[]
          return %twice
        }
        region {
          %v = placeholder() : f32[]
          return %v
        }
      }
      return %c
  )");
  const GraphView view(graph);
  ASSERT_NE(find_scope(view, "c"), nullptr);
  ASSERT_NE(find(view, "c/then/twice"), nullptr);
  ASSERT_NE(find(view, "c/else/v"), nullptr);
  EXPECT_EQ(find(view, "c/else/v")->label, "else/v");  // a scope with one thing in it is left out
  EXPECT_TRUE(find(view, "c")->result);
  EXPECT_EQ(view.scopes()[find(view, "c")->scope].name, "c");  // beside what is in its regions
}

TEST(GraphView, CutsLargeScopesIntoParts) {
  std::string text = "%x = placeholder() : f32[]\n";
  for (int i = 0; i < 1000; ++i)
    text += str("%n", i, " = neg(%", i == 0 ? "x" : str("n", i - 1), ") : f32[]\n");
  const Graph flat = parse(text);
  const GraphView view(flat, {.max_children = 20});
  std::set<std::uint32_t> seen;
  for (const ViewScope& scope : view.scopes()) {
    EXPECT_LE(scope.nodes.size() + scope.scopes.size(), 20U) << scope.name;
    for (const std::uint32_t node : scope.nodes) EXPECT_TRUE(seen.insert(node).second);
    for (const std::uint32_t inner : scope.scopes) {
      EXPECT_EQ(&view.scopes()[view.scopes()[inner].parent], &scope);
      EXPECT_EQ(view.scopes()[inner].depth, scope.depth + 1);
    }
  }
  EXPECT_EQ(seen.size(), flat.size());
  EXPECT_THAT(view.scopes()[0].sizes, ElementsAre(flat.size()));
}

TEST(GraphView, TellsWhatEachPassDid) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %one = constant[value=f32[2]{*1.0}]() : f32[2]
      %two = add(%one, %one) : f32[2]
      %same = identity(%x) : f32[2]
      %y = mul(%same, %two) : f32[2]
      %unread = neg(%y) : f32[2]
      return %y
  )");
  PipelineRecorder recorder;
  PassPipeline passes = PassRegistry::global().parse_pipeline(
      "identity-removal,constant-folding,dead-node-elimination,identity-removal");
  passes.run(graph, {.instrumentation = {&recorder}});
  const PipelineRecording& recording = recorder.recording();
  EXPECT_THAT(recording.left_out, ElementsAre("identity-removal"));  // the second time
  const GraphView view(recording.views());
  ASSERT_EQ(view.stages().size(), 4U);
  EXPECT_EQ(view.stages()[1].name, "identity-removal");

  const auto stages = [&](const char* name) { return find(view, name)->stages; };
  EXPECT_EQ(stages("x"), 0b1111U);
  EXPECT_EQ(stages("same"), 0b0001U);
  EXPECT_EQ(stages("unread"), 0b0111U);
  EXPECT_EQ(find(view, "y")->at(0)->change, ViewChange::kNone);
  EXPECT_EQ(find(view, "y")->at(1)->change, ViewChange::kRewired);
  EXPECT_EQ(find(view, "x")->at(1)->change, ViewChange::kNone);
  // The folded constant is another box than the sum it replaces: another op.
  std::set<std::string> added;
  for (const ViewNode& node : view.nodes()) {
    if (node.at(2) != nullptr && node.at(2)->change == ViewChange::kAdded) added.insert(node.op->name);
  }
  EXPECT_THAT(added, ElementsAre("constant"));
}

// Two graphs from text: their nodes have identities of their own, which say nothing.
TEST(GraphView, ComparesByNameWhereGraphsShareNoOrigin) {
  const std::string text = R"(
      %x = placeholder() : f32[2]
      %one = constant[value=f32[2]{*1.0}]() : f32[2]
      %a = add(%x, %one) : f32[2]
      %b = neg(%a) : f32[2]
      %c = relu(%b) : f32[2]
      return %c
  )";
  std::string other = text;
  const auto replace = [&](std::string_view what, std::string_view with) {
    other.replace(other.find(what), what.size(), with);
  };
  replace("{*1.0}", "{*2.0}");
  replace("relu(%b)", "relu(%a)");
  replace("%b = neg(%a)", "%d = neg(%a)");
  const Graph before = parse(text), after = parse(other), same = parse(text);
  const GraphView view({{"before", &before}, {"after", &after}});
  EXPECT_EQ(view.compared_by(1), DiffBy::kName);
  const auto change = [&](const char* name) { return find(view, name)->at(1)->change; };
  EXPECT_EQ(change("x"), ViewChange::kNone);
  EXPECT_EQ(change("a"), ViewChange::kNone);
  EXPECT_EQ(change("one"), ViewChange::kChanged);
  EXPECT_EQ(change("c"), ViewChange::kRewired);
  EXPECT_EQ(change("d"), ViewChange::kAdded);
  EXPECT_EQ(find(view, "b")->stages, 0b01U);
  const GraphView equal({{"before", &before}, {"same", &same}});
  for (const ViewNode& node : equal.nodes()) EXPECT_EQ(node.at(1)->change, ViewChange::kNone) << node.name;
}

TEST(GraphView, FollowsNodesThatGetOtherNames) {
  const Graph before = parse(R"(
      %x = placeholder() : f32[2]
      %a = neg(%x) : f32[2]
      %b = neg(%a) : f32[2]
      return %b
  )");
  Graph after = before;
  // Names go round: what is called "a" now was "b".
  const NodeId a = after.find("a"), b = after.find("b");
  after.rename(a, "c");
  after.rename(b, "a");
  const GraphView view({{"before", &before}, {"after", &after}});
  EXPECT_EQ(view.compared_by(1), DiffBy::kIdentity);
  EXPECT_EQ(view.nodes().size(), 3U);
  ASSERT_NE(find(view, "b"), nullptr);
  ASSERT_NE(find(view, "b")->at(1), nullptr);
  EXPECT_EQ(find(view, "b")->at(1)->name, "a");
  EXPECT_EQ(find(view, "a")->at(1)->name, "c");
  EXPECT_EQ(find(view, "x")->at(1)->name, "");
  EXPECT_EQ(find(view, "a")->at(1)->change, ViewChange::kChanged);
  EXPECT_EQ(find(view, "x")->at(1)->change, ViewChange::kNone);
}

TEST(GraphView, TellsConstantsApartByWhatIsInThem) {
  std::string text, results;
  for (int r = 0; r < 3; ++r) {
    const std::string scope = r == 0 ? "" : str("replica_", r, "/");
    text += str("%\"", scope, "id\" = constant[value=f32[]{", r, ".0}]() : f32[] replica ", r, "\n");
    text += str("%\"", scope, "one\" = constant[value=f32[]{1.0}]() : f32[] replica ", r, "\n");
    results += str(r == 0 ? "" : ", ", "%\"", scope, "id\", %\"", scope, "one\"");
  }
  const Graph graph = parse(text + "return " + results + "\n");
  const GraphView view(graph);
  EXPECT_EQ(copies_by_name(view), (std::map<std::string, std::uint64_t>{
                                      {"id", 1}, {"replica_1/id", 1}, {"replica_2/id", 1}, {"one", 3}}));
  // Between stages every bit counts, of large ones too.
  const auto large = [](std::string_view last) {
    std::string values;
    for (int i = 0; i < 4000; ++i) values += "0.0, ";
    return parse(str("%c = constant[value=f32[4001]{", values, last, "}]() : f32[4001]\nreturn %c\n"));
  };
  const Graph zeros = large("0.0"), almost = large("1.0");
  const GraphView changed({{"before", &zeros}, {"after", &almost}});
  EXPECT_EQ(find(changed, "c")->at(1)->change, ViewChange::kChanged);
}

TEST(GraphView, CountsScopesStageByStage) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %m/same = identity(%x) : f32[2]
      %m/y = neg(%m/same) : f32[2]
      %m/unread = neg(%m/y) : f32[2]
      return %m/y
  )");
  PipelineRecorder recorder;
  PassRegistry::global()
      .parse_pipeline("identity-removal,dead-node-elimination")
      .run(graph, {.instrumentation = {&recorder}});
  const GraphView view(recorder.recording().views());
  ASSERT_NE(find_scope(view, "m"), nullptr);
  EXPECT_THAT(find_scope(view, "m")->sizes, ElementsAre(3U, 2U, 1U));
}

TEST(GraphView, RefusesWhatItCannotShow) {
  const Graph graph;
  EXPECT_THROW(GraphView(std::vector<ViewStage>{}), InvalidArgument);
  EXPECT_THROW(GraphView(std::vector<ViewStage>{{"nothing", nullptr}}), InvalidArgument);
  try {
    const GraphView many(std::vector<ViewStage>(GraphView::kMaxStages + 1, {"again", &graph}));
    FAIL() << "more stages than it can show";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(), HasSubstr("leave out those that changed nothing"));
  }
  EXPECT_EQ(GraphView(graph).scopes().size(), 1U);  // an empty graph is no problem
}

}  // namespace
}  // namespace lockstep

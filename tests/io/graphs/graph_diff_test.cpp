// Tests: io/graphs/graph_diff.cpp
#include "lockstep/io/graphs/graph_diff.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/strategy_registry.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kStep = R"(var @w : f32[4] = f32[4]{*1.0}
%x = placeholder() : f32[4]
%r = read[variable=@w]() : f32[4]
%y = add(%x, %r) : f32[4] on "cpu:0"
%z = clip[high=1.0, low=0.0](%y) : f32[4]
%u = assign[variable=@w](%r) : f32[4] after(%z)
return %z
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(GraphDiff, OfEqualGraphsIsEmptyAndSaysHowItCompared) {
  const Graph graph = parse(kStep);
  const GraphDiff same = diff_graphs(graph, Graph(graph));
  EXPECT_TRUE(same.same());
  EXPECT_EQ(same.by, DiffBy::kIdentity);
  EXPECT_EQ(same.unchanged, 5U);
  // Read twice, nodes have identities of their own.
  const GraphDiff read_again = diff_graphs(graph, parse(kStep));
  EXPECT_TRUE(read_again.same());
  EXPECT_EQ(read_again.by, DiffBy::kName);
  EXPECT_EQ(to_text(read_again),
            "compared by name (the graphs share no origin): 0 added, 0 removed, 0 changed, 5 unchanged\n");
}

TEST(GraphDiff, NamesEachKindOfChange) {
  struct Case {
    std::string from, to, line;
    bool NodeChange::*kind;
  };
  const std::vector<Case> cases = {
      {"add(%x, %r)", "add(%r, %x)", "input 0: %x -> %r", &NodeChange::rewired},
      {"add(%x, %r)", "mul(%x, %r)", "op: add -> mul", &NodeChange::op},
      {"high=1.0", "high=2.0", "attribute 'high': 1.0 -> 2.0", &NodeChange::attributes},
      {"high=1.0, ", "", "attribute 'high': 1.0 -> none", &NodeChange::attributes},
      {"on \"cpu:0\"", "on \"cpu:1\"", "device: cpu:0 -> cpu:1", &NodeChange::moved},
      {"on \"cpu:0\"", "replica 1", "replica: none -> 1", &NodeChange::moved},
      {"(%y) : f32[4]", "(%y) : f32[?]", "outputs: f32[4] -> f32[?]", &NodeChange::specs},
      {"after(%z)", "after(%y)", "runs after: %y; no longer after: %z", &NodeChange::rewired},
  };
  const Graph graph = parse(kStep);
  for (const Case& c : cases) {
    const GraphDiff diff = diff_graphs(graph, parse(replaced(kStep, c.from, c.to)));
    ASSERT_EQ(diff.changed.size(), 1U) << to_text(diff);
    EXPECT_TRUE(diff.changed[0].*c.kind) << c.line;
    EXPECT_THAT(diff.changed[0].details, testing::Contains(c.line));
    EXPECT_THAT(to_text(diff), HasSubstr("~ %" + diff.changed[0].name + "\n    "));
    EXPECT_EQ(diff.unchanged, 4U);
  }
}

TEST(GraphDiff, NamesAddedRemovedAndTheInterface) {
  const GraphDiff diff = diff_graphs(parse(kStep), parse(R"(var @w : f32[4] [trainable=false]
var @v : f32[2]
%x = placeholder() : f32[4]
%n = placeholder() : f32[4]
%r = read[variable=@w]() : f32[4]
%y = add(%x, %r) : f32[4] on "cpu:0"
%s = square(%y) : f32[4]
return %y, %s
)"));
  ASSERT_EQ(diff.added.size(), 2U);
  EXPECT_EQ(diff.added[1].name, "s");
  EXPECT_EQ(diff.added[1].text, "square(%y) : f32[4]");
  EXPECT_EQ(diff.removed.size(), 2U);
  EXPECT_THAT(diff.interface, ElementsAre("parameters: %x -> %x, %n", "results: %z -> %y, %s",
                                          "variable @w: trainable 1 -> 0, another initial value",
                                          "variable @v added: f32[2]"));
  EXPECT_THAT(
      to_text(diff),
      HasSubstr("- %z = clip[high=1.0, low=0.0](%y) : f32[4]\n"
                "- %u = assign[variable=@w](%r) : f32[4] after(%z)\n+ %n = placeholder() : f32[4]\n"));
}

TEST(GraphDiff, GoesIntoRegions) {
  const std::string text = R"(%p = placeholder() : bool[]
%x = placeholder() : f32[4]
%y = cond(%p, %x) : f32[4] {
  region {
    %a = placeholder() : f32[4]
    %b = relu(%a) : f32[4]
    return %b
  }
  region {
    %a = placeholder() : f32[4]
    return %a
  }
}
return %y
)";
  const GraphDiff diff = diff_graphs(parse(text), parse(replaced(text, "relu", "abs")));
  ASSERT_EQ(diff.changed.size(), 1U);
  EXPECT_EQ(diff.changed[0].name, "y{0}/b");

  // What a region gives back, and what it takes, belongs to the node that has it; by name and by identity.
  const GraphDiff returns = diff_graphs(parse(text), parse(replaced(text, "return %b", "return %a")));
  ASSERT_EQ(returns.changed.size(), 1U) << to_text(returns);
  EXPECT_EQ(returns.changed[0].name, "y");
  EXPECT_TRUE(returns.changed[0].rewired);
  EXPECT_THAT(returns.changed[0].details, ElementsAre("region 0 returns: %b -> %a"));
  Graph graph = parse(text);
  const Graph original = graph;
  const NodeId y = graph.find("y");
  Graph& region = graph.region(y, 0);
  region.set_results({{region.find("a"), 0}});
  const GraphDiff by_identity = diff_graphs(original, graph);
  EXPECT_EQ(by_identity.by, DiffBy::kIdentity);
  ASSERT_EQ(by_identity.changed.size(), 1U) << to_text(by_identity);
  EXPECT_THAT(by_identity.changed[0].details, ElementsAre("region 0 returns: %b -> %a"));

  const std::string swapped = replaced(text, "%a = placeholder() : f32[4]\n    %b = relu(%a)",
                                       "%c = placeholder() : f32[4]\n    %b = relu(%c)");
  EXPECT_THAT(to_text(diff_graphs(parse(text), parse(swapped))), HasSubstr("region 0 takes: %a -> %c\n"));
}

// Files can hold nodes without an identity; it is none that they share.
TEST(GraphDiff, DoesNotMatchNodesWithoutIdentity) {
  const char* const text = "%x = placeholder() : f32[4]\n%y = abs(%x) : f32[4]\nreturn %y\n";
  Graph before = parse(text), after = parse(text);
  for (Graph* graph : {&before, &after}) {
    Provenance none = graph->node(graph->find("y")).provenance();
    none.identity = none.origin = 0;
    graph->set_provenance(graph->find("y"), none);
  }
  EXPECT_EQ(diff_graphs(before, after).by, DiffBy::kName);
  Graph related = before;
  const GraphDiff diff = diff_graphs(before, related);
  EXPECT_EQ(diff.by, DiffBy::kIdentity);
  ASSERT_EQ(diff.added.size(), 1U);
  EXPECT_EQ(diff.added[0].name, "y");
}

TEST(GraphDiff, DoesNotWriteOutLargeTensors) {
  const std::string text = "%c = constant[value=f32[1000]{*1.0}]() : f32[1000]\nreturn %c\n";
  const GraphDiff diff = diff_graphs(parse(text), parse(replaced(text, "*1.0", "*2.0")));
  ASSERT_EQ(diff.changed.size(), 1U);
  EXPECT_THAT(diff.changed[0].details, ElementsAre("attribute 'value': f32[1000]{...} -> f32[1000]{...}"));
  EXPECT_THAT(to_text(diff_graphs(parse(text), Graph())),
              HasSubstr("- %c = constant[value=f32[1000]{...}]() : f32[1000]\n"));
}

TEST(GraphDiff, FollowsNodesThroughPassesByIdentity) {
  const Graph before = parse(R"(%x = placeholder() : f32[4]
%i = identity(%x) : f32[4]
%y = square(%i) : f32[4]
return %y
)");
  Graph after = before;
  PassRegistry::global().parse_pipeline("identity-removal").run(after);
  const GraphDiff diff = diff_graphs(before, after);
  EXPECT_EQ(diff.by, DiffBy::kIdentity);
  EXPECT_THAT(diff.added, IsEmpty());
  ASSERT_EQ(diff.removed.size(), 1U);
  EXPECT_EQ(diff.removed[0].name, "i");
  ASSERT_EQ(diff.changed.size(), 1U);
  EXPECT_THAT(diff.changed[0].details, ElementsAre("input 0: %i -> %x"));

  // A renamed node is the same node.
  Graph renamed = before;
  renamed.rename(renamed.find("y"), "result");
  const GraphDiff rename = diff_graphs(before, renamed);
  ASSERT_EQ(rename.changed.size(), 1U);
  EXPECT_TRUE(rename.changed[0].renamed());
  EXPECT_THAT(rename.changed[0].details, ElementsAre("name: y -> result"));

  // What a strategy clones says where it comes from.
  Graph replicated = before;
  StrategyRegistry::global().parse_pipeline("enter-replicas(replicas=2),replicate").run(replicated);
  EXPECT_THAT(
      to_text(diff_graphs(before, replicated)),
      HasSubstr("+ %replica_1/y = square(%replica_1/i) : f32[4]  // from %y, by replicate, replica 1\n"));
}

}  // namespace
}  // namespace lockstep

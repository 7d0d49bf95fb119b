// Tests: graph/check/structure.cpp
#include "lockstep/graph/check/structure.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"
#include "support/random_text_graph.h"

namespace lockstep {
namespace {

using lockstep::testing::Dice;
using lockstep::testing::random_any_graph;

constexpr std::string_view kStep = R"(
  var @w : f32[4] = f32[4]{*0.0}
  var @v : i32[]
  %x = placeholder() : f32[4]
  %y = placeholder() : f32[4]
  %a = op[k=1, f=0.0](%x, %y) : f32[4], f32[] on "cpu:0" after(%y, %x)
  %b = op(%a:1) : f32[4] {
    region {
      %p = placeholder() : f32[]
      %q = op(%p) : f32[]
      return %q
    }
  }
  return %a, %b
)";

// What a change of the text does to equality and hash.
void expect_difference(std::string_view from, std::string_view to, std::string_view difference) {
  std::string changed(kStep);
  const std::size_t at = changed.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  changed.replace(at, from.size(), to);
  const Graph a = parse(kStep);
  const Graph b = parse(changed);
  EXPECT_EQ(structural_difference(a, b), difference);
  EXPECT_EQ(structural_difference(b, a).empty(), difference.empty());
  EXPECT_EQ(same_structure(a, b), difference.empty());
  EXPECT_EQ(structural_hash(a) == structural_hash(b), difference.empty()) << from << " -> " << to;
}

TEST(Structure, AGraphIsLikeItself) {
  const Graph graph = parse(kStep);
  EXPECT_TRUE(same_structure(graph, graph));
  EXPECT_TRUE(same_structure(graph, Graph(graph)));
  EXPECT_EQ(structural_hash(graph), structural_hash(Graph(graph)));
  EXPECT_TRUE(same_structure(Graph(), Graph()));
  EXPECT_FALSE(same_structure(graph, Graph()));
}

TEST(Structure, EveryPartCounts) {
  expect_difference("%q = op(%p)", "%q = ops(%p)", "in b/region_0: node 'q': op 'op' against 'ops'");
  expect_difference("return %q", "return %p", "in b/region_0: result 0 is 'q' against 'p'");
  expect_difference("op(%a:1)", "op(%a)", "node 'b': input 0 is 'a':1 against 'a'");
  expect_difference("op(%a:1)", "op(%x)", "node 'b': input 0 is 'a':1 against 'x'");
  expect_difference("op(%a:1)", "op(%a:1, %x)", "node 'b': 1 inputs against 2");
  expect_difference("after(%y, %x)", "after(%y)", "node 'a': it runs after other nodes");
  expect_difference("k=1", "k=2", "node 'a': attribute 'k' is 1 against 2");
  expect_difference("k=1", "k=1.0", "node 'a': attribute 'k' is 1 against 1.0");
  expect_difference("f=0.0", "f=-0.0", "node 'a': attribute 'f' is 0.0 against -0.0");
  expect_difference("k=1, ", "", "node 'a': attribute 'k' is only in the first graph");
  expect_difference("k=1, ", "k=1, z=2, ", "node 'a': attribute 'z' is only in the second graph");
  expect_difference("f32[4], f32[]", "f32[4], f32[1]", "node 'a': the output specs differ");
  expect_difference("f32[4], f32[]", "f32[4], f64[]", "node 'a': the output specs differ");
  expect_difference("cpu:0", "cpu:1", "node 'a': device 'cpu:0' against 'cpu:1'");
  expect_difference("return %a, %b", "return %b, %a", "result 0 is 'a' against 'b'");
  expect_difference("return %a, %b", "return %a", "2 results against 1");
  expect_difference("{*0.0}", "{*1.0}", "variable '@w' starts with another value");
  expect_difference(" = f32[4]{*0.0}", "", "variable '@w' starts with another value");
  expect_difference("@v : i32[]", "@v : i32[1]", "variable '@v' is i32[] against i32[1]");
  expect_difference("@v : i32[]", "@v : i32[] [trainable=false]", "variable '@v' has other options");
  expect_difference("var @v : i32[]", "", "variable '@v' is only in the first graph");
  expect_difference("var @v : i32[]", "var @v : i32[]\nvar @u : i32[]",
                    "variable '@u' is only in the second graph");
  expect_difference("return %a, %b", "%c = op()\nreturn %a, %b", "node 'c' is only in the second graph");
}

TEST(Structure, ParametersCountInOrder) {
  const Graph a = parse(kStep);
  Graph b = a;
  b.set_parameters({a.parameters()[1], a.parameters()[0]});
  EXPECT_EQ(structural_difference(a, b), "parameter 0 is 'x' against 'y'");
  EXPECT_NE(structural_hash(a), structural_hash(b));
  b.set_parameters({});
  EXPECT_EQ(structural_difference(a, b), "2 parameters against 0");
}

TEST(Structure, OrderOfNodesControlsAndVariablesDoesNotCount) {
  expect_difference("after(%y, %x)", "after(%x, %y)", "");
  expect_difference("after(%y, %x)", "after(%x, %y, %x)", "");
  expect_difference("var @w : f32[4] = f32[4]{*0.0}\n  var @v : i32[]",
                    "var @v : i32[]\n  var @w : f32[4] = f32[4]{*0.0}", "");
  const Graph a = parse("%a = op()\n%b = op()\n%c = op()\n");
  const Graph b = parse("%c = op()\n%a = op()\n%b = op()\n");
  EXPECT_TRUE(same_structure(a, b));
  EXPECT_EQ(structural_hash(a), structural_hash(b));
}

TEST(Structure, IdsSitesAndProvenanceDoNotCount) {
  Graph a = parse(kStep, "one");
  Graph b = parse("%gone = op()\n\n" + std::string(kStep), "two");
  b.erase(b.find("gone"));
  EXPECT_TRUE(same_structure(a, b)) << structural_difference(a, b);
  EXPECT_EQ(structural_hash(a), structural_hash(b));
  b.compact();
  EXPECT_TRUE(same_structure(a, b));
}

TEST(Structure, LambdasAreEqualInTheSamePlace) {
  const auto with_lambda = [](const char* name) {
    GraphBuilder b;
    b.call(name, [] {});
    return b.finish();
  };
  EXPECT_TRUE(same_structure(with_lambda("a"), with_lambda("a")));
  EXPECT_EQ(structural_hash(with_lambda("a")), structural_hash(with_lambda("a")));
  EXPECT_FALSE(same_structure(with_lambda("a"), with_lambda("b")));
}

TEST(Structure, NodesThatAreGoneCompare) {
  Graph a = parse("%a = op() : f32[]\n%b = op(%a) after(%a)\nreturn %a\n");
  Graph b = a;
  a.erase(a.find("a"));
  EXPECT_FALSE(same_structure(a, b));
  EXPECT_FALSE(same_structure(b, a));
  b.erase(b.find("a"));
  EXPECT_TRUE(same_structure(a, b)) << structural_difference(a, b);
  EXPECT_EQ(structural_hash(a), structural_hash(b));
}

TEST(Structure, TheHashIsTheSameEverywhere) {
  // A fixed number: the hash must not depend on process, compiler or addresses.
  EXPECT_EQ(structural_hash(parse("%x = placeholder() : f32[4]\n%y = relu[k=1.5](%x) : f32[4]\nreturn %y\n")),
            12321669833390230177U);
}

TEST(Structure, RandomGraphsDiffer) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    const Graph graph = random_any_graph(dice, 3 + dice.below(20));
    hashes.insert(structural_hash(graph));
    EXPECT_EQ(structural_hash(graph), structural_hash(parse(print(graph))));
    Graph shuffled = graph;
    shuffled.compact();
    EXPECT_TRUE(same_structure(graph, shuffled)) << structural_difference(graph, shuffled);
    EXPECT_EQ(structural_hash(graph), structural_hash(shuffled));
  }
  EXPECT_EQ(hashes.size(), 200U);
}

TEST(Structure, AnyEditChangesTheHash) {
  Dice dice(99);
  for (int i = 0; i < 200; ++i) {
    const Graph graph = random_any_graph(dice, 4 + dice.below(10));
    Graph edited = graph;
    std::vector<NodeId> ids;
    for (const Node& node : graph.nodes()) ids.push_back(node.id());
    const NodeId id = dice.one_of(ids);
    switch (dice.below(5)) {
      case 0: edited.rename(id, graph.unique_name("another name")); break;
      case 1: edited.set_attribute(id, "a new attribute", std::int64_t{1}); break;
      case 2: edited.set_device(id, "cpu:99"); break;
      case 3: edited.add_result({id, 7}); break;
      default: edited.erase(id); break;
    }
    EXPECT_NE(structural_difference(graph, edited), "");
    EXPECT_NE(structural_hash(graph), structural_hash(edited));
  }
}

}  // namespace
}  // namespace lockstep

// Tests: graph/ir/attribute.cpp, graph/ir/graph.cpp, graph/ir/graph_parts.cpp, graph/ir/node.cpp,
//        graph/ir/variable_decl.cpp
#include "lockstep/graph/ir/graph.h"

#include <algorithm>
#include <set>
#include <vector>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::vec;

// x, y -> add -> relu, with a region, a variable and a device.
Graph sample() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value y = b.placeholder("y", DType::kF32, {2});
  const VariableRef v = b.variable("v", vec({1, 2}));
  const auto device = b.device("cpu:1");
  const Value sum = x + y;
  b.assign(v, cond(
                  b.constant(true), [&] { return std::vector<Value>{relu(sum)}; },
                  [&] { return std::vector<Value>{sum * 2.0F}; })[0]);
  b.result(sum);
  return b.finish();
}

NodeId add_relu(Graph& graph, std::string name, ValueId input) {
  NodeInit init;
  init.op = &OpRegistry::global().get("relu");
  init.name = std::move(name);
  init.inputs = {input};
  init.outputs = {graph.spec(input)};
  return graph.add(std::move(init));
}

TEST(Graph, CopiesAreIndependent) {
  Graph graph = sample();
  Graph copy = graph;
  EXPECT_TRUE(same_structure(graph, copy));
  const std::string before = print(graph);
  copy.rename(copy.find("add"), "sum");
  copy.set_device(copy.find("sum"), "cpu:0");
  copy.set_attribute(copy.find("constant"), "value", Tensor::scalar(false));
  copy.region(copy.find("cond"), 0).rename(copy.node(copy.find("cond")).regions()[0].find("relu"), "other");
  EXPECT_EQ(print(graph), before);
  EXPECT_NE(print(copy), before);
  graph = copy;
  EXPECT_EQ(print(graph), print(copy));
}

TEST(Graph, CopiesOutliveTheOriginal) {
  Graph copy;
  {
    const Graph graph = sample();
    copy = graph;
  }
  const Node& add = copy.node(copy.find("add"));
  EXPECT_EQ(add.device(), "cpu:1");
  EXPECT_THAT(add.site().file, HasSubstr("graph_test.cpp"));
  verify(copy);
}

TEST(Graph, AttributesOfAnotherNodeAreTakenWithoutACopyUntilTheyChange) {
  Graph graph;
  NodeInit init;
  init.op = &OpRegistry::global().get("constant");
  init.name = "a";
  init.attributes = {{"value", Tensor::scalar(1.0F)}};
  init.outputs = {{DType::kF32, {}}};
  const NodeId a = graph.add(init);
  NodeInit like = init;
  like.name = "b";
  like.attributes.clear();
  like.attributes_of = &graph.node(a);
  const NodeId b = graph.add(like);
  const Graph copy = graph;
  EXPECT_EQ(&graph.node(a).attributes(), &graph.node(b).attributes());
  EXPECT_EQ(&graph.node(a).attributes(), &copy.node(a).attributes());
  graph.set_attribute(b, "value", Tensor::scalar(2.0F));
  EXPECT_EQ(graph.node(a).find<Tensor>("value")->item(), 1);
  EXPECT_EQ(graph.node(b).find<Tensor>("value")->item(), 2);
  EXPECT_EQ(copy.node(b).find<Tensor>("value")->item(), 1);
  graph.remove_attribute(a, "value");
  EXPECT_TRUE(graph.node(a).attributes().empty());
  EXPECT_EQ(copy.node(a).find<Tensor>("value")->item(), 1);

  like.attributes_of = &graph.node(b);
  like.own_attributes()[0].value = Tensor::scalar(3.0F);
  like.name = "c";
  const NodeId c = graph.add(like);
  EXPECT_EQ(graph.node(c).find<Tensor>("value")->item(), 3);
  EXPECT_EQ(graph.node(b).find<Tensor>("value")->item(), 2);
}

TEST(Graph, MovedFromGraphsAreEmptyAndUsable) {
  Graph graph = sample();
  const std::string before = print(graph);
  Graph moved = std::move(graph);
  EXPECT_EQ(print(moved), before);
  EXPECT_EQ(graph.size(), 0U);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(graph.id_bound(), 0U);
  EXPECT_TRUE(graph.parameters().empty());
  EXPECT_TRUE(graph.variables().empty());
  EXPECT_FALSE(graph.find("add").valid());
  NodeInit init;
  init.op = &OpRegistry::global().get("constant");
  init.name = "add";
  init.attributes = {{"value", Tensor::scalar(1.0F)}};
  init.outputs = {{DType::kF32, {}}};
  init.site = SourceSite::current();
  const NodeId id = graph.add(std::move(init));
  EXPECT_EQ(graph.find("add"), id);
  EXPECT_THAT(graph.node(id).site().file, HasSubstr("graph_test.cpp"));
  graph = std::move(moved);
  EXPECT_EQ(print(graph), before);
}

TEST(Graph, MovesWithoutAllocating) {
  static_assert(std::is_nothrow_default_constructible_v<Graph>);
  static_assert(std::is_nothrow_move_constructible_v<Graph>);
  static_assert(std::is_nothrow_move_assignable_v<Graph>);
}

TEST(Graph, KeepsOpsThatNobodyRegisteredAndNoLonger) {
  std::weak_ptr<const OpDef> op;
  Graph kept;
  {
    Graph graph;
    const std::shared_ptr<const OpDef> made = OpRegistry::global().find_or_unknown("graph_test_unknown");
    op = made;
    EXPECT_EQ(OpRegistry::global().find_or_unknown("graph_test_unknown"), made);
    NodeInit init;
    init.op = made.get();
    init.name = "a";
    graph.add(std::move(init));
    NodeInit moved;
    moved.op = &graph.node(graph.find("a")).op();
    moved.name = "b";
    kept.add(std::move(moved));
    const Graph copy = graph;
    graph = Graph();
    EXPECT_EQ(copy.node(copy.find("a")).op().name, "graph_test_unknown");
  }
  EXPECT_FALSE(op.expired()) << "another graph has a node of it";
  EXPECT_EQ(kept.node(kept.find("b")).op().name, "graph_test_unknown");
  kept = Graph();
  EXPECT_TRUE(op.expired());
  EXPECT_EQ(OpRegistry::global().find("graph_test_unknown"), nullptr);
}

TEST(Graph, NodesKnowTheirGraphAfterAMove) {
  std::vector<Graph> graphs;
  for (int i = 0; i < 10; ++i) graphs.push_back(sample());  // moves as it grows
  for (const Graph& graph : graphs) {
    EXPECT_EQ(graph.node(graph.find("add")).device(), "cpu:1");
    EXPECT_GT(graph.node(graph.find("add")).site().line, 0U);
  }
}

TEST(Graph, NamesAreUniqueAndFound) {
  Graph graph = sample();
  EXPECT_THROW(add_relu(graph, "add", {graph.find("x"), 0}), InvalidArgument);
  EXPECT_THROW(add_relu(graph, "", {graph.find("x"), 0}), InvalidArgument);
  EXPECT_EQ(graph.unique_name("fresh"), "fresh");
  EXPECT_EQ(graph.unique_name("add"), "add_1");
  graph.rename(graph.find("add"), "sum");
  EXPECT_FALSE(graph.find("add").valid());
  EXPECT_TRUE(graph.find("sum").valid());
  EXPECT_THROW(graph.rename(graph.find("sum"), "x"), InvalidArgument);
  EXPECT_NO_THROW(graph.rename(graph.find("sum"), "sum"));
}

TEST(Graph, FindsEveryNameOfManyThroughErasuresAndRenames) {
  Graph graph;
  NodeInit init;
  init.op = &OpRegistry::global().get("constant");
  init.outputs = {{DType::kF32, {}}};
  for (int i = 0; i < 3000; ++i) {
    init.name = "n" + std::to_string(i);
    graph.add(NodeInit(init));
  }
  for (int i = 0; i < 3000; i += 3) graph.erase(NodeId(static_cast<std::size_t>(i)));
  for (int i = 1; i < 3000; i += 3)
    graph.rename(NodeId(static_cast<std::size_t>(i)), "m" + std::to_string(i));
  for (int i = 0; i < 3000; ++i) {
    const NodeId n = graph.find("n" + std::to_string(i));
    const NodeId m = graph.find("m" + std::to_string(i));
    EXPECT_EQ(n.valid(), i % 3 == 2);
    EXPECT_EQ(m.valid(), i % 3 == 1);
  }
  EXPECT_EQ(graph.size(), 2000U);
  graph.compact();
  for (int i = 0; i < 3000; ++i) {
    if (i % 3 == 0) continue;
    const NodeId id = graph.find((i % 3 == 1 ? "m" : "n") + std::to_string(i));
    ASSERT_TRUE(id.valid());
    EXPECT_LT(id.index(), 2000U);
  }
}

TEST(Graph, ReferencesSurviveGrowth) {
  Graph graph = sample();
  const Node& add = graph.node(graph.find("add"));
  for (int i = 0; i < 2000; ++i) add_relu(graph, graph.unique_name("r"), {add.id(), 0});
  EXPECT_EQ(add.name(), "add");
  EXPECT_EQ(&add, &graph.node(graph.find("add")));
}

// A loop over nodes() that adds and erases nodes comes to those that were there when it began, and ends.
TEST(Graph, NodesMayComeAndGoWhileALoopVisitsThem) {
  Graph graph = sample();
  std::vector<std::string> there, seen;
  for (const Node& node : graph.nodes()) there.push_back(node.name());
  const NodeId last = add_relu(graph, "last", {graph.find("x"), 0});
  for (const Node& node : graph.nodes()) {
    seen.push_back(node.name());
    const NodeId made = add_relu(graph, graph.unique_name("more"), {graph.find("x"), 0});
    if (graph.contains(last) && node.id() != last) graph.erase(last);
    graph.erase(made);
  }
  EXPECT_EQ(seen, there);
}

TEST(Graph, EraseLeavesAGapThatCompactCloses) {
  Graph graph = sample();
  const NodeId extra = add_relu(graph, "extra", {graph.find("x"), 0});
  const NodeId kept = add_relu(graph, "kept", {graph.find("x"), 0});
  graph.add_result({kept, 0});
  graph.erase(extra);
  EXPECT_FALSE(graph.contains(extra));
  EXPECT_EQ(graph.id_bound(), graph.size() + 1);
  EXPECT_THROW((void)graph.node(extra), Error);
  const std::string before = print(graph);
  const std::vector<NodeId> moved = graph.compact();
  EXPECT_EQ(graph.id_bound(), graph.size());
  EXPECT_FALSE(moved[extra.index()].valid());
  EXPECT_EQ(moved[kept.index()], graph.find("kept"));
  EXPECT_EQ(graph.results().back().node, graph.find("kept"));
  EXPECT_EQ(print(graph), before);
  verify(graph);
}

TEST(Graph, CompactPutsInputsFirst) {
  Graph graph = sample();
  const NodeId late = add_relu(graph, "late", {graph.find("x"), 0});
  graph.set_input(graph.find("add"), 1, {late, 0});
  graph.compact();
  EXPECT_LT(graph.find("late").index(), graph.find("add").index());
  for (const Node& node : graph.nodes()) {
    for (const ValueId input : node.inputs()) EXPECT_LT(input.node.index(), node.id().index());
    for (const NodeId control : node.controls()) EXPECT_LT(control.index(), node.id().index());
  }
  verify(graph);
}

TEST(Graph, KnowsWhichNodesHaveRegionsThroughEveryEdit) {
  Graph graph = parse(R"(
    %p = placeholder() : bool[]
    %a = cond(%p) : f32[] {
      region {
        %x = constant[value=f32[]{1.0}]() : f32[]
        return %x
      }
      region {
        %x = constant[value=f32[]{2.0}]() : f32[]
        return %x
      }
    }
    %n = neg(%a) : f32[]
    %b = cond(%p) : f32[] {
      region {
        %x = constant[value=f32[]{3.0}]() : f32[]
        return %x
      }
      region {
        %x = constant[value=f32[]{4.0}]() : f32[]
        return %x
      }
    }
    return %n, %b
  )");
  const auto owners = [](const Graph& of) {
    std::vector<std::string> names;
    for (const NodeId id : of.region_owners()) names.push_back(of.node(id).name());
    return names;
  };
  EXPECT_THAT(owners(graph), ElementsAre("a", "b"));
  const Graph copy = graph;
  EXPECT_THAT(owners(copy), ElementsAre("a", "b"));

  // b before a: compaction turns them round.
  graph.add_control(graph.find("a"), graph.find("b"));
  graph.compact();
  EXPECT_THAT(owners(graph), ElementsAre("b", "a"));
  graph.set_results({{graph.find("b"), 0}});
  graph.erase(graph.find("n"));
  graph.erase(graph.find("a"));
  EXPECT_THAT(owners(graph), ElementsAre("b"));
  graph.compact();
  EXPECT_THAT(owners(graph), ElementsAre("b"));
  const Graph moved = std::move(graph);
  EXPECT_THAT(owners(moved), ElementsAre("b"));
  EXPECT_TRUE(
      graph.region_owners().empty());  // NOLINT(bugprone-use-after-move): a moved-from graph is an empty one
  EXPECT_THAT(owners(copy), ElementsAre("a", "b"));
}

TEST(Graph, IdentityIsUniqueAndLasts) {
  Graph graph = sample();
  std::set<std::uint64_t> identities;
  for (const Node& node : graph.nodes()) {
    EXPECT_TRUE(identities.insert(node.provenance().identity).second);
    EXPECT_EQ(node.provenance().origin, node.provenance().identity) << "the user's own node";
    EXPECT_FALSE(node.provenance().made_by.valid());
    EXPECT_EQ(node.provenance().replica, -1);
  }
  const std::uint64_t identity = graph.node(graph.find("add")).provenance().identity;
  const Graph copy = graph;
  EXPECT_EQ(copy.node(copy.find("add")).provenance().identity, identity);
  graph.erase(graph.find("y"));
  graph.set_input(graph.find("add"), 1, {graph.find("x"), 0});
  graph.set_parameters({graph.find("x")});
  graph.compact();
  EXPECT_EQ(graph.node(graph.find("add")).provenance().identity, identity);
  const Graph other = sample();
  for (const Node& node : other.nodes()) EXPECT_FALSE(identities.contains(node.provenance().identity));
}

TEST(Graph, ProvenanceIsKept) {
  Graph graph = sample();
  const NodeId id = graph.find("add");
  Provenance provenance = graph.node(id).provenance();
  provenance.made_by = graph.intern("my-pass");
  provenance.why = graph.intern("because");
  provenance.replica = 3;
  graph.set_provenance(id, provenance);
  const Graph copy = graph;
  const Provenance& kept = copy.node(id).provenance();
  EXPECT_EQ(copy.text(kept.made_by), "my-pass");
  EXPECT_EQ(copy.text(kept.why), "because");
  EXPECT_EQ(kept.replica, 3);
  EXPECT_EQ(place_of(copy.node(id)).replica, 3);
}

TEST(Graph, TopologicalOrderKeepsIdsWhereItCan) {
  const Graph graph = sample();
  const std::vector<NodeId> order = graph.topological_order();
  ASSERT_EQ(order.size(), graph.size());
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i].index(), i);
}

TEST(Graph, TopologicalOrderFollowsEveryEdit) {
  using Edit = void (*)(Graph&, NodeId first, NodeId late);
  const std::vector<Edit> edits = {
      [](Graph& graph, NodeId first, NodeId late) {
        graph.set_input(first, 0, {late, 0});
      },
      [](Graph& graph, NodeId first, NodeId late) {
        graph.set_inputs(first, std::vector<ValueId>{{late, 0}});
      },
      [](Graph& graph, NodeId first, NodeId late) { graph.add_control(first, late); },
      [](Graph& graph, NodeId first, NodeId late) { graph.set_controls(first, std::vector<NodeId>{late}); }};
  for (const Edit edit : edits) {
    Graph graph = sample();
    const NodeId first = add_relu(graph, "first", {graph.find("x"), 0});
    const NodeId late = add_relu(graph, "late", {graph.find("x"), 0});
    edit(graph, first, late);
    const auto comes_first = [](const Graph& of, NodeId a, NodeId b) {
      const std::vector<NodeId> order = of.topological_order();
      return std::ranges::find(order, a) < std::ranges::find(order, b);
    };
    EXPECT_TRUE(comes_first(graph, late, first));
    const Graph copy = graph;
    EXPECT_TRUE(comes_first(copy, late, first));
    Graph moved = std::move(graph);
    EXPECT_TRUE(comes_first(moved, late, first));
    moved.compact();
    EXPECT_LT(moved.find("late"), moved.find("first"));
    EXPECT_TRUE(comes_first(moved, moved.find("late"), moved.find("first")));
    edit(moved, moved.find("late"), add_relu(moved, "later", {moved.find("x"), 0}));
    EXPECT_TRUE(comes_first(moved, moved.find("later"), moved.find("late"))) << "after it was in order again";
  }
}

TEST(Graph, CyclesAreShownAsAPath) {
  Graph graph;
  NodeInit init;
  init.op = &OpRegistry::global().get("constant");
  init.name = "start";
  init.outputs = {{DType::kF32, {}}};
  const NodeId start = graph.add(std::move(init));
  const NodeId a = add_relu(graph, "a", {start, 0});
  const NodeId b = add_relu(graph, "b", {a, 0});
  const NodeId c = add_relu(graph, "c", {b, 0});
  graph.set_input(a, 0, {c, 0});
  std::vector<NodeId> cycle;
  EXPECT_EQ(graph.topological_order(&cycle).size(), 4U);
  ASSERT_EQ(cycle.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {  // each feeds the next, the last feeds the first
    const NodeId next = cycle[(i + 1) % 3];
    EXPECT_EQ(graph.node(next).inputs()[0].node, cycle[i]);
  }
}

TEST(Graph, EditsDoWhatTheySay) {
  Graph graph = sample();
  const NodeId id = graph.find("add");
  const NodeId x = graph.find("x");
  graph.add_control(id, x);
  graph.add_control(id, x);
  EXPECT_EQ(graph.node(id).controls().size(), 1U);
  graph.set_controls(id, {});
  EXPECT_TRUE(graph.node(id).controls().empty());
  graph.set_attribute(id, "b", std::int64_t{1});
  graph.set_attribute(id, "a", 2.0);
  graph.set_attribute(id, "b", std::int64_t{3});
  EXPECT_EQ(*graph.node(id).find<std::int64_t>("b"), 3);
  EXPECT_EQ(graph.node(id).find<std::int64_t>("a"), nullptr) << "another type";
  EXPECT_EQ(graph.node(id).attributes()[0].name, "a") << "sorted";
  graph.remove_attribute(id, "a");
  EXPECT_EQ(graph.node(id).find<double>("a"), nullptr);
  graph.set_device(id, "");
  EXPECT_EQ(graph.node(id).device(), "");
  const TensorSpec spec{DType::kF64, {7}};
  graph.set_outputs(id, {&spec, 1});
  EXPECT_EQ(graph.spec({id, 0}), spec);
  EXPECT_TRUE(graph.has_output({id, 0}));
  EXPECT_FALSE(graph.has_output({id, 1}));
}

TEST(Graph, ADeclaredVariableKeepsItsNatureWhenItIsRedeclared) {
  Graph graph;
  const TensorSpec spec{DType::kF32, Shape{2}};
  graph.declare_variable({.name = "w", .spec = spec, .initial = {}});
  graph.declare_variable({.name = "c", .spec = spec, .initial = {}, .copy_of = "w", .replica = 1});
  VariableDecl copy = *graph.find_variable("c");
  copy.device = "cpu:1";
  copy.shares = true;
  graph.redeclare_variable(copy);
  EXPECT_EQ(graph.variables()[1].device, "cpu:1");
  EXPECT_TRUE(graph.find_variable("c")->shares);
  VariableDecl other = copy;
  other.copy_of.clear();
  EXPECT_THROW(graph.redeclare_variable(other), InvalidArgument);
  other = copy;
  other.spec.dtype = DType::kF64;
  EXPECT_THROW(graph.redeclare_variable(other), InvalidArgument);
  other = copy;
  other.name = "nobody";
  EXPECT_THROW(graph.redeclare_variable(other), InvalidArgument);
  other = *graph.find_variable("w");
  other.shares = true;
  EXPECT_THROW(graph.redeclare_variable(other), InvalidArgument);
  EXPECT_EQ(graph.variables().size(), 2U);
}

TEST(Graph, RemovesAndReshapesVariables) {
  Graph graph;
  const TensorSpec spec{DType::kF32, {2}};
  for (const char* name : {"a", "w", "z"})
    graph.declare_variable({.name = name, .spec = spec, .initial = {}});
  graph.declare_variable({.name = "w/replica_1", .spec = spec, .initial = {}, .copy_of = "w", .replica = 1});
  VariableDecl w = *graph.find_variable("w");
  w.spec.shape = Shape{3, 4};
  graph.redeclare_variable(w);
  EXPECT_EQ(graph.find_variable("w/replica_1")->spec.shape, (Shape{3, 4})) << "copies follow";
  w.spec.shape = Shape{kUnknown};
  EXPECT_THROW(graph.redeclare_variable(w), InvalidArgument);
  graph.remove_variable("w");
  EXPECT_EQ(graph.variables().size(), 2U);
  EXPECT_EQ(graph.find_variable("w"), nullptr);
  EXPECT_EQ(graph.find_variable("w/replica_1"), nullptr);
  EXPECT_EQ(graph.find_variable("z")->name, "z");
  EXPECT_THROW(graph.remove_variable("w"), InvalidArgument);
  graph.declare_variable({.name = "w", .spec = spec, .initial = {}});
  EXPECT_EQ(graph.find_variable("w")->name, "w");
}

TEST(Graph, ChecksWhatCopiesAre) {
  Graph graph;
  const TensorSpec spec{DType::kF32, {2}};
  VariableDecl sliced{.name = "s", .spec = spec, .initial = {}};
  sliced.aggregation = Aggregation::kSlices;
  EXPECT_THROW(graph.declare_variable(sliced), InvalidArgument) << "not on read";
  sliced.synchronization = Synchronization::kOnRead;
  sliced.slice_axis = 1;
  EXPECT_THROW(graph.declare_variable(sliced), InvalidArgument) << "no such axis";
  sliced.slice_axis = 0;
  sliced.slice_extent = 3;
  graph.declare_variable(sliced);
  VariableDecl plain{.name = "p", .spec = spec, .initial = {}};
  plain.slice_extent = 3;
  EXPECT_THROW(graph.declare_variable(plain), InvalidArgument) << "no slices";
  plain.slice_extent = 0;
  graph.declare_variable(plain);
  VariableDecl copy{.name = "c", .spec = spec, .initial = Tensor::zeros({2}), .copy_of = "p", .replica = 1};
  EXPECT_THROW(graph.declare_variable(copy), InvalidArgument) << "kept equal";
}

TEST(Graph, EffectsAndVariableUsesReachIntoRegions) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", vec({1}));
  const VariableRef w = b.variable("w", vec({1}));
  const Value x = b.constant(vec({1}));
  const Value outer = cond(
      b.constant(true),
      [&] {
        return cond(
            b.constant(false), [&] { return std::vector<Value>{b.assign(v, x) + b.read(w)}; },
            [&] { return std::vector<Value>{x}; });
      },
      [&] { return std::vector<Value>{x}; })[0];
  const Node& node = b.graph().node(outer.id().node);
  EXPECT_TRUE(has(effects_of(node), Effect::kWritesVariable));
  EXPECT_TRUE(has(effects_of(node), Effect::kReadsVariable));
  EXPECT_FALSE(has(effects_of(node), Effect::kHost));
  const std::vector<VariableUse> uses = variable_uses(node);
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].name, "v");
  EXPECT_TRUE(uses[0].writes);
  EXPECT_FALSE(uses[0].reads);
  EXPECT_EQ(uses[1].name, "w");
  EXPECT_TRUE(uses[1].reads);
}

}  // namespace
}  // namespace lockstep

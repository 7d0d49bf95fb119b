// Tests: graph/transform/pass.cpp, graph/transform/rewriter.cpp
#include "lockstep/graph/transform/rewriter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/transform/pass.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph diamond() {
  return parse(R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %b = add(%a, %x) : f32[4]
      %u = assign[variable=@w](%b) : f32[4] after(%a)
      return %a, %b
    )",
               "diamond.lks");
}

void expect_text(const Graph& graph, std::string_view expected) {
  verify(graph);
  const std::string wanted = print(parse(expected));
  EXPECT_EQ(print(graph), wanted) << testing::line_diff(wanted, print(graph));
}

TEST(Rewriter, KnowsWhoReadsWhat) {
  Graph graph = diamond();
  const Rewriter edit(graph, "test");
  const NodeId x = graph.find("x");
  const NodeId a = graph.find("a");
  const NodeId b = graph.find("b");
  const NodeId u = graph.find("u");
  EXPECT_THAT(edit.uses({x, 0}), ElementsAre(Use{a, 0}, Use{b, 1}));
  EXPECT_THAT(edit.uses({a, 0}), ElementsAre(Use{b, 0}, Use{NodeId(), 0}));
  EXPECT_THAT(edit.control_users(a), ElementsAre(u));
  EXPECT_TRUE(edit.is_used(a));
  EXPECT_FALSE(edit.is_used(u));
  EXPECT_FALSE(edit.changed());
}

TEST(Rewriter, ReplacedUsesFollowAtOnce) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  const NodeId x = graph.find("x");
  const NodeId a = graph.find("a");
  edit.replace_uses({a, 0}, {x, 0});
  EXPECT_TRUE(edit.changed());
  EXPECT_TRUE(edit.uses({a, 0}).empty());
  EXPECT_EQ(edit.uses({x, 0}).size(), 4U);
  edit.erase(a);
  expect_text(graph, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %b = add(%x, %x) : f32[4]
      %u = assign[variable=@w](%b) : f32[4]
      return %x, %b
    )");
}

TEST(Rewriter, ManyUsesFollowAtOnceEachItsOwn) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %s = all_reduce[reduce="sum", replicas=2](%x, %x) : f32[4], f32[4]
      %a = relu(%s:0) : f32[4]
      %b = add(%s:1, %a) : f32[4]
      return %s:1, %b, %a
    )");
  Rewriter edit(graph, "test");
  const NodeId x = graph.find("x"), s = graph.find("s"), a = graph.find("a");
  edit.replace_uses({{{s, 1}, {s, 0}}, {{a, 0}, {x, 0}}});
  EXPECT_TRUE(edit.uses({s, 1}).empty());
  EXPECT_THAT(edit.uses({s, 0}), ElementsAre(Use{a, 0}, Use{graph.find("b"), 0}, Use{NodeId(), 0}));
  edit.erase(a);
  expect_text(graph, R"(
      %x = placeholder() : f32[4]
      %s = all_reduce[reduce="sum", replicas=2](%x, %x) : f32[4], f32[4]
      %b = add(%s, %x) : f32[4]
      return %s, %b, %x
    )");
}

TEST(Rewriter, ErasingWhatIsReadIsRefused) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  try {
    edit.erase(graph.find("a"));
    FAIL() << "erased a node that is read";
  } catch (const PassError& error) {
    EXPECT_EQ(error.pass(), "test");
    EXPECT_THAT(error.what(), HasSubstr("erases 'a', which "));
    EXPECT_EQ(error.place().node, "a");
    EXPECT_EQ(error.place().line, 4U);
  }
}

// What is made of a gradient is a share of it until replicas combine it, and so is the way back through a
// collective of the forward pass.
TEST(Rewriter, WhatIsMadeOfAGradientIsAShareUntilItIsCombined) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[4]
      %g = relu(%x) : f32[4] gradient
      %back = all_reduce[reduce="sum"](%g) : f32[4] gradient
      return %back
    )");
  Rewriter edit(graph, "test");
  const NodeId g = graph.find("g"), back = graph.find("back");
  const auto mark = [&](NodeId id) { return graph.node(id).provenance().gradient; };
  const auto sum_of = [&](NodeId of, NodeId origin) {
    return edit.insert({.op = "all_reduce",
                        .inputs = {{of, 0}},
                        .attributes = {{"reduce", std::string("sum")}},
                        .origin = origin});
  };
  const NodeId scaled = edit.insert({.op = "neg", .inputs = {{g, 0}}, .origin = g});
  const NodeId total = sum_of(scaled, g);
  const NodeId after = edit.insert({.op = "neg", .inputs = {{total, 0}}, .origin = g});
  const NodeId later = edit.insert({.op = "neg", .inputs = {{graph.find("x"), 0}}, .origin = after});
  const NodeId other = edit.insert({.op = "neg", .inputs = {{g, 0}}});
  EXPECT_EQ(mark(scaled), GradientMark::kShare);
  EXPECT_EQ(mark(total), GradientMark::kSummed);
  EXPECT_EQ(mark(after), GradientMark::kSummed);
  EXPECT_EQ(mark(later), GradientMark::kNone) << "it has nothing of a gradient";
  EXPECT_EQ(mark(other), GradientMark::kShare);
  EXPECT_EQ(mark(sum_of(g, back)), GradientMark::kShare);
  const ValueId in{scaled, 0};
  const auto make = [](GraphBuilder&, std::span<const Value> values) {
    const Value half = values[0] * 0.5F;
    return std::vector<Value>{half, all_reduce(ReduceOp::kSum, half)};
  };
  const std::vector<ValueId> built = edit.build({&in, 1}, make, {.origin = g});
  EXPECT_EQ(mark(built[0].node), GradientMark::kShare);
  EXPECT_EQ(mark(built[1].node), GradientMark::kSummed);
  EXPECT_EQ(mark(edit.clone(back, "", {{in}})), GradientMark::kShare);
  edit.become(scaled, {.op = "square", .inputs = {{g, 0}}});
  EXPECT_EQ(mark(scaled), GradientMark::kShare);

  // What stands beside a gradient is none; what takes its place is.
  const NodeId one = edit.insert(
      {.op = "constant", .attributes = {{"value", Tensor::full(DType::kF32, {4}, 1)}}, .origin = g});
  EXPECT_EQ(mark(one), GradientMark::kNone);
  EXPECT_EQ(mark(edit.insert({.op = "mul", .inputs = {{total, 0}, {one, 0}}, .origin = g})),
            GradientMark::kSummed);
  edit.replace_uses({other, 0}, {one, 0});
  EXPECT_EQ(mark(one), GradientMark::kShare);
}

TEST(Rewriter, InsertInfersNamesAndRecordsWhereItComesFrom) {
  Graph graph = diamond();
  Rewriter edit(graph, "scale");
  const NodeId a = graph.find("a");
  const NodeId made = edit.insert(
      {.op = "mul", .name = "a", .inputs = {{a, 0}, {a, 0}}, .origin = a, .replica = 2, .why = "squared"});
  const Node& node = graph.node(made);
  EXPECT_EQ(node.name(), "a_1");
  EXPECT_EQ(node.outputs()[0], (TensorSpec{DType::kF32, {4}}));
  EXPECT_EQ(node.site().line, 4U);
  EXPECT_EQ(node.provenance().origin, graph.node(a).provenance().origin);
  EXPECT_NE(node.provenance().identity, graph.node(a).provenance().identity);
  EXPECT_EQ(graph.text(node.provenance().made_by), "scale");
  EXPECT_EQ(graph.text(node.provenance().why), "squared");
  EXPECT_EQ(node.provenance().replica, 2);
  EXPECT_EQ(edit.uses({a, 0}).size(), 4U);
}

TEST(Rewriter, AValueCanBeWrapped) {
  Graph graph = diamond();
  Rewriter edit(graph, "wrap");
  const NodeId a = graph.find("a");
  const NodeId wrapper = edit.insert({.op = "identity", .name = "wrapped", .inputs = {{a, 0}}, .origin = a});
  const ValueId to{wrapper, 0};
  edit.replace_node(a, {&to, 1});
  expect_text(graph, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = relu(%x) : f32[4]
      %wrapped = identity(%a) : f32[4]
      %b = add(%wrapped, %x) : f32[4]
      %u = assign[variable=@w](%b) : f32[4] after(%wrapped)
      return %wrapped, %b
    )");
}

TEST(Rewriter, WhatInferenceRefusesNamesThePassAndTheOrigin) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  const NodeId a = graph.find("a");
  try {
    edit.insert({.op = "matmul", .inputs = {{a, 0}, {a, 0}}, .origin = a});
    FAIL() << "made a product of vectors";
  } catch (const PassError& error) {
    EXPECT_THAT(error.message(), HasSubstr("test: cannot make 'matmul': takes two matrices"));
    EXPECT_EQ(error.place().node, "a");
  }
  EXPECT_THROW(edit.insert({.op = "mtmul"}), PassError);
  EXPECT_THROW(edit.insert({.op = "relu"}), PassError);
  EXPECT_FALSE(edit.changed());
}

TEST(Rewriter, ANodeCanBecomeAnotherInPlace) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  const NodeId a = graph.find("a");
  const NodeId b = graph.find("b");
  const NodeId x = graph.find("x");
  const Provenance before = graph.node(a).provenance();
  edit.become(a, {.op = "mul", .inputs = {{x, 0}, {x, 0}}, .why = "squared"});
  edit.become(b, {.op = "constant", .attributes = {{"value", Tensor::zeros({4})}}});
  EXPECT_THAT(edit.uses({x, 0}), ElementsAre(Use{a, 0}, Use{a, 1}));
  EXPECT_THAT(edit.uses({a, 0}), ElementsAre(Use{NodeId(), 0}));
  EXPECT_EQ(graph.node(a).provenance().origin, before.origin);
  EXPECT_NE(graph.node(a).provenance().identity, before.identity);
  EXPECT_EQ(graph.text(graph.node(a).provenance().why), "squared");
  EXPECT_THROW(edit.become(a, {.op = "relu"}), PassError);
  expect_text(graph, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %a = mul(%x, %x) : f32[4]
      %b = constant[value=f32[4]{*0.0}]() : f32[4]
      %u = assign[variable=@w](%b) : f32[4] after(%a)
      return %a, %b
    )");
}

TEST(Rewriter, CloneKeepsEverythingButInputsAndName) {
  Graph graph = diamond();
  Rewriter edit(graph, "replicate");
  const NodeId b = graph.find("b");
  const NodeId x = graph.find("x");
  const ValueId inputs[] = {{x, 0}, {x, 0}};
  const NodeId copy = edit.clone(b, "replica_1/b", inputs, 1);
  EXPECT_EQ(graph.node(copy).name(), "replica_1/b");
  EXPECT_EQ(graph.node(copy).op().name, "add");
  EXPECT_EQ(graph.node(copy).provenance().origin, graph.node(b).provenance().origin);
  EXPECT_EQ(graph.node(copy).provenance().replica, 1);
  EXPECT_EQ(edit.uses({x, 0}).size(), 4U);
}

TEST(Rewriter, InlinesARegion) {
  Graph graph = parse(R"(
      var @w : f32[]
      %x = placeholder() : f32[]
      %y = placeholder() : f32[]
      %r = replicated[replicas=2, shared=0](%x, %y) : f32[], f32[] {
        region {
          %v = placeholder() : f32[]
          %n = constant[value=f32[]{2.0}]() : f32[]
          %s = mul(%v, %n) : f32[]
          %u = assign_add[variable=@w](%s) : f32[] after(%n)
          return %s
        }
      }
      return %r, %r:1
    )");
  Rewriter edit(graph, "replicate");
  const NodeId r = graph.find("r");
  const Graph region = graph.node(r).regions()[0];
  std::vector<ValueId> results;
  for (std::uint32_t replica = 0; replica < 2; ++replica) {
    const ValueId argument = graph.node(r).inputs()[replica];
    const std::vector<ValueId> made =
        edit.inline_region(region, {&argument, 1}, str("replica_", replica),
                           static_cast<std::int32_t>(replica), "once per replica");
    results.insert(results.end(), made.begin(), made.end());
  }
  edit.replace_node(r, results);
  edit.erase(r);
  edit.add_control(graph.find("replica_1/u"), graph.find("replica_0/u"));  // both write the variable
  expect_text(graph, R"(
      var @w : f32[]
      %x = placeholder() : f32[]
      %y = placeholder() : f32[]
      %replica_0/n = constant[value=f32[]{2.0}]() : f32[] replica 0
      %replica_0/s = mul(%x, %replica_0/n) : f32[] replica 0
      %replica_0/u = assign_add[variable=@w](%replica_0/s) : f32[] replica 0 after(%replica_0/n)
      %replica_1/n = constant[value=f32[]{2.0}]() : f32[] replica 1
      %replica_1/s = mul(%y, %replica_1/n) : f32[] replica 1
      %replica_1/u = assign_add[variable=@w](%replica_1/s) : f32[] replica 1 after(%replica_1/n, %replica_0/u)
      return %replica_0/s, %replica_1/s
    )");
  const Node& copy = graph.node(graph.find("replica_1/s"));
  EXPECT_EQ(copy.provenance().replica, 1);
  EXPECT_EQ(copy.provenance().origin, region.node(region.find("s")).provenance().origin);
}

TEST(Rewriter, InliningWithTheWrongNumberOfArgumentsIsRefused) {
  Graph graph = diamond();
  const Graph region = parse("%v = placeholder() : f32[4]\nreturn %v\n");
  Rewriter edit(graph, "test");
  EXPECT_THROW(edit.inline_region(region, {}, "inner"), PassError);
}

TEST(Rewriter, ErasedNodesHandTheirOrderOn) {
  Graph graph = parse(R"(
      var @w : f32[]
      var @v : f32[]
      %x = placeholder() : f32[]
      %first = assign[variable=@w](%x) : f32[]
      %a = relu(%first) : f32[]
      %b = relu(%x) : f32[] after(%a)
      %second = assign[variable=@v](%x) : f32[] after(%b)
    )");
  Rewriter edit(graph, "test");
  edit.erase(graph.find("b"));
  expect_text(graph, R"(
      var @w : f32[]
      var @v : f32[]
      %x = placeholder() : f32[]
      %first = assign[variable=@w](%x) : f32[]
      %a = relu(%first) : f32[]
      %second = assign[variable=@v](%x) : f32[] after(%a)
    )");
  edit.erase(graph.find("a"));
  EXPECT_THAT(edit.control_users(graph.find("first")), ElementsAre(graph.find("second")));
}

TEST(Rewriter, SmallEditsSayWhetherTheyChangedAnything) {
  Graph graph = diamond();
  const NodeId a = graph.find("a");
  const NodeId b = graph.find("b");
  const NodeId x = graph.find("x");
  {
    Rewriter edit(graph, "test");
    edit.set_input(b, 1, {x, 0});
    edit.set_device(a, "");
    edit.set_results(graph.results());
    edit.add_control(graph.find("u"), a);
    edit.rename(a, "a");
    edit.set_attribute(graph.find("u"), "variable", VariableRef{"w"});
    EXPECT_FALSE(edit.changed());
  }
  Rewriter edit(graph, "test");
  edit.set_input(b, 1, {a, 0});
  edit.set_device(a, "cpu:0");
  edit.set_results({{b, 0}});
  edit.add_control(b, x);
  edit.rename(a, "b");  // taken: the next free one
  EXPECT_TRUE(edit.changed());
  expect_text(graph, R"(
      var @w : f32[4]
      %x = placeholder() : f32[4]
      %b_1 = relu(%x) : f32[4] on "cpu:0"
      %b = add(%b_1, %b_1) : f32[4] after(%x)
      %u = assign[variable=@w](%b) : f32[4] after(%b_1)
      return %b
    )");
  EXPECT_THAT(edit.uses({a, 0}), ElementsAre(Use{b, 0}, Use{b, 1}));
  EXPECT_THAT(edit.uses({b, 0}), ElementsAre(Use{graph.find("u"), 0}, Use{NodeId(), 0}));
}

TEST(Rewriter, VisitsEveryLevelInnermostFirst) {
  Graph graph = parse(R"(
      %p = placeholder() : bool[]
      %c = cond(%p) : f32[] {
        region {
          %one = constant[value=f32[]{1.0}]() : f32[]
          return %one
        }
        region {
          %two = constant[value=f32[]{2.0}]() : f32[]
          return %two
        }
      }
      return %c
    )");
  std::vector<std::string> seen;
  for_each_level(graph, [&](Graph& level) { seen.push_back(level.node(level.results()[0].node).name()); });
  EXPECT_THAT(seen, ElementsAre("one", "two", "c"));
}

// --- building

TEST(Rewriter, BuildsWithFunctionsOfOps) {
  Graph graph = diamond();
  const NodeId b = graph.find("b");
  {
    Rewriter edit(graph, "test");
    const ValueId inputs[] = {{b, 0}, {graph.find("x"), 0}};
    const NodeId written[] = {graph.find("u")};
    const std::vector<ValueId> made = edit.build(
        inputs,
        [](GraphBuilder& builder, std::span<const Value> v) {
          const Value chosen = cond(
              sum(v[1]) > 0.F, [&] { return std::vector{v[0] * 2.F}; }, [&] { return std::vector{v[0]}; })[0];
          return std::vector{chosen + builder.read({"w"})};
        },
        {.origin = b, .scope = "new", .why = "to see", .after = written});
    edit.set_results({made[0]});
  }
  verify(graph);
  const Node& made = graph.node(graph.results()[0].node);
  EXPECT_EQ(made.name(), "new/add");
  EXPECT_EQ(graph.text(made.provenance().made_by), "test");
  EXPECT_EQ(graph.text(made.provenance().why), "to see");
  EXPECT_EQ(made.provenance().origin, graph.node(b).provenance().origin);
  EXPECT_EQ(made.site().line, graph.node(b).site().line);
  EXPECT_TRUE(graph.find("new/cond").valid()) << print(graph);
}

// A shape operand is derived from constants and shapes: they are there while nodes are built, and not made again.
TEST(Rewriter, BuildsWithShapes) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[?,2]
      %y = placeholder() : f32[?]
      %s = shape_of(%x) : i64[2]
      %two = constant[value=i64[2]{1,2}]() : i64[2]
      %t = mul(%s, %two) : i64[2]
      return %y
    )");
  {
    Rewriter edit(graph, "test");
    const ValueId inputs[] = {{graph.find("y"), 0}, {graph.find("s"), 0}, {graph.find("t"), 0}};
    const std::vector<ValueId> made =
        edit.build(inputs,
                   [](GraphBuilder&, std::span<const Value> v) {
                     return std::vector{reshape(v[0], v[1]), full(v[2].builder(), DType::kF32, v[2], 1)};
                   },
                   {.origin = graph.find("y")});
    edit.set_results(made);
  }
  expect_text(graph, R"(
      %x = placeholder() : f32[?,2]
      %y = placeholder() : f32[?]
      %s = shape_of(%x) : i64[2]
      %two = constant[value=i64[2]{1,2}]() : i64[2]
      %t = mul(%s, %two) : i64[2]
      %reshape = reshape(%y, %s) : f32[?,2]
      %full = full[dtype=f32, value=1.0](%t) : f32[?,4]
      return %reshape, %full
    )");
}

TEST(Rewriter, BuildNamesTheLinesOfItsInputs) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  const ValueId inputs[] = {{graph.find("b"), 0}};
  try {
    edit.build(inputs,
               [](GraphBuilder&, std::span<const Value> v) { return std::vector{matmul(v[0], v[0])}; }, {});
    FAIL() << "it was built";
  } catch (const PassError& error) {
    EXPECT_THAT(error.what(), HasSubstr("f32[4] made at diamond.lks:5"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("rewriter")));
    EXPECT_EQ(error.place().line, 5U);
  }
}

TEST(Rewriter, ANodeThatIsSoAlreadyBecomesNothing) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  const NodeId a = graph.find("a"), x = graph.find("x");
  edit.become(a, {.op = "relu", .inputs = {{x, 0}}});
  EXPECT_FALSE(edit.changed());
  edit.become(a, {.op = "neg", .inputs = {{x, 0}}});
  EXPECT_TRUE(edit.changed());
}

TEST(Rewriter, BuildSaysWhatIsWrong) {
  Graph graph = diamond();
  Rewriter edit(graph, "test");
  const NodeId a = graph.find("a");
  const ValueId inputs[] = {{a, 0}};
  const auto refused = [&](const Rewriter::BuildFn& make) -> std::string {
    try {
      edit.build(inputs, make, {.origin = a});
    } catch (const PassError& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string shapes =
      refused([](GraphBuilder&, std::span<const Value> v) { return std::vector{matmul(v[0], v[0])}; });
  EXPECT_THAT(shapes, HasSubstr("test: cannot build: matmul"));
  EXPECT_THAT(shapes, HasSubstr("diamond.lks:4"));
  EXPECT_THAT(refused([](GraphBuilder& b, std::span<const Value> v) {
                b.variable("fresh", Tensor::scalar(1.F));
                return std::vector<Value>(v.begin(), v.end());
              }),
              HasSubstr("Graph::declare_variable"));
  EXPECT_FALSE(edit.changed());
}

}  // namespace
}  // namespace lockstep

// Tests: graph/interpret/evaluator.cpp, graph/interpret/interpreter.cpp, graph/ir/evaluate_node.cpp,
//        graph/ops/control_flow.cpp
#include "lockstep/graph/interpret/interpreter.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/program.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> floats(const Tensor& tensor) {
  const std::span<const float> values = tensor.data<float>();
  return {values.begin(), values.end()};
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// What runs as it is, without a strategy, is a group of one: in programs as in the interpreter.
TEST(Interpreter, AGatherThatNobodyJoinedGathersOneValue) {
  for (const char* text : {"%x = placeholder() : f32[2]\n"
                           "%y = all_gather[replicas=0](%x) : f32[?]\n"
                           "return %y\n",
                           "%x = placeholder() : f32[2]\n"
                           "%p = constant[value=bool[]{true}]() : bool[]\n"
                           "%y = cond(%p, %x) : f32[?] {\n"
                           "  region {\n"
                           "    %x = placeholder() : f32[2]\n"
                           "    %y = all_gather[replicas=0](%x) : f32[?]\n"
                           "    return %y\n"
                           "  }\n"
                           "  region {\n"
                           "    %x = placeholder() : f32[2]\n"
                           "    return %x\n"
                           "  }\n"
                           "}\n"
                           "return %y\n"}) {
    const Graph graph = parse(text);
    const Tensor x = Tensor::from<float>({2}, {3, 4});
    EXPECT_THAT(floats(Interpreter(graph).run({{"x", x}}).at(0)), ElementsAre(3, 4));
    EXPECT_THAT(floats(compile(graph, Runtime()).run({{"x", x}}).at(0)), ElementsAre(3, 4));
  }
}

TEST(Interpreter, RunsNodesInOrder) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(relu(x * 2.0F - 1.0F));
  b.result(x);
  Interpreter interpreter(b.finish());
  const std::vector<Tensor> results = interpreter.run({{"x", Tensor::from<float>({2}, {3, -1})}});
  EXPECT_THAT(floats(results[0]), ElementsAre(5, 0));
  EXPECT_THAT(floats(results[1]), ElementsAre(3, -1));
  EXPECT_EQ(interpreter.step(), 0U) << "a step without state does not count";
}

TEST(Interpreter, ResultsShareNothingWithTheCaller) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1});
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {1}, 7));
  b.result(identity(x));
  b.result(b.read(w));
  b.result(b.constant(Tensor::full(DType::kF32, {1}, 9)));
  Interpreter interpreter(b.finish());
  const Tensor feed = Tensor::full(DType::kF32, {1}, 3);
  for (int i = 0; i < 2; ++i) {
    std::vector<Tensor> results = interpreter.run({{"x", feed}});
    EXPECT_EQ(results[0].item(), 3);
    EXPECT_EQ(results[1].item(), 7);
    EXPECT_EQ(results[2].item(), 9);
    for (Tensor& result : results) result.data<float>()[0] = -1;
  }
  EXPECT_EQ(feed.item(), 3);
}

TEST(Interpreter, RunsNothingThatNobodyNeeds) {
  int dead = 0;
  int live = 0;
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value far = b.constant(Tensor::scalar(std::int64_t{100}));
  gather(x, far);  // would throw
  const auto counter = [](int& count) {
    return [&count](KernelContext& c) {
      ++count;
      *static_cast<float*>(c.output(0)) = 1;
    };
  };
  const TensorSpec scalar{DType::kF32, {}};
  b.call("dead", {}, {&scalar, 1}, counter(dead), {.effects = Effect::kPure});
  b.call("live", {}, {&scalar, 1}, counter(live), {.effects = Effect::kHost});
  b.result(x);
  Interpreter interpreter(b.finish());
  EXPECT_EQ(interpreter.run({{"x", Tensor::zeros({2})}}).size(), 1U);
  EXPECT_EQ(dead, 0);
  EXPECT_EQ(live, 1);
}

// A walk over its rows would not end.
TEST(Interpreter, ComputesNothingForValuesWithoutElements) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {std::int64_t{1} << 40, 0});
  b.result(log_softmax(x));
  EXPECT_EQ(
      Interpreter(b.finish()).run({Tensor::zeros(DType::kF64, {std::int64_t{1} << 40, 0})})[0].num_elements(),
      0);
}

TEST(Interpreter, ShapesThatWereUnknownAreInferredFromTheFeeds) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  b.result(sum(matmul(x, b.constant(Tensor::full(DType::kF32, {2, 3}, 1))), {0}));
  Interpreter interpreter(b.finish());
  EXPECT_THAT(floats(interpreter.run({{"x", Tensor::full(DType::kF32, {5, 2}, 1)}})[0]),
              ElementsAre(10, 10, 10));
  EXPECT_THAT(floats(interpreter.run({{"x", Tensor::full(DType::kF32, {0, 2}, 1)}})[0]),
              ElementsAre(0, 0, 0));
}

TEST(Interpreter, FeedsAreCheckedBeforeAnythingRuns) {
  GraphBuilder b;
  int calls = 0;
  b.call("count", [&] { ++calls; });
  const Value x = b.placeholder("x", DType::kF32, {kUnknown, 2});
  const Value y = b.placeholder("y", DType::kI32, {});
  b.result(x);
  b.result(y);
  Interpreter interpreter(b.finish());
  const Tensor good_x = Tensor::zeros({3, 2});
  const Tensor good_y = Tensor::scalar<std::int32_t>(1);
  using Feeds = Interpreter::Feeds;
  EXPECT_THAT(error_of([&] {
                interpreter.run(Feeds{{"x", good_x}});
              }),
              HasSubstr("placeholder 'y' expects i32[] and was not fed"));
  EXPECT_THAT(error_of([&] {
                interpreter.run(Feeds{{"x", good_x}, {"y", good_y}, {"z", good_y}});
              }),
              HasSubstr("'z' is fed but is no placeholder; the graph expects 'x' f32[?,2], 'y' i32[]"));
  EXPECT_THAT(error_of([&] {
                interpreter.run(Feeds{{"x", good_x}, {"y", good_x}});
              }),
              HasSubstr("placeholder 'y' expects i32[], got f32[3,2]"));
  EXPECT_THAT(error_of([&] {
                interpreter.run(Feeds{{"x", Tensor::zeros({3, 3})}, {"y", good_y}});
              }),
              HasSubstr("placeholder 'x' expects f32[?,2], got f32[3,3]"));
  EXPECT_THAT(error_of([&] {
                interpreter.run(Feeds{{"x", Tensor()}, {"y", good_y}});
              }),
              HasSubstr("an empty tensor handle"));
  EXPECT_THAT(error_of([&] { interpreter.run({good_x}); }),
              HasSubstr("got 1 feed; the graph expects 'x' f32[?,2]"));
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(interpreter.run({good_x, good_y}).size(), 2U);
  EXPECT_EQ(calls, 1);
}

TEST(Interpreter, VariablesLiveBetweenRuns) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {}, 10));
  const Value before = b.read(w);
  const Value updated = b.assign_add(w, b.constant(2.0F));
  const Value after = b.read(w);
  b.result(before);
  b.result(updated);
  b.result(after);
  Interpreter interpreter(b.finish());
  EXPECT_EQ(interpreter.variables().at("w").item(), 10);
  for (int step = 0; step < 3; ++step) {
    const std::vector<Tensor> results = interpreter.run();
    EXPECT_EQ(results[0].item(), 10 + 2 * step);
    EXPECT_EQ(results[1].item(), 12 + 2 * step);
    EXPECT_EQ(results[2].item(), 12 + 2 * step);
  }
  EXPECT_EQ(interpreter.step(), 3U);
  interpreter.set_variable("w", Tensor::scalar(0.0F));
  EXPECT_EQ(interpreter.run()[0].item(), 0);
  EXPECT_THROW(interpreter.set_variable("v", Tensor::scalar(0.0F)), NotFound);
  EXPECT_THROW(interpreter.set_variable("w", Tensor::scalar(0)), InvalidArgument);
}

TEST(Interpreter, AStepThatFailsDidNotHappen) {
  GraphBuilder b;
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {}, 1));
  const Value x = b.placeholder("x", DType::kF32, {});
  const Value updated = b.assign_add(w, x);
  const TensorSpec spec{DType::kF32, {}};
  const auto checks = [](KernelContext& c) {
    if (c.input<float>(0)[0] > 5) throw std::runtime_error("too large");
    c.output<float>(0)[0] = c.input<float>(0)[0];
  };
  const std::uint32_t line = __LINE__ + 1;
  b.result(b.call("check", {&updated, 1}, {&spec, 1}, checks)[0]);
  Interpreter interpreter(b.finish());
  interpreter.run({{"x", Tensor::scalar(2.0F)}});
  try {
    interpreter.run({{"x", Tensor::scalar(40.0F)}});
    FAIL() << "the step did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.place().node, "check");
    EXPECT_EQ(error.place().op, "call");
    EXPECT_EQ(error.place().line, line);
    EXPECT_THAT(error.message(), HasSubstr("too large"));
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
  EXPECT_EQ(interpreter.variables().at("w").item(), 3);
  EXPECT_EQ(interpreter.step(), 1U);
  EXPECT_EQ(interpreter.run({{"x", Tensor::scalar(1.0F)}})[0].item(), 4);
}

TEST(Interpreter, RandomNumbersFollowSeedAndStep) {
  GraphBuilder b;
  b.result(b.random_uniform({DType::kF32, {8}}));
  b.result(b.random_uniform({DType::kF32, {8}}));
  const Graph graph = b.finish();
  Interpreter one(graph, {.seed = 1});
  Interpreter again(graph, {.seed = 1});
  Interpreter other(graph, {.seed = 2});
  const std::vector<Tensor> first = one.run();
  EXPECT_FALSE(first[0].bit_equal(first[1])) << "two draws have two keys";
  EXPECT_TRUE(first[0].bit_equal(again.run()[0]));
  EXPECT_FALSE(first[0].bit_equal(other.run()[0]));
  EXPECT_FALSE(first[0].bit_equal(one.run()[0])) << "the next step draws anew";
  one.set_step(0);
  EXPECT_TRUE(first[0].bit_equal(one.run()[0]));
}

TEST(Interpreter, RunsOneBranch) {
  GraphBuilder b;
  const Value p = b.placeholder("p", DType::kBool, {});
  const Value x = b.placeholder("x", DType::kF32, {});
  const VariableRef w = b.variable("w", Tensor::full(DType::kF32, {}, 0));
  b.result(cond(
      p, [&] { return std::vector<Value>{b.assign_add(w, x)}; },
      [&] { return std::vector<Value>{x * 2.0F}; })[0]);
  Interpreter interpreter(b.finish());
  EXPECT_EQ(interpreter.run({{"p", Tensor::scalar(false)}, {"x", Tensor::scalar(3.0F)}})[0].item(), 6);
  EXPECT_EQ(interpreter.variables().at("w").item(), 0);
  EXPECT_EQ(interpreter.run({{"p", Tensor::scalar(true)}, {"x", Tensor::scalar(3.0F)}})[0].item(), 3);
  EXPECT_EQ(interpreter.variables().at("w").item(), 3);
}

TEST(Interpreter, RepeatsALoopWithCapturedValues) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  const Value limit = b.placeholder("limit", DType::kF32, {});
  b.result(while_loop(
      {&x, 1}, [&](std::span<const Value> v) { return less(v[0], limit); },
      [&](std::span<const Value> v) { return std::vector<Value>{v[0] + v[0]}; })[0]);
  const Graph graph = b.finish();
  Interpreter interpreter(graph);
  EXPECT_EQ(interpreter.run({{"x", Tensor::scalar(1.0F)}, {"limit", Tensor::scalar(100.0F)}})[0].item(), 128);
  EXPECT_EQ(interpreter.run({{"x", Tensor::scalar(5.0F)}, {"limit", Tensor::scalar(1.0F)}})[0].item(), 5);
  Interpreter bounded(graph, {.max_trips = 10});
  EXPECT_THAT(error_of([&] {
                bounded.run({{"x", Tensor::scalar(0.0F)}, {"limit", Tensor::scalar(1.0F)}});
              }),
              HasSubstr("the loop ran 10 times"));
}

TEST(Interpreter, RunsARegionOncePerReplica) {
  GraphBuilder b;
  const Value s = b.placeholder("s", DType::kI32, {});
  const Value x0 = b.placeholder("x0", DType::kI32, {});
  const Value x1 = b.placeholder("x1", DType::kI32, {});
  const Value shared[] = {s};
  const std::vector<Value> per_replica[] = {{x0, x1}};
  const auto results = replicated(b, 2, shared, per_replica, [&](std::span<const Value> v) {
    return std::vector<Value>{v[0] + v[1], replica_id(v[0].builder())};
  });
  for (const std::vector<Value>& result : results) {
    for (const Value& of_replica : result) b.result(of_replica);
  }
  Interpreter interpreter(b.finish());
  const auto scalar = [](std::int32_t v) { return Tensor::scalar(v); };
  const std::vector<Tensor> out = interpreter.run({{"s", scalar(100)}, {"x0", scalar(1)}, {"x1", scalar(2)}});
  ASSERT_EQ(out.size(), 4U);
  EXPECT_EQ(out[0].item(), 101);
  EXPECT_EQ(out[1].item(), 102);
  EXPECT_EQ(out[2].item(), 0);
  EXPECT_EQ(out[3].item(), 1);
}

TEST(Interpreter, ReplicasDrawTheirOwnNumbers) {
  Interpreter interpreter(parse(R"(
      %r = replicated[replicas=2, shared=0]() : f32[4], f32[4] {
        region {
          %u = random_uniform[dtype=f32, high=1.0, key=5, low=0.0, shape=<4>]() : f32[4]
          return %u
        }
      }
      %alone = random_uniform[dtype=f32, high=1.0, key=5, low=0.0, shape=<4>]() : f32[4]
      return %r, %r:1, %alone
    )"));
  const std::vector<Tensor> out = interpreter.run();
  EXPECT_FALSE(out[0].bit_equal(out[1]));
  EXPECT_TRUE(out[0].bit_equal(out[2])) << "replica 0 draws what a graph without replicas draws";
}

TEST(Interpreter, AnErrorInsideARegionNamesTheNodeThereAndTheReplica) {
  GraphBuilder b;
  const Value shared[] = {b.placeholder("x", DType::kF32, {})};
  replicated(b, 3, shared, {}, [&](std::span<const Value> v) {
    const TensorSpec spec{DType::kF32, {}};
    const auto fails = [](KernelContext& c) {
      if (c.replica() == 2) throw std::runtime_error("no");
      c.output<float>(0)[0] = 0;
    };
    return v[0].builder().call("inner", v.first(1), {&spec, 1}, fails);
  });
  Interpreter interpreter(b.finish());
  try {
    interpreter.run({{"x", Tensor::scalar(1.0F)}});
    FAIL() << "the step did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.place().node, "inner");
    EXPECT_EQ(error.place().replica, 2);
  }
}

TEST(Interpreter, AnOpWithoutAKernelSaysSo) {
  static const bool registered = [] {
    OpDef def;
    def.name = "test_no_kernel";
    def.infer = [](InferContext& c) { c.add_output(DType::kF32, Shape{}); };
    OpRegistry::global().add(std::move(def));
    return true;
  }();
  ASSERT_TRUE(registered);
  Interpreter interpreter(parse("%a = test_no_kernel() : f32[]\nreturn %a\n"));
  EXPECT_THAT(error_of([&] { interpreter.run(); }), HasSubstr("op 'test_no_kernel' has no CPU kernel"));
}

TEST(Interpreter, RefusesAGraphThatDoesNotVerify) {
  Graph graph = parse("%x = placeholder() : f32[]\n%a = relu(%x) : f32[]\nreturn %a\n");
  graph.set_input(graph.find("a"), 0, {graph.find("a"), 0});
  EXPECT_THROW(Interpreter{graph}, VerifyError);
}

}  // namespace
}  // namespace lockstep

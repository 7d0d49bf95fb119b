// Tests: graph/run/region_kernels.cpp
// Regions are planned and run like the graph around them.
#include <atomic>
#include <mutex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/run/observer.h"
#include "lockstep/graph/text/text.h"
#include "support/gradient_check.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using ::testing::HasSubstr;
using testing::random_tensor;
using testing::vec;

// Three trips of a body with a product that is cut into several calls; odd trips take another branch.
Graph heavy_loop(std::int64_t n) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {n, n});
  const VariableRef total = b.variable("total", Tensor::scalar(0.0));
  const Value start = b.constant(std::int64_t{0});
  const std::vector<Value> end = while_loop(
      std::vector<Value>{start, x}, [](std::span<const Value> now) { return now[0] < 3; },
      [&](std::span<const Value> now) -> std::vector<Value> {
        const Value product = matmul(now[1], x) * (1.0 / static_cast<double>(n));
        const Value odd = equal(mod(now[0], 2), 1);
        const Value next = cond(
            odd, [&]() -> std::vector<Value> { return {tanh(product)}; },
            [&]() -> std::vector<Value> { return {product + now[1]}; })[0];
        b.assign_add(total, sum(next));
        return {now[0] + 1, next};
      });
  b.result(end[1]);
  return b.finish();
}

TEST(ProgramRegions, LargeBodiesAgreeWithTheInterpreterOnAnyNumberOfThreads) {
  const Graph graph = heavy_loop(384);
  const Tensor x = random_tensor({384, 384}, 1);
  Interpreter oracle(graph);
  const std::vector<Tensor> expected = oracle.run({x});
  for (const std::size_t threads : {1U, 2U, 4U}) {
    const Program program = compile(graph, Runtime({.threads = threads}));
    for (int run = 0; run < 3; ++run) {
      const std::vector<Tensor> got = program.run(std::vector<Tensor>{x});
      EXPECT_TRUE(got[0].bit_equal(expected[0])) << threads << " threads";
      if (run == 0) {
        EXPECT_TRUE(program.variables().value("total").bit_equal(oracle.variables().at("total")));
      }
    }
  }
}

TEST(ProgramRegions, ObserversSeeTheNodesInside) {
  class Names : public Observer {
   public:
    void on_run_begin(const RunEvent&) noexcept override { ++runs; }
    void on_run_end(const RunEvent&) noexcept override {}
    void on_node_begin(const NodeEvent& event) noexcept override {
      const std::lock_guard<std::mutex> lock(mutex);
      ++begun;
      ops.insert(event.node.op().name);
    }
    void on_node_end(const NodeEvent&) noexcept override { ++ended; }
    std::mutex mutex;
    std::set<std::string> ops;
    int runs = 0;
    std::atomic<int> begun{0}, ended{0};
  };
  const Program program = compile(heavy_loop(8), Runtime({.threads = 1}));
  Names seen;
  RunOptions options;
  options.observer = &seen;
  program.run(std::vector<Tensor>{random_tensor({8, 8}, 1)}, options);
  EXPECT_EQ(seen.runs, 1);
  EXPECT_EQ(seen.begun, seen.ended);
  for (const char* op : {"while_loop", "cond", "matmul", "tanh", "less", "assign_add"}) {
    EXPECT_TRUE(seen.ops.contains(op)) << op;
  }
}

TEST(ProgramRegions, ABodyMayKnowMoreOfWhatItGivesThanOfWhatItGets) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  const Value doubled = while_loop(
      std::vector<Value>{x}, [](std::span<const Value> now) { return less(sum(now[0]), 10.0F); },
      [](std::span<const Value> now) -> std::vector<Value> { return {reshape(now[0] * 2, Shape{2})}; })[0];
  EXPECT_EQ(doubled.shape(), Shape{kUnknown});  // it may make no trip
  b.result(doubled);
  const Graph graph = b.finish();
  const Program program = compile(graph, Runtime());
  for (const auto& [feed, expected] :
       {std::pair<Tensor, Tensor>{vec({1, 2}), vec({4, 8})}, {vec({20, 0}), vec({20, 0})}}) {
    EXPECT_TRUE(Interpreter(graph).run(std::vector<Tensor>{feed})[0].bit_equal(expected));
    EXPECT_TRUE(program.run(std::vector<Tensor>{feed})[0].bit_equal(expected));
  }
}

TEST(ProgramRegions, ABodyMustKeepTheShapeThatTheLoopIsGiven) {
  const auto loop = [](const char* given, const char* result) {
    return str("%x = placeholder() : ", given, "\n%y = while_loop[carried=1](%x) : ", given,
               " {\n region {\n %a = placeholder() : f32[?]\n %c = constant[value=bool[]{false}]() : bool[]\n"
               " return %c\n }\n region {\n %a = placeholder() : f32[?]\n %b = reshape[shape=<",
               result, ">](%a) : f32[", result, "]\n return %b\n }\n}\nreturn %y\n");
  };
  EXPECT_NO_THROW(verify(parse(loop("f32[2]", "2"))));
  EXPECT_NO_THROW(verify(parse(loop("f32[?]", "2"))));
  EXPECT_THAT(caught([&] { verify(parse(loop("f32[2]", "3"))); }).what,
              HasSubstr("carried value 0 goes in as f32[2] and comes out as f32[3]"));
}

TEST(ProgramRegions, AFailureInsideNamesTheNodeAndChangesNothing) {
  GraphBuilder b;
  const Value ids = b.placeholder("ids", DType::kI64, {4});
  const Value table = b.constant(Tensor::from<double>({3}, {1, 2, 3}));
  const VariableRef total = b.variable("total", Tensor::scalar(0.0));
  const Value start = b.constant(std::int64_t{0});
  b.result(while_loop(
      std::vector<Value>{start}, [](std::span<const Value> now) { return now[0] < 4; },
      [&](std::span<const Value> now) -> std::vector<Value> {
        const Value picked = gather(table, gather(ids, now[0]));
        b.assign_add(total, picked);
        return {now[0] + 1};
      })[0]);
  const Program program = compile(b.finish(), Runtime());
  const auto error = caught([&] {
    program.run(std::vector<Tensor>{Tensor::from<std::int64_t>({4}, {0, 1, 9, 2})});
  });
  EXPECT_TRUE(error.run_error);
  EXPECT_THAT(error.what, HasSubstr("gather"));
  EXPECT_THAT(error.what, HasSubstr("program_regions_test.cpp"));
  EXPECT_EQ(program.variables().value("total").item(), 0);
  program.run(std::vector<Tensor>{Tensor::from<std::int64_t>({4}, {0, 1, 2, 2})});
  EXPECT_EQ(program.variables().value("total").item(), 9);
}

TEST(ProgramRegions, ABoundEndsALoopThatWouldGoOn) {
  GraphBuilder b;
  const Value start = b.constant(std::int64_t{0});
  const auto count = [&](std::int64_t bound) {
    return while_loop(
        std::vector<Value>{start}, [](std::span<const Value> now) { return now[0] < 1000; },
        [](std::span<const Value> now) -> std::vector<Value> { return {now[0] + 1}; }, LoopOptions{bound})[0];
  };
  for (const std::int64_t bound : {0, 7, 2000}) b.result(count(bound));
  const Graph graph = b.finish();
  const std::vector<Tensor> expected = Interpreter(graph).run();
  const std::vector<Tensor> got = compile(graph, Runtime()).run();
  const double values[] = {0, 7, 1000};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(expected[i].item(), values[i]);
    EXPECT_EQ(got[i].item(), values[i]);
  }
}

TEST(ProgramRegions, BranchesThatGiveTwoExtentsSayWhatToDo) {
  GraphBuilder b;
  const Value p = b.placeholder("p", DType::kBool, {});
  const Value x = b.placeholder("x", DType::kF32, {3});
  b.result(cond(
      p, [&] { return std::vector<Value>{slice(x, {0}, {2})}; },
      [&] { return std::vector<Value>{x * 2.0F}; })[0]);
  const testing::Caught error = testing::caught([&] { compile(b.finish(), Runtime()); });
  EXPECT_THAT(error.what, ::testing::HasSubstr("pad what they give to one extent, or reduce it inside"));
}

}  // namespace
}  // namespace lockstep

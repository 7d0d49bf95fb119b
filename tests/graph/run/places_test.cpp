// Tests: graph/run/plan.cpp, graph/run/compile.cpp, graph/run/program.cpp, graph/run/storage_plan.cpp
// Where programs find and leave values, and what they say if that cannot be.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "support/far_devices.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::far_pool;
using testing::far_runtime;
using testing::floats;
using ::testing::HasSubstr;
using testing::kFarA;
using testing::kFarB;
using testing::vec;

const std::string kGpu0 = Device::parse("gpu:0").to_string();
const std::string kGpu1 = Device::parse("gpu:1").to_string();

// y = x * 2 + (1, 2), on a device.
Graph doubled(const std::string& device) {
  GraphBuilder b;
  b.result(b.placeholder("x", DType::kF32, {2}) * 2.F + b.constant(vec({1, 2})));
  Graph graph = b.finish();
  for (const Node& node : graph.nodes()) graph.set_device(node.id(), device);
  return graph;
}

TEST(Places, ResultsStayWhereTheyAreMade) {
  const Program program = compile(doubled(kGpu0), far_runtime());
  const std::vector<Tensor> results = program.run({{"x", vec({3, 4})}});
  EXPECT_EQ(results[0].memory(), kFarA);
  EXPECT_EQ(floats(results[0].host()), (std::vector<float>{7, 10}));
  EXPECT_THAT(caught([&] { results[0].data<float>(); }).what, HasSubstr("host()"));
}

TEST(Places, ResultsGoToTheMemoryThatTheCallerGives) {
  const Runtime runtime = far_runtime();
  const Program program = compile(doubled(kGpu0), runtime);
  for (const char* device : {"cpu:0", "gpu:0", "gpu:1"}) {
    std::vector<Tensor> results{Tensor::zeros({2}).to(Device::parse(device), runtime)};
    program.run_into(std::vector<Tensor>{vec({3, 4})}, results);
    EXPECT_EQ(floats(results[0].host()), (std::vector<float>{7, 10})) << device;
  }
  EXPECT_EQ(program.cached_plans(), 3U);  // one for each memory; run() has that of gpu:0
  program.run({{"x", vec({3, 4})}});
  EXPECT_EQ(program.cached_plans(), 3U);
}

// What is there already is not moved.
TEST(Places, APlanIsForTheMemoriesOfItsFeeds) {
  const Runtime runtime = far_runtime();
  const Program program = compile(doubled(kGpu0), runtime);
  const std::vector<Tensor> here{vec({3, 4})};
  const std::vector<Tensor> there{vec({3, 4}).to(Device::parse("gpu:0"), runtime)};
  const std::vector<Tensor> elsewhere{vec({3, 4}).to(Device::parse("gpu:1"), runtime)};
  const std::vector<Tensor> beside{vec({3, 4}).to(Device::parse("gpu:2"), runtime)};  // the memory of gpu:0
  EXPECT_EQ(program.plan(there).calls, 2U);
  EXPECT_EQ(program.plan(here).calls, 3U);
  EXPECT_EQ(program.plan(elsewhere).calls, 3U);
  EXPECT_EQ(program.plan(beside).calls, 2U);
  EXPECT_EQ(program.cached_plans(), 3U);
  for (const auto& feeds : {here, there, elsewhere, beside})
    EXPECT_EQ(floats(program.run(feeds)[0].host()), (std::vector<float>{7, 10}));
  EXPECT_EQ(program.cached_plans(), 3U);
}

TEST(Places, ConstantsAreUploadedOncePerPlan) {
  const Runtime runtime = far_runtime();
  const Program program = compile(doubled(kGpu1), runtime);
  std::vector<Tensor> results{Tensor::zeros({2}).to(far_pool(kFarB))};
  const std::vector<Tensor> feeds{vec({3, 4}).to(far_pool(kFarB))};
  program.run_into(feeds, results);
  const std::int64_t before = far_pool(kFarB)->stats().allocations;
  for (int i = 0; i < 5; ++i) program.run_into(feeds, results);
  EXPECT_EQ(far_pool(kFarB)->stats().allocations, before);
  EXPECT_EQ(floats(results[0].host()), (std::vector<float>{7, 10}));
}

TEST(Places, FeedsAndResultsOfAMemoryThatTheRuntimeDoesNotKnow) {
  const auto other = std::make_shared<testing::FarPool>(MemoryId{77});
  const Program program = compile(doubled(kGpu0), far_runtime());
  const std::vector<Tensor> feeds{vec({3, 4}).to(other)};
  EXPECT_EQ(floats(program.run(feeds)[0].host()), (std::vector<float>{7, 10}));
  std::vector<Tensor> results{Tensor::zeros({2}).to(other)};
  program.run_into(feeds, results);
  EXPECT_EQ(floats(results[0].host()), (std::vector<float>{7, 10}));
}

// w += x, with w declared on one device and the update on another.
Graph counter(const std::string& home, const std::string& device) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const VariableRef w = b.variable("w", vec({10, 20}));
  b.result(b.read(w) * 1.F);
  b.assign_add(w, x);
  Graph graph = b.finish();
  for (const Node& node : graph.nodes()) graph.set_device(node.id(), device);
  VariableDecl decl = graph.variables()[0];
  decl.device = home;
  graph.redeclare_variable(decl);
  return graph;
}

TEST(Places, VariablesLiveWhereTheyAreDeclared) {
  for (const std::string& device : {kGpu0, kGpu1, std::string()}) {
    const Program program = compile(counter(kGpu0, device), far_runtime());
    VariableStore& store = program.variables();
    EXPECT_EQ(store.find("w")->memory(), kFarA);
    for (int i = 0; i < 3; ++i) program.run({{"x", vec({1, 2})}});
    EXPECT_EQ(floats(store.value("w")), (std::vector<float>{13, 26}));
    EXPECT_EQ(floats(store.committed("w")), (std::vector<float>{13, 26}));
    store.set("w", vec({5, 6}));
    EXPECT_EQ(floats(program.run({{"x", vec({1, 2})}})[0].host()), (std::vector<float>{5, 6}));
    store.reset("w");
    EXPECT_EQ(floats(store.value("w")), (std::vector<float>{10, 20}));
    EXPECT_EQ(store.find("w")->memory(), kFarA);
  }
}

// Without a place of its own a variable is used where it is.
TEST(Places, AVariableThatIsDeclaredNowhereIsFoundAnywhere) {
  const Runtime runtime = far_runtime();
  const Program first = compile(counter(kGpu1, kGpu1), runtime);
  const Program second = compile(counter("", ""), runtime);
  first.run({{"x", vec({1, 2})}});
  EXPECT_EQ(floats(second.run({{"x", vec({1, 2})}})[0].host()), (std::vector<float>{11, 22}));
  EXPECT_EQ(floats(runtime.variables()->value("w")), (std::vector<float>{12, 24}));
}

TEST(Places, AVariableFoundElsewhereIsRefusedByBothPlaces) {
  const Runtime runtime = far_runtime();
  const Program first = compile(counter(kGpu0, kGpu0), runtime);
  const auto error = caught([&] { compile(counter(kGpu1, kGpu1), runtime); });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr(str("variable 'w' lies in the memory of ", kGpu0)));
  EXPECT_THAT(error.what, HasSubstr(str("and is declared for ", kGpu1)));
  EXPECT_THAT(error.what, HasSubstr("places_test.cpp:"));
  EXPECT_THAT(error.what, HasSubstr("VariableStore::erase()"));
  EXPECT_EQ(floats(first.run({{"x", vec({1, 2})}})[0].host()), (std::vector<float>{10, 20}));
  // The same memory by another name is no other place.
  EXPECT_NO_THROW(compile(counter(Device::parse("gpu:2").to_string(), kGpu0), runtime));
}

TEST(Places, ADeviceThatDoesNotExistIsRefused) {
  const Runtime runtime = far_runtime();
  EXPECT_THAT(caught([&] { compile(counter(Device::parse("gpu:7").to_string(), kGpu0), runtime); }).what,
              HasSubstr("gpu:7"));
  EXPECT_THAT(caught([&] { compile(doubled(Device::parse("gpu:7").to_string()), runtime); }).what,
              HasSubstr("gpu:7"));
}

TEST(Places, AMissingKernelNamesTheNodeTheDeviceAndTheRemedy) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const TensorSpec spec = x.spec();
  b.result(b.call("mine", {&x, 1}, {&spec, 1}, [](KernelContext&) {})[0]);
  Graph graph = b.finish();
  for (const Node& node : graph.nodes()) graph.set_device(node.id(), kGpu0);
  const auto error = caught([&] { compile(graph, far_runtime()); });
  EXPECT_THAT(error.what, HasSubstr("has no kernel for"));
  EXPECT_THAT(error.what, HasSubstr("OpRegistry::add_kernel"));
  EXPECT_EQ(error.place.node, "mine");
}

// Values cross into and out of regions whose nodes are elsewhere.
TEST(Places, RegionsKnowTheMemoryOfWhatGoesInAndOut) {
  for (const char* loop_device : {"cpu:0", "gpu:0", "gpu:1"}) {
    for (const char* body_device : {"cpu:0", "gpu:0", "gpu:1"}) {
      GraphBuilder b;
      const Value x = b.placeholder("x", DType::kF32, {2});
      const std::vector<Value> last = while_loop(
          std::vector<Value>{x, b.constant(vec({1, 1}))},
          [](std::span<const Value> now) { return sum(now[0]) < 100.F; },
          [](std::span<const Value> now) -> std::vector<Value> {
            return {now[0] + now[1], now[1] * 2.F};
          });
      const Value branch = cond(
          sum(last[0]) > 1.F, [&]() -> std::vector<Value> { return {last[0] * 2.F}; },
          [&]() -> std::vector<Value> { return {last[1]}; })[0];
      b.result(branch);
      b.result(last[1]);
      Graph graph = b.finish();
      const auto put = [&](auto& self, Graph& level, const char* device) -> void {
        for (std::size_t i = 0; i < level.id_bound(); ++i) {
          if (!level.contains(NodeId(i))) continue;
          level.set_device(NodeId(i), Device::parse(device).to_string());
          for (std::size_t r = 0; r < level.node(NodeId(i)).regions().size(); ++r)
            self(self, level.region(NodeId(i), r), body_device);
        }
      };
      put(put, graph, loop_device);
      const Program program = compile(graph, far_runtime());
      const std::vector<Tensor> results = program.run({{"x", vec({1, 2})}});
      EXPECT_EQ(floats(results[0].host()), (std::vector<float>{128, 130})) << loop_device << body_device;
      EXPECT_EQ(floats(results[1].host()), (std::vector<float>{64, 64})) << loop_device << body_device;
    }
  }
}

}  // namespace
}  // namespace lockstep

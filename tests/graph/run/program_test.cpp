// Tests: graph/run/compile.cpp, graph/run/program.cpp, graph/run/plan_cache.cpp, graph/run/feed_check.cpp,
//        graph/run/run_context.cpp
#include "lockstep/graph/run/program.h"

#include <array>
#include <future>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::Caught;
using ::testing::ElementsAre;
using testing::floats;
using ::testing::HasSubstr;
using testing::list;
using testing::vec;
using testing::with_lanes;

// 2x + y over an unknown batch.
Graph affine() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  const Value y = b.placeholder("y", DType::kF32, {kUnknown});
  b.result(x * 2.0F + y);
  return b.finish();
}

// --- ways to run

TEST(Program, RunsByPosition) {
  const Program program = compile(affine(), Runtime());
  EXPECT_THAT(floats(program.run(list({vec({1, 2}), vec({10, 20})}))[0]), ElementsAre(12, 24));
}

TEST(Program, RunsByNameInAnyOrder) {
  const Program program = compile(affine(), Runtime());
  EXPECT_THAT(floats(program.run({{"y", vec({10, 20})}, {"x", vec({1, 2})}})[0]), ElementsAre(12, 24));
}

TEST(Program, RunsIntoTheCallersMemory) {
  const Program program = compile(affine(), Runtime());
  std::vector<float> memory(2, -1);
  std::vector<Tensor> results = {Tensor::view(DType::kF32, {2}, memory.data())};
  program.run_into(list({vec({1, 2}), vec({3, 4})}), results);
  EXPECT_THAT(memory, ElementsAre(5, 8));
}

TEST(Program, RunsAsynchronouslyManyTimesAtOnce) {
  const Program program = compile(affine(), Runtime({.threads = 2}), with_lanes());
  std::vector<std::future<std::vector<Tensor>>> futures;
  for (int i = 0; i < 64; ++i) {
    futures.push_back(program.run_async(list({vec({static_cast<float>(i)}), vec({1})})));
  }
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(futures[static_cast<std::size_t>(i)].get()[0].item(), 2.0 * i + 1);
  }
}

TEST(Program, AsynchronousFailuresComeThroughTheFuture) {
  GraphBuilder b;
  b.call("bad", [] { throw std::domain_error("not today"); });
  const Program program = compile(b.finish(), Runtime());
  std::future<std::vector<Tensor>> future = program.run_async();
  const Caught error = caught([&] { future.get(); });
  EXPECT_TRUE(error.run_error);
  EXPECT_EQ(error.place.node, "bad");
}

TEST(Program, AsynchronousRunsRefuseWrongFeedsAtOnce) {
  const Program program = compile(affine(), Runtime());
  EXPECT_THROW(program.run_async(list({vec({1})})), InvalidArgument);
}

TEST(Program, IsACheapHandle) {
  Program copy;
  {
    const Program program = compile(affine(), Runtime());
    copy = program;
  }
  EXPECT_THAT(floats(copy.run(list({vec({1}), vec({1})}))[0]), ElementsAre(3));
}

TEST(Program, ThatIsEmptySaysSo) {
  const Program program;
  const std::string hint = "make one with compile()";
  std::vector<Tensor> results;
  EXPECT_THAT(caught([&] { program.run(); }).what, HasSubstr(hint));
  EXPECT_THAT(caught([&] { program.run({{"x", vec({1})}}); }).what, HasSubstr(hint));
  EXPECT_THAT(caught([&] { program.run_into({}, results); }).what, HasSubstr(hint));
  EXPECT_THAT(caught([&] { program.run_async(); }).what, HasSubstr(hint));
  EXPECT_THAT(caught([&] { program.plan(); }).what, HasSubstr(hint));
  EXPECT_EQ(caught([&] { program.graph(); }).code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(caught([&] { program.variables(); }).code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(caught([&] { program.cached_plans(); }).code, ErrorCode::kFailedPrecondition);
}

TEST(Program, OfAnEmptyGraphRuns) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    const Program program = compile(Graph(), Runtime({.threads = 2}), options);
    EXPECT_TRUE(program.run().empty());
    EXPECT_EQ(program.plan().calls, 0U);
  }
}

// --- run_n

TEST(ProgramRunN, CommitsEachStep) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
  b.result(b.assign_add(v, b.constant(1.0F)));
  const Program program = compile(b.finish(), Runtime());
  EXPECT_EQ(program.run_n(5)[0].item(), 5);
  EXPECT_EQ(program.variables().value("v").item(), 5);
  EXPECT_EQ(program.variables().step(), 5U);
}

TEST(ProgramRunN, SaysHowManyStepsCommitted) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
  int left = 3;
  b.call("count", [&left] {
    if (left-- == 0) throw std::runtime_error("enough");
  });
  b.assign_add(v, b.constant(1.0F));
  const Program program = compile(b.finish(), Runtime());
  const Caught error = caught([&] { program.run_n(10); });
  EXPECT_TRUE(error.run_error);
  EXPECT_EQ(error.committed, 3U);
  EXPECT_THAT(error.what, HasSubstr("after 3 committed steps"));
  EXPECT_EQ(error.nested, "enough");
  EXPECT_EQ(program.variables().value("v").item(), 3);
}

TEST(ProgramRunN, CountsStepsBeforeACancellationToo) {
  GraphBuilder b;
  const VariableRef v = b.variable("v", Tensor::scalar(0.0F));
  std::stop_source stop;
  int runs = 0;
  b.call("count", [&] {
    if (++runs == 3) stop.request_stop();
  });
  b.assign_add(v, b.constant(1.0F));
  const Program program = compile(b.finish(), Runtime());
  RunOptions options;
  options.cancel = stop.get_token();
  const Caught error = caught([&] { program.run_n(10, {}, options); });
  EXPECT_EQ(error.code, ErrorCode::kCancelled);
  EXPECT_EQ(error.committed, 2U);
  EXPECT_EQ(program.variables().value("v").item(), 2);
}

TEST(ProgramRunN, NeedsAStep) {
  const Program program = compile(Graph(), Runtime());
  EXPECT_THROW(program.run_n(0), InvalidArgument);
}

// --- plans

TEST(ProgramPlans, AreKeptPerShape) {
  const Program program = compile(affine(), Runtime());
  EXPECT_EQ(program.cached_plans(), 0U) << "no shape is known yet";
  for (const int repeat : {1, 2, 3}) {
    for (const std::int64_t batch : {1, 5, 3}) {
      const Tensor x = Tensor::full(DType::kF32, {batch}, repeat);
      const Tensor sum = program.run(list({x, Tensor::full(DType::kF32, {batch}, 1)}))[0];
      EXPECT_EQ(sum.shape(), Shape{batch});
      for (const float element : sum.data<float>()) EXPECT_EQ(element, 2 * repeat + 1);
    }
    EXPECT_EQ(program.cached_plans(), 3U);
  }
}

TEST(ProgramPlans, AreMadeAtOnceWhereShapesAreKnown) {
  GraphBuilder b;
  b.result(b.placeholder("x", DType::kF32, {2}) + 1.0F);
  EXPECT_EQ(compile(b.finish(), Runtime()).cached_plans(), 1U);
}

TEST(ProgramPlans, TheLeastRecentlyUsedOneGoes) {
  CompileOptions options;
  options.max_plans = 2;
  const Program program = compile(affine(), Runtime(), options);
  const auto run = [&](std::int64_t batch) {
    const Tensor ones = Tensor::full(DType::kF32, {batch}, 1);
    EXPECT_EQ(program.run(list({ones, ones}))[0].num_elements(), batch);
  };
  for (const std::int64_t batch : {1, 2, 1, 3, 1, 2, 4, 5}) {
    run(batch);
    EXPECT_LE(program.cached_plans(), 2U);
  }
  EXPECT_EQ(program.cached_plans(), 2U);
}

TEST(ProgramPlans, AtLeastOneIsKept) {
  CompileOptions options;
  options.max_plans = 0;
  EXPECT_THROW(compile(affine(), Runtime(), options), InvalidArgument);
}

TEST(ProgramPlans, AnEmptyBatchRuns) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(Clustering::kOff)}) {
    const Program program = compile(affine(), Runtime({.threads = 2}), options);
    const Tensor none = Tensor::zeros({0});
    EXPECT_EQ(program.run(list({none, none}))[0].shape(), Shape{0});
  }
}

TEST(ProgramPlans, SayWhatTheyAre) {
  const Program program = compile(affine(), Runtime());
  const std::array<TensorSpec, 2> specs = {TensorSpec{DType::kF32, {100}}, TensorSpec{DType::kF32, {100}}};
  const PlanSummary summary = program.plan(specs);
  EXPECT_EQ(summary.nodes, 5U);
  EXPECT_EQ(summary.calls, 2U) << "placeholders and constants do not run";
  EXPECT_EQ(summary.clusters, 1U);
  EXPECT_EQ(summary.lanes, 1U);
  EXPECT_GE(summary.planned_bytes, summary.live_set_bytes);
  EXPECT_GE(summary.live_set_bytes, 400);
  EXPECT_GT(summary.estimated_seconds, 0);
  EXPECT_EQ(program.cached_plans(), 1U);
}

// --- results

TEST(ProgramResults, MayBeFeedsConstantsAliasesReadsAndDuplicates) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const VariableRef v = b.variable("v", vec({7, 8}));
  const Value read = b.read(v);
  const Value sum = x + 1.0F;
  const Value constant = b.constant(vec({5, 6}));
  for (const Value& value :
       {x, constant, identity(x), identity(constant), read, identity(read), sum, sum, identity(sum)}) {
    b.result(value);
  }
  const Graph graph = b.finish();
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    const Program program = compile(graph, Runtime({.threads = 2}), options);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<Tensor> results = program.run({{"x", vec({1, 2})}});
      ASSERT_EQ(results.size(), 9U);
      const std::vector<std::vector<float>> expected = {{1, 2}, {5, 6}, {1, 2}, {5, 6}, {7, 8},
                                                        {7, 8}, {2, 3}, {2, 3}, {2, 3}};
      for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(floats(results[i]), expected[i]) << "result " << i;
      // They are the caller's alone.
      for (Tensor& result : results) result.data<float>()[0] = -100;
    }
  }
}

TEST(ProgramResults, OfSeveralTypesAndShapes) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kI64, {2, 3});
  b.result(sum(x, {1}));
  b.result(less(x, 3));
  b.result(sum(x));
  const Program program = compile(b.finish(), Runtime());
  const std::vector<Tensor> results =
      program.run({{"x", Tensor::from<std::int64_t>({2, 3}, {1, 2, 3, 4, 5, 6})}});
  EXPECT_TRUE(results[0].bit_equal(Tensor::from<std::int64_t>({2}, {6, 15})));
  EXPECT_TRUE(results[1].bit_equal(Tensor::from<bool>({2, 3}, {true, true, false, false, false, false})));
  EXPECT_EQ(results[2].item(), 21);
}

// --- wrong feeds are refused before anything runs

class ProgramFeeds : public ::testing::Test {
 protected:
  ProgramFeeds() {
    GraphBuilder b;
    const Value x = b.placeholder("image", DType::kF32, {kUnknown, 4});
    const Value y = b.placeholder("label", DType::kI32, {3});
    b.call("witness", [this] { ++runs_; });
    b.result(sum(x));
    b.result(sum(y));
    program_ = compile(b.finish(), Runtime());
  }
  ~ProgramFeeds() override { EXPECT_EQ(runs_, 0) << "something ran"; }

  void expect_refused(std::vector<Tensor> feeds, const std::string& wanted) {
    std::vector<Tensor> results = {Tensor::zeros({}), Tensor::zeros(DType::kI32, {})};
    for (const Caught& error :
         {caught([&] { program_.run(feeds); }), caught([&] { program_.run_into(feeds, results); }),
          caught([&] { program_.run_async(feeds); }), caught([&] { program_.run_n(2, feeds); })}) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what, HasSubstr(wanted));
    }
  }

  const Tensor image_ = Tensor::zeros({2, 4});
  const Tensor label_ = Tensor::zeros(DType::kI32, {3});
  int runs_ = 0;
  Program program_;
};

TEST_F(ProgramFeeds, Missing) {
  expect_refused({image_}, "got 1 feed, but the graph has 2 placeholders: 'image' f32[?,4], 'label' i32[3]");
  const Caught error = caught([&] { program_.run({{"image", image_}}); });
  EXPECT_THAT(error.what, HasSubstr("placeholder 'label' expects i32[3] and was not fed"));
  EXPECT_EQ(error.place.node, "label");
  EXPECT_THAT(error.place.file, HasSubstr("program_test.cpp"));
}

TEST_F(ProgramFeeds, Extra) {
  expect_refused({image_, label_, label_}, "got 3 feeds, but the graph has 2 placeholders");
}

TEST_F(ProgramFeeds, AnUnknownName) {
  const Caught error = caught([&] {
    program_.run({{"image", image_}, {"label", label_}, {"lable", label_}});
  });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what,
              HasSubstr("no placeholder named 'lable'; the graph has 2 placeholders: 'image' f32[?,4]"));
}

TEST_F(ProgramFeeds, Twice) {
  const Caught error = caught([&] {
    program_.run({{"label", label_}, {"image", image_}, {"label", label_}});
  });
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what, HasSubstr("placeholder 'label' is fed twice"));
}

TEST_F(ProgramFeeds, AnotherDType) {
  expect_refused({image_, Tensor::zeros({3})}, "placeholder 'label' expects i32[3], got f32[3]");
}

TEST_F(ProgramFeeds, AnotherShape) {
  expect_refused({Tensor::zeros({2, 5}), label_}, "placeholder 'image' expects f32[?,4], got f32[2,5]");
  expect_refused({Tensor::zeros({4}), label_}, "placeholder 'image' expects f32[?,4], got f32[4]");
  expect_refused({image_, Tensor::zeros(DType::kI32, {})}, "placeholder 'label' expects i32[3], got i32[]");
}

TEST_F(ProgramFeeds, AnEmptyHandle) {
  expect_refused({image_, Tensor()}, "placeholder 'label' expects i32[3] and was not fed");
}

TEST_F(ProgramFeeds, PlansRefuseThemToo) {
  const std::array<TensorSpec, 2> specs = {TensorSpec{DType::kF32, {kUnknown, 4}},
                                           TensorSpec{DType::kI32, {3}}};
  EXPECT_THAT(caught([&] { program_.plan(specs); }).what,
              HasSubstr("'image' expects f32[?,4], got f32[?,4]"));
}

// --- room for results

class ProgramRoom : public ::testing::Test {
 protected:
  ProgramRoom() {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {4});
    b.call("witness", [this] { ++runs_; });
    const auto scope = b.scope("out");
    b.result(x + 1.0F);
    b.result(x * 2.0F);
    program_ = compile(b.finish(), Runtime());
  }
  void expect_refused(const Tensor& feed, std::vector<Tensor> results, const std::string& wanted) {
    const Caught error = caught([&] { program_.run_into(list({feed}), results); });
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what, HasSubstr(wanted));
    EXPECT_EQ(runs_, 0);
  }
  int runs_ = 0;
  Program program_;
};

TEST_F(ProgramRoom, OfTheWrongNumber) {
  expect_refused(vec({1, 2, 3, 4}), {Tensor::zeros({4})}, "the graph gives 2 results, got room for 1");
}

TEST_F(ProgramRoom, OfTheWrongSpec) {
  expect_refused(vec({1, 2, 3, 4}), {Tensor::zeros({4}), Tensor::zeros({5})},
                 "result 1 ('out/mul') is f32[4], got f32[5]");
  expect_refused(vec({1, 2, 3, 4}), {Tensor(), Tensor::zeros({4})},
                 "result 0 ('out/add') is f32[4], got an empty handle");
}

TEST_F(ProgramRoom, ThatOverlapsAFeed) {
  const Tensor memory = Tensor::zeros({6});
  expect_refused(memory.slice(0, 4), {memory.slice(2, 6), Tensor::zeros({4})},
                 "result 0 shares memory with the feed of 'x'");
}

TEST_F(ProgramRoom, ThatOverlapsItself) {
  const Tensor memory = Tensor::zeros({7});
  expect_refused(vec({1, 2, 3, 4}), {memory.slice(0, 4), memory.slice(3, 7)}, "results 0 and 1 share memory");
}

TEST_F(ProgramRoom, SideBySideIsFine) {
  const Tensor memory = Tensor::from<float>({12}, {1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0});
  std::vector<Tensor> results = {memory.slice(4, 8), memory.slice(8, 12)};
  program_.run_into(list({memory.slice(0, 4)}), results);
  EXPECT_THAT(floats(memory), ElementsAre(1, 2, 3, 4, 2, 3, 4, 5, 2, 4, 6, 8));
  EXPECT_EQ(runs_, 1);
}

TEST(ProgramResults, OfNoBytesOverlapNothing) {
  const Program program = compile(affine(), Runtime());
  const Tensor memory = Tensor::zeros({4});
  std::vector<Tensor> results = {memory.slice(2, 2)};
  const std::vector<Tensor> feeds = {memory.slice(2, 2), memory.slice(1, 1)};
  EXPECT_NO_THROW(program.run_into(feeds, results));
}

// --- errors of a run

TEST(ProgramErrors, CarryNodeOpDeviceSiteAndCause) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    GraphBuilder b;
    const auto scope = b.scope("layer");
    const auto device = b.device("/device:CPU:1");
    const std::uint32_t line = SourceSite::current().line + 1;
    b.call("explode", [] { throw std::domain_error("boom"); });
    const Program program = compile(b.finish(), Runtime({.threads = 2, .cpu_devices = 2}), options);
    const Caught error = caught([&] { program.run(); });
    EXPECT_TRUE(error.run_error);
    EXPECT_EQ(error.code, ErrorCode::kFailedPrecondition);
    EXPECT_EQ(error.place.node, "layer/explode");
    EXPECT_EQ(error.place.op, "call");
    EXPECT_EQ(error.place.device, "cpu:1");
    EXPECT_THAT(error.place.file, HasSubstr("program_test.cpp"));
    EXPECT_EQ(error.place.line, line);
    EXPECT_EQ(error.committed, 0U);
    EXPECT_EQ(error.nested, "boom");
  }
}

TEST(ProgramErrors, KeepTheCodeOfTheCause) {
  GraphBuilder b;
  b.call("explode", [] { throw Error(ErrorCode::kDataLoss, "a page is gone"); });
  const Caught error = caught([program = compile(b.finish(), Runtime())] { program.run(); });
  EXPECT_EQ(error.code, ErrorCode::kDataLoss);
  EXPECT_THAT(error.what, HasSubstr("a page is gone"));
  EXPECT_EQ(error.place.node, "explode");
  EXPECT_EQ(error.place.device, "cpu:0") << "the device that the plan chose";
}

TEST(ProgramErrors, MayBeAnything) {
  GraphBuilder b;
  b.call("explode", [] { throw 42; });
  const Caught error = caught([program = compile(b.finish(), Runtime())] { program.run(); });
  EXPECT_TRUE(error.run_error);
  EXPECT_EQ(error.nested, "not a std::exception");
}

TEST(ProgramErrors, InsideARegionNameTheNodeThere) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {});
  const BranchFn fine = [&] { return std::vector<Value>{x + 1.0F}; };
  const BranchFn bad = [&] {
    b.call("inside", [] { throw std::domain_error("boom"); });
    return std::vector<Value>{x};
  };
  b.result(cond(less(x, 0.0F), bad, fine)[0]);
  const Program program = compile(b.finish(), Runtime());
  EXPECT_EQ(program.run({{"x", Tensor::scalar(1.0F)}})[0].item(), 2);
  const Caught error = caught([&] { program.run({{"x", Tensor::scalar(-1.0F)}}); });
  EXPECT_EQ(error.place.node, "inside");
  EXPECT_EQ(error.place.op, "call");
  EXPECT_THAT(error.place.file, HasSubstr("program_test.cpp"));
  EXPECT_THAT(error.what, HasSubstr("boom"));
}

TEST(ProgramErrors, LeaveTheProgramFitToRun) {
  for (const CompileOptions& options : {CompileOptions(), with_lanes(), with_lanes(Clustering::kOff)}) {
    bool bad = false;
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    b.call("sometimes", [&bad] {
      if (bad) throw std::domain_error("boom");
    });
    b.result(x + 1.0F);
    const Program program = compile(b.finish(), Runtime({.threads = 2}), options);
    for (int i = 0; i < 20; ++i) {
      bad = i % 2 == 1;
      if (bad) {
        EXPECT_THROW(program.run({{"x", vec({1, 2})}}), RunError);
      } else {
        EXPECT_THAT(floats(program.run({{"x", vec({1, 2})}})[0]), ElementsAre(2, 3));
      }
    }
  }
}

TEST(Compile, RefusesADeviceThatIsNotThere) {
  GraphBuilder b;
  const auto device = b.device("cpu:3");
  b.result(b.constant(1.0F) + 1.0F);
  EXPECT_THAT(caught([&] { compile(b.finish(), Runtime()); }).what, HasSubstr("cpu:3"));
}

TEST(Compile, RefusesAGraphThatDoesNotVerify) {
  Graph graph;
  NodeInit init;
  init.op = &OpRegistry::global().get("relu");
  init.name = "alone";
  graph.add(std::move(init));
  EXPECT_THROW(compile(std::move(graph), Runtime()), Error);
}

}  // namespace
}  // namespace lockstep

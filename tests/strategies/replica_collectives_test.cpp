// Tests: graph/ops/collectives.cpp, graph/ops/slicing.cpp, graph/transform/slices.cpp,
//        strategies/trace/replica_context.cpp
// Collectives inside of replicas and their gradients, held against what they mean.
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/check/verifier.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/transform/slices.h"
#include "lockstep/strategies/mirrored.h"
#include "support/strategy_test.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using testing::error_of;
using ::testing::HasSubstr;
using testing::test_devices;
using testing::vec;

std::vector<float> numbers(const Tensor& tensor) {
  const Tensor here = tensor.host();
  const auto data = here.data<float>();
  return {data.begin(), data.end()};
}

// Replica r has rows * cols elements: 100 r, 100 r + 1, ...
PerReplica<Tensor> counted(int replicas, std::vector<std::int64_t> dims) {
  std::vector<Tensor> slots;
  for (int r = 0; r < replicas; ++r) {
    Tensor one = Tensor::zeros(Shape(dims));
    std::iota(one.data<float>().begin(), one.data<float>().end(), 100.F * static_cast<float>(r));
    slots.push_back(one);
  }
  return PerReplica<Tensor>(slots);
}

TEST(ReduceScatter, GivesEachReplicaItsPieceOfTheAllReduce) {
  for (const int replicas : {1, 2, 3}) {
    for (const std::int64_t axis : {0, 1, -1}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax}) {
        MirroredStrategy strategy({.devices = test_devices(replicas)});
        const InputSpec x(DType::kF32, {6, 12}, "x");
        const auto f = strategy.function({x}, [=](Value v) {
          const ReplicaContext replica = replica_context();
          const Value mine = replica.reduce_scatter(op, v, axis);
          const std::int64_t extent = (axis == 0 ? 6 : 12) / replicas;
          const Value begin = cast(replica.replica_id(), DType::kI64) * extent;
          return std::pair(mine, slice_at(replica.all_reduce(op, v), begin, extent, axis));
        });
        const auto [mine, expected] = f(counted(replicas, {6, 12}));
        for (std::size_t r = 0; r < static_cast<std::size_t>(replicas); ++r)
          EXPECT_TRUE(mine[r].bit_equal(expected[r])) << replicas << " " << axis << " replica " << r;
      }
    }
  }
}

// The whole is so large that it is cut into shards.
TEST(ReduceScatter, OfManyElements) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const std::int64_t n = 1 << 20;
  const auto f = strategy.function({InputSpec(DType::kF32, {kUnknown}, "x")}, [=](Value v) {
    return replica_context().reduce_scatter(ReduceOp::kSum, v);
  });
  const PerReplica<Tensor> pieces = f(counted(2, {n}));
  ASSERT_EQ(pieces[1].num_elements(), n / 2);
  EXPECT_EQ(pieces[1].host().data<float>()[5], 2 * (static_cast<float>(n / 2 + 5)) + 100);
}

TEST(ReduceScatter, SaysWhatDoesNotFit) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_THAT(
      error_of([&] {
        strategy.function({InputSpec(DType::kF32, {3}, "x")},
                          [](Value x) { return replica_context().reduce_scatter(ReduceOp::kSum, x); });
      }),
      AllOf(HasSubstr("cannot be cut into 2 equal pieces: pad()"), HasSubstr("replica_collectives_test")));
  EXPECT_THAT(error_of([] { replica_context(); }), HasSubstr("replica_collectives_test.cpp:"));
}

// The loss of all replicas is the sum of theirs: what a replica's value adds to each of them flows back to it.
TEST(CollectiveGradients, AreThoseOfTheSumOfAllLosses) {
  const int replicas = 3;
  MirroredStrategy strategy({.devices = test_devices(replicas)});
  const InputSpec x(DType::kF32, {kUnknown}, "x"), w(DType::kF32, {kUnknown}, "w");
  const auto gradient_of = [&](const std::function<Value(const Value&)>& collective) {
    return strategy.function({x, w}, [&](Value v, Value weights) {
      return to_dense(gradients(sum(collective(v) * weights), {v})[0]);
    });
  };
  const PerReplica<Tensor> value(std::vector<Tensor>{vec({1, 2, 3}), vec({4, 5, 6}), vec({7, 8, 9})});
  const PerReplica<Tensor> weights(
      std::vector<Tensor>{vec({1, 2, 3}), vec({10, 20, 30}), vec({100, 200, 300})});
  {
    const PerReplica<Tensor> flow =
        gradient_of([](const Value& v) { return broadcast_replica(v, 1); })(value, weights);
    EXPECT_THAT(numbers(flow[1]), ElementsAreArray({111.F, 222.F, 333.F}));
    EXPECT_THAT(numbers(flow[0]), ElementsAreArray({0.F, 0.F, 0.F}));
  }
  {
    const PerReplica<Tensor> one(std::vector<Tensor>{vec({1}), vec({10}), vec({100})});
    const PerReplica<Tensor> flow = gradient_of(
        [](const Value& v) { return replica_context().reduce_scatter(ReduceOp::kSum, v); })(value, one);
    for (std::size_t r = 0; r < 3; ++r) EXPECT_THAT(numbers(flow[r]), ElementsAreArray({1.F, 10.F, 100.F}));
    const PerReplica<Tensor> mean = gradient_of(
        [](const Value& v) { return replica_context().reduce_scatter(ReduceOp::kMean, v); })(value, one);
    EXPECT_FLOAT_EQ(mean[2].host().data<float>()[1], 10.F / 3);
  }
  {  // uneven parts: 1, 2 and 3 elements
    const PerReplica<Tensor> uneven(std::vector<Tensor>{vec({1}), vec({2, 3}), vec({4, 5, 6})});
    const PerReplica<Tensor> six(std::vector<Tensor>{vec({1, 2, 3, 4, 5, 6}), vec({10, 20, 30, 40, 50, 60}),
                                                     vec({100, 200, 300, 400, 500, 600})});
    const PerReplica<Tensor> flow = gradient_of([](const Value& v) { return all_gather(v); })(uneven, six);
    EXPECT_THAT(numbers(flow[0]), ElementsAreArray({111.F}));
    EXPECT_THAT(numbers(flow[1]), ElementsAreArray({222.F, 333.F}));
    EXPECT_THAT(numbers(flow[2]), ElementsAreArray({444.F, 555.F, 666.F}));
  }
}

// What all replicas have is more than one has: the shape does not say otherwise, however it is spelled.
TEST(AllGather, HasAnUnknownExtentInsideOfReplicas) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  strategy.function({InputSpec(DType::kF32, {3}, "x")}, [](Value x) {
    EXPECT_EQ(all_gather(x).shape()[0], kUnknown);
    EXPECT_EQ(replica_context().all_gather(x).shape()[0], kUnknown);
    return all_gather(x);
  });
  EXPECT_THAT(error_of([] {
                verify(parse(R"(
                  %x = placeholder() : f32[3]
                  %r = replicated[replicas=2, shared=1](%x) : f32[3], f32[3] {
                    region {
                      %v = placeholder() : f32[3]
                      %g = all_gather(%v) : f32[3]
                      return %g
                    }
                  }
                  return %r
                )"));
              }),
              AllOf(HasSubstr("'g'"), HasSubstr("its attribute 'replicas' must be 0")));
}

TEST(SliceAt, IsWhereTheStepSays) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  const auto f = strategy.function({InputSpec(DType::kF32, {4, 6}, "x", true)}, [](Value x) {
    return slice_at(x, replica_context().replica_id() * 3, 3, 1);
  });
  const PerReplica<Tensor> pieces = f(counted(1, {4, 6})[0]);
  EXPECT_THAT(numbers(pieces[1]),
              ElementsAreArray({3.F, 4.F, 5.F, 9.F, 10.F, 11.F, 15.F, 16.F, 17.F, 21.F, 22.F, 23.F}));
  const auto outside = strategy.function({InputSpec(DType::kF32, {4}, "x", true)}, [](Value x) {
    return slice_at(x, replica_context().replica_id() * 3, 2);
  });
  EXPECT_THAT(error_of([&] {
                outside(vec({1, 2, 3, 4}));
                outside.program().wait();
              }),
              AllOf(HasSubstr(testing::on_gpus() ? "was refused its data"
                                                 : "a piece of size 2 at 3 leaves an axis of extent 4"),
                    HasSubstr("slice_at")));
}

TEST(DeclareSlices, CutsAVariableAndWhatItStartsWith) {
  Graph graph;
  graph.declare_variable({.name = "w", .spec = {DType::kF32, {5, 2}}, .initial = counted(1, {5, 2})[0]});
  graph.declare_variable({.name = "scalar", .spec = {DType::kF32, {}}, .initial = {}});
  declare_slices(graph, "w", 3);
  const VariableDecl* w = graph.find_variable("w");
  EXPECT_EQ(w->spec.shape, (Shape{2, 2}));
  EXPECT_EQ(w->slice_extent, 5);
  EXPECT_EQ(w->aggregation, Aggregation::kSlices);
  EXPECT_THAT(numbers(w->initial), ElementsAreArray({0.F, 1.F, 2.F, 3.F}));
  EXPECT_THAT(numbers(graph.find_variable("w/replica_2")->initial), ElementsAreArray({8.F, 9.F, 0.F, 0.F}));
  EXPECT_THAT(error_of([&] { declare_slices(graph, "w", 3); }), HasSubstr("copies already"));
  EXPECT_THAT(error_of([&] { declare_slices(graph, "w/replica_1", 3); }), HasSubstr("a copy of another"));
  EXPECT_THAT(error_of([&] { declare_slices(graph, "scalar", 3); }), HasSubstr("no rows"));
  EXPECT_THAT(error_of([&] { declare_slices(graph, "nobody", 3); }), HasSubstr("not declared"));
  // And it can be printed, read and told apart.
  const Graph again = parse(print(graph));
  EXPECT_EQ(again.find_variable("w")->slice_extent, 5);
  EXPECT_EQ(print(again), print(graph));
}

}  // namespace
}  // namespace lockstep

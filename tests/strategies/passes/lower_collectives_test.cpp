// Tests: strategies/passes/cross_device_ops.cpp, strategies/passes/lower_collectives.cpp,
//        strategies/passes/register.cpp, graph/ops/collectives.cpp, graph/ops/lowered_collectives.cpp,
//        graph/ops/rules/replica_tensors.cpp
#include "lockstep/strategies/passes/lower_collectives.h"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/strategies/passes/register.h"
#include "lockstep/strategies/proof/collective_schedule.h"
#include "support/pass_test.h"
#include "support/random_replicated.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class LowerCollectives : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }
};

constexpr std::string_view kTwo = R"(
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %t = all_reduce[reduce="mean", replicas=2](%x0, %x1) : f32[2], f32[2]
      %a = neg(%t) : f32[2] replica 0
      %b = neg(%t:1) : f32[2] replica 1
      return %a, %b
    )";

TEST_F(LowerCollectives, SharedMemoryReducesOnceAndCopies) {
  expect_rewrite("lower-collectives", kTwo, R"(
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %"t/reduce" = reduce_replicas[reduce="mean", replicas=2](%x0, %x1) : f32[2]
      %a = neg(%"t/reduce") : f32[2] replica 0
      %"t/copy" = copy(%"t/reduce") : f32[2] replica 1
      %b = neg(%"t/copy") : f32[2] replica 1
      return %a, %b
    )");
}

// After share-mirrored one replica's values are read: one output, and tensors that nobody reads are not
// reduced.
TEST_F(LowerCollectives, GivesOneOutputWhereOneIsRead) {
  expect_rewrite("lower-collectives(ops=shared_memory)", R"(
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %t = all_reduce[reduce="sum", replicas=2](%x0, %x0, %x1, %x1) : f32[2], f32[2], f32[2], f32[2]
      %b = neg(%t:3) : f32[2]
      return %b
    )",
                 R"(
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %"t/reduce" = reduce_replicas[reduce="sum", replicas=2](%x0, %x1) : f32[2]
      %b = neg(%"t/reduce") : f32[2]
      return %b
    )");
}

TEST_F(LowerCollectives, DropsTheirOrderAndWhatNobodyReads) {
  expect_rewrite("lower-collectives", R"(
      %x = placeholder() : f32[2]
      %s = all_reduce[reduce="sum", replicas=2](%x, %x) : f32[2], f32[2]
      %t = all_reduce[reduce="sum", replicas=2](%x, %x) : f32[2], f32[2] after(%s)
      %u = all_reduce[reduce="sum", replicas=1](%t) : f32[2] after(%t)
      return %u
    )",
                 R"(
      %x = placeholder() : f32[2]
      %"t/reduce" = reduce_replicas[reduce="sum", replicas=2](%x, %x) : f32[2]
      return %"t/reduce"
    )");
}

TEST_F(LowerCollectives, ReductionToOneDeviceCopiesThereAndBack) {
  constexpr std::string_view placed = R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %t = all_reduce[reduce="sum", replicas=2](%x0, %x1) : f32[2], f32[2] on "gpu:0"
      %a = neg(%t) : f32[2] on "gpu:0" replica 0
      %b = neg(%t:1) : f32[2] on "gpu:1" replica 1
      return %a, %b
    )";
  constexpr std::string_view lowered = R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %"t/copy" = copy(%x1) : f32[2] on "gpu:0"
      %"t/reduce" = reduce_replicas[reduce="sum", replicas=2](%x0, %"t/copy") : f32[2] on "gpu:0"
      %a = neg(%"t/reduce") : f32[2] on "gpu:0" replica 0
      %"t/copy_1" = copy(%"t/reduce") : f32[2] on "gpu:1" replica 1
      %b = neg(%"t/copy_1") : f32[2] on "gpu:1" replica 1
      return %a, %b
    )";
  expect_rewrite("lower-collectives(ops=reduction_to_one_device)", placed, lowered);
  expect_rewrite("lower-collectives", placed, lowered);  // so does auto, for a few bytes
  expect_rewrite("lower-collectives(ops=reduction_to_one_device,device=cpu:0)", placed, R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %"t/copy" = copy(%x0) : f32[2] on "cpu:0"
      %"t/copy_1" = copy(%x1) : f32[2] on "cpu:0"
      %"t/reduce" = reduce_replicas[reduce="sum", replicas=2](%"t/copy", %"t/copy_1") : f32[2] on "cpu:0"
      %"t/copy_2" = copy(%"t/reduce") : f32[2] on "gpu:0" replica 0
      %a = neg(%"t/copy_2") : f32[2] on "gpu:0" replica 0
      %"t/copy_3" = copy(%"t/reduce") : f32[2] on "gpu:1" replica 1
      %b = neg(%"t/copy_3") : f32[2] on "gpu:1" replica 1
      return %a, %b
    )");
}

TEST_F(LowerCollectives, RingReducesAPartOnEachDevice) {
  expect_rewrite("lower-collectives(ops=ring)", kTwo, R"(
      %x0 = placeholder() : f32[2]
      %x1 = placeholder() : f32[2]
      %"t/chunk" = reduce_chunk[chunk=0, chunks=2, reduce="mean", replicas=2](%x0, %x1) : f32[1] replica 0
      %"t/chunk_1" = reduce_chunk[chunk=1, chunks=2, reduce="mean", replicas=2](%x0, %x1) : f32[1] replica 1
      %"t/join" = join_chunks[chunks=2](%"t/chunk", %"t/chunk_1", %x0) : f32[2] replica 0
      %a = neg(%"t/join") : f32[2] replica 0
      %"t/join_1" = join_chunks[chunks=2](%"t/chunk", %"t/chunk_1", %x1) : f32[2] replica 1
      %b = neg(%"t/join_1") : f32[2] replica 1
      return %a, %b
    )");
}

// Between memories no copy is larger than a part: each device reads two parts of the others' values to reduce
// its own, and two reduced parts.
TEST_F(LowerCollectives, RingMovesPartsOnlyBetweenMemories) {
  const std::string before = R"(
      %x0 = placeholder() : f32[7] on "gpu:0"
      %x1 = placeholder() : f32[7] on "gpu:1"
      %x2 = placeholder() : f32[7] on "gpu:2"
      %t = all_reduce[reduce="mean", replicas=3](%x0, %x1, %x2) : f32[7], f32[7], f32[7]
      %a = neg(%t) : f32[7] on "gpu:0" replica 0
      %b = neg(%t:1) : f32[7] on "gpu:1" replica 1
      %c = neg(%t:2) : f32[7] on "gpu:2" replica 2
      return %a, %b, %c
    )";
  expect_rewrite("lower-collectives(ops=ring),insert-copies", before, R"(
      %x0 = placeholder() : f32[7] on "gpu:0"
      %x1 = placeholder() : f32[7] on "gpu:1"
      %x2 = placeholder() : f32[7] on "gpu:2"
      %t/slice = reduce_chunk[chunk=0, chunks=3, reduce="mean", replicas=1](%x0) : f32[2] on "gpu:0" replica 0
      %t/slice_1 = reduce_chunk[chunk=0, chunks=3, reduce="mean", replicas=1](%x1) : f32[2] on "gpu:1" replica 1
      %t/slice_2 = reduce_chunk[chunk=0, chunks=3, reduce="mean", replicas=1](%x2) : f32[2] on "gpu:2" replica 2
      %t/slice_1/copy = copy(%t/slice_1) : f32[2] on "gpu:0" replica 0
      %t/slice_2/copy = copy(%t/slice_2) : f32[2] on "gpu:0" replica 0
      %t/reduce = reduce_replicas[reduce="mean", replicas=3](%t/slice, %t/slice_1/copy, %t/slice_2/copy) : f32[2] on "gpu:0" replica 0
      %t/slice_3 = reduce_chunk[chunk=1, chunks=3, reduce="mean", replicas=1](%x0) : f32[2] on "gpu:0" replica 0
      %t/slice_4 = reduce_chunk[chunk=1, chunks=3, reduce="mean", replicas=1](%x1) : f32[2] on "gpu:1" replica 1
      %t/slice_5 = reduce_chunk[chunk=1, chunks=3, reduce="mean", replicas=1](%x2) : f32[2] on "gpu:2" replica 2
      %t/slice_3/copy = copy(%t/slice_3) : f32[2] on "gpu:1" replica 1
      %t/slice_5/copy = copy(%t/slice_5) : f32[2] on "gpu:1" replica 1
      %t/reduce_1 = reduce_replicas[reduce="mean", replicas=3](%t/slice_3/copy, %t/slice_4, %t/slice_5/copy) : f32[2] on "gpu:1" replica 1
      %t/slice_6 = reduce_chunk[chunk=2, chunks=3, reduce="mean", replicas=1](%x0) : f32[3] on "gpu:0" replica 0
      %t/slice_7 = reduce_chunk[chunk=2, chunks=3, reduce="mean", replicas=1](%x1) : f32[3] on "gpu:1" replica 1
      %t/slice_8 = reduce_chunk[chunk=2, chunks=3, reduce="mean", replicas=1](%x2) : f32[3] on "gpu:2" replica 2
      %t/slice_6/copy = copy(%t/slice_6) : f32[3] on "gpu:2" replica 2
      %t/slice_7/copy = copy(%t/slice_7) : f32[3] on "gpu:2" replica 2
      %t/reduce_2 = reduce_replicas[reduce="mean", replicas=3](%t/slice_6/copy, %t/slice_7/copy, %t/slice_8) : f32[3] on "gpu:2" replica 2
      %t/reduce_1/copy = copy(%t/reduce_1) : f32[2] on "gpu:0" replica 0
      %t/reduce_2/copy = copy(%t/reduce_2) : f32[3] on "gpu:0" replica 0
      %t/join = join_chunks[chunks=3](%t/reduce, %t/reduce_1/copy, %t/reduce_2/copy, %x0) : f32[7] on "gpu:0" replica 0
      %a = neg(%t/join) : f32[7] on "gpu:0" replica 0
      %t/reduce/copy = copy(%t/reduce) : f32[2] on "gpu:1" replica 1
      %t/reduce_2/copy_1 = copy(%t/reduce_2) : f32[3] on "gpu:1" replica 1
      %t/join_1 = join_chunks[chunks=3](%t/reduce/copy, %t/reduce_1, %t/reduce_2/copy_1, %x1) : f32[7] on "gpu:1" replica 1
      %b = neg(%t/join_1) : f32[7] on "gpu:1" replica 1
      %t/reduce/copy_1 = copy(%t/reduce) : f32[2] on "gpu:2" replica 2
      %t/reduce_1/copy_1 = copy(%t/reduce_1) : f32[2] on "gpu:2" replica 2
      %t/join_2 = join_chunks[chunks=3](%t/reduce/copy_1, %t/reduce_1/copy_1, %t/reduce_2, %x2) : f32[7] on "gpu:2" replica 2
      %c = neg(%t/join_2) : f32[7] on "gpu:2" replica 2
      return %a, %b, %c
    )");
  Graph graph = parse(before);
  PassRegistry::global().parse_pipeline("lower-collectives(ops=ring),insert-copies").run(graph);
  std::map<std::string, std::int64_t> received;  // elements, by device
  for (const Node& node : graph.nodes()) {
    if (node.op().name == "copy") received[node.device()] += node.outputs()[0].shape.num_elements();
  }
  // Parts are of 2, 2 and 3 elements: 2 of its own from each of the others, then the others' parts.
  EXPECT_THAT(received,
              ElementsAre(Pair("gpu:0", 2 * 2 + 5), Pair("gpu:1", 2 * 2 + 5), Pair("gpu:2", 2 * 3 + 4)));
}

TEST_F(LowerCollectives, HierarchicalCopyKeepsTheOddOne) {
  expect_rewrite("lower-collectives(ops=hierarchical_copy)", R"(
      %x = placeholder() : f32[2]
      %y = placeholder() : f32[2]
      %z = placeholder() : f32[2]
      %t = all_reduce[reduce="mean", replicas=3](%x, %y, %z) : f32[2], f32[2], f32[2]
      return %t, %t:1, %t:2
    )",
                 R"(
      %x = placeholder() : f32[2]
      %y = placeholder() : f32[2]
      %z = placeholder() : f32[2]
      %"t/reduce" = reduce_replicas[reduce="sum", replicas=2](%x, %y) : f32[2]
      %"t/reduce_1" = reduce_replicas[reduce="sum", replicas=2](%"t/reduce", %z) : f32[2]
      %"t/replicas" = constant[value=f32[]{3.0}]() : f32[]
      %"t/mean" = div(%"t/reduce_1", %"t/replicas") : f32[2]
      %"t/copy" = copy(%"t/mean") : f32[2] replica 1
      %"t/copy_1" = copy(%"t/mean") : f32[2] replica 2
      return %"t/mean", %"t/copy", %"t/copy_1"
    )");
}

TEST_F(LowerCollectives, LeavesGatheringAndBroadcastingAlone) {
  expect_unchanged("lower-collectives", R"(
      %x = placeholder() : f32[2]
      %g = all_gather[replicas=2](%x, %x) : f32[4], f32[4]
      %b = broadcast_replica[replicas=2](%x, %x) : f32[2], f32[2]
      return %g, %b
    )");
}

TEST_F(LowerCollectives, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(PassRegistry::global().parse_pipeline("lower-collectives(ops=pigeons)"), BadOptionValue);
  EXPECT_THROW(PassRegistry::global().parse_pipeline("lower-collectives(ops=ring,device=cpu:0)"),
               BadOptionValue);
}

// A user's own ops; what it forgets is said.
class Forgetful final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "forgetful"; }
  void lower(LowerContext& c) const override { c.give(0, 0, c.input(0, 0)); }
};

// One that asks for what is not there.
class Greedy final : public CrossDeviceOps {
 public:
  std::string_view name() const override { return "greedy"; }
  void lower(LowerContext& c) const override { c.give(0, 0, c.input(2, 1)); }
};

// Ones that count wrongly, each in another call.
class Miscounting final : public CrossDeviceOps {
 public:
  explicit Miscounting(std::function<void(LowerContext&)> slip) : slip_(std::move(slip)) {}
  std::string_view name() const override { return "miscounting"; }
  void lower(LowerContext& c) const override { slip_(c); }

 private:
  std::function<void(LowerContext&)> slip_;
};

TEST_F(LowerCollectives, SaysWhatTheOpsOfAUserGetWrong) {
  const auto refusal = [](CrossDeviceOpsPtr ops) -> std::string {
    Graph graph = parse(kTwo);
    PassPipeline passes;
    passes.add(make_lower_collectives({.custom = std::move(ops)}));
    try {
      passes.run(graph);
    } catch (const Error& error) {
      return error.what();
    }
    return "it was lowered";
  };
  EXPECT_THAT(refusal(std::make_shared<Forgetful>()),
              HasSubstr("the cross-device ops 'forgetful' give replica 1 no value for tensor 0"));
  EXPECT_THAT(
      refusal(std::make_shared<Greedy>()),
      HasSubstr("tensor 1 of replica 2 is asked for, and the all-reduce has 1 tensors of 2 replicas"));
  const auto refusal_of = [&](std::function<void(LowerContext&)> slip) {
    return refusal(std::make_shared<Miscounting>(std::move(slip)));
  };
  EXPECT_THAT(refusal_of([](LowerContext& c) { c.give(2, 0, c.input(0, 0)); }),
              HasSubstr("tensor 0 of replica 2 is asked for"));
  EXPECT_THAT(refusal_of([](LowerContext& c) { c.is_read(0, 1); }),
              HasSubstr("tensor 1 of replica 0 is asked for"));
  EXPECT_THAT(refusal_of([](LowerContext& c) { c.device(2); }),
              HasSubstr("the device of replica 2 is asked for, and the all-reduce has 2 replicas"));
}

TEST(CrossDeviceOps, TheChoiceDependsOnDevicesTheirMemoriesAndBytesAlone) {
  const auto choice = [](std::vector<std::string> devices, std::int64_t bytes) {
    return choose_cross_device_ops(devices, bytes).to_string();
  };
  EXPECT_EQ(choice({"cpu:0"}, 8), "shared_memory: there is one replica");
  EXPECT_EQ(choice({"cpu:0", "cpu:1", ""}, 1 << 20), "shared_memory: all replicas lie in one memory");
  EXPECT_EQ(choice({"cpu:0", "gpu:0"}, 1 << 20),
            "reduction_to_one_device: the devices are of different kinds");
  EXPECT_THAT(choice({"gpu:0", "gpu:1", "gpu:2"}, 100),
              HasSubstr("reduction_to_one_device: 100 bytes are too few"));
  EXPECT_EQ(choice({"gpu:0", "gpu:1", "gpu:2"}, 1 << 20), "ring: each of 3 devices moves its part only");
  EXPECT_EQ(choice({"gpu:0", "gpu:1", "gpu:2"}, -1), "ring: each of 3 devices moves its part only");
  const Topology one_card = Topology::parse("gpu:0 gpu:1 gpu:2 memory=1 card=0");
  const std::vector<std::string> gpus = {"gpu:0", "gpu:1", "gpu:2"};
  EXPECT_EQ(choose_cross_device_ops(gpus, 1 << 20, &one_card).to_string(),
            "shared_memory: all replicas lie in one memory");
  const Topology connected = Topology::parse("gpu:0 gpu:1 gpu:2 collectives=nccl; gpu:3");
  EXPECT_EQ(choose_cross_device_ops(gpus, 8, &connected).to_string(),
            "nccl: NCCL connects all 3 of them, each on a card of its own");
  const std::vector<std::string> one_without = {"gpu:0", "gpu:1", "gpu:3"};
  EXPECT_EQ(choose_cross_device_ops(one_without, 1 << 20, &connected).name, "ring");
}

TEST(CrossDeviceOps, NcclFallsBackAndSaysWhy) {
  const Topology machine =
      Topology::parse("cpu:0; gpu:0 gpu:1 collectives=nccl; gpu:2 memory=1 collectives=nccl; gpu:3");
  const auto choice = [&](std::vector<std::string> devices) {
    return choose_cross_device_ops("nccl", devices, &machine).to_string();
  };
  EXPECT_EQ(choice({"gpu:0", "gpu:1"}), "nccl: the options name it");
  EXPECT_EQ(choice({"gpu:0"}), "shared_memory: nccl was asked for, and there is one replica");
  EXPECT_EQ(choice({"gpu:0", "gpu:2"}),
            "shared_memory: nccl was asked for, and all replicas lie in one memory");
  EXPECT_EQ(
      choice({"gpu:0", "gpu:1", "gpu:2"}),
      "reduction_to_one_device: nccl was asked for: gpu:0 and gpu:2 are one card, and NCCL wants one for "
      "each replica");
  EXPECT_EQ(choice({"gpu:0", "gpu:3"}),
            "reduction_to_one_device: nccl was asked for: NCCL does not connect gpu:3");
  EXPECT_EQ(choice({"gpu:0", ""}),
            "reduction_to_one_device: nccl was asked for: NCCL does not connect the first device");
  const Topology workers = Topology::parse(
      "/job:worker/task:0/gpu:0 /job:worker/task:0/gpu:1 /job:worker/task:1/gpu:0 collectives=nccl");
  const auto choice_of = [&](std::vector<std::string> devices) {
    return choose_cross_device_ops("nccl", devices, &workers).to_string();
  };
  EXPECT_EQ(choice_of({"/job:worker/task:0/gpu:0", "/job:worker/task:0/gpu:1"}), "nccl: the options name it");
  EXPECT_EQ(choice_of({"/job:worker/task:0/gpu:0", "/job:worker/task:1/gpu:0"}),
            "reduction_to_one_device: nccl was asked for: /job:worker/task:0/gpu:0 and "
            "/job:worker/task:1/gpu:0 are "
            "of different processes");
  const std::vector<std::string> two = {"gpu:0", "gpu:1"};
  EXPECT_THAT(choose_cross_device_ops("nccl", two).reason, HasSubstr("nothing is known about the devices"));
  EXPECT_EQ(choose_cross_device_ops("ring", two).to_string(), "ring: the options name it");
}

constexpr std::string_view kConnected = "cpu:0; gpu:0 gpu:1 collectives=nccl";

TEST_F(LowerCollectives, NcclLeavesValuesWhereTheyAre) {
  expect_rewrite("lower-collectives(ops=nccl)", R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %y0 = placeholder() : i32[3] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %y1 = placeholder() : i32[3] on "gpu:1"
      %t = all_reduce[reduce="sum", replicas=2](%x0, %y0, %x1, %y1) : f32[2], i32[3], f32[2], i32[3]
      return %t, %t:1, %t:2
    )",
                 R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %y0 = placeholder() : i32[3] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %y1 = placeholder() : i32[3] on "gpu:1"
      %"t/nccl" = all_reduce[by="nccl", reduce="sum", replicas=2](%x0, %y0, %x1, %y1) : f32[2], i32[3], f32[2], i32[3] on "gpu:0"
      return %"t/nccl", %"t/nccl":1, %"t/nccl":2
    )",
                 {.topology = std::string(kConnected)});
}

TEST_F(LowerCollectives, NcclSumsAndDividesOnceForAMean) {
  expect_rewrite("lower-collectives", R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %t = all_reduce[reduce="mean", replicas=2](%x0, %x1) : f32[2], f32[2]
      %b = neg(%t:1) : f32[2] on "gpu:1" replica 1
      return %b
    )",
                 R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %"t/nccl" = all_reduce[by="nccl", reduce="sum", replicas=2](%x0, %x1) : f32[2], f32[2] on "gpu:0"
      %"t/replicas" = constant[value=f32[] {2}]() : f32[] on "gpu:1" replica 1
      %"t/mean" = div(%"t/nccl":1, %"t/replicas") : f32[2] on "gpu:1" replica 1
      %b = neg(%"t/mean") : f32[2] on "gpu:1" replica 1
      return %b
    )",
                 {.topology = std::string(kConnected)});
}

TEST_F(LowerCollectives, NcclSumsSixteenBitsInF32) {
  expect_rewrite("lower-collectives", R"(
      %x0 = placeholder() : f16[2] on "gpu:0"
      %x1 = placeholder() : f16[2] on "gpu:1"
      %t = all_reduce[reduce="mean", replicas=2](%x0, %x1) : f16[2], f16[2]
      %b = neg(%t:1) : f16[2] on "gpu:1" replica 1
      return %b
    )",
                 R"(
      %x0 = placeholder() : f16[2] on "gpu:0"
      %x1 = placeholder() : f16[2] on "gpu:1"
      %"t/cast" = cast[dtype=f32](%x0) : f32[2] on "gpu:0" replica 0
      %"t/cast_1" = cast[dtype=f32](%x1) : f32[2] on "gpu:1" replica 1
      %"t/nccl" = all_reduce[by="nccl", reduce="sum", replicas=2](%"t/cast", %"t/cast_1") : f32[2], f32[2] on "gpu:0"
      %"t/replicas" = constant[value=f32[] {2}]() : f32[] on "gpu:1" replica 1
      %"t/mean" = div(%"t/nccl":1, %"t/replicas") : f32[2] on "gpu:1" replica 1
      %"t/cast_2" = cast[dtype=f16](%"t/mean") : f16[2] on "gpu:1" replica 1
      %b = neg(%"t/cast_2") : f16[2] on "gpu:1" replica 1
      return %b
    )",
                 {.topology = std::string(kConnected)});
  expect_unchanged("lower-collectives(ops=nccl)", R"(
      %x0 = placeholder() : f16[2] on "gpu:0"
      %x1 = placeholder() : f16[2] on "gpu:1"
      %t = all_reduce[by="nccl", reduce="max", replicas=2](%x0, %x1) : f16[2], f16[2] on "gpu:0"
      return %t, %t:1
    )",
                   {.topology = std::string(kConnected)});
}

// Sums that are too large for f16 are on the way to values that are not.
TEST_F(LowerCollectives, SixteenBitsOverflowNowhereOnTheWay) {
  const Topology topology = Topology::parse("gpu:0 gpu:1 gpu:2 gpu:3 collectives=nccl");
  PassContext context{.topology = &topology};
  for (const char* reduce : {"mean", "sum"}) {
    const Graph graph =
        parse(str(R"(
        %x0 = placeholder() : f16[1] on "gpu:0"
        %x1 = placeholder() : f16[1] on "gpu:1"
        %x2 = placeholder() : f16[1] on "gpu:2"
        %x3 = placeholder() : f16[1] on "gpu:3"
        %t = all_reduce[reduce=")",
                  reduce, R"(", replicas=4](%x0, %x1, %x2, %x3) : f16[1], f16[1], f16[1], f16[1]
        return %t, %t:3
      )"));
    const bool mean = reduce == std::string_view("mean");
    std::vector<Tensor> feeds;
    for (const double value : {40'000., 40'000., -20'000., mean ? 20'000. : -20'000.})
      feeds.push_back(Tensor::full(DType::kF16, Shape{1}, value));
    for (const std::string_view ops :
         {"auto", "shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring", "nccl"}) {
      SCOPED_TRACE(str(ops, ", ", reduce));
      Graph lowered = graph;
      PassRegistry::global().parse_pipeline(str("lower-collectives(ops=", ops, ")")).run(lowered, context);
      for (const Tensor& result : Interpreter(lowered).run(feeds))
        EXPECT_TRUE(result.bit_equal(Tensor::full(DType::kF16, Shape{1}, mean ? 20'000. : 40'000.)));
    }
  }
}

// The order that order-collectives made is the order in which NCCL is called.
TEST_F(LowerCollectives, NcclKeepsTheOrderOfCollectives) {
  const Topology topology = Topology::parse(kConnected);
  PassContext context{.topology = &topology};
  Graph graph = parse(R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %s = all_reduce[reduce="sum", replicas=2](%x0, %x1) : f32[2], f32[2] after(%t)
      %t = all_reduce[reduce="max", replicas=2](%x0, %x1) : f32[2], f32[2]
      return %s, %t:1
    )");
  PassRegistry::global().parse_pipeline("lower-collectives").run(graph, context);
  const NodeId first = graph.find("t/nccl"), second = graph.find("s/nccl");
  ASSERT_TRUE(first.valid() && second.valid()) << print(graph);
  EXPECT_THAT(graph.node(second).controls(), ElementsAre(first));
}

TEST_F(LowerCollectives, NodesSayWhyItIsNotNccl) {
  const Topology topology = Topology::parse("gpu:0 gpu:1");
  PassContext context{.topology = &topology};
  Graph graph = parse(R"(
      %x0 = placeholder() : f32[2] on "gpu:0"
      %x1 = placeholder() : f32[2] on "gpu:1"
      %t = all_reduce[reduce="mean", replicas=2](%x0, %x1) : f32[2], f32[2]
      return %t, %t:1
    )");
  PassRegistry::global().parse_pipeline("lower-collectives(ops=nccl)").run(graph, context);
  EXPECT_THAT(print(graph, {.provenance = true}),
              HasSubstr("by lower-collectives: nccl was asked for: NCCL does not connect gpu:0"));
}

TEST_F(LowerCollectives, OnlyNcclIsANameForWhatCombines) {
  try {
    verify(parse(R"(
      %x0 = placeholder() : f32[2]
      %t = all_reduce[by="hand", reduce="sum", replicas=1](%x0) : f32[2]
      return %t
    )"));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("by must be nccl"));
  }
}

// Every way gives the bits of the all-reduce, for all dtypes and numbers of replicas.
TEST_F(LowerCollectives, KeepsTheBitsOfTheAllReduce) {
  for (const std::size_t replicas : {1U, 2U, 3U, 4U, 8U}) {
    for (const ReduceOp op : kAllReplicaReduces) {
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kF64, DType::kI32}) {
        if (!can_reduce(op, dtype)) continue;
        GraphBuilder b;
        std::vector<std::vector<Value>> own(2);
        for (std::size_t r = 0; r < replicas; ++r) {
          own[0].push_back(b.placeholder(str("x", r), dtype, {5, 3}));
          own[1].push_back(b.placeholder(str("y", r), dtype, {2}));
        }
        const auto out =
            replicated(b, static_cast<std::int64_t>(replicas), {}, own, [&](std::span<const Value> in) {
              const Value values[] = {identity(in[0]), identity(in[1])};
              return all_reduce(op, values);
            });
        for (const auto& result : out) {
          for (const Value& value : result) b.result(value);
        }
        Graph before = b.finish();
        PassRegistry::global().parse_pipeline("replicate").run(before);
        for (const std::string_view ops : {"auto", "shared_memory", "reduction_to_one_device", "ring"}) {
          SCOPED_TRACE(str(ops, ", ", replicas, " replicas, ", to_string(op), ", ", to_string(dtype)));
          Graph after = before;
          PassRegistry::global().parse_pipeline(str("lower-collectives(ops=", ops, ")")).run(after);
          for (const Node& node : after.nodes()) EXPECT_FALSE(node.op().traits.is(ReplicaRole::kCollective));
          testing::expect_same_meaning(before, after, 3);
        }
        if (replicas > 1) {
          std::string devices;
          for (std::size_t r = 0; r < replicas; ++r) devices += str(r == 0 ? "" : ",", "gpu:", r);
          SCOPED_TRACE(
              str("ring between memories, ", replicas, " replicas, ", to_string(op), ", ", to_string(dtype)));
          Graph apart = before;
          PassRegistry::global()
              .parse_pipeline(str("place(devices=[", devices, "]),lower-collectives(ops=ring),insert-copies"))
              .run(apart);
          EXPECT_TRUE(std::ranges::any_of(apart.nodes(), [](const Node& node) {
            return node.op().name == "reduce_chunk" && *node.find<std::int64_t>("replicas") == 1;
          }));
          testing::expect_same_meaning(before, apart, 3);
        }
        if (replicas > 2) continue;
        Graph after = before;
        PassRegistry::global().parse_pipeline("lower-collectives(ops=hierarchical_copy)").run(after);
        testing::expect_same_meaning(before, after, 3);
      }
    }
  }
}

// Tensors of one bucket are cut into shards together, wherever one ends and the next begins.
TEST_F(LowerCollectives, ShardsCoverTensorsOfAnyLength) {
  const std::int64_t lengths[] = {40'001, 1, 0, 65, 100'000, 63, 0, 7};
  for (const char* op : {"all_reduce", "reduce_replicas"}) {
    GraphBuilder b;
    std::vector<Value> values;
    std::vector<Tensor> feeds;
    for (int r = 0; r < 3; ++r) {
      for (std::size_t t = 0; t < std::size(lengths); ++t) {
        values.push_back(b.placeholder(str("x", r, "_", t), DType::kF32, {lengths[t]}));
        Tensor value = Tensor::empty(DType::kF32, {lengths[t]});
        std::ranges::generate(value.data<float>(),
                              [n = 1000.0F * static_cast<float>(t + 1)]() mutable { return ++n; });
        feeds.push_back(std::move(value));
      }
    }
    for (const Value& sum : b.op(op, values, {{"reduce", std::string("sum")}, {"replicas", std::int64_t{3}}}))
      b.result(sum);
    const Program program = compile(b.finish(), Runtime({.threads = 2}));
    const std::vector<Tensor> results = program.run(feeds);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::span<const float> got = results[i].data<float>();
      const std::span<const float> one = feeds[i % std::size(lengths)].data<float>();
      ASSERT_EQ(got.size(), one.size());
      for (std::size_t at = 0; at < got.size(); ++at)
        ASSERT_EQ(got[at], 3 * one[at]) << op << " " << i << " " << at;
    }
  }
}

// Grouped sums: every replica gets the same bits, close to those of the all-reduce.
TEST_F(LowerCollectives, HierarchicalCopyIsRightForAnyNumberOfReplicas) {
  for (const std::size_t replicas : {3U, 4U, 5U, 7U, 8U}) {
    GraphBuilder b;
    std::vector<std::vector<Value>> own(1);
    std::vector<Tensor> feeds;
    for (std::size_t r = 0; r < replicas; ++r) {
      own[0].push_back(b.placeholder(str("x", r), DType::kF64, {2}));
      feeds.push_back(Tensor::from<double>({2}, {0.1 * static_cast<double>(r + 1), 1.0}));
    }
    const auto out = replicated(
        b, static_cast<std::int64_t>(replicas), {}, own,
        [&](std::span<const Value> in) { return std::vector<Value>{all_reduce(ReduceOp::kMean, in[0])}; });
    for (const Value& value : out[0]) b.result(value);
    Graph graph = b.finish();
    PassRegistry::global().parse_pipeline("replicate,lower-collectives(ops=hierarchical_copy)").run(graph);
    const std::vector<Tensor> results = Interpreter(graph).run(feeds);
    ASSERT_EQ(results.size(), replicas);
    EXPECT_NEAR(results[0].data<double>()[0], 0.1 * (static_cast<double>(replicas) + 1) / 2, 1e-12);
    EXPECT_NEAR(results[0].data<double>()[1], 1.0, 1e-12);
    for (const Tensor& result : results) EXPECT_TRUE(result.bit_equal(results[0]));
  }
}

// Many of them in one order: each keeps its own sums, nobody waits for ever, and the order is the same every
// time.
TEST_F(LowerCollectives, ManyBucketsGiveEachItsOwnSums) {
  constexpr std::size_t kBuckets = 120, kReplicas = 4;
  GraphBuilder b;
  std::vector<Value> x;
  std::vector<Tensor> feeds;
  for (std::size_t r = 0; r < kReplicas; ++r) {
    x.push_back(b.placeholder(str("x", r), DType::kF64, {3}));
    feeds.push_back(Tensor::full(DType::kF64, {3}, static_cast<double>(r + 1)));
  }
  for (std::size_t i = 0; i < kBuckets; ++i) {
    std::vector<Value> values;  // two tensors of each replica
    for (const Value& own : x) {
      values.push_back(own * static_cast<double>(i));
      values.push_back(own - static_cast<double>(i));
    }
    const std::vector<Value> sums =
        b.op("all_reduce", values,
             {{"reduce", std::string("sum")}, {"replicas", static_cast<std::int64_t>(kReplicas)}});
    b.result(sums[2 * (i % kReplicas)]);
    b.result(sums[2 * (i % kReplicas) + 1]);
  }
  Graph graph = b.finish();
  Graph again = graph;
  for (Graph* one : {&graph, &again}) PassRegistry::global().parse_pipeline("order-collectives").run(*one);
  ASSERT_EQ(collective_schedule(graph).size(), kBuckets);
  EXPECT_EQ(collective_digest(graph), collective_digest(again));
  for (const std::string_view ops :
       {"shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring"}) {
    Graph lowered = graph;
    PassRegistry::global().parse_pipeline(str("lower-collectives(ops=", ops, ")")).run(lowered);
    EXPECT_TRUE(collective_schedule(lowered).empty()) << ops;
    for (const std::size_t threads : {1U, 2U}) {
      const std::vector<Tensor> results = compile(lowered, Runtime({.threads = threads})).run(feeds);
      for (std::size_t i = 0; i < kBuckets; ++i) {
        ASSERT_EQ(results[2 * i].data<double>()[2], 10.0 * static_cast<double>(i)) << ops << " " << i;
        ASSERT_EQ(results[2 * i + 1].data<double>()[0], 10.0 - 4.0 * static_cast<double>(i))
            << ops << " " << i;
      }
    }
  }
}

// The whole pipeline, on steps made at random.
TEST_F(LowerCollectives, WholePipelinesKeepTheBitsOfRandomSteps) {
  for (const std::size_t replicas : {1U, 2U, 3U, 4U, 8U}) {
    std::string devices;
    for (std::size_t r = 0; r < replicas; ++r) devices += str(r == 0 ? "" : ",", "cpu:", r);
    for (std::uint64_t seed = 20; seed < 26; ++seed) {
      Graph before = testing::random_replicated_step(static_cast<std::int64_t>(replicas), seed);
      PassRegistry::global().parse_pipeline("replicate").run(before);
      for (const std::string_view ops : {"auto", "reduction_to_one_device", "ring"}) {
        for (const std::string_view share : {"share-mirrored,", ""}) {
          SCOPED_TRACE(str(ops, ", ", replicas, " replicas, seed ", seed, ", ", share));
          Graph after = before;
          PassRegistry::global()
              .parse_pipeline(str("place(devices=[", devices, "]),prove-sync,", share,
                                  "order-collectives,lower-collectives(ops=", ops,
                                  "),insert-copies(all=true)"))
              .run(after);
          testing::expect_same_meaning(before, after, seed);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep

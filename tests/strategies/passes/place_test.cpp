// Tests: strategies/passes/device_checks.cpp, strategies/passes/insert_copies.cpp, strategies/passes/place.cpp,
//        strategies/passes/register.cpp
#include "lockstep/strategies/passes/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/topology.h"
#include "lockstep/strategies/passes/insert_copies.h"
#include "lockstep/strategies/passes/register.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class Place : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }
};
using InsertCopies = Place;

TEST_F(Place, PutsReplicasAndTheirCopiesOnTheirDevices) {
  expect_rewrite("place(devices=[cpu:0,cpu:1])", R"(
      var @w : f32[2]
      var @"w/replica_1" : f32[2] [copy_of=@w, replica=1]
      var @s : f32[2]
      %x = placeholder() : f32[2]
      %a = read[variable=@w]() : f32[2] replica 0
      %b = read[variable=@"w/replica_1"]() : f32[2] replica 1
      %c = neg(%b) : f32[2] on "cpu:3" replica 1
      %t = all_reduce[reduce="sum", replicas=2](%a, %c) : f32[2], f32[2]
      return %t, %x
    )",
                 R"(
      var @w : f32[2] [device="cpu:0"]
      var @"w/replica_1" : f32[2] [device="cpu:1", copy_of=@w, replica=1]
      var @s : f32[2] [device="cpu:0"]
      %x = placeholder() : f32[2] on "cpu:0"
      %a = read[variable=@w]() : f32[2] on "cpu:0" replica 0
      %b = read[variable=@"w/replica_1"]() : f32[2] on "cpu:1" replica 1
      %c = neg(%b) : f32[2] on "cpu:3" replica 1
      %t = all_reduce[reduce="sum", replicas=2](%a, %c) : f32[2], f32[2] on "cpu:0"
      return %t, %x
    )");
}

// A GPU whose kernels are those of a set that has neg alone.
std::string machine_with_neg() {
  static const bool added = [] {
    OpRegistry& registry = OpRegistry::global();
    registry.add_kernel("neg", "test.place", registry.get("neg").kernels.at("cpu"));
    return true;
  }();
  static_cast<void>(added);
  return "cpu:0\ngpu:0 kernels=test.place\ngpu:1\n";
}

TEST_F(Place, WhatHasNoKernelForTheDeviceGoesToTheHost) {
  expect_rewrite("place(devices=[gpu:0])", R"(
      var @w : f32[2]
      %x = placeholder() : f32[2]
      %r = read[variable=@w]() : f32[2]
      %a = neg(%x) : f32[2]
      %b = exp(%a) : f32[2]
      %c = exp(%r) : f32[2] on "gpu:1"
      return %b, %c
    )",
                 R"(
      var @w : f32[2] [device="gpu:0"]
      %x = placeholder() : f32[2] on "gpu:0"
      %r = read[variable=@w]() : f32[2] on "gpu:0"
      %a = neg(%x) : f32[2] on "gpu:0"
      %b = exp(%a) : f32[2] on "cpu:0"
      %c = exp(%r) : f32[2] on "gpu:1"
      return %b, %c
    )",
                 {.topology = machine_with_neg()});
}

// Otherwise a copy would stand between it and the node that uses it, in a fused node too.
TEST_F(Place, AConstantNeedsNoKernel) {
  const Topology topology = Topology::parse(machine_with_neg());
  PassContext context{.topology = &topology};
  Graph graph = parse("%c = constant[value=f32[2]{1, 2}]() : f32[2]\n%b = neg(%c) : f32[2]\nreturn %b\n");
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  for (const Node& node : graph.nodes()) EXPECT_EQ(node.device(), "gpu:0") << node.name();
}

TEST_F(Place, SaysWhyANodeIsOnTheHost) {
  const Topology topology = Topology::parse(machine_with_neg());
  PassContext context{.topology = &topology};
  Graph graph = parse("%x = placeholder() : f32[2]\n%b = exp(%x) : f32[2]\nreturn %b\n");
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  const Node& node = graph.node(graph.results()[0].node);
  EXPECT_EQ(node.device(), "cpu:0");
  EXPECT_EQ(graph.text(node.provenance().why), "no kernel for gpu:0");
  Graph update =
      parse("var @w : f32[2]\n%x = placeholder() : f32[2]\n%n = assign[variable=@w](%x) : f32[2]\nreturn\n");
  try {
    make_place({.devices = {"gpu:0"}})->run(update, context);
    FAIL();
  } catch (const PassError& error) {
    EXPECT_THAT(error.what(), HasSubstr("where the variable is that it updates"));
  }
}

TEST_F(Place, TakesADefaultAndGoesIntoRegions) {
  expect_rewrite("place(devices=[cpu:0,cpu:1],default=cpu:7)", R"(
      var @w : f32[]
      var @s : f32[]
      var @"w/replica_1" : f32[] [copy_of=@w, replica=1]
      %p = placeholder() : bool[]
      %y = cond(%p) : f32[] {
        region {
          %a = read[variable=@w]() : f32[] replica 1
          return %a
        }
        region {
          %a = read[variable=@s]() : f32[]
          return %a
        }
      }
      return %y
    )",
                 R"(
      var @w : f32[] [device="cpu:0"]
      var @s : f32[] [device="cpu:7"]
      var @"w/replica_1" : f32[] [device="cpu:1", copy_of=@w, replica=1]
      %p = placeholder() : bool[] on "cpu:7"
      %y = cond(%p) : f32[] on "cpu:7" {
        region {
          %a = read[variable=@w]() : f32[] on "cpu:0" replica 1
          return %a
        }
        region {
          %a = read[variable=@s]() : f32[] on "cpu:7"
          return %a
        }
      }
      return %y
    )");
}

TEST_F(Place, RefusesADeviceThatTheTopologyDoesNotHave) {
  const Topology topology = Topology::parse("cpu:0");
  PassContext context{.topology = &topology};
  for (const char* passes :
       {"place(devices=[cpu:0,cpu:1])", "place(devices=[cpu:0],default=cpu:1)",
        "place(devices=[cpu:0],variables=cpu:1)", "mirror-variables(devices=[cpu:0,cpu:1])",
        "lower-collectives(ops=reduction_to_one_device,device=cpu:1)"}) {
    Graph graph = parse("%x = placeholder() : f32[2]\nreturn %x\n");
    try {
      PassRegistry::global().parse_pipeline(passes).run(graph, context);
      FAIL() << passes << " was accepted";
    } catch (const PassError& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << passes;
      EXPECT_THAT(error.what(), HasSubstr("device 'cpu:1' is not in the topology of the machine"));
      EXPECT_THAT(error.what(), HasSubstr("there is cpu:0; add it to the topology, or name another device"));
    }
  }
}

TEST_F(Place, RefusesAReplicaWithoutADevice) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %a = neg(%x) : f32[2] replica 2
      return %a
    )");
  try {
    PassRegistry::global().parse_pipeline("place(devices=[cpu:0,cpu:1])").run(graph);
    FAIL() << "it was placed";
  } catch (const PassError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is for replica 2, and there are 2 devices"));
  }
  EXPECT_THROW(PassRegistry::global().parse_pipeline("place"), BadOptionValue);
  EXPECT_THROW(PassRegistry::global().parse_pipeline("place(devices=[abacus])"), BadOptionValue);
}

TEST_F(InsertCopies, OnePerValueAndDevice) {
  expect_rewrite("insert-copies", R"(
      %x = placeholder() : f32[2] on "gpu:0"
      %a = neg(%x) : f32[2] on "gpu:0"
      %b = relu(%a) : f32[2] on "gpu:1" replica 1
      %c = square(%a) : f32[2] on "gpu:1" replica 1
      %d = mul(%a, %b) : f32[2] on "gpu:0"
      return %b, %c, %d
    )",
                 R"(
      %x = placeholder() : f32[2] on "gpu:0"
      %a = neg(%x) : f32[2] on "gpu:0"
      %"a/copy" = copy(%a) : f32[2] on "gpu:1" replica 1
      %b = relu(%"a/copy") : f32[2] on "gpu:1" replica 1
      %c = square(%"a/copy") : f32[2] on "gpu:1" replica 1
      %"b/copy" = copy(%b) : f32[2] on "gpu:0" replica 1
      %d = mul(%a, %"b/copy") : f32[2] on "gpu:0"
      return %b, %c, %d
    )");
}

constexpr std::string_view kCpus = R"(
      %x = placeholder() : f32[2] on "cpu:0"
      %a = neg(%x) : f32[2] on "cpu:1"
      %s = shape_of(%a) : i64[1] on "cpu:0"
      %t = all_reduce[reduce="sum", replicas=2](%x, %a) : f32[2], f32[2] on "cpu:0"
      %b = neg(%t:1) : f32[2] on "cpu:1"
      return %b, %s
    )";

TEST_F(InsertCopies, OneMemoryNeedsNone) { expect_unchanged("insert-copies", kCpus); }

// Logical devices of one card need no copies, because the topology says so; a value of a collective is where
// its replica's input was.
TEST_F(InsertCopies, FollowsTheTopology) {
  const char* const gpus = R"(
      %x = placeholder() : f32[2] on "gpu:0"
      %a = neg(%x) : f32[2] on "gpu:1"
      %t = all_reduce[reduce="sum", replicas=2](%x, %a) : f32[2], f32[2] on "gpu:0"
      %b = neg(%t:1) : f32[2] on "gpu:1"
      %c = neg(%t) : f32[2] on "gpu:1"
      return %b, %c
    )";
  expect_unchanged("insert-copies", gpus, {.topology = "cpu:0; gpu:0 gpu:1 memory=1"});
  expect_rewrite("insert-copies", gpus, R"(
      %x = placeholder() : f32[2] on "gpu:0"
      %"x/copy" = copy(%x) : f32[2] on "gpu:1"
      %a = neg(%"x/copy") : f32[2] on "gpu:1"
      %t = all_reduce[reduce="sum", replicas=2](%x, %a) : f32[2], f32[2] on "gpu:0"
      %b = neg(%t:1) : f32[2] on "gpu:1"
      %"t/copy" = copy(%t) : f32[2] on "gpu:1"
      %c = neg(%"t/copy") : f32[2] on "gpu:1"
      return %b, %c
    )",
                 {.topology = "cpu:0; gpu:0; gpu:1"});
}

// Variables are read where they are; what reads the value elsewhere gets a copy that can be seen.
TEST_F(Place, PutsReadsWhereTheVariableIs) {
  expect_rewrite("place(devices=[gpu:0,gpu:1],variables=cpu:0),insert-copies", R"(
      var @w : f32[2]
      %w = read[variable=@w]() : f32[2] replica 1
      %n = neg(%w) : f32[2] replica 1
      return %n
    )",
                 R"(
      var @w : f32[2] [device="cpu:0"]
      %w = read[variable=@w]() : f32[2] on "cpu:0" replica 1
      %"w/copy" = copy(%w) : f32[2] on "gpu:1" replica 1
      %n = neg(%"w/copy") : f32[2] on "gpu:1" replica 1
      return %n
    )");
}

TEST_F(InsertCopies, ShowsEveryCrossingWhereTold) {
  expect_rewrite("insert-copies(all=true)", kCpus, R"(
      %x = placeholder() : f32[2] on "cpu:0"
      %"x/copy" = copy(%x) : f32[2] on "cpu:1"
      %a = neg(%"x/copy") : f32[2] on "cpu:1"
      %s = shape_of(%a) : i64[1] on "cpu:0"
      %t = all_reduce[reduce="sum", replicas=2](%x, %a) : f32[2], f32[2] on "cpu:0"
      %b = neg(%t:1) : f32[2] on "cpu:1"
      return %b, %s
    )");
}

TEST_F(InsertCopies, CopiesToWhereARegionWantsIt) {
  expect_rewrite("insert-copies(all=true)", R"(
      %p = placeholder() : bool[] on "cpu:0"
      %x = placeholder() : f32[2] on "cpu:0"
      %y = cond(%p, %x) : f32[2] on "cpu:0" {
        region {
          %a = placeholder() : f32[2] on "cpu:1"
          %b = neg(%a) : f32[2] on "cpu:1"
          return %b
        }
        region {
          %a = placeholder() : f32[2] on "cpu:1"
          return %a
        }
      }
      return %y
    )",
                 R"(
      %p = placeholder() : bool[] on "cpu:0"
      %x = placeholder() : f32[2] on "cpu:0"
      %"x/copy" = copy(%x) : f32[2] on "cpu:1"
      %y = cond(%p, %"x/copy") : f32[2] on "cpu:0" {
        region {
          %a = placeholder() : f32[2] on "cpu:1"
          %b = neg(%a) : f32[2] on "cpu:1"
          return %b
        }
        region {
          %a = placeholder() : f32[2] on "cpu:1"
          return %a
        }
      }
      return %y
    )");
}

// Updates, what is not placed, and what stands inside of regions.
TEST_F(InsertCopies, GoesIntoRegionsAndTakesWhatIsNotPlacedForTheCpu) {
  expect_rewrite("insert-copies", R"(
      var @w : f32[2] [device="gpu:0"]
      %p = placeholder() : bool[]
      %x = placeholder() : f32[2]
      %g = neg(%x) : f32[2] on "gpu:1"
      %u = assign[variable=@w](%g) : f32[2] on "gpu:0"
      %y = cond(%p, %u) : f32[2] on "gpu:0" {
        region {
          %a = placeholder() : f32[2] on "gpu:0"
          %b = neg(%a) : f32[2]
          %c = relu(%b) : f32[2] on "gpu:0"
          return %c
        }
        region {
          %a = placeholder() : f32[2] on "gpu:0"
          return %a
        }
      }
      %z = neg(%y) : f32[2] on "gpu:1"
      return %z
    )",
                 R"(
      var @w : f32[2] [device="gpu:0"]
      %p = placeholder() : bool[]
      %x = placeholder() : f32[2]
      %"x/copy" = copy(%x) : f32[2] on "gpu:1"
      %g = neg(%"x/copy") : f32[2] on "gpu:1"
      %"g/copy" = copy(%g) : f32[2] on "gpu:0"
      %u = assign[variable=@w](%"g/copy") : f32[2] on "gpu:0"
      %"p/copy" = copy(%p) : bool[] on "gpu:0"
      %y = cond(%"p/copy", %u) : f32[2] on "gpu:0" {
        region {
          %a = placeholder() : f32[2] on "gpu:0"
          %"a/copy" = copy(%a) : f32[2] on "cpu:0"
          %b = neg(%"a/copy") : f32[2]
          %"b/copy" = copy(%b) : f32[2] on "gpu:0"
          %c = relu(%"b/copy") : f32[2] on "gpu:0"
          return %c
        }
        region {
          %a = placeholder() : f32[2] on "gpu:0"
          return %a
        }
      }
      %"y/copy" = copy(%y) : f32[2] on "gpu:1"
      %z = neg(%"y/copy") : f32[2] on "gpu:1"
      return %z
    )");
}

}  // namespace
}  // namespace lockstep

// Tests: graph/ir/placement.cpp
#include "lockstep/graph/ir/placement.h"

#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

TEST(Placement, SaysWhereValuesAreAndWhereTheyAreWanted) {
  const Graph graph = parse(R"(
      %p = placeholder() : bool[] on "cpu:0"
      %x = placeholder() : f32[2] on "gpu:0"
      %y = neg(%x) : f32[2] on "gpu:1"
      %t = all_reduce[reduce="sum", replicas=2](%x, %y) : f32[2], f32[2] on "gpu:0"
      %c = cond(%p, %x) : f32[2] on "cpu:0" {
        region {
          %a = placeholder() : f32[2] on "gpu:2"
          %b = neg(%a) : f32[2] on "gpu:3"
          return %b
        }
        region {
          %a = placeholder() : f32[2] on "gpu:2"
          %b = relu(%a) : f32[2] on "gpu:3"
          return %b
        }
      }
      return %c
    )");
  const auto where = [&](std::string_view name, std::uint32_t output = 0) {
    return device_of(graph, {graph.find(name), output});
  };
  EXPECT_EQ(where("x"), "gpu:0");
  EXPECT_EQ(where("t", 0), "gpu:0");
  EXPECT_EQ(where("t", 1), "gpu:1");
  EXPECT_EQ(where("c"), "gpu:3");
  const Node& choice = graph.node(graph.find("c"));
  EXPECT_EQ(wanted_device(choice, 0), "cpu:0");
  EXPECT_EQ(wanted_device(choice, 1), "gpu:2");
  EXPECT_EQ(wanted_device(graph.node(graph.find("y")), 0), "gpu:1");
}

TEST(Placement, MemoriesFollowTheTopology) {
  const Topology topology = Topology::parse("gpu:0 gpu:1 memory=1; cpu:0 cpu:1");
  Memories known(&topology), unknown(nullptr);
  EXPECT_TRUE(known.same("gpu:0", "gpu:1"));
  EXPECT_FALSE(unknown.same("gpu:0", "gpu:1"));
  EXPECT_TRUE(known.same("", "gpu:1")) << "what is not placed is on the first device";
  EXPECT_FALSE(known.same("", "cpu:1"));
  EXPECT_TRUE(unknown.same("", "cpu:1"));
  EXPECT_TRUE(known.same("cpu:0", "cpu:1"));
}

}  // namespace
}  // namespace lockstep

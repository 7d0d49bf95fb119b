// Tests: graph/ir/replica_nodes.cpp
#include "lockstep/graph/ir/replica_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr const char* kText = R"(
%s = placeholder() : f32[]
%a = placeholder() : f32[4]
%b = placeholder() : f32[2]
%step = replicated[replicas=2, shared=1](%s, %a, %b) : f32[], f32[], f32[?], f32[?] {
  region {
    %scale = placeholder() : f32[]
    %x = placeholder() : f32[?]
    %sum = sum(%x) : f32[]
    %out = merge_call[replicas=2, single=[1, 0]](%sum, %x) : f32[], f32[?] {
      region {
        %p = placeholder() : f32[]
        %q = placeholder() : f32[?]
        %r = placeholder() : f32[]
        %t = placeholder() : f32[?]
        return %p, %q, %t
      }
    }
    %all = all_reduce[reduce="sum"](%sum) : f32[]
    %late = all_gather[replicas=0](%x) : f32[?]
    return %all, %late
  }
}
%joined = all_reduce[reduce="sum", replicas=2](%step, %step:1) : f32[], f32[]
return %joined, %joined:1
)";

class ReplicaNodes : public ::testing::Test {
 protected:
  const Node& node(const Graph& graph, const char* name) { return graph.node(graph.find(name)); }
  const Graph graph_ = parse(kText);
  const Node& replicated_ = node(graph_, "step");
  const Graph& region_ = replicated_.regions()[0];
};

TEST_F(ReplicaNodes, NameTheInputsAndOutputsOfReplicatedNodes) {
  const ReplicatedNode view(replicated_);
  EXPECT_EQ(view.replicas(), 2U);
  EXPECT_EQ(view.shared(), 1U);
  EXPECT_FALSE(view.is_update());
  EXPECT_EQ(&view.region(), &region_);
  EXPECT_THAT(view.inputs(0), ElementsAre(replicated_.inputs()[0]));
  EXPECT_THAT(view.inputs(1), ElementsAre(replicated_.inputs()[1], replicated_.inputs()[2]));
  EXPECT_THAT(view.arguments(replicated_.inputs(), 1),
              ElementsAre(replicated_.inputs()[0], replicated_.inputs()[2]));
  EXPECT_EQ(view.output(1, 0), 2U);
  EXPECT_EQ(view.result(3), 1U);
}

TEST_F(ReplicaNodes, NameTheArgumentsAndResultsOfMergeCalls) {
  const MergeCall view(node(region_, "out"));
  EXPECT_EQ(view.replicas(), 2U);
  EXPECT_EQ(view.outputs(), 2U);
  EXPECT_TRUE(view.is_single(0));
  EXPECT_FALSE(view.is_single(1));
  EXPECT_EQ(view.parameter(1, 1), 3U);
  EXPECT_THAT(view.first_results(), ElementsAre(0, 1, 3));
}

TEST_F(ReplicaNodes, SayWhatCollectivesWaitFor) {
  EXPECT_EQ(joined_replicas(node(graph_, "joined")), 2U);
  EXPECT_EQ(joined_replicas(node(region_, "all")), 1U);
  EXPECT_EQ(joined_replicas(node(region_, "late")), 1U);
  EXPECT_TRUE(awaits_joining(node(region_, "late")));
  EXPECT_FALSE(awaits_joining(node(region_, "all")));
  EXPECT_FALSE(awaits_joining(replicated_));
}

TEST_F(ReplicaNodes, AreNotWhatDoesNotHoldTogether) {
  EXPECT_FALSE(ReplicatedNode::of(node(graph_, "joined")));
  EXPECT_FALSE(MergeCall::of(replicated_));
  const auto broken = [](const Graph& graph, const char* name, const char* attribute, AttributeValue value) {
    Graph copy = graph;
    copy.set_attribute(copy.find(name), attribute, std::move(value));
    const Node& node = copy.node(copy.find(name));
    EXPECT_THROW(ReplicatedNode{node}, Error);
    EXPECT_THROW(MergeCall{node}, Error);
  };
  broken(graph_, "step", "replicas", std::int64_t{0});
  broken(graph_, "step", "replicas", std::int64_t{3});
  broken(graph_, "step", "shared", std::int64_t{-1});
  broken(graph_, "step", "shared", std::int64_t{3});
  broken(graph_, "step", "shared", true);
  broken(region_, "out", "replicas", std::int64_t{3});
  broken(region_, "out", "single", std::vector<std::int64_t>{1, 1});
}

}  // namespace
}  // namespace lockstep

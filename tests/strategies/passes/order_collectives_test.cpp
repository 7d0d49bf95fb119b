// Tests: strategies/passes/order_collectives.cpp, strategies/passes/register.cpp,
//        strategies/proof/collective_schedule.cpp
#include "lockstep/strategies/passes/order_collectives.h"

#include <gtest/gtest.h>

#include "lockstep/strategies/passes/register.h"
#include "lockstep/strategies/proof/collective_schedule.h"
#include "support/pass_test.h"

namespace lockstep {
namespace {

class OrderCollectives : public testing::PassTest {
 protected:
  void SetUp() override { register_strategy_passes(); }
};

constexpr std::string_view kThree = R"(
      %x = placeholder() : f32[2]
      %y = placeholder() : f32[?,3]
      %a = all_reduce[reduce="sum", replicas=2](%x, %x) : f32[2], f32[2]
      %b = all_gather[replicas=2](%y, %y) : f32[?,3], f32[?,3]
      %c = all_reduce[reduce="max", replicas=2](%b, %b:1) : f32[?,3], f32[?,3]
      %n = neg(%c) : f32[?,3]
      return %a, %n
    )";

TEST_F(OrderCollectives, ChainsThemInTopologicalOrder) {
  expect_rewrite("order-collectives", kThree, R"(
      %x = placeholder() : f32[2]
      %y = placeholder() : f32[?,3]
      %a = all_reduce[reduce="sum", replicas=2](%x, %x) : f32[2], f32[2]
      %b = all_gather[replicas=2](%y, %y) : f32[?,3], f32[?,3] after(%a)
      %c = all_reduce[reduce="max", replicas=2](%b, %b:1) : f32[?,3], f32[?,3]
      %n = neg(%c) : f32[?,3]
      return %a, %n
    )");
}

TEST_F(OrderCollectives, BranchesThatHoldSomeCountAsOne) {
  expect_rewrite("order-collectives", R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[2]
      %a = all_reduce[reduce="sum", replicas=1](%x) : f32[2]
      %y = cond(%p, %x) : f32[2] {
        region {
          %x = placeholder() : f32[2]
          %b = all_reduce[reduce="sum", replicas=1](%x) : f32[2]
          %c = all_reduce[reduce="max", replicas=1](%x) : f32[2]
          %d = add(%b, %c) : f32[2]
          return %d
        }
        region {
          %x = placeholder() : f32[2]
          return %x
        }
      }
      %e = all_reduce[reduce="min", replicas=1](%x) : f32[2]
      return %y, %a, %e
    )",
                 R"(
      %p = placeholder() : bool[]
      %x = placeholder() : f32[2]
      %a = all_reduce[reduce="sum", replicas=1](%x) : f32[2]
      %y = cond(%p, %x) : f32[2] after(%a) {
        region {
          %x = placeholder() : f32[2]
          %b = all_reduce[reduce="sum", replicas=1](%x) : f32[2]
          %c = all_reduce[reduce="max", replicas=1](%x) : f32[2] after(%b)
          %d = add(%b, %c) : f32[2]
          return %d
        }
        region {
          %x = placeholder() : f32[2]
          return %x
        }
      }
      %e = all_reduce[reduce="min", replicas=1](%x) : f32[2] after(%y)
      return %y, %a, %e
    )");
}

TEST_F(OrderCollectives, LeavesOthersAlone) {
  expect_unchanged("order-collectives", R"(
      %x = placeholder() : f32[2]
      %a = neg(%x) : f32[2]
      %t = all_reduce[reduce="sum", replicas=2](%x, %a) : f32[2], f32[2]
      return %t
    )");
}

TEST_F(OrderCollectives, RecordsTheScheduleForTheCaller) {
  Graph graph = parse(R"(
      %x = placeholder() : f32[2]
      %a = all_reduce[reduce="sum", replicas=1](%x) : f32[2]
      %b = all_reduce[reduce="max", replicas=1](%x) : f32[2]
      %unread = neg(%b) : f32[2]
      return %a, %b
    )");
  const std::string expected = print_schedule(collective_schedule(graph));
  Analyses records;
  PassContext context{.records = &records};
  // It stays when a later pass changes the graph.
  const PipelineReport report =
      PassRegistry::global().parse_pipeline("order-collectives,dead-node-elimination").run(graph, context);
  ASSERT_EQ(report.passes[1].outcome, PassOutcome::kChanged);
  const auto schedule = records.find<lockstep::CollectiveSchedule>();
  ASSERT_NE(schedule, nullptr);
  EXPECT_EQ(print_schedule(*schedule), expected);
}

TEST(CollectiveSchedule, ListsWhatWorkersMustAgreeOn) {
  const Graph graph = parse(kThree);
  EXPECT_EQ(print_schedule(collective_schedule(graph)),
            "0 all_reduce sum f32 x 2  // a\n"
            "1 all_gather f32 x ?  // b\n"
            "2 all_reduce max f32 x ?  // c\n");
}

TEST(CollectiveSchedule, TheDigestLooksAtWhatMattersAlone) {
  const auto changed = [](std::string_view from, std::string_view to) {
    std::string text(kThree);
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
    return collective_digest(parse(text));
  };
  const std::uint64_t digest = collective_digest(parse(kThree));
  EXPECT_EQ(changed("%a", "%other"), digest);    // names
  EXPECT_EQ(changed("[?,3]", "[?,5]"), digest);  // sizes that depend on the batch
  EXPECT_EQ(changed("neg", "square"), digest);   // what is no collective
  EXPECT_NE(changed("sum", "prod"), digest);
  EXPECT_NE(changed("f32[2]", "f32[4]"), digest);
  EXPECT_NE(changed("f32", "f64"), digest);
}

}  // namespace
}  // namespace lockstep

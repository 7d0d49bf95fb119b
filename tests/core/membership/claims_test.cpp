// Tests: core/membership/claims.cpp
#include "lockstep/core/membership/internal/claims.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep::internal {
namespace {

TEST(FirstDifference, NamesTheLineAndBothSides) {
  EXPECT_EQ(first_difference("a", "1\n2\n3", "b", "1\nx\n3"), "line 2 is '2' on a and 'x' on b");
  EXPECT_EQ(first_difference("a", "1\n", "b", "1\n2\n"), "line 2 is missing on a; on b it is '2'");
  EXPECT_EQ(first_difference("a", "1\n2", "b", "1"), "line 2 is missing on b; on a it is '2'");
  EXPECT_EQ(first_difference("a", "1", "b", "1"), "a and b have different hashes of the same text");
  EXPECT_EQ(first_difference("a", "", "b", "\x1b[2J"), "line 1 is missing on a; on b it is '\\x1b[2J'");
  const std::string difference = first_difference("a", std::string(1000, 'x'), "b", "y");
  EXPECT_LT(difference.size(), 500U);
  EXPECT_NE(difference.find("x...' on a and 'y' on b"), std::string::npos);
}

class ClaimsOfThree : public ::testing::Test {
 protected:
  ClaimsOfThree() {
    for (int member = 0; member < 3; ++member) claims.name(member, "worker:" + std::to_string(member));
  }
  Claims claims{3};
  const SteadyTime start = SteadyTime(std::chrono::hours(1));
};

TEST_F(ClaimsOfThree, AllAreToldAtOnceWhenTheyAgree) {
  for (int member = 0; member < 3; ++member) {
    EXPECT_TRUE(claims.take_outcomes().empty());
    claims.claim(member, "step", "hash", start, {});
  }
  const auto outcomes = claims.take_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].why, "");
  EXPECT_EQ(outcomes[0].whom, (std::vector<int>{0, 1, 2}));
  EXPECT_FALSE(claims.next_tick().has_value());
}

TEST_F(ClaimsOfThree, WhoComesLateIsToldWhatDiffers) {
  claims.claim(2, "step", "x", start, {});
  claims.claim(0, "step", "y", start, {});
  const auto questions = claims.take_questions();
  ASSERT_EQ(questions.size(), 2U);
  EXPECT_EQ(questions[0].whom, 0);
  EXPECT_EQ(questions[1].whom, 2);
  claims.text(0, "step", "a");
  claims.text(2, "step", "b");
  auto outcomes = claims.take_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].why, "line 1 is 'a' on worker:0 and 'b' on worker:2");
  EXPECT_EQ(outcomes[0].whom, (std::vector<int>{0, 2}));
  claims.claim(1, "step", "y", start, {});
  outcomes = claims.take_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].why, "line 1 is 'a' on worker:0 and 'b' on worker:2");
  EXPECT_EQ(outcomes[0].whom, std::vector<int>{1});
}

TEST_F(ClaimsOfThree, TextsThatDoNotComeAreNotWaitedForLong) {
  claims.claim(0, "step", "x", start, {});
  claims.claim(1, "step", "y", start, {});
  ASSERT_TRUE(claims.next_tick().has_value());
  claims.text(0, "step", "a");
  claims.text(2, "step", "of one who was not asked");
  claims.tick(*claims.next_tick() - std::chrono::nanoseconds(1));
  EXPECT_TRUE(claims.take_outcomes().empty());
  claims.tick(*claims.next_tick());
  const auto outcomes = claims.take_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(outcomes[0].why, "worker:0 and worker:1 differ");
}

TEST_F(ClaimsOfThree, TheEarliestDeadlineHoldsForAll) {
  claims.claim(0, "step", "x", start, start + std::chrono::seconds(5));
  claims.claim(1, "step", "x", start, start + std::chrono::seconds(1));
  EXPECT_EQ(claims.next_tick(), start + std::chrono::seconds(1));
  claims.tick(start + std::chrono::seconds(1));
  const auto outcomes = claims.take_outcomes();
  ASSERT_EQ(outcomes.size(), 1U);
  EXPECT_EQ(outcomes[0].code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(outcomes[0].why, "the deadline passed before it was reached by worker:2");
  EXPECT_EQ(outcomes[0].whom, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace lockstep::internal

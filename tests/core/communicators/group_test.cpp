// Tests: core/communicators/group.cpp
#include "lockstep/core/communicators/group.h"

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/core/runtime.h"
#include "support/communicator_calls.h"
#include "support/forked.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::sum_of;
using testing::Waiter;

struct Member {
  explicit Member(InProcessGroup& room, int rank) : group(room.join(rank)), in(100), out(100) {
    std::iota(in.begin(), in.end(), static_cast<float>(rank));
  }
  Group group;
  std::vector<float> in, out;
};

TEST(Group, CallsCompleteByThemselves) {
  InProcessGroup room(2);
  Member one(room, 0), two(room, 1);
  EXPECT_EQ(two.group.rank(), 1);
  EXPECT_EQ(two.group.size(), 2);
  std::vector<float> again(100);
  Waiter first, second, third, fourth;
  one.group.start(sum_of(one.in, one.out), first);
  one.group.start(sum_of(one.in, again), second);  // under way together
  two.group.start(sum_of(two.in, two.out), third);
  EXPECT_EQ(first.wait(), "");
  EXPECT_EQ(third.wait(), "");
  two.group.start(sum_of(two.in, two.out), fourth);
  EXPECT_EQ(second.wait(), "");
  EXPECT_EQ(fourth.wait(), "");
  EXPECT_EQ(one.out[3], 7);
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(again, two.out);
}

TEST(Group, FailuresGoToTheCall) {
  InProcessGroup room(2);
  Member one(room, 0), two(room, 1);
  Waiter bad, other, mine;
  CommunicatorCall wrong = sum_of(one.in, one.out);
  wrong.count = -1;
  one.group.start(wrong, bad);
  EXPECT_THAT(bad.wait(), HasSubstr("expected a count of at least 0"));
  CommunicatorCall shorter = sum_of(two.in, two.out);
  shorter.count = 50;
  two.group.start(shorter, other);
  one.group.start(sum_of(one.in, one.out), mine);
  EXPECT_THAT(mine.wait(), HasSubstr("100"));
  EXPECT_THAT(other.wait(), HasSubstr("50"));
}

TEST(Group, DeadlinesNameWhoIsMissing) {
  InProcessGroup room(2);
  Member one(room, 0);
  Waiter waiter;
  CommunicatorCall call = sum_of(one.in, one.out);
  call.deadline = deadline_in(20ms);
  one.group.start(call, waiter);
  EXPECT_THAT(waiter.wait(), HasSubstr("1"));
}

TEST(Group, AChildHasNoThread) {
  InProcessGroup room(1);
  auto member = std::make_unique<Member>(room, 0);
  EXPECT_EQ(testing::exit_status_of_child([&] {
              Waiter waiter;
              std::string what;
              try {
                member->group.start(sum_of(member->in, member->out), waiter);
              } catch (const FailedPrecondition& error) {
                what = error.what();
              }
              member.reset();  // waits for nothing
              return what.find("give the child a group of its own") == std::string::npos ? 1 : 0;
            }),
            0);
}

TEST(Group, RuntimesKnowGroupsByName) {
  InProcessGroup room(1);
  const auto group = std::make_shared<Group>(room.join(0));
  const Runtime runtime({.threads = 1, .groups = {{"world", group}}});
  EXPECT_EQ(&runtime.group("world"), group.get());
  EXPECT_THROW(runtime.group("mars"), NotFound);
  EXPECT_THROW(Runtime({.groups = {{"none", nullptr}}}), InvalidArgument);
  EXPECT_THROW(Group(nullptr), InvalidArgument);
}

}  // namespace
}  // namespace lockstep

// Tests: core/communicators/group.cpp, core/awaited_completion.cpp
#include "lockstep/core/communicators/group.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
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

TEST(Group, ATimeoutNamesWhoIsMissing) {
  InProcessGroup room(2);
  Member one(room, 0), two(room, 1);
  one.group.set_timeout(20ms);
  Waiter together, other, alone;
  one.group.start(sum_of(one.in, one.out), together);
  two.group.start(sum_of(two.in, two.out), other);
  EXPECT_EQ(together.wait(), "");
  EXPECT_EQ(other.wait(), "");
  one.group.start(sum_of(one.in, one.out), alone);
  EXPECT_THAT(alone.wait(), HasSubstr("the deadline passed before participant 1 of 2 had called it"));
}

TEST(Group, SaysWhatItWaitsFor) {
  InProcessGroup room(2);
  Member one(room, 0), two(room, 1);
  EXPECT_FALSE(one.group.waiting().has_value());
  Waiter mine, its;
  const auto begin = std::chrono::steady_clock::now();
  one.group.start(sum_of(one.in, one.out), mine, 0, std::make_shared<const std::string>("sum of 'x'"));
  while (!one.group.waiting()) std::this_thread::yield();
  EXPECT_EQ(one.group.waiting()->what, "sum of 'x'");
  EXPECT_GE(one.group.waiting()->since, begin);
  two.group.start(sum_of(two.in, two.out), its);
  EXPECT_EQ(mine.wait(), "");
  while (one.group.waiting()) std::this_thread::yield();
  EXPECT_EQ(its.wait(), "");
}

TEST(GroupRounds, OneThatIsGivenUpEndsForAllAndTheNextIsRight) {
  InProcessGroup room(2);
  Member one(room, 0), two(room, 1);
  const Group::Round mine = one.group.begin_round(), its = two.group.begin_round();
  EXPECT_GT(mine, 0U);
  Waiter first, second, third, fourth, voted;
  std::vector<float> again(100);
  one.group.start(sum_of(one.in, one.out), first, mine);
  one.group.start(sum_of(one.in, again), second, mine);
  one.group.vote(mine, voted);
  two.group.start(sum_of(two.in, two.out), third, its);
  EXPECT_EQ(third.wait(), "");
  two.group.give_up(its, ErrorCode::kDataLoss, "the file ends early");
  EXPECT_EQ(first.wait(), "");
  EXPECT_EQ(one.out, two.out);
  EXPECT_EQ(second.wait(), "DataLoss: participant 1 gave it up: the file ends early");
  EXPECT_EQ(voted.wait(), second.wait());
  two.group.start(sum_of(two.in, two.out), fourth, its);  // of a round that is over
  EXPECT_EQ(fourth.wait(), second.wait());
  const Group::Round next = one.group.begin_round(), its_next = two.group.begin_round();
  Waiter fifth, sixth, seventh, eighth;
  one.group.start(sum_of(one.in, again), fifth, next);
  two.group.start(sum_of(two.in, two.out), sixth, its_next);
  one.group.vote(next, seventh);
  two.group.vote(its_next, eighth);
  for (Waiter* const waiter : {&fifth, &sixth, &seventh, &eighth}) EXPECT_EQ(waiter->wait(), "");
  EXPECT_EQ(again, two.out);
}

// Both find out at the same time; the first by rank is the one that is told.
TEST(GroupRounds, MayBeGivenUpByAll) {
  InProcessGroup room(2);
  Member one(room, 0), two(room, 1);
  for (int i = 0; i < 100; ++i) {
    const Group::Round mine = one.group.begin_round(), its = two.group.begin_round();
    Waiter first, second;
    one.group.start(sum_of(one.in, one.out), first, mine);
    if (i % 2 == 0) two.group.start(sum_of(two.in, two.out), second, its);
    one.group.give_up(mine, ErrorCode::kCancelled, "enough");
    two.group.give_up(its, ErrorCode::kDataLoss, "broken");
    if (i % 2 == 0) {
      EXPECT_EQ(first.wait(), "");
      EXPECT_EQ(second.wait(), "");
    } else {
      EXPECT_THAT(first.wait(), HasSubstr("broken"));
    }
  }
}

TEST(GroupRounds, CarryTheWishToStop) {
  InProcessGroup room(3);
  Member one(room, 0), two(room, 1), three(room, 2);
  const auto vote = [&] {
    Waiter voted[3];
    int i = 0;
    for (Member* const member : {&one, &two, &three})
      member->group.vote(member->group.begin_round(), voted[i++]);
    for (Waiter& waiter : voted) EXPECT_EQ(waiter.wait(), "");
  };
  vote();
  EXPECT_FALSE(one.group.is_stop_wanted());
  two.group.want_stop();
  EXPECT_FALSE(two.group.is_stop_wanted());
  vote();
  for (Member* const member : {&one, &two, &three}) EXPECT_TRUE(member->group.is_stop_wanted());
}

// The others hear the reason, and not that a member has left.
TEST(GroupRounds, AreGivenUpBeforeAMemberLeaves) {
  InProcessGroup room(2);
  Member one(room, 0);
  auto two = std::make_unique<Member>(room, 1);
  two->group.give_up(two->group.begin_round(), ErrorCode::kDataLoss, "broken");
  std::thread leaving([&] { two.reset(); });
  std::this_thread::sleep_for(10ms);
  Waiter first, second;
  one.group.start(sum_of(one.in, one.out), first, one.group.begin_round());
  EXPECT_THAT(first.wait(), HasSubstr("broken"));
  leaving.join();
  one.group.start(sum_of(one.in, one.out), second, one.group.begin_round());
  EXPECT_THAT(second.wait(), HasSubstr("left the group"));
}

TEST(GroupRounds, NobodyWaitsForOneThatNeverComesToHear) {
  InProcessGroup room(2);
  Member one(room, 0);
  {
    Member two(room, 1);
    two.group.give_up(two.group.begin_round(), ErrorCode::kDataLoss, "broken");
  }
  Waiter late;
  one.group.start(sum_of(one.in, one.out), late, one.group.begin_round());
  EXPECT_THAT(late.wait(), HasSubstr("left the group"));
}

// A communicator of which participants can only leave.
class Plain final : public Communicator {
 public:
  explicit Plain(std::unique_ptr<Communicator> comm) : comm_(std::move(comm)) {}
  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  void abort(const Error& why) override { comm_->abort(why); }
  void close() override { comm_->close(); }

 private:
  Pending start(const CommunicatorCall& call) override { return comm_->call(call); }
  std::unique_ptr<Communicator> comm_;
};

TEST(GroupRounds, EndTheGroupWhereCallsCannotBeDeclined) {
  InProcessGroup room(2);
  Group one(std::make_unique<Plain>(room.join(0))), two(std::make_unique<Plain>(room.join(1)));
  EXPECT_FALSE(one.votes());
  std::vector<float> in(10), out(10);
  Waiter waiter;
  one.start(sum_of(in, out), waiter, one.begin_round());
  two.give_up(two.begin_round(), ErrorCode::kDataLoss, "broken");
  EXPECT_THAT(waiter.wait(), HasSubstr("broken"));
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

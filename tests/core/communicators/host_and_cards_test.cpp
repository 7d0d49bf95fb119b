// Tests: core/communicators/host_and_cards.cpp
#include "lockstep/core/communicators/host_and_cards.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/core/error.h"
#include "support/communicator_calls.h"
#include "support/failing_members.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::sum_of;
using testing::Waiter;

// Plays a communicator of cards, with memory of the host.
class Cards final : public Communicator {
 public:
  Cards(std::unique_ptr<Communicator> inner, std::atomic<int>& begun)
      : inner_(std::move(inner)), begun_(begun) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool takes(DeviceKind memory) const override { return memory == DeviceKind::kGpu; }
  void abort(const Error& why) override { inner_->abort(why); }
  void close() override { inner_->close(); }

 protected:
  Pending start(const CommunicatorCall& call) override {
    EXPECT_EQ(call.memory, DeviceKind::kGpu);
    if (call.count == 13) throw InvalidArgument("13 elements bring bad luck");
    ++begun_;
    return inner_->call(call);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::atomic<int>& begun_;
};

// Each participant on a thread of its own; what each has thrown.
struct Team {
  explicit Team(int count) : size(count), host(count), cards(count) {}
  std::unique_ptr<Communicator> join(int rank) {
    return host_and_cards(host.join(rank), std::make_unique<Cards>(cards.join(rank), begun));
  }
  std::vector<std::string> each(const std::function<void(Communicator&)>& play) {
    std::vector<std::string> errors(static_cast<std::size_t>(size));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, comm = join(rank)] {
        try {
          play(*comm);
        } catch (const std::exception& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
    threads.clear();  // waits
    return errors;
  }
  int size;
  InProcessGroup host, cards;
  std::atomic<int> begun{0};
};

CommunicatorCall on_cards(CommunicatorCall call) {
  call.memory = DeviceKind::kGpu;
  return call;
}

struct Sum {
  Sum(std::size_t count, float value) : in(count, value), out(count) {}
  Pending start(Communicator& comm, DeviceKind memory = DeviceKind::kGpu) {
    CommunicatorCall call = sum_of(in, out);
    call.memory = memory;
    call.deadline = deadline_in(30s);
    return comm.call(call);
  }
  std::vector<float> in, out;
};

TEST(HostAndCards, ExchangesBothInOneOrder) {
  for (const int size : {1, 2, 3}) {
    Team team(size);
    const auto errors = team.each([&](Communicator& comm) {
      EXPECT_TRUE(comm.takes(DeviceKind::kCpu));
      EXPECT_TRUE(comm.takes(DeviceKind::kGpu));
      EXPECT_TRUE(comm.can_decline());
      for (int k = 0; k < 30; ++k) {
        Sum sum(k % 3 == 0 ? 20'000 : 3, static_cast<float>(k + comm.rank()));
        sum.start(comm, k % 2 == 0 ? DeviceKind::kGpu : DeviceKind::kCpu).wait();
        EXPECT_THAT(sum.out, Each(static_cast<float>(k * size + size * (size - 1) / 2)));
      }
      comm.barrier(deadline_in(30s)).wait();
    });
    EXPECT_THAT(errors, Each(std::string()));
    EXPECT_EQ(team.begun, 15 * size);
  }
}

// Of all kinds, agreed on and then performed: what is agreed on touches no array.
TEST(HostAndCards, TakesEachCollective) {
  Team team(2);
  const auto errors = team.each([&](Communicator& comm) {
    const auto r = static_cast<float>(comm.rank());
    std::vector<float> mine = {r + 1, 10 * (r + 1)}, got(4);
    const auto run = [&](CommunicatorCall::Kind kind, std::int64_t count, int peer, void* out) {
      CommunicatorCall call;
      call.kind = kind;
      call.count = count;
      call.peer = peer;
      call.in = kind == CommunicatorCall::Kind::kBroadcast ? out : mine.data();
      call.out = out;
      call.deadline = deadline_in(30s);
      comm.call(on_cards(call)).wait();
    };
    run(CommunicatorCall::Kind::kAllGather, 2, -1, got.data());
    EXPECT_EQ(got, (std::vector<float>{1, 10, 2, 20}));
    run(CommunicatorCall::Kind::kReduceScatter, 1, -1, got.data());
    EXPECT_EQ(got[0], comm.rank() == 0 ? 3 : 30);
    got = {7, 7, 7, 7};
    run(CommunicatorCall::Kind::kReduce, 2, 1, got.data());
    EXPECT_EQ(got, comm.rank() == 1 ? (std::vector<float>{3, 30, 7, 7}) : (std::vector<float>{7, 7, 7, 7}));
    std::vector<float> told = {r, r};
    run(CommunicatorCall::Kind::kBroadcast, 2, 1, told.data());
    EXPECT_EQ(told, (std::vector<float>{1, 1}));
  });
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(HostAndCards, FindsCallsThatDoNotAgreeBeforeCardsBegin) {
  Team team(2);
  const auto errors = team.each([&](Communicator& comm) {
    Sum sum(comm.rank() == 0 ? 4 : 5, 1);
    sum.start(comm).wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all_reduce(sum, f32, 4, on cards)"),
                                 HasSubstr("all_reduce(sum, f32, 5, on cards)"))));
  EXPECT_EQ(team.begun, 0);
  // One of them means the host's memory.
  Team other(2);
  const auto differ = other.each([&](Communicator& comm) {
    Sum sum(4, 1);
    sum.start(comm, comm.rank() == 0 ? DeviceKind::kCpu : DeviceKind::kGpu).wait();
  });
  EXPECT_THAT(differ, Each(HasSubstr("all_reduce(sum, f32, 4, on cards)")));
  EXPECT_EQ(other.begun, 0);
}

TEST(HostAndCards, ACallOfCardsCanBeDeclined) {
  Team team(3);
  const auto errors = team.each([&](Communicator& comm) {
    for (int k = 0; k < 10; ++k) {
      Sum sum(100, 1);
      if (comm.rank() == k % 3) {
        Pending declined = comm.decline(ErrorCode::kDataLoss, "no time");
        EXPECT_THROW(declined.wait(), Declined);
      } else {
        Pending asked = sum.start(comm);
        EXPECT_THROW(asked.wait(), Declined);
      }
      EXPECT_THAT(sum.out, Each(0));
      sum.start(comm).wait();
      EXPECT_THAT(sum.out, Each(3));
    }
  });
  EXPECT_THAT(errors, Each(std::string()));
  EXPECT_EQ(team.begun, 30);
}

TEST(HostAndCards, CallsUnderWayAreBegunInOrderWhicheverIsAskedFor) {
  Team team(2);
  const auto errors = team.each([&](Communicator& comm) {
    Sum first(3, 1), second(30'000, 2), third(3, 3);
    Pending a = first.start(comm), b = second.start(comm), c = third.start(comm);
    while (!c.done()) std::this_thread::yield();
    c.wait();
    EXPECT_THAT(third.out, Each(6));
    b.wait();
    a.wait();
    EXPECT_THAT(first.out, Each(2));
    EXPECT_THAT(second.out, Each(4));
  });
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(HostAndCards, WhatOneEngineEndsTheOtherEndsToo) {
  {  // Cards refuse a call that all have agreed on.
    Team team(2);
    const auto errors = team.each([&](Communicator& comm) {
      Sum sum(13, 1), next(4, 1);
      EXPECT_THROW(sum.start(comm).wait(), Error);
      next.start(comm, DeviceKind::kCpu).wait();
    });
    EXPECT_THAT(errors, Each(HasSubstr("bad luck")));
  }
  {  // A call is dropped.
    Team team(2);
    const auto errors = team.each([&](Communicator& comm) {
      Sum sum(4, 1), next(4, 1);
      if (comm.rank() == 0) {
        { const Pending dropped = sum.start(comm); }
      } else {
        sum.start(comm).wait();
      }
      next.start(comm).wait();
    });
    EXPECT_THAT(errors, Each(HasSubstr("participant 0")));
  }
  {  // One aborts while the other waits.
    Team team(2);
    const auto errors = team.each([&](Communicator& comm) {
      Sum sum(4, 1);
      if (comm.rank() == 0) {
        std::this_thread::sleep_for(20ms);
        comm.abort(Error(ErrorCode::kUnavailable, "enough"));
      }
      sum.start(comm).wait();
    });
    EXPECT_THAT(errors, Each(HasSubstr("enough")));
  }
}

TEST(HostAndCards, RefusesWhatDoesNotFit) {
  InProcessGroup two(2), three(3), cards(2);
  std::atomic<int> begun{0};
  EXPECT_THROW(host_and_cards(nullptr, nullptr), InvalidArgument);
  EXPECT_THROW(host_and_cards(three.join(0), std::make_unique<Cards>(cards.join(0), begun)), InvalidArgument);
  EXPECT_THROW(host_and_cards(two.join(0), two.join(1)), InvalidArgument);
}

TEST(HostAndCards, RoundsOfAGroupEndAlike) {
  Team team(2);
  testing::expect_one_outcome(
      2, [&](int rank) { return team.join(rank); }, 7, 40);
  Team other(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Group group(other.join(rank));
      EXPECT_TRUE(group.votes());
      for (int k = 0; k < 20; ++k) {
        const Group::Round round = group.begin_round();
        Sum sum(50, 1);
        Waiter called, voted;
        const bool fails = k % 4 == 3, is_here = k % 8 / 4 == rank;
        if (fails && is_here) {
          group.give_up(round, ErrorCode::kDataLoss, "not this one");
          continue;
        }
        group.start(on_cards(sum_of(sum.in, sum.out)), called, round);
        const std::string error = called.wait();
        if (fails) {
          EXPECT_THAT(error, HasSubstr("not this one"));
          continue;
        }
        EXPECT_EQ(error, "");
        EXPECT_THAT(sum.out, Each(2));
        group.vote(round, voted);
        EXPECT_EQ(voted.wait(), "");
      }
    });
  }
}

}  // namespace
}  // namespace lockstep

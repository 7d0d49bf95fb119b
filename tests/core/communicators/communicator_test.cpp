// Tests: core/communicators/communicator.cpp, core/communicators/in_process_group.cpp,
//        core/communicators/in_process_operation.cpp, core/communicators/in_process_room.cpp
// A call returns at once, so that most of these tests play all participants on one thread. tests/stress has
// threads.
#include "lockstep/core/communicators/communicator.h"

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/core/error.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ReplicaReduce kSum = ReplicaReduce::kSum;
constexpr DType kF32 = DType::kF32;

std::size_t place(int rank) { return static_cast<std::size_t>(rank); }

// A group and all its participants.
struct Team {
  explicit Team(int size) : group(size) {
    for (int rank = 0; rank < size; ++rank) comms.push_back(group.join(rank));
  }
  Communicator& operator[](int rank) { return *comms[place(rank)]; }
  // Every participant makes its call; then all wait, the last first.
  void all(const std::function<Pending(Communicator&)>& call) {
    std::vector<Pending> pending;
    for (const auto& comm : comms) pending.push_back(call(*comm));
    for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();
  }
  InProcessGroup group;
  std::vector<std::unique_ptr<Communicator>> comms;
};

struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = "no error";
};
Failure failure_of(Pending pending) {
  try {
    pending.wait();
  } catch (const Error& error) {
    return {error.code(), error.message()};
  }
  return {};
}

Pending small_sum(Communicator& comm, float* value, Deadline deadline = {}) {
  return comm.all_reduce(kSum, kF32, value, value, 1, deadline);
}

std::vector<Tensor> random_tensors(int count, DType dtype, std::int64_t elements, std::uint64_t seed) {
  Dice dice(seed);
  std::vector<Tensor> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back(random_tensor(dtype, {elements}, dice));
  return tensors;
}

Tensor reduced(ReplicaReduce op, const std::vector<Tensor>& in) {
  Tensor out = Tensor::empty(in[0].dtype(), in[0].shape());
  std::vector<const void*> inputs;
  for (const Tensor& t : in) inputs.push_back(t.raw());
  kernels::reduce_replicas(op, out.dtype(), inputs, out.raw(), 0, out.num_elements());
  return out;
}

// --- what the operations give

class CommunicatorOf : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorOf, AllReduceHasTheBitsOfTheKernelInRankOrder) {
  const int n = GetParam();
  Team team(n);
  for (const DType dtype : kAllDTypes) {
    for (const ReplicaReduce op : kAllReplicaReduces) {
      if (!can_reduce(op, dtype)) continue;
      for (const std::int64_t elements : {0, 1, 1000, 20000}) {
        std::vector<Tensor> in = random_tensors(n, dtype, elements, 1);
        const Tensor right = reduced(op, in);
        std::vector<Tensor> out = random_tensors(n, dtype, elements, 2);
        team.all([&](Communicator& comm) {
          return comm.all_reduce(op, dtype, in[place(comm.rank())].raw(), out[place(comm.rank())].raw(),
                                 elements);
        });
        team.all([&](Communicator& comm) {
          void* both = in[place(comm.rank())].raw();
          return comm.all_reduce(op, dtype, both, both, elements);
        });
        for (const Tensor& t : out) ASSERT_TRUE(t.bit_equal(right)) << to_string(op) << ' ' << dtype;
        for (const Tensor& t : in) ASSERT_TRUE(t.bit_equal(right)) << to_string(op) << ' ' << dtype;
      }
    }
  }
}

// Each contributes several arrays: one fold over all of them.
TEST_P(CommunicatorOf, AllReduceOfSeveralArraysEachIsOneFold) {
  const int n = GetParam();
  Team team(n);
  for (const int arrays : {2, 3, 40}) {
    for (const std::int64_t elements : {0, 1, 100, 20000}) {
      for (const ReplicaReduce op : {kSum, ReplicaReduce::kMean}) {
        const std::vector<Tensor> in = random_tensors(n * arrays, kF32, elements, 1);
        const Tensor right = reduced(op, in);
        std::vector<Tensor> mine, out = random_tensors(n, kF32, elements, 2);
        for (int rank = 0; rank < n; ++rank) {
          mine.push_back(Tensor::empty(kF32, {arrays * elements}));
          for (int i = 0; i < arrays && elements > 0; ++i)
            mine.back().slice(i * elements, (i + 1) * elements).assign(in[place(rank * arrays + i)]);
        }
        team.all([&](Communicator& comm) {
          CommunicatorCall call;
          call.kind = CommunicatorCall::Kind::kAllReduce;
          call.op = op;
          call.count = elements;
          call.parts = arrays;
          call.in = mine[place(comm.rank())].raw();
          call.out = out[place(comm.rank())].raw();
          return comm.call(call);
        });
        for (const Tensor& t : out) ASSERT_TRUE(t.bit_equal(right)) << arrays << ' ' << elements;
      }
    }
  }
}

TEST_P(CommunicatorOf, ReduceWritesToTheRootAlone) {
  const int n = GetParam();
  Team team(n);
  for (const std::int64_t elements : {77, 30000}) {
    for (int root = 0; root < n; ++root) {
      const std::vector<Tensor> in = random_tensors(n, DType::kF64, elements, 3);
      std::vector<Tensor> out = random_tensors(n, DType::kF64, elements, 4);
      const std::vector<Tensor> before = random_tensors(n, DType::kF64, elements, 4);
      team.all([&](Communicator& comm) {
        return comm.reduce(ReplicaReduce::kMean, DType::kF64, in[place(comm.rank())].raw(),
                           out[place(comm.rank())].raw(), elements, root);
      });
      for (int r = 0; r < n; ++r) {
        EXPECT_TRUE(
            out[place(r)].bit_equal(r == root ? reduced(ReplicaReduce::kMean, in) : before[place(r)]));
      }
    }
  }
}

TEST_P(CommunicatorOf, BroadcastCopiesTheRoots) {
  const int n = GetParam();
  Team team(n);
  for (const DType dtype : {DType::kBool, DType::kF32}) {
    for (const std::int64_t elements : {77, 100003}) {
      for (int root = 0; root < n; ++root) {
        std::vector<Tensor> data = random_tensors(n, dtype, elements, 5);
        const Tensor right = data[place(root)].clone();
        team.all([&](Communicator& comm) {
          return comm.broadcast(dtype, data[place(comm.rank())].raw(), elements, root);
        });
        for (const Tensor& t : data) EXPECT_TRUE(t.bit_equal(right));
      }
    }
  }
}

TEST_P(CommunicatorOf, AllGatherPutsThePartsInRankOrder) {
  const int n = GetParam();
  Team team(n);
  for (const std::int64_t elements : {1, 777, 40000}) {
    const std::vector<Tensor> in = random_tensors(n, DType::kI32, elements, 6);
    std::vector<Tensor> out = random_tensors(n, DType::kI32, elements * n, 7);
    team.all([&](Communicator& comm) {
      return comm.all_gather(DType::kI32, in[place(comm.rank())].raw(), out[place(comm.rank())].raw(),
                             elements);
    });
    for (const Tensor& t : out) {
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(t.slice(r * elements, (r + 1) * elements).bit_equal(in[place(r)])) << elements;
    }
    // In place: each starts with its own part only.
    std::vector<Tensor> both = random_tensors(n, DType::kI32, elements * n, 8);
    std::vector<Tensor> parts;
    for (int r = 0; r < n; ++r)
      parts.push_back(both[place(r)].slice(r * elements, (r + 1) * elements).clone());
    team.all([&](Communicator& comm) {
      auto* data = both[place(comm.rank())].data<std::int32_t>().data();
      return comm.all_gather(DType::kI32, data + comm.rank() * elements, data, elements);
    });
    for (const Tensor& t : both) {
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(t.slice(r * elements, (r + 1) * elements).bit_equal(parts[place(r)])) << elements;
    }
  }
}

TEST_P(CommunicatorOf, ReduceScatterGivesEachItsPart) {
  const int n = GetParam();
  Team team(n);
  for (const std::int64_t elements : {1, 777, 40000}) {
    std::vector<Tensor> in = random_tensors(n, kF32, elements * n, 9);
    const Tensor right = reduced(kSum, in);
    std::vector<Tensor> out = random_tensors(n, kF32, elements, 10);
    team.all([&](Communicator& comm) {
      return comm.reduce_scatter(kSum, kF32, in[place(comm.rank())].raw(), out[place(comm.rank())].raw(),
                                 elements);
    });
    team.all([&](Communicator& comm) {
      float* data = in[place(comm.rank())].data<float>().data();
      return comm.reduce_scatter(kSum, kF32, data, data + comm.rank() * elements, elements);
    });
    for (int r = 0; r < n; ++r) {
      const Tensor part = right.slice(r * elements, (r + 1) * elements);
      EXPECT_TRUE(out[place(r)].bit_equal(part));
      EXPECT_TRUE(in[place(r)].slice(r * elements, (r + 1) * elements).bit_equal(part));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Participants, CommunicatorOf, ::testing::Values(1, 2, 3, 4, 8));

TEST(Communicator, MessagesArriveInOrder) {
  Team team(3);
  std::vector<float> from = {1, 2, 3}, to = {0, 0, 0};
  std::vector<Pending> pending;
  // Receives ahead of sends, then sends ahead of receives; another pair in between.
  pending.push_back(team[2].receive(kF32, &to[0], 1, 0));
  pending.push_back(team[2].receive(kF32, &to[1], 1, 0));
  pending.push_back(team[0].send(kF32, &from[0], 1, 2));
  pending.push_back(team[1].send(kF32, &from[2], 1, 2));
  pending.push_back(team[0].send(kF32, &from[1], 1, 2));
  pending.push_back(team[2].receive(kF32, &to[2], 1, 1));
  for (Pending& p : pending) p.wait();
  EXPECT_EQ(to, from);
}

TEST(Communicator, LongMessagesArriveWhole) {
  Team team(2);
  const std::vector<Tensor> data = random_tensors(2, kF32, 300001, 11);
  Tensor to = Tensor::full(kF32, {300001}, 7);
  Pending receive = team[0].receive(kF32, to.raw(), 300001, 1);
  team[1].send(kF32, data[1].raw(), 300001, 0).wait();
  EXPECT_TRUE(receive.done());
  EXPECT_TRUE(to.bit_equal(data[1]));
  receive.wait();
}

TEST(Communicator, ABarrierIsDoneWhenTheLastHasCalled) {
  Team team(3);
  Pending a = team[0].barrier(), b = team[1].barrier();
  EXPECT_FALSE(a.done());
  EXPECT_FALSE(b.done());
  Pending c = team[2].barrier();
  EXPECT_TRUE(a.done());
  a.wait();
  b.wait();
  c.wait();
}

TEST(Communicator, ManyMayBeUnderWayAndWaitedForInAnyOrder) {
  Team team(2);
  std::vector<float> ones(64, 1.0F), twos(64, 2.0F);
  std::vector<Pending> pending;
  for (float& x : ones) pending.push_back(small_sum(team[0], &x));
  for (float& x : twos) pending.push_back(small_sum(team[1], &x));
  for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();
  EXPECT_THAT(ones, ::testing::Each(3.0F));
  EXPECT_THAT(twos, ::testing::Each(3.0F));
}

TEST(Communicator, WhoeverWaitsWorksForThoseWhoOnlyCalled) {
  Team team(2);
  std::vector<Tensor> data = random_tensors(2, kF32, 1 << 20, 12);
  const Tensor right = reduced(kSum, data);
  Pending idle = team[0].all_reduce(kSum, kF32, data[0].raw(), data[0].raw(), 1 << 20);
  team[1].all_reduce(kSum, kF32, data[1].raw(), data[1].raw(), 1 << 20).wait();
  EXPECT_TRUE(idle.done());
  EXPECT_TRUE(data[0].bit_equal(right));
  idle.wait();
}

// Small ones: each computes its own output, whenever it asks for it.
TEST(Communicator, SmallOnesNeedNobodyOnceAllHaveCalled) {
  Team team(3);
  std::vector<float> data = {1, 2, 4};
  Pending idle = small_sum(team[0], &data[0]), dropped = small_sum(team[1], &data[1]);
  EXPECT_FALSE(idle.done());
  small_sum(team[2], &data[2]).wait();
  EXPECT_EQ(data[2], 7);
  EXPECT_TRUE(idle.done());
  EXPECT_EQ(data[0], 7);
  dropped = Pending();
  EXPECT_EQ(data[1], 7);
  // The next ones meanwhile, with the first still held.
  for (int step = 0; step < 10; ++step) {
    team.all(
        [&](Communicator& comm) { return comm.broadcast(kF32, &data[place(comm.rank())], 1, step % 3); });
  }
  idle.wait();
  EXPECT_THAT(data, ::testing::Each(7.0F));
}

TEST(Communicator, PollingAloneGetsThere) {
  Team team(2);
  std::vector<Tensor> data = random_tensors(2, kF32, 1 << 18, 13);
  const Tensor right = reduced(kSum, data);
  Pending a = team[0].all_reduce(kSum, kF32, data[0].raw(), data[0].raw(), 1 << 18);
  Pending b = team[1].all_reduce(kSum, kF32, data[1].raw(), data[1].raw(), 1 << 18);
  int polls = 0;
  while (!a.done()) ASSERT_LT(++polls, 1000);
  EXPECT_TRUE(b.done());
  EXPECT_TRUE(data[1].bit_equal(right));
  a.wait();
  b.wait();
}

TEST(Communicator, APendingIsWaitedForOnce) {
  Team team(1);
  Pending pending = team[0].barrier();
  EXPECT_TRUE(pending.valid());
  pending.wait();
  EXPECT_FALSE(pending.valid());
  EXPECT_THROW(pending.wait(), FailedPrecondition);
}

// --- calls that do not agree

// Participant 0 calls `a`, 1 calls `b`, and 2 what 0 called.
void expect_disagreement(const std::function<Pending(Communicator&)>& a,
                         const std::function<Pending(Communicator&)>& b, const char* a_text,
                         const char* b_text) {
  Team team(3);
  Pending first = a(team[0]), second = b(team[1]);
  Pending third = a(team[2]);
  for (Pending* pending : {&first, &second, &third}) {
    const Failure failure = failure_of(std::move(*pending));
    EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(failure.message,
                AllOf(HasSubstr(std::string("participant 0 called ") + a_text),
                      HasSubstr(std::string("participant 1 called ") + b_text), HasSubstr("the same order")));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const Failure later = failure_of(team[rank].barrier());
    EXPECT_EQ(later.code, ErrorCode::kUnavailable);
    EXPECT_THAT(later.message, HasSubstr(a_text));
  }
}

// --- declining

TEST(CommunicatorDeclining, FailsTheCallOfAllAndLetsTheGroupGoOn) {
  Team team(3);
  std::vector<float> values(3, 1), large(100'000, 1);
  for (int round = 0; round < 20; ++round) {
    const int decliner = round % 3;
    std::vector<Pending> pending;
    for (int rank = 0; rank < 3; ++rank) {
      float* const value = &values[place(rank)];
      if (rank == decliner) {
        pending.push_back(team[rank].decline(ErrorCode::kDataLoss, "the disk is full"));
      } else {
        pending.push_back(small_sum(team[rank], value));
      }
    }
    for (Pending& one : pending) {
      try {
        one.wait();
        ADD_FAILURE() << "no error";
      } catch (const Declined& declined) {
        EXPECT_EQ(declined.participant(), decliner);
        EXPECT_EQ(declined.reason(), "the disk is full");
        EXPECT_EQ(declined.code(), ErrorCode::kDataLoss);
      }
    }
    for (float& value : values) value = 1;
    team.all([&](Communicator& comm) { return small_sum(comm, &values[place(comm.rank())]); });
    EXPECT_EQ(values, (std::vector<float>{3, 3, 3}));
  }
}

TEST(CommunicatorDeclining, TheFirstByRankIsTold) {
  Team team(3);
  std::vector<Pending> pending;
  pending.push_back(team[2].decline(ErrorCode::kDataLoss, "two"));
  pending.push_back(team[0].barrier());
  pending.push_back(team[1].decline(ErrorCode::kInternal, std::string(5000, 'x')));
  const std::string said = failure_of(std::move(pending[1])).message;
  EXPECT_EQ(said, "participant 1 gave it up: " + std::string(4096, 'x'));
  EXPECT_EQ(failure_of(std::move(pending[0])).message, said);
  EXPECT_EQ(failure_of(std::move(pending[2])).code, ErrorCode::kInternal);
}

TEST(CommunicatorMismatch, FailsOnEveryParticipantAndNamesBothSides) {
  std::vector<double> memory(64);
  void* data = memory.data();
  const auto reduce = [data](ReplicaReduce op, DType dtype, std::int64_t count) {
    return [=](Communicator& comm) { return comm.all_reduce(op, dtype, data, data, count); };
  };
  const auto broadcast = [data](int root) {
    return [=](Communicator& comm) { return comm.broadcast(kF32, data, 4, root); };
  };
  expect_disagreement(reduce(kSum, kF32, 4), reduce(ReplicaReduce::kMean, kF32, 4), "all_reduce(sum, f32, 4)",
                      "all_reduce(mean, f32, 4)");
  expect_disagreement(reduce(kSum, kF32, 4), reduce(kSum, DType::kI32, 4), "all_reduce(sum, f32, 4)",
                      "all_reduce(sum, i32, 4)");
  expect_disagreement(reduce(kSum, kF32, 4), reduce(kSum, kF32, 5), "all_reduce(sum, f32, 4)",
                      "all_reduce(sum, f32, 5)");
  expect_disagreement(broadcast(0), broadcast(2), "broadcast(f32, 4, root 0)", "broadcast(f32, 4, root 2)");
  expect_disagreement(broadcast(0), reduce(kSum, kF32, 4), "broadcast(f32, 4, root 0)",
                      "all_reduce(sum, f32, 4)");
  expect_disagreement([](Communicator& comm) { return comm.barrier(); }, broadcast(1), "barrier()",
                      "broadcast(f32, 4, root 1)");
}

TEST(CommunicatorMismatch, TwoOperationsInDifferentOrder) {
  Team team(2);
  std::vector<float> a(2, 1.0F), b(2, 1.0F);
  // Equal in bytes, not in meaning.
  Pending p0 = team[0].all_reduce(kSum, kF32, a.data(), a.data(), 2);
  Pending q0 = team[0].all_reduce(ReplicaReduce::kMax, kF32, a.data(), a.data(), 2);
  Pending q1 = team[1].all_reduce(ReplicaReduce::kMax, kF32, b.data(), b.data(), 2);
  Pending p1 = team[1].all_reduce(kSum, kF32, b.data(), b.data(), 2);
  EXPECT_EQ(failure_of(std::move(p0)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure_of(std::move(q1)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure_of(std::move(q0)).code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure_of(std::move(p1)).message,
              AllOf(HasSubstr("all_reduce(sum, f32, 2)"), HasSubstr("all_reduce(max, f32, 2)")));
  EXPECT_THAT(a, ::testing::Each(1.0F));
}

TEST(CommunicatorMismatch, CountsBeyondAllMemory) {
  for (const std::int64_t many :
       {std::int64_t{1} << 33, std::int64_t{1} << 61, std::numeric_limits<std::int64_t>::max() - 1}) {
    Team team(2);
    float x = 1, y = 1;
    Pending a = team[0].all_reduce(kSum, kF32, &x, &x, many);
    Pending b = team[1].all_reduce(kSum, kF32, &y, &y, many + 1);
    for (Pending* pending : {&a, &b}) {
      const Failure failure = failure_of(std::move(*pending));
      EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(failure.message,
                  AllOf(HasSubstr(str("participant 0 called all_reduce(sum, f32, ", many, ")")),
                        HasSubstr(str("participant 1 called all_reduce(sum, f32, ", many + 1, ")"))));
    }
  }
}

// Each participant learns of the call that broke the group as such when it makes it, whatever it has to make
// before.
TEST(CommunicatorMismatch, IsToldAtTheCallThatItIsAbout) {
  Team team(3);
  float x = 1, y = 1;
  Pending first = team[0].barrier();
  Pending second = small_sum(team[0], &x);
  Pending also_first = team[1].barrier();
  Pending other = team[1].broadcast(kF32, &y, 1, 0);
  EXPECT_EQ(failure_of(std::move(other)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure_of(std::move(first)).code, ErrorCode::kUnavailable);
  EXPECT_EQ(failure_of(std::move(second)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure_of(std::move(also_first)).code, ErrorCode::kUnavailable);
  EXPECT_EQ(failure_of(team[2].barrier()).code, ErrorCode::kUnavailable);
  EXPECT_EQ(failure_of(small_sum(team[2], &x)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure_of(team[2].barrier()).code, ErrorCode::kUnavailable);
}

// However often a broken group is asked again.
TEST(CommunicatorMismatch, IsToldOnce) {
  Team team(2);
  float x = 1, y = 1;
  Pending sum = small_sum(team[0], &x);
  Pending other = team[1].broadcast(kF32, &y, 1, 0);
  EXPECT_EQ(failure_of(std::move(sum)).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failure_of(std::move(other)).code, ErrorCode::kInvalidArgument);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(failure_of(team[0].barrier()).code, ErrorCode::kUnavailable) << i;
    EXPECT_EQ(failure_of(small_sum(team[1], &y)).code, ErrorCode::kUnavailable) << i;
  }
}

TEST(CommunicatorMismatch, MessagesOfDifferentLengths) {
  Team team(3);
  std::vector<float> a(4), b(4);
  Pending send = team[0].send(kF32, a.data(), 4, 1);
  Pending receive = team[1].receive(kF32, b.data(), 3, 0);
  for (Pending* pending : {&send, &receive}) {
    const Failure failure = failure_of(std::move(*pending));
    EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(failure.message, AllOf(HasSubstr("participant 0 called send(f32, 4, to 1)"),
                                       HasSubstr("participant 1 called receive(f32, 3, from 0)")));
  }
  EXPECT_EQ(failure_of(team[2].barrier()).code, ErrorCode::kUnavailable);
}

// --- loss

void expect_lost(Pending pending, const char* who) {
  const Failure failure = failure_of(std::move(pending));
  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure.message, HasSubstr(who));
}

TEST(CommunicatorLoss, AClosedParticipantFailsPendingAndLaterOperations) {
  Team team(3);
  float x = 1, y = 1;
  Pending pending = small_sum(team[0], &x);
  Pending message = team[0].receive(kF32, &y, 1, 1);
  team[2].close();
  expect_lost(std::move(pending), "participant 2 of 3 left");
  expect_lost(std::move(message), "participant 2 of 3 left");
  expect_lost(small_sum(team[1], &y), "participant 2 of 3 left");
  EXPECT_THROW(static_cast<void>(team[2].barrier()), FailedPrecondition);
}

TEST(CommunicatorLoss, ADestroyedParticipantDoesTheSame) {
  Team team(2);
  float x = 1;
  Pending pending = small_sum(team[0], &x);
  team.comms.pop_back();
  expect_lost(std::move(pending), "participant 1 of 2 left the group: its communicator was destroyed");
}

TEST(CommunicatorLoss, ADeclaredLossCarriesItsReason) {
  Team team(2);
  float x = 1;
  Pending pending = small_sum(team[0], &x);
  team.group.declare_lost(1, "its thread died");
  expect_lost(std::move(pending), "participant 1 of 2 was declared lost: its thread died");
  // The lost one learns it, too.
  expect_lost(team[1].barrier(), "its thread died");
}

TEST(CommunicatorLoss, AGroupThatIsGoneIsNotJoinedAnyMore) {
  auto group = std::make_unique<InProcessGroup>(2);
  const std::unique_ptr<Communicator> comm = group->join(0);
  Pending pending = comm->barrier();
  group.reset();
  expect_lost(std::move(pending), "participant 1 of 2 never joined");
}

TEST(CommunicatorLoss, DroppingAPendingThatHasNotBegunWithdraws) {
  Team team(2);
  float x = 1, y = 1;
  { const Pending dropped = small_sum(team[0], &x); }
  expect_lost(small_sum(team[1], &y), "participant 0 gave up all_reduce(sum, f32, 1)");
}

TEST(CommunicatorLoss, DroppingAPendingThatHasBegunFinishesIt) {
  Team team(2);
  std::vector<Tensor> data = random_tensors(2, kF32, 1 << 18, 14);
  const Tensor right = reduced(kSum, data);
  Pending other = team[0].all_reduce(kSum, kF32, data[0].raw(), data[0].raw(), 1 << 18);
  { const Pending dropped = team[1].all_reduce(kSum, kF32, data[1].raw(), data[1].raw(), 1 << 18); }
  EXPECT_TRUE(other.done());
  EXPECT_TRUE(data[0].bit_equal(right));
  other.wait();
  team.all([](Communicator& comm) { return comm.barrier(); });
}

TEST(CommunicatorLoss, WhatHasBegunSurvivesALoss) {
  Team team(2);
  std::vector<Tensor> data = random_tensors(2, kF32, 1 << 18, 15);
  const Tensor right = reduced(kSum, data);
  Pending other = team[0].all_reduce(kSum, kF32, data[0].raw(), data[0].raw(), 1 << 18);
  Pending own = team[1].all_reduce(kSum, kF32, data[1].raw(), data[1].raw(), 1 << 18);
  team[1].close();
  other.wait();
  own.wait();
  EXPECT_TRUE(data[0].bit_equal(right));
}

TEST(CommunicatorLoss, PendingsMayOutliveEverything) {
  float x = 1, y = 2;
  Pending done, failed;
  {
    Team team(2);
    done = small_sum(team[0], &x);
    small_sum(team[1], &y).wait();
    failed = team[0].barrier();
  }
  done.wait();
  EXPECT_EQ(x, 3);
  EXPECT_EQ(failure_of(std::move(failed)).code, ErrorCode::kUnavailable);
}

// --- deadlines

TEST(CommunicatorDeadline, NamesWhoHadNotArrivedAndBreaksTheGroup) {
  Team team(4);
  float x = 1, y = 1;
  Pending patient = small_sum(team[3], &y);
  const Failure failure = failure_of(small_sum(team[1], &x, deadline_in(1ms)));
  EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message,
              AllOf(HasSubstr("participants 0 and 2 of 4"), HasSubstr("all_reduce(sum, f32, 1)")));
  // Who waited for the same operation, who comes late to it, and whatever comes after it.
  EXPECT_EQ(failure_of(std::move(patient)).code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(failure_of(small_sum(team[0], &x)).code, ErrorCode::kDeadlineExceeded);
  const Failure later = failure_of(team[1].barrier());
  EXPECT_EQ(later.code, ErrorCode::kUnavailable);
  EXPECT_THAT(later.message, HasSubstr("participants 0 and 2 of 4"));
}

TEST(CommunicatorDeadline, OfOneHoldsForAll) {
  Team team(3);
  float x = 1, y = 1;
  Pending patient = small_sum(team[0], &x);
  Pending hasty = small_sum(team[1], &y, deadline_in(1ms));
  EXPECT_EQ(failure_of(std::move(patient)).code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(failure_of(std::move(hasty)).code, ErrorCode::kDeadlineExceeded);
}

TEST(CommunicatorDeadline, ReachesOneThatIsAsleepAlready) {
  Team team(3);
  float x = 1, y = 1;
  Failure asleep;
  std::thread sleeper([&] { asleep = failure_of(small_sum(team[0], &x)); });
  const Failure hasty = failure_of(small_sum(team[1], &y, deadline_in(20ms)));
  sleeper.join();
  EXPECT_EQ(hasty.code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(asleep.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(asleep.message, HasSubstr("participant 2"));
}

// Whoever asks instead of waiting learns of it too: no loop around done() goes on for ever.
TEST(CommunicatorDeadline, IsSeenByDone) {
  Team team(2);
  float x = 1;
  Pending asked = small_sum(team[0], &x, deadline_in(1ms));
  while (!asked.done()) std::this_thread::yield();
  const Failure failure = failure_of(std::move(asked));
  EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message, HasSubstr("before participant 1 of 2 had called it"));
  // One that has not passed, or that nobody gave, leaves the call open however often it is asked.
  for (const Deadline deadline : {Deadline(), deadline_in(1h)}) {
    Team patient(2);
    float mine = 1, other = 2;
    Pending open = small_sum(patient[0], &mine, deadline);
    for (int i = 0; i < 3; ++i) EXPECT_FALSE(open.done());
    small_sum(patient[1], &other).wait();
    open.wait();
    EXPECT_EQ(mine, 3);
  }
}

TEST(CommunicatorDeadline, DoesNotMatterOnceAllHaveArrived) {
  Team team(2);
  float x = 1, y = 2;
  const Deadline passed = std::chrono::steady_clock::now() - 1s;
  Pending a = small_sum(team[0], &x, passed);
  Pending b = small_sum(team[1], &y, passed);
  a.wait();
  b.wait();
  EXPECT_EQ(x, 3);
}

TEST(CommunicatorDeadline, OfAMessageNamesTheOtherEnd) {
  Team team(3);
  float x = 1;
  const Failure failure = failure_of(team[0].receive(kF32, &x, 1, 2, deadline_in(1ms)));
  EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message,
              AllOf(HasSubstr("before participant 2 of 3"), Not(HasSubstr("participant 1"))));
}

// --- senseless arguments

std::string refusal(const std::function<Pending()>& call) {
  try {
    call().wait();
  } catch (const InvalidArgument& error) {
    return error.message();
  }
  return "accepted";
}

TEST(CommunicatorArguments, AreRefusedAtTheCallAndTakeNoPart) {
  Team team(2);
  std::vector<float> v(16, 1.0F);
  float* x = v.data();
  Communicator& comm = team[0];
  EXPECT_THAT(refusal([&] { return comm.all_reduce(kSum, kF32, x, x, -1); }), HasSubstr("at least 0"));
  EXPECT_THAT(refusal([&] { return comm.all_reduce(kSum, kF32, nullptr, x, 1); }), HasSubstr("as input"));
  EXPECT_THAT(refusal([&] { return comm.all_reduce(kSum, kF32, x, nullptr, 1); }), HasSubstr("as output"));
  EXPECT_THAT(refusal([&] { return comm.all_reduce(kSum, DType::kBool, x, x, 1); }), HasSubstr("bool"));
  EXPECT_THAT(refusal([&] { return comm.all_reduce(ReplicaReduce::kMean, DType::kI32, x, x, 1); }),
              HasSubstr("mean of i32"));
  EXPECT_THAT(refusal([&] { return comm.all_reduce(kSum, kF32, x, x + 1, 2); }), HasSubstr("overlap"));
  EXPECT_THAT(refusal([&] { return comm.reduce_scatter(kSum, kF32, x, x + 4, 4); }),
              HasSubstr("out = in + rank"));
  EXPECT_THAT(refusal([&] { return comm.all_gather(kF32, x + 4, x, 4); }), HasSubstr("in = out + rank"));
  EXPECT_THAT(refusal([&] { return comm.broadcast(kF32, x, 1, 2); }), HasSubstr("no participant 2"));
  EXPECT_THAT(refusal([&] { return comm.reduce(kSum, kF32, x, x, 1, -1); }), HasSubstr("no participant -1"));
  EXPECT_THAT(refusal([&] { return comm.send(kF32, x, 1, 0); }), HasSubstr("itself"));
  EXPECT_THROW(InProcessGroup(0), InvalidArgument);
  EXPECT_THROW(InProcessGroup(1 << 16), InvalidArgument);
  EXPECT_THROW(static_cast<void>(team.group.join(2)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(team.group.join(1)), FailedPrecondition);
  EXPECT_THROW(team.group.declare_lost(-1, "?"), InvalidArgument);
  team.all([](Communicator& each) { return each.barrier(); });
}

}  // namespace
}  // namespace lockstep

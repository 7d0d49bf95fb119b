// Tests: core/gloo/gloo_group.cpp, core/gloo/member.cpp, core/gloo/member_end.cpp, core/gloo/exchange.cpp, core/gloo/ring.cpp, core/gloo/mesh.cpp, core/gloo/shared_rings.cpp
// Most of these tests play all participants in one process: a call returns at once, and whoever waits for it, or else a thread of the
// participant, goes on with it. Collectives go through shared memory, or with LOCKSTEP_TEST_CONNECTIONS set over the connections.
#include "lockstep/core/gloo/gloo_group.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/membership/membership.h"
#include "support/failing_members.h"
#include "support/forked.h"
#include "support/random_tensors.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr ReplicaReduce kSum = ReplicaReduce::kSum;
constexpr DType kF32 = DType::kF32;

std::size_t place(int rank) { return static_cast<std::size_t>(rank); }

std::unique_ptr<Communicator> connected(GlooGroupSpec spec, Rendezvous& rendezvous, Deadline deadline = {},
                                        const std::stop_token& stop = {}) {
  if (std::getenv("LOCKSTEP_TEST_CONNECTIONS") != nullptr) spec.shared_memory = false;
  return connect_gloo(spec, rendezvous, deadline, stop);
}

// All participants of a group.
struct Team {
  explicit Team(int size, std::chrono::milliseconds patience = 10s, int rings = 0) : comms(place(size)) {
    InProcessRendezvous rendezvous;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        comms[place(rank)] =
            connected({.rank = rank, .size = size, .patience = patience, .ring = rank < rings}, rendezvous,
                      deadline_in(30s));
      });
    }
  }
  // They leave one after the other, as processes do: each waits until the others have what it sent.
  Communicator& operator[](int rank) { return *comms[place(rank)]; }
  void all(const std::function<Pending(Communicator&)>& call) {
    std::vector<Pending> pending;
    for (const auto& comm : comms) pending.push_back(call(*comm));
    for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();
  }
  std::vector<std::unique_ptr<Communicator>> comms;
};

struct Failed {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = "no error";
};
Failed failure_of(Pending pending) {
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

Tensor reduced(ReplicaReduce op, const std::vector<Tensor>& in, std::int64_t begin, std::int64_t count) {
  Tensor out = Tensor::empty(in[0].dtype(), {count});
  const std::size_t offset = static_cast<std::size_t>(begin) * size_of(out.dtype());
  std::vector<const void*> inputs;
  for (const Tensor& t : in) inputs.push_back(static_cast<const std::byte*>(t.raw()) + offset);
  kernels::reduce_replicas(op, out.dtype(), inputs, out.raw(), 0, count);
  return out;
}

// --- what the operations give: of arrays that go with their calls, of a piece or less, and of several pieces

class GlooGroupOf : public ::testing::TestWithParam<int> {};

TEST_P(GlooGroupOf, AllReduceHasTheBitsOfTheKernelInRankOrder) {
  const int n = GetParam();
  Team team(n);
  for (const DType dtype : kAllDTypes) {
    for (const ReplicaReduce op : kAllReplicaReduces) {
      if (!can_reduce(op, dtype)) continue;
      const std::int64_t most = op == kSum && dtype == kF32 ? 700'001 : 70'001;
      for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}, most}) {
        std::vector<Tensor> in = random_tensors(n, dtype, elements, 1);
        const Tensor right = reduced(op, in, 0, elements);
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

// In a ring sums have another order: integers and extremes have the bits of the fold, and all participants have the same.
TEST_P(GlooGroupOf, AllReduceInARing) {
  const int n = GetParam();
  Team team(n, 10s, n);
  for (const DType dtype : kAllDTypes) {
    for (const ReplicaReduce op : kAllReplicaReduces) {
      if (!can_reduce(op, dtype)) continue;
      const bool is_exact = dtype == DType::kI32 || dtype == DType::kI64 || dtype == DType::kU8 ||
                            op == ReplicaReduce::kMin || op == ReplicaReduce::kMax;
      const double rounding = dtype == DType::kBF16 ? 0.05 : dtype == DType::kF16 ? 0.01 : 1e-5;
      const std::int64_t most = op == kSum && dtype == kF32 ? 700'001 : 70'001;
      for (const std::int64_t elements : {std::int64_t{0}, std::int64_t{1000}, most}) {
        const std::vector<Tensor> in = random_tensors(n, dtype, elements, 1);
        const Tensor right = reduced(op, in, 0, elements);
        std::vector<Tensor> out = random_tensors(n, dtype, elements, 2);
        team.all([&](Communicator& comm) {
          return comm.all_reduce(op, dtype, in[place(comm.rank())].raw(), out[place(comm.rank())].raw(),
                                 elements);
        });
        std::vector<Tensor> both;
        for (const Tensor& t : in) both.push_back(t.clone());
        team.all([&](Communicator& comm) {
          void* array = both[place(comm.rank())].raw();
          return comm.all_reduce(op, dtype, array, array, elements);
        });
        for (const Tensor& t : both) ASSERT_TRUE(t.bit_equal(out[0])) << to_string(op) << ' ' << dtype;
        for (const Tensor& t : out) ASSERT_TRUE(t.bit_equal(out[0])) << to_string(op) << ' ' << dtype;
        if (is_exact) {
          ASSERT_TRUE(out[0].bit_equal(right)) << to_string(op) << ' ' << dtype;
        } else {
          for (std::int64_t i = 0; i < elements; i += 97) {
            const double value = right.slice(i, i + 1).reshape({}).item();
            ASSERT_NEAR(out[0].slice(i, i + 1).reshape({}).item(), value,
                        rounding * (1 + std::abs(value)) * n)
                << to_string(op) << ' ' << dtype << " at " << i;
          }
        }
      }
    }
  }
}

TEST(GlooRing, TakesSeveralArraysEach) {
  Team team(3, 10s, 3);
  constexpr std::int64_t kElements = 100'001;
  std::vector<Tensor> mine, out = random_tensors(3, kF32, kElements, 2);
  for (int rank = 0; rank < 3; ++rank) mine.push_back(Tensor::full(kF32, {4 * kElements}, rank + 1.));
  for (const ReplicaReduce op : {kSum, ReplicaReduce::kMean}) {
    team.all([&](Communicator& comm) {
      CommunicatorCall call;
      call.kind = CommunicatorCall::Kind::kAllReduce;
      call.op = op;
      call.count = kElements;
      call.parts = 4;
      call.in = mine[place(comm.rank())].raw();
      call.out = out[place(comm.rank())].raw();
      return comm.call(call);
    });
    for (const Tensor& t : out)
      EXPECT_TRUE(t.bit_equal(Tensor::full(kF32, {kElements}, op == kSum ? 24. : 2.)));
  }
}

TEST(GlooRing, IsOfAllOrOfNone) {
  Team team(2, 10s, 1);
  std::vector<Failed> failed(2);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> own(100'000, 1.F);
      failed[place(rank)] = failure_of(team[rank].all_reduce(kSum, kF32, own.data(), own.data(), 100'000));
    });
  }
  threads.clear();
  for (const Failed& one : failed) EXPECT_THAT(one.message, HasSubstr("in a ring"));
}

// What is agreed on touches no array, however large.
TEST(GlooAgreement, IsFoundAndNothingIsExchanged) {
  Team team(3);
  std::vector<std::vector<float>> arrays(3, std::vector<float>(100'000));
  for (int rank = 0; rank < 3; ++rank) arrays[place(rank)][5] = static_cast<float>(rank);
  team.all([&](Communicator& comm) {
    CommunicatorCall call;
    call.kind = CommunicatorCall::Kind::kAllReduce;
    call.count = 100'000;
    call.in = call.out = arrays[place(comm.rank())].data();
    call.memory = DeviceKind::kGpu;
    call.is_agreement = true;
    return comm.call(call);
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(arrays[place(rank)][5], static_cast<float>(rank));
}

// Each contributes several arrays: one fold over all of them.
TEST_P(GlooGroupOf, AllReduceOfSeveralArraysEachIsOneFold) {
  const int n = GetParam();
  Team team(n);
  for (const int arrays : {2, 3, 40}) {
    for (const std::int64_t elements : {0, 1, 100, 100'001}) {
      for (const ReplicaReduce op : {kSum, ReplicaReduce::kMean}) {
        const std::vector<Tensor> in = random_tensors(n * arrays, kF32, elements, 1);
        const Tensor right = reduced(op, in, 0, elements);
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

TEST_P(GlooGroupOf, ReduceWritesToTheRootAlone) {
  const int n = GetParam();
  Team team(n);
  for (const std::int64_t elements : {77, 100'000}) {
    for (int root = 0; root < n; ++root) {
      const std::vector<Tensor> in = random_tensors(n, DType::kF64, elements, 3);
      std::vector<Tensor> out = random_tensors(n, DType::kF64, elements, 4);
      const std::vector<Tensor> before = random_tensors(n, DType::kF64, elements, 4);
      team.all([&](Communicator& comm) {
        return comm.reduce(ReplicaReduce::kMean, DType::kF64, in[place(comm.rank())].raw(),
                           out[place(comm.rank())].raw(), elements, root);
      });
      for (int r = 0; r < n; ++r) {
        EXPECT_TRUE(out[place(r)].bit_equal(r == root ? reduced(ReplicaReduce::kMean, in, 0, elements)
                                                      : before[place(r)]));
      }
    }
  }
}

TEST_P(GlooGroupOf, BroadcastCopiesTheRoots) {
  const int n = GetParam();
  Team team(n);
  for (const DType dtype : {DType::kBool, DType::kF32}) {
    for (const std::int64_t elements : {0, 5, 300'000}) {
      for (int root = 0; root < n; ++root) {
        std::vector<Tensor> data = random_tensors(n, dtype, elements, 5);
        const Tensor right = random_tensors(n, dtype, elements, 5)[place(root)];
        team.all([&](Communicator& comm) {
          return comm.broadcast(dtype, data[place(comm.rank())].raw(), elements, root);
        });
        for (const Tensor& t : data) EXPECT_TRUE(t.bit_equal(right));
      }
    }
  }
}

TEST_P(GlooGroupOf, AllGatherPutsThePartsInRankOrder) {
  const int n = GetParam();
  Team team(n);
  for (const std::int64_t elements : {3, 50'000}) {
    const std::vector<Tensor> in = random_tensors(n, DType::kI64, elements, 6);
    std::vector<Tensor> out = random_tensors(n, DType::kI64, elements * n, 7);
    std::vector<Tensor> both = random_tensors(n, DType::kI64, elements * n, 8);
    const auto part = [&](Tensor& all, int rank) {
      return all.data<std::int64_t>().subspan(place(rank) * place(static_cast<int>(elements)),
                                              place(static_cast<int>(elements)));
    };
    for (int r = 0; r < n; ++r)
      std::ranges::copy(in[place(r)].data<std::int64_t>(), part(both[place(r)], r).begin());
    team.all([&](Communicator& comm) {
      return comm.all_gather(DType::kI64, in[place(comm.rank())].raw(), out[place(comm.rank())].raw(),
                             elements);
    });
    team.all([&](Communicator& comm) {
      Tensor& mine = both[place(comm.rank())];
      return comm.all_gather(DType::kI64, part(mine, comm.rank()).data(), mine.raw(), elements);
    });
    for (int r = 0; r < n; ++r) {
      for (int from = 0; from < n; ++from) {
        EXPECT_TRUE(std::ranges::equal(part(out[place(r)], from), in[place(from)].data<std::int64_t>()));
        EXPECT_TRUE(std::ranges::equal(part(both[place(r)], from), in[place(from)].data<std::int64_t>()));
      }
    }
  }
}

TEST_P(GlooGroupOf, ReduceScatterGivesEachItsPart) {
  const int n = GetParam();
  Team team(n);
  for (const std::int64_t elements : {9, 80'000}) {
    std::vector<Tensor> in = random_tensors(n, kF32, elements * n, 9);
    std::vector<Tensor> out = random_tensors(n, kF32, elements, 10);
    std::vector<Tensor> right;
    for (int r = 0; r < n; ++r) right.push_back(reduced(kSum, in, elements * r, elements));
    team.all([&](Communicator& comm) {
      return comm.reduce_scatter(kSum, kF32, in[place(comm.rank())].raw(), out[place(comm.rank())].raw(),
                                 elements);
    });
    for (int r = 0; r < n; ++r) EXPECT_TRUE(out[place(r)].bit_equal(right[place(r)]));
    team.all([&](Communicator& comm) {  // in place
      Tensor& mine = in[place(comm.rank())];
      return comm.reduce_scatter(kSum, kF32, mine.raw(), mine.data<float>().data() + elements * comm.rank(),
                                 elements);
    });
    for (int r = 0; r < n; ++r) {
      const auto own = in[place(r)].data<float>().subspan(place(static_cast<int>(elements)) * place(r),
                                                          place(static_cast<int>(elements)));
      EXPECT_TRUE(std::ranges::equal(own, right[place(r)].data<float>()));
    }
  }
}

TEST_P(GlooGroupOf, ManyMayBeUnderWayAndWaitedForInAnyOrder) {
  const int n = GetParam();
  Team team(n);
  std::vector<std::vector<float>> values(place(n), std::vector<float>(50, 1.0F));
  std::vector<Pending> pending;
  for (int rank = n - 1; rank >= 0; --rank) {
    for (float& value : values[place(rank)]) pending.push_back(small_sum(team[rank], &value));
  }
  for (std::size_t i = pending.size(); i-- > 0;) pending[i].wait();
  for (const auto& all : values) EXPECT_THAT(all, Each(static_cast<float>(n)));
}

INSTANTIATE_TEST_SUITE_P(Sizes, GlooGroupOf, ::testing::Values(1, 2, 3, 5),
                         [](const auto& tested) { return std::to_string(tested.param); });

TEST(GlooGroup, MessagesArriveInOrderAndApartFromCollectives) {
  Team team(3);
  std::vector<float> long_one(200'000, 7.0F), received(200'000);
  float first = 1, second = 2, got_first = 0, got_second = 0, nothing = 5;
  Pending later = team[1].receive(kF32, &got_first, 1, 0);
  Pending last = team[1].receive(kF32, &got_second, 1, 0);
  Pending empty = team[1].receive(kF32, &nothing, 0, 2);
  team.all([](Communicator& comm) { return comm.barrier(); });
  EXPECT_FALSE(later.done());
  Pending one = team[0].send(kF32, &first, 1, 1), two = team[0].send(kF32, &second, 1, 1);
  Pending there = team[2].send(kF32, long_one.data(), 200'000, 0);
  Pending here = team[0].receive(kF32, received.data(), 200'000, 2);
  Pending of_nothing = team[2].send(kF32, &nothing, 0, 1);
  for (Pending* pending : {&last, &later, &two, &one, &there, &here, &empty, &of_nothing}) pending->wait();
  EXPECT_EQ(got_first, 1.0F);
  EXPECT_EQ(got_second, 2.0F);
  EXPECT_EQ(received, long_one);
}

TEST(GlooGroup, ASendIsOverWhenItHasBeenReceived) {
  Team team(2);
  float value = 3, got = 0;
  Pending sent = team[0].send(kF32, &value, 1, 1);
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(sent.done());
  team[1].receive(kF32, &got, 1, 0).wait();
  sent.wait();
  EXPECT_EQ(got, 3.0F);
}

TEST(GlooGroup, ABarrierIsDoneWhenTheLastHasCalled) {
  Team team(3);
  Pending a = team[0].barrier(), b = team[1].barrier();
  std::this_thread::sleep_for(20ms);
  EXPECT_FALSE(a.done());
  EXPECT_FALSE(b.done());
  team[2].barrier().wait();
  a.wait();
  b.wait();
}

TEST(GlooGroup, CallsGoOnByThemselves) {
  Team team(2);
  std::vector<float> a(100'000, 1.0F), b(100'000, 2.0F);
  Pending first = team[0].all_reduce(kSum, kF32, a.data(), a.data(), 100'000);
  Pending second = team[1].all_reduce(kSum, kF32, b.data(), b.data(), 100'000);
  for (int i = 0; i < 10'000 && !(first.done() && second.done()); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(first.done());
  EXPECT_TRUE(second.done());
  first.wait();
  second.wait();
  EXPECT_THAT(a, Each(3.0F));
  EXPECT_EQ(a, b);
}

TEST(GlooGroup, ServesNodesOfGraphs) {
  Team team(2);
  Group zero(std::move(team.comms[0]));
  Group one(std::move(team.comms[1]));
  EXPECT_EQ(zero.size(), 2);
  EXPECT_EQ(one.rank(), 1);
}

// --- calls that do not agree

void expect_disagreement(const std::function<Pending(Communicator&)>& a,
                         const std::function<Pending(Communicator&)>& b, const char* a_text,
                         const char* b_text) {
  Team team(3);
  Pending first = a(team[0]), second = b(team[1]);
  Pending third = a(team[2]);
  for (Pending* pending : {&first, &second, &third}) {
    const Failed failure = failure_of(std::move(*pending));
    EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument) << failure.message;
    EXPECT_THAT(failure.message,
                AllOf(HasSubstr(std::string("participant 0 called ") + a_text),
                      HasSubstr(std::string("participant 1 called ") + b_text), HasSubstr("the same order")));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const Failed later = failure_of(team[rank].barrier());
    EXPECT_EQ(later.code, ErrorCode::kUnavailable);
    EXPECT_THAT(later.message, HasSubstr(a_text));
  }
}

// --- declining

TEST(GlooDeclining, FailsTheCallOfAllAndLetsTheGroupGoOn) {
  Team team(3);
  for (int round = 0; round < 12; ++round) {
    const int decliner = round % 3;
    // Of an array that goes with the call, and of one that does not.
    std::vector<std::vector<float>> values(3, std::vector<float>(round % 2 == 0 ? 10 : 100'000, 1));
    const auto sum = [&](Communicator& comm) {
      std::vector<float>& own = values[place(comm.rank())];
      return comm.all_reduce(kSum, kF32, own.data(), own.data(), static_cast<std::int64_t>(own.size()));
    };
    std::vector<Pending> pending;
    for (int rank = 0; rank < 3; ++rank)
      pending.push_back(rank == decliner ? team[rank].decline(ErrorCode::kDataLoss, "the disk is full")
                                         : sum(team[rank]));
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
    team.all(sum);
    for (const std::vector<float>& own : values) EXPECT_THAT(own, Each(3.F));
  }
}

TEST(GlooDeclining, RunsAreCommittedByAllOrByNone) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    InProcessRendezvous rendezvous;
    testing::expect_one_outcome(
        3, [&](int rank) { return connected({.rank = rank, .size = 3}, rendezvous, deadline_in(30s)); }, seed,
        60);
  }
}

TEST(GlooMismatch, FailsOnEveryParticipantAndNamesBothSides) {
  std::vector<double> memory(100'000);
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
  expect_disagreement(reduce(kSum, kF32, 4), reduce(kSum, kF32, 90'000), "all_reduce(sum, f32, 4)",
                      "all_reduce(sum, f32, 90000)");
  expect_disagreement(broadcast(0), broadcast(2), "broadcast(f32, 4, root 0)", "broadcast(f32, 4, root 2)");
  expect_disagreement(broadcast(0), reduce(kSum, kF32, 4), "broadcast(f32, 4, root 0)",
                      "all_reduce(sum, f32, 4)");
  expect_disagreement([](Communicator& comm) { return comm.barrier(); }, broadcast(1), "barrier()",
                      "broadcast(f32, 4, root 1)");
}

TEST(GlooMismatch, MessagesOfDifferentLengths) {
  for (const std::int64_t sent : {0, 4}) {
    Team team(3);
    std::vector<float> a(4), b(4);
    Pending send = team[0].send(kF32, a.data(), sent, 1);
    Pending receive = team[1].receive(kF32, b.data(), 3, 0);
    for (Pending* pending : {&send, &receive}) {
      const Failed failure = failure_of(std::move(*pending));
      EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument) << failure.message;
      EXPECT_THAT(failure.message, AllOf(HasSubstr(str("participant 0 called send(f32, ", sent, ", to 1)")),
                                         HasSubstr("participant 1 called receive(f32, 3, from 0)")));
    }
    EXPECT_EQ(failure_of(team[2].barrier()).code, ErrorCode::kUnavailable);
  }
}

// --- loss

void expect_lost(Pending pending, const char* who) {
  const Failed failure = failure_of(std::move(pending));
  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure.message, HasSubstr(who));
}

TEST(GlooLoss, AParticipantThatLeavesFailsWhatWaitsForIt) {
  Team team(3);
  float x = 1, y = 1;
  Pending a = small_sum(team[0], &x);
  Pending b = small_sum(team[1], &y);
  team[2].close();
  expect_lost(std::move(a), "participant 2 of 3 has left");
  expect_lost(std::move(b), "participant 2 of 3 has left");
  expect_lost(team[0].barrier(), "participant 2");
  EXPECT_THROW(static_cast<void>(team[2].barrier()), FailedPrecondition);
}

TEST(GlooLoss, OneThatHasLeftFailsWhatComesAfter) {
  Team team(3);
  team.all([](Communicator& comm) { return comm.barrier(); });
  team[1].close();
  float x = 1;
  expect_lost(small_sum(team[0], &x), "participant 1 of 3 has left");
  expect_lost(team[2].barrier(), "participant 1 of 3");
}

TEST(GlooLoss, WhatAllHaveCalledIsFinishedBeforeOneLeaves) {
  for (int i = 0; i < 20; ++i) {
    Team team(2);
    std::vector<float> a(100'000, 1.0F), b(100'000, 2.0F);
    Pending first = team[0].all_reduce(kSum, kF32, a.data(), a.data(), 100'000);
    team[1].all_reduce(kSum, kF32, b.data(), b.data(), 100'000).wait();
    team.comms[1].reset();
    first.wait();
    EXPECT_THAT(a, Each(3.0F));
  }
}

TEST(GlooLoss, DroppingAPendingWithdraws) {
  Team team(2);
  float x = 1;
  static_cast<void>(small_sum(team[0], &x));
  expect_lost(team[1].barrier(), "participant 0 gave up all_reduce(sum, f32, 1)");
}

TEST(GlooLoss, PendingsMayOutliveEverything) {
  Pending left;
  float x = 1, y = 1;
  {
    Team team(2);
    left = small_sum(team[0], &x);
    small_sum(team[1], &y).wait();
    for (int i = 0; i < 10'000 && !left.done(); ++i) std::this_thread::sleep_for(1ms);
  }
  left.wait();
  EXPECT_EQ(x, 2.0F);
}

TEST(GlooLoss, AnAbortEndsItForAll) {
  Team team(3);
  float x = 1, y = 1;
  Pending a = small_sum(team[0], &x);
  Pending b = small_sum(team[1], &y);
  std::jthread other([&] { team[0].abort(Error(ErrorCode::kUnavailable, "worker 2 is dead")); });
  expect_lost(std::move(a), "participant 0 of 3 ended the group: worker 2 is dead");
  expect_lost(std::move(b), "participant 0 of 3 ended the group: worker 2 is dead");
  EXPECT_NE(failure_of(team[2].barrier()).message, "no error");  // as below
  expect_lost(team[0].barrier(), "worker 2 is dead");
}

// --- time

TEST(GlooDeadline, NamesWhoHadNotComeAndBreaksTheGroup) {
  Team team(3);
  float x = 1, y = 1;
  Pending b = small_sum(team[1], &y);
  const Failed failure = failure_of(small_sum(team[0], &x, deadline_in(1s)));
  EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message, HasSubstr("the deadline passed before participant 2 of 3 had called it"));
  const Failed other = failure_of(std::move(b));  // the deadline of one holds for all
  EXPECT_EQ(other.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(other.message, HasSubstr("participant 2 of 3"));
  // What the third one is told depends on what reaches it first: the end of the group, or that the calls do not agree.
  EXPECT_NE(failure_of(team[2].barrier()).message, "no error");
  EXPECT_EQ(failure_of(team[2].barrier()).code, ErrorCode::kUnavailable);
}

TEST(GlooDeadline, IsSeenByDone) {
  Team team(2);
  Pending pending = team[0].barrier(deadline_in(20ms));
  for (int i = 0; i < 10'000 && !pending.done(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(failure_of(std::move(pending)).code, ErrorCode::kDeadlineExceeded);
}

// Nobody waits for the call whose deadline passes.
TEST(GlooDeadline, OfACallThatNobodyWaitsForEndsTheOthers) {
  Team team(2);
  float x = 1, y = 1;
  Pending first = small_sum(team[0], &x, deadline_in(1s));
  Pending second = small_sum(team[0], &y);
  expect_lost(std::move(second), "the deadline passed before participant 1 of 2 had called it");
  EXPECT_EQ(failure_of(std::move(first)).code, ErrorCode::kDeadlineExceeded);
}

TEST(GlooDeadline, OfAMessageNamesTheOtherEnd) {
  Team team(3);
  float x = 0;
  const Failed failure = failure_of(team[0].receive(kF32, &x, 1, 2, deadline_in(20ms)));
  EXPECT_EQ(failure.code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message, HasSubstr("participant 2 of 3 had called it"));
}

TEST(GlooDeadline, HoldsForComingTogether) {
  InProcessRendezvous rendezvous;
  try {
    static_cast<void>(connected({.rank = 1, .size = 3}, rendezvous, deadline_in(20ms)));
    FAIL() << "nobody else came";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(error.message(), HasSubstr("missing are members 0, 2"));
  }
}

// The other one has left its address and listens no more.
TEST(GlooDeadline, HoldsForConnecting) {
  InProcessRendezvous first, second;
  std::unique_ptr<Communicator> gone;
  std::jthread other([&] {
    EXPECT_THROW(static_cast<void>(connected({.rank = 1, .size = 2}, first, deadline_in(100ms))), Error);
  });
  const std::string address = first.get("world.0/member-1", deadline_in(10s));
  other.join();
  second.set("world.0/member-1", address);
  try {
    static_cast<void>(connected({.rank = 0, .size = 2}, second, deadline_in(100ms)));
    FAIL() << "nobody listens";
  } catch (const Error& error) {
    EXPECT_THAT(error.code(), AnyOf(ErrorCode::kDeadlineExceeded, ErrorCode::kUnavailable));
    EXPECT_THAT(error.message(), HasSubstr("connecting to member 1"));
  }
}

TEST(GlooDeadline, JoiningCanBeGivenUp) {
  InProcessRendezvous rendezvous;
  std::stop_source stop;
  std::jthread other([&] {
    std::this_thread::sleep_for(20ms);
    stop.request_stop();
  });
  try {
    static_cast<void>(connected({.rank = 0, .size = 2}, rendezvous, {}, stop.get_token()));
    FAIL() << "nobody else came";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

// --- processes

// A child that joins as participant 1, takes part in some sums, and then does what `then` says.
pid_t child_of(const std::filesystem::path& folder, int sums, const std::function<void()>& then) {
  const pid_t child = fork();
  if (child != 0) return child;
  try {
    FileRendezvous rendezvous(folder);
    const auto comm = connected({.rank = 1, .size = 2}, rendezvous, deadline_in(30s));
    for (int i = 0; i < sums; ++i) {
      std::vector<float> values(50'000, 1.0F);
      comm->all_reduce(kSum, kF32, values.data(), values.data(), 50'000, deadline_in(30s)).wait();
    }
    then();
  } catch (...) {
    _exit(1);
  }
  _exit(0);
}

TEST(GlooProcesses, AddUp) {
  const TemporaryFolder folder;
  const pid_t child = child_of(folder.path(), 3, [] {});
  FileRendezvous rendezvous(folder.path());
  const auto comm = connected({.rank = 0, .size = 2}, rendezvous, deadline_in(30s));
  for (int i = 0; i < 3; ++i) {
    std::vector<float> values(50'000, 2.0F);
    comm->all_reduce(kSum, kF32, values.data(), values.data(), 50'000, deadline_in(30s)).wait();
    EXPECT_THAT(values, Each(3.0F));
  }
  comm->close();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(GlooProcesses, OneThatIsKilledIsNamed) {
  const TemporaryFolder folder;
  const pid_t child = child_of(folder.path(), 2, [] { kill(getpid(), SIGKILL); });
  FileRendezvous rendezvous(folder.path());
  const auto comm = connected({.rank = 0, .size = 2}, rendezvous, deadline_in(30s));
  Failed failure;
  for (int i = 0; i < 3; ++i) {
    std::vector<float> values(50'000, 2.0F);
    failure =
        failure_of(comm->all_reduce(kSum, kF32, values.data(), values.data(), 50'000, deadline_in(30s)));
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
  EXPECT_THAT(failure.message, HasSubstr("participant 1 of 2 was lost"));
}

TEST(GlooProcesses, OneThatIsStoppedInTheMidstIsNamed) {
  const TemporaryFolder folder;
  const pid_t child = child_of(folder.path(), 1'000'000, [] {});
  FileRendezvous rendezvous(folder.path());
  const auto comm = connected({.rank = 0, .size = 2, .patience = 1s}, rendezvous, deadline_in(30s));
  std::jthread stopper([&] {
    std::this_thread::sleep_for(100ms);
    kill(child, SIGSTOP);
  });
  Failed failure{.message = "no error"};
  for (int i = 0; i < 1'000'000 && failure.message == "no error"; ++i) {
    std::vector<float> values(50'000, 2.0F);
    failure = failure_of(comm->all_reduce(kSum, kF32, values.data(), values.data(), 50'000, deadline_in(1s)));
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(failure.code, AnyOf(ErrorCode::kUnavailable, ErrorCode::kDeadlineExceeded)) << failure.message;
  EXPECT_THAT(failure.message, AnyOf(HasSubstr("participant 1 of 2"), HasSubstr("another participant")));
}

// Without a deadline, and with much patience: the membership notices.
TEST(GlooProcesses, AMembershipEndsTheGroupOfOneThatIsStopped) {
  const TemporaryFolder folder;
  const auto join = [&](int rank) {
    return Membership::join(
        {.worker = {.index = rank, .rank = rank, .count = 2}, .folder = folder.path(), .lost = 3s},
        deadline_in(30s));
  };
  const pid_t child = fork();
  if (child == 0) {
    try {
      const auto membership = join(1);
      const auto comm = connected({.rank = 1, .size = 2}, *membership, deadline_in(30s));
      raise(SIGSTOP);
    } catch (...) {
    }
    _exit(0);
  }
  const auto membership = join(0);
  const auto comm = connected({.rank = 0, .size = 2, .patience = 100s}, *membership, deadline_in(30s));
  membership->when_lost([&](const LostMember& lost) { comm->abort(lost.error()); });
  float x = 1;
  expect_lost(small_sum(*comm, &x), "worker:1 (127.0.0.1) is lost: silent for ");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Nobody waits for the call, and the participant leaves.
TEST(GlooProcesses, LeavingDoesNotWaitForOneThatIsStopped) {
  const TemporaryFolder folder;
  const pid_t child = child_of(folder.path(), 1, [] { raise(SIGSTOP); });
  FileRendezvous rendezvous(folder.path());
  auto comm = connected({.rank = 0, .size = 2, .patience = 500ms}, rendezvous, deadline_in(30s));
  std::vector<float> values(50'000, 2.0F);
  comm->all_reduce(kSum, kF32, values.data(), values.data(), 50'000, deadline_in(30s)).wait();
  int status = 0;
  waitpid(child, &status, WUNTRACED);
  ASSERT_TRUE(WIFSTOPPED(status));
  Pending later = comm->all_reduce(kSum, kF32, values.data(), values.data(), 50'000);
  std::this_thread::sleep_for(20ms);
  const auto start = std::chrono::steady_clock::now();
  comm.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  EXPECT_EQ(failure_of(std::move(later)).code, ErrorCode::kUnavailable);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(GlooProcesses, AChildMakesNoCallsInTheGroupOfItsParent) {
  Team team(2);
  float x = 1, y = 1;
  Pending before = small_sum(team[0], &x);
  EXPECT_EQ(testing::exit_status_of_child([&] {
              int refused = 0;
              for (const auto& call : std::initializer_list<std::function<void()>>{
                       [&] { static_cast<void>(team[1].barrier()); }, [&] { before.wait(); }}) {
                try {
                  call();
                } catch (const FailedPrecondition&) {
                  ++refused;
                }
              }
              team[0].abort(Error(ErrorCode::kUnavailable, "not for the parent"));
              before = Pending();
              return refused;
            }),
            2);
  small_sum(team[1], &y).wait();
  before.wait();
  EXPECT_EQ(x, 2.0F);
}

TEST(GlooProcesses, AChildLeavesTheGroupOfItsParentAlone) {
  Team team(2);
  EXPECT_EQ(testing::exit_status_of_child([&] {
              team.comms[0].reset();
              return 0;
            }),
            0);
  team.all([](Communicator& comm) { return comm.barrier(); });
}

// --- bad input

TEST(GlooArguments, AreRefused) {
  InProcessRendezvous rendezvous;
  const auto refuse = [&](const GlooGroupSpec& spec, const char* why) {
    try {
      static_cast<void>(connected(spec, rendezvous, deadline_in(1s)));
      FAIL() << why;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.message(), HasSubstr(why));
    }
  };
  refuse({.rank = 2, .size = 2}, "there is no member 2 of 2");
  refuse({.rank = -1, .size = 2}, "there is no member -1");
  refuse({.rank = 0, .size = 0}, "there is no member 0 of 0");
  refuse({.rank = 0, .size = 1, .host = "no.such.host.invalid"}, "'no.such.host.invalid' is not found");
  refuse({.rank = 0, .size = 1, .patience = 0ms}, "patience");
}

TEST(GlooArguments, AHostOfAnotherMachineIsRefused) {
  InProcessRendezvous rendezvous;
  try {
    static_cast<void>(connected({.rank = 0, .size = 1, .host = "192.0.2.1"}, rendezvous, deadline_in(1s)));
    FAIL() << "that address is for documentation";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.message(), HasSubstr("'192.0.2.1' is not one of this machine"));
  }
}

TEST(GlooArguments, WhatIsNoAddressIsRefused) {
  InProcessRendezvous rendezvous;
  rendezvous.set("world.0/member-1", "");
  EXPECT_THROW(static_cast<void>(connected({.rank = 0, .size = 2}, rendezvous, deadline_in(1s))), Error);
}

}  // namespace
}  // namespace lockstep

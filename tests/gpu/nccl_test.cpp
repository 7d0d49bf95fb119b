// Tests: core/nccl/nccl_group.cpp, core/nccl/card_group.cpp, graph/cuda/group_collectives.cpp,
//        graph/ops/rules/group_calls.cpp
// Processes that share the one card: each is a rank of its own, since NCCL takes them for several machines.
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/communicators/device_group.h"
#include "lockstep/core/communicators/group.h"
#include "lockstep/core/compute_device.h"
#include "lockstep/core/internal/built_in_backends.h"
#include "lockstep/core/nccl/nccl_group.h"
#include "lockstep/core/runtime.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/group_collectives.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/gradients.h"
#include "support/communicator_calls.h"
#include "support/on_card.h"
#include "support/program_test.h"
#include "support/spawned_members.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::caught;
using testing::Member;

constexpr std::int64_t kRows = 24, kIn = 19, kOut = 7;

Tensor numbers(const Shape& shape, int seed) {
  Tensor tensor = Tensor::empty(DType::kF32, shape);
  for (std::size_t i = 0; i < tensor.data<float>().size(); ++i)
    tensor.data<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7 + seed));
  return tensor;
}

// One step on so many rows, whose gradient is the mean of all members'.
Graph step_of(std::int64_t rows, const std::string& device, bool with_group) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {rows, kIn}),
              y = b.placeholder("y", DType::kF32, {rows, kOut});
  const auto there = b.device(device);
  const VariableRef w = b.variable("w", numbers({kIn, kOut}, 1));
  const Value now = b.read(w), loss = mean(square(matmul(x, now) - y));
  Value gradient = gradients(loss, {now})[0];
  if (with_group) gradient = group_all_reduce(ReduceOp::kMean, gradient, "world");
  b.assign(w, now - gradient * 0.1);
  b.result(loss);
  return b.finish();
}

// --- a member, in a process of its own

void write(const Member& me, const Tensor& w) {
  std::ofstream out(me.folder / str("w.", me.rank), std::ios::binary);
  const Tensor here = w.host();
  out.write(static_cast<const char*>(here.raw()), static_cast<std::streamsize>(here.num_bytes()));
}

struct Worker {
  Worker(const Member& me, Rendezvous& place, int generation)
      : rows(kRows / me.size),
        first(rows * me.rank),
        runtime({.threads = 1,
                 .groups = {{"world", std::make_shared<Group>(connect_nccl(
                                          {.rank = me.rank, .size = me.size, .generation = generation}, place,
                                          deadline_in(60s)))}}}),
        program(compile(step_of(rows, "gpu:0", true), runtime)) {}
  void step(int number) const {
    const Tensor x = numbers({kRows, kIn}, 10 + number), y = numbers({kRows, kOut}, 50 + number);
    RunOptions options;
    options.deadline = std::chrono::steady_clock::now() + 2s;
    program.run(std::vector{x.slice(first, first + rows), y.slice(first, first + rows)}, options);
    program.wait();
  }
  std::int64_t rows, first;
  Runtime runtime;
  Program program;
};

void train(const Member& me, Rendezvous& place) {
  const Worker worker(me, place, 0);
  for (int step = 0; step < 5; ++step) worker.step(step);
  write(me, worker.program.variables().value("w"));
}

// The last member ends in the middle; the others find out, have lost nothing, and go on among themselves.
void lose_one(const Member& me, Rendezvous& place) {
  Tensor w;
  {
    const Worker worker(me, place, 0);
    for (int step = 0; step < 2; ++step) worker.step(step);
    if (me.rank == me.size - 1) ::raise(SIGKILL);
    w = worker.program.variables().value("w").host();
    const auto error = caught([&] { worker.step(2); });
    EXPECT_TRUE(error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kDeadlineExceeded)
        << error.what;
    EXPECT_EQ(error.place.op, "group_all_reduce") << error.what;
    EXPECT_TRUE(worker.program.variables().value("w").host().bit_equal(w));
    const auto again = caught([&] { worker.step(2); });
    EXPECT_NE(again.what.find("group 'world' is over"), std::string::npos) << again.what;
  }
  const Worker worker({me.part, me.rank, me.size - 1, me.folder}, place, 1);
  worker.program.variables().set("w", w);
  worker.step(2);
  write(me, worker.program.variables().value("w"));
}

void exchange(const Member& me, Rendezvous& place) {
  const std::shared_ptr<MemoryPool> pool = internal::built_in_backends().at(0)->open().at(0)->pool();
  const std::unique_ptr<Communicator> comm =
      connect_nccl({.rank = me.rank, .size = me.size}, place, deadline_in(60s));
  const auto there = [&](std::vector<float> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    return Tensor::from<float>({count}, std::move(values)).to(pool);
  };
  const auto data = [](const Tensor& tensor) { return const_cast<void*>(tensor.raw()); };
  const auto floats = [](const Tensor& tensor) {
    const Tensor here = tensor.host();
    return std::vector<float>(here.data<float>().begin(), here.data<float>().end());
  };
  using Floats = std::vector<float>;
  const auto r = static_cast<float>(me.rank);  // 0 or 1
  const Tensor mine = there({r + 1, 10 * r}), sum = there({0, 0}), both = there({0, 0, 0, 0}),
               part = there({0});
  const std::map<ReplicaReduce, Floats> reduced = {{ReplicaReduce::kSum, {3, 10}},
                                                   {ReplicaReduce::kMean, {1.5F, 5}},
                                                   {ReplicaReduce::kMin, {1, 0}},
                                                   {ReplicaReduce::kMax, {2, 10}},
                                                   {ReplicaReduce::kProd, {2, 0}}};
  for (const auto& [op, expected] : reduced) {
    comm->all_reduce(op, DType::kF32, mine.raw(), data(sum), 2, deadline_in(20s)).wait();
    EXPECT_EQ(floats(sum), expected) << to_string(op);
  }
  comm->all_gather(DType::kF32, mine.raw(), data(both), 2, deadline_in(20s)).wait();
  EXPECT_EQ(floats(both), (Floats{1, 0, 2, 10}));
  comm->reduce_scatter(ReplicaReduce::kSum, DType::kF32, mine.raw(), data(part), 1, deadline_in(20s)).wait();
  EXPECT_EQ(floats(part), me.rank == 0 ? Floats{3} : Floats{10});
  comm->reduce(ReplicaReduce::kSum, DType::kF32, mine.raw(), data(sum), 2, 1, deadline_in(20s)).wait();
  if (me.rank == 1) {
    EXPECT_EQ(floats(sum), (Floats{3, 10}));
  }
  const Tensor told = there({r, r});
  comm->broadcast(DType::kF32, data(told), 2, 1, deadline_in(20s)).wait();
  EXPECT_EQ(floats(told), (Floats{1, 1}));
  comm->barrier(deadline_in(20s)).wait();
  // Both send, and both receive.
  const Tensor received = there({0, 0});
  Pending sending = comm->send(DType::kF32, mine.raw(), 2, 1 - me.rank, deadline_in(20s));
  Pending receiving = comm->receive(DType::kF32, data(received), 2, 1 - me.rank, deadline_in(20s));
  receiving.wait();
  sending.wait();
  EXPECT_EQ(floats(received), me.rank == 0 ? (Floats{2, 10}) : (Floats{1, 0}));
  // Memory of the host is refused before anybody waits for it.
  float host = 0;
  EXPECT_EQ(caught([&] {
              comm->barrier().wait();
              (void)comm->all_reduce(ReplicaReduce::kSum, DType::kF32, &host, &host, 1);
            }).code,
            ErrorCode::kInvalidArgument);
  // One ends it, from another thread than the one that waits; the other is told, or waits until its deadline.
  if (me.rank == 0) {
    std::thread other([&] {
      std::this_thread::sleep_for(50ms);
      comm->abort(Error(ErrorCode::kUnavailable, "enough"));
    });
    EXPECT_NE(caught([&] { comm->barrier().wait(); }).what.find("enough"), std::string::npos);
    other.join();
    place.set("ended", "by member 0");
  } else {
    place.get("ended", deadline_in(60s));
    EXPECT_NE(caught([&] { comm->barrier(deadline_in(2s)).wait(); }).code, std::nullopt);
  }
}

// The rows of all members, the first runs enqueued and the later ones replayed.
void gather(const Member& me, Rendezvous& place) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 3});
  const auto there = b.device("gpu:0");
  const Value all = group_all_gather(x * 2.F, me.size, "world");
  b.result(all);
  b.result(group_broadcast(sum(all), 1, "world"));
  const Runtime runtime(
      {.threads = 1,
       .groups = {{"world", std::make_shared<Group>(connect_nccl({.rank = me.rank, .size = me.size}, place,
                                                                 deadline_in(60s)))}}});
  const Program program = compile(b.finish(), runtime);
  for (int run = 0; run < 6; ++run) {
    RunOptions options;
    options.deadline = std::chrono::steady_clock::now() + 20s;
    const std::vector<Tensor> got = program.run(std::vector{numbers({2, 3}, 10 * run + me.rank)}, options);
    const Tensor rows = got[0].host();
    float total = 0;
    for (int rank = 0; rank < me.size; ++rank) {
      const Tensor its = numbers({2, 3}, 10 * run + rank);
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_EQ(rows.data<float>()[static_cast<std::size_t>(rank) * 6 + i], 2 * its.data<float>()[i]);
        total += 2 * its.data<float>()[i];
      }
    }
    EXPECT_NEAR(got[1].host().item(), total, 1e-5);
  }
}

// A run of one member fails before its exchange; the others are told, and do not wait until the deadline.
void fail_one(const Member& me, Rendezvous& place) {
  const Worker worker(me, place, 0);
  worker.step(0);
  const auto begin = std::chrono::steady_clock::now();
  const auto error = caught([&] {
    if (me.rank == 1) {
      worker.program.run(std::vector{numbers({1, 1}, 1), numbers({1, 1}, 1)});
    } else {
      RunOptions options;
      options.deadline = begin + 30s;
      const Tensor x = numbers({kRows, kIn}, 1), y = numbers({kRows, kOut}, 1);
      worker.program.run(std::vector{x.slice(0, worker.rows), y.slice(0, worker.rows)}, options);
      worker.program.wait();
    }
  });
  EXPECT_TRUE(error.code.has_value());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 25s);
}

// Started by the tests below, with its part in the environment.
TEST(NcclMember, DISABLED_Plays) {
  const Member me = testing::this_member();
  FileRendezvous place(me.folder / "place");
  const std::map<std::string, std::function<void(const Member&, Rendezvous&)>> parts = {
      {"train", train},
      {"lose_one", lose_one},
      {"exchange", exchange},
      {"gather", gather},
      {"fail_one", fail_one}};
  parts.at(me.part)(me, place);
  testing::says_played(me);
}

// --- those who start them

class NcclGroup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::has_card()) GTEST_SKIP() << "this machine has no card";
    if (const Decision found = has_nccl(); !found) GTEST_SKIP() << found.reason();
  }

  std::vector<int> play(const std::string& part, int size) {
    return testing::SpawnedMembers("NcclMember.*", part, size, folder_.path()).wait();
  }

  std::string written(int rank) const {
    std::ifstream in(folder_ / str("w.", rank), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // All of them have these weights, but for rounding, and the same bits.
  void expect_weights(int members, int steps) const {
    const Program alone = compile(step_of(kRows, "cpu:0", false), Runtime({.threads = 1}));
    for (int step = 0; step < steps; ++step)
      alone.run(std::vector{numbers({kRows, kIn}, 10 + step), numbers({kRows, kOut}, 50 + step)});
    const Tensor expected = alone.variables().value("w").host();
    const std::string first = written(0);
    ASSERT_EQ(first.size(), static_cast<std::size_t>(expected.num_bytes()));
    for (int rank = 1; rank < members; ++rank) EXPECT_EQ(written(rank), first) << rank;
    for (std::size_t i = 0; i < expected.data<float>().size(); ++i) {
      float weight = 0;
      std::memcpy(&weight, first.data() + i * sizeof(float), sizeof(float));
      ASSERT_NEAR(weight, expected.data<float>()[i], 1e-6);
    }
  }

  TemporaryFolder folder_;
};

TEST_F(NcclGroup, MembersExchangeWhatTheyHave) { EXPECT_EQ(play("exchange", 2), (std::vector<int>{0, 0})); }

TEST_F(NcclGroup, TwoTrainAsOne) {
  EXPECT_EQ(play("train", 2), (std::vector<int>(2, 0)));
  expect_weights(2, 5);
}

TEST_F(NcclGroup, FourTrainAsOne) {
  EXPECT_EQ(play("train", 4), (std::vector<int>(4, 0)));
  expect_weights(4, 5);
}

TEST_F(NcclGroup, NodesGatherTheRowsOfAll) { EXPECT_EQ(play("gather", 3), (std::vector<int>(3, 0))); }

TEST_F(NcclGroup, ARunThatFailsOnOneEndsItForAll) {
  EXPECT_EQ(play("fail_one", 2), (std::vector<int>(2, 0)));
}

TEST_F(NcclGroup, TheOthersGoOnWhenOneIsLost) {
  EXPECT_EQ(play("lose_one", 3), (std::vector<int>{0, 0, -SIGKILL}));
  expect_weights(2, 3);
}

TEST_F(NcclGroup, WhoDoesNotComeIsNamed) {
  InProcessRendezvous place;
  const auto error =
      caught([&] { connect_nccl({.name = "w", .rank = 1, .size = 3}, place, deadline_in(50ms)); });
  EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(error.what.find("missing are members 0, 2"), std::string::npos) << error.what;
}

// The cards of one process. With one card there is a group of one; two participants on it are more than NCCL takes, and
// both are told, again and again.
TEST_F(NcclGroup, ConnectsTheCardsOfAProcess) {
  const internal::CardCollectives nccl = internal::find_nccl();
  ASSERT_EQ(nccl.name, "nccl");
  const Runtime runtime({.threads = 1});
  const Device card = Device::parse("gpu:0");
  const Tensor in = numbers({1000}, 1).to(card, runtime);
  Tensor out = Tensor::empty(DType::kF32, {1000}, runtime.pool(card));
  CommunicatorCall call;
  call.kind = CommunicatorCall::Kind::kAllReduce;
  call.count = 1000;
  call.in = in.raw();
  call.out = out.raw();
  const std::shared_ptr<DeviceGroup> alone = nccl.connect({0});
  for (int i = 0; i < 3; ++i) {
    testing::Waiter done;
    alone->start({&call, 1}, done);
    EXPECT_EQ(done.wait(), "");
    EXPECT_TRUE(out.bit_equal(in));
  }
  const std::shared_ptr<DeviceGroup> twice = nccl.connect({0, 0});
  const std::vector<CommunicatorCall> calls = {call, call};
  for (int i = 0; i < 2; ++i) {
    testing::Waiter done;
    EXPECT_EQ(caught([&] { twice->start(calls, done); }).code, ErrorCode::kUnavailable);
  }
}

// The participant that cannot join is the error, and no other waits for it.
TEST_F(NcclGroup, ACardThatCannotJoinIsToldAtOnce) {
  const internal::CardCollectives nccl = internal::find_nccl();
  const auto begin = std::chrono::steady_clock::now();
  for (const std::vector<int>& cards : {std::vector<int>{0, 99}, std::vector<int>{99, 0}}) {
    const std::shared_ptr<DeviceGroup> group = nccl.connect(cards);
    const std::vector<CommunicatorCall> calls(2);
    testing::Waiter done;
    const auto error = caught([&] { group->start(calls, done); });
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument) << error.what;
    EXPECT_NE(error.what.find("there is no card 99"), std::string::npos) << error.what;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 60s);
}

TEST_F(NcclGroup, RefusesRanksAndCardsThatDoNotExist) {
  InProcessRendezvous place;
  EXPECT_THROW(connect_nccl({.rank = 2, .size = 2}, place), InvalidArgument);
  EXPECT_THROW(connect_nccl({.rank = 0, .size = 1, .card = 99}, place), InvalidArgument);
}

}  // namespace
}  // namespace lockstep

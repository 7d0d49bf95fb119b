// Tests: strategies/multi_worker.cpp, strategies/worker_group.cpp
// Several processes that train one model, and what happens when one of them is lost.
#include "support/processes.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/communicators/rendezvous.h"
#include "lockstep/core/membership/membership.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/io/state/worker_checkpoints.h"
#include "lockstep/strategies/multi_worker.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/strategy_test.h"
#include "support/training.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::digest_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kScalar;
using ::testing::Not;
using testing::Outcome;
using testing::Processes;

MultiWorkerOptions options_of(int rank, int count, const std::filesystem::path& folder, int replicas = 1) {
  std::vector<std::string> devices;
  for (int r = 0; r < replicas; ++r) devices.push_back("cpu:" + std::to_string(r));
  return {.worker = WorkerSpec{.index = rank, .rank = rank, .count = count},
          .folder = folder / "place",
          .start = 60s,
          .lost = 3s,  // a busy machine may hold up a process for a second
          .runtime = {.threads = 1, .backends = {}},
          .mirrored = {.devices = devices}};
}

// Trains on four replicas altogether; called after each step.
void train(Strategy& strategy, int steps, const std::function<void(int step)>& after = {}) {
  const auto scope = strategy.scope();
  const auto step =
      strategy.function({{DType::kF64, {kUnknown, 3}, "x"}, {DType::kI64, {kUnknown}, "rows"}},
                        [&](Value x, Value rows) { testing::train(dropout(x, 0.25), rows, false); });
  for (int k = 1; k <= steps; ++k) {
    std::vector<Tensor> x, rows;
    for (std::int64_t r = 0; r < strategy.num_local_replicas(); ++r) {
      const auto number = static_cast<std::uint64_t>(strategy.first_replica() + r);
      const testing::Batch batch = testing::make_batch(2 + static_cast<std::int64_t>(number),
                                                       100 * static_cast<std::uint64_t>(k) + 10 * number);
      x.push_back(batch.x);
      rows.push_back(batch.rows);
    }
    step(PerReplica<Tensor>(std::move(x)), PerReplica<Tensor>(std::move(rows)));
    if (after) after(k);
  }
}

// The state after each step, of one process.
std::vector<std::uint64_t> digests_of_one(int steps) {
  MirroredStrategy together({.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"},
                             .base = {.runtime = Runtime({.threads = 1, .cpu_devices = 4, .backends = {}})}});
  std::vector<std::uint64_t> digests(1);
  train(together, steps, [&](int) { digests.push_back(digest_of(together)); });
  digests[0] = 0;  // nothing was made
  return digests;
}

// In a child, since it has threads.
std::vector<std::uint64_t> right_digests(int steps) {
  Processes one(1, [&](int, std::ostream& say) {
    for (const std::uint64_t digest : digests_of_one(steps)) say << digest << '\n';
    return 0;
  });
  std::istringstream said(one.wait()[0].said);
  std::vector<std::uint64_t> digests;
  for (std::uint64_t digest = 0; said >> digest;) digests.push_back(digest);
  return digests;
}

class Workers : public ::testing::TestWithParam<int> {};

TEST_P(Workers, EndWithTheBitsOfOneProcess) {
  constexpr int kSteps = 100;
  const std::vector<std::uint64_t> right = right_digests(kSteps);
  ASSERT_EQ(right.size(), kSteps + 1U);
  const int count = GetParam();
  struct Way {
    std::int64_t bytes_per_pack;
    std::size_t threads;
  };
  for (const Way& way : {Way{64, 1}, Way{64 << 10, 2}, Way{0, 1}, Way{0, 2}}) {
    TemporaryFolder place;
    Processes workers(count, [&](int rank, std::ostream& say) {
      MultiWorkerOptions options = options_of(rank, count, place.path(), 4 / count);
      options.communication.bytes_per_pack = way.bytes_per_pack;
      options.runtime.threads = way.threads;
      MultiWorkerMirroredStrategy strategy(options);
      EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
      train(strategy, kSteps);
      say << digest_of(strategy) << ' ' << strategy.last_step();
      return 0;
    });
    for (const Outcome& worker : workers.wait()) {
      EXPECT_EQ(worker.status, 0) << worker.said;
      EXPECT_EQ(worker.said, str(right[kSteps], ' ', kSteps)) << way.bytes_per_pack << ' ' << way.threads;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Processes, Workers, ::testing::Values(1, 2, 4));

// Each survivor ends with an error that names the one that was lost, with the variables of a committed step.
void expect_survivors(Processes& workers, int lost, const std::vector<std::uint64_t>& right) {
  const std::vector<Outcome> all = workers.wait(lost);
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    if (rank == lost) continue;
    const Outcome& worker = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(worker.status, 42) << rank << ": " << worker.said;
    EXPECT_THAT(worker.said, AllOf(HasSubstr("Unavailable"), HasSubstr(str("worker:", lost, " "))));
    const std::size_t at = worker.said.rfind("state ");
    ASSERT_NE(at, std::string::npos) << worker.said;
    std::istringstream state(worker.said.substr(at + 6));
    std::size_t step = 0;
    std::uint64_t digest = 0;
    state >> step >> digest;
    ASSERT_LT(step, right.size());
    EXPECT_EQ(digest, right[step]) << "after step " << step;
  }
}

Processes::Body trains_until_lost(int count, const std::filesystem::path& place, int steps) {
  return [=](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, count, place, 4 / count));
    try {
      train(strategy, steps, [&](int step) { say << "step " << step << std::endl; });
    } catch (const Error& error) {
      say << error.what() << "\nstate " << strategy.last_step() << ' ' << digest_of(strategy) << std::endl;
      return 42;
    }
    return 0;
  };
}

TEST(LostWorkers, AreNamedToAllOthersWhoeverIsKilled) {
  constexpr int kSteps = 4000;
  const std::vector<std::uint64_t> right = right_digests(400);
  for (const int lost : {0, 1, 3}) {
    TemporaryFolder place;
    Processes workers(4, trains_until_lost(4, place.path(), kSteps));
    ASSERT_TRUE(workers.says(lost, str("step ", 3 + 2 * lost, "\n"))) << workers.said(lost);
    workers.signal(lost, SIGKILL);
    expect_survivors(workers, lost, right);
  }
}

TEST(LostWorkers, ThatStandStillAreNamed) {
  const std::vector<std::uint64_t> right = right_digests(400);
  TemporaryFolder place;
  Processes workers(4, trains_until_lost(4, place.path(), 4000));
  ASSERT_TRUE(workers.says(2, "step 5\n")) << workers.said(2);
  workers.signal(2, SIGSTOP);
  expect_survivors(workers, 2, right);
  workers.signal(2, SIGCONT);
}

// A connection may tell of the loss before the membership does, and knows no names.
TEST(LostWorkers, AreNamedOutsideOfFunctionsToo) {
  for (const bool saves : {true, false}) {
    for (int round = 0; round < 3; ++round) {
      TemporaryFolder place;
      Processes workers(3, [&](int rank, std::ostream& say) {
        MultiWorkerMirroredStrategy strategy(options_of(rank, 3, place.path()));
        const auto scope = strategy.scope();
        const Variable w("w", Tensor::full(DType::kF32, {1000}, 1));
        WorkerCheckpoints checkpoints(strategy, place.path() / "checkpoints");
        checkpoints.save();
        say << "saved" << std::endl;
        if (rank == 1) std::this_thread::sleep_for(60s);
        say << error_of([&] {
          if (saves) {
            checkpoints.save();
          } else {
            strategy.reduce(ReduceOp::kSum, PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)}));
          }
        });
        return 0;
      });
      for (const int rank : {0, 1, 2}) ASSERT_TRUE(workers.says(rank, "saved\n")) << workers.said(rank);
      workers.signal(1, SIGKILL);
      const std::vector<Outcome> all = workers.wait(1);
      for (const std::size_t rank : {0U, 2U}) EXPECT_THAT(all[rank].said, HasSubstr("worker:1 ")) << saves;
    }
  }
}

TEST(Programs, ThatDifferAreRefusedOnAllWorkers) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 2, place.path()));
    const float rate = rank == 0 ? 0.5F : 0.25F;
    say << error_of([&] {
      strategy.function({kScalar},
                        [&](Value x) { return replica_context().all_reduce(ReduceOp::kSum, x) * rate; });
    });
    return 0;
  });
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0);
    EXPECT_THAT(worker.said, AllOf(HasSubstr("0.5"), HasSubstr("0.25"), HasSubstr("processes_test.cpp")));
  }
}

TEST(Programs, OneThatFailsEndsTheStepOfAllAndTheNextIsRight) {
  TemporaryFolder place;
  Processes workers(3, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 3, place.path()));
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
    const auto step = strategy.function({kScalar}, [&](Value x) { w.assign_add(check_finite(x)); });
    const auto feed = [](float value) { return PerReplica<Tensor>(std::vector{Tensor::scalar(value)}); };
    for (int k = 1; k <= 20; ++k) {
      step(feed(1));
      say << error_of([&] { step(feed(rank == k % 3 ? std::numeric_limits<float>::infinity() : 1.F)); });
      say << " w=" << w.copies()[0].item() << " step " << strategy.last_step() << '\n';
    }
    return 0;
  });
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0) << worker.said;
    EXPECT_THAT(worker.said,
                AllOf(Not(HasSubstr("no error")), HasSubstr("w=3 step 1\n"), HasSubstr("w=60 step 20\n"),
                      HasSubstr("inf"), HasSubstr("check_finite"), HasSubstr("processes_test.cpp"),
                      HasSubstr("could not run the step, so no worker has committed it")));
  }
}

// A hundred steps, of which one worker has another one, however little it differs.
TEST(Programs, MutantsOfOneWorkerAreRefusedOnAll) {
  TemporaryFolder place;
  constexpr int kMutants = 100, kKinds = 10;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 2, place.path()));
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kMean});
    const Variable v("v", Tensor::scalar(1.F), {.aggregation = Aggregation::kMean});
    const auto make = [&](int mutant, int kind) {
      return strategy.function({kScalar}, [&](Value x) {
        const auto is = [&](int one) { return kind == one; };
        const float c = 1.F + static_cast<float>(mutant);
        const auto reduce = [](ReduceOp op, const Value& value) {
          return replica_context().all_reduce(op, value);
        };
        const Value a = x * (is(0) ? std::nextafter(c, 0.F) : c) + (is(1) ? c + 1.F : c);
        const Value b = is(2) ? tanh(a) : relu(a);
        const Value s =
            is(3) ? reduce(ReduceOp::kMax, b) : reduce(is(4) ? ReduceOp::kMean : ReduceOp::kSum, b);
        const Value t = is(3) ? reduce(ReduceOp::kSum, b) : reduce(ReduceOp::kMax, is(5) ? -b : b);
        const Value more = is(6) ? reduce(ReduceOp::kSum, a) : t;
        const Value all = is(7) ? s : s + more;
        (is(8) ? v : w).assign(all);
        if (is(9)) v.assign_add(all);
      });
    };
    int refused = 0;
    for (int mutant = 0; mutant < kMutants; ++mutant) {
      const std::string why = error_of([&] { make(mutant, rank == 1 ? mutant % kKinds : -1); });
      const bool shows_both =
          why.find("worker:0") != std::string::npos && why.find("worker:1") != std::string::npos;
      if (shows_both && why.find("processes_test.cpp") != std::string::npos) {
        ++refused;
      } else {
        say << mutant << ": " << why << '\n';
      }
    }
    // What does not differ runs.
    make(kMutants, -1)(PerReplica<Tensor>(std::vector{Tensor::scalar(static_cast<float>(rank))}));
    say << refused << " refused, w=" << w.copies()[0].item() << " v=" << v.copies()[0].item();
    return 0;
  });
  // (101 + 202) + 202
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0) << worker.said;
    EXPECT_EQ(worker.said, "100 refused, w=505 v=1");
  }
}

// Nobody takes it for lost. Those who wait say for whom, and so does the status of the job.
TEST(Programs, SlowWorkersAreWaitedForAndNamed) {
  TemporaryFolder place;
  Processes workers(3, [&](int rank, std::ostream& say) {
    std::mutex mutex;
    MultiWorkerOptions options = options_of(rank, 3, place.path());
    options.slow = 300ms;
    options.tell = [&](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex);
      say << line << std::endl;
    };
    MultiWorkerMirroredStrategy strategy(options);
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
    const auto step = strategy.function({kScalar}, [&](Value x) {
      const TensorSpec scalar{DType::kF32, {}};
      x = current_builder()->call("work", {&x, 1}, {&scalar, 1}, [rank](KernelContext& c) {
        if (rank == 2) std::this_thread::sleep_for(4s);
        *c.output<float>(0).data() = c.input<float>(0)[0];
      })[0];
      w.assign_add(x);
    });
    step(PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)}));
    const std::lock_guard<std::mutex> lock(mutex);
    say << "w=" << w.copies()[0].item() << std::endl;
    return 0;
  });
  ASSERT_TRUE(workers.says(0, "waits since")) << workers.said(0);
  FileRendezvous folder(place / "place");
  MembershipSpec job;
  job.worker.coordinator = folder.get("coordinator.job.0", deadline_in(10s));
  // It is told with the next sign of life.
  const auto says_all =
      AllOf(HasSubstr("worker:1"), HasSubstr("waits for worker:2"), HasSubstr("processes_test.cpp:"));
  std::string status;
  for (int i = 0; i < 300 && !::testing::Value(status, says_all); ++i) {
    std::this_thread::sleep_for(10ms);
    status = Membership::status(job, deadline_in(10s));
  }
  EXPECT_THAT(status, says_all);
  const std::vector<Outcome> all = workers.wait();
  for (const Outcome& worker : all) {
    EXPECT_EQ(worker.status, 0);
    EXPECT_THAT(worker.said, HasSubstr("w=3"));
  }
  EXPECT_THAT(all[0].said, AllOf(HasSubstr("worker:0 waits since "), HasSubstr(" s for worker:2 ("),
                                 HasSubstr("group_all_reduce '"), HasSubstr("processes_test.cpp:")));
  EXPECT_THAT(all[2].said, Not(HasSubstr("waits")));
}

// One worker is asked to end: all save the same step and leave.
TEST(Programs, AreAskedToStopAtTheSameStepOnAllWorkers) {
  TemporaryFolder place;
  Processes workers(3, [&](int rank, std::ostream& say) {
    MultiWorkerMirroredStrategy strategy(options_of(rank, 3, place.path()));
    static std::atomic<MultiWorkerMirroredStrategy*> asked{nullptr};
    asked = &strategy;
    std::signal(SIGTERM, [](int) { asked.load()->want_stop(); });
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
    const auto step = strategy.function({kScalar}, [&](Value x) { w.assign_add(x); });
    while (!strategy.is_stop_wanted() && strategy.last_step() < 100'000) {
      step(PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)}));
      if (strategy.last_step() == 5) say << "step 5" << std::endl;
    }
    say << "stops after " << strategy.last_step() << " with " << w.copies()[0].item() << std::endl;
    return 42;
  });
  ASSERT_TRUE(workers.says(1, "step 5")) << workers.said(1);
  workers.signal(1, SIGTERM);
  const std::vector<Outcome> all = workers.wait();
  for (const Outcome& worker : all) {
    EXPECT_EQ(worker.status, 42) << worker.said;
    EXPECT_EQ(worker.said, all[0].said);
  }
  EXPECT_THAT(all[0].said, Not(HasSubstr("after 100000 ")));
}

TEST(Start, TakesWhoItIsFromTheEnvironmentAndSeedsFromTheFirst) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    const std::string index = std::to_string(rank);
    setenv("RANK", index.c_str(), 1);
    setenv("LOCAL_RANK", index.c_str(), 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    MultiWorkerOptions options = options_of(rank, 2, place.path());
    options.worker.reset();
    options.runtime.seed = 7 + static_cast<std::uint64_t>(rank);
    MultiWorkerMirroredStrategy strategy(options);
    const auto drawn = strategy.cross_function({}, [&] {
      return current_builder()->random_uniform({DType::kF32, {2}}, 0, 1, 3);
    });
    say << strategy.worker().rank << ' ' << strategy.description() << '\n' << drawn().values()[0];
    return 0;
  });
  const std::vector<Outcome> all = workers.wait();
  for (const Outcome& worker : all) EXPECT_EQ(worker.status, 0) << worker.said;
  EXPECT_THAT(all[1].said, AllOf(HasSubstr("1 worker:1"), HasSubstr("torchrun"), HasSubstr("Gloo")));
  const auto numbers = [](const Outcome& worker) { return worker.said.substr(worker.said.find('\n')); };
  EXPECT_EQ(numbers(all[0]), numbers(all[1]));
}

// --- how values are exchanged

// Values of cards go through the host where NCCL cannot take them, and have the bits of one process. None are named: each worker
// has its share of the machine's.
TEST(Communication, OfCardsWithoutNcclGoesThroughTheHost) {
  constexpr int kSteps = 5;
  const std::vector<std::uint64_t> right = right_digests(kSteps);
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerOptions options = options_of(rank, 2, place.path());
    options.worker->addresses = {"127.0.0.1:7", "127.0.0.1:8"};  // on one machine
    options.mirrored.devices = {};
    options.runtime.backends = {std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 5})};
    MultiWorkerMirroredStrategy strategy(options);
    say << strategy.description() << '\n' << strategy.worker_devices()[1] << '\n';
    train(strategy, kSteps);
    say << digest_of(strategy);
    return 0;
  });
  const std::vector<Outcome> all = workers.wait();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(all[rank].status, 0) << all[rank].said;
    EXPECT_THAT(all[rank].said,
                AllOf(HasSubstr("over Gloo at 127.0.0.1: "), HasSubstr(rank == 0 ? "\ngpu:1\n" : "\ngpu:3\n"),
                      ::testing::EndsWith(std::to_string(right[kSteps]))));
  }
}

TEST(Communication, InARingEndsNearOneProcess) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerOptions options = options_of(rank, 2, place.path(), 2);
    options.communication.in_replica_order = false;
    MultiWorkerMirroredStrategy strategy(options);
    EXPECT_THAT(strategy.description(), HasSubstr("in a ring"));
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::zeros(DType::kF32, {50'000}), {.aggregation = Aggregation::kMean});
    const auto step = strategy.function({{DType::kF32, {50'000}}}, [&](Value x) { w.assign_add(x); });
    std::vector<Tensor> x;
    for (int r = 0; r < 2; ++r) x.push_back(Tensor::full(DType::kF32, {50'000}, 2 * rank + r));
    for (int k = 0; k < 4; ++k) step(PerReplica<Tensor>(x));
    say << w.copies()[0].bit_equal(Tensor::full(DType::kF32, {50'000}, 6.));
    return 0;
  });
  for (const Outcome& worker : workers.wait()) {
    EXPECT_EQ(worker.status, 0);
    EXPECT_EQ(worker.said, "1");
  }
}

TEST(Communication, ThatDiffersIsRefusedOnAllWorkers) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerOptions options = options_of(rank, 2, place.path());
    options.communication.in_replica_order = rank == 0;
    say << error_of([&] { MultiWorkerMirroredStrategy strategy(options); });
    return 0;
  });
  for (const Outcome& worker : workers.wait())
    EXPECT_THAT(worker.said, AllOf(HasSubstr("in_replica_order true"), HasSubstr("in_replica_order false")));
}

TEST(Communication, OverNcclIsRefusedWithItsReasonWhereNotAllCan) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    MultiWorkerOptions options = options_of(rank, 2, place.path());
    options.communication.implementation = CollectiveCommunication::kNccl;
    options.mirrored.devices = {"gpu:0"};
    options.runtime.backends = {std::make_shared<testing::FakeGpu>()};
    say << error_of([&] { MultiWorkerMirroredStrategy strategy(options); });
    return 0;
  });
  for (const Outcome& worker : workers.wait())
    EXPECT_THAT(worker.said, HasSubstr("communication nccl exchanges values of cards of all workers, and "));
}

// --- start

TEST(Start, NamesWhoDoesNotCome) {
  TemporaryFolder place;
  Processes workers(1, [&](int, std::ostream& say) {
    MultiWorkerOptions options = options_of(0, 3, place.path());
    options.start = 300ms;
    say << error_of([&] { MultiWorkerMirroredStrategy strategy(options); });
    return 0;
  });
  const Outcome worker = workers.wait()[0];
  EXPECT_THAT(worker.said, AllOf(HasSubstr("DeadlineExceeded"), HasSubstr("missing are workers 1, 2")));
}

TEST(Start, RefusesWorkersWithOtherNumbersOfReplicas) {
  TemporaryFolder place;
  Processes workers(2, [&](int rank, std::ostream& say) {
    say << error_of(
        [&] { MultiWorkerMirroredStrategy strategy(options_of(rank, 2, place.path(), 1 + rank)); });
    return 0;
  });
  // The first goes on waiting for one that fits.
  EXPECT_THAT(workers.wait(0)[1].said, AllOf(HasSubstr("InvalidArgument"), HasSubstr("replica")));
}

TEST(Start, RefusesWhatDoesNotFit) {
  EXPECT_THAT(
      error_of([] {
        MultiWorkerMirroredStrategy(
            {.worker = WorkerSpec{}, .communication = {.implementation = CollectiveCommunication::kNccl}});
      }),
      HasSubstr("nccl exchanges values of cards"));
  EXPECT_THAT(
      error_of([] {
        MultiWorkerMirroredStrategy({.worker = WorkerSpec{}, .mirrored = {.base = {.runtime = Runtime()}}});
      }),
      HasSubstr("MultiWorkerOptions::runtime"));
  EXPECT_THAT(error_of([] { MultiWorkerMirroredStrategy({.worker = WorkerSpec{.rank = 1, .count = 1}}); }),
              HasSubstr("does not exist"));
}

TEST(Start, OneWorkerIsAMirroredStrategy) {
  Processes alone(1, [&](int, std::ostream& say) {
    CollectiveAllReduceStrategy strategy({.mirrored = {.devices = {"cpu:0", "cpu:1"}}});
    EXPECT_EQ(strategy.membership(), nullptr);
    say << strategy.num_replicas_in_sync() << ' ' << strategy.name();
    return 0;
  });
  EXPECT_EQ(alone.wait()[0].said, "2 MultiWorkerMirroredStrategy");
}

}  // namespace
}  // namespace lockstep

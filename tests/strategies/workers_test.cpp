// Tests: strategies/passes/over_workers.cpp
// Several workers, each with replicas of its own: what is one process's with all of the replicas, to the bit.
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/regions.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/strategy.h"
#include "support/strategy_test.h"
#include "support/training.h"
#include "support/virtual_workers.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::error_of;
using testing::expect_workers;
using ::testing::HasSubstr;
using testing::kScalar;
using testing::kVector;
using testing::run_workers;
using testing::scalars;
using testing::vec;
using testing::VirtualWorkers;

// This worker's part of a list that has an item for each replica of all.
template <class T>
std::vector<T> own(const Strategy& strategy, const std::vector<T>& all) {
  const auto first = all.begin() + strategy.first_replica();
  return {first, first + strategy.num_local_replicas()};
}
PerReplica<Tensor> numbers(const Strategy& strategy) {
  std::vector<Tensor> slots;
  for (std::int64_t r = 0; r < strategy.num_local_replicas(); ++r)
    slots.push_back(Tensor::scalar(static_cast<float>(strategy.first_replica() + r + 1)));
  return PerReplica<Tensor>(std::move(slots));
}

// --- training: four replicas, however they are spread

using State = std::map<std::string, Tensor>;

State state_of(const Strategy& strategy) {
  State state;
  for (const std::string& name : strategy.variables().names()) {
    if (name.find("replica_") == std::string::npos)
      state.emplace(name, strategy.variables().find(name)->storage().clone());
  }
  return state;
}

State train_steps(Strategy& strategy, bool by_rows, int steps) {
  const auto scope = strategy.scope();
  const auto step = strategy.function({{DType::kF64, {kUnknown, 3}, "x"}, {DType::kI64, {kUnknown}, "rows"}},
                                      [&](Value x, Value rows) {
                                        const Value noisy = dropout(x, 0.25);
                                        testing::train(noisy, rows, by_rows);
                                      });
  for (int k = 0; k < steps; ++k) {
    std::vector<Tensor> x, rows;
    for (std::uint64_t r = 0; r < 4; ++r) {
      const std::int64_t size = by_rows ? 3 : 2 + static_cast<std::int64_t>(r);
      const testing::Batch batch = testing::make_batch(size, 100 * static_cast<std::uint64_t>(k) + 10 * r);
      x.push_back(batch.x);
      rows.push_back(batch.rows);
    }
    step(PerReplica<Tensor>(own(strategy, x)), PerReplica<Tensor>(own(strategy, rows)));
  }
  return state_of(strategy);
}

class WorkersTrain : public ::testing::TestWithParam<std::tuple<int, std::int64_t, bool>> {};

TEST_P(WorkersTrain, TheBitsOfOneProcess) {
  const int workers = std::get<0>(GetParam());
  const std::int64_t bytes_per_pack = std::get<1>(GetParam());
  const bool by_rows = std::get<2>(GetParam());
  MirroredStrategy together(
      {.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}, .bytes_per_pack = bytes_per_pack});
  const State right = train_steps(together, by_rows, 5);
  ASSERT_FALSE(right.empty());
  std::mutex mutex;
  int compared = 0;
  expect_workers({.count = workers, .replicas = 4 / workers, .bytes_per_pack = bytes_per_pack},
                 [&](MirroredStrategy& strategy) {
                   const State mine = train_steps(strategy, by_rows, 5);
                   const std::lock_guard<std::mutex> lock(mutex);
                   ASSERT_EQ(mine.size(), right.size());
                   for (const auto& [name, value] : right) {
                     ASSERT_TRUE(mine.contains(name)) << name;
                     EXPECT_TRUE(mine.at(name).bit_equal(value))
                         << name << " of worker " << strategy.worker().rank;
                     ++compared;
                   }
                 });
  EXPECT_EQ(compared, workers * static_cast<int>(right.size()));
}
INSTANTIATE_TEST_SUITE_P(Splits, WorkersTrain,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Values(0, 64, 4 << 20),
                                            ::testing::Bool()));

// The variables of all workers after some steps of training four replicas.
std::vector<State> states_of(const VirtualWorkers& workers, bool by_rows) {
  std::vector<State> states(static_cast<std::size_t>(workers.count));
  expect_workers(workers, [&](MirroredStrategy& strategy) {
    states[static_cast<std::size_t>(strategy.worker().rank)] = train_steps(strategy, by_rows, 5);
  });
  return states;
}

TEST(WorkersTrainOnCards, TheBitsOfOneProcessThroughTheHost) {
  for (const bool by_rows : {false, true}) {
    const State right = states_of({.count = 2, .replicas = 2}, by_rows)[0];
    for (const int workers : {2, 4}) {
      for (const State& mine :
           states_of({.count = workers, .replicas = 4 / workers, .on_fake_gpus = true}, by_rows)) {
        ASSERT_EQ(mine.size(), right.size());
        for (const auto& [name, value] : right)
          EXPECT_TRUE(mine.at(name).host().bit_equal(value.host()))
              << name << " of " << workers << " workers";
      }
    }
  }
}

// Each worker combines its own first: fewer bytes travel, and sums are rounded at other places.
TEST(WorkersThatJoinFirst, AreEqualAndNearToOneProcess) {
  const State right = states_of({.count = 2, .replicas = 2}, false)[0];
  const std::vector<State> states =
      states_of({.count = 2, .replicas = 2, .bytes_per_pack = 64, .joins_first = true}, false);
  for (const auto& [name, value] : right) {
    const Tensor mine = states[0].at(name);
    EXPECT_TRUE(mine.bit_equal(states[1].at(name))) << name;
    if (value.dtype() != DType::kF64) continue;
    for (std::size_t i = 0; i < value.data<double>().size(); ++i)
      EXPECT_NEAR(mine.data<double>()[i], value.data<double>()[i], 1e-12) << name;
  }
  expect_workers({.count = 2, .replicas = 2, .joins_first = true}, [](MirroredStrategy& strategy) {
    EXPECT_THAT(strategy.pipeline().to_string(), HasSubstr("lower-collectives(joins_first=true)"));
    const auto scope = strategy.scope();
    const auto all = strategy.function({kScalar}, [](Value x) {
      const auto reduced = [&](ReduceOp op) { return replica_context().all_reduce(op, x); };
      return std::vector{reduced(ReduceOp::kSum), reduced(ReduceOp::kMean), reduced(ReduceOp::kMax),
                         reduced(ReduceOp::kProd)};
    });
    const auto got = all(numbers(strategy));
    const std::vector<double> expected = {10, 2.5, 4, 24};
    for (std::size_t i = 0; i < expected.size(); ++i) {
      for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(got[i][r].item(), expected[i]);
    }
  });
}

// --- what a replica is

TEST(Workers, ReplicasHaveTheNumbersOfTheWorld) {
  expect_workers({.count = 3, .replicas = 2}, [](MirroredStrategy& strategy) {
    EXPECT_EQ(strategy.num_replicas_in_sync(), 6);
    EXPECT_EQ(strategy.num_local_replicas(), 2);
    EXPECT_EQ(strategy.first_replica(), 2 * strategy.worker().rank);
    const auto ids = strategy.function({}, [] {
      return std::pair(replica_context().replica_id(),
                       replica_context().replica_id() * 10 +
                           static_cast<double>(replica_context().num_replicas_in_sync()));
    });
    const auto [id, both] = ids();
    ASSERT_EQ(id.size(), 2U);
    for (std::size_t r = 0; r < 2; ++r) {
      const auto number = static_cast<double>(strategy.first_replica()) + static_cast<double>(r);
      EXPECT_EQ(id[r].item(), number);
      EXPECT_EQ(both[r].item(), number * 10 + 6);
    }
    const PerReplica<Tensor> made =
        strategy.distribute_values_from_function([](std::int64_t replica, std::int64_t replicas) {
          return Tensor::scalar(static_cast<float>(100 * replicas + replica));
        });
    ASSERT_EQ(made.size(), 2U);
    EXPECT_EQ(made[1].item(), 600 + static_cast<double>(strategy.first_replica()) + 1);
  });
}

TEST(Workers, ReplicasDrawWhatTheirNumbersDraw) {
  const auto draw = [](Strategy& strategy) {
    const auto drawn = strategy.function({}, [] {
      return current_builder()->random_uniform({DType::kF32, {5}}, 0, 1, 7);
    });
    return drawn().values();
  };
  MirroredStrategy together({.devices = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"}});
  const std::vector<Tensor> right = draw(together);
  EXPECT_FALSE(right[0].bit_equal(right[2]));
  expect_workers({.count = 2, .replicas = 2}, [&](MirroredStrategy& strategy) {
    const std::vector<Tensor> mine = draw(strategy);
    const std::vector<Tensor> wanted = own(strategy, right);
    for (std::size_t r = 0; r < 2; ++r) EXPECT_TRUE(mine[r].bit_equal(wanted[r]));
  });
}

// --- runs that fail

// Worker 1 fails at one of 50 nodes, before, between and behind the exchanges; nobody commits that step, and the next one is right.
TEST(Workers, CommitAStepTogetherWhereverOneFails) {
  constexpr int kNodes = 50;
  const std::vector<std::string> errors =
      run_workers({.count = 3, .replicas = 2}, [](MirroredStrategy& strategy) {
        const auto scope = strategy.scope();
        int armed = -1;
        const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum});
        const auto step = strategy.function({kScalar}, [&](Value x) {
          for (int i = 0; i < kNodes; ++i) {
            const TensorSpec scalar{DType::kF32, {}};
            x = current_builder()->call("may_fail", {&x, 1}, {&scalar, 1}, [&armed, i](KernelContext& c) {
              if (armed == i) throw std::runtime_error(str("node ", i, " fails"));
              *c.output<float>(0).data() = c.input<float>(0)[0];
            })[0];
            if (i % 10 == 9 && i < 40) x = replica_context().all_reduce(ReduceOp::kMean, x);
          }
          w.assign_add(x);
        });
        const PerReplica<Tensor> mine = numbers(strategy);
        for (int i = 0; i < kNodes; ++i) {
          if (strategy.worker().rank == 1) armed = i;
          EXPECT_THAT(error_of([&] { step(mine); }), HasSubstr(str("node ", i, " fails")));
          armed = -1;
          step(mine);
          EXPECT_EQ(w.copies()[1].item(), 21 * (i + 1)) << strategy.worker().rank;
        }
        // Refused at its start.
        EXPECT_THAT(error_of([&] {
                      if (strategy.worker().rank == 2) {
                        step(PerReplica<Tensor>(std::vector{Tensor::scalar(1.F)}));
                      } else {
                        step(mine);
                      }
                    }),
                    HasSubstr("1 slot for 2 replicas"));
        step(mine);
        EXPECT_EQ(w.copies()[0].item(), 21 * (kNodes + 1));
      });
  EXPECT_THAT(errors, Each(""));
}

// --- values of all

TEST(Workers, ReduceOverAllReplicas) {
  for (const int replicas : {1, 2}) {
    expect_workers({.count = 2, .replicas = replicas}, [&](MirroredStrategy& strategy) {
      const double n = 2 * replicas, total = n * (n + 1) / 2;
      const PerReplica<Tensor> mine = numbers(strategy);
      EXPECT_EQ(strategy.reduce(ReduceOp::kSum, mine).item(), total);
      EXPECT_EQ(strategy.reduce(ReduceOp::kMean, mine).item(), total / n);
      EXPECT_EQ(strategy.reduce(ReduceOp::kMax, mine).item(), n);
      const auto in_graph = strategy.cross_function(
          {kScalar}, [&](PerReplica<Value> x) { return strategy.reduce(ReduceOp::kSum, x); });
      EXPECT_EQ(in_graph(mine).values()[0].item(), total);
      // A single value is each worker's contribution.
      const Tensor one = Tensor::scalar(static_cast<float>(strategy.worker().rank + 1));
      EXPECT_EQ(strategy.reduce(ReduceOp::kSum, PerReplica<Tensor>(one)).item(), 3);
      EXPECT_EQ(strategy.reduce(ReduceOp::kMean, PerReplica<Tensor>(one)).item(), 1.5);
      // Rows, however many each replica has.
      std::vector<Tensor> rows;
      for (std::int64_t r = 0; r < strategy.num_local_replicas(); ++r)
        rows.push_back(Tensor::full(DType::kF32, Shape{strategy.first_replica() + r + 1}, 2));
      EXPECT_EQ(strategy.reduce(ReduceOp::kSum, PerReplica<Tensor>(rows), 0).item(), 2 * total);
      EXPECT_EQ(strategy.reduce(ReduceOp::kMean, PerReplica<Tensor>(rows), 0).item(), 2);
    });
  }
}

TEST(Workers, GatherAndBroadcast) {
  expect_workers({.count = 2, .replicas = 2}, [](MirroredStrategy& strategy) {
    std::vector<Tensor> parts;
    for (const Tensor& number : numbers(strategy)) {
      const auto value = static_cast<float>(number.item());
      parts.push_back(Tensor::from(Shape{1, 2}, {value, -value}));
    }
    const Tensor down = strategy.gather(PerReplica<Tensor>(parts), 0);
    EXPECT_TRUE(down.bit_equal(Tensor::from(Shape{4, 2}, {1.F, -1.F, 2.F, -2.F, 3.F, -3.F, 4.F, -4.F})));
    const Tensor across = strategy.gather(PerReplica<Tensor>(parts), -1);
    EXPECT_TRUE(across.bit_equal(Tensor::from(Shape{1, 8}, {1.F, -1.F, 2.F, -2.F, 3.F, -3.F, 4.F, -4.F})));
    const Tensor rank = Tensor::scalar(static_cast<float>(strategy.worker().rank + 5));
    for (const Tensor& slot : strategy.broadcast(rank)) EXPECT_EQ(slot.item(), 5);
  });
}

TEST(Workers, CollectivesInTheCodeOfAReplica) {
  expect_workers({.count = 2, .replicas = 2}, [](MirroredStrategy& strategy) {
    const auto f = strategy.function({kScalar}, [](Value x) {
      const Value row = reshape(x, Shape{1});
      return std::tuple(replica_context().all_reduce(ReduceOp::kSum, x), replica_context().all_gather(row, 0),
                        broadcast_replica(x, 3), global_sum(row), global_mean(row));
    });
    const auto [sum, rows, third, total, mean] = f(numbers(strategy));
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(sum[r].item(), 10);
      EXPECT_TRUE(rows[r].bit_equal(vec({1, 2, 3, 4})));
      EXPECT_EQ(third[r].item(), 4);
      // Each has its share of what all have together.
      const auto number = static_cast<double>(strategy.first_replica()) + static_cast<double>(r) + 1;
      EXPECT_EQ(total[r].item(), number);
      EXPECT_EQ(mean[r].item(), number / 4);
    }
  });
}

TEST(Workers, MergeCallsSeeTheirOwnReplicas) {
  expect_workers({.count = 2, .replicas = 2}, [](MirroredStrategy& strategy) {
    const auto f = strategy.function({kScalar}, [](Value x) {
      return replica_context().merge_call(
          [](Strategy& all, PerReplica<Value> slots) {
            EXPECT_EQ(slots.size(), 2U);
            return all.reduce(ReduceOp::kSum, slots);
          },
          x);
    });
    const PerReplica<Tensor> sums = f(numbers(strategy));
    for (const Tensor& sum : sums) EXPECT_EQ(sum.item(), 10);
  });
}

// --- variables

TEST(Workers, VariablesStartAsTheFirstWorkerSays) {
  expect_workers({.count = 2}, [](MirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(static_cast<float>(strategy.worker().rank + 3)));
    EXPECT_EQ(w.value().item(), 3);
    w.assign(Tensor::scalar(static_cast<float>(10 + strategy.worker().rank)));
    EXPECT_EQ(w.value().item(), 10);
    w.assign_add(Tensor::scalar(static_cast<float>(1 + strategy.worker().rank)));
    EXPECT_EQ(w.value().item(), 11);
  });
}

TEST(Workers, VariablesOfEachReplicaAreReadOverAll) {
  for (const int replicas : {1, 2}) {
    expect_workers({.count = 2, .replicas = replicas}, [&](MirroredStrategy& strategy) {
      const auto scope = strategy.scope();
      const auto on_read = [](Aggregation aggregation) {
        return VariableOptions{.synchronization = Synchronization::kOnRead, .aggregation = aggregation};
      };
      const Variable sum("sum", Tensor::scalar(0.F), on_read(Aggregation::kSum)),
          mean("mean", Tensor::scalar(0.F), on_read(Aggregation::kMean)),
          first("first", Tensor::scalar(0.F), on_read(Aggregation::kOnlyFirstReplica));
      strategy.function({kScalar}, [&](Value x) {
        sum.assign_add(x);
        mean.assign_add(x);
        first.assign_add(x);
      })(numbers(strategy));
      const double n = 2 * replicas, total = n * (n + 1) / 2;
      EXPECT_EQ(sum.value().item(), total);
      EXPECT_EQ(mean.value().item(), total / n);
      EXPECT_EQ(first.value().item(), 1);
      const auto read =
          strategy.cross_function({}, [&] { return std::tuple(sum.read(), mean.read(), first.read()); });
      const auto [s, m, f] = read();
      EXPECT_EQ(s.values()[0].item(), total);
      EXPECT_EQ(m.values()[0].item(), total / n);
      EXPECT_EQ(f.values()[0].item(), 1);
      // Assigned what all of them are to be together.
      strategy.cross_function({}, [&] { sum.assign(current_builder()->constant(12.F)); })();
      EXPECT_EQ(sum.value().item(), 12);
    });
  }
}

TEST(Workers, AggregationsAreOfAllReplicas) {
  expect_workers({.count = 2}, [](MirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable sum("sum", Tensor::scalar(0.F), {.aggregation = Aggregation::kSum}),
        mean("mean", Tensor::scalar(0.F), {.aggregation = Aggregation::kMean}),
        first("first", Tensor::scalar(0.F), {.aggregation = Aggregation::kOnlyFirstReplica}),
        none("none", Tensor::scalar(0.F));
    strategy.function({kScalar}, [&](Value x) {
      sum.assign(x);
      mean.assign(x);
      first.assign(x);
    })(numbers(strategy));
    EXPECT_EQ(sum.value().item(), 3);
    EXPECT_EQ(mean.value().item(), 1.5);
    EXPECT_EQ(first.value().item(), 1);
    EXPECT_THAT(error_of([&] { strategy.function({kScalar}, [&](Value x) { none.assign(x); }); }),
                HasSubstr("must specify an aggregation"));
  });
}

// --- what differs between workers is refused before it runs

TEST(Workers, WhatDriftsApartIsRefused) {
  expect_workers({.count = 2}, [](MirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F));
    const std::string error = error_of(
        [&] { strategy.cross_function({kScalar}, [&](PerReplica<Value> x) { w.assign(x[0] * 2.F); }); });
    EXPECT_THAT(error, AllOf(HasSubstr("'w' would not stay equal on all workers"),
                             HasSubstr("workers_test.cpp"), HasSubstr("an input of one worker")));
    // The sum is the same on all.
    const auto f = strategy.cross_function(
        {kScalar}, [&](PerReplica<Value> x) { w.assign(strategy.reduce(ReduceOp::kSum, x)); });
    f(numbers(strategy));
    EXPECT_EQ(w.value().item(), 3);
  });
}

TEST(Workers, ABranchWithACollectiveNeedsOnePredicate) {
  expect_workers({.count = 2}, [](MirroredStrategy& strategy) {
    const auto branch = [&](bool all) {
      return strategy.function({kScalar}, [&](Value x) {
        const Value deciding = all ? replica_context().all_reduce(ReduceOp::kSum, x) : x;
        return cond(
            deciding > 1.5F, [&] { return std::vector{replica_context().all_reduce(ReduceOp::kSum, x)}; },
            [&] { return std::vector{x}; })[0];
      });
    };
    EXPECT_THAT(error_of([&] { branch(false); }),
                AllOf(HasSubstr("workers"), HasSubstr("all_reduce the predicate")));
    EXPECT_EQ(branch(true)(numbers(strategy)).values()[0].item(), 3);
  });
}

TEST(Workers, SharedInputsAreThoseOfTheFirst) {
  expect_workers({.count = 2}, [](MirroredStrategy& strategy) {
    const auto scope = strategy.scope();
    const Variable w("w", Tensor::scalar(0.F), {.aggregation = Aggregation::kMean});
    const auto f =
        strategy.function({InputSpec(DType::kF32, Shape{}, "rate", true), kScalar}, [&](Value rate, Value x) {
          w.assign_add(rate);
          return rate * x;
        });
    const Tensor rate = Tensor::scalar(static_cast<float>(strategy.worker().rank + 2));
    const PerReplica<Tensor> y = f(PerReplica<Tensor>(rate), numbers(strategy));
    EXPECT_EQ(y[0].item(), 2 * (strategy.worker().rank + 1));
    EXPECT_EQ(w.value().item(), 2);
  });
}

TEST(Workers, GraphsAreDistributedOverAll) {
  expect_workers({.count = 2, .replicas = 2}, [](MirroredStrategy& strategy) {
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {kUnknown}),
                rate = b.placeholder("rate", DType::kF32, {});
    b.result(all_reduce(ReduceOp::kSum, sum(x)) * rate);
    Step step = strategy.distribute(b.finish(), {"rate"});
    std::vector<Tensor> parts;
    for (const Tensor& number : numbers(strategy)) parts.push_back(number.reshape(Shape{1}));
    const std::vector<PerReplica<Tensor>> results = step.run(
        std::vector{PerReplica<Tensor>(Tensor::scalar(static_cast<float>(strategy.worker().rank + 2))),
                    PerReplica<Tensor>(parts)});
    for (const Tensor& slot : results[0]) EXPECT_EQ(slot.item(), 20);
  });
}

TEST(Workers, AnErrorOfOneEndsTheOthers) {
  const std::vector<std::string> errors = run_workers({.count = 3}, [](MirroredStrategy& strategy) {
    const auto f = strategy.function(
        {kScalar}, [](Value x) { return replica_context().all_reduce(ReduceOp::kSum, check_finite(x)); });
    f(numbers(strategy));
    if (strategy.worker().rank == 1) throw InvalidArgument("a mistake of one");
    f(numbers(strategy));
  });
  EXPECT_THAT(errors[1], HasSubstr("a mistake of one"));
  for (const std::size_t other : {std::size_t{0}, std::size_t{2}})
    EXPECT_THAT(errors[other], HasSubstr("left"));
}

TEST(Workers, NeedAGroupThatFits) {
  EXPECT_THAT(error_of([] { MirroredStrategy({.base = {.worker = {.rank = 0, .count = 2}}}); }),
              HasSubstr("world"));
  EXPECT_THAT(error_of([] { MirroredStrategy({.base = {.worker = {.rank = 2, .count = 2}}}); }),
              HasSubstr("worker 2 of 2 does not exist"));
  InProcessGroup one(1);
  RuntimeOptions options;
  options.groups.emplace("world", std::make_shared<Group>(one.join(0)));
  const Runtime runtime(std::move(options));
  EXPECT_THAT(
      error_of([&] { MirroredStrategy({.base = {.runtime = runtime, .worker = {.rank = 1, .count = 2}}}); }),
      HasSubstr("worker 1 of 2, and member 0 of the 1"));
}

}  // namespace
}  // namespace lockstep

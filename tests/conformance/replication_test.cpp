// N replicas are one device on the joined batch: for every model, number of replicas, way to reduce, bucket size and split.
#include <cmath>
#include <memory>

#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/one_device.h"
#include "support/replica_models.h"

namespace lockstep {
namespace {

using testing::random_f64;
using testing::ReplicaModel;

constexpr int kSteps = 20;

using MakeModel = std::function<ReplicaModel()>;
const std::vector<MakeModel> kModels = {testing::mlp_model,
                                        testing::cnn_model,
                                        testing::transformer_model,
                                        testing::k_means_model,
                                        [] { return testing::random_model(1); },
                                        [] { return testing::random_model(2); },
                                        [] { return testing::random_model(3); }};

std::unique_ptr<Optimizer> make_optimizer(const std::string& name) {
  if (name == "sgd") return std::make_unique<Sgd>(0.05);
  if (name == "momentum") return std::make_unique<Momentum>(0.02, 0.9, true);
  return std::make_unique<Adam>(0.01);
}

auto train_function(Strategy& strategy, const ReplicaModel& model, const std::string& optimizer) {
  return strategy.function(model.inputs, [&](std::span<const Value> in) {
    const Value loss = model.loss(in);
    if (!model.updates_itself) {
      const std::vector<VariableRef> variables(model.variables.begin(), model.variables.end());
      make_optimizer(optimizer)->minimize(loss, variables);
    }
    return loss;
  });
}

// The rows of each replica in one step: any split of a few rows, uneven, partial or empty.
std::vector<std::int64_t> split_of(int step, std::size_t replicas) {
  std::vector<std::int64_t> rows(replicas);
  for (std::size_t r = 0; r < replicas; ++r)
    rows[r] = step % 4 == 0 ? 2 : static_cast<std::int64_t>((static_cast<std::size_t>(step) * 5 + r * 3) % 4);
  if (replicas == 1) rows[0] = 4;
  return rows;
}

struct Trained {
  std::vector<Tensor> variables;
  std::vector<double> losses;
};

// Trains on the joined batches of `replicas` replicas.
Trained train_joined(const MakeModel& make, const std::string& optimizer, std::size_t replicas) {
  OneDeviceStrategy strategy;
  auto scope = strategy.scope();
  const ReplicaModel model = make();
  const auto step = train_function(strategy, model, optimizer);
  Trained run;
  for (int s = 0; s < kSteps; ++s) {
    std::int64_t total = 0;
    for (const std::int64_t rows : split_of(s, replicas)) total += rows;
    std::vector<PerReplica<Tensor>> feeds;
    for (std::size_t i = 0; i < model.rows.size(); ++i) {
      feeds.emplace_back(random_f64(model.rows[i].shape.with_inserted(0, total),
                                    static_cast<std::uint64_t>(s * 100) + i, 1));
    }
    run.losses.push_back(step.call(feeds)[0].item());
  }
  for (const Variable& variable : model.variables) run.variables.push_back(variable.value());
  return run;
}

Trained train_mirrored(const MakeModel& make, const std::string& optimizer, std::size_t replicas,
                       MirroredOptions options) {
  std::vector<std::string> devices;
  for (std::size_t r = 0; r < replicas; ++r) devices.push_back("cpu:" + std::to_string(r));
  options.devices = devices;
  MirroredStrategy strategy(std::move(options));
  auto scope = strategy.scope();
  const ReplicaModel model = make();
  const auto step = train_function(strategy, model, optimizer);
  Trained run;
  for (int s = 0; s < kSteps; ++s) {
    const std::vector<std::int64_t> split = split_of(s, replicas);
    std::int64_t total = 0;
    for (const std::int64_t rows : split) total += rows;
    std::vector<PerReplica<Tensor>> feeds;
    for (std::size_t i = 0; i < model.rows.size(); ++i) {
      const Tensor all =
          random_f64(model.rows[i].shape.with_inserted(0, total), static_cast<std::uint64_t>(s * 100) + i, 1);
      std::vector<Tensor> slices;
      std::int64_t first = 0;
      for (const std::int64_t rows : split) {
        slices.push_back(all.slice(first, first + rows));
        first += rows;
      }
      feeds.emplace_back(std::move(slices));
    }
    const PerReplica<Tensor> loss = step.call(feeds);
    run.losses.push_back(replicas == 1 ? loss[0].item() : strategy.reduce(ReduceOp::kSum, loss).item());
    for (const Variable& variable : model.variables) {
      const PerReplica<Tensor> copies = variable.copies();
      for (const Tensor& copy : copies)
        EXPECT_TRUE(copy.bit_equal(copies[0])) << variable.name() << " differs after step " << s;
    }
  }
  for (const Variable& variable : model.variables) run.variables.push_back(variable.value());
  return run;
}

double distance(const Tensor& a, const Tensor& b) {
  double apart = 0, size = 0;
  const auto x = a.data<double>(), y = b.data<double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    apart += (x[i] - y[i]) * (x[i] - y[i]);
    size += x[i] * x[i];
  }
  return std::sqrt(apart) / std::max(std::sqrt(size), 1e-300);
}

void expect_close(const Trained& a, const Trained& b, double tolerance, const std::string& what) {
  ASSERT_EQ(a.variables.size(), b.variables.size());
  for (std::size_t i = 0; i < a.variables.size(); ++i)
    EXPECT_LE(distance(a.variables[i], b.variables[i]), tolerance) << what << ", variable " << i;
  for (std::size_t s = 0; s < a.losses.size(); ++s)
    EXPECT_NEAR(a.losses[s], b.losses[s], tolerance * std::max(1.0, std::abs(a.losses[s])))
        << what << ", step " << s;
}

void expect_same_bits(const Trained& a, const Trained& b, const std::string& what) {
  for (std::size_t i = 0; i < a.variables.size(); ++i)
    EXPECT_TRUE(a.variables[i].bit_equal(b.variables[i])) << what << ", variable " << i;
  EXPECT_EQ(a.losses, b.losses) << what;
}

class Replication : public ::testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {};

TEST_P(Replication, EqualsOneDeviceOnTheJoinedBatch) {
  const auto& [model, replicas] = GetParam();
  for (const std::string optimizer : {"sgd", "momentum", "adam"}) {
    const double tolerance = optimizer == "adam" ? 1e-8 : 1e-12;
    const Trained joined = train_joined(kModels[model], optimizer, replicas);
    const Trained shared = train_mirrored(kModels[model], optimizer, replicas, {});
    expect_close(joined, shared, tolerance, optimizer + ", shared");
    const Trained apart = train_mirrored(kModels[model], optimizer, replicas, {.share_mirrored = false});
    expect_close(joined, apart, tolerance, optimizer + ", apart");
    expect_same_bits(shared, apart, optimizer + ": shared and apart");
  }
}

TEST_P(Replication, DoesNotDependOnBucketsOrThreads) {
  const auto& [model, replicas] = GetParam();
  const Trained plain = train_mirrored(kModels[model], "momentum", replicas, {});
  for (const std::int64_t bytes : {0, 1, 100}) {
    expect_same_bits(plain, train_mirrored(kModels[model], "momentum", replicas, {.bytes_per_pack = bytes}),
                     "bytes_per_pack " + std::to_string(bytes));
  }
  expect_same_bits(plain, train_mirrored(kModels[model], "momentum", replicas, {.num_packs = 2}),
                   "num_packs 2");
  expect_same_bits(plain, train_mirrored(kModels[model], "momentum", replicas, {.optimize = false}),
                   "not optimized");
  for (const std::size_t threads : {1U, 3U}) {
    MirroredOptions options;
    options.runtime = Runtime({.threads = threads, .cpu_devices = replicas});
    options.compile.inline_seconds = 0;
    expect_same_bits(plain, train_mirrored(kModels[model], "momentum", replicas, options),
                     std::to_string(threads) + " threads");
  }
}

TEST_P(Replication, HoldsForEveryWayToReduce) {
  const auto& [model, replicas] = GetParam();
  const Trained joined = train_joined(kModels[model], "sgd", replicas);
  for (const std::string ops : {"shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring"}) {
    for (const bool share : {true, false}) {
      expect_close(
          joined,
          train_mirrored(kModels[model], "sgd", replicas, {.cross_device_ops = ops, .share_mirrored = share}),
          1e-12, ops + (share ? ", shared" : ", apart"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Replication,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 7),
                                            ::testing::Values<std::size_t>(1, 2, 3, 4, 8)));

// More replicas than threads: nobody waits for anybody.
TEST(ManyReplicas, RunOnFewThreads) {
  for (const std::size_t threads : {1U, 2U}) {
    MirroredOptions options;
    options.runtime = Runtime({.threads = threads, .cpu_devices = 32});
    options.compile.inline_seconds = 0;
    const Trained many = train_mirrored(testing::mlp_model, "sgd", 32, options);
    expect_close(train_joined(testing::mlp_model, "sgd", 32), many, 1e-12,
                 std::to_string(threads) + " threads");
  }
}

}  // namespace
}  // namespace lockstep

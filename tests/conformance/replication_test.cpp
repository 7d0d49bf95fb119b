// Tests: strategies/central_storage.cpp, strategies/mirrored.cpp, strategies/one_device.cpp
// N replicas are one device on the joined batch: for every model, number of replicas, way to reduce, bucket
// size and split.
#include <cmath>
#include <memory>

#include <gtest/gtest.h>

#include "lockstep/core/runtime.h"
#include "lockstep/strategies/mirrored.h"
#include "support/replica_models.h"
#include "support/test_devices.h"

namespace lockstep {
namespace {

using testing::random_f64;
using testing::ReplicaModel;
using testing::test_devices;

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
  if (name == "momentum") return std::make_unique<Momentum>(0.02, 0.9);
  if (name == "nesterov") return std::make_unique<Momentum>(0.02, 0.9, true);
  if (name == "adagrad") return std::make_unique<Adagrad>(0.05);
  if (name == "rmsprop")
    return std::make_unique<RmsProp>(0.01, RmsPropOptions{.momentum = 0.5, .centered = true});
  if (name == "adamw") return std::make_unique<AdamW>(0.01);
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

// All copies that replicas keep equal, slots of optimizers too, are; gives their number.
int expect_equal_copies(Strategy& strategy, const Graph& graph, const std::string& when) {
  int copies = 0;
  for (const VariableDecl& decl : graph.variables()) {
    if (decl.copy_of.empty() || decl.synchronization == Synchronization::kOnRead) continue;
    EXPECT_TRUE(strategy.variables().value(decl.name).bit_equal(strategy.variables().value(decl.copy_of)))
        << decl.name << " differs " << when;
    ++copies;
  }
  return copies;
}

// Trains on the joined batches of `replicas` replicas.
Trained train_joined(const MakeModel& make, const std::string& optimizer, std::size_t replicas,
                     const std::string& step_passes = {}) {
  MirroredStrategy strategy({.devices = test_devices(1), .step_passes = step_passes});
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
    const int copies =
        expect_equal_copies(strategy, step.replicated_graph(), "after step " + std::to_string(s));
    EXPECT_GE(copies, static_cast<int>((replicas - 1) * model.variables.size()));
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
  // The small one is trained by all of them.
  std::vector<std::string> optimizers = {"sgd", "nesterov", "adam"};
  if (model == 0) optimizers.insert(optimizers.end(), {"momentum", "adagrad", "rmsprop", "adamw"});
  for (const std::string& optimizer : optimizers) {
    const bool plain = optimizer == "sgd" || optimizer == "momentum" || optimizer == "nesterov";
    const double tolerance = plain ? 1e-12 : 1e-8;
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
    options.base.runtime = Runtime({.threads = threads, .cpu_devices = replicas});
    options.base.compile.inline_seconds = 0;
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

// Every way to reduce has bits of its own, whatever the threads and the buckets.
TEST(WaysToReduce, DoNotDependOnBucketsOrThreads) {
  constexpr std::size_t kReplicas = 3;
  for (const std::string ops : {"shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring"}) {
    const auto train = [&](MirroredOptions options) {
      options.cross_device_ops = ops;
      return train_mirrored(testing::mlp_model, "momentum", kReplicas, std::move(options));
    };
    const Trained plain = train({});
    for (const std::int64_t bytes : {0, 1, 100})
      expect_same_bits(plain, train({.bytes_per_pack = bytes}),
                       ops + ", bytes_per_pack " + std::to_string(bytes));
    for (const std::size_t threads : {1U, 3U}) {
      MirroredOptions options;
      options.base.runtime = Runtime({.threads = threads, .cpu_devices = kReplicas});
      options.base.compile.inline_seconds = 0;
      expect_same_bits(plain, train(std::move(options)), ops + ", " + std::to_string(threads) + " threads");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Replication,
                         ::testing::Combine(::testing::Range<std::size_t>(0, 7),
                                            ::testing::Values<std::size_t>(1, 2, 3, 4, 8)));

// More replicas than threads: nobody waits for anybody.
TEST(ManyReplicas, RunOnFewThreads) {
  const Trained joined = train_joined(testing::mlp_model, "sgd", 32);
  for (const std::size_t threads : {1U, 2U}) {
    const Runtime runtime({.threads = threads, .cpu_devices = 32});
    for (const std::string ops : {"shared_memory", "reduction_to_one_device", "hierarchical_copy", "ring"}) {
      MirroredOptions options{.cross_device_ops = ops, .share_mirrored = threads == 2};
      options.base.runtime = runtime;
      options.base.compile.inline_seconds = 0;
      expect_close(joined, train_mirrored(testing::mlp_model, "sgd", 32, options), 1e-12,
                   ops + " on " + std::to_string(threads) + " threads");
    }
  }
}

// Passes on the step before it is distributed: the norm is that of the whole batch, and what is gathered over
// steps is reduced once.
TEST(StepPasses, AreThoseOfOneDevice) {
  for (const std::string passes : {"clip-by-global-norm(norm=0.05)", "accumulate-gradients(steps=3)",
                                   "accumulate-gradients(steps=2),clip-by-global-norm(norm=0.05)",
                                   "clip-by-global-norm(norm=0.05),accumulate-gradients(steps=2)"}) {
    for (const std::string optimizer : {"sgd", "nesterov", "adam"}) {
      const double tolerance = optimizer == "adam" ? 1e-8 : 1e-12;
      const Trained joined = train_joined(testing::mlp_model, optimizer, 3, passes);
      for (const bool share : {true, false}) {
        expect_close(joined,
                     train_mirrored(testing::mlp_model, optimizer, 3,
                                    {.share_mirrored = share, .step_passes = passes}),
                     tolerance, passes + ", " + optimizer + (share ? ", shared" : ", apart"));
      }
    }
  }
  // They do something: a norm that is never reached changes no bits, this one does.
  const Trained plain = train_joined(testing::mlp_model, "sgd", 3);
  expect_same_bits(plain, train_joined(testing::mlp_model, "sgd", 3, "clip-by-global-norm(norm=1e9)"),
                   "no clipping");
  EXPECT_FALSE(plain.variables[0].bit_equal(
      train_joined(testing::mlp_model, "sgd", 3, "clip-by-global-norm(norm=0.05)").variables[0]));
}

// Several steps with the reductions between them in one graph, written out and as a loop: an outer function
// that calls run() and reduce().
class Epoch : public ::testing::TestWithParam<std::tuple<bool, std::string>> {
 protected:
  static constexpr std::int64_t kBatches = 4;
  enum class As { kOneByOne, kGraph, kLoop };

  // What the variables are in the end, and the sum of the losses.
  static Trained train(As as, bool share, const std::string& optimizer) {
    MirroredStrategy strategy({.devices = test_devices(3), .share_mirrored = share});
    auto scope = strategy.scope();
    const ReplicaModel model = testing::mlp_model();
    const auto step = [&](Value x, Value y) {
      const Value in[] = {x, y};
      const Value loss = model.loss(in);
      const std::vector<VariableRef> variables(model.variables.begin(), model.variables.end());
      make_optimizer(optimizer)->minimize(loss, variables);
      return loss;
    };
    // All batches of a replica in one tensor; the first replica's are empty.
    std::vector<PerReplica<Tensor>> data;
    std::vector<InputSpec> inputs;
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<Tensor> slots;
      for (std::int64_t r = 0; r < 3; ++r) {
        const Shape shape = model.rows[i].shape.with_inserted(0, r).with_inserted(0, kBatches);
        slots.push_back(random_f64(shape, static_cast<std::uint64_t>(r) * 2 + i));
      }
      data.emplace_back(std::move(slots));
      const Shape& batch = model.inputs[i].spec.shape;
      inputs.emplace_back(DType::kF64, batch.with_inserted(0, kBatches), model.inputs[i].name);
    }
    const auto batch_of = [](const PerReplica<Value>& all, const Value& number) {
      std::vector<Value> slots;
      for (const Value& slot : all) slots.push_back(gather(slot, number));
      return PerReplica<Value>(std::move(slots));
    };
    Trained run;
    if (as == As::kOneByOne) {
      const auto one = strategy.function(model.inputs, step);
      double total = 0;
      for (std::int64_t b = 0; b < kBatches; ++b) {
        std::vector<PerReplica<Tensor>> fed;
        for (const PerReplica<Tensor>& all : data) {
          std::vector<Tensor> slots;
          for (const Tensor& slot : all) {
            const Tensor batch = slot.slice(b, b + 1);
            slots.push_back(batch.reshape(batch.shape().without_dim(0)));
          }
          fed.emplace_back(std::move(slots));
        }
        total += strategy.reduce(ReduceOp::kSum, one.call(fed)).item();
      }
      run.losses = {total};
    } else {
      const auto epoch = strategy.cross_function(inputs, [&](std::span<const PerReplica<Value>> in) {
        GraphBuilder& b = *current_builder();
        const auto trained = [&](const Value& total, const Value& number) {
          const PerReplica<Value> loss = strategy.run(step, batch_of(in[0], number), batch_of(in[1], number));
          return total + strategy.reduce(ReduceOp::kSum, loss);
        };
        Value total = b.constant(0.0);
        if (as == As::kGraph) {
          for (std::int64_t i = 0; i < kBatches; ++i) total = trained(total, b.constant(Tensor::scalar(i)));
          return total;
        }
        const Value initial[] = {b.constant(Tensor::scalar(std::int64_t{0})), total};
        return while_loop(
            initial, [](std::span<const Value> c) { return c[0] < kBatches; },
            [&](std::span<const Value> c) -> std::vector<Value> {
              return {c[0] + 1, trained(c[1], c[0])};
            })[1];
      });
      run.losses = {epoch.call(data)[0].item()};
      EXPECT_GT(expect_equal_copies(strategy, epoch.replicated_graph(), "after the epoch"), 0);
    }
    for (const Variable& variable : model.variables) run.variables.push_back(variable.value());
    return run;
  }
};

TEST_P(Epoch, AsOneGraphIsItsStepsOneByOne) {
  const auto& [share, optimizer] = GetParam();
  const Trained steps = train(As::kOneByOne, share, optimizer);
  expect_same_bits(steps, train(As::kGraph, share, optimizer), "written out");
  expect_same_bits(steps, train(As::kLoop, share, optimizer), "as a loop");
}

INSTANTIATE_TEST_SUITE_P(Sharing, Epoch,
                         ::testing::Combine(::testing::Bool(), ::testing::Values("sgd", "adam")));

}  // namespace
}  // namespace lockstep

// Tests: graph/run/plan.cpp, graph/run/phase_plan.cpp, graph/run/storage_plan.cpp, graph/run/transfer.cpp,
//        graph/run/variable_plan.cpp, graph/run/region_kernels.cpp
// A graph, the same bits, wherever its nodes, variables, feeds and results are.
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/central_storage.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/strategies/passes/register.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/far_devices.h"
#include "support/program_test.h"
#include "support/random_graph.h"
#include "support/sanitizers.h"
#include "support/training.h"

namespace lockstep {
namespace {

using testing::expect_same_tensors;
using testing::expect_same_values;
using testing::feeds_for;
using testing::Values;
using testing::variables_of;

// How GPUs work: a kernel is done when its call returns, or runs later, on a stream.
enum class Gpus : std::uint8_t { kAtOnce, kStreams };

// cpu:0, cpu:1, ...; gpu:0 and gpu:2 in one memory, gpu:1 in another.
Runtime runtime_with(Gpus gpus, RuntimeOptions options = {.threads = 2, .cpu_devices = 2}) {
  if (gpus == Gpus::kAtOnce) return testing::far_runtime(std::move(options));
  const auto fake =
      std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 3, .memories = {0, 1, 0}});
  fake->set_delays(std::chrono::microseconds(20), options.seed);
  options.backends = {fake};
  return Runtime(std::move(options));
}

class Places : public ::testing::TestWithParam<Gpus> {
 protected:
  Places() { testing::FakeGpu::add_kernels(); }  // those that every GPU has
};

INSTANTIATE_TEST_SUITE_P(Gpus, Places, ::testing::Values(Gpus::kAtOnce, Gpus::kStreams),
                         [](const auto& given) {
                           return given.param == Gpus::kAtOnce ? "AtOnce" : "Streams";
                         });

class Scatter {
 public:
  explicit Scatter(std::uint64_t seed) : engine_(seed) {}

  void nodes(Graph& graph) {
    for (std::size_t i = 0; i < graph.id_bound(); ++i) {
      const NodeId id(i);
      if (!graph.contains(id)) continue;
      graph.set_device(id, device_for(graph.node(id).op()));
      for (std::size_t r = 0; r < graph.node(id).regions().size(); ++r) nodes(graph.region(id, r));
    }
  }
  void variables(Graph& graph) {
    for (VariableDecl decl : std::vector<VariableDecl>(graph.variables())) {
      decl.device = one_of();
      graph.redeclare_variable(std::move(decl));
    }
  }
  std::vector<Tensor> feeds(std::vector<Tensor> tensors, const Runtime& runtime) {
    for (Tensor& tensor : tensors) tensor = tensor.to(Device::parse(one_of()), runtime);
    return tensors;
  }
  std::string one_of() {
    static const std::vector<std::string> names = {"/cpu:0", "/cpu:1", "/gpu:0", "/gpu:1", "/gpu:2"};
    return Device::parse(names[engine_() % names.size()].substr(1)).to_string();
  }

 private:
  // Regions are run by the host, whatever the device.
  std::string device_for(const OpDef& op) {
    const bool anywhere = op.region_kind != RegionKind::kNone || OpRegistry::global().kernel(op, "fake");
    const std::string name = one_of();
    return anywhere ? name : Device::parse("cpu:0").to_string();
  }

  std::mt19937_64 engine_;
};

void expect_same_everywhere(const Graph& graph, std::uint64_t seed, const Runtime& runtime,
                            CompileOptions options) {
  constexpr std::size_t kSteps = 3;
  Interpreter interpreter(graph, {.seed = 11});
  Graph placed = graph;
  Scatter scatter(seed);
  scatter.nodes(placed);
  scatter.variables(placed);
  options.variables = std::make_shared<VariableStore>();
  options.replicas_in_turn = true;  // as the interpreter runs them
  const Program program = compile(placed, runtime, options);
  for (std::size_t step = 0; step < kSteps; ++step) {
    const std::vector<Tensor> expected = interpreter.run(feeds_for(graph, step));
    const std::vector<Tensor> feeds = scatter.feeds(feeds_for(graph, step), runtime);
    expect_same_tensors(program.run(feeds), expected);
    expect_same_values(variables_of(*options.variables), interpreter.variables());
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", step " << step;
  }
}

TEST_P(Places, RandomGraphsGiveTheSameBitsWhereverTheirNodesAre) {
  const Runtime runtime = runtime_with(GetParam(), {.threads = 2, .cpu_devices = 2, .seed = 11});
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Graph graph = testing::random_graph({.seed = seed, .nodes = 25, .regions = 2});
    expect_same_everywhere(graph, seed, runtime, seed % 2 == 0 ? CompileOptions() : testing::with_lanes());
    if (HasFailure()) return;
  }
}

TEST_P(Places, LargeValuesInShards) {
  const Runtime runtime = runtime_with(GetParam(), {.threads = 2, .cpu_devices = 2, .seed = 11});
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Graph graph = testing::random_graph({.seed = seed, .nodes = 15, .elements = 300'000});
    expect_same_everywhere(graph, seed, runtime, testing::with_lanes());
    if (HasFailure()) return;
  }
}

// Collectives that nothing lowered leave each replica's values where its own input was.
TEST_P(Places, CollectivesOverSeveralMemories) {
  register_strategy_passes();
  const Runtime runtime = runtime_with(GetParam());
  for (const char* lowering :
       {"", ",lower-collectives(ops=ring)", ",lower-collectives(ops=reduction_to_one_device)"}) {
    Graph graph = testing::replicated_step(3);
    Graph placed = graph;
    const std::string common = "mirror-variables,insert-all-reduce,replicate";
    PassRegistry::global().parse_pipeline(common).run(graph);
    PassContext context{.topology = &runtime.topology()};
    PassRegistry::global()
        .parse_pipeline(str(common, ",place(devices=[gpu:0,gpu:1,gpu:2]),prove-sync,order-collectives",
                            lowering, ",insert-copies"))
        .run(placed, context);
    const Program program = compile(placed, runtime, {.variables = std::make_shared<VariableStore>()});
    Interpreter interpreter(graph);
    for (std::uint64_t step = 0; step < 3; ++step) {
      std::vector<Tensor> feeds;
      for (const NodeId id : graph.parameters()) {
        const bool rows = graph.node(id).outputs()[0].dtype == DType::kI64;
        const testing::Batch batch = testing::make_batch(4, step * 10 + id.index() / 2);
        feeds.push_back(rows ? batch.rows : batch.x);
      }
      interpreter.run(feeds);
      program.run(feeds);
      if (std::string_view(lowering).empty())
        expect_same_values(variables_of(program.variables()), interpreter.variables());
      for (const auto& [name, value] : interpreter.variables())
        testing::expect_close(value, program.variables().value(name), name);
    }
    if (HasFailure()) FAIL() << lowering;
  }
}

// A whole training step over GPUs: with the losses, variables and optimizer slots of the same step over CPUs.
template <class Strategy>
std::vector<Tensor> trained(Strategy& strategy) {
  auto scope = strategy.scope();
  Variable w("w", Tensor::full(DType::kF32, {8, 4}, 0.03));
  Variable bias("bias", Tensor::full(DType::kF32, {4}, 0.1));
  Variable seen("seen", Tensor::scalar(0.F),
                {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  Adam adam(0.01);
  auto step = strategy.function({{DType::kF32, {kUnknown, 8}, "x"}}, [&](const Value& x) {
    const Value h = tanh(matmul(dropout(x, 0.25), w.read()) + bias.read());
    const Value loss = global_mean(square(h - 0.5));
    adam.minimize(loss, {w, bias});
    seen.assign_add(sum(x));
    return loss;
  });
  std::vector<Tensor> values;
  const auto replicas = static_cast<std::size_t>(strategy.num_replicas_in_sync());
  for (std::uint64_t i = 0; i < 4; ++i) {
    std::vector<Tensor> batches;
    for (std::uint64_t r = 0; r < replicas; ++r)
      batches.push_back(testing::random_tensor({DType::kF32, {5, 8}}, i * 10 + r));
    const PerReplica<Tensor> losses = step(PerReplica<Tensor>(batches));
    for (const Tensor& loss : losses) values.push_back(loss.host());
    values.push_back(strategy.reduce(ReduceOp::kMean, losses).host());
  }
  bias.assign(Tensor::full(DType::kF32, {4}, 2.0));
  bias.assign_add(Tensor::full(DType::kF32, {4}, 1.0));
  for (const Variable& variable : {w, bias, seen}) values.push_back(variable.value());
  for (const std::string& name : strategy.variables().names())
    values.push_back(strategy.variables().value(name));
  return values;
}

template <class Strategy>
std::vector<Tensor> trained_on(const std::vector<std::string>& devices, Gpus gpus) {
  MirroredOptions options{.devices = devices};
  options.base.runtime = runtime_with(gpus, {.threads = 2, .cpu_devices = 4, .seed = 3});
  Strategy strategy(options);
  return trained(strategy);
}

TEST_P(Places, MirroredTrainingOnGpusEqualsThatOnCpus) {
  const std::vector<Tensor> one_memory =
      trained_on<MirroredStrategy>({"cpu:0", "cpu:1", "cpu:2"}, GetParam());
  // gpu:0 and gpu:2 share a memory.
  expect_same_tensors(trained_on<MirroredStrategy>({"gpu:0", "gpu:2", "gpu:1"}, GetParam()), one_memory);
  expect_same_tensors(trained_on<MirroredStrategy>({"gpu:1", "gpu:0", "gpu:2"}, GetParam()), one_memory);
}

TEST_P(Places, MirroredStrategyTakesEveryGpuOfItsRuntime) {
  MirroredOptions options;
  options.base.runtime = runtime_with(GetParam(), {.threads = 2, .seed = 3});
  MirroredStrategy strategy(options);
  EXPECT_EQ(strategy.worker_devices(), (std::vector<std::string>{"gpu:0", "gpu:1", "gpu:2"}));
  expect_same_tensors(trained(strategy),
                      trained_on<MirroredStrategy>({"cpu:0", "cpu:1", "cpu:2"}, GetParam()));
}

// Cards that NCCL connects, each replica on one of its own: the group of the fake sums in the order of the replicas.
TEST(ConnectedGpus, MirroredTrainingEqualsThatOnCpus) {
  const std::vector<std::string> cpus = {"cpu:0", "cpu:1", "cpu:2", "cpu:3"};
  const std::vector<Tensor> expected = trained_on<MirroredStrategy>(cpus, Gpus::kAtOnce);
  for (const std::int64_t packs : {0, 1, 2}) {
    const auto fake =
        std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 4, .connected = true});
    fake->set_delays(std::chrono::microseconds(20), 1);
    MirroredOptions options{.num_packs = packs};
    options.base.runtime = Runtime({.threads = 2, .seed = 3, .backends = {fake}});
    MirroredStrategy strategy(options);
    EXPECT_EQ(strategy.cross_device_choice().to_string(),
              "nccl: NCCL connects all 4 of them, each on a card of its own");
    expect_same_tensors(trained(strategy), expected);
  }
}

// Their kernels need not give the same bits, so copies of variables would drift apart.
TEST_P(Places, MirroringOverDevicesOfTwoKindsIsRefused) {
  EXPECT_THAT(testing::caught([&] {
                trained_on<MirroredStrategy>({"gpu:0", "cpu:0"}, GetParam());
              }).what,
              ::testing::HasSubstr("mirror over devices of one kind"));
}

TEST_P(Places, LogicalGpusOfOneCardShareTheirVariables) {
  expect_same_tensors(trained_on<MirroredStrategy>({"gpu:0", "gpu:2"}, GetParam()),
                      trained_on<MirroredStrategy>({"cpu:0", "cpu:1"}, GetParam()));
  MirroredOptions options{.devices = {"gpu:0", "gpu:2"}};
  const Runtime runtime = runtime_with(GetParam());
  options.base.runtime = runtime;
  MirroredStrategy strategy(options);
  trained(strategy);
  EXPECT_TRUE(strategy.variables().is_alias("w/replica_1"));
  EXPECT_EQ(strategy.variables().find("w")->memory(),
            runtime.topology().facts(Device::parse("gpu:0")).memory);
}

TEST_P(Places, CentralStorageKeepsVariablesOnItsDevice) {
  const std::vector<Tensor> cpus = trained_on<CentralStorageStrategy>({"cpu:0", "cpu:1"}, GetParam());
  expect_same_tensors(trained_on<CentralStorageStrategy>({"gpu:0", "gpu:1"}, GetParam()), cpus);
}

}  // namespace
}  // namespace lockstep

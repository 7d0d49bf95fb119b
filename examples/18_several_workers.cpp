// The classifier of digits over several processes, one of which is lost on the way.
//
//   worker 0:  half of each batch --> gradients --+
//                                                 all-reduce over Gloo --> the same update on both, the same bits as on one
//   worker 1:  half of each batch --> gradients --+
//
// Usage: lockstep launch -n 2 --restarts 1 -- ./18_several_workers [--quick] [--lose STEP] [--folder FOLDER]
//        --lose: worker 1 is killed after that step, the first time. The other one is told, leaves with status 42, and the launcher
//        starts both again; they go on from the newest checkpoint. What comes out is the same.
// Without a launcher there is one worker, with both replicas. SIGTERM to any worker: all save the same step and leave with status 42.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "glyphs.h"
#include "lockstep/core/cluster/cluster_from_environment.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kBatch = 256;
constexpr std::int64_t kReplicas = 2;  // of all workers together
constexpr std::uint64_t kBetweenCheckpoints = 20;
const InputSpec kImages(DType::kF32, {kUnknown, 784}, "x"), kLabels(DType::kI64, {kUnknown}, "y");

struct Settings {
  bool quick = false;
  std::uint64_t lose = 0;  // 0: nobody
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("lockstep-example-18-" + std::to_string(getppid()));
};

Settings settings_of(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") settings.quick = true;
    if (argument == "--lose" && i + 1 < argc) settings.lose = std::stoull(argv[++i]);
    if (argument == "--folder" && i + 1 < argc) settings.folder = argv[++i];
  }
  return settings;
}

// This worker's rows of what all replicas take.
PerReplica<Tensor> parts_of(const Strategy& strategy, const Tensor& batch) {
  std::vector<Tensor> parts;
  const std::int64_t rows = batch.shape()[0], all = strategy.num_replicas_in_sync();
  for (std::int64_t r = strategy.first_replica();
       r < strategy.first_replica() + strategy.num_local_replicas(); ++r)
    parts.push_back(batch.slice(rows * r / all, rows * (r + 1) / all));
  return PerReplica<Tensor>(std::move(parts));
}

bool is_first_start() {
  const char* const generation = std::getenv("LOCKSTEP_GENERATION");
  return generation == nullptr || std::string_view(generation) == "0";
}

// For the handler of SIGTERM.
std::atomic<MultiWorkerMirroredStrategy*> running{nullptr};
void stop_all(int) {
  if (MultiWorkerMirroredStrategy* const strategy = running.load()) strategy->want_stop();
}

// FNV-1a over the bits.
std::uint64_t digest_of(const std::vector<Variable>& variables) {
  std::uint64_t digest = 0xCBF29CE484222325U;
  for (const Variable& variable : variables) {
    const Tensor value = variable.value();
    for (std::size_t i = 0; i < value.num_bytes(); ++i)
      digest = (digest ^ static_cast<const unsigned char*>(value.raw())[i]) * 0x100000001B3U;
  }
  return digest;
}

int train(const Settings& settings) {
  const WorkerSpec me = cluster_from_environment().worker;
  const bool is_alone = me.count == 1;
  MultiWorkerMirroredStrategy strategy(
      {.lost = std::chrono::seconds(5),  // a busy machine may hold up a process for a second
       .mirrored = {.devices = is_alone ? DeviceList{"cpu:0", "cpu:1"} : DeviceList{"cpu:0"}}});
  if (strategy.num_replicas_in_sync() != kReplicas) {
    std::cerr << "this example is for one worker, or for two\n";
    return 1;
  }
  std::clog << strategy.description() << '\n';
  running = &strategy;
  std::signal(SIGTERM, stop_all);

  auto scope = strategy.scope();
  const Variable w1("w1", initializers::he_normal({784, 128}, 1)), b1("b1", initializers::zeros({128}));
  const Variable w2("w2", initializers::glorot_uniform({128, 10}, 2)), b2("b2", initializers::zeros({10}));
  const Adam adam(1e-3);
  const auto logits = [&](const Value& x) { return matmul(relu(matmul(x, w1) + b1), w2) + b2; };
  const auto step = strategy.function({kImages, kLabels}, [&](Value x, Value y) {
    adam.minimize(global_mean(softmax_cross_entropy(logits(x), y)), {w1, b1, w2, b2});
  });
  const auto right = strategy.function({kImages, kLabels}, [&](Value x, Value y) {
    return cast(equal(argmax(logits(x), -1), y), DType::kF32);
  });

  // All save, the first worker writes, and all read.
  WorkerCheckpoints checkpoints(strategy, settings.folder, {.keep = 2});
  if (const auto restored = checkpoints.restore_latest())
    std::cout << "goes on from step " << restored->report.step << std::endl;

  const glyphs::Set digits = glyphs::make(settings.quick ? 1024 : 8192, 1),
                    test = glyphs::make(settings.quick ? 200 : 2000, 2);
  const std::int64_t batches = digits.images.shape()[0] / kBatch;
  const std::uint64_t steps = settings.quick ? 50 : 300;
  while (strategy.variables().step() < steps && !strategy.is_stop_wanted()) {
    const std::int64_t first = static_cast<std::int64_t>(strategy.variables().step()) % batches * kBatch;
    step(parts_of(strategy, digits.images.slice(first, first + kBatch)),
         parts_of(strategy, digits.labels.slice(first, first + kBatch)));
    const std::uint64_t done = strategy.variables().step();
    if (done % kBetweenCheckpoints == 0 || strategy.is_stop_wanted()) checkpoints.save();
    if (me.rank == 1 && done == settings.lose && is_first_start()) std::raise(SIGKILL);
  }
  running = nullptr;
  checkpoints.wait();
  if (strategy.is_stop_wanted()) {
    std::clog << "stops after step " << strategy.variables().step() << '\n';
    return 42;
  }
  const double accuracy =
      strategy
          .reduce(ReduceOp::kMean, right(parts_of(strategy, test.images), parts_of(strategy, test.labels)), 0)
          .item();
  const std::uint64_t digest = digest_of({w1, b1, w2, b2});
  if (me.is_chief()) {
    std::cout << "weights " << std::hex << digest << std::dec << ", test accuracy " << std::fixed
              << std::setprecision(2) << 100 * accuracy << " %" << std::endl;
    if (settings.lose == 0) std::filesystem::remove_all(settings.folder);
  }
  return settings.quick || accuracy >= 0.95 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(settings_of(argc, argv));
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return error.code() == ErrorCode::kUnavailable ? 42 : 1;  // somebody is lost: start all of us again
  }
}

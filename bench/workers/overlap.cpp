// bench/workers/overlap.cpp - do exchanges of gradients go on while the step computes? Two workers on a link of a known speed, whose
// layers sleep in place of computing.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/strategies/multi_worker.h"
#include "participants.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

using namespace std::chrono_literals;

constexpr int kWorkers = 2, kLayers = 8, kBuckets = 4, kSteps = 12;
constexpr std::int64_t kLayerBytes = 256 << 10;
constexpr const char* kRate = "400mbit";

bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

std::string address_of(int rank) { return "10.78.0." + std::to_string(rank + 1); }

// Seconds of a step, the median, if each layer sleeps so long; of one worker alone, or of this one of two.
double measure(int rank, int workers, std::chrono::microseconds layer, const std::filesystem::path& folder) {
  MultiWorkerMirroredStrategy strategy(
      {.worker = WorkerSpec{.index = rank, .rank = rank, .count = workers},
       .communication = {.bytes_per_pack = kLayers / kBuckets * kLayerBytes - 1},
       .host = address_of(rank),
       .folder = folder.string(),
       .secret = "between us",
       .start = 60s,
       .lost = 5s,
       .runtime = {.threads = 1, .backends = {}}});
  const auto scope = strategy.scope();
  std::vector<Variable> weights;
  const TensorSpec spec{DType::kF32, {kLayerBytes / 4}};
  for (int i = 0; i < kLayers; ++i)
    weights.emplace_back("w" + std::to_string(i), Tensor::zeros(spec.dtype, spec.shape),
                         VariableOptions{.aggregation = Aggregation::kMean});
  const auto step = strategy.function({spec}, [&](Value x) {
    for (const Variable& w : weights) {
      const auto body = [layer](KernelContext& c) {
        std::this_thread::sleep_for(layer);
        std::ranges::copy(c.input<float>(0), c.output<float>(0).begin());
      };
      x = current_builder()->call("layer", {&x, 1}, {&spec, 1}, body,
                                  {.seconds = std::chrono::duration<double>(layer).count()})[0];
      w.assign_sub(x);
    }
  });
  const PerReplica<Tensor> x(std::vector{Tensor::full(spec.dtype, spec.shape, 1)});
  std::vector<double> times;
  for (int k = 0; k < kSteps; ++k) {
    const double begin = now();
    step(x);
    if (k > 1) times.push_back(now() - begin);
  }
  return spread(times).median;
}

struct Times {
  double computing = 0, exchanging = 0, both = 0;
};

// In a network of its own; 77: none can be made.
int drive(std::chrono::microseconds layer, const std::filesystem::path& folder) {
  if (unshare(CLONE_NEWNET) != 0 ||
      !run("ip link set lo up && ip link add between type bridge && ip link set between up"))
    return 77;
  std::vector<pid_t> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    const pid_t worker = fork();
    if (worker != 0) {
      workers.push_back(worker);
      continue;
    }
    if (unshare(CLONE_NEWNET) != 0) _exit(77);
    std::ofstream(folder / ("here." + std::to_string(rank))) << "here" << std::endl;
    for (int i = 0; i < 3000 && !run("ip link show eth0 >/dev/null"); ++i) std::this_thread::sleep_for(10ms);
    if (!run("ip addr add " + address_of(rank) +
             "/24 dev eth0 && ip link set eth0 up && ip link set lo up && " +
             "tc qdisc add dev eth0 root tbf rate " + kRate + " burst 128kb latency 100ms"))
      _exit(77);
    try {
      const double exchanging = measure(rank, kWorkers, 0us, folder / "exchanging");
      const double both = measure(rank, kWorkers, layer, folder / "both");
      const double computing = measure(0, 1, layer, folder / "alone");
      if (rank == 0)
        std::ofstream(folder / "times") << computing << ' ' << exchanging << ' ' << both << std::endl;
      _exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      _exit(1);
    }
  }
  int status = 0;
  for (int rank = 0; rank < kWorkers; ++rank) {
    const std::string link = "to" + std::to_string(rank);
    while (!std::filesystem::exists(folder / ("here." + std::to_string(rank))))
      std::this_thread::sleep_for(5ms);
    if (!run("ip link add " + link + " type veth peer name eth0 netns " +
             std::to_string(workers[static_cast<std::size_t>(rank)]) + " && ip link set " + link +
             " master between && ip link set " + link + " up"))
      return 77;
  }
  for (const pid_t worker : workers) {
    int ended = 0;
    waitpid(worker, &ended, 0);
    status = std::max(status, WIFEXITED(ended) ? WEXITSTATUS(ended) : 1);
  }
  return status;
}

}  // namespace

int overlap() {
  for (const std::chrono::microseconds layer :
       {std::chrono::microseconds(12ms), std::chrono::microseconds(4ms)}) {
    std::string folder = (std::filesystem::temp_directory_path() / "bench_workers.XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return 1;
    const pid_t driver = fork();
    if (driver == 0) _exit(drive(layer, folder));
    int status = 0;
    waitpid(driver, &status, 0);
    Times times;
    std::ifstream(std::filesystem::path(folder) / "times") >> times.computing >> times.exchanging >>
        times.both;
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    if (WEXITSTATUS(status) == 77) {
      std::printf("overlap: no networks can be made here\n");
      return 0;
    }
    if (status != 0) return 1;
    const double best = std::max(times.computing, times.exchanging) + times.exchanging / kBuckets;
    std::printf(
        "overlap %.1f ms computing, %.1f ms exchanging, %.1f ms both: %.3f of the longer and one bucket\n",
        times.computing * 1e3, times.exchanging * 1e3, times.both * 1e3, times.both / best);
  }
  return 0;
}

}  // namespace lockstep::bench

// tests/support/virtual_workers.h - several workers, each a thread with a runtime of its own.
//
//   const std::vector<std::string> errors = run_workers(2, 1, [](MirroredStrategy& strategy) { ... });
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/strategies/mirrored.h"
#include "lockstep/testing/fake_gpu.h"

namespace lockstep::testing {

struct VirtualWorkers {
  int count = 2;
  int replicas = 1;  // of each
  std::size_t threads = 1;
  std::int64_t bytes_per_pack = 4 << 20;
  std::string step_passes = {};
  bool joins_first = false;   // WorkersExchange::joins_first
  bool on_fake_gpus = false;  // whose values go through the host
};

// What each has thrown; empty: nothing.
inline std::vector<std::string> run_workers(const VirtualWorkers& workers,
                                            const std::function<void(MirroredStrategy&)>& program) {
  InProcessGroup members(workers.count);
  std::vector<std::string> errors(static_cast<std::size_t>(workers.count));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < workers.count; ++rank) {
    threads.emplace_back([&, rank, group = std::make_shared<Group>(members.join(rank))]() mutable {
      try {
        std::vector<std::string> devices;
        for (int r = 0; r < workers.replicas; ++r)
          devices.push_back((workers.on_fake_gpus ? "gpu:" : "cpu:") + std::to_string(r));
        RuntimeOptions options{.threads = workers.threads,
                               .cpu_devices = static_cast<std::size_t>(workers.replicas),
                               .backends = {}};
        if (workers.on_fake_gpus)
          options.backends.push_back(std::make_shared<FakeGpu>(FakeGpuOptions{.devices = workers.replicas}));
        options.groups.emplace("world", std::move(group));
        MirroredStrategy strategy({.devices = devices,
                                   .bytes_per_pack = workers.bytes_per_pack,
                                   .step_passes = workers.step_passes,
                                   .base = {.runtime = Runtime(std::move(options)),
                                            .worker = {.index = rank, .rank = rank, .count = workers.count},
                                            .exchange = {.joins_first = workers.joins_first,
                                                         .device = workers.on_fake_gpus ? "cpu:0" : ""}}});
        program(strategy);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();  // waits
  return errors;
}

// Fails the test if one throws.
inline void expect_workers(const VirtualWorkers& workers,
                           const std::function<void(MirroredStrategy&)>& program) {
  const std::vector<std::string> errors = run_workers(workers, program);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "worker " << rank;
}

}  // namespace lockstep::testing

// tools/info.cpp - lockstep info: what this build is, and what it found on this machine.
#include <iomanip>
#include <iostream>
#include <string>
#include <thread>

#include "commands.h"
#include "graph_input.h"
#ifdef LOCKSTEP_NCCL
#include "lockstep/core/nccl/nccl_group.h"
#endif
#include "lockstep/core/runtime.h"
#include "lockstep/core/version.h"
#ifdef LOCKSTEP_CUDA_VERSION
#include "lockstep/graph/cuda/cudnn.h"
#endif
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/graph/transform/plugin.h"
#include "lockstep/io/drawings/svg.h"
#include "lockstep/strategies/strategy_registry.h"

namespace lockstep::tools {

namespace {

void print_devices(const Topology& topology) {
  std::cout << "\ndevice        memory  card        bytes  kernels     collectives\n";
  const auto known = [](auto value, bool is_known) { return is_known ? std::to_string(value) : "-"; };
  for (const DeviceFacts& facts : topology.devices()) {
    std::cout << std::left << std::setw(12) << facts.device.to_string() << std::right << std::setw(8)
              << facts.memory.value << std::setw(6) << known(facts.card, facts.card >= 0) << std::setw(13)
              << known(facts.memory_bytes, facts.memory_bytes > 0) << "  " << std::left << std::setw(12)
              << (facts.kernels.empty() ? "-" : facts.kernels)
              << (facts.collectives.empty() ? "-" : facts.collectives) << '\n';
  }
}

}  // namespace

int run_command(const InfoCommand& command) {
  if (!command.topology.empty()) {
    print_devices(read_topology(command.topology));
    return kSuccess;
  }
  const auto row = [](const char* name, const auto& value) {
    std::cout << std::left << std::setw(14) << name << value << '\n';
  };
  row("lockstep", kVersion);
  row("plugins", std::string("those built for ") + kPluginBuild);
#if defined(__clang__)
  row("compiler", "clang " __clang_version__);
#else
  row("compiler", "g++ " __VERSION__);
#endif
  row("built as", LOCKSTEP_BUILD_TYPE);
  for (const auto& [name, version] :
       {std::pair{"Taskflow", LOCKSTEP_TASKFLOW_VERSION}, std::pair{"oneTBB", LOCKSTEP_TBB_VERSION},
        std::pair{"Highway", LOCKSTEP_HIGHWAY_VERSION}, std::pair{"BLAS", LOCKSTEP_BLAS},
        std::pair{"Cereal", LOCKSTEP_CEREAL_VERSION}, std::pair{"zlib", LOCKSTEP_ZLIB_VERSION},
        std::pair{"CLI11", LOCKSTEP_CLI11_VERSION}}) {
    row(name, version);
  }
  const Decision graphviz = has_graphviz();
  row("Graphviz", graphviz ? "found: drawings and pages can be made" : graphviz.reason());
#ifdef LOCKSTEP_CUDA_VERSION
  row("CUDA", LOCKSTEP_CUDA_VERSION);
#else
  row("CUDA", "not built in");
#endif
#ifdef LOCKSTEP_NCCL
  const Decision nccl = has_nccl();
  row("NCCL", nccl ? "found: cards and processes can be connected" : nccl.reason());
#else
  row("NCCL", "not built in");
#endif
#ifdef LOCKSTEP_CUDA_VERSION
  const Decision cudnn = has_cudnn();
  row("cuDNN", cudnn ? "found: convolutions on cards can be left to it" : cudnn.reason());
#else
  row("cuDNN", "not built in");
#endif
  row("threads", std::thread::hardware_concurrency());
  const Runtime runtime;
  row("ops", OpRegistry::global().names().size());
  row("passes", PassRegistry::global().passes().size());
  std::string strategies;
  for (const StrategyInfo& info : StrategyRegistry::global().strategies())
    strategies += (strategies.empty() ? "" : ", ") + info.name;
  row("strategies", strategies);
  print_devices(runtime.topology());
  std::cout << "(more logical ones as asked for)\n";
  return kSuccess;
}

}  // namespace lockstep::tools

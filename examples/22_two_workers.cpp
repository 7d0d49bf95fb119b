// Two workers, each with a runtime and a program of its own, take the mean of what they computed. Here they are threads
// of one process; members of a group may as well be processes.
//
//      worker 0:  x --> square --> group_all_reduce(mean) --> + --> y       the same graph in both
//                  \--> slow read ------------------------/                 goes on elsewhere meanwhile
//
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <thread>

#include "lockstep/core/communicators/group.h"
#include "lockstep/core/communicators/in_process_group.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

// An op that fetches its input from far away: the kernel returns at once, and the call ends 20 ms later.
OpDef fetch_op() {
  OpDef def;
  def.name = "fetch";
  def.inputs = Arity::exactly(1);
  def.effects = Effect::kHost;
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      const void* from = c.input(0);
      void* to = c.output(0);
      const auto bytes = static_cast<std::size_t>(num_bytes(c.input_spec(0)));
      Completion& done = c.defer();
      std::thread([=, &done] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::memcpy(to, from, bytes);
        done.done();  // the last thing that touches this call
      }).detach();
    };
  };
  def.kernels["cpu"].deferred = true;
  return def;
}

Graph step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value mean = group_all_reduce(ReduceOp::kMean, square(x), "world");
  b.result(mean + b.op1("fetch", {x}));
  return b.finish();
}

}  // namespace

int main() {
  OpRegistry::global().add(fetch_op());
  InProcessGroup room(2);
  std::vector<Program> programs;
  for (int rank = 0; rank < 2; ++rank) {
    const auto group = std::make_shared<Group>(room.join(rank));
    programs.push_back(compile(step(), Runtime({.threads = 1, .groups = {{"world", group}}})));
  }
  std::vector<Tensor> results(2);
  std::thread other([&] { results[1] = programs[1].run({{"x", Tensor::from({2}, {3.F, 4.F})}})[0]; });
  results[0] = programs[0].run({{"x", Tensor::from({2}, {1.F, 2.F})}})[0];
  other.join();
  for (const Tensor& result : results) std::cout << result << '\n';

  // The other worker does not come: the run ends at its deadline, and the error names the node.
  RunOptions options;
  options.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  try {
    programs[0].run({{"x", Tensor::from({2}, {1.F, 2.F})}}, options);
  } catch (const RunError& error) {
    std::cout << to_string(error.code()) << '\n';
  }
}

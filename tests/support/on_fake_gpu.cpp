// tests/support/on_fake_gpu.cpp - the same graph on a fake GPU, and what it gives there.
#include "support/on_fake_gpu.h"

#include "lockstep/core/runtime.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/testing/fake_gpu.h"

namespace lockstep::testing {

std::vector<std::vector<Tensor>> run_on_fake_gpu(Graph graph, std::span<const std::vector<Tensor>> feeds) {
  FakeGpu::add_kernels();  // of ops that the test has made
  const Runtime runtime({.threads = 2, .backends = {std::make_shared<FakeGpu>()}});
  PassContext context{.topology = &runtime.topology()};
  make_place({.devices = {"gpu:0"}})->run(graph, context);
  const Program program = compile(std::move(graph), runtime);
  std::vector<std::vector<Tensor>> results;
  for (const std::vector<Tensor>& fed : feeds) results.push_back(program.run(fed));
  program.wait();
  return results;
}

}  // namespace lockstep::testing

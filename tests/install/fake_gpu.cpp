// A test of somebody else's, on devices that the package brings.
#include "lockstep/testing/fake_gpu.h"

#include <cstdlib>
#include <memory>

#include "lockstep/lockstep.h"

int main() {
  using namespace lockstep;  // NOLINT(google-build-using-namespace): a program of its own
  const auto gpus = std::make_shared<testing::FakeGpu>(testing::FakeGpuOptions{.devices = 2});
  MirroredOptions options;
  options.base.runtime = Runtime({.threads = 1, .backends = {gpus}});
  const MirroredStrategy strategy(options);
  GraphBuilder b;
  const auto there = b.device("gpu:1");
  b.result(square(b.constant(Tensor::scalar(3.0F))));
  const Program program = compile(b.finish(), *options.base.runtime);
  const bool right = program.run()[0].item() == 9.0;
  return right && strategy.num_replicas_in_sync() == 2 && gpus->calls() > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// tests/support/test_devices.cpp - the devices that tests of programs and strategies run on.
#include "support/test_devices.h"

#include <cstdlib>
#include <memory>
#include <string_view>

#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/testing/fake_gpu.h"

namespace lockstep::testing {

bool on_fake_gpus() {
  static const bool wanted = [] {
    const char* const devices = std::getenv("LOCKSTEP_TEST_DEVICES");
    return devices != nullptr && std::string_view(devices) == "gpu";
  }();
  return wanted;
}

namespace {

// Before the first test: some of them make a runtime in a static variable.
const bool added = [] {
  if (on_fake_gpus()) {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);  // cards of this machine would be gpu:0 and so on
    add_default_backend(std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 8}));
  }
  return true;
}();

}  // namespace

std::string test_device(int index) { return (on_fake_gpus() ? "gpu:" : "cpu:") + std::to_string(index); }

std::vector<std::string> test_devices(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(test_device(i));
  return names;
}

Graph on_test_devices(Graph graph) {
  if (!on_fake_gpus()) return graph;
  FakeGpu::add_kernels();  // of ops that the test has made
  static const Runtime runtime({.threads = 1});
  PassContext context{.topology = &runtime.topology()};
  make_place({.devices = test_devices(1)})->run(graph, context);
  return graph;
}

}  // namespace lockstep::testing

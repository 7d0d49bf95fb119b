// tests/support/test_devices.cpp - the devices that tests of programs and strategies run on.
#include "support/test_devices.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/core/compute_device.h"
#include "lockstep/graph/transform/pass.h"
#include "lockstep/strategies/passes/place.h"
#include "lockstep/testing/fake_gpu.h"

namespace lockstep::testing {

namespace {

constexpr std::size_t kGpus = 8;
constexpr int kSkipped = 77;  // for ctest

enum class Wanted : std::uint8_t { kCpus, kFakeGpus, kConnectedGpus, kCard };

Wanted wanted() {
  static const Wanted devices = [] {
    const char* const text = std::getenv("LOCKSTEP_TEST_DEVICES");
    const std::string_view name = text == nullptr ? "" : text;
    return name == "gpu"         ? Wanted::kFakeGpus
           : name == "connected" ? Wanted::kConnectedGpus
           : name == "card"      ? Wanted::kCard
                                 : Wanted::kCpus;
  }();
  return devices;
}

// Logical devices of the first card.
class OneCard final : public DeviceBackend {
 public:
  explicit OneCard(std::shared_ptr<DeviceBackend> cards) : cards_(std::move(cards)) {}
  std::vector<std::shared_ptr<ComputeDevice>> open() override {
    return cards_->open_logical(std::vector<LogicalDevice>(kGpus));
  }
  std::vector<std::shared_ptr<ComputeDevice>> open_logical(std::span<const LogicalDevice> wanted) override {
    return cards_->open_logical(wanted);
  }

 private:
  std::shared_ptr<DeviceBackend> cards_;
};

// Before the first test: some of them make a runtime in a static variable.
const bool added = [] {
  if (wanted() == Wanted::kFakeGpus || wanted() == Wanted::kConnectedGpus) {
    const bool connected = wanted() == Wanted::kConnectedGpus;
    set_default_backends(
        {std::make_shared<FakeGpu>(FakeGpuOptions{.devices = kGpus, .connected = connected})});
  } else if (wanted() == Wanted::kCard) {
    const std::vector<std::shared_ptr<DeviceBackend>> cards = default_backends();
    if (cards.empty()) {
      std::fputs("this machine has no card\n", stderr);
      std::_Exit(kSkipped);
    }
    set_default_backends({std::make_shared<OneCard>(cards[0])});
  }
  return true;
}();

}  // namespace

bool on_gpus() { return wanted() != Wanted::kCpus; }

bool on_card() { return wanted() == Wanted::kCard; }

std::string test_device(int index) { return (on_gpus() ? "gpu:" : "cpu:") + std::to_string(index); }

std::vector<std::string> test_devices(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(test_device(i));
  return names;
}

Graph on_test_devices(Graph graph) {
  if (!on_gpus()) return graph;
  if (!on_card()) FakeGpu::add_kernels();  // of ops that the test has made
  static const Runtime runtime({.threads = 1});
  PassContext context{.topology = &runtime.topology()};
  make_place({.devices = test_devices(1)})->run(graph, context);
  return graph;
}

}  // namespace lockstep::testing

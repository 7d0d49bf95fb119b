// A device of your own: its memory, its kernels, and a graph that is partly on it.
//
//      cpu:0      x ---> * 3 ---\                          /---> y      values that cross from one memory
//      gpu:0                     \---> add ---> square ---/             to the other are copied
//
#include <cstring>
#include <iostream>
#include <memory>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

// The card's memory. Here it is ordinary memory; of a real card only read() and write() would get at it.
class CardPool : public MemoryPool {
 public:
  CardPool() : MemoryPool(DeviceKind::kGpu, MemoryId{1}) {}
  void read(void* host, const void* block, std::size_t bytes) override {
    std::cout << "  " << bytes << " bytes from the card\n";
    std::memcpy(host, block, bytes);
  }
  void write(void* block, const void* host, std::size_t bytes) override {
    std::cout << "  " << bytes << " bytes to the card\n";
    std::memcpy(block, host, bytes);
  }
};

class Cards : public DeviceBackend {
 public:
  std::vector<std::shared_ptr<ComputeDevice>> open() override {
    const DeviceFacts facts{.device = Device::parse("gpu:0"), .memory = {1}, .kernels = "card"};
    return {std::make_shared<ComputeDevice>(facts, std::make_shared<CardPool>())};
  }
};

// What the card can do: kernels for ops that exist, under the name that its devices give their kernel set.
void add_kernels() {
  OpRegistry& registry = OpRegistry::global();
  registry.add_kernel("add", "card", [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      for (std::size_t i = 0; i < c.output<float>(0).size(); ++i)
        c.output<float>(0)[i] = c.input<float>(0)[i] + c.input<float>(1)[i];
    };
  });
  registry.add_kernel("square", "card", [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      for (std::size_t i = 0; i < c.output<float>(0).size(); ++i)
        c.output<float>(0)[i] = c.input<float>(0)[i] * c.input<float>(0)[i];
    };
  });
}

Graph step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value tripled = x * 3.F;
  const auto on_card = b.device("gpu:0");
  b.result(square(tripled + b.constant(Tensor::from({2}, {1.F, 2.F}))));
  return b.finish();
}

}  // namespace

int main() {
  add_kernels();
  const Runtime runtime({.threads = 1, .backends = {std::make_shared<Cards>()}});
  std::cout << "compile\n";
  const Program program = compile(step(), runtime);
  std::cout << "run\n";
  const Tensor y = program.run({{"x", Tensor::from({2}, {1.F, 2.F})}})[0];
  std::cout << "the result is in memory " << y.memory().value << '\n';
  std::cout << y.host() << '\n';
}

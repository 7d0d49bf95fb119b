// One program on the CPU and, by changing one word, on a device that works by itself.
//
//      host       run 0   run 1   run 2 (waits for run 0)   run 3   ...   read the loss (waits for it)
//      gpu:0          step 0      step 1      step 2      step 3   ...
//
// A run returns when its work is on the device's streams; results wait when they are read. The backend is
// thread_device.h: streams that are threads.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "thread_device.h"

using namespace lockstep;

namespace {

Graph step(const std::string& device) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {4, 2});
  const Value y = b.placeholder("y", DType::kF32, {4, 1});
  const auto there = b.device(device);  // the word
  const VariableRef w = b.variable("w", Tensor::zeros(DType::kF32, {2, 1}));
  const Value loss = mean(square(matmul(x, b.read(w)) - y));
  Sgd(0.1).minimize(loss, {w});
  b.result(loss);
  return b.finish();
}

Tensor train_on(const std::string& device, const Runtime& runtime) {
  const auto variables = std::make_shared<VariableStore>();
  const Program program = compile(step(device), runtime, {.variables = variables});
  // y = 2 x0 - x1
  const Tensor x = Tensor::from({4, 2}, {1.F, 0.F, 0.F, 1.F, 1.F, 1.F, 2.F, 1.F});
  const Tensor y = Tensor::from({4, 1}, {2.F, -1.F, 1.F, 3.F});
  std::vector<Tensor> losses;
  for (int i = 0; i < 100; ++i) losses.push_back(program.run({{"x", x}, {"y", y}})[0]);
  std::cout << device << ": the loss is in memory " << losses[0].memory().value << ", " << losses[0].item()
            << " at first, " << (losses[99].item() < 1e-4 ? "less" : "more") << " than 0.0001 at last\n";
  for (const SegmentSummary& segment : program.plan(std::vector{x, y}).segments)
    std::cout << "  " << segment.calls << " calls in a segment; " << segment.why_not << '\n';
  return variables->value("w");
}

}  // namespace

int main() {
  const Runtime runtime({.threads = 1, .backends = {std::make_shared<thread_device::ThreadBackend>()}});
  const Tensor on_cpu = train_on("cpu:0", runtime);
  const Tensor on_gpu = train_on("gpu:0", runtime);
  std::cout << "the same bits: " << (on_gpu.bit_equal(on_cpu) ? "yes" : "no") << '\n';
}

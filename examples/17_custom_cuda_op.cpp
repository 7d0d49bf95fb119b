// An op of one's own with a kernel for NVIDIA cards, written in CUDA: nothing in the library knows of either.
//
//      x [n] --> blur --> y [n]        y[i] = (x[i-1] + 2 x[i] + x[i+1]) / 4, with zeros outside
//
// 17_custom_cuda_op.cu holds the kernel; this file the op, and who launches the kernel on which stream. Where there is no
// card, or Lockstep was built without CUDA, the kernel of the CPU runs.
#include <iostream>

#include "lockstep/lockstep.h"

#ifdef WITH_CUDA
#include "lockstep/core/cuda/stream.h"

cudaError_t launch_blur(cudaStream_t stream, const float* in, float* out,
                        long long n);  // 17_custom_cuda_op.cu
#endif

using namespace lockstep;

namespace {

OpDef blur_op() {
  OpDef def;
  def.name = "blur";
  def.summary = "each element and its neighbours, weighted 1, 2, 1";
  def.inputs = Arity::exactly(1);
  def.traits.infallible = true;
  def.infer = [](InferContext& c) {
    c.require(c.input(0).dtype == DType::kF32 && c.input(0).shape.rank() == 1, "takes a vector of f32");
    c.add_output(c.input(0));
  };
  def.kernels["cpu"] = [](const NodeView&, std::span<const TensorSpec>) -> KernelFn {
    return [](KernelContext& c) {
      const auto in = c.input<float>(0);
      const auto out = c.output<float>(0);
      for (std::size_t i = 0; i < in.size(); ++i)
        out[i] = ((i > 0 ? in[i - 1] : 0) + 2 * in[i] + (i + 1 < in.size() ? in[i + 1] : 0)) / 4;
    };
  };
  // The weights are symmetric: what flows back is blurred, too.
  def.gradient = [](GradientContext& c) -> std::vector<Gradient> {
    return {c.grad().builder().op1("blur", {c.grad()})};
  };
  return def;
}

#ifdef WITH_CUDA
// Added to an op that is there already: it could be an op of the library, and this a library of its own.
void add_cuda_kernel(OpRegistry& registry) {
  registry.add_kernel("blur", "cuda", [](const NodeView&, std::span<const TensorSpec> outputs) -> KernelFn {
    return [n = outputs[0].shape.num_elements()](KernelContext& c) {
      cuda::check(launch_blur(cuda::native(*c.stream()), static_cast<const float*>(c.input(0)),
                              static_cast<float*>(c.output(0)), n),
                  *c.stream(), "the launch of blur");
    };
  });
}
#endif

}  // namespace

int main() {
  OpRegistry::global().add(blur_op());
#ifdef WITH_CUDA
  add_cuda_kernel(OpRegistry::global());
#endif
  const Runtime runtime;
  const bool has_card = static_cast<bool>(runtime.has_device(Device::parse("gpu:0"))) &&
                        OpRegistry::global().kernel(OpRegistry::global().get("blur"), "cuda") != nullptr;
  if (!has_card) std::cerr << "no card, or built without CUDA: on the CPU\n";

  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {kUnknown});
  {
    const auto there = b.device(has_card ? "gpu:0" : "cpu:0");
    const Value y = b.op1("blur", {x});
    b.result(y);
    b.result(gradients(sum(square(y)), {x})[0]);
  }
  const Program program = compile(b.finish(), runtime);
  for (int run = 0; run < 3; ++run) {  // on a card: put on a stream, recorded, replayed
    const std::vector<Tensor> results = program.run({{"x", Tensor::from({5}, {0.F, 0.F, 16.F, 0.F, 0.F})}});
    for (const Tensor& result : results) std::cout << result.host() << '\n';
  }
}

// Training in 16 bits with variables of f32, by a pass on a step that knows nothing of it.
//
//   x --> cast --> matmul --> add --> relu --> matmul --> cast --> loss        w0, bias, w1: f32, as are slots
//                  (between the casts everything is bf16, or f16)
//
// f16 gradients are computed from the loss times a scale; a step whose gradients overflow changes nothing and
// halves the scale, which the program provokes once.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

Graph training_step() {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {64, 8}), y = b.placeholder("y", DType::kF32, {64, 1});
  const VariableRef w0 = b.variable("w0", initializers::glorot_uniform({8, 32}, 1)),
                    bias = b.variable("bias", initializers::zeros({32})),
                    w1 = b.variable("w1", initializers::glorot_uniform({32, 1}, 2));
  const Value guess = matmul(relu(matmul(x, b.read(w0)) + b.read(bias)), b.read(w1));
  const Value loss = mean(square(guess - y));
  Adam(0.02).minimize(loss, {w0, bias, w1});
  b.result(loss);
  return b.finish();
}

std::size_t products_in(const Graph& graph, DType dtype) {
  std::size_t count = 0;
  for (const Node& node : graph.nodes())
    count += node.op().name == "matmul" && node.outputs()[0].dtype == dtype ? 1U : 0U;
  return count;
}

struct Trained {
  double loss = 0;
  double scale_before = 0, scale_after = 0;  // around a step that overflows; 0: there is none
  bool weights_stayed = true;                // in that step
};

Trained train(const std::string& pass, Runtime& runtime) {
  Graph graph = training_step();
  if (!pass.empty()) PassRegistry::global().parse_pipeline(pass).run(graph);
  std::cout << (pass.empty() ? "f32" : pass) << ": " << products_in(graph, DType::kF32)
            << " products of f32\n";
  std::string scale;
  for (const VariableDecl& variable : graph.variables())
    if (variable.name.starts_with("loss_scale") && scale.empty()) scale = variable.name;
  const Program step = compile(optimize(std::move(graph)), runtime);
  Tensor x = Tensor::empty(DType::kF32, {64, 8}), y = Tensor::zeros(DType::kF32, {64, 1});
  for (std::size_t i = 0; i < 64 * 8; ++i) {
    x.data<float>()[i] = std::sin(static_cast<float>(7 * i + 1));
    y.data<float>()[i / 8] += x.data<float>()[i] / 4;
  }
  Trained trained;
  for (int i = 0; i < 200; ++i) trained.loss = step.run({{"x", x}, {"y", y}})[0].item();
  if (scale.empty()) return trained;
  trained.scale_before = step.variables().value(scale).item();
  const Tensor weights = step.variables().value("w0");
  step.run({{"x", x}, {"y", Tensor::full(DType::kF32, {64, 1}, 1e6)}});
  trained.scale_after = step.variables().value(scale).item();
  trained.weights_stayed = weights.bit_equal(step.variables().value("w0"));
  return trained;
}

}  // namespace

int main() {
  Runtime runtime;
  const Trained full = train("", runtime), brain = train("mixed-precision", runtime),
                half = train("mixed-precision(dtype=f16)", runtime);
  const bool learned = full.loss < 0.01 && brain.loss < 0.01 && half.loss < 0.01;
  std::cout << "all three " << (learned ? "learn" : "do NOT learn") << " the function\n"
            << "a step that overflows: the scale goes from " << half.scale_before << " to "
            << half.scale_after << ", the weights " << (half.weights_stayed ? "stay" : "CHANGE") << '\n';
  return learned && half.weights_stayed && half.scale_after < half.scale_before ? 0 : 1;
}

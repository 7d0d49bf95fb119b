// bench/gpu/programs.cpp - the programs of Lockstep that the rows of the benchmark run.
#include "programs.h"

#include <memory>
#include <span>
#include <utility>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/passes/optimize.h"
#include "lockstep/graph/run/compile.h"
#include "lockstep/graph/train/optimizer.h"
#include "step.h"
#include "support/data.h"

namespace lockstep::bench {

namespace {

constexpr int kInARow = 8;

struct Input {
  std::string name;
  TensorSpec spec;
  Tensor initial = {};  // undefined: random numbers in [-1, 1)
};

VariableRef declare(GraphBuilder& b, const Input& input) {
  return b.variable(VariableDecl{.name = input.name, .spec = input.spec, .initial = input.initial});
}

// A program of what `body` makes of the inputs, which are variables on the card.
using Body = std::function<void(GraphBuilder& b, const std::vector<VariableRef>& inputs)>;
Program on_card(const Runtime& runtime, std::span<const Input> inputs, const Body& body) {
  const CompileOptions options{.variables = std::make_shared<VariableStore>()};
  for (const Input& input : inputs) {
    if (input.initial.defined()) continue;
    GraphBuilder b;
    const auto there = b.device(kCard);
    b.assign(declare(b, input), b.random_uniform(input.spec, -1, 1));
    const Program fill = compile(b.finish(), runtime, options);
    fill.run();
    fill.wait();
  }
  GraphBuilder b;
  const auto there = b.device(kCard);
  std::vector<VariableRef> declared;
  for (const Input& input : inputs) declared.push_back(declare(b, input));
  body(b, declared);
  return compile(optimize(b.finish(), {.topology = &runtime.topology()}), runtime, options);
}

Input floats(std::string name, const Shape& shape) { return {std::move(name), {DType::kF32, shape}}; }

double bytes_of(std::int64_t floats) { return 4 * static_cast<double>(floats); }

}  // namespace

Program tiny_chain(const Runtime& runtime, int kernels) {
  GraphBuilder b;
  const auto there = b.device(kCard);
  Value value = b.read(b.variable("start", Tensor::zeros({4})));
  for (int i = 0; i < kernels; ++i) value = value + value;
  b.result(value);
  return compile(b.finish(), runtime, {.variables = std::make_shared<VariableStore>()});
}

Moving element_chain(const Runtime& runtime, std::int64_t elements) {
  const Input inputs[] = {floats("x", {elements})};
  const Program program = on_card(runtime, inputs, [](GraphBuilder& b, const std::vector<VariableRef>& in) {
    const Value x = b.read(in[0]);
    Value a = relu(x * 1.25F + 0.5F);
    a = abs((a - 0.125F) * x);
    a = clip(neg(maximum(a, x)), -2, 2);
    b.result(slice(minimum(square(a) + x, 3.0F), {0}, {1}));
  });
  return {"chain", program, 2 * bytes_of(elements), "read x, write the end"};
}

Moving adamw_updates(const Runtime& runtime, int tensors, std::int64_t side) {
  const Shape shape = {side, side};
  Tensor weights = Tensor::zeros(shape), gradient = Tensor::zeros(shape);
  fill_uniform(weights.data<float>(), 1, 1);
  fill_uniform(gradient.data<float>(), 2, 1);
  std::vector<Input> inputs;
  for (int t = 0; t < tensors; ++t) {
    inputs.push_back({str("w", t), weights.spec(), weights});
    inputs.push_back({str("g", t), gradient.spec(), gradient});
  }
  const Program program = on_card(runtime, inputs, [](GraphBuilder& b, const std::vector<VariableRef>& in) {
    GradientsAndVariables pairs;
    for (std::size_t i = 0; i < in.size(); i += 2) pairs.push_back({b.read(in[i + 1]), in[i]});
    AdamW(1e-4).apply_gradients(pairs);
  });
  return {"adamw", program, 7 * bytes_of(tensors * shape.num_elements()),
          "read and write weights and two slots, read gradients"};
}

Moving row_op(const Runtime& runtime, const std::string& op, bool backward, std::int64_t side) {
  const Shape shape = {side, side};
  // So many in a row, so that what a run costs besides does not count: each takes an output of the one before as input `link`.
  const auto chain = [&](const std::string& name, const std::vector<Input>& inputs,
                         const std::vector<Attribute>& attributes, std::size_t link, std::size_t output) {
    return on_card(runtime, inputs, [&](GraphBuilder& b, const std::vector<VariableRef>& in) {
      std::vector<Value> values;
      for (const VariableRef& variable : in) values.push_back(b.read(variable));
      for (int i = 0; i < kInARow; ++i) values[link] = b.op(name, values, attributes)[output];
      b.result(slice(values[link], {0, 0}, {1, 1}));
    });
  };
  const auto moving = [&](const std::string& name, const Program& program, int matrices, const char* what) {
    return Moving{name, program, kInARow * matrices * bytes_of(shape.num_elements()),
                  str(kInARow, " in a row, each ", what)};
  };
  const Attribute last{"axis", std::int64_t{-1}}, epsilon{"epsilon", 1e-5};
  const Input x = floats("x", shape), g = floats("g", shape), gamma = floats("gamma", {side});
  if (op == "softmax" && !backward) return moving(op, chain(op, {x}, {last}, 0, 0), 2, "reads x, writes y");
  if (op == "softmax")
    return moving("softmax_grad", chain("softmax_grad", {floats("y", shape), g}, {last}, 1, 0), 3,
                  "reads y and g, writes dx");
  if (op == "layer_norm" && !backward)
    return moving(op, chain(op, {x, gamma, floats("beta", {side})}, {epsilon}, 0, 0), 2, "reads x, writes y");
  if (op == "layer_norm") {
    const std::vector<Input> inputs = {x, gamma, floats("mean", {side}), floats("rstd", {side}), g};
    return moving("layer_norm_grad", chain("layer_norm_grad", inputs, {epsilon}, 4, 0), 3,
                  "reads x and g, writes dx");
  }
  const Tensor classes = labels(side);
  const Input numbers = {"labels", classes.spec(), classes};
  if (!backward)
    return moving("cross_entropy", chain("softmax_cross_entropy", {x, numbers}, {}, 0, 1), 2,
                  "reads logits, writes probabilities");
  return moving(
      "cross_entropy_grad",
      chain("softmax_cross_entropy_grad", {floats("p", shape), numbers, floats("each", {side})}, {}, 0, 0), 2,
      "reads probabilities, writes dx");
}

// --- logical GPUs

namespace {

MirroredOptions on_all_gpus(const Runtime& runtime, bool tf32) {
  MirroredOptions options;
  options.base.runtime = runtime;
  options.base.compile.allow_tf32 = tf32;
  return options;
}

}  // namespace

LogicalSum::LogicalSum(const Runtime& runtime, std::int64_t elements)
    : elements_(elements), strategy_(on_all_gpus(runtime, false)) {
  replicas_ = strategy_.num_replicas_in_sync();
  const auto scope = strategy_.scope();
  std::vector<Tensor> parts;
  for (std::int64_t r = 1; r <= replicas_; ++r)
    parts.push_back(Tensor::full(DType::kF32, {elements}, static_cast<double>(r)));
  const Variable part("part", PerReplica<Tensor>(std::move(parts)),
                      {.synchronization = Synchronization::kOnRead, .aggregation = Aggregation::kSum});
  step_ = strategy_.function({}, [&] { return slice(all_reduce(ReduceOp::kSum, part.read()), {0}, {1}); });
}

bool LogicalSum::is_shared() const {
  std::size_t sums = 0;
  for (const Node& node : step_.replicated_graph().nodes()) {
    if (node.op().traits.reads_variable) continue;
    for (const TensorSpec& output : node.outputs()) sums += output.shape == Shape{elements_} ? 1 : 0;
  }
  return sums == 1;
}

double LogicalSum::bytes() const {
  return static_cast<double>(replicas_ + (is_shared() ? 1 : replicas_)) * bytes_of(elements_);
}

std::string LogicalSum::formula() const {
  return is_shared() ? str("read ", replicas_, " parts, write one sum, which the replicas share")
                     : str("read ", replicas_, " parts, write a sum for each replica");
}

bool LogicalSum::is_right() const {
  const double sum = static_cast<double>(replicas_ * (replicas_ + 1)) / 2;
  for (const Tensor& element : program().run()) {
    if (element.item() != sum) return false;
  }
  return true;
}

MirroredTraining::MirroredTraining(const Runtime& runtime, const Case& what, std::int64_t joined_batch)
    : strategy_(on_all_gpus(runtime, what.tf32)) {
  const Batch data = batch_of(what, joined_batch);
  const std::int64_t replicas = strategy_.num_replicas_in_sync(), rows = joined_batch / replicas;
  for (const Tensor& input : {data.inputs, data.targets}) {
    for (std::int64_t r = 0; r < replicas; ++r) {
      const Device device = Device::parse(strategy_.worker_devices()[static_cast<std::size_t>(r)]);
      feeds_.push_back(input.slice(r * rows, (r + 1) * rows).to(device, runtime));
    }
  }
  const auto input = [&](const Tensor& all) { return InputSpec(all.dtype(), all.slice(0, rows).shape()); };
  step_ = strategy_.function({input(data.inputs), input(data.targets)},
                             [&](const Value& x, const Value& y) { return train(what, x, y); });
}

}  // namespace lockstep::bench

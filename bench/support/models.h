// bench/support/models.h - the models that are trained: loss and update of one step, as their users would
// write them.
//
//   Batch batch = batch_of("mlp", 64);
//   Value loss = train("mlp", x, y);       // of Values with the batch's dtypes and shapes: a whole batch, or a replica's part
//
// Sizes, data and initial weights are those of training_step/worker.py, so that every participant's loss is
// the same number. The loss is the mean over the batches of all replicas; with several, this replica's share
// of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/build/builder_access.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/data.h"

namespace lockstep::bench {

constexpr std::int64_t kSequence = 128, kWidth = 256;  // of the transformer

struct Batch {
  Tensor inputs, targets;
};

inline Tensor uniform(const Shape& shape, std::uint32_t seed, float half) {
  Tensor out = Tensor::zeros(shape);
  fill_uniform(out.data<float>(), seed, half);
  return out;
}

inline Tensor labels(std::int64_t batch) {
  Tensor out = Tensor::zeros(DType::kI64, {batch});
  fill_labels(out.data<std::int64_t>(), 101);
  return out;
}

// Declares a model's parameters and reads them; each gets the next seed.
class Parameters {
 public:
  explicit Parameters(GraphBuilder& builder) : builder_(builder) {}
  // Uniform in [-half, half).
  Value random(std::string_view name, const Shape& shape, float half) {
    return add(name, uniform(shape, next_seed_, half));
  }
  Value zeros(std::string_view name, const Shape& shape) { return add(name, Tensor::zeros(shape)); }
  Value ones(std::string_view name, const Shape& shape) {
    return add(name, Tensor::full(DType::kF32, shape, 1));
  }
  const std::vector<VariableRef>& variables() const { return variables_; }

 private:
  Value add(std::string_view name, const Tensor& initial) {
    ++next_seed_;
    // Where a strategy traces a replica's step, variables are those of the graph around it.
    variables_.push_back(internal::BuilderAccess(builder_).find_or_declare(
        {.name = std::string(name), .spec = initial.spec(), .initial = initial}));
    return builder_.read(variables_.back());
  }
  GraphBuilder& builder_;
  std::vector<VariableRef> variables_;
  std::uint32_t next_seed_ = 1;
};

inline Value dense(const Value& x, const Value& weights, const Value& bias) {
  return matmul(x, weights) + bias;
}

inline Value mlp(const Value& x, const Value& y) {
  Parameters p(x.builder());
  Value h = x;
  std::int64_t width = 784;
  for (const auto& [layer, half] : {std::pair("1", 0.07F), std::pair("2", 0.08F)}) {
    Value w = p.random(str("w", layer), {width, 512}, half);
    Value bias = p.zeros(str("b", layer), {512});
    h = relu(dense(h, w, bias));
    width = 512;
  }
  Value w = p.random("w3", {512, 10}, 0.1F);
  Value bias = p.zeros("b3", {10});
  Value loss = global_mean(softmax_cross_entropy(dense(h, w, bias), y));
  Sgd(0.05).minimize(loss, p.variables());
  return loss;
}

inline Value cnn(const Value& x, const Value& y) {
  Parameters p(x.builder());
  const Conv2dOptions same = {.padding = Padding::same()};
  Value k1 = p.random("k1", {3, 3, 1, 32}, 0.3F);
  Value b1 = p.zeros("b1", {32});
  Value h = max_pool(relu(conv2d(x, k1, same) + b1), {2, 2});
  Value k2 = p.random("k2", {3, 3, 32, 64}, 0.08F);
  Value b2 = p.zeros("b2", {64});
  h = max_pool(relu(conv2d(h, k2, same) + b2), {2, 2});
  Value w = p.random("w", {7 * 7 * 64, 10}, 0.04F);
  Value bias = p.zeros("b", {10});
  Value loss = global_mean(softmax_cross_entropy(dense(reshape(h, {x.shape()[0], 7 * 7 * 64}), w, bias), y));
  Sgd(0.02).minimize(loss, p.variables());
  return loss;
}

inline Value transformer(const Value& x, const Value& y) {
  constexpr std::int64_t kHeads = 4, kInner = 4 * kWidth;
  const std::int64_t batch = x.shape()[0];
  Parameters p(x.builder());

  Value scale1 = p.ones("scale1", {kWidth});
  Value shift1 = p.zeros("shift1", {kWidth});
  Value w_qkv = p.random("w_qkv", {kWidth, 3 * kWidth}, 0.08F);
  Value b_qkv = p.zeros("b_qkv", {3 * kWidth});
  Value rows = reshape(x, {batch * kSequence, kWidth});
  Value h = dense(layer_norm(rows, scale1, shift1), w_qkv, b_qkv);
  h = transpose(reshape(h, {batch, kSequence, 3, kHeads, kWidth / kHeads}), {2, 0, 3, 1, 4});
  std::vector<Value> qkv = split_evenly(reshape(h, {3, batch * kHeads, kSequence, kWidth / kHeads}), 3, 0);
  for (Value& part : qkv) part = squeeze(part, {0});
  Value scores = matmul(qkv[0] * (1 / std::sqrt(static_cast<double>(kWidth / kHeads))), qkv[1], false, true);
  h = reshape(matmul(softmax(scores), qkv[2]), {batch, kHeads, kSequence, kWidth / kHeads});
  h = reshape(transpose(h, {0, 2, 1, 3}), {batch * kSequence, kWidth});
  Value w_out = p.random("w_out", {kWidth, kWidth}, 0.1F);
  Value b_out = p.zeros("b_out", {kWidth});
  rows = rows + dense(h, w_out, b_out);

  Value scale2 = p.ones("scale2", {kWidth});
  Value shift2 = p.zeros("shift2", {kWidth});
  Value w1 = p.random("w1", {kWidth, kInner}, 0.07F);
  Value b1 = p.zeros("b1", {kInner});
  Value w2 = p.random("w2", {kInner, kWidth}, 0.07F);
  Value b2 = p.zeros("b2", {kWidth});
  h = gelu(dense(layer_norm(rows, scale2, shift2), w1, b1));
  rows = rows + dense(h, w2, b2);

  Value loss = global_mean(square(rows - reshape(y, {batch * kSequence, kWidth})));
  Adam(1e-3).minimize(loss, p.variables());
  return loss;
}

inline Batch batch_of(const std::string& model, std::int64_t batch) {
  if (model == "mlp") return {uniform({batch, 784}, 100, 1), labels(batch)};
  if (model == "cnn") return {uniform({batch, 28, 28, 1}, 100, 1), labels(batch)};
  const Shape shape = {batch, kSequence, kWidth};
  return {uniform(shape, 100, 1), uniform(shape, 101, 1)};
}

inline Value train(const std::string& model, const Value& x, const Value& y) {
  if (model == "mlp") return mlp(x, y);
  if (model == "cnn") return cnn(x, y);
  if (model == "transformer") return transformer(x, y);
  throw InvalidArgument(str("no model is called '", model, "': expected mlp, cnn or transformer"));
}

}  // namespace lockstep::bench

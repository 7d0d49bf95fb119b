// bench/support/models.h - the models that are trained: loss and update of one step, as their users would
// write them.
//
//   Batch batch = batch_of("mlp", 64);
//   Value loss = train("mlp", x, y);       // of Values with the batch's dtypes and shapes: a whole batch, or a replica's part
//
// Sizes, data and initial weights are those of training_step/worker.py, so that every participant's loss is
// the same number. The loss is the mean over the batches of all replicas; with several, this replica's share
// of it. mlp_logits() and transformer_block() are the models without their losses, in any size and dtype.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
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

// f32 numbers, rounded to a dtype.
inline Tensor rounded(const Tensor& numbers, DType dtype) {
  if (dtype == DType::kF32) return numbers;
  Tensor out = Tensor::empty(dtype, numbers.shape());
  visit_dtype(dtype, [&]<class T>(T) {
    const std::span<const float> from = numbers.data<float>();
    const std::span<T> to = out.data<T>();
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(from[i]);
  });
  return out;
}

// Declares a model's parameters and reads them; each gets the next seed.
class Parameters {
 public:
  explicit Parameters(GraphBuilder& builder, DType dtype = DType::kF32) : builder_(builder), dtype_(dtype) {}
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
  Value add(std::string_view name, const Tensor& numbers) {
    ++next_seed_;
    const Tensor initial = rounded(numbers, dtype_);
    // Where a strategy traces a replica's step, variables are those of the graph around it.
    variables_.push_back(internal::BuilderAccess(builder_).find_or_declare(
        {.name = std::string(name), .spec = initial.spec(), .initial = initial}));
    return builder_.read(variables_.back());
  }
  GraphBuilder& builder_;
  DType dtype_;
  std::vector<VariableRef> variables_;
  std::uint32_t next_seed_ = 1;
};

inline Value dense(const Value& x, const Value& weights, const Value& bias) {
  return matmul(x, weights) + bias;
}

// Layers from widths[l] to widths[l + 1] with relu between them; halves[l]: of the range of layer l's weights.
inline Value mlp_logits(Parameters& p, const Value& x, std::span<const std::int64_t> widths,
                        std::span<const float> halves) {
  Value h = x;
  for (std::size_t l = 0; l < halves.size(); ++l) {
    if (l > 0) h = relu(h);
    Value w = p.random(str("w", l + 1), {widths[l], widths[l + 1]}, halves[l]);
    Value bias = p.zeros(str("b", l + 1), {widths[l + 1]});
    h = dense(h, w, bias);
  }
  return h;
}

inline Value mlp(const Value& x, const Value& y) {
  Parameters p(x.builder());
  const std::int64_t widths[] = {784, 512, 512, 10};
  const float halves[] = {0.07F, 0.08F, 0.1F};
  Value loss = global_mean(softmax_cross_entropy(mlp_logits(p, x, widths, halves), y));
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

// A pre-norm block whose feed-forward part is 4 * width wide; halves of the ranges of its weights.
struct BlockSizes {
  std::int64_t sequence, width, heads;
  float qkv, out, in, back;
};

// x: [batch, sequence, width]. The rows that leave the block: [batch * sequence, width].
inline Value transformer_block(Parameters& p, const Value& x, const BlockSizes& sizes) {
  const auto [sequence, width, heads, half_qkv, half_out, half_in, half_back] = sizes;
  const std::int64_t batch = x.shape()[0], inner = 4 * width, part = width / heads;

  Value scale1 = p.ones("scale1", {width});
  Value shift1 = p.zeros("shift1", {width});
  Value w_qkv = p.random("w_qkv", {width, 3 * width}, half_qkv);
  Value b_qkv = p.zeros("b_qkv", {3 * width});
  Value rows = reshape(x, {batch * sequence, width});
  Value h = dense(layer_norm(rows, scale1, shift1), w_qkv, b_qkv);
  h = transpose(reshape(h, {batch, sequence, 3, heads, part}), {2, 0, 3, 1, 4});
  std::vector<Value> qkv = split_evenly(reshape(h, {3, batch * heads, sequence, part}), 3, 0);
  for (Value& each : qkv) each = squeeze(each, {0});
  Value scores = matmul(qkv[0] * (1 / std::sqrt(static_cast<double>(part))), qkv[1], false, true);
  h = reshape(matmul(softmax(scores), qkv[2]), {batch, heads, sequence, part});
  h = reshape(transpose(h, {0, 2, 1, 3}), {batch * sequence, width});
  Value w_out = p.random("w_out", {width, width}, half_out);
  Value b_out = p.zeros("b_out", {width});
  rows = rows + dense(h, w_out, b_out);

  Value scale2 = p.ones("scale2", {width});
  Value shift2 = p.zeros("shift2", {width});
  Value w1 = p.random("w1", {width, inner}, half_in);
  Value b1 = p.zeros("b1", {inner});
  Value w2 = p.random("w2", {inner, width}, half_back);
  Value b2 = p.zeros("b2", {width});
  h = gelu(dense(layer_norm(rows, scale2, shift2), w1, b1));
  return rows + dense(h, w2, b2);
}

inline Value transformer(const Value& x, const Value& y) {
  Parameters p(x.builder());
  const Value rows = transformer_block(p, x, {kSequence, kWidth, 4, 0.08F, 0.1F, 0.07F, 0.07F});
  Value loss = global_mean(square(rows - reshape(y, rows.shape())));
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

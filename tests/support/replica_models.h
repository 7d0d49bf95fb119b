// tests/support/replica_models.h - small models in f64 whose step is the same on one device and on many
// replicas.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/optimizer.h"
#include "lockstep/strategies/strategy.h"
#include "support/random_graph.h"

namespace lockstep::testing {

// A model: its variables, made in the scope of a strategy, the shapes of a row of its inputs, and its step.
struct ReplicaModel {
  std::string name;
  std::vector<Variable> variables;
  std::vector<InputSpec> inputs;                      // with an unknown number of rows
  std::vector<TensorSpec> rows;                       // of one row of each input
  std::function<Value(std::span<const Value>)> loss;  // this replica's share
  bool updates_itself = false;                        // the loss function also updates the variables
};

inline Tensor random_f64(const Shape& shape, std::uint64_t seed, double half = 0.5) {
  Tensor out = Tensor::empty(DType::kF64, shape);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  for (double& x : out.data<double>()) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    x = (static_cast<double>(state >> 11U) * 0x1p-53 * 2 - 1) * half;
  }
  return out;
}

inline ReplicaModel mlp_model() {
  const Variable w1("w1", random_f64({6, 5}, 1)), b1("b1", random_f64({5}, 2));
  const Variable w2("w2", random_f64({5, 3}, 3)), b2("b2", random_f64({3}, 4));
  return {"mlp",
          {w1, b1, w2, b2},
          {InputSpec(DType::kF64, {kUnknown, 6}, "x"), InputSpec(DType::kF64, {kUnknown, 3}, "y")},
          {{DType::kF64, {6}}, {DType::kF64, {3}}},
          [=](std::span<const Value> in) {
            const Value logits = matmul(tanh(matmul(in[0], w1) + b1), w2) + b2;
            return global_mean(softmax_cross_entropy(logits, softmax(in[1])));
          }};
}

inline ReplicaModel cnn_model() {
  const Variable k("k", random_f64({3, 3, 1, 2}, 5)), b("b", random_f64({2}, 6));
  const Variable w("w", random_f64({3 * 3 * 2, 2}, 7));
  return {"cnn",
          {k, b, w},
          {InputSpec(DType::kF64, {kUnknown, 6, 6, 1}, "x"), InputSpec(DType::kF64, {kUnknown, 2}, "y")},
          {{DType::kF64, {6, 6, 1}}, {DType::kF64, {2}}},
          [=](std::span<const Value> in) {
            const Value h = max_pool(relu(conv2d(in[0], k, {.padding = Padding::same()}) + b), {2, 2});
            const Value out = matmul(reshape(h, Shape{kUnknown, 3 * 3 * 2}), w);
            return global_mean(square(out - in[1]));
          }};
}

inline ReplicaModel transformer_model() {
  constexpr std::int64_t kSequence = 3, kWidth = 4, kHeads = 2;
  const Variable scale("scale", Tensor::full(DType::kF64, {kWidth}, 1)),
      shift("shift", random_f64({kWidth}, 8));
  const Variable qkv("qkv", random_f64({kWidth, 3 * kWidth}, 9)),
      out("out", random_f64({kWidth, kWidth}, 10));
  const Variable up("up", random_f64({kWidth, 8}, 11)), down("down", random_f64({8, kWidth}, 12));
  return {
      "transformer",
      {scale, shift, qkv, out, up, down},
      {InputSpec(DType::kF64, {kUnknown, kSequence, kWidth}, "x")},
      {{DType::kF64, {kSequence, kWidth}}},
      [=](std::span<const Value> in) {
        const Value& x = in[0];
        Value h = matmul(layer_norm(x, scale.read(), shift.read()), qkv);
        h = transpose(reshape(h, Shape{kUnknown, kSequence, 3, kHeads, kWidth / kHeads}), {2, 0, 3, 1, 4});
        std::vector<Value> parts = split_evenly(h, 3, 0);
        for (Value& part : parts) part = squeeze(part, {0});
        const Value scores = matmul(parts[0] * (1 / std::sqrt(2.0)), parts[1], false, true);
        h = transpose(matmul(softmax(scores), parts[2]), {0, 2, 1, 3});
        Value y = x + matmul(reshape(h, Shape{kUnknown, kSequence, kWidth}), out);
        y = y + matmul(gelu(matmul(y, up)), down);
        return global_mean(square(y - x * 0.5));
      }};
}

// Centres move to the means of their points: no gradients, replicas add up what they have seen.
inline ReplicaModel k_means_model() {
  constexpr std::int64_t kCentres = 3;
  const Variable centres("centres", random_f64({kCentres, 2}, 13, 2), {.aggregation = Aggregation::kMean});
  ReplicaModel model{"k_means",
                     {centres},
                     {InputSpec(DType::kF64, {kUnknown, 2}, "points")},
                     {{DType::kF64, {2}}},
                     [=](std::span<const Value> in) {
                       const Value& points = in[0];
                       const Value now = centres.read();
                       const Value apart = square(expand_dims(points, 1) - now);
                       const Value distance = sum(apart, {2});
                       const Value owner = argmin(distance, 1);
                       const ReplicaContext replica = replica_context();
                       const Value total =
                           replica.all_reduce(ReduceOp::kSum, segment_sum(points, owner, kCentres));
                       const Value count = replica.all_reduce(
                           ReduceOp::kSum, segment_sum(ones_like(sum(points, {1}, true)), owner, kCentres));
                       centres.assign(where(count > 0.0, total / maximum(count, 1.0), now));
                       return global_mean(min(distance, {1}));
                     }};
  model.updates_itself = true;
  return model;
}

// A chain of random element-wise ops over rows and a variable: whatever it is, it treats rows one by one.
inline ReplicaModel random_model(std::uint64_t seed) {
  const Variable w("w", random_f64({4}, seed + 20)), v("v", random_f64({4, 4}, seed + 21));
  return {str("random_", seed),
          {w, v},
          {InputSpec(DType::kF64, {kUnknown, 4}, "x")},
          {{DType::kF64, {4}}},
          [=](std::span<const Value> in) {
            Value h = matmul(in[0], v);
            std::uint64_t state = seed * 2654435761U + 7;
            for (int i = 0; i < 8; ++i) {
              state = state * 6364136223846793005U + 1442695040888963407U;
              switch ((state >> 40U) % 7) {
                case 0: h = h + w; break;
                case 1: h = h * w; break;
                case 2: h = tanh(h); break;
                case 3: h = matmul(h, v); break;
                case 4: h = sigmoid(h) - 0.5; break;
                case 5: h = h - mean(h, {1}, true); break;
                default: h = square(h) * 0.5; break;
              }
            }
            return global_mean(square(h + w));
          }};
}

}  // namespace lockstep::testing

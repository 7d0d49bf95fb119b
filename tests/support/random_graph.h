// tests/support/random_graph.h - random graphs that run: every op, variables, lambdas, random numbers,
// regions.
//
//   FaultSwitch faults;
//   Graph graph = random_graph({.seed = 7, .faults = &faults});
//   faults.arm(3);                       // the third fallible node throws when it runs
//
// A graph depends on its options alone. Values are f32 of shape [elements] or scalars; above 64k elements
// nodes are cut into shards. With a FaultSwitch, every value made before the commit goes through a lambda
// that can be told to throw.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/core/random.h"
#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep::testing {

// Makes one of many nodes throw.
class FaultSwitch {
 public:
  static constexpr int kNone = -1;
  void arm(int which) { armed_.store(which); }
  void disarm() { arm(kNone); }
  int count() const { return count_; }
  int add() { return count_++; }
  void pass(int which) const {
    if (armed_.load(std::memory_order_relaxed) == which)
      throw std::domain_error("fault " + std::to_string(which));
  }

 private:
  std::atomic<int> armed_{kNone};
  int count_ = 0;
};

struct RandomGraphOptions {
  std::uint64_t seed = 0;
  std::size_t nodes = 20;
  std::int64_t elements = 8;
  std::size_t variables = 3;
  bool lambdas = true;
  bool random = true;
  int regions = 1;  // how deep they nest
  FaultSwitch* faults = nullptr;
};

class RandomGraphMaker {
 public:
  explicit RandomGraphMaker(const RandomGraphOptions& options)
      : options_(options), engine_(options.seed + 1) {}

  Graph make() {
    const Shape shape{options_.elements};
    std::vector<Value> values = {b_.placeholder("x", DType::kF32, shape),
                                 b_.placeholder("y", DType::kF32, shape)};
    values.push_back(b_.constant(filled(3)));
    left_ = b_.placeholder("left", DType::kF32, {40, 24});
    right_ = b_.constant(Tensor::full(DType::kF32, {24, 12}, 0.125));
    for (std::size_t i = 0; i < options_.variables; ++i) {
      variables_.push_back(b_.variable("v" + std::to_string(i), filled(10 + i)));
    }
    add_nodes(values, options_.nodes, options_.regions);
    const std::size_t results = 1 + below(3);
    for (std::size_t i = 0; i < results; ++i) b_.result(one_of(values));
    b_.result(values.back());
    return b_.finish();
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  Value one_of(const std::vector<Value>& values) { return values[below(values.size())]; }

  Tensor filled(std::uint64_t key) const {
    Tensor tensor = Tensor::empty(DType::kF32, {options_.elements});
    const RandomStream stream{.seed = options_.seed, .key = key};
    std::uint64_t i = 0;
    for (float& element : tensor.data<float>()) element = Philox::to_unit_float(stream.block(i++)[0]) - 0.5F;
    return tensor;
  }

  // x * 0.75 + 0.25, as C++ code.
  Value lambda(const Value& x) {
    const TensorSpec spec = x.spec();
    const KernelFn body = [](KernelContext& c) {
      const std::span<const float> in = c.input<float>(0);
      const std::span<float> out = c.output<float>(0);
      for (std::size_t i = 0; i < in.size(); ++i) out[i] = in[i] * 0.75F + 0.25F;
    };
    const CallOptions options{.seconds = 1e-5 * static_cast<double>(below(4)),
                              .effects = below(3) == 0 ? Effect::kOpaque : Effect::kHost};
    return b_.call("lambda", {&x, 1}, {&spec, 1}, body, options)[0];
  }

  Value fallible(const Value& x) {
    FaultSwitch* faults = options_.faults;
    if (faults == nullptr) return x;
    const int which = faults->add();
    const TensorSpec spec = x.spec();
    const KernelFn body = [faults, which](KernelContext& c) {
      faults->pass(which);
      std::ranges::copy(c.input<float>(0), c.output<float>(0).begin());
    };
    return b_.call("fault_" + std::to_string(which), {&x, 1}, {&spec, 1}, body, {.seconds = 5e-6})[0];
  }

  std::vector<Value> body_of(std::vector<Value> values, int depth) {
    add_nodes(values, 1 + below(3), depth);
    return {values.back()};
  }

  Value make_value(const std::vector<Value>& values, int depth) {
    const Value a = one_of(values);
    const Value c = one_of(values);
    GraphBuilder& b = b_;
    switch (below(14)) {
      case 0: return a + c;
      case 1: return a * c;
      case 2: return a - c * 0.5F;
      case 3: return relu(a);
      case 4: return identity(a);
      case 5: return a / 3.0F + sum(c) * 0.001F;
      case 6: return a + sum(sum(matmul(left_, right_), {0}, true) * 0.01F);
      case 7: return options_.random ? a * b.random_uniform({DType::kF32, {options_.elements}}) : a + 1.0F;
      case 8: return options_.lambdas ? lambda(a) : a - 1.0F;
      case 9: return variables_.empty() ? a : a + b.read(variables_[below(variables_.size())]);
      case 10: return variables_.empty() ? c : b.read(variables_[below(variables_.size())]);
      case 11: {
        if (depth == 0) return a * 0.5F;
        return cond(
            less(sum(a), sum(c)),
            [&] {
              return body_of({a, c}, depth - 1);
            },
            [&] {
              return body_of({c, a}, depth - 1);
            })[0];
      }
      case 12: {
        if (depth == 0) return c + 0.5F;
        const std::vector<Value> initial = {a, b.constant(0.0F)};
        return while_loop(
            initial, [&](std::span<const Value> carried) { return less(carried[1], 2.0F); },
            [&](std::span<const Value> carried) {
              return std::vector<Value>{body_of({carried[0], c}, depth - 1)[0], carried[1] + 1.0F};
            })[0];
      }
      default: {
        if (depth == 0) return relu(c) - a;
        const std::vector<Value> shared = {a};
        return replicated(b_, 2, shared, {}, [&](std::span<const Value> inputs) {
          return body_of({inputs[0], c}, depth - 1);
        })[0][below(2)];
      }
    }
  }

  void add_nodes(std::vector<Value>& values, std::size_t nodes, int depth) {
    for (std::size_t i = 0; i < nodes; ++i) {
      if (!variables_.empty() && below(4) == 0) {
        GraphBuilder& b = b_;
        const VariableRef& variable = variables_[below(variables_.size())];
        const Value operand = fallible(one_of(values) * 0.5F);
        const Value updated = below(2) == 0 ? b.assign(variable, operand) : b.assign_add(variable, operand);
        if (below(3) == 0) values.push_back(updated);
      }
      values.push_back(fallible(make_value(values, depth)));
    }
  }

  RandomGraphOptions options_;
  std::mt19937_64 engine_;
  GraphBuilder b_;
  Value left_, right_;
  std::vector<VariableRef> variables_;
};

inline Graph random_graph(const RandomGraphOptions& options) { return RandomGraphMaker(options).make(); }

// Feeds for its parameters, in order.
inline std::vector<Tensor> feeds_for(const Graph& graph, std::uint64_t seed) {
  std::vector<Tensor> feeds;
  for (const NodeId id : graph.parameters()) {
    const TensorSpec& spec = graph.node(id).outputs()[0];
    Tensor tensor = Tensor::empty(spec.dtype, spec.shape);
    const RandomStream stream{.seed = seed, .key = feeds.size() + 1};
    std::uint64_t i = 0;
    for (float& element : tensor.data<float>()) element = Philox::to_unit_float(stream.block(i++)[0]) * 2 - 1;
    feeds.push_back(std::move(tensor));
  }
  return feeds;
}

}  // namespace lockstep::testing

// tests/support/gradient_check.h - gradients against central differences, first and second order.
//
//   expect_gradients([](GraphBuilder&, std::span<const Value> x) { return tanh(x[0]) * x[1]; },
//                    {random_tensor({3, 4}, 1), random_tensor({4}, 2)});
//
// The function may give a value of any shape: what is differentiated is its sum with fixed random weights.
// Inputs are f64; others (indices, predicates) are fed but not differentiated. Each check is made twice: with
// the shapes of the inputs known to the graph, and with all their dimensions unknown until they are fed.
//
// First order: dL/dx by gradients() against (L(x+h) - L(x-h)) / 2h. Second order: the same for M = sum(dL/dx * v),
// v random. Where there are many elements a fixed random choice of them is looked at. Random ops with a key
// draw the same numbers in every run. gradient_check::ops_checked() names the ops that lay on the way.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"

namespace lockstep::testing {

// Uniform in [low, high), f64; the seed decides.
inline Tensor random_tensor(const Shape& shape, std::uint64_t seed, double low = -1, double high = 1) {
  Tensor tensor = Tensor::empty(DType::kF64, shape);
  const RandomStream stream{seed, 77, 0, 0};
  const std::span<double> data = tensor.data<double>();
  for (std::size_t i = 0; i < data.size(); ++i) {
    const Philox::Block block = stream.block(i);
    data[i] = low + (high - low) * Philox::to_unit_double(block[0], block[1]);
  }
  return tensor;
}

struct GradientCheck {
  double step = 1e-5;
  double tolerance = 1e-6;         // of the first order, against max(1, |expected|)
  double second_tolerance = 2e-5;  // of the second order
  bool second_order = true;
  bool unknown_shapes = true;  // also with every dimension unknown
  std::size_t elements = 12;   // looked at per input
  std::uint64_t seed = 1;      // of weights and of the choice
};

using GradientCheckFn = std::function<Value(GraphBuilder&, std::span<const Value>)>;

namespace gradient_check {

// The ops between what was differentiated by and what was differentiated, of all checks of this process so
// far.
inline std::set<std::string>& ops_checked() {
  static std::set<std::string> ops;
  return ops;
}

// Whatever depends on one of the values, through any dtype, and leads to the target: there a wrong rule
// shows.
inline void note_ops_between(const std::vector<Value>& from, const Value& target) {
  const Graph& graph = target.builder().graph();
  std::vector<bool> depends(graph.id_bound(), false), leads(graph.id_bound(), false);
  for (const Value& value : from) depends[value.id().node.index()] = true;
  leads[target.id().node.index()] = true;
  const auto inputs = [&](std::size_t i) { return graph.node(NodeId(i)).inputs(); };
  for (std::size_t i = 0; i < depends.size(); ++i) {  // ids are in the order of making
    for (const ValueId input : inputs(i)) depends[i] = depends[i] || depends[input.node.index()];
  }
  for (std::size_t i = leads.size(); i-- > 0;) {
    if (!leads[i]) continue;
    for (const ValueId input : inputs(i)) leads[input.node.index()] = true;
    if (depends[i]) ops_checked().insert(graph.node(NodeId(i)).op().name);
  }
}

inline double total(const std::vector<Tensor>& results) { return results[0].data<double>()[0]; }
inline std::vector<Tensor> run_first_step(Interpreter& graph, const std::vector<Tensor>& feeds) {
  graph.set_step(0);  // random ops draw from it
  return graph.run(feeds);
}

// Moves one element of one input back and forth; the slope of the graph's first result.
inline double slope(Interpreter& graph, std::vector<Tensor> feeds, std::size_t input, std::size_t element,
                    double step) {
  feeds[input] = feeds[input].clone();
  double& x = feeds[input].data<double>()[element];
  const double centre = x;
  const double h = step * std::max(1.0, std::abs(centre));
  x = centre + h;
  const double up = total(run_first_step(graph, feeds));
  const double up_at = x;
  x = centre - h;
  const double down = total(run_first_step(graph, feeds));
  return (up - down) / (up_at - x);
}

// Compares results 1.. of `derivatives` (one per floating input) with slopes of result 0 of `function`.
inline void compare(const char* what, Interpreter& function, const std::vector<Tensor>& derivatives,
                    const std::vector<Tensor>& feeds, std::size_t num_inputs, double tolerance,
                    const GradientCheck& options) {
  std::size_t next = 1;
  for (std::size_t i = 0; i < num_inputs; ++i) {
    if (feeds[i].dtype() != DType::kF64) continue;
    const Tensor& derivative = derivatives.at(next++);
    ASSERT_EQ(derivative.spec(), feeds[i].spec()) << what << ": input " << i;
    const auto count = static_cast<std::size_t>(feeds[i].num_elements());
    const std::size_t looks = std::min(count, options.elements);
    for (std::size_t k = 0; k < looks; ++k) {
      const RandomStream choice{options.seed, i, 0, 0};
      const std::size_t element = count <= options.elements ? k : choice.block(k)[0] % count;
      const double expected = slope(function, feeds, i, element, options.step);
      const double got = derivative.data<double>()[element];
      EXPECT_NEAR(got, expected, tolerance * std::max(1.0, std::abs(expected)))
          << what << ": input " << i << ", element " << element;
    }
  }
}

inline void check(const GradientCheckFn& function, const std::vector<Tensor>& inputs, bool unknown,
                  const GradientCheck& options) {
  std::vector<Tensor> feeds = inputs;
  const auto parameters = [&](GraphBuilder& b) {
    std::vector<Value> values;
    for (std::size_t i = 0; i < feeds.size(); ++i) {
      const std::vector<std::int64_t> any(feeds[i].shape().rank(), kUnknown);
      const bool hide = unknown && i < inputs.size();
      values.push_back(b.placeholder("x" + std::to_string(i), feeds[i].dtype(),
                                     hide ? Shape(std::span<const std::int64_t>(any)) : feeds[i].shape()));
    }
    return values;
  };
  const auto floating = [](std::span<const Value> values) {
    std::vector<Value> chosen;
    for (const Value& value : values) {
      if (value.dtype() == DType::kF64) chosen.push_back(value);
    }
    return chosen;
  };
  // The function's own shape, for the weights, which are fed behind the inputs.
  {
    GraphBuilder b;
    const std::vector<Value> x = parameters(b);
    b.result(function(b, x));
    Interpreter shape_only(b.finish());
    const Tensor y = shape_only.run(feeds)[0];
    ASSERT_EQ(y.dtype(), DType::kF64);
    feeds.push_back(random_tensor(y.shape(), options.seed + 1000));
  }
  const auto loss = [&](GraphBuilder& b, std::span<const Value> x) {
    return sum(function(b, x.first(inputs.size())) * x[inputs.size()]);
  };
  GraphBuilder first;
  {
    const std::vector<Value> x = parameters(first);
    const Value l = loss(first, x);
    const std::vector<Value> by = floating(std::span(x).first(inputs.size()));
    note_ops_between(by, l);
    first.result(l);
    for (const Gradient& g : gradients(l, by)) first.result(to_dense(g));
  }
  Interpreter first_order(first.finish());
  std::vector<Tensor> derivatives = first_order.run(feeds);
  compare("first order", first_order, derivatives, feeds, inputs.size(), options.tolerance, options);
  if (!options.second_order || ::testing::Test::HasFatalFailure()) return;

  // One direction per floating input.
  std::size_t directions = 0;
  for (const Tensor& input : inputs) {
    if (input.dtype() == DType::kF64) {
      feeds.push_back(random_tensor(input.shape(), options.seed + 2000 + directions++));
    }
  }
  GraphBuilder second;
  {
    const std::vector<Value> x = parameters(second);
    const Value l = loss(second, x);
    const std::vector<Value> by = floating(std::span(x).first(inputs.size()));
    const std::vector<Gradient> g = gradients(l, by);
    Value m = sum(to_dense(g[0]) * x[inputs.size() + 1]);
    for (std::size_t i = 1; i < g.size(); ++i) m = m + sum(to_dense(g[i]) * x[inputs.size() + 1 + i]);
    note_ops_between(by, m);
    second.result(m);
    for (const Gradient& h : gradients(m, by)) second.result(to_dense(h));
  }
  Interpreter second_order(second.finish());
  derivatives = second_order.run(feeds);
  compare("second order", second_order, derivatives, feeds, inputs.size(), options.second_tolerance, options);
}

}  // namespace gradient_check

inline void expect_gradients(const GradientCheckFn& function, const std::vector<Tensor>& inputs,
                             const GradientCheck& options = {}) {
  {
    SCOPED_TRACE("shapes known");
    gradient_check::check(function, inputs, false, options);
  }
  if (!options.unknown_shapes) return;
  SCOPED_TRACE("shapes unknown");
  gradient_check::check(function, inputs, true, options);
}

}  // namespace lockstep::testing

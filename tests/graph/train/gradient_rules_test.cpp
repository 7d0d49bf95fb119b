// Tests: graph/train/gradients.cpp, graph/train/second_derivatives.cpp, graph/ops/gradient_rule.cpp
// Every op that has a gradient rule is held against central differences: here once, briefly; the tests of the
// ops look at shapes, axes and edges. An op that is registered with a rule and has no case below fails, by
// name.
#include <map>
#include <string>
#include <vector>

#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "support/gradient_check.h"

namespace lockstep {
namespace {

using testing::expect_gradients;
using testing::GradientCheck;
using testing::GradientCheckFn;
using testing::random_tensor;
using testing::gradient_check::ops_checked;

using Inputs = std::span<const Value>;

// Ops that exist when the program starts: other tests register ops of their own.
const std::vector<std::string> kBuiltIn = OpRegistry::global().names();

struct Case {
  GradientCheckFn function;
  std::vector<Tensor> inputs;
  GradientCheck options = {.unknown_shapes = false, .elements = 4};
};

// Away from zero, so that kinks and poles are far from the differences.
Tensor positive(const Shape& shape, std::uint64_t seed = 1) { return random_tensor(shape, seed, 0.3, 0.9); }

Case of_one(Value (*function)(const Operand&)) {
  return {[function](GraphBuilder&, Inputs x) { return function(x[0]); }, {positive({3})}};
}
Case of_two(Value (*function)(const Operand&, const Operand&)) {
  return {[function](GraphBuilder&, Inputs x) { return function(x[0], x[1]); },
          {positive({2, 3}, 1), positive({3}, 2)}};
}
template <class F>
Case of(std::vector<Tensor> inputs, F function) {
  return {[function](GraphBuilder&, Inputs x) { return function(x); }, std::move(inputs)};
}
// The first derivative, so that what is checked are the second and the third.
Case derivative(const Case& of) {
  Case result = of;
  result.function = [function = of.function](GraphBuilder& b, Inputs x) {
    const Value y = function(b, x);
    return to_dense(gradients(sum(y * y * y), {x[0]})[0]);
  };
  return result;
}

Value real(const Value& x) { return cast(x, DType::kF64); }
Value longs(const Value& like, const std::vector<std::int64_t>& numbers) {
  const Shape shape{static_cast<std::int64_t>(numbers.size())};
  return like.builder().constant(Tensor::from<std::int64_t>(shape, numbers));
}

Case max_pool_case() {
  return of({random_tensor({1, 4, 4, 1}, 1)}, [](Inputs x) { return max_pool(x[0], {2, 2}); });
}
Case avg_pool_case() {
  return of({random_tensor({1, 4, 4, 1}, 1)}, [](Inputs x) { return square(avg_pool(x[0], {2, 2})); });
}
Case conv_case() {
  return of({random_tensor({1, 3, 3, 1}, 1), random_tensor({2, 2, 1, 2}, 2)},
            [](Inputs x) { return conv2d(x[0], x[1]); });
}
Case cross_entropy_case() {
  return of({random_tensor({2, 3}, 1)}, [](Inputs x) {
    return softmax_cross_entropy(x[0], longs(x[0], {2, 0}));
  });
}
Case layer_norm_case() {
  return of({random_tensor({2, 4}, 1), positive({4}, 2), positive({4}, 3)},
            [](Inputs x) { return layer_norm(x[0], x[1], x[2]); });
}

std::map<std::string, Case> all_cases() {
  const Tensor vector = positive({3}), matrix = positive({2, 3});
  std::map<std::string, Case> cases;

  // --- element by element
  for (const auto& [name, function] :
       std::map<std::string, Value (*)(const Operand&)>{{"abs", abs},
                                                        {"ceil", ceil},
                                                        {"cos", cos},
                                                        {"erf", erf},
                                                        {"exp", exp},
                                                        {"floor", floor},
                                                        {"gelu", gelu},
                                                        {"identity", identity},
                                                        {"log", log},
                                                        {"log1p", log1p},
                                                        {"neg", neg},
                                                        {"reciprocal", reciprocal},
                                                        {"relu", relu},
                                                        {"round", round},
                                                        {"rsqrt", rsqrt},
                                                        {"sigmoid", sigmoid},
                                                        {"sign", sign},
                                                        {"sin", sin},
                                                        {"softplus", softplus},
                                                        {"sqrt", sqrt},
                                                        {"square", square},
                                                        {"tanh", tanh},
                                                        {"checkpoint", checkpoint},
                                                        {"global_mean", global_mean},
                                                        {"global_sum", global_sum}}) {
    cases[name] = of_one(function);
  }
  for (const auto& [name, function] :
       std::map<std::string, Value (*)(const Operand&, const Operand&)>{{"add", add},
                                                                        {"div", div},
                                                                        {"floor_div", floor_div},
                                                                        {"maximum", maximum},
                                                                        {"minimum", minimum},
                                                                        {"mod", mod},
                                                                        {"mul", mul},
                                                                        {"pow", pow},
                                                                        {"sub", sub}}) {
    cases[name] = of_two(function);
  }
  cases["check_finite"] = of({vector}, [](Inputs x) { return check_finite(x[0]); });
  cases["clip"] = of({vector}, [](Inputs x) { return clip(x[0], 0, 0.5); });
  cases["where"] =
      of({vector, vector}, [](Inputs x) { return where(greater(x[0], 0.5), exp(x[0]), sin(x[1])); });
  cases["relu_grad"] = of({vector, vector}, [](Inputs x) { return relu_grad(x[0], x[1]); });
  cases["gelu_grad"] = of({vector, vector}, [](Inputs x) { return gelu_grad(x[0], x[1]); });
  cases["cast"] = of({vector}, [](Inputs x) { return real(square(cast(x[0], DType::kF32))); });
  cases["cast"].options = {.step = 1e-2, .tolerance = 1e-3, .second_order = false, .unknown_shapes = false};

  // --- across replicas, of which there is one here
  cases["all_reduce"] = of({vector}, [](Inputs x) { return all_reduce(ReduceOp::kMean, square(x[0])); });
  cases["copy"] = of({vector}, [](Inputs x) { return x[0].builder().op1("copy", {square(x[0])}); });

  // --- shapes
  cases["broadcast_to"] = of({vector}, [](Inputs x) { return broadcast_to(x[0], Shape{2, 3}); });
  cases["sum_to"] = of({matrix}, [](Inputs x) { return sum_to(x[0], Shape{3}); });
  cases["reshape"] = of({matrix}, [](Inputs x) { return reshape(x[0], Shape{3, 2}); });
  cases["expand_dims"] = of({vector}, [](Inputs x) { return expand_dims(x[0], 0); });
  cases["squeeze"] = of({positive({1, 3})}, [](Inputs x) { return squeeze(x[0], {0}); });
  cases["transpose"] = of({matrix}, [](Inputs x) { return transpose(x[0]); });
  cases["flip"] = of({matrix}, [](Inputs x) { return flip(x[0]); });
  cases["tile"] = of({vector}, [](Inputs x) { return tile(x[0], {2}); });
  cases["concat"] = of({vector, vector}, [](Inputs x) { return concat({x[0], x[1]}, 0); });
  cases["split"] = of({vector}, [](Inputs x) { return split(x[0], {1, 2}, 0)[1]; });
  cases["all_gather"] = of({vector}, [](Inputs x) { return all_gather(square(x[0])); });
  cases["reduce_scatter"] =
      of({matrix}, [](Inputs x) { return reduce_scatter(ReduceOp::kMean, square(x[0]), 1, 1); });
  cases["broadcast_replica"] = of({vector}, [](Inputs x) { return broadcast_replica(square(x[0])); });
  cases["slice_at"] = of({matrix}, [](Inputs x) { return square(slice_at(x[0], 1, 2, 1)); });
  cases["unslice_at"] = of({vector}, [](Inputs x) { return square(unslice_at(x[0], 1, longs(x[0], {5}))); });
  cases["slice"] = of({vector}, [](Inputs x) { return slice(x[0], {1}, {3}); });
  cases["unslice"] = of({vector}, [](Inputs x) { return unslice(x[0], longs(x[0], {5}), {1}, {4}); });
  cases["pad"] = of({vector}, [](Inputs x) { return pad(x[0], {1}, {2}); });
  cases["gather"] = of({vector}, [](Inputs x) { return gather(x[0], longs(x[0], {2, 0, 2})); });
  cases["scatter_add"] = of({vector}, [](Inputs x) {
    return scatter_add(longs(x[0], {2, 0, 2}), x[0], longs(x[0], {4}));
  });

  // --- along axes
  cases["sum"] = of({matrix}, [](Inputs x) { return sum(x[0], {0}); });
  cases["mean"] = of({matrix}, [](Inputs x) { return mean(x[0], {0}); });
  cases["max"] = of({matrix}, [](Inputs x) { return max(x[0], {0}); });
  cases["min"] = of({matrix}, [](Inputs x) { return min(x[0], {0}); });
  cases["prod"] = of({matrix}, [](Inputs x) { return prod(x[0], {1}); });
  cases["prod_of_others"] = cases["prod"];  // reached in the second order
  cases["logsumexp"] = of({matrix}, [](Inputs x) { return logsumexp(x[0], {1}); });
  cases["cumsum"] = of({matrix}, [](Inputs x) { return cumsum(x[0]); });
  cases["top_k"] = of({matrix}, [](Inputs x) { return top_k(x[0], 2).values; });
  cases["softmax"] = of({matrix}, [](Inputs x) { return softmax(x[0]); });
  cases["softmax_grad"] = cases["softmax"];
  cases["log_softmax"] = of({matrix}, [](Inputs x) { return log_softmax(x[0]); });
  cases["softmax_cross_entropy"] = cross_entropy_case();
  cases["softmax_cross_entropy_grad"] = cross_entropy_case();
  cases["moments"] = of({matrix}, [](Inputs x) {
    const Moments m = moments(x[0], {1});
    return m.mean * m.variance;
  });
  cases["layer_norm"] = layer_norm_case();
  cases["layer_norm_grad"] = layer_norm_case();
  cases["matmul"] = of({matrix, positive({3, 2}, 2)}, [](Inputs x) { return matmul(x[0], x[1]); });
  cases["conv2d"] = conv_case();
  cases["conv2d_backward_input"] = conv_case();
  cases["conv2d_backward_filter"] = conv_case();
  cases["avg_pool"] = avg_pool_case();
  cases["avg_pool_backward"] = avg_pool_case();
  cases["max_pool"] = max_pool_case();
  cases["max_pool_backward"] = max_pool_case();
  cases["max_pool_pick"] = derivative(max_pool_case());

  // --- through which nothing flows: by shapes, by keys, or because it says so
  cases["shape_of"] = of({matrix}, [](Inputs x) { return x[0] * real(sum(shape_of(x[0]))); });
  cases["num_elements"] = of({matrix}, [](Inputs x) { return x[0] * real(num_elements(x[0])); });
  cases["num_elements"].options.unknown_shapes = true;  // a constant where they are known
  cases["global_count"] = of({matrix}, [](Inputs x) { return x[0] * global_count(x[0], DType::kF64); });
  cases["one_hot"] = of({vector}, [](Inputs x) { return x[0] * one_hot(argmax(x[0]), 3, DType::kF64); });
  cases["full"] =
      of({vector}, [](Inputs x) { return x[0] * full(x[0].builder(), DType::kF64, shape_of(x[0]), 2); });
  cases["iota"] =
      of({vector}, [](Inputs x) { return x[0] * iota(x[0].builder(), DType::kF64, shape_of(x[0])); });
  cases["random_uniform"] =
      of({vector}, [](Inputs x) { return x[0] * random_uniform(shape_of(x[0]), DType::kF64, 0, 1, 1); });
  cases["random_normal"] =
      of({vector}, [](Inputs x) { return x[0] * random_normal(shape_of(x[0]), DType::kF64, 0, 1, 1); });
  cases["random_integers"] = of(
      {vector}, [](Inputs x) { return x[0] * real(random_integers(shape_of(x[0]), DType::kI64, 1, 9, 1)); });
  cases["dropout"] = of({positive({8})}, [](Inputs x) { return square(dropout(x[0], 0.4, 1)); });
  cases["stop_gradient"] = of({vector}, [](Inputs x) { return x[0] * stop_gradient(ceil(x[0])); });

  // --- regions
  cases["cond"] = of({vector}, [](Inputs x) {
    return cond(
        greater(sum(x[0]), 0.0), [&]() -> std::vector<Value> { return {sin(x[0])}; },
        [&]() -> std::vector<Value> { return {x[0]}; })[0];
  });
  cases["while_loop"] = of({vector, vector}, [](Inputs x) {
    return while_loop(
        x.first(1), [](Inputs now) { return less(sum(now[0]), 100.0); },
        [&](Inputs now) -> std::vector<Value> { return {sin(now[0]) + x[1]}; }, LoopOptions{3})[0];
  });
  cases["custom_gradient"] = of({vector}, [](Inputs x) {
    return custom_gradient(
        x.first(1), [](Inputs in) { return exp(in[0]); },
        [](Inputs, const Value& y, const Value& flow) -> std::vector<Value> { return {flow * y}; });
  });
  return cases;
}

TEST(GradientRules, AreAllHeldAgainstDifferences) {
  std::map<std::string, Case> cases = all_cases();
  for (const std::string& name : kBuiltIn) {
    if (!OpRegistry::global().get(name).gradient) continue;
    if (name == "group_all_reduce") continue;  // needs members: tests/graph/run/group_programs_test.cpp
    SCOPED_TRACE(name);
    const auto found = cases.find(name);
    if (found == cases.end()) {
      ADD_FAILURE() << "op '" << name << "' has a gradient rule and no case in this file; add one";
      continue;
    }
    ops_checked().clear();
    expect_gradients(found->second.function, found->second.inputs, found->second.options);
    EXPECT_TRUE(ops_checked().contains(name)) << "the case of '" << name << "' does not go through it";
    cases.erase(found);
  }
  for (const auto& [name, left] : cases)
    ADD_FAILURE() << "there is no op '" << name << "' with a gradient rule";
}

}  // namespace
}  // namespace lockstep

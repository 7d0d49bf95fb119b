// Tests: graph/train/gradients.cpp, graph/train/gradients_regions.cpp, graph/train/optimizer.cpp
// Gradients through regions that stand in each other, and gradients taken inside of them.
#include <cmath>
#include <functional>

#include "lockstep/graph/interpret/interpreter.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/graph/train/gradients.h"
#include "lockstep/graph/train/optimizer.h"
#include "support/gradient_check.h"
#include "support/op_test.h"
#include "support/program_test.h"

namespace lockstep {
namespace {

using testing::caught;
using testing::evaluate;
using testing::expect_gradients;
using ::testing::HasSubstr;
using testing::random_tensor;

using Inputs = std::span<const Value>;
using Branch = std::vector<Value>;

// `step` applied as often as `trips` says, at most `bound` times.
Value repeated(const Value& x, std::int64_t trips, std::int64_t bound,
               const std::function<Value(const Value&)>& step) {
  const Value zero = x.builder().constant(std::int64_t{0});
  const std::vector<Value> initial = {zero, x};
  return while_loop(
      initial, [trips](Inputs now) { return less(now[0], trips); },
      [&](Inputs now) -> Branch {
        const Value next = step(now[1]);
        return {now[0] + 1, next};
      },
      LoopOptions{bound})[1];
}

std::vector<Tensor> two_vectors() { return {random_tensor({2}, 1), random_tensor({2}, 2)}; }

TEST(GradientsRegions, ALoopInALoop) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return repeated(x[0], 2, 3, [&](const Value& outer) {
          return repeated(outer, 3, 3, [&](const Value& v) { return tanh(v * x[1]) + v; });
        });
      },
      two_vectors());
}

TEST(GradientsRegions, ABranchInALoop) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return repeated(x[0], 3, 5, [&](const Value& v) {
          return cond(
              greater(sum(v), 0.0), [&]() -> Branch { return {sin(v) * x[1]}; },
              [&]() -> Branch { return {exp(v)}; })[0];
        });
      },
      two_vectors());
}

TEST(GradientsRegions, ALoopInABranch) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return cond(
            greater(sum(x[0]), -10.0),
            [&]() -> Branch { return {repeated(x[0], 3, 4, [&](const Value& v) { return sin(v) * x[1]; })}; },
            [&]() -> Branch { return {exp(x[0])}; })[0];
      },
      two_vectors());
}

TEST(GradientsRegions, ACustomRuleInALoop) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        return repeated(x[0], 3, 4, [&](const Value& v) {
          return custom_gradient(
              {v, x[1]}, [](Inputs in) { return sin(in[0]) * in[1]; },
              [](Inputs in, const Value&, const Value& flow) -> Branch {
                const Value first = flow * cos(in[0]) * in[1];
                return {first, flow * sin(in[0])};
              });
        });
      },
      two_vectors());
}

TEST(GradientsRegions, AThirdOrder) {
  expect_gradients(
      [](GraphBuilder&, Inputs x) {
        const Value y = repeated(x[0], 3, 4, [&](const Value& v) {
          return cond(
              greater(sum(v), -10.0), [&]() -> Branch { return {sin(v) * x[1] + v}; },
              [&]() -> Branch { return {v}; })[0];
        });
        return Value(gradients(sum(y * y), {x[0]})[0]);
      },
      two_vectors());
}

TEST(GradientsRegions, CarriedValuesThatChangePlaces) {
  expect_gradients(
      [](GraphBuilder& b, Inputs x) {
        const std::vector<Value> initial = {x[0], b.constant(std::int64_t{0}), x[1]};
        const std::vector<Value> last = while_loop(
            initial, [](Inputs now) { return less(now[1], 4); },
            [&](Inputs now) -> Branch {
              const Value a = sin(now[2]) + now[0];
              const Value trip = now[1] + 1;
              return {a, trip, now[0] * x[2]};
            },
            LoopOptions{9});
        return last[0] * last[2];
      },
      {random_tensor({2}, 1), random_tensor({2}, 2), random_tensor({2}, 3)});
}

TEST(GradientsRegions, OfNoElements) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {kUnknown});
  const Value y = repeated(x, 3, 4, [&](const Value& v) { return sin(v) * x; });
  b.result(gradients(sum(y), {x})[0]);
  EXPECT_EQ(evaluate(b, {Tensor::zeros(DType::kF64, {0})})[0].shape(), Shape{0});
}

TEST(GradientsRegions, ALoopWithoutATrip) {
  for (const std::int64_t trips : {0, 5}) {  // the condition says so, or the bound
    expect_gradients(
        [trips](GraphBuilder&, Inputs x) {
          return repeated(x[0], trips, trips == 0 ? 4 : 0, [&](const Value& v) { return sin(v) * x[1]; });
        },
        two_vectors());
  }
}

TEST(GradientsRegions, TheWayBackDrawsTheSameNumbers) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {3});
  const Value y = repeated(x, 3, 3, [&](const Value& v) {
    return v * b.random_uniform({DType::kF64, {3}}, 0.5, 1);
  });
  const Value g = gradients(sum(y), {x})[0];
  b.result(y);
  b.result(g);
  const std::vector<Tensor> results = evaluate(b, {Tensor::from<double>({3}, {1, 1, 1})});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(results[0].data<double>()[i], results[1].data<double>()[i], 1e-12);
  }
}

// What is computed again for the way back stands where it stood.
TEST(GradientsRegions, TheWayBackKeepsDevices) {
  GraphBuilder b;
  const Value p = b.placeholder("p", DType::kBool, {});
  const Value x = b.placeholder("x", DType::kF64, {});
  const auto branch = [&]() -> Branch {
    const auto device = b.device("cpu:1");
    return {exp(square(x))};
  };
  const Value y = cond(p, branch, [&]() -> Branch { return {x}; })[0];
  const Value g = gradients(y, {x})[0];
  int squares = 0;
  for (const Node& node : b.graph().node(g.id().node).regions()[0].nodes()) {
    if (node.op().name != "square") continue;
    EXPECT_EQ(node.device(), "cpu:1");
    ++squares;
  }
  EXPECT_EQ(squares, 1);
}

// --- taken inside

// The result of `inside` in a branch that is taken.
double in_a_branch(GraphBuilder& b, const std::function<Value()>& inside) {
  const Value p = b.placeholder("p", DType::kBool, {});
  const Value zero = b.constant(0.0);
  b.result(cond(
      p, [&]() -> Branch { return {inside()}; }, [&]() -> Branch { return {zero}; })[0]);
  return evaluate(b, {Tensor::scalar(0.5), Tensor::scalar(true)})[0].item();
}

TEST(GradientsRegions, TakenInsideGoThroughWhatIsCaptured) {
  // d exp(x^2) * x by x, where x^2 is computed outside
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value outside = square(x);
  const double got = in_a_branch(b, [&] {
    const Value y = exp(outside) * x;
    return Value(gradients(y, {x})[0]);
  });
  EXPECT_NEAR(got, std::exp(0.25) * (2 * 0.25 + 1), 1e-12);
}

TEST(GradientsRegions, TakenInsideOfATargetOutside) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value y = exp(square(x));
  EXPECT_NEAR(in_a_branch(b, [&] { return Value(gradients(y, {x})[0]); }), std::exp(0.25), 1e-12);
}

TEST(GradientsRegions, TakenInsideGoThroughTwoLevels) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value outside = square(x);
  const double got = in_a_branch(b, [&] {
    const Value between = sin(outside);
    return cond(
        less(x, 1.0),
        [&]() -> Branch {
          const Value y = exp(between) + outside;
          return {Value(gradients(y, {x})[0])};
        },
        [&]() -> Branch { return {x}; })[0];
  });
  EXPECT_NEAR(got, (std::exp(std::sin(0.25)) * std::cos(0.25) + 1) * 2 * 0.5, 1e-12);
}

TEST(GradientsRegions, TakenInsideOfAVariableReadOutside) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const VariableRef w = b.variable("w", Tensor::scalar(2.0));
  const Value read = b.read(w);
  const double got = in_a_branch(b, [&] {
    const Value y = square(read * x) + b.read(w);  // read inside as well
    return Value(gradients(y, {w})[0]);
  });
  EXPECT_NEAR(got, 2 * 2.0 * 0.25 + 1, 1e-12);
}

TEST(GradientsRegions, AnOptimizerInsideUpdatesAVariableReadOutside) {
  GraphBuilder b;
  const Value p = b.placeholder("p", DType::kBool, {});
  const VariableRef w = b.variable("w", Tensor::scalar(2.0));
  const Value loss = square(b.read(w));
  const Value zero = b.constant(0.0);
  cond(
      p,
      [&]() -> Branch {
        Sgd(0.25).minimize(loss * 1.0, {w});
        return {zero};
      },
      [&]() -> Branch { return {zero}; });
  Interpreter run(b.finish());
  run.run({Tensor::scalar(false)});
  EXPECT_EQ(run.variables().at("w").item(), 2);
  run.run({Tensor::scalar(true)});
  EXPECT_EQ(run.variables().at("w").item(), 1);
}

// What is captured and has nothing to do with the source is not gone into.
TEST(GradientsRegions, TakenInsideNeedNoRulesForTheRest) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF64, {});
  const Value other = b.constant(3.0);
  const TensorSpec spec{DType::kF64, {}};
  const double got = in_a_branch(b, [&] {
    const Value without_rule = b.call("f", {&other, 1}, {&spec, 1},
                                      [](KernelContext& c) {
                                        *static_cast<double*>(c.output(0)) =
                                            *static_cast<const double*>(c.input(0));
                                      },
                                      {.effects = Effect::kPure})[0];
    return Value(gradients(x * without_rule, {x})[0]);
  });
  EXPECT_EQ(got, 3);
}

// --- variables read inside

class VariableReadInside : public ::testing::Test {
 protected:
  // A branch that reads w.
  Value branch() {
    return cond(
        p, [&]() -> Branch { return {b.read(w)}; }, [&]() -> Branch { return {x}; })[0];
  }
  GraphBuilder b;
  Value p = b.placeholder("p", DType::kBool, {});
  Value x = b.placeholder("x", DType::kF64, {});
  VariableRef w = b.variable("w", Tensor::scalar(2.0));
};

TEST_F(VariableReadInside, IsRefusedOnTheWay) {
  const Value y = branch() * b.read(w);
  EXPECT_THAT(caught([&] { gradients(y, {w}); }).what,
              HasSubstr("variable 'w' is read inside a region of 'cond'; read it outside"));
}

// The way back would read it again, and see the new value.
TEST_F(VariableReadInside, MustNotBeWrittenBeforeTheWayBack) {
  const Value y = branch() * x;
  EXPECT_NO_THROW(gradients(y, {x}));
  const auto inside = [&]() -> Branch {
    b.assign(w, x);
    return {Value(gradients(y, {x})[0])};
  };
  EXPECT_THAT(caught([&] { cond(p, inside, [&]() -> Branch { return {x}; }); }).what,
              HasSubstr("reads the variable 'w', which 'w/assign' has written since"));
  b.assign(w, x);
  EXPECT_THAT(caught([&] { gradients(y, {x}); }).what, HasSubstr("has written since"));
}

// What a region reads of a variable that the graph around it has written is another value than what was read
// before.
TEST_F(VariableReadInside, BeginsAnewWhereItWasWrittenBefore) {
  const Value old = b.read(w);
  b.assign(w, x);
  EXPECT_THAT(caught([&] { gradients(b.read(w) * x, {w}, {.unconnected = Unconnected::kError}); }).what,
              HasSubstr("does not depend on variable 'w'"));
  const auto inside = [&]() -> Branch {
    const Value now = b.read(w);
    return {Value(gradients(now * now * old, {w})[0])};
  };
  b.result(cond(p, inside, [&]() -> Branch { return {x}; })[0]);
  const Tensor gradient = Interpreter(b.finish()).run({Tensor::scalar(true), Tensor::scalar(3.0)})[0];
  EXPECT_EQ(gradient.item(), 2 * 3.0 * 2.0);
}

TEST_F(VariableReadInside, DoesNotMatterElsewhere) {
  b.result(branch());
  const Value y = square(b.read(w));
  b.result(gradients(y, {w})[0]);
  EXPECT_EQ(evaluate(b, {Tensor::scalar(true), Tensor::scalar(1.0)})[1].item(), 4);
}

}  // namespace
}  // namespace lockstep

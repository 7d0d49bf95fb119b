// Tests: graph/build/builder.cpp
// What the builder refuses: values used too late, names that are taken, operands that are no values.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// The error that the code throws, which must be of this kind and name this file.
template <class Kind = InvalidArgument, class Code>
std::string message_of(const Code& code) {
  try {
    code();
  } catch (const Kind& error) {
    EXPECT_THAT(error.place().file, HasSubstr("builder_misuse_test.cpp")) << error.what();
    EXPECT_GT(error.place().line, 0U) << error.what();
    return error.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(BuilderMisuse, AValueThatLeavesItsBranchIsRefused) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value p = b.placeholder("p", DType::kBool, {});
  Value leak;
  cond(
      p,
      [&] {
        leak = relu(x);
        return std::vector<Value>{leak};
      },
      [&] { return std::vector<Value>{x}; });
  EXPECT_THAT(message_of([&] { relu(leak); }), HasSubstr("outside of the function that made it"));
  EXPECT_THAT(message_of([&] { leak + x; }), HasSubstr("outside of the function that made it"));
  EXPECT_THAT(message_of([&] { x* leak; }), HasSubstr("outside of the function that made it"));
  EXPECT_THAT(message_of([&] { b.result(leak); }), HasSubstr("outside of the function that made it"));
  b.result(relu(x));  // the builder itself is none the worse
  EXPECT_EQ(b.finish().results().size(), 1U);
}

TEST(BuilderMisuse, AValueOfAFinishedGraphIsRefused) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  b.result(x);
  b.finish();
  b.placeholder("other", DType::kF64, {3, 3});
  EXPECT_THAT(message_of([&] { relu(x); }), HasSubstr("after finish()"));
  EXPECT_THAT(message_of([&] { b.result(x); }), HasSubstr("after finish()"));
}

TEST(BuilderMisuse, AValueThatOutlivesItsBuilderIsRefusedByAnother) {
  Value kept;
  for (int again = 0; again < 2; ++again) {  // where the first builder lay, most likely
    GraphBuilder b;
    const Value x = b.placeholder("x", DType::kF32, {2});
    if (again == 0) {
      kept = x * 2.0F;
      continue;
    }
    const Value y = x * 3.0F;
    EXPECT_THAT(message_of([&] { y + kept; }), HasSubstr("hand it over as a result and an argument"));
    EXPECT_THAT(message_of([&] { b.result(kept); }), HasSubstr("after finish()"));
    EXPECT_NE(y, kept);
  }
}

TEST(BuilderMisuse, AValueOfABranchThatIsGoneIsRefusedInTheNext) {
  GraphBuilder b;
  const Value p = b.placeholder("p", DType::kBool, {});
  const Value x = b.placeholder("x", DType::kF32, {2});
  Value leak;
  const auto same = [&] { return std::vector<Value>{x}; };
  cond(
      p, [&] { return std::vector<Value>{leak = relu(x)}; }, same);
  const auto use = [&] { return std::vector<Value>{neg(x) + leak}; };
  EXPECT_THAT(message_of([&] { cond(p, use, same); }), HasSubstr("outside of the function that made it"));
}

TEST(BuilderMisuse, ResultsAreNotSetInsideABranch) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2});
  const Value p = b.placeholder("p", DType::kBool, {});
  const auto same = [&] { return std::vector<Value>{x}; };
  const auto wrong = [&] {
    b.result(x);
    return std::vector<Value>{x};
  };
  EXPECT_THAT(message_of<FailedPrecondition>([&] { cond(p, wrong, same); }),
              HasSubstr("return the value from the function"));
}

TEST(BuilderMisuse, NumbersAreNoOperandsWhereAValueIsMeant) {
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {2, 2});
  EXPECT_THAT(message_of([&] { matmul(x, 2); }), HasSubstr("matmul: takes a Value here, got the number 2"));
  EXPECT_THAT(message_of([&] { relu(3.5); }), HasSubstr("relu: takes a Value here, got the number 3.5"));
  EXPECT_THAT(message_of([&] { sum(Value()); }), HasSubstr("sum: an empty Value was used"));
  EXPECT_THAT(message_of([&] { b.result(Value()); }), HasSubstr("result: an empty Value was used"));
}

TEST(BuilderMisuse, PlaceholdersHaveNamesOfTheirOwn) {
  GraphBuilder b;
  b.placeholder("x", DType::kF32, {2});
  EXPECT_THAT(message_of([&] { b.placeholder("x", DType::kF32, {2}); }), HasSubstr("the name is taken"));
  EXPECT_THAT(message_of([&] { b.placeholder("", DType::kF32, {2}); }), HasSubstr("the name is empty"));
  const auto scope = b.scope("inner");
  EXPECT_EQ(b.placeholder("x", DType::kF32, {2}).name(), "inner/x");
  EXPECT_THROW(static_cast<void>(b.scope("")), InvalidArgument);
}

TEST(BuilderMisuse, VariablesNeedAnInitialValueAndLambdasACostThatIsOne) {
  GraphBuilder b;
  EXPECT_THAT(message_of([&] { b.variable("v", Tensor()); }), HasSubstr("empty tensor handle"));
  for (const double seconds : {-1.0, std::nan("")}) {
    EXPECT_THAT(message_of([&] { b.call("f", [] {}, {.seconds = seconds}); }), HasSubstr("the cost hint"));
  }
}

TEST(BuilderMisuse, AnOpWithoutOutputsHasNoFirstOne) {
  OpDef def;
  def.name = "test.no_outputs";
  def.infer = [](InferContext&) {};
  def.effects = Effect::kHost;
  OpRegistry::global().add(std::move(def));
  GraphBuilder b;
  EXPECT_THAT(message_of([&] { b.op1("test.no_outputs", {}); }), HasSubstr("has no outputs"));
  EXPECT_TRUE(b.op("test.no_outputs", {}).empty());
}

TEST(BuilderMisuse, TensorsGivenToAGraphAreCopied) {
  GraphBuilder b;
  Tensor t = Tensor::full(DType::kF32, {2}, 1);
  const Value c = b.constant(t);
  b.variable("v", t);
  t.data<float>()[0] = 7;
  const Graph& graph = b.graph();
  EXPECT_EQ(graph.node(c.id().node).find<Tensor>("value")->data<float>()[0], 1.0F);
  EXPECT_EQ(graph.find_variable("v")->initial.data<float>()[0], 1.0F);
}

}  // namespace
}  // namespace lockstep

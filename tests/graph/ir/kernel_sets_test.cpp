// Tests: graph/ir/op.cpp
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/build/builder.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/testing/fake_gpu.h"
#include "support/program_test.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OpDef copy_op(const char* name) {
  OpDef def;
  def.name = name;
  def.inputs = Arity::exactly(1);
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  return def;
}

KernelMaker nothing() {
  return [](const NodeView&, std::span<const TensorSpec>) -> KernelFn { return [](KernelContext&) {}; };
}

TEST(KernelSets, AreAddedToOpsThatExist) {
  OpRegistry registry;
  const OpDef& op = registry.add(copy_op("o"));
  EXPECT_EQ(registry.kernel(op, "cpu"), nullptr);
  registry.add_kernel("o", "other", nothing());
  registry.add_kernel("o", "cpu", nothing());
  ASSERT_NE(registry.kernel(op, "other"), nullptr);
  EXPECT_NE(registry.kernel(op, "cpu"), registry.kernel(op, "other"));
  EXPECT_THAT(registry.kernel_sets(op), ElementsAre("cpu", "other"));
  const KernelDef* before = registry.kernel(op, "other");
  for (int i = 0; i < 100; ++i) registry.add_kernel("o", str("set ", i), nothing());
  EXPECT_EQ(registry.kernel(op, "other"), before);  // it never moves
}

// Of ops that are there already and of ops that come later, once each; an op's own kernel comes first.
TEST(KernelSets, AreDerivedFromWhatOpsSay) {
  OpRegistry registry;
  const OpDef& early = registry.add([] {
    OpDef def = copy_op("early");
    def.source = {"x0"};
    return def;
  }());
  int asked = 0;
  registry.derive_kernels("derived", [&](const OpDef& op) -> KernelMaker {
    ++asked;
    return op.source.empty() ? KernelMaker() : nothing();
  });
  EXPECT_THROW(registry.derive_kernels("derived", [](const OpDef&) { return nothing(); }), InvalidArgument);
  const OpDef& silent = registry.add(copy_op("silent"));
  EXPECT_THAT(registry.kernel_sets(early), ElementsAre("derived"));
  EXPECT_THAT(registry.kernel_sets(silent), ElementsAre());
  const KernelDef* const first = registry.kernel(early, "derived");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(registry.kernel(early, "derived"), first);
  EXPECT_EQ(registry.kernel(silent, "derived"), nullptr);
  EXPECT_EQ(asked, 2);
}

TEST(KernelSets, CostAndSplitOfAnOpAreThoseOfTheCpu) {
  OpRegistry registry;
  OpDef def = copy_op("o");
  def.cost = [](const NodeView&, std::span<const TensorSpec>) { return Cost{1, 2, 3}; };
  def.split = [](const NodeView&, std::span<const TensorSpec>) { return Split{7}; };
  def.kernels["cpu"] = nothing();
  def.kernels["other"] = nothing();
  const OpDef& op = registry.add(std::move(def));
  EXPECT_TRUE(registry.kernel(op, "cpu")->cost);
  EXPECT_TRUE(registry.kernel(op, "cpu")->split);
  EXPECT_FALSE(registry.kernel(op, "other")->cost);
  EXPECT_FALSE(registry.kernel(op, "other")->split);
}

TEST(KernelSets, BadOnesAreRefused) {
  OpRegistry registry;
  OpDef def = copy_op("o");
  def.kernels["cpu"] = nothing();
  registry.add(std::move(def));
  EXPECT_THAT(caught([&] { registry.add_kernel("p", "cpu", nothing()); }).what, HasSubstr("no op named 'p'"));
  EXPECT_THAT(caught([&] { registry.add_kernel("o", "cpu", nothing()); }).what, HasSubstr("already"));
  EXPECT_THAT(caught([&] { registry.add_kernel("o", "", nothing()); }).what,
              HasSubstr("names no kernel set"));
  EXPECT_THAT(caught([&] { registry.add_kernel("o", "x", {}); }).what, HasSubstr("has no maker"));
}

// Makers learn the device that their node will run on.
TEST(KernelSets, MakersLearnTheDevice) {
  OpDef def = copy_op("test.device_name");
  def.kernels["cpu"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    const float index = node.device() == nullptr ? -1.0F : static_cast<float>(node.device()->index);
    return [index](KernelContext& c) { c.output<float>(0)[0] = index; };
  };
  OpRegistry::global().add(std::move(def));
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1});
  const auto on = b.device("cpu:2");
  b.result(b.op1("test.device_name", {x}));
  const Program program = compile(b.finish(), Runtime({.threads = 1, .cpu_devices = 3}));
  EXPECT_EQ(program.run(list({vec({0})}))[0].item(), 2);
}

// Of a logical device: not its own number.
TEST(KernelSets, MakersLearnTheCard) {
  static int card = -2;
  OpDef def = copy_op("test.card");
  def.kernels["fake"] = [](const NodeView& node, std::span<const TensorSpec>) -> KernelFn {
    card = node.card();
    return [](KernelContext&) {};
  };
  OpRegistry::global().add(std::move(def));
  const auto gpu = std::make_shared<FakeGpu>(FakeGpuOptions{.devices = 2});
  const Runtime runtime({.threads = 1, .backends = {gpu}, .gpus = {{.card = 1}, {.card = 0}}});
  GraphBuilder b;
  const Value x = b.placeholder("x", DType::kF32, {1});
  const auto on = b.device("gpu:0");
  b.result(b.op1("test.card", {x}));
  compile(b.finish(), runtime).run(list({vec({0})}));
  EXPECT_EQ(card, 1);
  const std::vector<Attribute> none;
  EXPECT_EQ(NodeView("x", {}, none, {}, nullptr, {}).card(), -1);
}

}  // namespace
}  // namespace lockstep::testing

// Tests: strategies/compat.cpp
#include "lockstep/strategies/compat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/strategy_test.h"

namespace lockstep {
namespace {

using testing::test_devices;

using ::testing::ElementsAre;

TEST(Compat, KnowsOneTowerFromSeveral) {
  EXPECT_TRUE(compat::is_single_tower(MirroredStrategy({.devices = test_devices(1)})));
  EXPECT_FALSE(compat::is_single_tower(MirroredStrategy({.devices = test_devices(2)})));
}

TEST(Compat, HooksHaveNothingToDo) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_FALSE(compat::between_graph(strategy));
  EXPECT_TRUE(compat::should_init(strategy));
  EXPECT_TRUE(compat::should_checkpoint(strategy));
  EXPECT_TRUE(compat::should_save_summary(strategy));
  EXPECT_TRUE(compat::initialize(strategy).empty());
  EXPECT_TRUE(compat::finalize(strategy).empty());
  auto scope = strategy.scope();
  const Variable w("w", Tensor::scalar(1.F));
  EXPECT_EQ(&compat::value_container(w), &w);
}

TEST(Compat, CountsGpusInPlaceOfDevices) {
  const MirroredOptions options = compat::mirrored_options(0, {.num_packs = 2});
  EXPECT_EQ(options.num_gpus, 0);
  EXPECT_EQ(options.num_packs, 2) << "the other options stay";
  EXPECT_THAT(MirroredStrategy(options).worker_devices(), ElementsAre("cpu:0"));
}

TEST(Compat, RunsOneStepWithoutInput) {
  MirroredStrategy strategy({.devices = test_devices(2)});
  EXPECT_EQ(compat::experimental_run(strategy, [] { return replica_context().replica_id(); })[1].item(), 1);
}

}  // namespace
}  // namespace lockstep

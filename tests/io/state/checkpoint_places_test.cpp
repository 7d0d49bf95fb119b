// Tests: io/state/checkpoint.cpp, io/state/snapshot.cpp, graph/run/logical_variable.cpp
// Checkpoints of variables in memories that the host does not read.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/io/state/checkpoint.h"
#include "lockstep/strategies/mirrored.h"
#include "support/far_devices.h"
#include "support/program_test.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::floats;
using testing::vec;

struct Model {
  explicit Model(const std::vector<std::string>& devices)
      : strategy(options(devices)), scope(strategy.scope()) {}

  static MirroredOptions options(const std::vector<std::string>& devices) {
    MirroredOptions made{.devices = devices};
    made.base.runtime = testing::far_runtime();
    return made;
  }
  static VariableOptions on_read(Aggregation aggregation) {
    return {.synchronization = Synchronization::kOnRead, .aggregation = aggregation};
  }

  MirroredStrategy strategy;
  Strategy::Scope scope;
  Variable equal{"equal", vec({1, 2})};
  Variable sum{"sum", vec({4, 6}), on_read(Aggregation::kSum)};
  Variable mean{"mean", vec({1, 1}), on_read(Aggregation::kMean)};
  Variable slices{"slices", vec({1, 2, 3}), on_read(Aggregation::kSlices)};
};

TEST(CheckpointPlaces, SavedOnOneMemoryAndRestoredOnOthers) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "model.lkc";
  {
    Model gpus({"gpu:0", "gpu:1"});
    EXPECT_EQ(gpus.strategy.variables().find("equal")->memory(), testing::kFarA);
    EXPECT_EQ(gpus.strategy.variables().find("sum/replica_1")->memory(), testing::kFarB);
    gpus.equal.assign(vec({7, 8}));
    gpus.sum.assign(vec({3, 5}));
    gpus.mean.assign(vec({2, 9}));
    gpus.slices.assign(vec({4, 5, 6}));
    EXPECT_EQ(floats(gpus.slices.value()), (std::vector<float>{4, 5, 6}));
    save_checkpoint(gpus.strategy.variables(), path);
  }
  for (const std::vector<std::string>& devices : {std::vector<std::string>{"cpu:0", "cpu:1"},
                                                  {"gpu:1", "gpu:0"},
                                                  {"gpu:0", "gpu:2"},
                                                  {"cpu:0", "gpu:1"}}) {
    Model other(devices);
    restore_checkpoint(other.strategy.variables(), path);
    EXPECT_EQ(floats(other.equal.value()), (std::vector<float>{7, 8})) << devices[0];
    EXPECT_EQ(floats(other.sum.value()), (std::vector<float>{3, 5})) << devices[0];
    EXPECT_EQ(floats(other.mean.value()), (std::vector<float>{2, 9})) << devices[0];
    EXPECT_EQ(floats(other.slices.value()), (std::vector<float>{4, 5, 6})) << devices[0];
    for (const Tensor& copy : other.sum.copies()) EXPECT_EQ(copy.memory(), kHostMemory);
  }
}

}  // namespace
}  // namespace lockstep

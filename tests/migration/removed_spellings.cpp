// Spellings that moved. None of them compiles: the compiler's message has to say what is written instead.
#include "lockstep/lockstep.h"

void test_removed_spellings(lockstep::MirroredStrategy& strategy, const lockstep::Variable& variable);
void test_removed_spellings(lockstep::MirroredStrategy& strategy, const lockstep::Variable& variable) {
  strategy.is_single_tower();
  strategy.between_graph();
  strategy.should_init();
  strategy.should_checkpoint();
  strategy.should_save_summary();
  lockstep::extended::initialize(strategy);
  lockstep::extended::finalize(strategy);
  lockstep::extended::value_container(variable);
  lockstep::experimental_run(strategy, [] {});
  [[maybe_unused]] const lockstep::NpzLimits npz;
  [[maybe_unused]] const lockstep::CheckpointLimits checkpoint;
  [[maybe_unused]] const lockstep::GraphFileLimits graph_file;
  [[maybe_unused]] const lockstep::ParseLimits text;
}

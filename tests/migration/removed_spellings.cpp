// Spellings that moved. None of them compiles: the compiler's message has to say what is written instead.
#include "lockstep/lockstep.h"

// A message is one line.
// clang-format off
void test_removed_spellings(lockstep::MirroredStrategy& strategy, const lockstep::Variable& variable);
void test_removed_spellings(lockstep::MirroredStrategy& strategy, const lockstep::Variable& variable) {
  strategy.is_single_tower();  // refused: is_single_tower() is compat::is_single_tower(strategy) now: include lockstep/strategies/compat.h
  strategy.between_graph();  // refused: between_graph() is compat::between_graph(strategy) now: include lockstep/strategies/compat.h
  strategy.should_init();  // refused: should_init() is compat::should_init(strategy) now: include lockstep/strategies/compat.h
  strategy.should_checkpoint();  // refused: should_checkpoint() is compat::should_checkpoint(strategy) now: include lockstep/strategies/compat.h
  strategy.should_save_summary();  // refused: should_save_summary() is compat::should_save_summary(strategy) now: include lockstep/strategies/compat.h
  lockstep::extended::initialize(strategy);  // refused: extended::initialize() is compat::initialize(strategy) now: include lockstep/strategies/compat.h
  lockstep::extended::finalize(strategy);  // refused: extended::finalize() is compat::finalize(strategy) now: include lockstep/strategies/compat.h
  lockstep::extended::value_container(variable);  // refused: extended::value_container() is compat::value_container(value) now: include lockstep/strategies/compat.h
  lockstep::experimental_run(strategy, [] {});  // refused: experimental_run() is compat::experimental_run(strategy, ...) now: include lockstep/strategies/compat.h
  [[maybe_unused]] const lockstep::NpzLimits npz;  // refused: NpzLimits is ReadLimits now: include lockstep/core/read_limits.h
  [[maybe_unused]] const lockstep::CheckpointLimits checkpoint;  // refused: CheckpointLimits is ReadLimits now: include lockstep/core/read_limits.h
  [[maybe_unused]] const lockstep::GraphFileLimits graph_file;  // refused: GraphFileLimits is ReadLimits now: include lockstep/core/read_limits.h
  [[maybe_unused]] const lockstep::ParseLimits text;  // refused: ParseLimits is ReadLimits now: include lockstep/core/read_limits.h
}
// clang-format on

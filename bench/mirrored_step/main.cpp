// bench/mirrored_step - a training step on replicas: MirroredStrategy, and by hand where it is small, as a
// worker for run.py.
//
//   bench_mirrored_step --as mirrored|taskflow [--threads N]       waits for commands (training_step/worker.py says which)
//   bench_mirrored_step --profile mlp 64 --threads 2 [--steps N]   where the time of the replicated step goes
//
// Exit status: 0; 2 for a wrong argument.
#include "participants.h"
#include "support/worker.h"

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  return worker_main(argc, argv, {{"mirrored", make_mirrored}, {"taskflow", make_taskflow}});
}

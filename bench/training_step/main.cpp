// bench/training_step - a whole training step: Lockstep and what BLAS alone needs, as a worker for run.py.
//
//   bench_training_step --as lockstep|blas|halves [--threads N]       waits for commands (worker.py says which)
//   bench_training_step --profile MODEL BATCH [--threads N] [--steps N]    where the time of Lockstep's step goes
//
// run.py starts it, beside the rivals, and does the comparing. Method and targets: bench/README.md.
// Exit status: 0; 2 for a wrong argument.
#include "participants.h"
#include "support/worker.h"

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  return worker_main(argc, argv,
                     {{"lockstep", make_lockstep}, {"blas", make_blas_bound}, {"halves", make_halves_bound}});
}

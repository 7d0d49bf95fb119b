// bench_gpu - Lockstep on one NVIDIA card, beside what the card reaches without it.
//
//   bench_gpu [--quick] [--only chain,adamw] [--json FILE]      rows of their own, in this process
//   bench_gpu --as lockstep|bound [--threads N]                 a worker of run.py, which compares training steps
//   bench_gpu --compile CASE BATCH                              compiles a step once; the row `compile` starts it
//
// Without a card it says so and ends. Method and targets: bench/README.md. Exit status: 0; 2 for a wrong argument.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "card.h"
#include "participants.h"
#include "rows.h"
#include "support/report.h"
#include "support/worker.h"

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  const auto asks = [&](const char* flag) { return argc > 1 && std::strcmp(argv[1], flag) == 0; };
  if (!has_card()) {
    std::fprintf(stderr, "bench_gpu: no card that CUDA can use: nothing to measure\n");
    return 0;
  }
  if (asks("--as") || asks("--profile"))
    return worker_main(argc, argv, {{"lockstep", make_lockstep}, {"bound", make_bound}});
  if (asks("--compile") && argc == 4) return compile_once(argv[2], std::atol(argv[3]));

  // What is measured is the card: neighbours on other cores matter little.
  Report report(argc, argv, "bench_gpu",
                {.sampling = {.slice_seconds = 0.025, .tolerance = 0.5}, .parts = row_names()});
  std::printf("%s\n", card_name().c_str());
  measure_rows(report);
  measure_compiling(report);
  report.finish();
}

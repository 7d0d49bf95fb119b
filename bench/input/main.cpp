// bench/input - batches a second, from files and from memory.
//
//   bench_input --make FOLDER              writes the files that all participants read, unless they are there (200 MB)
//   bench_input --as lockstep --threads N  waits for commands (training_step/worker.py says which); a step is a batch.
//                                          BENCH_INPUT says where the files are
//
// The comparison is run.py. Exit status: 0; 1 if files cannot be written; 2 for a wrong argument.
#include <cstdio>
#include <exception>
#include <string>

#include "cases.h"
#include "support/worker.h"

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  if (argc == 3 && std::string(argv[1]) == "--make") {
    try {
      make_files(argv[2]);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "bench_input: %s\n", error.what());
      return 1;
    }
  }
  return worker_main(argc, argv, {{"lockstep", make_input}});
}

// bench/gpu/rows.h - what is measured in this process: Lockstep beside what the card reaches without it.
#pragma once

#include "support/report.h"

namespace lockstep::bench {

// The names that --only takes.
std::vector<std::string> row_names();
void measure_rows(Report& report);

// Compiling the step of a case in processes of their own, with an empty cache of kernels and with a full one, and the memory
// of the card that a step takes.
void measure_compiling(Report& report);
// Such a process: compiles and runs, and prints what measure_compiling() reads.
int compile_once(const char* what, long batch);

}  // namespace lockstep::bench

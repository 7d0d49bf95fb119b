// bench/workers/participants.h - what the processes of this benchmark do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "support/participant.h"

namespace lockstep::bench {

std::unique_ptr<Participant> make_worker(const std::string& model, std::int64_t batch, int rank, int size,
                                         const std::filesystem::path& folder);
// Joins, compiles a small step, makes it once, and leaves.
void start_cold(int rank, int size, const std::filesystem::path& folder);
// Prints how long steps take whose computing and exchanging could go on at the same time. The exit status.
int overlap();

}  // namespace lockstep::bench

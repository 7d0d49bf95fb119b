// bench/support/worker.h - the main function of a worker: a process that makes training steps when it is told
// to.
//
//   return worker_main(argc, argv, {{"lockstep", make_lockstep}, {"blas", make_blas_bound}});
//
//   <program> --as NAME [--threads N]                           waits for commands on standard input
//   <program> --profile MODEL BATCH [--as NAME] [--threads N] [--steps N]    where the time of a step goes
//
// Commands are those of training_step/worker.py, and "plan CASE BATCH". Without --as the first participant is
// profiled. Exit status: 0; 2 for a wrong argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/participant.h"

namespace lockstep::bench {

// Of a model, a batch and a number of threads; null where this one does not take part with that model.
using MakeParticipant =
    std::function<std::unique_ptr<Participant>(const std::string&, std::int64_t, std::size_t)>;
using Participants = std::vector<std::pair<std::string, MakeParticipant>>;

int worker_main(int argc, char** argv, const Participants& participants);

}  // namespace lockstep::bench

// bench/training_step/participants.h - who can make training steps, or what stands for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "support/participant.h"

namespace lockstep::bench {

// `model`: mlp, cnn, transformer. Throws InvalidArgument for another.
std::unique_ptr<Participant> make_lockstep(const std::string& model, std::int64_t batch, std::size_t threads);
// The products of a step of the MLP and nothing else; null for the other models.
//   blas     one thread after another, BLAS with that many threads
//   halves   two threads, each with BLAS to itself: half of the batch, and half of each weight gradient
std::unique_ptr<Participant> make_blas_bound(const std::string& model, std::int64_t batch,
                                             std::size_t threads);
std::unique_ptr<Participant> make_halves_bound(const std::string& model, std::int64_t batch,
                                               std::size_t threads);

}  // namespace lockstep::bench

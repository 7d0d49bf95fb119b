// bench/gpu/participants.h - who makes training steps on a card, or what stands for them. `what` names the case
// (models.h); threads are those of the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "support/participant.h"

namespace lockstep::bench {

std::unique_ptr<Participant> make_lockstep(const std::string& what, std::int64_t batch, std::size_t threads);
// The products of a step, by cuBLASLt, and nothing else; its plan() has the card's copy rate.
std::unique_ptr<Participant> make_bound(const std::string& what, std::int64_t batch, std::size_t threads);

}  // namespace lockstep::bench

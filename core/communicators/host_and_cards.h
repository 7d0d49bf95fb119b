// core/communicators/host_and_cards.h - one group that exchanges arrays of the host, and of cards.
//
//   auto host = connect_gloo({.rank = 0, .size = 2}, place);
//   auto cards = connect_nccl({.rank = 0, .size = 2}, place);
//   Group group(host_and_cards(std::move(host), std::move(cards)));
//
// Arrays of the host go over the one communicator, those of cards (CommunicatorCall::memory) over the other, in one order. Before
// a collective of cards is begun, all participants agree on it over the host's. So calls that do not agree are found there, with
// both sides named; a collective of cards can be declined like any other; and the group says for whom it waits. It costs a small
// message to each other participant ahead of each collective. Messages from one card to another are not agreed on.
//
// If one of the two is over, so is the other.
//
// Thread safety: as Communicator.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/core/communicators/communicator.h"

namespace lockstep {

// Throws InvalidArgument if one is missing, if they are not of the same rank and size, or if `host` does not take memory of the
// host, or `cards` that of cards.
LOCKSTEP_API std::unique_ptr<Communicator> host_and_cards(std::unique_ptr<Communicator> host,
                                                          std::unique_ptr<Communicator> cards);

}  // namespace lockstep

// core/nccl/card_group.cpp - the cards of one process as participants of one group.
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/communicators/device_group.h"
#include "lockstep/core/communicators/rendezvous.h"
#include "lockstep/core/internal/built_in_backends.h"
#include "lockstep/core/nccl/nccl_group.h"

namespace lockstep::internal {

namespace {

// Each card on a thread of its own: a participant waits for the others while it joins.
std::vector<std::unique_ptr<Communicator>> join_all(const std::vector<int>& cards, Deadline deadline) {
  const Deadline latest = deadline_in(std::chrono::minutes(2));
  if (!deadline || *latest < *deadline) deadline = latest;
  InProcessRendezvous place;
  std::vector<std::unique_ptr<Communicator>> joined(cards.size());
  std::vector<std::exception_ptr> errors(cards.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < cards.size(); ++rank) {
      threads.emplace_back([&, rank] {
        try {
          joined[rank] = connect_nccl({.name = "cards",
                                       .rank = static_cast<int>(rank),
                                       .size = static_cast<int>(cards.size()),
                                       .card = cards[rank]},
                                      place, deadline);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  return joined;
}

}  // namespace

CardCollectives find_nccl() {
  if (!has_nccl()) return {};
  return {"nccl", [](std::vector<int> cards) {
            return std::make_shared<DeviceGroup>(
                [cards = std::move(cards)](Deadline deadline) { return join_all(cards, deadline); });
          }};
}

}  // namespace lockstep::internal

// core/nccl/card_group.cpp - the cards of one process as participants of one group.
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/communicators/device_group.h"
#include "lockstep/core/communicators/rendezvous.h"
#include "lockstep/core/error.h"
#include "lockstep/core/internal/built_in_backends.h"
#include "lockstep/core/nccl/nccl_group.h"

namespace lockstep::internal {

namespace {

// Throws the error that caused the others, if there is one: who was told to stop knows less than who waited in vain, and both
// know less than who failed.
void throw_cause(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr cancelled, late;
  for (const std::exception_ptr& error : errors) {
    try {
      if (error != nullptr) std::rethrow_exception(error);
    } catch (const Error& known) {
      if (known.code() == ErrorCode::kCancelled) {
        cancelled = error;
      } else if (known.code() == ErrorCode::kDeadlineExceeded) {
        late = error;
      } else {
        throw;
      }
    }
  }
  if (late != nullptr) std::rethrow_exception(late);
  if (cancelled != nullptr) std::rethrow_exception(cancelled);
}

// Each card on a thread of its own: a participant waits for the others while it joins.
std::vector<std::unique_ptr<Communicator>> join_all(const std::vector<int>& cards, Deadline deadline) {
  const Deadline latest = deadline_in(std::chrono::minutes(2));
  if (!deadline || *latest < *deadline) deadline = latest;
  InProcessRendezvous place;
  std::stop_source stop;  // nobody waits for one that has failed
  std::vector<std::unique_ptr<Communicator>> joined(cards.size());
  std::vector<std::exception_ptr> errors(cards.size());
  const auto join = [&](std::size_t rank) {
    try {
      joined[rank] = connect_nccl({.name = "cards",
                                   .rank = static_cast<int>(rank),
                                   .size = static_cast<int>(cards.size()),
                                   .card = cards[rank]},
                                  place, deadline, stop.get_token());
    } catch (...) {
      errors[rank] = std::current_exception();
      stop.request_stop();
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (std::size_t rank = 0; rank < cards.size(); ++rank) threads.emplace_back(join, rank);
    } catch (...) {  // there can be no further thread
      stop.request_stop();
      throw;
    }
  }
  throw_cause(errors);
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

// core/gloo/member_end.cpp - what participants of a group over Gloo tell each other beside their calls, and how a group ends.
#include <algorithm>
#include <cstring>

#include "lockstep/core/base/thread_guards.h"
#include "lockstep/core/gloo/internal/member.h"

namespace lockstep::internal::gloo_group {
namespace {

constexpr std::chrono::seconds kLeaving{2};        // for the others to get what was sent to them
constexpr std::chrono::milliseconds kTelling{50};  // for the others to hear why the group ends

}  // namespace

// --- the others

void Member::listen(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::string how = "its connection ended";
  try {
    Notice notice;
    GlooBuffer buffer(mesh_, GlooMesh::Use::kControl, &notice, sizeof notice);
    for (;;) {
      buffer.receive(rank, kControlSlot, 0, sizeof notice);
      buffer.await_received();
      hear(rank, notice);
    }
  } catch (const GlooInterrupted&) {
  } catch (const GlooLost& lost) {
    how = lost.what();
  } catch (const std::exception& error) {
    how = error.what();
  }
  Lock lock(mutex_);
  peer.is_gone = true;
  if (!peer.leaves) set_failure(lock, {.why = text(of_group(rank), " was lost: ", how)});
  peer.has_all = true;
  changed_.notify_all();
}

void Member::hear(int rank, const Notice& notice) {
  Lock lock(mutex_);
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  switch (notice.kind) {
    case Notice::Kind::kLeaves: {
      if (!peer.leaves) ++leavers_;
      peer.leaves = notice.completed;
      peer.has_all = true;
      let_go(lock);
      break;
    }
    case Notice::Kind::kHas: peer.has_all = true; break;
    case Notice::Kind::kFails: {
      const auto length = static_cast<std::size_t>(std::find(notice.why.begin(), notice.why.end(), '\0') -
                                                   notice.why.begin());
      Failure failure{.code = static_cast<ErrorCode>(std::min<std::uint32_t>(
                          notice.code, static_cast<std::uint32_t>(ErrorCode::kOutOfMemory))),
                      .why = std::string(notice.why.data(), length)};
      if (notice.has_place != 0) {
        failure.at = notice.place.told_by(notice.noticed_by, spec_.rank);
        failure.noticed_by = notice.noticed_by;
        failure.told = notice.place;
      }
      set_failure(lock, std::move(failure));
      break;
    }
  }
  changed_.notify_all();
}

void Member::tell(int rank, const Notice& notice) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(telling_);
    Told& told = told_.emplace_back();
    told.notice = notice;
    told.buffer =
        std::make_unique<GlooBuffer>(mesh_, GlooMesh::Use::kControl, &told.notice, sizeof told.notice);
    told.buffer->send(rank, kControlSlot, 0, sizeof told.notice);
  } catch (...) {  // it is gone: its listener knows
  }
}

// Tells those that leave, and whose collectives are complete here, that they may. An operation that would wait for them fails.
void Member::let_go(Lock& lock) {
  if (leavers_ == 0) return;
  for (int rank = 0; rank < spec_.size; ++rank) {
    Peer& peer = peers_[static_cast<std::size_t>(rank)];
    if (!peer.leaves) continue;
    if (collectives_.completed >= peer.leaves->collectives && !peer.was_told) {
      peer.was_told = true;
      lock.unlock();
      tell(rank, {.kind = Notice::Kind::kHas});
      lock.lock();
    }
    const auto waits_in_vain = [](const Lane& lane, std::uint64_t completed) {
      return !lane.queue.empty() && lane.queue.front()->place_.number >= completed;
    };
    bool is_in_vain = waits_in_vain(collectives_, peer.leaves->collectives);
    for (const auto& [key, lane] : messages_) {
      if (key.first == rank)
        is_in_vain =
            is_in_vain || waits_in_vain(lane, key.second ? peer.leaves->receives : peer.leaves->sends);
    }
    if (is_in_vain) set_failure(lock, {.why = text(of_group(rank), " has left the group")});
  }
}

Completed Member::completed_with(int rank) const {
  const auto of = [&](bool sends) {
    const auto found = messages_.find({rank, sends});
    return found == messages_.end() ? 0 : found->second.completed;
  };
  return {.collectives = collectives_.completed, .sends = of(true), .receives = of(false)};
}

// --- the end

void Member::fail(Failure failure) noexcept {
  Lock lock(mutex_);
  set_failure(lock, std::move(failure));
}

void Member::set_failure(Lock& /*lock*/, Failure failure) noexcept {
  if (failure_ || is_left_) return;
  failure_ = std::move(failure);
  mesh_.interrupt(GlooMesh::Use::kCollectives);
  mesh_.interrupt(GlooMesh::Use::kWork);
  wake_all();
}

void Member::wake_all() {
  changed_.notify_all();
  keeper_wake_.notify_one();
  each_lane([](Lane& lane) { lane.wake.notify_one(); });
}

// The last thing that the keeper does.
void Member::wind_up(Lock& lock) {
  changed_.wait(lock, [this] {
    bool runs = false;
    each_lane([&runs](const Lane& lane) { runs = runs || lane.runs; });
    return !runs;
  });
  if (failure_) {
    Notice notice{.kind = Notice::Kind::kFails, .code = static_cast<std::uint32_t>(failure_->code)};
    if (failure_->at) {
      const bool is_own = failure_->noticed_by < 0;
      notice.has_place = 1;
      notice.noticed_by = is_own ? spec_.rank : failure_->noticed_by;
      notice.place = is_own ? *failure_->at : failure_->told;
    }
    failure_->why.copy(notice.why.data(), notice.why.size() - 1);
    lock.unlock();
    for (int rank = 0; rank < spec_.size; ++rank) {
      if (rank != spec_.rank) tell(rank, notice);
    }
    lock.lock();
    changed_.wait_for(lock, kTelling,
                      [this] { return std::ranges::count_if(peers_, &Peer::is_gone) == spec_.size - 1; });
  }
  lock.unlock();
  mesh_.close();
  lock.lock();
  is_closed_ = true;
  changed_.notify_all();
}

void Member::leave() noexcept {
  const SigPipeBlocked quiet;
  Lock lock(mutex_);
  if (is_leaving_) return;
  is_leaving_ = true;
  // All may have called an operation, and this participant does not know it yet.
  const auto is_decided = [this] {
    bool all_are = true;
    each_lane([&](const Lane& lane) {
      all_are = all_are && (lane.queue.size() != 1 || lane.queue.front()->phase_ == Phase::kRunning);
    });
    return all_are;
  };
  changed_.wait_for(lock, kTelling, [&] { return failure_ || is_decided(); });
  bool waits_for_others = false;
  each_lane([&](const Lane& lane) {
    waits_for_others = waits_for_others || lane.queue.size() > 1 ||
                       (lane.queue.size() == 1 && lane.queue.front()->phase_ != Phase::kRunning);
  });
  if (waits_for_others) set_failure(lock, {.why = text(of_group(spec_.rank), " has left the group")});
  changed_.wait(lock, [this] {
    bool is_idle = true;
    each_lane([&](const Lane& lane) { is_idle = is_idle && lane.queue.empty(); });
    return failure_ || is_idle;
  });
  if (!failure_) {
    for (int rank = 0; rank < spec_.size; ++rank) {
      if (rank == spec_.rank) continue;
      const Notice notice{.kind = Notice::Kind::kLeaves, .completed = completed_with(rank)};
      lock.unlock();
      tell(rank, notice);
      lock.lock();
    }
    changed_.wait_for(lock, kLeaving, [this] {
      return failure_ || std::ranges::count_if(peers_, &Peer::has_all) == spec_.size - 1;
    });
  }
  is_left_ = true;
  wake_all();
  changed_.wait(lock, [this] { return is_closed_; });
}

void Member::end_threads() noexcept {
  if (!keeper_.joinable()) return;
  leave();
  keeper_.join();
  each_lane([](Lane& lane) {
    if (lane.thread.joinable()) lane.thread.join();
  });
  for (Peer& peer : peers_) {
    if (peer.listener.joinable()) peer.listener.join();
  }
}

}  // namespace lockstep::internal::gloo_group

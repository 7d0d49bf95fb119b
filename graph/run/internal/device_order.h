// graph/run/internal/device_order.h - which calls of devices are over when a phase of a plan starts.
//
// A call that was put on a stream runs some time later: that the host has put it there says nothing about its
// end. It is over when a phase starts if the order of streams, the events between them, or a wait of the host
// says so, whatever the schedule. Thread safety: a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace lockstep::internal {

class DeviceOrder {
 public:
  bool is_on_device(std::uint32_t phase) const {
    return phase < places_.size() && places_[phase].stream >= 0;
  }
  // Are the calls of a device's phase over when the other phase starts?
  bool precedes(std::uint32_t device_phase, std::uint32_t phase) const {
    const Place& place = places_[device_phase];
    return known(phase)[static_cast<std::size_t>(place.stream)] >= place.turn;
  }
  // The phases of devices whose calls this phase of the host puts on streams, in that order.
  std::span<const std::uint32_t> put_by(std::uint32_t phase) const {
    const auto found = put_by_.find(phase);
    return found == put_by_.end() ? std::span<const std::uint32_t>() : found->second;
  }
  // By stream: the turn that is over when the phase starts.
  std::span<const std::uint32_t> known(std::uint32_t phase) const {
    return std::span(known_).subspan(std::size_t{phase} * streams_, streams_);
  }

  // --- for the maker of the plan
  struct Place {
    std::int32_t stream = -1;  // -1: of the host
    std::uint32_t turn = 0;    // of its last call on the stream, from 1 on
  };
  DeviceOrder() = default;
  DeviceOrder(std::size_t phases, std::size_t streams)
      : streams_(streams), places_(phases), known_(phases * streams, 0) {}
  const Place& place(std::uint32_t phase) const { return places_[phase]; }
  void set_known(std::uint32_t phase, std::span<const std::uint32_t> known) {
    for (std::size_t s = 0; s < streams_; ++s) known_[std::size_t{phase} * streams_ + s] = known[s];
  }
  void put(std::uint32_t phase, Place place, std::uint32_t by) {
    places_[phase] = place;
    put_by_[by].push_back(phase);
  }

 private:
  std::size_t streams_ = 0;
  std::vector<Place> places_;         // by phase
  std::vector<std::uint32_t> known_;  // by phase and stream
  std::map<std::uint32_t, std::vector<std::uint32_t>> put_by_;
};

}  // namespace lockstep::internal

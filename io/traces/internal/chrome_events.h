// io/traces/internal/chrome_events.h - the parts of a file in the Trace Event Format.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/io/traces/trace.h"

namespace lockstep::internal {

// Of a file there may be several, each with tracks of its own.
struct ChromeProcess {
  int number = 1;  // from 1
  std::string name = "lockstep";
  std::int64_t later_ns = 0;  // added to all times
};

// The events of one, as elements of a list, with commas between them.
std::string chrome_events(const Trace& trace, const ChromeTraceOptions& options,
                          const ChromeProcess& process);
std::string chrome_file(std::span<const std::string> events,
                        std::initializer_list<std::pair<std::string_view, std::uint64_t>> other_data);

}  // namespace lockstep::internal

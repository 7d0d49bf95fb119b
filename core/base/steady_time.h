// core/base/steady_time.h - deadlines: points in time on a clock that never goes back.
//
// Gets the clocks from <mutex>, which has to have them: <chrono> itself adds the calendar, time zones and
// their formatting, which cost every program that includes Lockstep a fifth of a second of compiling.
//
// Thread safety: plain values.
#pragma once

#include <mutex>

namespace lockstep {

using SteadyTime = std::chrono::steady_clock::time_point;

}  // namespace lockstep

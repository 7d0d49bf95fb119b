// tests/support/sanitizers.h - is this build instrumented? Instrumented tests repeat less, and so do those on devices.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOCKSTEP_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LOCKSTEP_TEST_SANITIZED 1
#endif
#endif
#ifndef LOCKSTEP_TEST_SANITIZED
#define LOCKSTEP_TEST_SANITIZED 0
#endif

namespace lockstep::testing {

bool on_gpus();  // support/test_devices.h

inline constexpr bool kSanitized = LOCKSTEP_TEST_SANITIZED != 0;

// How often to repeat something: `times`, or a tenth of it (at least once) where everything is slow.
inline std::size_t repeats(std::size_t times) { return kSanitized || on_gpus() ? (times + 9) / 10 : times; }

}  // namespace lockstep::testing

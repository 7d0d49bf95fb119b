// core/pause.h - what a thread does between two looks at something that another thread is about to change.
//
// For the library's own spinning loops: not installed.
#pragma once

namespace lockstep::internal {

// A few dozen cycles, which leave the processor's units to a thread that shares them. No system call.
inline void pause_briefly() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // as long as pause is on x86; "yield" does nothing on most
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace lockstep::internal

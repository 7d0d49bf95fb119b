// core/base/pause.h - a short pause for loops that spin until another thread changes something.
//
// For the library's own spinning loops: not installed.
#pragma once

namespace lockstep::internal {

// Takes a few dozen cycles, and leaves the processor's units to a thread that shares them. No system call.
inline void pause_briefly() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // as long as pause on x86; "yield" does nothing on most processors
#elif defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace lockstep::internal

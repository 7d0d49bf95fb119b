// core/kernels/internal/independent.h - a mark for loops whose iterations do not depend on each other.
//
//   LOCKSTEP_INDEPENDENT
//   for (std::int64_t i = 0; i < count; ++i) out[i] = f(in[i]);
//
// An output may be exactly an input; an iteration then reads and writes the same element. Compilers cannot
// know that nothing else overlaps; told so, they vectorise such loops. For sources, not headers: with clang
// it silences the warning about loops that stay scalar, up to the end of the file.
#pragma once

#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // loops of integer division and of 16-bit types stay scalar
#define LOCKSTEP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety) interleave(assume_safety)")
#elif defined(__GNUC__)
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#else
#define LOCKSTEP_INDEPENDENT
#endif

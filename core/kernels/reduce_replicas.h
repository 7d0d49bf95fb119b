// core/kernels/reduce_replicas.h - N arrays of one shape reduced into one, element by element, in one pass
// over memory.
//
//   const void* in[] = {a, b, c};
//   void* out[] = {x, y, z};
//   reduce_replicas(ReplicaReduce::kMean, DType::kF32, in, x, 0, count);   // x = (a + b + c) / 3
//   reduce_replicas(ReplicaReduce::kSum, DType::kF32, in, out, 0, count);  // the same sum three times
//
//   in       inputs.size() >= 1 arrays of `dtype`; any dtype but bool, floating for kMean
//   out      the elements [begin, end) of every output. An output may be exactly one of the inputs; outputs
//            and inputs overlap in no other way
//   order    each element is combined in the order of the inputs: ((in[0] + in[1]) + in[2]) + ..., so that
//            its bits do not depend on begin and end, nor on who computes the other ranges
//   failure  throws InvalidArgument before anything is written
//
// f16 and bf16 compute in f32 and round once at the end; integers wrap around. kMean is the sum and one
// division by the number of inputs. NaN in gives NaN; kMin and kMax treat -0 as less than +0. A single input
// is copied, bit for bit.
//
// Cost: bytes * (inputs + outputs) of memory traffic, which is the minimum; nothing is read twice.
// Thread safety: any thread, any number at once, on ranges that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/error.h"

namespace lockstep {

enum class ReplicaReduce : std::uint8_t { kSum, kMean, kMin, kMax, kProd };
inline constexpr ReplicaReduce kAllReplicaReduces[] = {ReplicaReduce::kSum, ReplicaReduce::kMean,
                                                       ReplicaReduce::kMin, ReplicaReduce::kMax,
                                                       ReplicaReduce::kProd};
inline constexpr std::size_t kNumReplicaReduces = std::size(kAllReplicaReduces);

LOCKSTEP_API std::string_view to_string(ReplicaReduce op);  // "sum", "mean", ...

// Whether the operation has a meaning for the dtype; if not, the reason says what to do instead.
LOCKSTEP_API Decision can_reduce(ReplicaReduce op, DType dtype);

namespace kernels {

LOCKSTEP_API void reduce_replicas(ReplicaReduce op, DType dtype, std::span<const void* const> inputs,
                                  void* output, std::int64_t begin, std::int64_t end);

// Writes the result to each of the outputs in the same pass.
LOCKSTEP_API void reduce_replicas(ReplicaReduce op, DType dtype, std::span<const void* const> inputs,
                                  std::span<void* const> outputs, std::int64_t begin, std::int64_t end);

}  // namespace kernels
}  // namespace lockstep

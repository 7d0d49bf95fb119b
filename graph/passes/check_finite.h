// graph/passes/check_finite.h - fails a step at the first node that makes NaN or infinity.
//
//   a --> mul --> log --> loss          a --> mul --> check --> log --> check --> loss
//
// Puts check_finite() behind every floating value: those that nodes compute, feeds and variables. Left out are constants,
// values that are only passed on, and the new values of variables, since nothing may fail once they are written: what they are
// computed from is checked. A step in which a check fails changes no variable, on whatever device it ran; the error names the
// node whose value it was and where it was made. Regions are included.
//
// For finding out where it comes from, not for running all the time: each value is read once more. Run it before
// fuse-elementwise, which would hide the single nodes. Run twice it changes nothing more. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct CheckFiniteOptions {
  bool infinite = true;  // false: only NaN is refused; for steps that mask with infinity
};

LOCKSTEP_API std::unique_ptr<Pass> make_check_finite(CheckFiniteOptions options = {});

}  // namespace lockstep

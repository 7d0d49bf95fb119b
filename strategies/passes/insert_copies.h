// strategies/passes/insert_copies.h - a copy wherever a value crosses from one memory to another.
//
//   %a = neg(%x) on "gpu:0"              %a = neg(%x) on "gpu:0"
//   %b = relu(%a) on "gpu:1"       -->   %"a/copy" = copy(%a) on "gpu:1"
//                                        %b = relu(%"a/copy") on "gpu:1"
//
// One copy for each value and each device that needs it. CPUs of one process share one memory, so nothing is
// inserted between them; the option `all` makes every crossing between devices visible, even in one memory.
// Left alone: nodes that are not placed (with `all`; otherwise they count as on the CPU), the inputs and
// outputs of collectives, which bring values together themselves, and inputs whose contents nothing reads at
// run time (shapes). A value that enters a region is copied to the device of the region's parameter. Run it
// last, after place and lower-collectives. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct InsertCopiesOptions {
  bool all = false;  // between devices of one memory too
};

LOCKSTEP_API std::unique_ptr<Pass> make_insert_copies(InsertCopiesOptions options = {});

}  // namespace lockstep

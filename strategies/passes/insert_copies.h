// strategies/passes/insert_copies.h - a copy wherever a value crosses from one memory to another.
//
//   %a = neg(%x) on "gpu:0"              %a = neg(%x) on "gpu:0"
//   %b = relu(%a) on "gpu:1"       -->   %"a/copy" = copy(%a) on "gpu:1"
//                                        %b = relu(%"a/copy") on "gpu:1"
//
// One copy for each value and device that wants it. CPUs of one process share one memory, so that among them
// nothing is inserted; the option `all` makes every crossing between devices visible, in one memory too. Left
// alone: what is not placed (with `all`; else it counts as the CPU), the inputs and outputs of collectives,
// which bring values together themselves, and inputs whose contents nobody reads at run time (shapes). What
// enters a region is copied to where the region has its parameter. Runs last, after place and
// lower-collectives. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct InsertCopiesOptions {
  bool all = false;  // between devices of one memory too
};

LOCKSTEP_API std::unique_ptr<Pass> make_insert_copies(InsertCopiesOptions options = {});

}  // namespace lockstep

// strategies/passes/place.h - every node gets a device.
//
//   %a = neg(%x) replica 0       -->   %a = neg(%x) on "cpu:0" replica 0
//   %b = neg(%y) replica 1             %b = neg(%y) on "cpu:1" replica 1
//
// A node made for replica r goes to devices[r]; a node of no replica (a joined node, or one outside of
// replicated regions) goes to `default`, which is devices[0] unless given. Variables likewise: a copy goes to
// the device of its replica, the first copy (the variable itself) to devices[0], a variable without copies to
// `default`; or all of them to one device, if `variables` names it (CentralStorageStrategy). A node that
// reads or updates a variable goes to the variable's device. A node whose op has no kernel for its device goes
// to a CPU of the same process, with the reason in its provenance (if the topology says which kernels the device
// runs; lambdas run on CPUs alone; a constant needs none), and an update that would have to is an error. Nodes
// that are placed already stay. Nodes in regions are placed like others. Linear. Thread safety: as any Pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct PlaceOptions {
  std::vector<std::string> devices = {};  // by replica, at least one; any spelling
  std::string fallback = {};              // "default" in text; empty: devices[0]
  std::string variables = {};             // where all variables go; empty: by replica
};

// Throws InvalidArgument for an empty list of devices, or for a name that is not a device.
LOCKSTEP_API std::unique_ptr<Pass> make_place(PlaceOptions options);

}  // namespace lockstep

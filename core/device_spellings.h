// core/device_spellings.h - converts device names, as files hold them, to the canonical form.
//
//   DeviceSpellings spellings;
//   spellings.canonical("/device:CPU:1");   // "cpu:1"
//
// Each spelling is parsed once. Text that is not a device name stays as it is: the graph verifier, which
// checks the whole, refuses it and names the place. The empty name, which means "not placed", stays empty.
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/name_hash.h"

namespace lockstep {

class LOCKSTEP_API DeviceSpellings {
 public:
  const std::string& canonical(const std::string& spelling);

 private:
  NameMap<std::string> known_;
};

}  // namespace lockstep

// core/device_spellings.h - many device names, as files hold them, in the canonical form.
//
//   DeviceSpellings spellings;
//   spellings.canonical("/device:CPU:1");   // "cpu:1"
//
// Each spelling is parsed once. What is no device name stays as it is, for whoever checks the whole (the
// graph verifier) to refuse with the place; the empty name, which means "not placed", stays empty.
// Thread safety: one thread at a time.
#pragma once

#include <string>

#include "lockstep/core/export.h"
#include "lockstep/core/name_hash.h"

namespace lockstep {

class LOCKSTEP_API DeviceSpellings {
 public:
  const std::string& canonical(const std::string& spelling);

 private:
  NameMap<std::string> known_;
};

}  // namespace lockstep

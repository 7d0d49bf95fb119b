// core/device_spellings.cpp - converts device names, as files hold them, to the canonical form.
#include "lockstep/core/device_spellings.h"

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"

namespace lockstep {

const std::string& DeviceSpellings::canonical(const std::string& spelling) {
  const auto [found, fresh] = known_.try_emplace(spelling, spelling);
  if (fresh && !spelling.empty()) {
    try {
      found->second = Device::parse(spelling).to_string();
    } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch): it stays as it is
    }
  }
  return found->second;
}

}  // namespace lockstep

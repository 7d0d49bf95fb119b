// core/cluster/environment.cpp - reads the process's environment.
#include "lockstep/core/cluster/environment.h"

#include <string_view>

#include <unistd.h>

namespace lockstep {

Environment process_environment() {
  Environment all;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string_view entry = *at;
    const std::size_t equals = entry.find('=');
    if (equals != std::string_view::npos)
      all.try_emplace(std::string(entry.substr(0, equals)), entry.substr(equals + 1));
  }
  return all;
}

}  // namespace lockstep

// core/read_limits.cpp - limits on the memory and work that reading a file may cost.
#include "lockstep/core/read_limits.h"

#include "lockstep/core/error.h"

namespace lockstep {

void ReadBudget::refuse(std::uint64_t bytes, const char* what) const {
  throw InvalidArgument(str("reading these ", file_bytes_, " bytes would take more than ", limit_,
                            " bytes of memory: ", bytes, " more for ", what,
                            "; if the file is trusted, raise the limit: ReadLimits::base_bytes in C++, "
                            "--read-limit of the lockstep command"));
}

}  // namespace lockstep

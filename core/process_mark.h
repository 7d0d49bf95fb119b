// core/process_mark.h - tells whether an object is a copy that fork() made.
//
// A child that fork() makes has copies of all objects and none of the threads: code that waits for a thread
// waits for ever there. An object that has threads keeps a mark of the process that made it, and checks it
// before it waits.
//
// A process that clone() or vfork() makes goes unnoticed. Thread safety: any thread may ask.
#pragma once

#include <cstdint>

#include "lockstep/core/base/export.h"

namespace lockstep {

class LOCKSTEP_API ProcessMark {
 public:
  ProcessMark();
  // False in a child that was forked after the mark was made.
  bool is_of_this_process() const;

 private:
  std::uint32_t forks_;
};

}  // namespace lockstep

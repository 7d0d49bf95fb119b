// core/dynamic_library.h - libraries that are looked for when they are first needed.
//
//   DynamicLibrary library("libnccl.so.2");
//   library.load(get_version, "ncclGetVersion");        // a pointer to a function of its declared type
//   if (!library.found()) ...                            // no such library, or it lacks a function
//
// So a program starts where the library is not. A library is never closed.
// Thread safety: as a plain object.
#pragma once

#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"

namespace lockstep {

class LOCKSTEP_API DynamicLibrary {
 public:
  explicit DynamicLibrary(std::string file);

  // The reason of a no says what was looked for.
  const Decision& found() const { return found_; }
  template <class Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(find(name));
  }

 private:
  void* find(const char* name);  // null: it is not there

  std::string file_;
  void* library_;
  Decision found_ = Decision::yes();
};

}  // namespace lockstep

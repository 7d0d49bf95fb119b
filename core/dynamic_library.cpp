// core/dynamic_library.cpp - libraries that are looked for when they are first needed.
#include "lockstep/core/dynamic_library.h"

#include <utility>

#include <dlfcn.h>

namespace lockstep {

DynamicLibrary::DynamicLibrary(std::string file)
    : file_(std::move(file)), library_(dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) found_ = Decision::no(str(file_, " was not found: ", dlerror()));
}

void* DynamicLibrary::find(const char* name) {
  if (library_ == nullptr) return nullptr;
  void* const found = dlsym(library_, name);
  if (found == nullptr && found_) found_ = Decision::no(str(file_, " has no ", name));
  return found;
}

}  // namespace lockstep

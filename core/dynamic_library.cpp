// core/dynamic_library.cpp - libraries that are looked for when they are first needed.
#include "lockstep/core/dynamic_library.h"

#include <dlfcn.h>

namespace lockstep {

DynamicLibrary::DynamicLibrary(const char* file)
    : file_(file), library_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) found_ = Decision::no(str(file, " was not found: ", dlerror()));
}

void* DynamicLibrary::find(const char* name) {
  if (library_ == nullptr) return nullptr;
  void* const found = dlsym(library_, name);
  if (found == nullptr && found_) found_ = Decision::no(str(file_, " has no ", name));
  return found;
}

}  // namespace lockstep

// graph/transform/plugin.h - ops, passes and strategies in a shared library that is loaded while the program
// runs.
//
// The plugin, one source file linked with lockstep::shared:
//
//   #include "lockstep/graph/transform/plugin.h"
//   LOCKSTEP_PLUGIN("double-relu") {
//     lockstep::PassRegistry::global().add({.name = "remove-double-relu", ...}, ...);
//   }
//
// The program that loads it:
//
//   PluginInfo info = load_plugin("./libdouble_relu.so");     // lockstep opt --load ./libdouble_relu.so
//
// A plugin is C++ code: its version of Lockstep and its C++ library must be those of the program, and it must
// use the program's registries instead of bringing its own copy of Lockstep. All of that is checked before
// the plugin is asked to register anything, and a refusal says what differs and what to do. Loading runs the
// plugin's code: load only plugins you trust.
//
// A plugin stays loaded until the process ends: what it registered points into it. Loading it again changes
// nothing. Thread safety: load_plugin may be called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/core/base/export.h"
#include "lockstep/core/version.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/transform/pass_registry.h"

// What the entry point returns: plain C, and the same in every version, so that it can be read before the
// versions have been compared.
extern "C" struct LockstepPlugin {
  std::uint32_t format;          // of this struct: 1
  const char* build;             // must agree with the program's: lockstep::kPluginBuild
  const char* name;              // for people
  const void* (*op_registry)();  // the registry the plugin would add to
  void (*add_all)();             // registers everything; may throw
};

namespace lockstep {

#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#define LOCKSTEP_CXX_LIBRARY "libstdc++, old strings"
#elif defined(__GLIBCXX__)
#define LOCKSTEP_CXX_LIBRARY "libstdc++"
#else
#define LOCKSTEP_CXX_LIBRARY "libc++"
#endif
inline constexpr const char* kPluginBuild = "Lockstep " LOCKSTEP_VERSION_TEXT(
    LOCKSTEP_VERSION_MAJOR, LOCKSTEP_VERSION_MINOR, LOCKSTEP_VERSION_PATCH) " with " LOCKSTEP_CXX_LIBRARY;

struct PluginInfo {
  std::string name;
  bool loaded_before = false;
};
// Throws NotFound if there is no such file, InvalidArgument if it is not a plugin for this program, and
// FailedPrecondition with the cause nested if the plugin failed to register.
LOCKSTEP_API PluginInfo load_plugin(const std::filesystem::path& path);

}  // namespace lockstep

// Followed by the body of the function that registers.
#define LOCKSTEP_PLUGIN(plugin_name)                                                                         \
  static void lockstep_plugin_add_all();                                                                     \
  extern "C" __attribute__((visibility("default"))) const LockstepPlugin* lockstep_plugin() {                \
    static const LockstepPlugin plugin = {1, ::lockstep::kPluginBuild, plugin_name,                          \
                                          []() -> const void* { return &::lockstep::OpRegistry::global(); }, \
                                          lockstep_plugin_add_all};                                          \
    return &plugin;                                                                                          \
  }                                                                                                          \
  static void lockstep_plugin_add_all()

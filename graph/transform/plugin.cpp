// graph/transform/plugin.cpp - ops, passes and strategies in a shared library that is loaded while the
// program runs.
#include "lockstep/graph/transform/plugin.h"

#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_set>

#include <dlfcn.h>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library open_library(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw NotFound(str("there is no plugin '", path.string(), "'; give the path of a shared library"));
  // An absolute path contains a slash, so the loader takes this file and does not search for the name.
  const std::filesystem::path file = std::filesystem::absolute(path);
  Library library(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw InvalidArgument(
        str("'", path.string(), "' cannot be loaded: ", reason != nullptr ? reason : "unknown reason"));
  }
  return library;
}

const LockstepPlugin& plugin_in(void* library, const std::filesystem::path& path) {
  using Entry = const LockstepPlugin* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "lockstep_plugin"));
  const LockstepPlugin* const plugin = entry != nullptr ? entry() : nullptr;
  if (plugin == nullptr) {
    throw InvalidArgument(
        str("'", path.string(),
            "' is no Lockstep plugin: it has no LOCKSTEP_PLUGIN (see graph/transform/plugin.h)"));
  }
  if (plugin->format != 1) {
    throw InvalidArgument(str("plugin '", path.string(), "' has format ", plugin->format,
                              ", this program reads format 1; build both with one version of Lockstep"));
  }
  if (std::string_view(plugin->build) != kPluginBuild) {
    throw InvalidArgument(str("plugin '", path.string(), "' was built for ", plugin->build, ", this is ",
                              kPluginBuild, "; build it again with the headers of this version"));
  }
  if (plugin->op_registry() != &OpRegistry::global()) {
    throw InvalidArgument(
        str("plugin '", path.string(),
            "' brings a Lockstep of its own, and what it registered would not be seen here; link it "
            "with lockstep::shared, as this program is"));
  }
  return *plugin;
}

}  // namespace

PluginInfo load_plugin(const std::filesystem::path& path) {
  static std::mutex mutex;
  static std::unordered_set<void*> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  Library library = open_library(path);
  const LockstepPlugin& plugin = plugin_in(library.get(), path);
  if (loaded.contains(library.get())) return {plugin.name, true};  // drops one reference; it stays loaded
  // From here on registries may point into the library: keep it loaded, even if registering fails.
  void* const handle = library.release();
  try {
    plugin.add_all();
    loaded.insert(handle);
  } catch (const std::exception& error) {
    std::throw_with_nested(FailedPrecondition(
        str("plugin '", path.string(), "' (", plugin.name, ") failed to register: ", error.what())));
  }
  return {plugin.name, false};
}

}  // namespace lockstep

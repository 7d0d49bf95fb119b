// graph/transform/named_factories.h - things that are made by name from text: passes, strategies.
//
//   NamedFactories<Strategy, NotFound, const StrategyOptions&> strategies("strategy");
//   strategies.add({.name = "mirrored", .summary = "...", .options = {...}}, factory);
//   std::unique_ptr<Strategy> s = strategies.make(strategies.read("mirrored(devices=[cpu:0])"), options);
//
// The base of registries (graph/transform/pass_registry.h, strategies/strategy_registry.h): names in
// kebab-case, declared options (graph/transform/pass_options.h), and errors that name the kind of thing.
// Unknown is the error type for a name that is not registered; its message lists the closest names. Factories
// get the options, followed by the Arguments given to make(). Thread safety: all methods may be called from
// any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass_options.h"

namespace lockstep {

namespace internal {

// Throws InvalidArgument for a malformed name, two options of one name, or a default of the wrong type.
LOCKSTEP_API void check_info(std::string_view noun, const FactoryInfo& info);
// "no pass named 'x' is registered; did you mean 'y'?"
LOCKSTEP_API std::string unknown_name(std::string_view noun, std::string_view name,
                                      std::vector<std::string> known);
// The only one in the text; throws PipelineSyntaxError for none or several.
LOCKSTEP_API PassText read_one(std::string_view noun, std::string_view text);

}  // namespace internal

template <class Made, class Unknown, class... Arguments>
class NamedFactories {
 public:
  using Factory = std::function<std::unique_ptr<Made>(const PassOptions&, Arguments...)>;

  explicit NamedFactories(std::string_view noun) : noun_(noun) {}

  // Throws InvalidArgument for a taken or malformed name, no factory, two options of one name, or a default
  // of the wrong type.
  void add(FactoryInfo info, Factory factory) {
    internal::check_info(noun_, info);
    if (!factory) throw InvalidArgument(str(noun_, " '", info.name, "' is registered without a factory"));
    const std::unique_lock lock(mutex_);
    if (entries_.contains(info.name))
      throw InvalidArgument(str(noun_, " '", info.name, "' is registered already; choose another name"));
    std::string name = info.name;
    entries_.emplace(std::move(name), Entry{std::move(info), std::move(factory)});
  }

  bool contains(std::string_view name) const {
    const std::shared_lock lock(mutex_);
    return entries_.find(name) != entries_.end();
  }

  std::vector<FactoryInfo> infos() const {  // by name
    const std::shared_lock lock(mutex_);
    std::vector<FactoryInfo> infos;
    for (const auto& [name, entry] : entries_) infos.push_back(entry.info);
    return infos;
  }

  // Reads one of them: "name" or "name(option=value,...)".
  PassText read(std::string_view text) const { return internal::read_one(noun_, text); }

  std::unique_ptr<Made> make(const PassText& text, Arguments... arguments) const {
    const Entry& entry = find(text.name);
    std::unique_ptr<Made> made =
        entry.factory(resolve_options(text, entry.info.options, noun_), arguments...);
    if (made == nullptr)
      throw InvalidArgument(str("the factory of ", noun_, " '", text.name, "' made nothing"));
    return made;
  }

 private:
  struct Entry {
    FactoryInfo info;
    Factory factory;
  };

  // Entries have stable addresses, and are never removed.
  const Entry& find(const std::string& name) const {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end()) return found->second;
    std::vector<std::string> known;
    for (const auto& [other, entry] : entries_) known.push_back(other);
    throw Unknown(internal::unknown_name(noun_, name, std::move(known)));
  }

  std::string noun_;
  mutable std::shared_mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace lockstep

#include "lockstep/graph/pass_registry.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "lockstep/graph/internal/edit_distance.h"

namespace lockstep {
namespace {

bool is_kebab_case(std::string_view name) {
  if (name.empty() || name.front() == '-' || name.back() == '-') return false;
  return std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

void check_info(const PassInfo& info) {
  if (!is_kebab_case(info.name)) {
    throw InvalidArgument(
        str("pass name '", info.name, "' must be kebab-case: a-z, 0-9 and '-' between them"));
  }
  std::set<std::string> names;
  for (const OptionSpec& option : info.options) {
    if (option.name.empty() || !names.insert(option.name).second) {
      throw InvalidArgument(
          str("pass '", info.name, "' declares option '", option.name, "' twice or without a name"));
    }
    if (option.fallback && option.fallback->index() != static_cast<std::size_t>(option.type)) {
      throw InvalidArgument(str("option '", option.name, "' of pass '", info.name, "' is declared ",
                                to_string(option.type), " but its default is not"));
    }
  }
}

}  // namespace

PassRegistry::PassRegistry() = default;
PassRegistry::~PassRegistry() = default;

PassRegistry& PassRegistry::global() {
  static PassRegistry* const registry = [] {
    static PassRegistry instance;
    register_general_passes(instance);
    return &instance;
  }();
  return *registry;
}

void PassRegistry::add(PassInfo info, PassFactory factory) {
  check_info(info);
  if (!factory) throw InvalidArgument(str("pass '", info.name, "' is registered without a factory"));
  const std::unique_lock lock(mutex_);
  if (entries_.contains(info.name)) {
    throw InvalidArgument(str("pass '", info.name, "' is registered already; choose another name"));
  }
  std::string name = info.name;
  entries_.emplace(std::move(name), Entry{std::move(info), std::move(factory)});
}

bool PassRegistry::contains(std::string_view name) const {
  const std::shared_lock lock(mutex_);
  return entries_.find(name) != entries_.end();
}

std::vector<PassInfo> PassRegistry::passes() const {
  const std::shared_lock lock(mutex_);
  std::vector<PassInfo> infos;
  for (const auto& [name, entry] : entries_) infos.push_back(entry.info);
  return infos;
}

std::unique_ptr<Pass> PassRegistry::make(std::string_view text) const {
  const std::vector<PassText> passes = parse_passes(text);
  if (passes.size() != 1) {
    throw PipelineSyntaxError(passes.size() < 2 ? 0 : passes[1].position,
                              str("expected one pass, got ", passes.size(), " in '", text, "'"));
  }
  return make(passes.front());
}

PassPipeline PassRegistry::parse_pipeline(std::string_view text) const {
  PassPipeline pipeline;
  for (const PassText& pass : parse_passes(text)) pipeline.add(make(pass));
  return pipeline;
}

std::unique_ptr<Pass> PassRegistry::make(const PassText& text) const {
  const Entry* entry = nullptr;
  std::string hint;
  {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(text.name);
    if (found != entries_.end()) {
      entry = &found->second;  // entries stay where they are, and are never taken out
    } else {
      std::vector<std::string> names;
      for (const auto& [name, unused] : entries_) names.push_back(name);
      hint = internal::closest_names(text.name, std::move(names));
    }
  }
  if (entry == nullptr) {
    throw UnknownPass(str("no pass named '", text.name, "' is registered",
                          hint.empty() ? "" : str("; did you mean ", hint, "?")));
  }
  std::unique_ptr<Pass> pass = entry->factory(resolve_options(text, entry->info.options));
  if (pass == nullptr) throw InvalidArgument(str("the factory of pass '", text.name, "' made nothing"));
  std::vector<std::pair<std::string, OptionValue>> given;
  for (const OptionText& option : text.options) {
    if (option.is_list) {
      given.emplace_back(option.name, option.values);
    } else {
      given.emplace_back(option.name, option.values.front());
    }
  }
  pass->text_ = print_pass(text.name, given);
  return pass;
}

}  // namespace lockstep

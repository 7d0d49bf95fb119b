// graph/transform/named_factories.cpp - things that are made by name from text: passes, strategies.
#include "lockstep/graph/transform/named_factories.h"

#include <algorithm>
#include <set>

#include "lockstep/graph/ir/internal/edit_distance.h"

namespace lockstep::internal {
namespace {

bool is_kebab_case(std::string_view name) {
  if (name.empty() || name.front() == '-' || name.back() == '-') return false;
  return std::ranges::all_of(
      name, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

}  // namespace

void check_info(std::string_view noun, const FactoryInfo& info) {
  if (!is_kebab_case(info.name)) {
    throw InvalidArgument(
        str(noun, " name '", info.name, "' must be kebab-case: a-z, 0-9 and '-' between them"));
  }
  std::set<std::string> names;
  for (const OptionSpec& option : info.options) {
    if (option.name.empty() || !names.insert(option.name).second) {
      throw InvalidArgument(
          str(noun, " '", info.name, "' declares option '", option.name, "' twice or without a name"));
    }
    if (option.fallback && option.fallback->index() != static_cast<std::size_t>(option.type)) {
      throw InvalidArgument(str("option '", option.name, "' of ", noun, " '", info.name, "' is declared ",
                                to_string(option.type), " but its default is not"));
    }
  }
}

std::string unknown_name(std::string_view noun, std::string_view name, std::vector<std::string> known) {
  const std::string hint = closest_names(name, std::move(known));
  return str("no ", noun, " named '", name, "' is registered",
             hint.empty() ? "" : str("; did you mean ", hint, "?"));
}

PassText read_one(std::string_view noun, std::string_view text) {
  std::vector<PassText> parts = parse_passes(text, noun);
  if (parts.size() != 1) {
    throw PipelineSyntaxError(parts.size() < 2 ? 0 : parts[1].position,
                              str("expected one ", noun, ", got ", parts.size(), " in '", text, "'"));
  }
  return std::move(parts.front());
}

}  // namespace lockstep::internal

// graph/transform/pass_options.h - options of passes: declared, parsed from text, typed.
//
//   bucket-all-reduce(bytes=4MiB, overlap=true, order="by size", devices=[cpu:0,cpu:1])
//
// An int takes a suffix KiB, MiB or GiB; a string needs quotes if it contains one of , ( ) [ ] = " or white
// space; a list holds strings. An option that is not given has the declared default; an option without a
// default must be given. Thread safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"

namespace lockstep {

using OptionValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::string>>;
// In the order of the alternatives above.
enum class OptionType : std::uint8_t { kInt, kFloat, kBool, kString, kList };
LOCKSTEP_API std::string_view to_string(OptionType type);  // "int", "float", "bool", "string", "list"

struct OptionSpec {
  std::string name;
  OptionType type = OptionType::kInt;
  std::optional<OptionValue> fallback = std::nullopt;  // absent: must be given
  std::string summary = {};                            // one line
};

// What a registry knows about one pass, or about another thing that is made by name.
struct FactoryInfo {
  std::string name;     // kebab-case
  std::string summary;  // one line
  std::vector<OptionSpec> options = {};
};

// No pass has that name; the message lists the closest names.
class LOCKSTEP_API UnknownPass : public NotFound {
 public:
  using NotFound::NotFound;
  ~UnknownPass() override;
};
// The pass has no such option, or one that must be given is missing; the message lists its options.
class LOCKSTEP_API UnknownOption : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
  ~UnknownOption() override;
};
// The value is not of the option's type, or the pass refuses it.
class LOCKSTEP_API BadOptionValue : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
  ~BadOptionValue() override;
};
// The text is not a list of passes: "at 14: expected ',' or ')', got '('".
class LOCKSTEP_API PipelineSyntaxError : public InvalidArgument {
 public:
  PipelineSyntaxError(std::size_t position, const std::string& message);
  ~PipelineSyntaxError() override;
  std::size_t position() const { return position_; }  // in bytes, from 0

 private:
  std::size_t position_;
};

// The options that a factory gets: a value for every declared option.
class LOCKSTEP_API PassOptions {
 public:
  PassOptions() = default;
  // `given` are the options in the text; the others have their defaults.
  explicit PassOptions(std::map<std::string, OptionValue, std::less<>> values,
                       std::set<std::string, std::less<>> given = {});

  // Is the option in the text? If not, its value is the default.
  bool is_given(std::string_view name) const;
  // Asking for an option that was not declared, or for the wrong type, is a bug in the pass:
  // Error(kInternal).
  std::int64_t get_int(std::string_view name) const;
  double get_float(std::string_view name) const;
  bool get_bool(std::string_view name) const;
  const std::string& get_string(std::string_view name) const;
  const std::vector<std::string>& get_list(std::string_view name) const;
  // The same by type: one of OptionValue's.
  template <class T>
  const T& get(std::string_view name) const;

 private:
  std::map<std::string, OptionValue, std::less<>> values_;
  std::set<std::string, std::less<>> given_;
};

// "name(option=value,...)", or the name alone if there are no options: text that makes the pass again.
LOCKSTEP_API std::string print_pass(std::string_view name,
                                    const std::vector<std::pair<std::string, OptionValue>>& options);
LOCKSTEP_API std::string print_option(const OptionValue& value);

// --- the text, before names are resolved

struct OptionText {
  std::string name;
  std::vector<std::string> values;  // one value, or the elements of a list
  bool is_list = false;
  std::size_t position = 0;
};
struct PassText {
  std::string name;
  std::vector<OptionText> options;
  std::size_t position = 0;
};
// Throws PipelineSyntaxError. Empty text means no passes. `noun` is what errors call them.
LOCKSTEP_API std::vector<PassText> parse_passes(std::string_view text, std::string_view noun = "pass");
// Throws UnknownOption or BadOptionValue.
LOCKSTEP_API PassOptions resolve_options(const PassText& pass, const std::vector<OptionSpec>& specs,
                                         std::string_view noun = "pass");

}  // namespace lockstep

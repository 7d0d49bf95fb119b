// graph/transform/pass_options.cpp - options of passes: declared, parsed from text, typed.
#include "lockstep/graph/transform/pass_options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace lockstep {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.';
}
bool ends_bare_value(char c) {
  return is_space(c) || std::string_view(",()[]=\"").find(c) != std::string_view::npos;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view noun) : text_(text), noun_(noun) {}

  std::vector<PassText> passes() {
    std::vector<PassText> result;
    skip_space();
    if (at_end()) return result;
    while (true) {
      result.push_back(pass());
      if (at_end()) return result;
      expect(',', "',' or the end");
    }
  }

 private:
  PassText pass() {
    PassText result;
    skip_space();
    result.position = at_;
    result.name = word(str("the name of a ", noun_));
    if (!accept('(')) return result;
    if (accept(')')) return result;
    do {
      result.options.push_back(option());
    } while (accept(','));
    expect(')', "',' or ')'");
    return result;
  }

  OptionText option() {
    OptionText result;
    skip_space();
    result.position = at_;
    result.name = word("the name of an option");
    expect('=', "'='");
    if (!accept('[')) {
      result.values.push_back(value());
      return result;
    }
    result.is_list = true;
    if (accept(']')) return result;
    do {
      result.values.push_back(value());
    } while (accept(','));
    expect(']', "',' or ']'");
    return result;
  }

  std::string value() {
    skip_space();
    if (!at_end() && text_[at_] == '"') return quoted();
    const std::size_t start = at_;
    while (!at_end() && !ends_bare_value(text_[at_])) ++at_;
    if (at_ == start) fail("a value");
    std::string result(text_.substr(start, at_ - start));
    skip_space();
    return result;
  }

  std::string quoted() {
    std::string result;
    for (++at_; !at_end() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\' && ++at_ == text_.size()) break;
      result += text_[at_];
    }
    if (at_end()) fail("'\"'");
    ++at_;
    skip_space();
    return result;
  }

  std::string word(std::string_view what) {
    skip_space();
    const std::size_t start = at_;
    while (!at_end() && is_word(text_[at_])) ++at_;
    if (at_ == start) fail(what);
    std::string result(text_.substr(start, at_ - start));
    skip_space();
    return result;
  }

  bool accept(char c) {
    skip_space();
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    skip_space();
    return true;
  }
  void expect(char c, const char* what) {
    if (!accept(c)) fail(what);
  }
  [[noreturn]] void fail(std::string_view expected) const {
    throw PipelineSyntaxError(
        at_, str("expected ", expected, ", got ", at_end() ? "the end" : str("'", text_[at_], "'"), " in '",
                 text_, "'"));
  }
  void skip_space() {
    while (!at_end() && is_space(text_[at_])) ++at_;
  }
  bool at_end() const { return at_ >= text_.size(); }

  std::string_view text_;
  std::string_view noun_;
  std::size_t at_ = 0;
};

std::optional<std::int64_t> parse_int(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, int>, 3> kSuffixes = {
      {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}}};
  std::int64_t scale = 1;
  for (const auto& [suffix, shift] : kSuffixes) {
    if (text.ends_with(suffix)) {
      text.remove_suffix(suffix.size());
      scale = std::int64_t{1} << shift;
      break;
    }
  }
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number > std::numeric_limits<std::int64_t>::max() / scale ||
      number < std::numeric_limits<std::int64_t>::min() / scale) {
    return std::nullopt;
  }
  return number * scale;
}

std::optional<double> parse_float(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<OptionValue> convert(const OptionText& option, OptionType type) {
  if (type == OptionType::kList)
    return option.is_list ? std::optional<OptionValue>(option.values) : std::nullopt;
  if (option.is_list) return std::nullopt;
  const std::string& text = option.values.front();
  switch (type) {
    case OptionType::kInt:
      if (const auto number = parse_int(text)) return *number;
      return std::nullopt;
    case OptionType::kFloat:
      if (const auto number = parse_float(text)) return *number;
      return std::nullopt;
    case OptionType::kBool:
      if (text == "true" || text == "false") return text == "true";
      return std::nullopt;
    case OptionType::kString:
    case OptionType::kList: break;
  }
  return text;
}

const char* accepted(OptionType type) {
  switch (type) {
    case OptionType::kInt: return "an int, as 4 or 64KiB";
    case OptionType::kFloat: return "a float, as 0.5";
    case OptionType::kBool: return "true or false";
    case OptionType::kString: return "a string";
    case OptionType::kList: break;
  }
  return "a list, as [a,b]";
}

std::string list_options(const std::vector<OptionSpec>& specs) {
  if (specs.empty()) return "it has no options";
  std::string text = "it has ";
  for (std::size_t i = 0; i < specs.size(); ++i) {
    text += str(i == 0 ? "" : ", ", "'", specs[i].name, "' (", to_string(specs[i].type));
    text += specs[i].fallback ? str(", default ", print_option(*specs[i].fallback), ")") : ", must be given)";
  }
  return text;
}

std::string print_string(const std::string& text) {
  if (!text.empty() && std::ranges::none_of(text, ends_bare_value)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace

std::string_view to_string(OptionType type) {
  static constexpr std::string_view kNames[] = {"int", "float", "bool", "string", "list"};
  return kNames[static_cast<std::size_t>(type)];
}

UnknownPass::~UnknownPass() = default;
UnknownOption::~UnknownOption() = default;
BadOptionValue::~BadOptionValue() = default;
PipelineSyntaxError::PipelineSyntaxError(std::size_t position, const std::string& message)
    : InvalidArgument(str("at ", position, ": ", message)), position_(position) {}
PipelineSyntaxError::~PipelineSyntaxError() = default;

template <class T>
const T& PassOptions::get(std::string_view name) const {
  const auto found = values_.find(name);
  LOCKSTEP_CHECK(found != values_.end(), "option '", name, "' was not declared");
  const T* value = std::get_if<T>(&found->second);
  LOCKSTEP_CHECK(value != nullptr, "option '", name, "' was declared with another type");
  return *value;
}

PassOptions::PassOptions(std::map<std::string, OptionValue, std::less<>> values,
                         std::set<std::string, std::less<>> given)
    : values_(std::move(values)), given_(std::move(given)) {}

bool PassOptions::is_given(std::string_view name) const { return given_.contains(name); }

std::int64_t PassOptions::get_int(std::string_view name) const { return get<std::int64_t>(name); }
double PassOptions::get_float(std::string_view name) const { return get<double>(name); }
bool PassOptions::get_bool(std::string_view name) const { return get<bool>(name); }
const std::string& PassOptions::get_string(std::string_view name) const { return get<std::string>(name); }
const std::vector<std::string>& PassOptions::get_list(std::string_view name) const {
  return get<std::vector<std::string>>(name);
}

template LOCKSTEP_API const std::int64_t& PassOptions::get(std::string_view) const;
template LOCKSTEP_API const double& PassOptions::get(std::string_view) const;
template LOCKSTEP_API const bool& PassOptions::get(std::string_view) const;
template LOCKSTEP_API const std::string& PassOptions::get(std::string_view) const;
template LOCKSTEP_API const std::vector<std::string>& PassOptions::get(std::string_view) const;

std::string print_option(const OptionValue& value) {
  switch (static_cast<OptionType>(value.index())) {
    case OptionType::kInt: return std::to_string(std::get<std::int64_t>(value));
    case OptionType::kFloat: {
      std::array<char, 32> buffer{};
      const auto end =
          std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::get<double>(value)).ptr;
      return {buffer.data(), end};
    }
    case OptionType::kBool: return std::get<bool>(value) ? "true" : "false";
    case OptionType::kString: return print_string(std::get<std::string>(value));
    case OptionType::kList: break;
  }
  std::string text = "[";
  for (const std::string& item : std::get<std::vector<std::string>>(value)) {
    text += (text.size() == 1 ? "" : ",") + print_string(item);
  }
  return text + "]";
}

std::string print_pass(std::string_view name,
                       const std::vector<std::pair<std::string, OptionValue>>& options) {
  std::string text(name);
  for (std::size_t i = 0; i < options.size(); ++i) {
    text += str(i == 0 ? "(" : ",", options[i].first, "=", print_option(options[i].second));
  }
  return options.empty() ? text : text + ")";
}

std::vector<PassText> parse_passes(std::string_view text, std::string_view noun) {
  return Parser(text, noun).passes();
}

PassOptions resolve_options(const PassText& pass, const std::vector<OptionSpec>& specs,
                            std::string_view noun) {
  std::map<std::string, OptionValue, std::less<>> values;
  for (const OptionText& option : pass.options) {
    const auto spec = std::ranges::find(specs, option.name, &OptionSpec::name);
    if (spec == specs.end()) {
      throw UnknownOption(
          str(noun, " '", pass.name, "' has no option '", option.name, "'; ", list_options(specs)));
    }
    std::optional<OptionValue> value = convert(option, spec->type);
    if (!value) {
      const std::string given =
          option.is_list ? print_option(option.values) : str("'", option.values.front(), "'");
      throw BadOptionValue(str("option '", option.name, "' of ", noun, " '", pass.name, "' takes ",
                               accepted(spec->type), ", got ", given));
    }
    if (!values.emplace(option.name, std::move(*value)).second) {
      throw BadOptionValue(str("option '", option.name, "' of ", noun, " '", pass.name, "' is given twice"));
    }
  }
  std::set<std::string, std::less<>> given;
  for (const auto& [name, value] : values) given.insert(name);
  for (const OptionSpec& spec : specs) {
    if (given.contains(spec.name)) continue;
    if (!spec.fallback) {
      throw UnknownOption(
          str(noun, " '", pass.name, "' needs its option '", spec.name, "'; ", list_options(specs)));
    }
    values.emplace(spec.name, *spec.fallback);
  }
  return PassOptions(std::move(values), std::move(given));
}

}  // namespace lockstep

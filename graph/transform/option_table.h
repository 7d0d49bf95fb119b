// graph/transform/option_table.h - the options of a pass, declared once: read from text and printed again.
//
//   const OptionTable<FuseOptions>& table() {
//     static const auto options = OptionTable<FuseOptions>("fuse", "neighbours become one node")
//                                     .option("max_nodes", &FuseOptions::max_nodes, "nodes in a group at most");
//     return options;
//   }
//   std::string to_string() const override { return table().print(options_); }      // in the pass
//   add_pass(PassRegistry::global(), table(), make_fuse);                           // by name
//
// The struct has the defaults. A member is a std::int64_t, double, bool, std::string or a list of strings;
// members of other types are read by a function. Numbers are always printed, so that a text keeps its meaning
// when a default changes; other options only if they differ from the default. Thread safety: constant once
// made.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/graph/transform/pass_options.h"
#include "lockstep/graph/transform/pass_registry.h"

namespace lockstep {

template <class Options>
class OptionTable {
 public:
  using Read = std::function<void(Options& into, const PassOptions& given)>;
  using Print = std::function<OptionValue(const Options& from)>;

  OptionTable(std::string name, std::string summary) : info_{std::move(name), std::move(summary)} {}

  template <class T>
  OptionTable option(std::string name, T Options::*member, std::string summary) && {
    return std::move(*this).add(std::move(name), member, OptionValue(Options().*member), std::move(summary));
  }
  // Printed only if it is not the default, numbers too.
  template <class T>
  OptionTable rare_option(std::string name, T Options::*member, std::string summary) && {
    OptionTable made =
        std::move(*this).add(std::move(name), member, OptionValue(Options().*member), std::move(summary));
    made.fields_.back().is_rare = true;
    return made;
  }
  // Without a default: the text must give it.
  template <class T>
  OptionTable required(std::string name, T Options::*member, std::string summary) && {
    return std::move(*this).add(std::move(name), member, std::nullopt, std::move(summary));
  }
  // Read by a function, and not printed.
  OptionTable option(OptionSpec spec, Read read) && {
    info_.options.push_back(std::move(spec));
    fields_.push_back({std::move(read), nullptr});
    return std::move(*this);
  }

  const FactoryInfo& info() const { return info_; }
  Options read(const PassOptions& given) const {
    Options options;
    for (const Field& field : fields_) field.read(options, given);
    return options;
  }
  // "fuse(max_nodes=64)"
  std::string print(const Options& options) const {
    std::vector<std::pair<std::string, OptionValue>> printed;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (fields_[i].print == nullptr) continue;
      OptionValue value = fields_[i].print(options);
      const OptionSpec& spec = info_.options[i];
      const bool number = spec.type == OptionType::kInt || spec.type == OptionType::kFloat;
      if ((number && !fields_[i].is_rare) || value != spec.fallback)
        printed.emplace_back(spec.name, std::move(value));
    }
    return print_pass(info_.name, printed);
  }

 private:
  struct Field {
    Read read;
    Print print;
    bool is_rare = false;
  };

  template <class T>
  OptionTable add(std::string name, T Options::*member, std::optional<OptionValue> fallback,
                  std::string summary) && {
    const auto type = static_cast<OptionType>(OptionValue(T()).index());
    fields_.push_back(
        {[name, member](Options& into, const PassOptions& given) { into.*member = given.get<T>(name); },
         [member](const Options& from) { return OptionValue(from.*member); }});
    info_.options.push_back({std::move(name), type, std::move(fallback), std::move(summary)});
    return std::move(*this);
  }

  FactoryInfo info_;
  std::vector<Field> fields_;  // by option
};

// If `make` refuses a value, its error becomes BadOptionValue.
template <class Make>
auto refuse_bad_values(const Make& make) {
  try {
    return make();
  } catch (const BadOptionValue&) {
    throw;
  } catch (const InvalidArgument& error) {
    throw BadOptionValue(error.message());
  }
}

// A pass without options.
inline void add_pass(PassRegistry& registry, std::string name, std::string summary,
                     std::unique_ptr<Pass> (*make)()) {
  registry.add({std::move(name), std::move(summary)}, [make](const PassOptions&) { return make(); });
}
// make(Options) returns the pass.
template <class Options, class Make>
void add_pass(PassRegistry& registry, const OptionTable<Options>& table, Make make) {
  registry.add(table.info(), [table, make](const PassOptions& given) -> std::unique_ptr<Pass> {
    return refuse_bad_values([&] { return make(table.read(given)); });
  });
}

}  // namespace lockstep

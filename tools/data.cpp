// tools/data.cpp - lockstep data: what files of training data hold, and the same in another format.
#include <algorithm>
#include <array>
#include <charconv>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "commands.h"
#include "data_file.h"
#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/formats/csv.h"
#include "lockstep/io/formats/tfrecord.h"
#include "progress.h"

namespace lockstep::tools {

namespace {

// What all elements have in common in one part.
struct PartFacts {
  std::uint64_t elements = 0;       // that have it
  std::optional<TensorSpec> spec;   // of its tensors; unknown dimensions differ
  std::size_t least = 0, most = 0;  // strings of an element
  bool mixed = false;               // of several dtypes or ranks, or tensors and strings

  void add(const FeatureValue& value) {
    const bool first = elements++ == 0;
    if (value.tensor.defined()) {
      const TensorSpec& now = value.tensor.spec();
      if (first) spec = now;
      mixed = mixed || !spec || spec->dtype != now.dtype || spec->shape.rank() != now.shape.rank();
      if (!mixed) spec->shape = join_shapes(spec->shape, now.shape);
      return;
    }
    mixed = mixed || (!first && spec);
    least = first ? value.strings.size() : std::min(least, value.strings.size());
    most = std::max(most, value.strings.size());
  }
  std::string text(std::uint64_t of) const {
    std::string said = mixed           ? "of several types"
                       : spec          ? to_string(*spec)
                       : least == most ? str("bytes[", most, "]")
                                       : "bytes[?]";
    if (elements < of) said += str(", missing in ", of - elements);
    return said;
  }
};

std::string shown(const FeatureValue& value) {
  if (value.tensor.defined()) {
    std::ostringstream out;
    out << value.tensor;
    return out.str();
  }
  constexpr std::size_t kStrings = 3, kBytes = 40;
  std::string text;
  for (std::size_t i = 0; i < std::min(value.strings.size(), kStrings); ++i) {
    const std::string& bytes = value.strings[i];
    text += str(i > 0 ? ", " : "", '"', printable(bytes.substr(0, kBytes)), '"',
                bytes.size() > kBytes ? str("... (", bytes.size(), " bytes)") : "");
  }
  if (value.strings.size() > kStrings) text += str(", ... (", value.strings.size(), ")");
  return text;
}

// Prints what the file holds, and returns whether it is whole.
bool show(const std::string& path, const DataCommand& command, char delimiter) {
  std::map<std::string, PartFacts> facts;
  std::vector<std::string> order;
  std::ostringstream first;
  std::uint64_t elements = 0;
  std::string damage, format;
  try {
    const auto file = open_data_file(path, command.format, delimiter);
    format = file->format();
    Progress progress("reading");
    for (std::vector<DataPart> parts; file->next(parts); ++elements) {
      if (elements % 4096 == 0) progress.at(0, str(elements, " elements"));
      if (elements < command.rows) first << "  [" << elements << "]\n";
      for (const DataPart& part : parts) {
        if (!part.value.tensor.defined() && part.value.strings.empty() && file->format() == "CSV") continue;
        const auto [at, is_new] = facts.try_emplace(part.name);
        if (is_new) order.push_back(part.name);
        at->second.add(part.value);
        if (elements < command.rows) first << "    " << part.name << " = " << shown(part.value) << '\n';
      }
    }
  } catch (const Error& error) {
    damage = error.message();
  }
  if (format.empty()) {
    std::cout << path << ": cannot be read\n  " << damage << '\n';
    return false;
  }
  std::cout << path << ": " << format << ", " << counted(elements, "element") << '\n';
  for (const std::string& name : order)
    std::cout << "  " << name << ": " << facts[name].text(elements) << '\n';
  std::cout << first.str();
  if (!damage.empty()) std::cout << "  not whole: " << damage << '\n';
  return damage.empty();
}

void to_tfrecord(DataFile& file, const std::string& output) {
  TfRecordWriter writer(output);
  Progress progress("writing");
  std::uint64_t elements = 0;
  for (std::vector<DataPart> parts; file.next(parts); ++elements) {
    if (elements % 4096 == 0) progress.at(0, str(elements, " elements"));
    ExampleBuilder example;
    for (const DataPart& part : parts) {
      if (part.value.tensor.defined()) {
        example.tensor(part.name, part.value.tensor);
      } else if (!part.value.strings.empty()) {
        example.strings(part.name, part.value.strings);
      }
    }
    writer.append(example.encoded());
  }
  writer.commit();
}

// The one value of a part, as text that reads back as it was.
std::string csv_field(const DataPart& part, std::uint64_t element) {
  const FeatureValue& value = part.value;
  const std::int64_t count =
      value.tensor.defined() ? value.tensor.num_elements() : static_cast<std::int64_t>(value.strings.size());
  if (count != 1) {
    throw InvalidArgument(str("element ", element, ": '", part.name, "' has ", count,
                              " values, and a field of a CSV file holds one; write a .tfrecord file"));
  }
  if (!value.tensor.defined()) return value.strings[0];
  return visit_dtype(value.tensor.dtype(), [&]<class T>(T) -> std::string {
    if constexpr (std::is_integral_v<T>) {
      return str(+value.tensor.data<T>()[0]);
    } else {
      // The shortest text that reads back as the number.
      using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
      std::array<char, 64> text{};
      const auto end =
          std::to_chars(text.data(), text.data() + text.size(), static_cast<Wide>(value.tensor.data<T>()[0]))
              .ptr;
      return std::string(text.data(), end);
    }
  });
}

void to_csv(DataFile& file, const std::string& output, char delimiter) {
  WholeFile out(output);
  std::vector<std::string> names;
  std::string text;
  std::uint64_t elements = 0;
  for (std::vector<DataPart> parts; file.next(parts); ++elements) {
    if (elements == 0) {
      for (const DataPart& part : parts) names.push_back(part.name);
      append_csv_record(text, names, delimiter);
    }
    std::vector<std::string> fields(names.size());
    for (const DataPart& part : parts) {
      const auto at = std::ranges::find(names, part.name);
      if (at == names.end()) {
        throw InvalidArgument(str("element ", elements, ": '", part.name,
                                  "' is not in the first element, which names the columns of a CSV file"));
      }
      fields[static_cast<std::size_t>(at - names.begin())] = csv_field(part, elements);
    }
    append_csv_record(text, fields, delimiter);
    if (text.size() >= std::size_t{1} << 18U) {
      out.append(text);
      text.clear();
    }
  }
  out.append(text);
  out.commit();
}

}  // namespace

int run_command(const DataCommand& command) {
  if (command.delimiter.size() > 1 && command.delimiter != "\\t")
    throw UsageError("data: --delimiter takes one character, or '\\t' for a tab; got '" + command.delimiter +
                     "'");
  const char delimiter = command.delimiter.empty()    ? '\0'
                         : command.delimiter == "\\t" ? '\t'
                                                      : command.delimiter[0];
  if (command.output.empty()) {
    bool whole = true;
    for (const std::string& input : command.inputs) whole = show(input, command, delimiter) && whole;
    return whole ? kSuccess : kFailure;
  }
  if (command.inputs.size() != 1) throw UsageError("data: --to takes one file at a time");
  const std::string format = data_format_by_name(command.output);
  if (format != "tfrecord" && format != "csv")
    throw UsageError("data: --to writes .tfrecord, .tfrecord.gz and .csv, not '" + command.output + "'");
  const auto file = open_data_file(command.inputs[0], command.format, delimiter);
  if (format == "csv") {
    to_csv(*file, command.output, delimiter == '\0' ? ',' : delimiter);
  } else {
    to_tfrecord(*file, command.output);
  }
  return kSuccess;
}

}  // namespace lockstep::tools

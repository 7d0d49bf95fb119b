// tools/feeds.cpp - values for placeholders, from files and from the command line.
#include "feeds.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "command_line.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/text/text.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/files/npz.h"

namespace lockstep::tools {

namespace {

constexpr const char* kStandardInput = "-";

// Reads standard input as .npz, with all of its arrays, or as .npy, with its one array under `name`.
std::map<std::string, Tensor> read_standard_arrays(const std::string& name) {
  const std::string bytes = read_standard_input(input_limits());
  try {
    if (bytes.starts_with("PK")) return read_npz(bytes, input_limits());  // as every zip file does
    return {{name, read_npy(bytes, input_limits())}};
  } catch (const Error& error) {
    throw_error(error.code(), str("standard input: ", error.message()), error.place());
  }
}

Tensor literal(const std::string& name, const std::string& text) {
  std::string why = "that is no tensor";
  try {
    const AttributeValue value = parse_value(text);
    if (const auto* const tensor = std::get_if<Tensor>(&value); tensor != nullptr && tensor->defined())
      return *tensor;
  } catch (const ParseError& error) {
    why = error.message();
  }
  throw UsageError(str(
      "--feed ", name, "=", text,
      ": expected a file that ends in .npy or .npz, or a tensor as graph text has it: 'f32[2]{1.0, 2.0}' (",
      why, ")"));
}

Tensor value_of(const std::string& name, const std::string& text) {
  const std::string extension = extension_of(text);
  if (extension == "npy") return load_npy(text, input_limits());
  if (text != kStandardInput && extension != "npz") return literal(name, text);
  const std::map<std::string, Tensor> entries =
      text == kStandardInput ? read_standard_arrays(name) : load_npz(text, input_limits());
  const auto found = entries.find(name);
  if (found == entries.end()) {
    throw NotFound(str(text == kStandardInput ? "standard input" : text, ": there is no entry '", name, "'"));
  }
  return found->second;
}

void add(Feeds& feeds, const std::string& name, Tensor value) {
  if (!feeds.emplace(name, std::move(value)).second)
    throw UsageError(str("--feed: '", name, "' is fed twice"));
}

}  // namespace

Feeds read_feeds(const std::vector<std::string>& texts) {
  Feeds feeds;
  if (std::ranges::count_if(texts, [](const std::string& text) { return text.ends_with("=-"); }) > 1)
    throw UsageError("--feed: only one value can come on standard input");
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos && equals > 0) {
      const std::string name = text.substr(0, equals);
      add(feeds, name, value_of(name, text.substr(equals + 1)));
    } else if (equals == std::string::npos && extension_of(text) == "npz") {
      for (const auto& [name, value] : load_npz(text, input_limits())) add(feeds, name, value);
    } else {
      throw UsageError(str("--feed ", text, ": expected NAME=VALUE, or a file that ends in .npz"));
    }
  }
  return feeds;
}

std::vector<Tensor> split_rows(const Tensor& batch, std::size_t replicas) {
  if (batch.shape().rank() == 0) throw InvalidArgument("a scalar has no rows to split");
  const std::int64_t rows = batch.shape()[0], count = static_cast<std::int64_t>(replicas);
  std::vector<Tensor> slices;
  std::int64_t begin = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t end = begin + rows / count + (r < rows % count ? 1 : 0);
    slices.push_back(batch.slice(begin, end));
    begin = end;
  }
  return slices;
}

}  // namespace lockstep::tools

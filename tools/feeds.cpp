#include "feeds.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "command_line.h"
#include "graph_input.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/text.h"
#include "lockstep/io/npy.h"
#include "lockstep/io/npz.h"

namespace lockstep::tools {

namespace {

// Reads with the file's name in whatever goes wrong.
template <class Read>
auto read_file_with(const std::string& path, const Read& read) {
  const std::string bytes = read_input(path);
  try {
    return read(bytes);
  } catch (const Error& error) {
    throw_error(error.code(), str(path == "-" ? "standard input" : path, ": ", error.message()),
                error.place());
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
  if (text != "-" && extension != "npy" && extension != "npz") return literal(name, text);
  return read_file_with(text, [&](const std::string& bytes) {
    const bool packed = text == "-" ? bytes.starts_with("PK") : extension == "npz";  // as every zip file does
    if (!packed) return read_npy(bytes);
    const std::map<std::string, Tensor> entries = read_npz(bytes);
    const auto found = entries.find(name);
    if (found == entries.end()) throw NotFound(str("there is no entry '", name, "'"));
    return found->second;
  });
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
      const auto entries = read_file_with(text, [](const std::string& bytes) { return read_npz(bytes); });
      for (const auto& [name, value] : entries) add(feeds, name, value);
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

// tools/graph_input.cpp - graphs and other data from files or standard input, to files or standard output.
#include "graph_input.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "command_line.h"
#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/graphs/graph_file.h"
#include "terminal.h"

namespace lockstep::tools {

namespace {

ReadLimits& limits_of_inputs() {
  static ReadLimits limits;
  return limits;
}

}  // namespace

ReadLimits input_limits() { return limits_of_inputs(); }
void set_input_limits(const ReadLimits& limits) { limits_of_inputs() = limits; }

std::string read_input(const std::string& path) {
  return path == "-" ? read_standard_input(input_limits()) : read_file(path, input_limits());
}

Graph read_graph_input(const std::string& path, UnknownOps unknown) {
  if (path != "-") return load_graph(path, input_limits(), unknown);
  return read_graph(read_standard_input(input_limits()), input_limits(), "standard input", unknown);
}

Topology read_topology(const std::string& file_or_text) {
  std::error_code none;
  const bool is_file = std::filesystem::exists(file_or_text, none);
  return Topology::parse(is_file ? read_input(file_or_text) : file_or_text);
}

void write_output(const std::string& path, std::string_view bytes) {
  if (path != "-") return write_file_whole(path, bytes);
  write_data(bytes);
}

std::string format_by_extension(const std::string& path, const std::vector<OutputFormat>& formats) {
  const std::string extension = extension_of(path);
  if (extension.empty()) return formats.front().name;
  std::string known;
  for (const OutputFormat& format : formats) {
    if (std::ranges::find(format.extensions, extension) != format.extensions.end()) return format.name;
    known += str(known.empty() ? "" : ", ", ".", format.extensions.front(), " (", format.name, ")");
  }
  throw UsageError(str("--output: '", path, "' does not say by its extension what to write: there are ",
                       known, "; or give --format"));
}

std::string extension_of(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  if (!extension.empty()) extension.erase(0, 1);
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension;
}

}  // namespace lockstep::tools

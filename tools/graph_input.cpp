#include "graph_input.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "lockstep/core/error.h"
#include "lockstep/io/files.h"
#include "lockstep/io/graph_file.h"

namespace lockstep::tools {

std::string read_input(const std::string& path) { return read_file(path == "-" ? "/dev/stdin" : path); }

Graph read_graph_input(const std::string& path) {
  return read_graph(read_input(path), {}, path == "-" ? "standard input" : path);
}

void write_output(const std::string& path, std::string_view bytes) {
  if (path == "-") {
    std::cout.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return;
  }
  // A device or a pipe is written to; replacing it by a file is not what anybody means.
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
      !std::filesystem::is_directory(status)) {
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out.flush()) throw Error(ErrorCode::kUnavailable, str("'", path, "' cannot be written"));
    return;
  }
  write_file_whole(path, bytes);
}

std::string extension_of(const std::string& path) {
  std::string extension = std::filesystem::path(path).extension().string();
  if (!extension.empty()) extension.erase(0, 1);
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  return extension;
}

}  // namespace lockstep::tools

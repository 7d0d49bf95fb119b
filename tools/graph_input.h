// tools/graph_input.h - graphs and other data from files or standard input, to files or standard output.
//
// Outputs are written whole or not at all (io/files/files.h): a file that was there stays as it is until the
// new one is complete.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/read_limits.h"
#include "lockstep/core/topology.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/io/graphs/graph_file.h"

namespace lockstep::tools {

// The limits for reading inputs: those of --read-limit, once main() has set them.
ReadLimits input_limits();
void set_input_limits(const ReadLimits& limits);

// The contents of the file, or of standard input for "-", within input_limits(). Throws NotFound, or Error
// with the path.
std::string read_input(const std::string& path);
// The graph in a file or on standard input, whatever its format, verified; errors name the file.
Graph read_graph_input(const std::string& path, UnknownOps unknown = UnknownOps::kRefuse);
// The topology that a file or the text itself describes.
Topology read_topology(const std::string& file_or_text);
void write_output(const std::string& path, std::string_view bytes);

// The format that an output asks for by its extension; the first of `formats` if it has none, like "-".
// Throws UsageError for an extension that no format has.
struct OutputFormat {
  std::string name;
  std::vector<std::string> extensions;
};
std::string format_by_extension(const std::string& path, const std::vector<OutputFormat>& formats);

// The extension without its dot, in small letters: "html" for "out/step.HTML".
std::string extension_of(const std::string& path);

}  // namespace lockstep::tools

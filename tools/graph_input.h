// tools/graph_input.h - graphs and other data from files or standard input, to files or standard output.
//
// Outputs are written whole or not at all: a file that was there stays as it is until the new one is complete.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep::tools {

// What lies in the file, or comes on standard input for "-". Throws NotFound, or Error with the path.
std::string read_input(const std::string& path);
// The graph in a file, whatever its format; errors name the file. Not verified.
Graph read_graph_input(const std::string& path);
void write_output(const std::string& path, std::string_view bytes);

// The extension without its dot, in small letters: "html" for "out/step.HTML".
std::string extension_of(const std::string& path);

}  // namespace lockstep::tools

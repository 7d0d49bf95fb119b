// tests/fuzz/fuzz_graph.h - what holds for any bytes that are read as a graph.
//
// They are refused with Error, or they become a graph that is written and read back as itself. Anything else
// (another exception, a crash, a sanitizer's finding, much memory, much time) is a finding. No GoogleTest in
// here: libFuzzer has the main().
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/graph/check/structure.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/io/graphs/graph_file.h"

namespace lockstep::fuzz {

[[noreturn]] inline void report(const std::string& finding) {
  std::fprintf(stderr, "finding: %s\n", finding.c_str());
  std::abort();
}

// The op of the files in tests/io/files.
inline void register_test_op() {
  OpDef def;
  def.name = "file_test_any";
  def.inputs = Arity::exactly(1);
  def.open_attributes = true;
  def.infer = [](InferContext& c) { c.add_output(c.input(0)); };
  OpRegistry::global().add(std::move(def));
}

inline void check_bytes(std::string_view bytes, GraphFormat format) {
  constexpr ReadLimits kLimits{.file_bytes = 1 << 20, .base_bytes = 8 << 20};
  Graph graph;
  try {
    graph = read_graph(bytes, kLimits);
  } catch (const Error&) {
    return;
  }
  std::string written;
  try {
    written = write_graph(graph, format);
  } catch (const InvalidArgument& error) {  // JSON cannot hold every name
    if (format == GraphFormat::kJson) return;
    report(error.what());
  }
  const std::string difference = structural_difference(graph, read_graph(written));
  if (!difference.empty()) report("after writing and reading: " + difference);
}

inline std::string_view view(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace lockstep::fuzz

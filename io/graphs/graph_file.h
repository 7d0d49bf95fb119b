// io/graphs/graph_file.h - graphs in files: binary, JSON and text.
//
//   save_graph(graph, "step.lkg");                  // the extension says the form
//   Graph back = load_graph("step.lkg");            // the contents say it
//
//   form      extension  holds
//   kBinary   .lkg       everything; checksums over every byte; large constants as raw aligned blocks, which are read
//                        straight into their tensors
//   kJson     .json      everything, for reading, editing and other programs; no checksums
//   kText     .lks       the graph without creation sites, identities and provenance (graph/text/text.h)
//
// Everything is: nodes with names, ops, inputs, control inputs, attributes, output specs, devices, regions,
// creation sites, identity and provenance; parameters, results; variables with their declarations and initial
// values. Identities survive: graphs that are loaded from files of one origin share the identities of their
// common nodes.
//
//   keeps     same_structure(graph, read_graph(write_graph(graph, form))); also names, and for kBinary and kJson sites,
//             identities and provenance. Files of this version are read by all later ones (docs/file_formats.md)
//   hostile   every file is taken for an attack: counts are compared with the bytes that are there before
//             memory is allocated; memory is bounded by the size of the file (core/read_limits.h), and depth
//             is bounded, too; nothing in a file names code to run or another file; the graph passes verify()
//             before it is returned
//   failure   writing: InvalidArgument for a node that holds a lambda (it names the node and its source
//             line), VerifyError for a graph that is not valid, since nobody could read it back. Reading:
//             Error, which names the file; InvalidArgument for a file above the limits, kDataLoss for a
//             damaged or empty file, kUnimplemented for a later version, kNotFound for an op that is not
//             registered, ParseError for text. An existing file is replaced whole or not at all
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

enum class GraphFormat : std::uint8_t { kBinary, kJson, kText };
// ".lkg", ".json", ".lks".
LOCKSTEP_API std::string_view extension_of(GraphFormat format);
// From the extension of a path; throws InvalidArgument that lists the three.
LOCKSTEP_API GraphFormat graph_format_of(const std::filesystem::path& path);

// Whether a graph in text may name ops that are not registered: enough to look at it, not to run it.
// Everything else about such a graph is verified.
enum class UnknownOps : std::uint8_t { kRefuse, kKeep };

LOCKSTEP_API std::string write_graph(const Graph& graph, GraphFormat format);
// The form is recognised from the bytes. `source` names them in errors, and in the creation sites of text.
LOCKSTEP_API Graph read_graph(std::string_view bytes, const ReadLimits& limits = {},
                              std::string_view source = "<graph>", UnknownOps unknown = UnknownOps::kRefuse);

LOCKSTEP_API void save_graph(const Graph& graph, const std::filesystem::path& path);
// From a file or a pipe.
LOCKSTEP_API Graph load_graph(const std::filesystem::path& path, const ReadLimits& limits = {},
                              UnknownOps unknown = UnknownOps::kRefuse);

}  // namespace lockstep

// graph/text/text.h - the stable text form of graphs; grammar in docs/text_format.md.
//
//   var @w : f32[4] = f32[4]{*0.0}
//   %x = placeholder() : f32[4]
//   %r = read[variable=@w]() : f32[4]
//   %y = add(%x, %r) : f32[4] on "cpu:1" after(%r)        // device, control inputs
//   return %y
//
// print(parse(t)) is t for text that print wrote, and parse(print(g)) has the structure of g. Nodes print in
// topological order, parameters first, so a copy of a graph prints the same. Lambda nodes print as opaque and
// do not parse. Thread safety: any thread; a graph that is printed is only read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"
#include "lockstep/core/read_limits.h"
#include "lockstep/graph/ir/graph.h"

namespace lockstep {

struct PrintOptions {
  bool sites = false;       // "// model.cpp:42" after each node
  bool provenance = false;  // "// from <origin name>, by <pass>, replica 1: why"
};
LOCKSTEP_API std::string print(const Graph& graph, const PrintOptions& options = {});
LOCKSTEP_API std::string print(const AttributeValue& value);

class LOCKSTEP_API ParseError : public Error {
 public:
  ParseError(std::string message, std::uint32_t line, std::uint32_t column, std::string_view source = {});
  ~ParseError() override;
  std::uint32_t line() const { return line_; }      // from 1
  std::uint32_t column() const { return column_; }  // from 1, in bytes

 private:
  friend LOCKSTEP_API Graph parse(std::string_view text, std::string_view source, const ReadLimits& limits);
  std::string bare_;  // the message without line and column
  std::uint32_t line_;
  std::uint32_t column_;
};
// Throws ParseError: "3:14: expected ')' or ',', got '->'". Unknown ops, wrong specs and cycles parse:
// verify() judges. `source` names the text in errors (place().file) and in creation sites (each node's site
// is its line there). A few bytes of text can ask for much ("f32[1000000000]{*0.0}"): text whose graph would
// take more memory than the limits allow for its size is refused.
LOCKSTEP_API Graph parse(std::string_view text, std::string_view source = "<text>",
                         const ReadLimits& limits = {});
// One attribute's value, as print() writes it: parse_value(print(v)) is v, bit by bit. Throws ParseError.
LOCKSTEP_API AttributeValue parse_value(std::string_view text, const ReadLimits& limits = {});
// For one of many values in a file: its memory comes out of the file's budget.
LOCKSTEP_API AttributeValue parse_value(std::string_view text, ReadBudget& budget);

}  // namespace lockstep

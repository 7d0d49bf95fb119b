// graph/text/text_parse.cpp - from the text form to a graph.
#include <algorithm>
#include <memory>
#include <unordered_map>

#include "lockstep/core/base/name_hash.h"
#include "lockstep/core/device_spellings.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/text/internal/text_lexer.h"
#include "lockstep/graph/text/internal/text_syntax.h"
#include "lockstep/graph/text/internal/text_values.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

using internal::TextLexer;
using internal::TextPlace;
using internal::TextValues;
using internal::to_integer;

// Memory per item, in the graph and while it is verified.
constexpr std::uint64_t kNodeBytes = sizeof(Node) + 128;
constexpr std::uint64_t kVariableBytes = 2 * sizeof(VariableDecl) + 64;
constexpr std::uint64_t kUnknownOpBytes = 2 * sizeof(OpDef) + 512;
constexpr std::size_t kInlineInputs = 2;

class Parser {
 public:
  Parser(std::string_view text, std::string_view source, ReadBudget& budget)
      : lexer_(text), values_(lexer_, budget), source_(source) {
    // As many nodes as a text of the usual form can hold; a wrong guess costs nothing.
    constexpr std::size_t kShortLine = 24;
    expected_nodes_ = std::min<std::size_t>(static_cast<std::size_t>(std::ranges::count(text, '\n')),
                                            text.size() / kShortLine);
  }

  Graph parse() {
    Graph graph = parse_graph(0);
    if (lexer_.skip_lines()) lexer_.expected("a statement or the end of the text");
    return graph;
  }

  AttributeValue parse_single_value() {
    AttributeValue value = values_.parse_value("<value>");
    if (lexer_.skip_lines()) lexer_.expected("the end of the text");
    return value;
  }

 private:
  // A reference to a node that is defined further on.
  struct Forward {
    NodeId user;
    std::uint32_t slot;  // among the inputs or controls; among the results if the user is invalid
    bool control;
    TextPlace place;
    std::string name;
  };

  // --- statements

  Graph parse_graph(int depth) {
    values_.take(2 * sizeof(Graph), "a region", lexer_.place());
    Graph graph;
    if (depth == 0) graph.reserve(expected_nodes_);
    std::vector<Forward> forwards;
    bool returned = false;
    while (lexer_.skip_lines() && lexer_.peek() != '}') {
      if (returned) lexer_.fail("'return' is the last statement of its graph; nothing may follow it");
      if (lexer_.peek() == '%') {
        parse_node(graph, forwards, depth);
      } else if (lexer_.take_word("var")) {
        parse_variable(graph);
      } else if (lexer_.take_word("return")) {
        parse_results(graph, forwards);
        returned = true;
      } else {
        lexer_.expected("a statement ('%name = ...', 'var @name ...' or 'return ...')");
      }
      if (!lexer_.at_line_end() && lexer_.peek() != '}') lexer_.expected("the end of the line");
    }
    resolve(graph, forwards);
    return graph;
  }

  void parse_results(Graph& graph, std::vector<Forward>& forwards) {
    if (lexer_.at_line_end() || lexer_.peek() == '}') return;
    std::vector<ValueId> results;
    do {
      values_.take(2 * sizeof(ValueId), "a result", lexer_.place());
      results.push_back(
          parse_use(graph, forwards, NodeId(), static_cast<std::uint32_t>(results.size()), false));
    } while (lexer_.take(','));
    graph.set_results(std::move(results));
  }

  void parse_variable(Graph& graph) {
    lexer_.expect('@', "'@' and the variable's name");
    VariableDecl decl;
    decl.made_at = str(source_, ":", lexer_.line());
    const TextPlace place = lexer_.place();
    decl.name = std::string(lexer_.take_name("the variable's name"));
    values_.take(kVariableBytes + 2 * decl.name.size(), "a variable", place);
    lexer_.expect(':', "':' and the variable's type");
    decl.spec = values_.parse_spec();
    if (lexer_.take('=')) decl.initial = values_.parse_tensor();
    if (lexer_.take_open('[')) {
      do {
        parse_variable_option(decl);
      } while (lexer_.take_comma_or_close(']', "',' or ']'"));
    }
    try {
      graph.declare_variable(std::move(decl));
    } catch (const InvalidArgument& error) {
      TextLexer::fail(place, error.message());
    }
  }

  void parse_variable_option(VariableDecl& decl) {
    const auto one_of = [&]<class Enum>(Enum& value, std::initializer_list<Enum> all) {
      const std::string_view word = lexer_.peek_word();
      std::string names;
      for (const Enum candidate : all) {
        if (to_string(candidate) == word) {
          value = candidate;
          lexer_.take_word();
          return;
        }
        names += names.empty() ? "" : ", ";
        names += to_string(candidate);
      }
      lexer_.expected("one of " + names);
    };
    if (lexer_.take_word("trainable")) {
      lexer_.expect('=', "'='");
      decl.trainable = values_.parse_bool();
    } else if (lexer_.take_word("synchronization")) {
      lexer_.expect('=', "'='");
      using enum Synchronization;
      one_of(decl.synchronization, {kAuto, kNone, kOnWrite, kOnRead});
    } else if (lexer_.take_word("aggregation")) {
      lexer_.expect('=', "'='");
      using enum Aggregation;
      one_of(decl.aggregation, {kNone, kSum, kMean, kOnlyFirstReplica, kSlices});
    } else if (lexer_.take_word("slice_axis")) {
      lexer_.expect('=', "'='");
      decl.slice_axis = parse_count<std::int32_t>("the number of an axis");
    } else if (lexer_.take_word("slice_extent")) {
      lexer_.expect('=', "'='");
      decl.slice_extent = parse_count<std::int64_t>("a number of elements");
    } else if (lexer_.take_word("device")) {
      lexer_.expect('=', "'='");
      if (lexer_.peek() != '"') lexer_.expected("a device name in quotes");
      decl.device = devices_.canonical(lexer_.take_string());
    } else if (lexer_.take_word("copy_of")) {
      lexer_.expect('=', "'='");
      lexer_.expect('@', "'@' and the name of a variable");
      decl.copy_of = std::string(lexer_.take_name("the name of a variable"));
    } else if (lexer_.take_word("replica")) {
      lexer_.expect('=', "'='");
      decl.replica = parse_count<std::int32_t>("the number of a replica");
    } else if (lexer_.take_word("shares")) {
      lexer_.expect('=', "'='");
      decl.shares = values_.parse_bool();
    } else {
      lexer_.expected(
          "trainable, synchronization, aggregation, slice_axis, slice_extent, device, copy_of, replica or "
          "shares");
    }
  }

  template <class Number>
  Number parse_count(const char* what) {
    const TextPlace place = lexer_.place();
    const std::string_view number = lexer_.take_number();
    if (number.empty() || number[0] == '-') lexer_.expected(what);
    return to_integer<Number>(number, place, what);
  }

  void parse_node(Graph& graph, std::vector<Forward>& forwards, int depth) {
    NodeInit init;
    const NodeId id(graph.id_bound());
    init.site = {source_.c_str(), "", lexer_.line()};
    lexer_.take('%');
    const TextPlace place = lexer_.place();
    init.name = lexer_.take_name("the node's name");
    if (init.name.empty()) TextLexer::fail(place, "a node's name must not be empty");
    lexer_.expect('=', "'='");
    const std::string_view op = lexer_.take_word();
    if (op.empty()) lexer_.expected("the name of an op");
    values_.take(kNodeBytes + init.name.size(), "a node", place);
    init.op = &find_op(op, place);
    const TextPlace brackets = lexer_.place();
    if (lexer_.take_open('[')) init.attributes = values_.parse_attributes(brackets, init.name);
    lexer_.expect_open('(',
                       init.attributes.empty() ? "'[' and attributes, or '(' and inputs" : "'(' and inputs");
    if (!lexer_.take_close(')')) {
      do {
        if (init.inputs.size() >= kInlineInputs) values_.take(2 * sizeof(ValueId), "an input", place);
        init.inputs.push_back(
            parse_use(graph, forwards, id, static_cast<std::uint32_t>(init.inputs.size()), false));
      } while (lexer_.take_comma_or_close(')', "',' or ')'"));
    }
    if (lexer_.take(':')) {
      do {
        if (!init.outputs.empty()) values_.take(2 * sizeof(TensorSpec), "an output", place);
        init.outputs.push_back(values_.parse_spec());
      } while (lexer_.take(','));
    }
    std::string device;
    if (lexer_.take_word("on")) {
      if (lexer_.peek() != '"') lexer_.expected("a device name in quotes");
      device = devices_.canonical(lexer_.take_string());
      init.device = device;
    }
    const auto provenance = [&]() -> Provenance& {
      if (!init.provenance) {
        init.provenance = Provenance{};
        init.provenance->identity = init.provenance->origin = Graph::new_identity();
      }
      return *init.provenance;
    };
    if (lexer_.take_word("replica"))
      provenance().replica = parse_count<std::int32_t>("the number of a replica");
    if (lexer_.take_word("gradient")) {
      provenance().made_by = graph.intern(internal::kGradients);
      provenance().gradient = GradientMark::kShare;
    }
    if (lexer_.take_word("after")) {
      lexer_.expect_open('(', "'('");
      do {
        const auto slot = static_cast<std::uint32_t>(init.controls.size());
        if (slot >= kInlineInputs) values_.take(2 * sizeof(NodeId), "a control input", place);
        init.controls.push_back(parse_use(graph, forwards, id, slot, true).node);
      } while (lexer_.take_comma_or_close(')', "',' or ')'"));
    }
    if (lexer_.take('{')) init.regions = parse_regions(depth);
    add_node(graph, std::move(init), place);
  }

  void add_node(Graph& graph, NodeInit init, TextPlace place) {
    static const OpDef* const kPlaceholder = OpRegistry::global().find("placeholder");
    const bool is_parameter = init.op == kPlaceholder;
    try {
      const NodeId id = graph.add(std::move(init));
      if (is_parameter) graph.add_parameter(id);
    } catch (const InvalidArgument& error) {
      TextLexer::fail(place, error.message());  // the name is taken
    }
  }

  // After the '{' of a node.
  std::vector<Graph> parse_regions(int depth) {
    std::vector<Graph> regions;
    while (true) {
      lexer_.skip_lines();
      if (lexer_.take('}')) return regions;
      const TextPlace place = lexer_.place();
      if (!lexer_.take_word("region")) lexer_.expected("'region' or '}'");
      if (depth == internal::text_syntax::kMaxRegionDepth) {
        TextLexer::fail(
            place, str("regions are nested deeper than ", internal::text_syntax::kMaxRegionDepth, " levels"));
      }
      lexer_.expect('{', "'{'");
      regions.push_back(parse_graph(depth + 1));
      lexer_.expect('}', "a statement or '}'");
    }
  }

  // --- references

  ValueId parse_use(const Graph& graph, std::vector<Forward>& forwards, NodeId user, std::uint32_t slot,
                    bool control) {
    lexer_.expect('%', control ? "'%' and the name of a node" : "'%' and the name of a value");
    const TextPlace place = lexer_.place();
    const std::string_view name = lexer_.take_name("a name after '%'");
    ValueId value{graph.find(name), 0};
    if (!value.node.valid()) {
      values_.take(2 * sizeof(Forward) + name.size(), "a name that comes later", place);
      forwards.push_back({user, slot, control, place, std::string(name)});
    }
    if (!control && lexer_.adjacent(':')) {
      lexer_.take(':');
      const TextPlace number_place = lexer_.place();
      const std::string_view number = lexer_.take_number();
      if (number.empty() || number[0] == '-') lexer_.expected("the number of an output");
      value.output = to_integer<std::uint32_t>(number, number_place, "the number of an output");
    }
    return value;
  }

  // Fills in the ids of references that came before their nodes.
  static void resolve(Graph& graph, const std::vector<Forward>& forwards) {
    std::vector<NodeId> controls;
    std::vector<ValueId> results = graph.results();
    for (std::size_t i = 0; i < forwards.size(); ++i) {
      const Forward& forward = forwards[i];
      const NodeId id = graph.find(forward.name);
      if (!id.valid()) {
        TextLexer::fail(forward.place,
                        str("there is no node named '", forward.name.substr(0, 80), "' in this graph"));
      }
      if (!forward.user.valid()) {
        results[forward.slot].node = id;
      } else if (!forward.control) {
        const ValueId before = graph.node(forward.user).inputs()[forward.slot];
        graph.set_input(forward.user, forward.slot, {id, before.output});
      } else {  // the controls of one node are adjacent: set them at once
        if (controls.empty()) {
          const auto old = graph.node(forward.user).controls();
          controls.assign(old.begin(), old.end());
        }
        controls[forward.slot] = id;
        const bool more =
            i + 1 < forwards.size() && forwards[i + 1].user == forward.user && forwards[i + 1].control;
        if (more) continue;
        graph.set_controls(forward.user, controls);
        controls.clear();
      }
    }
    if (!forwards.empty()) graph.set_results(std::move(results));
  }

  const OpDef& find_op(std::string_view name, TextPlace place) {
    if (last_op_ != nullptr && last_op_->name == name) return *last_op_;
    auto found = ops_.find(name);
    if (found == ops_.end()) {
      if (OpRegistry::global().find(name) == nullptr)
        values_.take(kUnknownOpBytes + 2 * name.size(), "an op that nobody registered", place);
      std::shared_ptr<const OpDef> op = OpRegistry::global().find_or_unknown(name);
      const std::string_view kept = op->name;
      found = ops_.emplace(kept, std::move(op)).first;
    }
    last_op_ = found->second.get();
    return *last_op_;
  }

  TextLexer lexer_;
  TextValues values_;
  const std::string source_;
  std::size_t expected_nodes_ = 0;
  const OpDef* last_op_ = nullptr;
  std::unordered_map<std::string_view, std::shared_ptr<const OpDef>, NameHash> ops_;
  DeviceSpellings devices_;
};

}  // namespace

ParseError::ParseError(std::string message, std::uint32_t line, std::uint32_t column, std::string_view source)
    : Error(ErrorCode::kInvalidArgument, str(line, ":", column, ": ", message),
            {{}, {}, {}, std::string(source), line, -1}),
      bare_(std::move(message)),
      line_(line),
      column_(column) {}
ParseError::~ParseError() = default;

AttributeValue parse_value(std::string_view text, ReadBudget& budget) {
  return Parser(text, "<value>", budget).parse_single_value();
}

AttributeValue parse_value(std::string_view text, const ReadLimits& limits) {
  ReadBudget budget(limits, text.size());
  return parse_value(text, budget);
}

Graph parse(std::string_view text, std::string_view source, const ReadLimits& limits) {
  try {
    ReadBudget budget(limits, text.size());
    return Parser(text, source, budget).parse();
  } catch (const ParseError& error) {
    throw ParseError(error.bare_, error.line_, error.column_, source);
  }
}

}  // namespace lockstep

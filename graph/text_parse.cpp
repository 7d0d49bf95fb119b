#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

#include "lockstep/core/device.h"
#include "lockstep/graph/internal/text_lexer.h"
#include "lockstep/graph/internal/text_syntax.h"
#include "lockstep/graph/text.h"

namespace lockstep {
namespace {

using text_syntax::float_format;

// --- numbers

bool looks_like_float(std::string_view number) {
  return number.find_first_of(".eE") != std::string_view::npos;
}

template <class Integer>
Integer to_integer(std::string_view number, TextPlace place, std::string_view what) {
  Integer value{};
  const char* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    TextLexer::fail(place, str(number.substr(0, 40), " is out of range for ", what));
  }
  if (error != std::errc() || stop != end) {
    TextLexer::fail(place, str("expected an integer for ", what, ", got '", number.substr(0, 40), "'"));
  }
  return value;
}

template <class Float>
Float to_float(std::string_view number, TextPlace place, DType dtype) {
  Float value{};
  const char* end = number.data() + number.size();
  const auto [stop, error] = std::from_chars(number.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    TextLexer::fail(place, str(number.substr(0, 40), " is out of range for ", to_string(dtype)));
  }
  if (error != std::errc() || stop != end) {
    TextLexer::fail(place, str("expected a number, got '", number.substr(0, 40), "'"));
  }
  return value;
}

// The bits of a floating element of any dtype, from the text of a number.
std::uint64_t float_bits(std::string_view number, TextPlace place, DType dtype) {
  if (dtype == DType::kF64) return std::bit_cast<std::uint64_t>(to_float<double>(number, place, dtype));
  const auto wide = to_float<float>(number, place, dtype);
  if (dtype == DType::kF32) return std::bit_cast<std::uint32_t>(wide);
  const std::uint16_t bits = dtype == DType::kF16 ? F16(wide).bits : BF16(wide).bits;
  const bool overflow = (bits & 0x7fffU) == float_format(dtype).exponent_mask;
  const bool underflow = (bits & 0x7fffU) == 0 && wide != 0;
  if (overflow || underflow) {
    TextLexer::fail(place, str(number.substr(0, 40), " is out of range for ", to_string(dtype)));
  }
  return bits;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view source, const ParseLimits& limits)
      : lexer_(text), source_(source), limits_(limits) {
    // As many as the text can hold when it reads like most do; a guess that costs nothing when it is wrong.
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
    AttributeValue value = parse_value("<value>");
    if (lexer_.skip_lines()) lexer_.expected("the end of the text");
    return value;
  }

 private:
  // A reference to a node that has not come yet.
  struct Forward {
    NodeId user;
    std::uint32_t slot;  // of the inputs, or of the controls; of the results for an invalid user
    bool control;
    TextPlace place;
    std::string name;
  };

  // --- statements

  Graph parse_graph(int depth) {
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
      results.push_back(
          parse_use(graph, forwards, NodeId(), static_cast<std::uint32_t>(results.size()), false));
    } while (lexer_.take(','));
    graph.set_results(std::move(results));
  }

  void parse_variable(Graph& graph) {
    lexer_.expect('@', "'@' and the variable's name");
    VariableDecl decl;
    const TextPlace place = lexer_.place();
    decl.name = std::string(lexer_.take_name("the variable's name"));
    lexer_.expect(':', "':' and the variable's type");
    decl.spec = parse_spec();
    if (lexer_.take('=')) decl.initial = parse_tensor();
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
      decl.trainable = parse_bool();
    } else if (lexer_.take_word("synchronization")) {
      lexer_.expect('=', "'='");
      using enum Synchronization;
      one_of(decl.synchronization, {kAuto, kNone, kOnWrite, kOnRead});
    } else if (lexer_.take_word("aggregation")) {
      lexer_.expect('=', "'='");
      using enum Aggregation;
      one_of(decl.aggregation, {kNone, kSum, kMean, kOnlyFirstReplica});
    } else if (lexer_.take_word("device")) {
      lexer_.expect('=', "'='");
      if (lexer_.peek() != '"') lexer_.expected("a device name in quotes");
      decl.device = canonical_device(lexer_.take_string());
    } else if (lexer_.take_word("copy_of")) {
      lexer_.expect('=', "'='");
      lexer_.expect('@', "'@' and the name of a variable");
      decl.copy_of = std::string(lexer_.take_name("the name of a variable"));
    } else if (lexer_.take_word("replica")) {
      lexer_.expect('=', "'='");
      decl.replica = parse_replica();
    } else if (lexer_.take_word("shares")) {
      lexer_.expect('=', "'='");
      decl.shares = parse_bool();
    } else {
      lexer_.expected("trainable, synchronization, aggregation, device, copy_of, replica or shares");
    }
  }

  std::int32_t parse_replica() {
    const TextPlace place = lexer_.place();
    const std::string_view number = lexer_.take_number();
    if (number.empty() || number[0] == '-') lexer_.expected("the number of a replica");
    return to_integer<std::int32_t>(number, place, "the number of a replica");
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
    init.op = &find_op(op);
    const TextPlace brackets = lexer_.place();
    if (lexer_.take_open('[')) init.attributes = parse_attributes(brackets, init.name);
    lexer_.expect_open('(',
                       init.attributes.empty() ? "'[' and attributes, or '(' and inputs" : "'(' and inputs");
    if (!lexer_.take_close(')')) {
      do {
        init.inputs.push_back(
            parse_use(graph, forwards, id, static_cast<std::uint32_t>(init.inputs.size()), false));
      } while (lexer_.take_comma_or_close(')', "',' or ')'"));
    }
    if (lexer_.take(':')) {
      do {
        init.outputs.push_back(parse_spec());
      } while (lexer_.take(','));
    }
    std::string device;
    if (lexer_.take_word("on")) {
      if (lexer_.peek() != '"') lexer_.expected("a device name in quotes");
      device = canonical_device(lexer_.take_string());
      init.device = device;
    }
    if (lexer_.take_word("replica")) {
      init.provenance = Provenance{};
      init.provenance->identity = init.provenance->origin = Graph::new_identity();
      init.provenance->replica = parse_replica();
    }
    if (lexer_.take_word("after")) {
      lexer_.expect_open('(', "'('");
      do {
        const auto slot = static_cast<std::uint32_t>(init.controls.size());
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

  // Behind the '{' of a node.
  std::vector<Graph> parse_regions(int depth) {
    std::vector<Graph> regions;
    while (true) {
      lexer_.skip_lines();
      if (lexer_.take('}')) return regions;
      const TextPlace place = lexer_.place();
      if (!lexer_.take_word("region")) lexer_.expected("'region' or '}'");
      if (depth == text_syntax::kMaxRegionDepth) {
        TextLexer::fail(place,
                        str("regions are nested deeper than ", text_syntax::kMaxRegionDepth, " levels"));
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
    if (!value.node.valid()) forwards.push_back({user, slot, control, place, std::string(name)});
    if (!control && lexer_.adjacent(':')) {
      lexer_.take(':');
      const TextPlace number_place = lexer_.place();
      const std::string_view number = lexer_.take_number();
      if (number.empty() || number[0] == '-') lexer_.expected("the number of an output");
      value.output = to_integer<std::uint32_t>(number, number_place, "the number of an output");
    }
    return value;
  }

  // Gives the references that came before their nodes their ids.
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
      } else {  // those of one node lie together: set them at once
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

  const OpDef& find_op(std::string_view name) {
    if (last_op_ != nullptr && last_op_->name == name) return *last_op_;
    auto found = ops_.find(name);
    if (found == ops_.end()) {
      const OpDef& op = OpRegistry::global().find_or_unknown(name);
      found = ops_.emplace(op.name, &op).first;
    }
    last_op_ = found->second;
    return *last_op_;
  }

  // Any spelling becomes the canonical one; what is no device name stays as it is, for the verifier to refuse.
  const std::string& canonical_device(const std::string& spelling) {
    const auto [found, fresh] = devices_.try_emplace(spelling, spelling);
    if (fresh) {
      try {
        found->second = Device::parse(spelling).to_string();
      } catch (const InvalidArgument&) {  // NOLINT(bugprone-empty-catch): see above
      }
    }
    return found->second;
  }

  // --- types

  std::int64_t parse_dim() {
    if (lexer_.take('?')) return kUnknown;
    const TextPlace place = lexer_.place();
    const std::string_view number = lexer_.take_number();
    if (number.empty() || number[0] == '-') {
      if (!number.empty())
        TextLexer::fail(place, str("a dimension must not be negative, got ", number.substr(0, 40)));
      lexer_.expected("a dimension (a number or '?')");
    }
    return to_integer<std::int64_t>(number, place, "a dimension");
  }

  // Behind the opening bracket, to the closing one.
  Shape parse_dims(TextPlace place, char close, std::string_view what) {
    SmallVector<std::int64_t, 8> dims;
    if (!lexer_.take_close(close)) {
      do {
        dims.push_back(parse_dim());
        if (dims.size() > Shape::kMaxRank)
          TextLexer::fail(place, str("more than ", Shape::kMaxRank, " dimensions"));
      } while (lexer_.take_comma_or_close(close, what));
    }
    try {
      return Shape(std::span<const std::int64_t>(dims.data(), dims.size()));
    } catch (const InvalidArgument& error) {
      TextLexer::fail(place, error.message());
    }
  }

  TensorSpec parse_spec() {
    const TextPlace place = lexer_.place();
    const std::optional<DType> dtype = parse_dtype(lexer_.peek_word());
    if (!dtype) lexer_.expected("a type such as f32[2,?]");
    lexer_.take_word();
    return parse_spec_behind(*dtype, place);
  }
  TensorSpec parse_spec_behind(DType dtype, TextPlace place) {
    lexer_.expect_open('[', "'[' and dimensions");
    return {dtype, parse_dims(place, ']', "',' or ']'")};
  }

  // --- attributes

  // Behind the opening bracket.
  std::vector<Attribute> parse_attributes(TextPlace place, const std::string& node) {
    std::vector<Attribute> attributes;
    if (lexer_.take_close(']')) return attributes;
    do {
      std::string name(lexer_.take_name("the name of an attribute"));
      lexer_.expect('=', "'=' and the attribute's value");
      attributes.push_back({std::move(name), parse_value(node)});
    } while (lexer_.take_comma_or_close(']', "',' or ']'"));
    std::ranges::sort(attributes, {}, &Attribute::name);
    const auto twice = std::ranges::adjacent_find(attributes, {}, &Attribute::name);
    if (twice != attributes.end())
      TextLexer::fail(place, str("attribute '", twice->name, "' is given twice"));
    return attributes;
  }

  bool parse_bool() {
    if (lexer_.take_word("true")) return true;
    if (!lexer_.take_word("false")) lexer_.expected("true or false");
    return false;
  }

  AttributeValue parse_value(const std::string& node) {
    const TextPlace place = lexer_.place();
    switch (lexer_.peek()) {
      case '"': return lexer_.take_string();
      case '@':
        lexer_.take('@');
        return VariableRef{std::string(lexer_.take_name("a variable's name after '@'"))};
      case '[': lexer_.take_open('['); return parse_list(place);
      case '<': lexer_.take_open('<'); return parse_shape_or_lambda(place, node);
      default: break;
    }
    const std::string_view word = lexer_.peek_word();
    if (word == "true" || word == "false") return parse_bool();
    if (word == "undefined") {
      lexer_.take_word();
      return Tensor();
    }
    if (word == "ints") return parse_empty_list<std::int64_t>();
    if (word == "floats") return parse_empty_list<double>();
    if (word == "strings") return parse_empty_list<std::string>();
    if (const std::optional<DType> dtype = parse_dtype(word)) {
      lexer_.take_word();
      if (!lexer_.adjacent('[')) return *dtype;
      return parse_tensor_behind(*dtype, place);
    }
    if (at_special_float()) return take_special_double();
    const std::string_view number = lexer_.take_number();
    if (number.empty()) lexer_.expected("an attribute's value");
    if (looks_like_float(number)) return to_float<double>(number, place, DType::kF64);
    return to_integer<std::int64_t>(number, place, "an int attribute (64 bits)");
  }

  AttributeValue parse_shape_or_lambda(TextPlace place, const std::string& node) {
    if (lexer_.peek_word() == "lambda") {
      TextLexer::fail(place,
                      str("node '", node,
                          "' holds C++ code (<lambda>), which text cannot carry: build this graph in C++, or "
                          "register the code as an op and use that"));
    }
    return parse_dims(place, '>', "',' or '>'");
  }

  template <class T>
  AttributeValue parse_empty_list() {
    lexer_.take_word();
    lexer_.expect_open('[', "'[]'");
    if (!lexer_.take_close(']')) lexer_.expected("']' (a list with elements is written without its type)");
    return std::vector<T>();
  }

  // Behind the opening bracket; the first element decides the type.
  AttributeValue parse_list(TextPlace place) {
    if (lexer_.take_close(']'))
      TextLexer::fail(place, "an empty list is written ints[], floats[] or strings[]");
    if (lexer_.peek() == '"') {
      std::vector<std::string> strings;
      do {
        if (lexer_.peek() != '"') lexer_.expected("a string like the elements before");
        strings.push_back(lexer_.take_string());
      } while (lexer_.take_comma_or_close(']', "',' or ']'"));
      return strings;
    }
    std::vector<std::int64_t> ints;
    std::vector<double> floats;
    do {
      const TextPlace element = lexer_.place();
      if (at_special_float()) {
        if (!ints.empty()) lexer_.fail("expected an integer like the elements before");
        floats.push_back(take_special_double());
        continue;
      }
      const std::string_view number = lexer_.take_number();
      if (number.empty()) lexer_.expected("a number or a string");
      if (looks_like_float(number)) {
        if (!ints.empty()) TextLexer::fail(element, "expected an integer like the elements before");
        floats.push_back(to_float<double>(number, element, DType::kF64));
      } else {
        if (!floats.empty())
          TextLexer::fail(element, "expected a number with '.' or 'e' like the elements before");
        ints.push_back(to_integer<std::int64_t>(number, element, "a list of ints (64 bits)"));
      }
    } while (lexer_.take_comma_or_close(']', "',' or ']'"));
    if (!floats.empty()) return floats;
    return ints;
  }

  // --- infinities and NaNs

  bool at_special_float() {
    if (lexer_.peek() == '-') return lexer_.at_minus_inf();
    const std::string_view word = lexer_.peek_word();
    return word == "inf" || word == "nan";
  }

  // inf, -inf, nan, nan(0x7fc00001)
  std::uint64_t take_special(DType dtype) {
    const auto format = float_format(dtype);
    const std::uint64_t sign = std::uint64_t{1} << (size_of(dtype) * 8 - 1);
    if (lexer_.take('-')) {
      lexer_.take_word();
      return sign | format.exponent_mask;
    }
    if (lexer_.take_word() == "inf") return format.exponent_mask;
    if (!lexer_.adjacent('(')) return format.default_nan;
    lexer_.take_open('(');
    const TextPlace place = lexer_.place();
    std::string_view number = lexer_.take_number();
    std::uint64_t bits = 0;
    const bool hex = number.starts_with("0x");
    if (hex) number.remove_prefix(2);
    const char* end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, bits, 16);
    const bool fits = (bits & ~(sign | (sign - 1))) == 0;
    if (!hex || error != std::errc() || stop != end || !fits || !format.is_nan(bits)) {
      TextLexer::fail(place,
                      str("expected the bits of a NaN of ", to_string(dtype), " as 0x... (hexadecimal)"));
    }
    if (!lexer_.take_close(')')) lexer_.expected("')'");
    return bits;
  }
  double take_special_double() { return std::bit_cast<double>(take_special(DType::kF64)); }

  // --- tensors

  Tensor parse_tensor() {
    const TextPlace place = lexer_.place();
    const std::optional<DType> dtype = parse_dtype(lexer_.peek_word());
    if (!dtype) lexer_.expected("a tensor such as f32[2]{1.0, 2.0}");
    lexer_.take_word();
    return parse_tensor_behind(*dtype, place);
  }

  Tensor parse_tensor_behind(DType dtype, TextPlace place) {
    const TensorSpec spec = parse_spec_behind(dtype, place);
    if (!spec.shape.is_known()) TextLexer::fail(place, "a tensor's dimensions must be numbers, not '?'");
    lexer_.expect_open('{', "'{' and the tensor's elements");
    return visit_dtype(dtype, [&]<class T>(T) { return parse_elements<T>(spec, place); });
  }

  // bool as the byte that it is stored as.
  template <class T>
  using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

  template <class T>
  Stored<T> parse_element() {
    if constexpr (std::is_same_v<T, bool>) {
      return parse_bool() ? 1 : 0;
    } else {
      const TextPlace place = lexer_.place();
      if constexpr (!std::is_integral_v<T>) {
        if (at_special_float()) return from_bits<T>(take_special(dtype_of<T>));
      }
      const std::string_view number = lexer_.take_number();
      if (number.empty()) lexer_.expected(str("an element of type ", to_string(dtype_of<T>)));
      if constexpr (std::is_integral_v<T>) {
        return to_integer<T>(number, place, to_string(dtype_of<T>));
      } else {
        return from_bits<T>(float_bits(number, place, dtype_of<T>));
      }
    }
  }

  template <class T>
  static T from_bits(std::uint64_t bits) {
    if constexpr (std::is_same_v<T, double>) {
      return std::bit_cast<double>(bits);
    } else if constexpr (std::is_same_v<T, float>) {
      return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    } else {
      T half;
      half.bits = static_cast<std::uint16_t>(bits);
      return half;
    }
  }

  // Behind the '{'. No memory is taken before it is known that the text (or the limit on splats) allows for it.
  template <class T>
  Tensor parse_elements(const TensorSpec& spec, TextPlace place) {
    const auto count = static_cast<std::uint64_t>(spec.shape.num_elements());
    if (lexer_.take('*')) return parse_splat<T>(spec, place);
    const std::uint64_t most = lexer_.bytes_left() / 2 + 1;  // an element and its comma take two bytes
    if (count > most) {
      TextLexer::fail(place,
                      str(to_string(spec), " has ", count, " elements; the text is too short to hold them"));
    }
    Tensor tensor = Tensor::empty(spec.dtype, spec.shape);
    auto* elements = static_cast<Stored<T>*>(tensor.raw());
    std::uint64_t found = 0;
    if (!lexer_.take_close('}')) {
      do {
        if (found == count) {
          lexer_.fail(str(to_string(spec), " has ", count, " elements; more are given"));
        }
        elements[found++] = parse_element<T>();
      } while (lexer_.take_comma_or_close('}', "',' or '}'"));
    }
    if (found != count) {
      TextLexer::fail(place, str(to_string(spec), " has ", count, " elements; ", found, " are given"));
    }
    return tensor;
  }

  template <class T>
  Tensor parse_splat(const TensorSpec& spec, TextPlace place) {
    const Stored<T> element = parse_element<T>();
    if (!lexer_.take_close('}')) lexer_.expected("'}'");
    const auto bytes = static_cast<std::uint64_t>(num_bytes(spec));
    if (bytes > limits_.splat_bytes - splat_bytes_) {
      TextLexer::fail(place, str("the tensors that this text fills with one value take more than ",
                                 limits_.splat_bytes, " bytes"));
    }
    splat_bytes_ += bytes;
    Tensor tensor = Tensor::empty(spec.dtype, spec.shape);
    std::fill_n(static_cast<Stored<T>*>(tensor.raw()), tensor.num_elements(), element);
    return tensor;
  }

  TextLexer lexer_;
  const std::string source_;
  const ParseLimits limits_;
  std::size_t expected_nodes_ = 0;
  std::uint64_t splat_bytes_ = 0;
  const OpDef* last_op_ = nullptr;
  std::unordered_map<std::string_view, const OpDef*> ops_;
  std::unordered_map<std::string, std::string> devices_;  // spelling -> canonical
};

}  // namespace

ParseError::ParseError(std::string message, std::uint32_t line, std::uint32_t column, std::string_view source)
    : Error(ErrorCode::kInvalidArgument, str(line, ":", column, ": ", message),
            {{}, {}, {}, std::string(source), line, -1}),
      bare_(std::move(message)),
      line_(line),
      column_(column) {}
ParseError::~ParseError() = default;

AttributeValue parse_value(std::string_view text, const ParseLimits& limits) {
  return Parser(text, "<value>", limits).parse_single_value();
}

Graph parse(std::string_view text, std::string_view source, const ParseLimits& limits) {
  try {
    return Parser(text, source, limits).parse();
  } catch (const ParseError& error) {
    throw ParseError(error.bare_, error.line_, error.column_, source);
  }
}

}  // namespace lockstep

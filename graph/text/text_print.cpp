// graph/text/text_print.cpp - from a graph to its text form.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <unordered_map>

#include "lockstep/core/base/utf8.h"
#include "lockstep/graph/ir/internal/gradient_nodes.h"
#include "lockstep/graph/text/internal/text_syntax.h"
#include "lockstep/graph/text/text.h"

namespace lockstep {
namespace {

using internal::text_syntax::float_format;

constexpr char kHexDigits[] = "0123456789abcdef";

template <class Integer>
void append_integer(std::string& out, Integer value) {
  char buffer[24];
  out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

// A finite number or an infinity, as to_chars writes it, and never to be mistaken for an integer.
template <class Float>
void append_number(std::string& out, Float value) {
  char buffer[32];
  const std::string_view digits(
      buffer, static_cast<std::size_t>(std::to_chars(buffer, buffer + sizeof buffer, value).ptr - buffer));
  out += digits;
  if (digits.find_first_of(".en") == std::string_view::npos) out += ".0";  // "en": exponent, inf
}

// The shortest decimal that becomes these bits when it is read as a float and rounded to Half.
template <class Half>
void append_half(std::string& out, Half value) {
  const auto wide = static_cast<float>(value);
  if (!std::isfinite(wide)) return append_number(out, wide);
  for (int precision = 1; precision < 9; ++precision) {
    char buffer[32];
    const char* end =
        std::to_chars(buffer, buffer + sizeof buffer, wide, std::chars_format::scientific, precision - 1).ptr;
    float back = 0;
    std::from_chars(buffer, end, back);
    if (Half(back).bits != value.bits) continue;
    // So few digits survive the way through a double, which prints them in the nicer notation.
    double same_digits = 0;
    std::from_chars(buffer, end, same_digits);
    return append_number(out, same_digits);
  }
  append_number(out, wide);
}

template <class T>
std::uint64_t bits_of(T value) {
  if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<std::uint64_t>(value);
  else if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<std::uint32_t>(value);
  else
    return value.bits;
}

template <class Float>
void append_float(std::string& out, Float value) {
  constexpr auto kFormat = float_format(dtype_of<Float>);
  const std::uint64_t bits = bits_of(value);
  if (kFormat.is_nan(bits)) {
    out += "nan";
    if (bits == kFormat.default_nan) return;
    char buffer[24];
    out += "(0x";
    out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, bits, 16).ptr);
    out += ')';
  } else if constexpr (std::is_floating_point_v<Float>) {
    append_number(out, value);
  } else {
    append_half(out, value);
  }
}

void append_escaped(std::string& out, std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    const std::size_t length = utf8_length(text.substr(i));
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (length == 0 || byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHexDigits[byte >> 4U];
      out += kHexDigits[byte & 15U];
    } else {
      out += text.substr(i, length);
    }
    i += std::max<std::size_t>(length, 1);
  }
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  append_escaped(out, text);
  out += '"';
}

void append_name(std::string& out, std::string_view name) {
  if (internal::text_syntax::is_bare_name(name)) {
    out += name;
  } else {
    append_quoted(out, name);
  }
}

void append_dims(std::string& out, const Shape& shape, char open, char close) {
  out += open;
  bool first = true;
  for (const std::int64_t dim : shape.dims()) {
    if (!first) out += ',';
    first = false;
    if (dim == kUnknown) {
      out += '?';
    } else {
      append_integer(out, dim);
    }
  }
  out += close;
}

void append_spec(std::string& out, const TensorSpec& spec) {
  out += to_string(spec.dtype);
  append_dims(out, spec.shape, '[', ']');
}

// Calls `one` for each element, with commas between.
template <class List, class One>
void append_list(std::string& out, const List& list, One one) {
  bool first = true;
  for (const auto& element : list) {
    if (!first) out += ", ";
    first = false;
    one(element);
  }
}

bool all_elements_equal(const Tensor& tensor) {
  const std::size_t size = size_of(tensor.dtype());
  const std::size_t bytes = tensor.num_bytes();
  const char* data = static_cast<const char*>(tensor.raw());
  return bytes > size && std::memcmp(data, data + size, bytes - size) == 0;
}

void append_tensor(std::string& out, const Tensor& tensor) {
  if (!tensor.defined()) {
    out += "undefined";
    return;
  }
  append_spec(out, tensor.spec());
  out += '{';
  const bool splat = all_elements_equal(tensor);
  if (splat) out += '*';
  visit_dtype(tensor.dtype(), [&]<class T>(T) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto* bytes = static_cast<const std::uint8_t*>(tensor.raw());
      const std::span all(bytes, static_cast<std::size_t>(tensor.num_elements()));
      append_list(out, splat ? all.first(1) : all,
                  [&](std::uint8_t byte) { out += byte != 0 ? "true" : "false"; });
    } else {
      const std::span<const T> all = tensor.data<T>();
      append_list(out, splat ? all.first(1) : all, [&](T element) {
        if constexpr (std::is_integral_v<T>) {
          append_integer(out, element);
        } else {
          append_float(out, element);
        }
      });
    }
  });
  out += '}';
}

void append_value(std::string& out, const AttributeValue& attribute) {
  std::visit(
      [&]<class T>(const T& value) {
        if constexpr (std::is_same_v<T, bool>) {
          out += value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, std::int64_t>) {
          append_integer(out, value);
        } else if constexpr (std::is_same_v<T, double>) {
          append_float(out, value);
        } else if constexpr (std::is_same_v<T, std::string>) {
          append_quoted(out, value);
        } else if constexpr (std::is_same_v<T, DType>) {
          out += to_string(value);
        } else if constexpr (std::is_same_v<T, Shape>) {
          append_dims(out, value, '<', '>');
        } else if constexpr (std::is_same_v<T, Tensor>) {
          append_tensor(out, value);
        } else if constexpr (std::is_same_v<T, VariableRef>) {
          out += '@';
          append_name(out, value.name);
        } else if constexpr (std::is_same_v<T, Lambda>) {
          out += "<lambda>";
        } else {  // a list; an empty one names its type
          if (value.empty()) out += to_string(type_of(attribute));
          out += '[';
          append_list(out, value, [&](const auto& element) {
            using Element = std::remove_cvref_t<decltype(element)>;
            if constexpr (std::is_same_v<Element, std::string>) {
              append_quoted(out, element);
            } else if constexpr (std::is_same_v<Element, double>) {
              append_float(out, element);
            } else {
              append_integer(out, element);
            }
          });
          out += ']';
        }
      },
      attribute);
}

class Printer {
 public:
  explicit Printer(const PrintOptions& options) : options_(options) {}

  std::string take() { return std::move(out_); }

  void remember_names(const Graph& graph) {
    for (const Node& node : graph.nodes()) {
      name_of_identity_.try_emplace(node.provenance().identity, &node.name());
      for (const Graph& region : node.regions()) remember_names(region);
    }
  }

  void print_graph(const Graph& graph) {
    constexpr std::size_t kTypicalLine = 40;
    out_.reserve(out_.size() + graph.size() * kTypicalLine);
    for (const VariableDecl& variable : graph.variables()) print_variable(variable);
    // Parameters first: the parser takes placeholders as parameters in the order of the text.
    std::vector<bool> printed(graph.id_bound());
    for (const NodeId id : graph.parameters()) {
      if (!graph.contains(id) || printed[id.index()]) continue;
      printed[id.index()] = true;
      print_node(graph, graph.node(id));
    }
    for (const NodeId id : graph.topological_order()) {
      if (!printed[id.index()]) print_node(graph, graph.node(id));
    }
    if (graph.results().empty()) return;
    indent();
    out_ += "return ";
    append_list(out_, graph.results(), [&](ValueId value) { print_use(graph, value.node, value.output); });
    out_ += '\n';
  }

 private:
  void indent() { out_.append(indentation_, ' '); }

  void print_variable(const VariableDecl& variable) {
    indent();
    out_ += "var @";
    append_name(out_, variable.name);
    out_ += " : ";
    append_spec(out_, variable.spec);
    if (variable.initial.defined()) {
      out_ += " = ";
      append_tensor(out_, variable.initial);
    }
    const VariableDecl plain;
    const char* before = " [";
    const auto option = [&](std::string_view name, std::string_view value) {
      out_ += std::exchange(before, ", ");
      out_ += name;
      out_ += '=';
      out_ += value;
    };
    if (variable.trainable != plain.trainable) option("trainable", variable.trainable ? "true" : "false");
    if (variable.synchronization != plain.synchronization)
      option("synchronization", to_string(variable.synchronization));
    if (variable.aggregation != plain.aggregation) option("aggregation", to_string(variable.aggregation));
    if (variable.slice_axis != plain.slice_axis) option("slice_axis", std::to_string(variable.slice_axis));
    if (variable.slice_extent != plain.slice_extent)
      option("slice_extent", std::to_string(variable.slice_extent));
    if (!variable.device.empty()) {
      std::string quoted;
      append_quoted(quoted, variable.device);
      option("device", quoted);
    }
    if (!variable.copy_of.empty()) {
      std::string name = "@";
      append_name(name, variable.copy_of);
      option("copy_of", name);
    }
    if (variable.replica >= 0) option("replica", std::to_string(variable.replica));
    if (variable.shares) option("shares", "true");
    if (*before == ',') out_ += ']';
    out_ += '\n';
  }

  // A reference to a missing node prints so that it is noticed, and does not parse: %?7.
  void print_use(const Graph& graph, NodeId id, std::uint32_t output) {
    out_ += '%';
    if (graph.contains(id)) {
      append_name(out_, graph.node(id).name());
    } else {
      out_ += '?';
      append_integer(out_, id.value);
    }
    if (output != 0) {
      out_ += ':';
      append_integer(out_, output);
    }
  }

  void print_node(const Graph& graph, const Node& node) {
    indent();
    out_ += '%';
    append_name(out_, node.name());
    out_ += " = ";
    append_name(out_, node.op().name);
    if (!node.attributes().empty()) {
      out_ += '[';
      append_list(out_, node.attributes(), [&](const Attribute& attribute) {
        append_name(out_, attribute.name);
        out_ += '=';
        append_value(out_, attribute.value);
      });
      out_ += ']';
    }
    out_ += '(';
    append_list(out_, node.inputs(), [&](ValueId value) { print_use(graph, value.node, value.output); });
    out_ += ')';
    if (!node.outputs().empty()) {
      out_ += " : ";
      append_list(out_, node.outputs(), [&](const TensorSpec& spec) { append_spec(out_, spec); });
    }
    if (!node.device().empty()) {
      out_ += " on ";
      append_quoted(out_, node.device());
    }
    if (node.provenance().replica >= 0) {
      out_ += " replica ";
      append_integer(out_, node.provenance().replica);
    }
    if (internal::is_gradient_share(node)) out_ += " gradient";
    if (!node.controls().empty()) {
      out_ += " after(";
      append_list(out_, node.controls(), [&](NodeId id) { print_use(graph, id, 0); });
      out_ += ')';
    }
    if (!node.regions().empty()) out_ += " {";
    if (options_.sites || options_.provenance) print_comment(graph, node);
    out_ += '\n';
    if (!node.regions().empty()) print_regions(node);
  }

  void print_regions(const Node& node) {
    indentation_ += 2;
    for (const Graph& region : node.regions()) {
      indent();
      out_ += "region {\n";
      indentation_ += 2;
      print_graph(region);
      indentation_ -= 2;
      indent();
      out_ += "}\n";
    }
    indentation_ -= 2;
    indent();
    out_ += "}\n";
  }

  void print_comment(const Graph& graph, const Node& node) {
    std::string comment;
    if (options_.sites && node.site().known()) {
      append_escaped(comment, node.site().file);
      comment += ':';
      append_integer(comment, node.site().line);
    }
    if (options_.provenance) append_provenance(comment, graph, node.provenance());
    if (comment.empty()) return;
    out_ += "  // ";
    out_ += comment;
  }

  void append_provenance(std::string& comment, const Graph& graph, const Provenance& provenance) {
    const char* before = comment.empty() ? "" : "; ";
    const auto separate = [&] { comment += std::exchange(before, ", "); };
    if (provenance.origin != provenance.identity) {
      separate();
      comment += "from ";
      const auto found = name_of_identity_.find(provenance.origin);
      if (found != name_of_identity_.end()) {
        append_escaped(comment, *found->second);
      } else {
        comment += '#';
        append_integer(comment, provenance.origin);
      }
    }
    if (provenance.made_by.valid()) {
      separate();
      comment += "by ";
      append_escaped(comment, graph.text(provenance.made_by));
    }
    if (provenance.why.valid()) {
      comment += *before == ',' ? ": " : before;
      append_escaped(comment, graph.text(provenance.why));
    }
  }

  const PrintOptions& options_;
  std::string out_;
  std::size_t indentation_ = 0;
  std::unordered_map<std::uint64_t, const std::string*> name_of_identity_;  // only for provenance
};

}  // namespace

std::string print(const Graph& graph, const PrintOptions& options) {
  Printer printer(options);
  if (options.provenance) printer.remember_names(graph);
  printer.print_graph(graph);
  return printer.take();
}

std::string print(const AttributeValue& value) {
  std::string out;
  append_value(out, value);
  return out;
}

}  // namespace lockstep

// graph/text/text_values.cpp - the values of the text form: types, attributes, tensors.
#include "lockstep/graph/text/internal/text_values.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <type_traits>

#include "lockstep/core/base/small_vector.h"
#include "lockstep/graph/text/internal/text_syntax.h"

namespace lockstep::internal {
namespace {

using text_syntax::float_format;

// --- numbers

bool looks_like_float(std::string_view number) {
  return number.find_first_of(".eE") != std::string_view::npos;
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

// bool as the byte that it is stored as.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

template <class T>
T from_bits(std::uint64_t bits) {
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

}  // namespace

void TextValues::take(std::uint64_t bytes, const char* what, TextPlace place) {
  try {
    budget_.take(bytes, what);
  } catch (const InvalidArgument& error) {
    TextLexer::fail(place, error.message());
  }
}

// Appends to a list, and takes its memory out of the budget whenever the vector grows.
template <class T>
void TextValues::push(std::vector<T>& list, T value, TextPlace place) {
  if (list.size() == list.capacity()) take(2 * sizeof(T) * (list.size() + 1), "a list", place);
  list.push_back(std::move(value));
}

// --- types

std::int64_t TextValues::parse_dim() {
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

// From after the opening bracket to the closing one.
Shape TextValues::parse_dims(TextPlace place, char close, std::string_view what) {
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

TensorSpec TextValues::parse_spec() {
  const TextPlace place = lexer_.place();
  const std::optional<DType> dtype = parse_dtype(lexer_.peek_word());
  if (!dtype) lexer_.expected("a type such as f32[2,?]");
  lexer_.take_word();
  return parse_spec_behind(*dtype, place);
}

TensorSpec TextValues::parse_spec_behind(DType dtype, TextPlace place) {
  lexer_.expect_open('[', "'[' and dimensions");
  return {dtype, parse_dims(place, ']', "',' or ']'")};
}

// --- attributes

// After the opening bracket.
std::vector<Attribute> TextValues::parse_attributes(TextPlace place, const std::string& node) {
  std::vector<Attribute> attributes;
  if (lexer_.take_close(']')) return attributes;
  do {
    std::string name(lexer_.take_name("the name of an attribute"));
    lexer_.expect('=', "'=' and the attribute's value");
    take(sizeof(Attribute) + name.size(), "an attribute", place);
    push(attributes, Attribute{std::move(name), parse_value(node)}, place);
  } while (lexer_.take_comma_or_close(']', "',' or ']'"));
  std::ranges::sort(attributes, {}, &Attribute::name);
  const auto twice = std::ranges::adjacent_find(attributes, {}, &Attribute::name);
  if (twice != attributes.end()) TextLexer::fail(place, str("attribute '", twice->name, "' is given twice"));
  return attributes;
}

bool TextValues::parse_bool() {
  if (lexer_.take_word("true")) return true;
  if (!lexer_.take_word("false")) lexer_.expected("true or false");
  return false;
}

AttributeValue TextValues::parse_value(const std::string& node) {
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

AttributeValue TextValues::parse_shape_or_lambda(TextPlace place, const std::string& node) {
  if (lexer_.peek_word() == "lambda") {
    TextLexer::fail(place,
                    str("node '", node,
                        "' holds C++ code (<lambda>), which text cannot carry: build this graph in C++, or "
                        "register the code as an op and use that"));
  }
  return parse_dims(place, '>', "',' or '>'");
}

template <class T>
AttributeValue TextValues::parse_empty_list() {
  lexer_.take_word();
  lexer_.expect_open('[', "'[]'");
  if (!lexer_.take_close(']')) lexer_.expected("']' (a list with elements is written without its type)");
  return std::vector<T>();
}

// After the opening bracket; the first element decides the type.
AttributeValue TextValues::parse_list(TextPlace place) {
  if (lexer_.take_close(']'))
    TextLexer::fail(place, "an empty list is written ints[], floats[] or strings[]");
  if (lexer_.peek() == '"') {
    std::vector<std::string> strings;
    do {
      if (lexer_.peek() != '"') lexer_.expected("a string like the elements before");
      push(strings, lexer_.take_string(), place);
    } while (lexer_.take_comma_or_close(']', "',' or ']'"));
    return strings;
  }
  std::vector<std::int64_t> ints;
  std::vector<double> floats;
  do {
    const TextPlace element = lexer_.place();
    if (at_special_float()) {
      if (!ints.empty()) lexer_.fail("expected an integer like the elements before");
      push(floats, take_special_double(), element);
      continue;
    }
    const std::string_view number = lexer_.take_number();
    if (number.empty()) lexer_.expected("a number or a string");
    if (looks_like_float(number)) {
      if (!ints.empty()) TextLexer::fail(element, "expected an integer like the elements before");
      push(floats, to_float<double>(number, element, DType::kF64), element);
    } else {
      if (!floats.empty())
        TextLexer::fail(element, "expected a number with '.' or 'e' like the elements before");
      push(ints, to_integer<std::int64_t>(number, element, "a list of ints (64 bits)"), element);
    }
  } while (lexer_.take_comma_or_close(']', "',' or ']'"));
  if (!floats.empty()) return floats;
  return ints;
}

// --- infinities and NaNs

bool TextValues::at_special_float() {
  if (lexer_.peek() == '-') return lexer_.at_minus_inf();
  const std::string_view word = lexer_.peek_word();
  return word == "inf" || word == "nan";
}

// inf, -inf, nan, nan(0x7fc00001)
std::uint64_t TextValues::take_special(DType dtype) {
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
double TextValues::take_special_double() { return std::bit_cast<double>(take_special(DType::kF64)); }

// --- tensors

template <class T>
auto TextValues::parse_element() {
  if constexpr (std::is_same_v<T, bool>) {
    return static_cast<Stored<T>>(parse_bool() ? 1 : 0);
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

// After the '{'. Allocates nothing before it is known that the text and the budget allow for it.
template <class T>
Tensor TextValues::parse_elements(const TensorSpec& spec, TextPlace place) {
  const auto count = static_cast<std::uint64_t>(spec.shape.num_elements());
  if (lexer_.take('*')) return parse_splat<T>(spec, place);
  const std::uint64_t most = lexer_.bytes_left() / 2 + 1;  // an element and its comma take two bytes
  if (count > most) {
    TextLexer::fail(place, str(to_string(spec), " has ", counted(count, "element"),
                               "; the text is too short to hold them"));
  }
  Tensor tensor = make_tensor(spec, place);
  auto* elements = static_cast<Stored<T>*>(tensor.raw());
  std::uint64_t found = 0;
  if (!lexer_.take_close('}')) {
    do {
      if (found == count) {
        lexer_.fail(str(to_string(spec), " has ", counted(count, "element"), "; more are given"));
      }
      elements[found++] = parse_element<T>();
    } while (lexer_.take_comma_or_close('}', "',' or '}'"));
  }
  if (found != count) {
    TextLexer::fail(place,
                    str(to_string(spec), " has ", counted(count, "element"), "; ", found, " are given"));
  }
  return tensor;
}

Tensor TextValues::make_tensor(const TensorSpec& spec, TextPlace place) {
  constexpr std::uint64_t kOverhead = 256;  // of its allocation
  take(static_cast<std::uint64_t>(num_bytes(spec)) + kOverhead, "a tensor", place);
  return Tensor::empty(spec.dtype, spec.shape);
}

template <class T>
Tensor TextValues::parse_splat(const TensorSpec& spec, TextPlace place) {
  const Stored<T> element = parse_element<T>();
  if (!lexer_.take_close('}')) lexer_.expected("'}'");
  Tensor tensor = make_tensor(spec, place);
  std::fill_n(static_cast<Stored<T>*>(tensor.raw()), tensor.num_elements(), element);
  return tensor;
}

Tensor TextValues::parse_tensor() {
  const TextPlace place = lexer_.place();
  const std::optional<DType> dtype = parse_dtype(lexer_.peek_word());
  if (!dtype) lexer_.expected("a tensor such as f32[2]{1.0, 2.0}");
  lexer_.take_word();
  return parse_tensor_behind(*dtype, place);
}

Tensor TextValues::parse_tensor_behind(DType dtype, TextPlace place) {
  const TensorSpec spec = parse_spec_behind(dtype, place);
  if (!spec.shape.is_known()) TextLexer::fail(place, "a tensor's dimensions must be numbers, not '?'");
  lexer_.expect_open('{', "'{' and the tensor's elements");
  return visit_dtype(dtype, [&]<class T>(T) { return parse_elements<T>(spec, place); });
}

}  // namespace lockstep::internal

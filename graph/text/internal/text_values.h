// graph/text/internal/text_values.h - the values of the text form: types, attributes, tensors.
//
// Each function reads one construct from the lexer, as docs/text_format.md describes it, and throws
// ParseError if something else comes.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lockstep/core/read_limits.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/attribute.h"
#include "lockstep/graph/text/internal/text_lexer.h"

namespace lockstep::internal {

// `what` names the number in errors: "a dimension".
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

class TextValues {
 public:
  TextValues(TextLexer& lexer, ReadBudget& budget) : lexer_(lexer), budget_(budget) {}

  // Takes memory out of the budget for the construct at `place`.
  void take(std::uint64_t bytes, const char* what, TextPlace place);

  TensorSpec parse_spec();  // f32[2,?]
  Tensor parse_tensor();    // f32[2]{1.0, 2.0}
  bool parse_bool();
  // After the opening bracket, which is at `place`; `node` is the node that has the attributes. Sorted by
  // name.
  std::vector<Attribute> parse_attributes(TextPlace place, const std::string& node);
  AttributeValue parse_value(const std::string& node);

 private:
  std::int64_t parse_dim();
  Shape parse_dims(TextPlace place, char close, std::string_view what);
  TensorSpec parse_spec_behind(DType dtype, TextPlace place);
  AttributeValue parse_shape_or_lambda(TextPlace place, const std::string& node);
  template <class T>
  AttributeValue parse_empty_list();
  template <class T>
  void push(std::vector<T>& list, T value, TextPlace place);
  AttributeValue parse_list(TextPlace place);
  bool at_special_float();
  std::uint64_t take_special(DType dtype);
  double take_special_double();
  Tensor parse_tensor_behind(DType dtype, TextPlace place);
  Tensor make_tensor(const TensorSpec& spec, TextPlace place);
  template <class T>
  auto parse_element();
  template <class T>
  Tensor parse_elements(const TensorSpec& spec, TextPlace place);
  template <class T>
  Tensor parse_splat(const TensorSpec& spec, TextPlace place);

  TextLexer& lexer_;    // which outlives it
  ReadBudget& budget_;  // which outlives it
};

}  // namespace lockstep::internal

// io/files/internal/json_writer.h - JSON piece by piece: the writer puts the commas.
//
//   std::string text;
//   JsonWriter json(text);
//   json.begin_object().key("name").text("a \"b\"").key("sizes").begin_list().number(1).number(2).end_list().end_object();
//   // {"name":"a \"b\"","sizes":[1,2]}
//
// The caller closes everything it begins, and gives each key one value. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"

namespace lockstep::internal {

class LOCKSTEP_API JsonWriter {
 public:
  enum class Style : std::uint8_t {
    kDense,   // {"a":1,"b":2}, and no text can end a script element of HTML around it
    kSpaced,  // {"a": 1, "b": 2}
  };
  // Appends to `out`, which must outlive it.
  explicit JsonWriter(std::string& out, Style style = Style::kDense) : out_(out), style_(style) {}

  JsonWriter& begin_object() { return begin('{'); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_list() { return begin('['); }
  JsonWriter& end_list() { return end(']'); }
  JsonWriter& key(std::string_view name);  // must need no escapes
  JsonWriter& text(std::string_view value);
  JsonWriter& raw(std::string_view value);  // already JSON
  template <class Number>
  requires std::is_arithmetic_v<Number> &&(!std::is_same_v<Number, bool>)JsonWriter& number(Number value) {
    if constexpr (std::is_integral_v<Number>) {
      return raw(std::to_string(value));
    } else {
      return raw(str(value));
    }
  }
  // Starts a new line before the next element, or before the bracket that closes the list.
  JsonWriter& new_line();

 private:
  JsonWriter& begin(char open);
  JsonWriter& end(char close);
  void separate();

  std::string& out_;
  const Style style_;
  std::size_t depth_ = 0;
  bool needs_comma_ = false;
  bool needs_line_ = false;
};

}  // namespace lockstep::internal

// tests/support/json.h - reads JSON, strictly, into a tree: a check of what is written that shares no code
// with it.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace lockstep::testing {

struct Json {
  using List = std::vector<Json>;
  using Object = std::map<std::string, Json>;
  std::variant<std::nullptr_t, bool, double, std::string, List, Object> value;

  // What kind of value it is: "null", "boolean", "number", "string", "array", "object".
  std::string_view type() const {
    constexpr std::string_view kNames[] = {"null", "boolean", "number", "string", "array", "object"};
    return kNames[value.index()];
  }
  const std::string& text() const { return std::get<std::string>(value); }
  double number() const { return std::get<double>(value); }
  const List& list() const { return std::get<List>(value); }
  const Object& object() const { return std::get<Object>(value); }
  bool contains(const std::string& key) const { return object().contains(key); }
  const Json& operator[](const std::string& key) const { return object().at(key); }
  const Json& operator[](std::size_t i) const { return list().at(i); }

  // Throws std::runtime_error where the text is not one JSON value.
  static Json parse(std::string_view text) {
    Reader reader{text};
    Json json = reader.value();
    reader.skip();
    if (reader.at != text.size()) reader.fail("the end");
    return json;
  }

 private:
  struct Reader {
    std::string_view text;
    std::size_t at = 0;

    [[noreturn]] void fail(const std::string& wanted) const {
      throw std::runtime_error("JSON: expected " + wanted + " at byte " + std::to_string(at) + ": '" +
                               std::string(text.substr(at, 20)) + "'");
    }
    void skip() {
      while (at < text.size() && std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos) ++at;
    }
    bool take(std::string_view word) {
      skip();
      if (text.substr(at, word.size()) != word) return false;
      at += word.size();
      return true;
    }
    void expect(std::string_view word) {
      if (!take(word)) fail("'" + std::string(word) + "'");
    }
    std::string string() {
      expect("\"");
      std::string out;
      while (at < text.size() && text[at] != '"') {
        const char c = text[at++];
        if (static_cast<unsigned char>(c) < 0x20) fail("no control character");
        if (c != '\\') {
          out += c;
          continue;
        }
        const std::string_view codes = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
        const char code = at < text.size() ? text[at++] : '\0';
        if (code == 'u') {
          const auto unit = std::strtoul(std::string(text.substr(at, 4)).c_str(), nullptr, 16);
          if (unit >= 0x80) fail("an escape of ASCII");  // nothing here writes others
          out += static_cast<char>(unit);
          at += 4;
        } else if (const std::size_t i = codes.find(code); i != std::string_view::npos) {
          out += meanings[i];
        } else {
          fail("an escape");
        }
      }
      expect("\"");
      return out;
    }
    Json value() {
      skip();
      if (at >= text.size()) fail("a value");
      if (text[at] == '"') return {string()};
      if (take("null")) return {nullptr};
      if (take("true")) return {true};
      if (take("false")) return {false};
      if (take("[")) {
        List list;
        if (take("]")) return {list};
        do list.push_back(value());
        while (take(","));
        expect("]");
        return {std::move(list)};
      }
      if (take("{")) {
        Object object;
        if (take("}")) return {object};
        do {
          std::string key = string();
          expect(":");
          if (!object.emplace(std::move(key), value()).second) fail("a key that is new");
        } while (take(","));
        expect("}");
        return {std::move(object)};
      }
      const std::string digits(text.substr(at, text.find_first_not_of("+-.0123456789eE", at) - at));
      char* end = nullptr;
      const double number = std::strtod(digits.c_str(), &end);
      if (digits.empty() || *end != '\0') fail("a value");
      at += digits.size();
      return {number};
    }
  };
};

}  // namespace lockstep::testing

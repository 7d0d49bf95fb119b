// io/files/bounded_json.cpp - reads unchecked JSON, written by Cereal's archive or by a person.
#include "lockstep/io/files/internal/bounded_json.h"

#include <algorithm>

#include "lockstep/core/base/printable.h"

namespace lockstep::internal {
namespace {

// How deeply objects and arrays nest, and how many values there are. The parser recurses once per level, as
// long as the text is valid JSON; up to there it and this count agree on what is inside a string.
struct JsonExtent {
  std::size_t depth = 0;   // the deepest
  std::size_t values = 0;  // an upper bound: each value ends at a closing bracket, a comma or a colon
};
JsonExtent extent_of(std::string_view text) {
  std::size_t depth = 0;
  JsonExtent extent;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '"': in_string = !in_string; break;
      case '\\': i += in_string ? 1 : 0; break;
      case '{':
      case '[':
        if (!in_string) extent.depth = std::max(extent.depth, ++depth);
        break;
      case '}':
      case ']':
        if (!in_string && depth > 0) --depth;
        extent.values += in_string ? 0 : 1;
        break;
      case ',':
      case ':': extent.values += in_string ? 0 : 1; break;
      default: break;
    }
  }
  return extent;
}

}  // namespace

BoundedJsonInput::BoundedJsonInput(std::string_view text, std::string_view what, BoundedLimits limits,
                                   ReadBudget* budget)
    : InputArchive(this), what_(what), budget_(budget) {
  const JsonExtent extent = extent_of(text);
  if (extent.depth > limits.max_depth) {
    fail(str("objects and arrays are nested ", extent.depth, " deep; at most ", limits.max_depth,
             " are allowed"));
  }
  charge((extent.values + 1) * 2 * sizeof(Json));  // including the parser's stack
  // Parsed by length, not up to the first zero byte, and without the extensions that Cereal allows (NaN and
  // infinities).
  json::MemoryStream stream(text.data(), text.size());
  document_.ParseStream<json::kParseValidateEncodingFlag, json::UTF8<>>(stream);
  if (document_.HasParseError()) {
    fail(str("it is not JSON, or not UTF-8, at byte ", document_.GetErrorOffset()));
  }
  // The parser stops at a zero byte, whatever follows.
  if (stream.Tell() != text.size())
    fail(str("it is not JSON at byte ", stream.Tell(), ": there is a zero byte"));
  if (!document_.IsObject()) fail("expected an object");
  frames_.push_back({&document_, "", 0, std::vector<bool>(document_.MemberCount())});
}

void BoundedJsonInput::fail(const std::string& message) const {
  std::string path;
  for (const Frame& frame : frames_) path += frame.label;
  if (path.starts_with('.')) path.erase(0, 1);
  throw Error(ErrorCode::kDataLoss, str(what_, ": ", path, path.empty() ? "" : ": ", message));
}

void BoundedJsonInput::fail_range(std::string_view number) { fail(str(number, " is out of range")); }

// The value to read now: the field whose name was set, or the next element.
const BoundedJsonInput::Json& BoundedJsonInput::next() {
  Frame& frame = frames_.back();
  const char* name = std::exchange(next_name_, nullptr);
  if (frame.value->IsArray()) {
    LOCKSTEP_CHECK(name == nullptr, "an element has no name, and is read as '", name, "'");
    if (frame.next >= frame.value->Size()) fail("it ends early");
    return (*frame.value)[static_cast<json::SizeType>(frame.next++)];
  }
  LOCKSTEP_CHECK(name != nullptr, "a field of a record has no name");
  const auto begin = frame.value->MemberBegin();
  const std::size_t count = frame.value->MemberCount();
  for (std::size_t step = 0; step < count; ++step) {  // fields in the expected order are found at once
    const std::size_t index = (frame.next + step) % count;
    const auto& member = begin[static_cast<std::ptrdiff_t>(index)];
    if (std::string_view(member.name.GetString(), member.name.GetStringLength()) != name) continue;
    frame.read[index] = true;
    frame.next = (index + 1) % count;
    return member.value;
  }
  fail(str("the field '", name, "' is missing"));
}

void BoundedJsonInput::enter() {
  const bool in_array = frames_.back().value->IsArray();
  std::string label = in_array ? str("[", frames_.back().next, "]") : str(".", next_name_);
  const Json& value = next();
  const bool is_object = value.IsObject();
  frames_.push_back({&value, std::move(label), 0, std::vector<bool>(is_object ? value.MemberCount() : 0)});
  if (!is_object && !value.IsArray()) fail("expected an object or an array");
}

void BoundedJsonInput::leave() {
  finish();
  frames_.pop_back();
}

void BoundedJsonInput::finish() {
  const Frame& frame = frames_.back();
  const auto unread = std::ranges::find(frame.read, false);
  if (unread == frame.read.end()) return;
  const auto& member = frame.value->MemberBegin()[unread - frame.read.begin()];
  const std::string_view name(member.name.GetString(), member.name.GetStringLength());
  fail(str("the field '", printable(name.substr(0, 80)), "' is not known, or given twice"));
}

std::size_t BoundedJsonInput::array_size() {
  const Json& value = *frames_.back().value;
  if (!value.IsArray()) fail("expected an array");
  return value.Size();
}

const BoundedJsonInput::Json& BoundedJsonInput::next_of(bool (Json::*is)() const, std::string_view wanted) {
  const std::string name = next_name_ == nullptr ? "" : str(next_name_, ": ");
  const Json& value = next();
  if (!(value.*is)()) fail(str(name, "expected ", wanted));
  return value;
}

void BoundedJsonInput::take(std::string& text) {
  const Json& value = next_of(&Json::IsString, "a string");
  if (value.GetStringLength() > text.capacity()) charge(value.GetStringLength());
  text.assign(value.GetString(), value.GetStringLength());
}
void BoundedJsonInput::take(bool& flag) { flag = next_of(&Json::IsBool, "true or false").GetBool(); }
void BoundedJsonInput::take(std::int64_t& number) {
  number = next_of(&Json::IsInt64, "an integer").GetInt64();
}
void BoundedJsonInput::take(std::uint64_t& number) {
  number = next_of(&Json::IsUint64, "an integer that is not negative").GetUint64();
}

}  // namespace lockstep::internal

// io/files/internal/bounded_json.h - reads unchecked JSON, written by Cereal's archive or by a person.
//
// The counterpart of bounded_archive.h, on the same interface and for the same types except floating point
// (files hold such numbers as text, which is exact). Depth is checked before the text is parsed. Every field
// must be there exactly once, with a value of its type that is in range; unknown fields are refused, so that
// a misspelt one is noticed. Fields may come in any order. The text must be UTF-8. Name every field:
// CEREAL_NVP or cereal::make_nvp.
//
//   failure    throws Error(kDataLoss) with the path of the field: "graphs[0].nodes[3].op: expected a string"
//
// Thread safety: one thread at a time per archive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cereal/archives/json.hpp>
#include <cereal/cereal.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "lockstep/core/base/rapidjson.h"
#include "lockstep/io/files/internal/bounded_archive.h"

namespace lockstep::internal {

class BoundedJsonInput : public cereal::InputArchive<BoundedJsonInput>, public cereal::traits::TextArchive {
 public:
  using Json = json::Value;

  // `what` names the text in errors. The text need not outlive the archive. Memory for what is read is
  // charged to the budget, if there is one.
  BoundedJsonInput(std::string_view text, std::string_view what, BoundedLimits limits = {},
                   ReadBudget* budget = nullptr);

  // Throws unless the outermost object has been read whole.
  void finish();
  [[noreturn]] void fail(const std::string& message) const;

  // --- for the functions below
  void set_next_name(const char* name) { next_name_ = name; }
  void enter();  // the next value: an object or an array
  void leave();  // throws unless all of its fields have been read
  std::size_t array_size();
  void take(std::string& text);
  void take(bool& flag);
  void take(std::int64_t& number);
  void take(std::uint64_t& number);
  [[noreturn]] void fail_range(std::string_view number);
  void charge(std::uint64_t bytes) {
    if (budget_ != nullptr) budget_->take(bytes, "records");
  }

 private:
  struct Frame {
    const Json* value;
    std::string label;  // ".nodes", "[3]"
    std::size_t next = 0;
    std::vector<bool> read = {};  // of an object's fields
  };
  const Json& next();
  const Json& next_of(bool (Json::*is)() const, std::string_view wanted);

  json::Document document_;
  std::string what_;
  ReadBudget* budget_;
  std::vector<Frame> frames_;
  const char* next_name_ = nullptr;
};

// --- functions that Cereal looks up by name

template <class T>
void prologue(BoundedJsonInput& archive, const T& /*value*/) {
  bounded::check_schema<T>();
  if constexpr (bounded::kIsLevel<T>) archive.enter();
}
template <class T>
void epilogue(BoundedJsonInput& archive, const T& /*value*/) {
  if constexpr (bounded::kIsLevel<T>) archive.leave();
}

template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedJsonInput& archive, cereal::NameValuePair<T>& pair) {
  archive.set_next_name(pair.name);
  archive(pair.value);
}

inline void CEREAL_LOAD_FUNCTION_NAME(BoundedJsonInput& archive, std::string& text) { archive.take(text); }

template <class T>
requires std::is_integral_v<T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedJsonInput& archive, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    archive.take(value);
  } else {
    std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t> wide = 0;
    archive.take(wide);
    if (!std::in_range<T>(wide)) archive.fail_range(std::to_string(wide));
    value = static_cast<T>(wide);
  }
}

template <class T, class Allocator>
void CEREAL_LOAD_FUNCTION_NAME(BoundedJsonInput& archive, std::vector<T, Allocator>& values) {
  values.clear();
  const std::size_t count = archive.array_size();
  for (std::size_t i = 0; i < count; ++i) {
    T value{};
    archive(value);
    bounded::append(archive, values, std::move(value));
  }
}

}  // namespace lockstep::internal

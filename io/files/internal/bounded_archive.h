// io/files/internal/bounded_archive.h - reads Cereal's portable binary form from unchecked bytes.
//
// Cereal's stock input archives trust every size that they read. This input archive has the same interface
// and trusts none:
//   sizes      every count is compared with the bytes that are left before memory is taken for it, and vectors grow
//              with the elements that were really read: memory stays in proportion to the input
//   depth      records inside records are counted; more than BoundedLimits::max_depth are refused
//   types      bool, integers, float, double, std::string, std::vector (not of bool), and structs of those with a
//              Cereal `serialize` (or `load`). Pointers, polymorphic types, enums and raw memory do not compile: read
//              an enum as an integer, and check it
//   order      little endian, whatever the machine; input that says big endian is refused
//   failure    throws Error(kDataLoss) with the name of the input, the byte and the fault. Nothing else is
//              thrown but std::bad_alloc, and what a record's own `serialize` throws
//
// Use: a record is a plain struct, written by Cereal's own archive and read back by this one.
//
//   struct Entry {
//     std::string name;
//     std::vector<std::int64_t> dims;
//     std::uint32_t crc = 0;
//     template <class Archive>
//     void serialize(Archive& archive) { archive(name, dims, crc); }
//   };
//   std::string bytes = to_portable_bytes(entries);                                    // std::vector<Entry>, or an Entry
//   auto entries = from_portable_bytes<std::vector<Entry>>(bytes, "checkpoint index");  // all bytes must be used up
//
// It guards against sizes, not against lies: the caller checks what the numbers mean, versions (put one
// first) and checksums. Thread safety: one thread at a time per archive.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cereal/archives/portable_binary.hpp>
#include <cereal/cereal.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/read_limits.h"

namespace lockstep::internal {

struct BoundedLimits {
  std::size_t max_depth = 32;  // of records and vectors inside each other
};

namespace bounded {

template <class T>
struct IsSmartPointer : std::false_type {};
template <class T>
struct IsSmartPointer<std::shared_ptr<T>> : std::true_type {};
template <class T>
struct IsSmartPointer<std::weak_ptr<T>> : std::true_type {};
template <class T, class Deleter>
struct IsSmartPointer<std::unique_ptr<T, Deleter>> : std::true_type {};

// Cereal's own wrappers, which do not count as a level of nesting.
template <class T>
struct IsWrapper : std::false_type {};
template <class T>
struct IsWrapper<cereal::NameValuePair<T>> : std::true_type {};
template <class T>
struct IsWrapper<cereal::SizeTag<T>> : std::true_type {};

template <class T>
constexpr void check_schema() {
  static_assert(!std::is_pointer_v<T> && !IsSmartPointer<T>::value, "files hold no pointers");
  static_assert(!std::is_polymorphic_v<T>,
                "files hold no polymorphic types: nothing loaded may name code to run");
  static_assert(!std::is_enum_v<T>, "read an integer, and check that it is one of the enumerators");
}

// Appends to a vector that grows by a half at a time, which keeps unused memory small.
template <class Archive, class T, class Allocator>
void append(Archive& archive, std::vector<T, Allocator>& values, T value) {
  if (values.size() == values.capacity()) {
    const std::size_t more = values.size() / 2 + 1;
    archive.charge(more * sizeof(T));
    values.reserve(values.size() + more);
  }
  values.push_back(std::move(value));
}

// A level of nesting: a struct or a vector, not a number, a string or a wrapper.
template <class T>
inline constexpr bool kIsLevel =
    std::is_class_v<T> && !IsWrapper<T>::value && !std::is_same_v<T, std::string>;

}  // namespace bounded

class BoundedBinaryInput : public cereal::InputArchive<BoundedBinaryInput> {
 public:
  // `bytes` must outlive the archive; `what` names them in errors: "graph file 'step.lkg'".
  // Memory for what is read is charged to the budget, if there is one.
  BoundedBinaryInput(std::string_view bytes, std::string_view what, BoundedLimits limits = {},
                     ReadBudget* budget = nullptr)
      : InputArchive(this), bytes_(bytes), what_(what), limits_(limits), budget_(budget) {
    // Cereal's portable archive begins with the byte order: 1 for little endian.
    if (take(1)[0] != 1) fail("its byte order is not little endian");
  }

  std::size_t bytes_left() const { return bytes_.size() - at_; }
  std::size_t position() const { return at_; }
  // Throws unless everything has been read.
  void finish() const {
    if (bytes_left() != 0) fail(str(bytes_left(), " bytes follow behind the last record"));
  }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::kDataLoss, str(what_, ": ", message, " (at byte ", at_, ")"));
  }

  const char* take(std::size_t count) {
    if (count > bytes_left()) fail(str("it ends early: ", count, " bytes expected, ", bytes_left(), " left"));
    const char* data = bytes_.data() + at_;
    at_ += count;
    return data;
  }
  // A count of elements that take at least `each` bytes each.
  std::size_t take_count(std::size_t each) {
    std::uint64_t count = 0;
    take_number(count);
    if (count > bytes_left() / each) {
      fail(str("a count of ", count, " does not fit into the ", bytes_left(), " bytes that are left"));
    }
    return static_cast<std::size_t>(count);
  }
  template <class T>
  void take_number(T& value) {
    static_assert(std::is_arithmetic_v<T> && sizeof(T) <= 8);
    std::array<char, sizeof(T)> buffer{};
    std::memcpy(buffer.data(), take(sizeof(T)), sizeof(T));
    if constexpr (std::endian::native == std::endian::big) std::reverse(buffer.begin(), buffer.end());
    if constexpr (std::is_same_v<T, bool>) {
      if (buffer[0] != 0 && buffer[0] != 1) fail("a truth value is neither 0 nor 1");
      value = buffer[0] == 1;
    } else {
      value = std::bit_cast<T>(buffer);
    }
  }

  // Charges memory that is about to be allocated.
  void charge(std::uint64_t bytes) {
    if (budget_ != nullptr) budget_->take(bytes, "records");
  }

  void enter() {
    if (++depth_ > limits_.max_depth)
      fail(str("records are nested deeper than ", limits_.max_depth, " levels"));
  }
  void leave() { --depth_; }

 private:
  std::string_view bytes_;
  std::string what_;
  BoundedLimits limits_;
  ReadBudget* budget_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
};

// --- functions that Cereal looks up by name

template <class T>
void prologue(BoundedBinaryInput& archive, const T& /*value*/) {
  bounded::check_schema<T>();
  if constexpr (bounded::kIsLevel<T>) archive.enter();
}
template <class T>
void epilogue(BoundedBinaryInput& archive, const T& /*value*/) {
  if constexpr (bounded::kIsLevel<T>) archive.leave();
}

template <class T>
requires std::is_arithmetic_v<T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedBinaryInput& archive, T& value) { archive.take_number(value); }

template <class T>
void CEREAL_SERIALIZE_FUNCTION_NAME(BoundedBinaryInput& archive, cereal::NameValuePair<T>& pair) {
  archive(pair.value);
}

template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedBinaryInput& archive, cereal::SizeTag<T>& tag) {
  tag.size = archive.take_count(1);
}

inline void CEREAL_LOAD_FUNCTION_NAME(BoundedBinaryInput& archive, std::string& text) {
  const std::size_t size = archive.take_count(1);
  if (size > std::string().capacity()) archive.charge(size);
  text.assign(archive.take(size), size);
}

template <class T, class Allocator>
void CEREAL_LOAD_FUNCTION_NAME(BoundedBinaryInput& archive, std::vector<T, Allocator>& values) {
  values.clear();
  if constexpr (std::is_arithmetic_v<T>) {
    const std::size_t count = archive.take_count(sizeof(T));
    archive.charge(count * sizeof(T));
    values.resize(count);
    for (T& value : values) archive.take_number(value);
  } else {
    const std::size_t count = archive.take_count(1);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t before = archive.position();
      T value{};
      archive(value);
      if (archive.position() == before)
        archive.fail("an element takes no bytes, so that any count of them would do");
      bounded::append(archive, values, std::move(value));
    }
  }
}

// --- whole records

template <class Record>
std::string to_portable_bytes(const Record& record) {
  std::ostringstream out;
  {
    cereal::PortableBinaryOutputArchive archive(out,
                                                cereal::PortableBinaryOutputArchive::Options::LittleEndian());
    archive(record);
  }
  return std::move(out).str();
}

// Throws Error(kDataLoss), also if bytes are left over.
template <class Record>
Record from_portable_bytes(std::string_view bytes, std::string_view what, BoundedLimits limits = {},
                           ReadBudget* budget = nullptr) {
  BoundedBinaryInput archive(bytes, what, limits, budget);
  Record record{};
  archive(record);
  archive.finish();
  return record;
}

}  // namespace lockstep::internal

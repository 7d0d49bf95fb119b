// io/datasets/element.h - what datasets hold: nests of tensors and strings, and what is known of them beforehand.
//
//   Element pair = Element::tuple({Tensor::scalar(1.F), "a record"});
//   Element named = Element::dict({{"image", image}, {"label", label}});
//   named["label"].tensor();
//
// A nest is a leaf, a tuple of nests, or a dictionary of nests by name. A leaf of an element is a tensor, a string
// (bytes), or a list of strings: text lines and keys of records are no numbers. Strings are batched to lists.
//
// An ElementSpec is a nest of the same structure, whose leaves say what is known: a TensorSpec with extents that may be
// unknown, a tensor of which nothing is known, a string, a list of strings.
//
// Thread safety: plain values; tensors as in core/tensor.h.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

using Strings = std::vector<std::string>;
using ElementLeaf = std::variant<Tensor, std::string, Strings>;

enum class NestKind : std::uint8_t { kLeaf, kTuple, kDict };

// What is known of a leaf.
struct LOCKSTEP_API LeafSpec {
  enum class Kind : std::uint8_t { kTensor, kAnyTensor, kString, kStrings };
  Kind kind = Kind::kAnyTensor;
  TensorSpec tensor = {};  // of kTensor

  LeafSpec() = default;
  LeafSpec(TensorSpec spec);  // NOLINT(google-explicit-constructor): a spec is a leaf
  static LeafSpec any_tensor() { return {}; }
  static LeafSpec string() { return of(Kind::kString); }
  static LeafSpec strings() { return of(Kind::kStrings); }
  bool is_tensor() const { return kind == Kind::kTensor || kind == Kind::kAnyTensor; }
  bool admits(const ElementLeaf& leaf) const;
  friend bool operator==(const LeafSpec&, const LeafSpec&) = default;

 private:
  static LeafSpec of(Kind kind);
};

namespace internal {
[[noreturn]] LOCKSTEP_API void wrong_nest(std::string_view expected, NestKind kind);
[[noreturn]] LOCKSTEP_API void no_such_part(std::size_t index, std::size_t size);
[[noreturn]] LOCKSTEP_API void no_such_part(std::string_view name, const std::vector<std::string>& names);
// Throws InvalidArgument if a name comes twice.
LOCKSTEP_API void check_part_names(const std::vector<std::string>& sorted);
// The order in which the parts of a dictionary are kept.
LOCKSTEP_API std::vector<std::size_t> order_of_names(const std::vector<std::string>& names);
}  // namespace internal

template <class Leaf>
class Nest {
 public:
  // An empty tuple.
  Nest() = default;
  template <class T>
  requires(!std::same_as<T, Nest> && std::constructible_from<Leaf, T>) Nest(T leaf)
      : kind_(NestKind::kLeaf), leaf_(std::move(leaf)) {}  // a leaf is a nest
  static Nest tuple(std::vector<Nest> parts) {
    Nest nest;
    nest.parts_ = std::move(parts);
    return nest;
  }
  // The parts are kept in the order of their names. Throws InvalidArgument if one comes twice.
  static Nest dict(std::vector<std::pair<std::string, Nest>> parts) {
    std::vector<std::string> names;
    for (const auto& part : parts) names.push_back(part.first);  // NOLINT(performance-*): there are few
    Nest nest;
    nest.kind_ = NestKind::kDict;
    for (const std::size_t i : internal::order_of_names(names)) {
      nest.names_.push_back(std::move(parts[i].first));
      nest.parts_.push_back(std::move(parts[i].second));
    }
    internal::check_part_names(nest.names_);
    return nest;
  }

  NestKind kind() const { return kind_; }
  bool is_leaf() const { return kind_ == NestKind::kLeaf; }
  const Leaf& leaf() const {
    if (!is_leaf()) internal::wrong_nest("a leaf", kind_);
    return leaf_;
  }
  Leaf& leaf() {
    if (!is_leaf()) internal::wrong_nest("a leaf", kind_);
    return leaf_;
  }
  // Parts of a tuple or a dictionary.
  std::size_t size() const { return parts_.size(); }
  const std::vector<Nest>& parts() const { return parts_; }
  std::vector<Nest>& parts() { return parts_; }
  const std::vector<std::string>& names() const { return names_; }  // of a dictionary
  template <std::integral Index>                                    // so that 0 is no null pointer
  const Nest& operator[](Index index) const {
    const auto at = static_cast<std::size_t>(index);
    if (at >= parts_.size()) internal::no_such_part(at, parts_.size());
    return parts_[at];
  }
  const Nest& operator[](std::string_view name) const {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) return parts_[i];
    }
    internal::no_such_part(name, names_);
  }
  const Nest& operator[](const char* name) const { return (*this)[std::string_view(name)]; }
  // Of an element: InvalidArgument if it is something else.
  const Tensor& tensor() const requires std::same_as<Leaf, ElementLeaf> { return part<Tensor>("a tensor"); }
  const std::string& string() const requires std::same_as<Leaf, ElementLeaf> {
    return part<std::string>("a string");
  }
  const Strings& strings() const requires std::same_as<Leaf, ElementLeaf> {
    return part<Strings>("a list of strings");
  }

  // Calls visit(leaf) for each leaf, in order.
  template <class Visit>
  void for_each_leaf(Visit&& visit) const {
    if (is_leaf()) return static_cast<void>(visit(leaf_));
    for (const Nest& part : parts_) part.for_each_leaf(visit);
  }
  template <class Visit>
  void for_each_leaf(Visit&& visit) {
    if (is_leaf()) return static_cast<void>(visit(leaf_));
    for (Nest& part : parts_) part.for_each_leaf(visit);
  }
  // A nest of the same structure, whose leaves are convert(leaf).
  template <class Other, class Convert>
  Nest<Other> with_leaves(Convert&& convert) const {
    if (is_leaf()) return Nest<Other>(convert(leaf_));
    Nest<Other> nest;
    nest.kind_ = kind_;
    nest.names_ = names_;
    nest.parts_.reserve(parts_.size());
    for (const Nest& part : parts_) nest.parts_.push_back(part.template with_leaves<Other>(convert));
    return nest;
  }
  template <class Other>
  bool has_structure_of(const Nest<Other>& other) const {
    if (kind_ != other.kind() || size() != other.size() || names_ != other.names()) return false;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (!parts_[i].has_structure_of(other.parts()[i])) return false;
    }
    return true;
  }
  friend bool operator==(const Nest& a, const Nest& b) requires std::equality_comparable<Leaf> {
    return a.kind_ == b.kind_ && (!a.is_leaf() || a.leaf_ == b.leaf_) && a.parts_ == b.parts_ &&
           a.names_ == b.names_;
  }

 private:
  template <class>
  friend class Nest;
  template <class T>
  const T& part(const char* expected) const {
    if (!is_leaf() || !std::holds_alternative<T>(leaf_)) internal::wrong_nest(expected, kind_);
    return std::get<T>(leaf_);
  }

  NestKind kind_ = NestKind::kTuple;
  Leaf leaf_ = {};
  std::vector<Nest> parts_;
  std::vector<std::string> names_;
};

using Element = Nest<ElementLeaf>;
using ElementSpec = Nest<LeafSpec>;

LOCKSTEP_API ElementSpec spec_of(const Element& element);
// Has the element the structure of the spec, and does each leaf fit?
LOCKSTEP_API bool admits(const ElementSpec& spec, const Element& element);
// The most precise spec that admits what either admits; throws InvalidArgument naming both if there is none.
LOCKSTEP_API ElementSpec join_specs(const ElementSpec& a, const ElementSpec& b);
// Bytes of its tensors and strings.
LOCKSTEP_API std::uint64_t num_bytes(const Element& element);
// Same structure, and every leaf equal to the bit.
LOCKSTEP_API bool bit_equal(const Element& a, const Element& b);

// "(f32[28,28], i64[])", "{key: string, x: tensor}".
LOCKSTEP_API std::string to_string(const ElementSpec& spec);
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const ElementSpec& spec);
LOCKSTEP_API std::ostream& operator<<(std::ostream& out, const Element& element);

}  // namespace lockstep

// graph/build/value.h - one output of one node of a graph being built, and the operators on it.
//
// A Value is a cheap handle: the builder and a ValueId. It can be used until its graph is finished; one made
// inside a branch or loop body until that function returns (its results come back as values of the node
// around it). Using it later is an error that says so, even if its builder is gone. Operators and op
// functions add nodes to the builder's innermost open region and remember the caller's source line, which is
// why they take Operand: a Value, or a number that becomes a constant of the other operand's dtype.
//
//   Value y = relu(matmul(x, w) + 1.0F);
//
// Thread safety: handles may be copied and compared anywhere; functions that query or extend the graph are as
// safe as its builder.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/core/base/export.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/source_site.h"
#include "lockstep/graph/ir/ids.h"

namespace lockstep {

class GraphBuilder;

namespace internal {
struct BuilderTicket;
}

class LOCKSTEP_API Value {
 public:
  Value() = default;  // no value
  Value(GraphBuilder* builder, ValueId id);
  bool valid() const { return ticket_ != nullptr; }
  GraphBuilder& builder() const;  // throws InvalidArgument if there is none, or its graph is finished
  ValueId id() const { return id_; }
  const TensorSpec& spec() const;
  DType dtype() const { return spec().dtype; }
  const Shape& shape() const { return spec().shape; }
  const std::string& name() const;  // of its node
  friend bool operator==(const Value&, const Value&) = default;

 private:
  const internal::BuilderTicket* ticket_ = nullptr;  // of its builder; outlives the builder
  ValueId id_;
  std::uint64_t number_ = 0;  // of the ticket while its graph is being built
};

// An operand of an operator: a value or a number, and the line where it stands.
class Operand {
 public:
  Operand(const Value& value, SourceSite site = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : value_(value), site_(site) {}
  template <class Number>
  requires std::is_arithmetic_v<Number> Operand(
      Number number, SourceSite site = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : number_(static_cast<double>(number)), site_(site) {
    if constexpr (std::is_same_v<Number, bool>) {
      integer_ = number ? 1 : 0;
    } else if constexpr (std::is_integral_v<Number>) {
      if (std::cmp_less_equal(number, std::numeric_limits<std::int64_t>::max()))
        integer_ = static_cast<std::int64_t>(number);
    }
  }
  // Anything with a read() that gives a Value, such as a Variable (strategies/trace/variable.h).
  template <class T>
  requires requires(const T& readable, SourceSite where) {
    { readable.read(where) } -> std::same_as<Value>;
  }
  Operand(const T& readable, SourceSite site = SourceSite::current())  // NOLINT(google-explicit-constructor)
      : value_(readable.read(site)), site_(site) {}

  const Value& value() const { return value_; }
  // The value; throws InvalidArgument, naming the op and the line, if this is a number or a Value that cannot
  // be used.
  LOCKSTEP_API const Value& value_for(std::string_view op) const;
  const std::optional<double>& number() const { return number_; }
  // The number, exactly, if it was given as an integer.
  const std::optional<std::int64_t>& integer() const { return integer_; }
  const SourceSite& site() const { return site_; }

 private:
  Value value_;
  std::optional<double> number_;
  std::optional<std::int64_t> integer_;
  SourceSite site_;
};

LOCKSTEP_API Value operator+(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator-(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator*(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator/(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator-(const Operand& x);
// Element by element, as bool. (== compares handles; equal() compares elements.)
LOCKSTEP_API Value operator<(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator<=(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator>(const Operand& a, const Operand& b);
LOCKSTEP_API Value operator>=(const Operand& a, const Operand& b);

}  // namespace lockstep

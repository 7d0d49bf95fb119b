// graph/ir/attribute.h - typed attributes of nodes.
//
// An attribute is a name and a value of one of the types below; a node keeps them sorted by name. The text
// form of each type is in docs/text_format.md. A Lambda holds C++ code: it prints as opaque and neither
// parses nor serialises; comparing two is always false.
// Thread safety: plain values; copies of a Tensor share its data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class KernelContext;
// The function that runs a node or one shard of it: see graph/ir/kernel.h.
using KernelFn = std::function<void(KernelContext&)>;

// A variable, by the name it is declared under in the outermost graph.
struct VariableRef {
  std::string name;
  friend bool operator==(const VariableRef&, const VariableRef&) = default;
};

struct Lambda {
  KernelFn function;
  friend bool operator==(const Lambda&, const Lambda&) { return false; }
};

using AttributeValue =
    std::variant<bool, std::int64_t, double, std::string, DType, Shape, Tensor, VariableRef,
                 std::vector<std::int64_t>, std::vector<double>, std::vector<std::string>, Lambda>;
// In the order of the alternatives above.
enum class AttributeType : std::uint8_t {
  kBool,
  kInt,
  kFloat,
  kString,
  kDType,
  kShape,
  kTensor,
  kVariable,
  kInts,
  kFloats,
  kStrings,
  kLambda
};
LOCKSTEP_API std::string_view to_string(AttributeType type);  // "bool", "int", "float", ...
inline AttributeType type_of(const AttributeValue& value) {
  return static_cast<AttributeType>(value.index());
}

// Equality that tells -0.0 from 0.0 and holds for equal NaNs (bits are compared, tensors by contents).
LOCKSTEP_API bool same_value(const AttributeValue& a, const AttributeValue& b);

struct LOCKSTEP_API Attribute {
  Attribute();
  Attribute(std::string own_name, AttributeValue own_value);
  // Defined in the library: a variant costs every program that compiles them.
  Attribute(const Attribute&);
  Attribute(Attribute&&) noexcept;
  Attribute& operator=(const Attribute&);
  Attribute& operator=(Attribute&&) noexcept;
  ~Attribute();

  std::string name;
  AttributeValue value;
};

// The attribute of that name in a sorted list; null if there is none.
LOCKSTEP_API const AttributeValue* find_attribute(const std::vector<Attribute>& attributes,
                                                  std::string_view name);

}  // namespace lockstep

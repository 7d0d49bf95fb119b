// graph/ir/attribute_hash.h - the one hash of attribute values.
//
//   Hasher hasher;
//   add_value(hasher, attribute.value);
//
// Values equal by same_value() have equal hashes. All Lambdas share one hash, although no two compare equal.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "lockstep/core/hasher.h"
#include "lockstep/graph/ir/attribute.h"

namespace lockstep::internal {

// With the caller's rules for tensors and for variables: each takes the hasher and the value.
template <class AddTensor, class AddVariable>
void add_value(Hasher& hasher, const AttributeValue& value, AddTensor&& add_tensor,
               AddVariable&& add_variable) {
  hasher.add(std::uint64_t{value.index()});
  std::visit(
      [&]<class T>(const T& held) {
        if constexpr (std::is_same_v<T, Tensor>) {
          add_tensor(hasher, held);
        } else if constexpr (std::is_same_v<T, VariableRef>) {
          add_variable(hasher, held);
        } else if constexpr (std::is_same_v<T, double>) {
          hasher.add(std::bit_cast<std::uint64_t>(held));
        } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
          hasher.add(static_cast<std::uint64_t>(held));
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          hasher.add(std::uint64_t{held.size()});
          for (const std::string& text : held) hasher.add(text);
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>> ||
                             std::is_same_v<T, std::vector<double>>) {
          hasher.add_bytes(held.data(), held.size() * sizeof(held[0]));
        } else if constexpr (!std::is_same_v<T, Lambda>) {
          hasher.add(held);
        }
      },
      value);
}

inline void add_value(Hasher& hasher, const AttributeValue& value) {
  add_value(
      hasher, value, [](Hasher& to, const Tensor& tensor) { to.add(tensor); },
      [](Hasher& to, const VariableRef& variable) { to.add(variable.name); });
}

}  // namespace lockstep::internal

#include "lockstep/strategies/proof/internal/attribute_numbers.h"

#include <algorithm>
#include <bit>
#include <span>
#include <type_traits>
#include <variant>

#include "lockstep/strategies/proof/internal/key_table.h"

namespace lockstep::internal {
namespace {

// Variables aside.
bool same(const AttributeValue& a, const AttributeValue& b) {
  if (std::holds_alternative<VariableRef>(a)) return std::holds_alternative<VariableRef>(b);
  const auto* x = std::get_if<Tensor>(&a);
  const auto* y = std::get_if<Tensor>(&b);
  if (x != nullptr && y != nullptr && x->defined() && y->defined() && x->raw() == y->raw())
    return x->spec() == y->spec();
  return same_value(a, b);
}

}  // namespace

std::uint32_t AttributeNumbers::of(const std::vector<Attribute>& list) {
  if (list.empty()) return 0;
  const auto names_variable = [](const Attribute& a) { return std::holds_alternative<VariableRef>(a.value); };
  if (std::ranges::any_of(list, names_variable)) return number_of(list);  // each replica has one of its own
  const auto [found, added] = numbers_.try_emplace(&list, 0);             // clones share the others
  if (added) found->second = number_of(list);
  return found->second;
}

std::uint32_t AttributeNumbers::number_of(const std::vector<Attribute>& list) {
  variables_.clear();
  std::uint64_t hash = list.size();
  for (const Attribute& attribute : list)
    hash = mixed(mixed(hash, hash_held(attribute.name)), hash_of(attribute.value));
  std::vector<Known>& alike = known_[hash];
  for (const Known& known : alike) {
    const bool equal = std::ranges::equal(variables_, known.variables) &&
                       std::ranges::equal(list, *known.list, [](const Attribute& a, const Attribute& b) {
                         return a.name == b.name && same(a.value, b.value);
                       });
    if (equal) return known.number;
  }
  alike.push_back(
      {&list, ++last_, SmallVector<std::uint32_t, 1>(std::span<const std::uint32_t>(variables_))});
  return last_;
}

std::uint64_t AttributeNumbers::hash_of(const AttributeValue& value) {
  return mixed(value.index(), std::visit([this](const auto& held) { return this->hash_held(held); }, value));
}

std::uint64_t AttributeNumbers::hash_held(const VariableRef& held) {
  variables_.push_back(variable_number_(held.name));
  return variables_.back();
}

std::uint64_t AttributeNumbers::hash_held(const Tensor& held) {
  if (!held.defined() || held.num_bytes() == 0) return 0;
  const auto [found, added] = tensor_hashes_.emplace(held.raw(), 0);  // clones share their constants
  if (added) found->second = hash_bytes(held.raw(), held.num_bytes());
  return found->second;
}

template <class T>
std::uint64_t AttributeNumbers::hash_held(const T& held) {
  if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<std::uint64_t>(held);
  } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
    return static_cast<std::uint64_t>(held);
  } else if constexpr (std::is_same_v<T, Shape>) {
    return hash_held(held.dims());
  } else if constexpr (std::is_same_v<T, Lambda>) {
    return 0;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    std::uint64_t state = held.size();
    for (const std::string& text : held) state = mixed(state, hash_held(text));
    return state;
  } else {
    return hash_bytes(held.data(), held.size() * sizeof(*held.data()));
  }
}

}  // namespace lockstep::internal

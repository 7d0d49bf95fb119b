// strategies/proof/attribute_numbers.cpp - equal lists of attributes get equal numbers.
#include "lockstep/strategies/proof/internal/attribute_numbers.h"

#include <algorithm>
#include <span>
#include <variant>

#include "lockstep/core/hasher.h"
#include "lockstep/graph/ir/attribute_hash.h"

namespace lockstep::internal {
namespace {

// Are the values equal, apart from which variable they name?
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
  if (std::ranges::any_of(list, names_variable)) return number_of(list);  // each replica names its own
  const auto [found, added] = numbers_.try_emplace(&list, 0);             // clones share all other lists
  if (added) found->second = number_of(list);
  return found->second;
}

std::uint32_t AttributeNumbers::number_of(const std::vector<Attribute>& list) {
  variables_.clear();
  Hasher hasher(list.size());
  for (const Attribute& attribute : list) {
    add_value(
        hasher.add(attribute.name), attribute.value,
        [this](Hasher& to, const Tensor& tensor) { to.add(hash_of(tensor)); },
        [this](Hasher& to, const VariableRef& variable) {
          to.add(std::uint64_t{variables_.emplace_back(variable_number_(variable.name))});
        });
  }
  std::vector<Known>& alike = known_[hasher.result()];
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

std::uint64_t AttributeNumbers::hash_of(const Tensor& tensor) {
  if (!tensor.defined() || tensor.num_bytes() == 0) return 0;
  const auto [found, added] = tensor_hashes_.emplace(tensor.raw(), 0);  // clones share their constants
  if (added) found->second = Hasher().add_bytes(tensor.raw(), tensor.num_bytes()).result();
  return found->second;
}

}  // namespace lockstep::internal

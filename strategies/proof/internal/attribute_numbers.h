// strategies/proof/internal/attribute_numbers.h - equal lists of attributes get equal numbers: a part of
// value numbering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/base/small_vector.h"
#include "lockstep/graph/ir/attribute.h"

namespace lockstep::internal {

// The lists must outlive this and stay unchanged.
class AttributeNumbers {
 public:
  // The number that stands for a variable: attributes that name variables with the same number are equal.
  using VariableNumber = std::function<std::uint32_t(const std::string&)>;
  explicit AttributeNumbers(VariableNumber variable_number) : variable_number_(std::move(variable_number)) {}

  std::uint32_t of(const std::vector<Attribute>& list);  // 0: an empty one

 private:
  struct Known {
    const std::vector<Attribute>* list;
    std::uint32_t number;
    SmallVector<std::uint32_t, 1> variables;  // numbers of the variables that it names
  };

  std::uint32_t number_of(const std::vector<Attribute>& list);
  std::uint64_t hash_of(const Tensor& tensor);

  VariableNumber variable_number_;
  std::unordered_map<std::uint64_t, std::vector<Known>> known_;               // by hash
  std::unordered_map<const std::vector<Attribute>*, std::uint32_t> numbers_;  // of lists without variables
  std::unordered_map<const void*, std::uint64_t> tensor_hashes_;
  std::vector<std::uint32_t> variables_;  // of the current list
  std::uint32_t last_ = 0;
};

}  // namespace lockstep::internal

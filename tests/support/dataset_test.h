// tests/support/dataset_test.h - datasets of numbers, and what comes out of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/io/datasets/dataset.h"

namespace lockstep::testing {

inline std::vector<Element> all_of(const AnyDataset& dataset, IteratorOptions options = {}) {
  std::vector<Element> elements;
  DatasetIterator iterator = dataset.iterator(std::move(options));
  while (std::optional<Element> element = iterator.next()) elements.push_back(*std::move(element));
  return elements;
}

// The numbers of elements that are i64 tensors, one list each.
inline std::vector<std::int64_t> numbers_of(const Element& element) {
  const auto data = element.tensor().data<std::int64_t>();
  return {data.begin(), data.end()};
}
// All numbers of all elements, in order.
inline std::vector<std::int64_t> numbers_of(const AnyDataset& dataset, IteratorOptions options = {}) {
  std::vector<std::int64_t> numbers;
  for (const Element& element : all_of(dataset, std::move(options))) {
    for (const std::int64_t number : numbers_of(element)) numbers.push_back(number);
  }
  return numbers;
}
inline std::string shown(const std::vector<Element>& elements) {
  std::string text;
  for (const Element& element : elements) text += str(text.empty() ? "" : " ", element);
  return text;
}
// "InvalidArgument: ..." of what it throws; empty if it throws nothing.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace lockstep::testing

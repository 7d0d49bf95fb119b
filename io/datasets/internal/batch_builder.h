// io/datasets/internal/batch_builder.h - stacks elements as they come, each with one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/io/datasets/element.h"

namespace lockstep::internal {

class BatchBuilder {
 public:
  // For up to `size` elements.
  explicit BatchBuilder(std::int64_t size) : size_(size) {}
  // Throws InvalidArgument if it is not like the first one.
  void add(const Element& element);
  std::int64_t count() const { return count_; }
  // The batch; at least one element was added.
  Element finish();

 private:
  void add_leaf(ElementLeaf& batch, const ElementLeaf& leaf) const;
  void add_nest(Element& batch, const Element& element) const;

  const std::int64_t size_;
  std::int64_t count_ = 0;
  ElementSpec spec_;  // of the first element
  Element batch_;
};

}  // namespace lockstep::internal

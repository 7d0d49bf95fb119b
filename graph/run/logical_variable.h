// graph/run/logical_variable.h - a variable of a store as the program knows it: with its copies, as one value
// where they are one.
//
// What the copies are together is the role that the store holds (core/variable_store.h); nobody else decides
// it. Thread safety: the caller holds the locks of all copies, exclusively to write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/export.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/variable_store.h"

namespace lockstep::internal {

class LOCKSTEP_API LogicalVariable {
 public:
  // The variable itself, then the copies of further replicas in their order.
  LogicalVariable(std::vector<StoredVariable*> copies, const VariableRole& role);

  const std::vector<StoredVariable*>& copies() const { return copies_; }
  const std::string& name() const { return copies_[0]->name(); }
  const TensorSpec& spec() const { return spec_; }  // of the value: what slices come to together
  const TensorSpec& copy_spec() const { return copies_[0]->spec(); }
  // Whether the copies are one value; the reason says what to do.
  Decision has_value() const;
  // Each copy stands for itself, and all are there. (Of slices that are not all there nothing can be said.)
  bool is_apart() const { return role_.copies != CopyRule::kSlices && !has_value(); }
  // The value into a tensor of spec(), and back, where there is one. They allocate nothing: of several
  // variables either none is read or written, or all are.
  void read(Tensor& into) const noexcept;
  void write(const Tensor& value) const noexcept;
  // What copy `i` holds of `value` once that is written, into a tensor of copy_spec().
  void part(const Tensor& value, std::size_t i, Tensor& into) const noexcept;

 private:
  void join(Tensor& into) const noexcept;

  std::vector<StoredVariable*> copies_;
  VariableRole role_;
  TensorSpec spec_;
  std::vector<const void*> memory_;  // of the copies
};

}  // namespace lockstep::internal

// graph/run/logical_variable.h - a variable of a store as the program sees it: with its copies, which count
// as one value if they are one.
//
// The role in the store (core/variable_store.h) says how the copies form a value; nothing else decides it.
// Thread safety: the caller holds the locks of all copies, exclusively to write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/variable_store.h"

namespace lockstep::internal {

class LOCKSTEP_API LogicalVariable {
 public:
  // The variable itself, then the copies of further replicas in their order.
  LogicalVariable(std::vector<StoredVariable*> copies, const VariableRole& role);

  const std::vector<StoredVariable*>& copies() const { return copies_; }
  const std::string& name() const { return copies_[0]->name(); }
  const TensorSpec& spec() const { return spec_; }  // of the value: for slices, of all of them joined
  const TensorSpec& copy_spec() const { return copies_[0]->spec(); }
  // Whether the copies form one value; if not, the reason says what to do.
  Decision has_value() const;
  // Each copy stands for itself, and all copies exist. (Nothing can be said about slices if some are
  // missing.)
  bool is_apart() const { return role_.copies != CopyRule::kSlices && !has_value(); }
  // Copy the value into a tensor of spec() on the host, and back, if there is a value. They allocate nothing,
  // and fail only where a device does: either all of several variables are read or written, or none is.
  void read(Tensor& into) const;
  void write(const Tensor& value) const;
  // The part of `value` that copy `i` holds once `value` is written, into a tensor of copy_spec(); all on the
  // host.
  void part(const Tensor& value, std::size_t i, Tensor& into) const;

 private:
  void stage() const;  // brings copies of other memories to the host
  void join(Tensor& into) const;

  std::vector<StoredVariable*> copies_;
  VariableRole role_;
  TensorSpec spec_;
  std::vector<Tensor> staging_;      // on the host, for copies of other memories
  std::vector<const void*> memory_;  // of the copies or their staging
};

}  // namespace lockstep::internal

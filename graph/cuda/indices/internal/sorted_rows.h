// graph/cuda/indices/internal/sorted_rows.h - which rows of a tensor are named by indices, and where: for ops that change named rows.
//
// Indices are sorted together with their places, so that all that name one row stand together, in their order. A thread for the
// first of them does what is to be done to the row: no atomics, and the same sums each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal::cuda {

class SortedRows {
 public:
  // `rows`: of the tensor; `refuse`: an index outside of it fails the run, else it is skipped.
  SortedRows(const TensorSpec& indices, std::int64_t rows, bool refuse);

  // Memory that sorting needs, for Split::scratch_bytes.
  static std::size_t room_for(std::int64_t count);

  // Of the indices of one call, in the call's scratch memory.
  struct Sorted {
    const void* rows;    // i64: `count` of them, ascending; those outside are the number of rows
    const void* places;  // i32: where each stood
  };
  Sorted sort(KernelContext& c, const void* indices) const;

  std::int64_t count() const { return count_; }
  std::int64_t rows() const { return rows_; }

 private:
  std::int64_t count_, rows_;
  bool refuse_;
  JitKernel keys_;
};

// A kernel with a thread for each column of each sorted index. `body` runs for the first index of each row that there is: `at`
// is the element's place in the tensor; for each j from `first` on, while LS_SAME(j), LS_PLACE(j) is the element's place among
// the values that are given. Nothing runs in a step that does not commit (DeviceBlocks::decision). Its arguments are a.in[0], ...
// and a.out[0], ..., as many as are said.
JitKernel row_kernel(const std::string& functions, const std::string& body, std::size_t inputs,
                     std::size_t outputs);
// `inputs`: which of the context's are a.in[0], ...; the outputs are all of them.
void launch_rows(const JitKernel& kernel, KernelContext& c, const SortedRows& rows,
                 const SortedRows::Sorted& sorted, std::int64_t columns, std::span<const std::size_t> inputs);

}  // namespace lockstep::internal::cuda

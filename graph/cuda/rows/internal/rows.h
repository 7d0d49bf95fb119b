// graph/cuda/rows/internal/rows.h - kernels for rows of neighbours that a group of threads keeps in registers.
//
// A row is read once, however often its elements are needed: for softmax, norms, and what flows back. Texts are put together from
// load(), store() and what is in between; there, `row` is the row, x[j] for j < E is what the thread has of it, PLACE(j) its place
// in the row, IS_IN(j) whether the row is that long, and across(x, join) joins a number of each thread of the row. Rows that are
// too long for registers, or whose elements are no neighbours, need another kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>

#include "lockstep/core/dtype.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/ir/kernel.h"

namespace lockstep::internal::cuda {

struct RowShape {
  std::int64_t length = 0;
  std::size_t largest = 4;  // bytes of an element in memory, of all inputs and outputs
  // Numbers that a thread keeps at the same time, for each place: registers are few.
  int kept = 1;
  bool in_f64 = false;
};

// How rows are spread over threads.
class RowGroup {
 public:
  // None: rows of this kind do not fit.
  static std::optional<RowGroup> find(const RowShape& shape);

  unsigned block() const { return threads_ * rows_; }
  unsigned rows() const { return rows_; }  // of a block
  std::int64_t elements() const { return elements_; }
  unsigned blocks(std::int64_t rows) const { return blocks_for((rows + rows_ - 1) / rows_, 1); }

  // Definitions of E, PLACE, IS_IN, across, sums_across and the type T, in which is computed.
  std::string header(DType computed) const;
  // Around what is done for each row, of the struct Args and its `rows` and `length`.
  std::string kernel(const std::string& before, const std::string& each, const std::string& after = {}) const;
  // Declares the array `name` with the elements of the row at `pointer`, which are `fill` beyond its end; for a vector that all
  // rows share, `is_shared`.
  std::string load(const std::string& name, DType dtype, const std::string& pointer, const std::string& fill,
                   bool is_shared = false) const;
  // Writes `value`, an expression of j, to the row at `pointer`. The elements of vectors that all rows share are there by name.
  struct Vector {
    const char* name;
    DType dtype;
    const char* pointer;
  };
  std::string store(DType dtype, const std::string& pointer, const std::string& value,
                    std::initializer_list<Vector> vectors = {}) const;

 private:
  unsigned threads_ = 32;  // of a row
  unsigned rows_ = 8;
  std::int64_t width_ = 1;  // neighbours that are read together
  std::int64_t elements_ = 1;
  bool is_full_ = false;  // threads have no more than there is
};

// Are the first arguments at addresses from which neighbours can be read together?
bool are_aligned(const KernelContext& context);

}  // namespace lockstep::internal::cuda

// graph/cuda/internal/types.h - how the elements of a dtype are written in the sources of kernels.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/core/dtype.h"

namespace lockstep::internal::cuda {

struct TypeNames {
  const char* stored;
  const char* computed;
  const char* result;  // in expressions: how it is rounded
  const char* load;    // a function, or nothing
  const char* store;
};
TypeNames names_of(DType dtype);

// A type of this many bytes, 1 to 16, for elements that are only moved.
const char* word_of(std::size_t bytes);

// "load(((const stored*)pointer)[index])"
std::string load_text(DType dtype, const std::string& pointer, const std::string& index);
// "((stored*)pointer)[index] = store(value)": the value is rounded on the way.
std::string store_text(DType dtype, const std::string& pointer, const std::string& index,
                       const std::string& value);

// The element whose bits a word of its size holds.
std::string from_bits_text(DType dtype, const std::string& word);

}  // namespace lockstep::internal::cuda

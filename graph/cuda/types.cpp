// graph/cuda/types.cpp - how the elements of a dtype are written in the sources of kernels.
#include "lockstep/graph/cuda/internal/types.h"

#include "lockstep/core/error.h"

namespace lockstep::internal::cuda {

TypeNames names_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return {"unsigned short", "float", "ls_f16", "ls_from_f16", "ls_to_f16"};
    case DType::kBF16: return {"unsigned short", "float", "ls_bf16", "ls_from_bf16", "ls_to_bf16"};
    case DType::kF32: return {"float", "float", "float", "", ""};
    case DType::kF64: return {"double", "double", "double", "", ""};
    case DType::kI32: return {"int", "int", "int", "", ""};
    case DType::kI64: return {"long long", "long long", "long long", "", ""};
    case DType::kU8: return {"unsigned char", "unsigned char", "unsigned char", "", ""};
    case DType::kBool: return {"bool", "bool", "bool", "", ""};
  }
  return {};
}

const char* word_of(std::size_t bytes) {
  switch (bytes) {
    case 1: return "unsigned char";
    case 2: return "unsigned short";
    case 4: return "unsigned int";
    case 8: return "unsigned long long";
    default: return "uint4";
  }
}

std::string load_text(DType dtype, const std::string& pointer, const std::string& index) {
  const TypeNames names = names_of(dtype);
  return str(names.load, "(((const ", names.stored, "*)", pointer, ")[", index, "])");
}

std::string store_text(DType dtype, const std::string& pointer, const std::string& index,
                       const std::string& value) {
  const TypeNames names = names_of(dtype);
  return str("((", names.stored, "*)", pointer, ")[", index, "] = ", names.store, "((", names.computed, ")(",
             value, "))");
}

std::string from_bits_text(DType dtype, const std::string& word) {
  switch (dtype) {
    case DType::kF32: return str("__uint_as_float(", word, ")");
    case DType::kF64: return str("__longlong_as_double((long long)", word, ")");
    default: break;
  }
  const TypeNames names = names_of(dtype);
  return str(*names.load == '\0' ? str("(", names.computed, ")") : names.load, "(", word, ")");
}

}  // namespace lockstep::internal::cuda

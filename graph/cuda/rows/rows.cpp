// graph/cuda/rows/rows.cpp - how rows are spread over threads, and the texts that read, join and write them.
#include "lockstep/graph/cuda/rows/internal/rows.h"

#include <algorithm>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::int64_t kRegisters = 32;  // of 32 bits, for what a thread keeps of a row
constexpr unsigned kMostThreads = 1024;  // of a block

}  // namespace

std::optional<RowGroup> RowGroup::find(const RowShape& shape) {
  RowGroup group;
  group.width_ = static_cast<std::int64_t>(kAccess / shape.largest);
  while (shape.length % group.width_ != 0) group.width_ /= 2;
  const std::int64_t most =
      std::max(group.width_, kRegisters / ((shape.in_f64 ? 2 : 1) * static_cast<std::int64_t>(shape.kept)));
  while (group.threads_ < kMostThreads && group.threads_ * most < shape.length) group.threads_ *= 2;
  if (group.threads_ * most < shape.length) return std::nullopt;
  group.rows_ = std::max(1U, kThreads / group.threads_);
  const std::int64_t together = group.threads_ * group.width_;
  group.elements_ = std::max<std::int64_t>(1, (shape.length + together - 1) / together) * group.width_;
  group.is_full_ = group.threads_ * group.elements_ == shape.length;
  return group;
}

std::string RowGroup::header(DType computed) const {
  return str("typedef ", names_of(computed).computed, " T;\n#define E ", elements_,
             "\n#define PLACE(j) (((j) / ", width_, " * ", threads_, " + lane) * ", width_, " + (j) % ",
             width_, ")\n#define IS_IN(j) ", is_full_ ? "true" : "(PLACE(j) < int(a.length))",
             "\n#define across(x, join) ls_across<", threads_,
             ">(x, shared, join)\n#define sums_across(x, y) ls_sums_across<", threads_, ">(x, y, shared)\n");
}

std::string RowGroup::kernel(const std::string& before, const std::string& each,
                             const std::string& after) const {
  return str("extern \"C\" __global__ void __launch_bounds__(", block(),
             ") kernel(const Args a) {\n  __shared__ T shared[", std::max(1U, 2 * block() / 32),
             "];\n  const int lane = threadIdx.x % ", threads_, ", part = threadIdx.x / ", threads_,
             ";\n  const auto add = [](T x, T y) { return x + y; };\n  (void)shared; (void)add;\n", before,
             "  for (long long first = (long long)blockIdx.x * ", rows_,
             "; first < a.rows; first += (long long)gridDim.x * ", rows_,
             ") {\n    const long long row = first + part;\n    const bool is_row = ",
             rows_ == 1 ? "true" : "row < a.rows", ";\n", each, "  }\n", after, "}\n");
}

std::string RowGroup::load(const std::string& name, DType dtype, const std::string& pointer,
                           const std::string& fill, bool is_shared) const {
  const TypeNames names = names_of(dtype);
  const std::string pack = str("ls_pack<", names.stored, ", ", width_, ">");
  return str("    T ", name, "[E];\n#pragma unroll\n    for (int c = 0; c < E; c += ", width_,
             ") {\n      const bool is_there = IS_IN(c)", is_shared ? "" : " && is_row", ";\n      ", pack,
             " pack;\n      if (is_there) pack = *(const ", pack, "*)((const ", names.stored, "*)", pointer,
             " + ", is_shared ? "" : "row * a.length + ",
             "PLACE(c));\n#pragma unroll\n      for (int k = 0; k < ", width_, "; ++k) ", name,
             "[c + k] = is_there ? T(", names.load, "(pack.e[k])) : T(", fill, ");\n    }\n");
}

std::string RowGroup::store(DType dtype, const std::string& pointer, const std::string& value,
                            std::initializer_list<Vector> vectors) const {
  const TypeNames names = names_of(dtype);
  const std::string pack = str("ls_pack<", names.stored, ", ", width_, ">");
  std::string packs, elements;
  for (const Vector& vector : vectors) {
    const TypeNames own = names_of(vector.dtype);
    const std::string type = str("ls_pack<", own.stored, ", ", width_, ">");
    packs += str("      const ", type, " ", vector.name, "s = *(const ", type, "*)((const ", own.stored, "*)",
                 vector.pointer, " + PLACE(c));\n");
    elements += str("        const T ", vector.name, " = ", own.load, "(", vector.name, "s.e[k]);\n");
  }
  return str("#pragma unroll\n    for (int c = 0; c < E; c += ", width_,
             ") {\n      if (!is_row || !IS_IN(c)) continue;\n", packs, "      ", pack,
             " pack;\n#pragma unroll\n      for (int k = 0; k < ", width_,
             "; ++k) {\n        const int j = c + k;\n", elements, "        pack.e[k] = ", names.store, "((",
             names.computed, ")(", value, "));\n      }\n      *(", pack, "*)((", names.stored, "*)", pointer,
             " + row * a.length + PLACE(c)) = pack;\n    }\n");
}

bool are_aligned(const KernelContext& context) {
  std::uintptr_t all = 0;
  for (std::size_t i = 0; i < context.num_inputs(); ++i)
    all |= reinterpret_cast<std::uintptr_t>(context.input(i));
  for (std::size_t i = 0; i < context.num_outputs(); ++i)
    all |= reinterpret_cast<std::uintptr_t>(context.output(i));
  return all % kAccess == 0;
}

}  // namespace lockstep::internal::cuda

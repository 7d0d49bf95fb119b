// graph/cuda/elementwise_source.cpp - the text of a kernel for element-wise steps.
#include <algorithm>
#include <array>
#include <cstdio>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

// Does the read have every element of the shape, in its order?
bool is_whole(const Shape& read, const Shape& shape) { return read.num_elements() == shape.num_elements(); }

}  // namespace

ElementWalk walk_of(const ElementSteps& steps) {
  ElementWalk walk;
  const std::size_t rank = steps.shape.rank();
  std::vector<std::vector<std::int64_t>> strides;  // by strided read, by axis of the shape
  for (const ElementSteps::Read& read : steps.reads) {
    if (read.shape.num_elements() == 1) {
      walk.reads.push_back(ElementWalk::Kind::kScalar);
    } else if (is_whole(read.shape, steps.shape)) {
      walk.reads.push_back(ElementWalk::Kind::kFlat);
    } else {
      walk.reads.push_back(ElementWalk::Kind::kStrided);
      std::vector<std::int64_t>& own = strides.emplace_back(rank, 0);
      const std::size_t ahead = rank - read.shape.rank();
      std::int64_t stride = 1;
      for (std::size_t axis = read.shape.rank(); axis-- > 0;) {
        if (read.shape[axis] != 1) own[ahead + axis] = stride;
        stride *= read.shape[axis];
      }
    }
  }
  if (strides.empty()) return walk;
  // Axes of extent 1 go; neighbours are one axis where every read steps through them as through one.
  walk.strides.resize(strides.size());
  for (std::size_t axis = 0; axis < rank; ++axis) {
    const std::int64_t extent = steps.shape[axis];
    if (extent == 1) continue;
    const bool joins = !walk.extents.empty() && [&] {
      for (std::size_t r = 0; r < strides.size(); ++r) {
        if (walk.strides[r].back() != strides[r][axis] * extent) return false;
      }
      return true;
    }();
    if (!joins) walk.extents.push_back(1);
    walk.extents.back() *= extent;
    for (std::size_t r = 0; r < strides.size(); ++r) {
      if (joins) {
        walk.strides[r].back() = strides[r][axis];
      } else {
        walk.strides[r].push_back(strides[r][axis]);
      }
    }
  }
  return walk;
}

std::string source_of(const ElementSteps& steps, const ElementWalk& walk) {
  std::size_t inputs = 0;
  for (const ElementSteps::Read& read : steps.reads) inputs += read.literals.empty() ? 1 : 0;
  const std::size_t axes = walk.extents.size(), strided = walk.strides.size();
  std::string text = kPrelude;
  text += "struct Args {\n";
  if (inputs > 0) text += str("  const void* in[", inputs, "];\n");
  text += str("  void* out[", steps.writes.size(),
              "];\n  long long n;\n  ls_word* refusal;\n  ls_word number;\n");
  text += "  const ls_word* decision;\n";
  if (axes > 0) text += str("  long long extents[", axes, "], strides[", strided, "][", axes, "];\n");
  text += "};\nextern \"C\" __global__ void kernel(const Args a) {\n";
  text += "  if (a.decision != nullptr && *a.decision != ~ls_word(0)) return;\n";
  // What is the same for all elements is computed in front of the loop.
  std::string once, each;
  std::vector<DType> dtypes;
  std::vector<bool> same;  // by value: for all elements
  std::size_t input = 0, strided_read = 0;
  for (std::size_t i = 0; i < steps.reads.size(); ++i) {
    const ElementSteps::Read& read = steps.reads[i];
    same.push_back(walk.reads[i] == ElementWalk::Kind::kScalar);
    std::string& to = same.back() ? once : each;
    const std::string_view type = names_of(read.dtype).computed;
    if (read.literals.size() > 1) {
      once += str("    const ", type, " c", i, "[] = {");
      for (const std::string& literal : read.literals) once += literal + ", ";
      once += "};\n";
    }
    to += str("    const ", type, " v", i, " = ");
    std::string place = "i";
    if (walk.reads[i] == ElementWalk::Kind::kScalar) place = "0";
    if (walk.reads[i] == ElementWalk::Kind::kStrided) place = str("at[", strided_read++, "]");
    to += read.literals.empty()       ? load_text(read.dtype, str("a.in[", input++, "]"), place)
          : read.literals.size() == 1 ? read.literals[0]
                                      : str("c", i, "[", place, "]");
    to += ";\n";
    dtypes.push_back(read.dtype);
  }
  for (const ElementSteps::Step& step : steps.steps) {
    const bool of_same = std::ranges::all_of(step.inputs, [&](std::size_t value) { return same[value]; }) &&
                         std::ranges::none_of(step.expressions, [](const std::string& expression) {
                           return expression.find("refuse") != std::string::npos;
                         });
    std::string& to = of_same ? once : each;
    const std::size_t value = dtypes.size();
    for (std::size_t o = 0; o < step.outputs.size(); ++o)
      to += str("    ", names_of(step.outputs[o]).computed, " v", value + o, ";\n");
    to += "    {\n";
    if (!step.inputs.empty()) to += str("      typedef ", names_of(dtypes[step.inputs[0]]).computed, " T;\n");
    for (std::size_t x = 0; x < step.inputs.size(); ++x)
      to += str("      const ", names_of(dtypes[step.inputs[x]]).computed, " x", x, " = v", step.inputs[x],
                ";\n");
    for (std::size_t o = 0; o < step.outputs.size(); ++o) {
      to += str("      { typedef ", names_of(step.outputs[o]).result, " R; v", value + o, " = ls_round(",
                step.expressions[o], ", (R*)nullptr); }\n");
    }
    to += "    }\n";
    for (const DType dtype : step.outputs) {
      dtypes.push_back(dtype);
      same.push_back(of_same);
    }
  }
  text += once;
  text += "  const long long step = (long long)gridDim.x * blockDim.x;\n";
  text += "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {\n";
  text += "    const auto refuse = [&] { ls_refuse(a.refusal, a.number, i); };\n";
  if (axes > 0) {
    text += str("    long long at[", strided, "] = {}, left = i;\n");
    for (std::size_t axis = axes; axis-- > 0;) {
      text += axis > 0 ? str("    { const long long here = left % a.extents[", axis, "]; left /= a.extents[",
                             axis, "];\n")
                       : std::string("    { const long long here = left;\n");
      for (std::size_t r = 0; r < strided; ++r)
        text += str("      at[", r, "] += here * a.strides[", r, "][", axis, "];\n");
      text += "    }\n";
    }
  }
  text += each;
  for (std::size_t w = 0; w < steps.writes.size(); ++w) {
    const ElementSteps::Write& write = steps.writes[w];
    text += str("    ", store_text(write.dtype, str("a.out[", w, "]"), "i", str("v", write.value)), ";\n");
  }
  return text + "  }\n}\n";
}

}  // namespace lockstep::internal::cuda

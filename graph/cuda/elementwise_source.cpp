// graph/cuda/elementwise_source.cpp - the text of a kernel for element-wise steps.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
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

namespace {

constexpr std::int64_t kWidest = 8;

// How many neighbours a thread computes together. Reads that are repeated along the innermost axis, or along others, find all of
// them in one place only if the axis holds whole groups.
std::int64_t width_of(const ElementSteps& steps, const ElementWalk& walk) {
  std::size_t largest = 1;
  for (std::size_t i = 0; i < steps.reads.size(); ++i) {
    if (walk.reads[i] != ElementWalk::Kind::kScalar)
      largest = std::max(largest, size_of(steps.reads[i].dtype));
  }
  for (const ElementSteps::Write& write : steps.writes) largest = std::max(largest, size_of(write.dtype));
  std::int64_t width = std::min(kWidest, static_cast<std::int64_t>(kAccess / largest));
  while (width > 1 && !walk.extents.empty() && walk.extents.back() % width != 0) width /= 2;
  return width;
}

// The text of a kernel, piece by piece: what is computed once, what a group of neighbours needs, and each of them.
class ElementText {
 public:
  ElementText(const ElementSteps& steps, const ElementWalk& walk) : steps_(steps), walk_(walk) {
    for (std::size_t i = 0; i < steps_.reads.size(); ++i) add_read(i);
    for (const ElementSteps::Step& step : steps_.steps) add_step(step);
    for (std::size_t w = 0; w < steps_.writes.size(); ++w) add_write(w);
  }

  std::string text(std::int64_t width) const {
    const std::size_t axes = walk_.extents.size(), strided = walk_.strides.size();
    const bool is_short = steps_.shape.num_elements() <= kMostInWords;
    std::string text = kPrelude;
    text += str("typedef ", is_short ? "unsigned" : "long long", " I;\nconstexpr int W = ", width,
                ";\nstruct Args {\n");
    if (inputs_ > 0) text += str("  const void* in[", inputs_, "];\n");
    text += str("  void* out[", steps_.writes.size(),
                "];\n  long long n;\n  ls_word* refusal;\n  ls_word number;\n");
    text += "  const ls_word* decision;\n";
    if (axes > 0) text += str("  long long extents[", axes, "], strides[", strided, "][", axes, "];\n");
    text += "};\n" + tables_;
    text += "extern \"C\" __global__ void kernel(const Args a) {\n";
    text += "  if (a.decision != nullptr && *a.decision != ~ls_word(0)) return;\n" + once_;
    text += "  const I n = I(a.n), step = I(gridDim.x) * blockDim.x * W;\n";
    text += str("  const bool is_aligned = (", addresses_, ") % ", kAccess, " == 0;\n");
    text += "  for (I first = (I(blockIdx.x) * blockDim.x + threadIdx.x) * W; first < n; first += step) {\n";
    text += "    const I left = n - first;\n    const bool is_whole = is_aligned && left >= W;\n";
    if (axes > 0) text += places_text();
    text += group_;
    text += "#pragma unroll\n    for (int e = 0; e < W; ++e) {\n    if (!is_whole && e >= left) continue;\n";
    text += "    const long long i = (long long)first + e;\n";
    text += "    [[maybe_unused]] const auto refuse = [&] { ls_refuse(a.refusal, a.number, i); };\n";
    return text + each_ + "    }\n" + after_ + "  }\n}\n";
  }

 private:
  static std::string pack(DType dtype) { return str("ls_pack<", names_of(dtype).stored, ", W>"); }

  void add_read(std::size_t i) {
    const ElementSteps::Read& read = steps_.reads[i];
    const ElementWalk::Kind kind = walk_.reads[i];
    const TypeNames names = names_of(read.dtype);
    same_.push_back(kind == ElementWalk::Kind::kScalar);
    dtypes_.push_back(read.dtype);
    // The first of a group, and which of those after it is meant.
    std::string first = "first", next = "e";
    if (kind == ElementWalk::Kind::kScalar) first = "0";
    if (kind == ElementWalk::Kind::kStrided) {
      const std::size_t strided = strided_++;
      first = str("at[", strided, "]");
      if (walk_.strides[strided].back() == 0) next = "0";
    }
    const std::string value = str("const ", names.computed, " v", i, " = ");
    if (read.literals.size() == 1) {
      once_ += str("    ", value, from_bits_text(read.dtype, word_text(read.literals[0])), ";\n");
      return;
    }
    if (!read.literals.empty()) {
      add_table(i);
      const std::string word = str("c", i, "[", first, " + ", next, "]");
      (next == "0" ? group_ : each_) += str("    ", value, from_bits_text(read.dtype, word), ";\n");
      return;
    }
    const std::string in = str("a.in[", inputs_++, "]");
    if (kind == ElementWalk::Kind::kScalar) {
      once_ += str("    ", value, load_text(read.dtype, in, "0"), ";\n");
    } else if (next == "0") {
      group_ += str("    ", value, load_text(read.dtype, in, first), ";\n");
    } else {
      group_ += str("    const ", pack(read.dtype), " p", i, " = ls_load<W>((const ", names.stored, "*)", in,
                    " + ", first, ", is_whole, left);\n");
      each_ += str("    ", value, names.load, "(p", i, ".e[e]);\n");
      add_address(in);
    }
  }

  // Outside of the kernel: inside, each thread would write the elements into memory of its own first. As words, which hold any
  // element, NaN and infinity too, and need no conversion.
  void add_table(std::size_t i) {
    const ElementSteps::Read& read = steps_.reads[i];
    tables_ += str("__device__ const ", word_of(size_of(read.dtype)), " c", i, "[] = {");
    for (const std::uint64_t literal : read.literals) tables_ += word_text(literal) + ",";
    tables_ += "};\n";
  }

  static std::string word_text(std::uint64_t word) {
    return str(word, word > std::numeric_limits<std::uint32_t>::max() ? "ULL" : "U");
  }

  void add_step(const ElementSteps::Step& step) {
    const bool of_same = std::ranges::all_of(step.inputs, [&](std::size_t value) { return same_[value]; }) &&
                         std::ranges::none_of(step.expressions, [](const std::string& expression) {
                           return expression.find("refuse") != std::string::npos;
                         });
    std::string& to = of_same ? once_ : each_;
    const std::size_t value = dtypes_.size();
    for (std::size_t o = 0; o < step.outputs.size(); ++o)
      to += str("    ", names_of(step.outputs[o]).computed, " v", value + o, ";\n");
    to += "    {\n";
    if (!step.inputs.empty())
      to += str("      typedef ", names_of(dtypes_[step.inputs[0]]).computed, " T;\n");
    for (std::size_t x = 0; x < step.inputs.size(); ++x)
      to += str("      const ", names_of(dtypes_[step.inputs[x]]).computed, " x", x, " = v", step.inputs[x],
                ";\n");
    for (std::size_t o = 0; o < step.outputs.size(); ++o) {
      to += str("      { typedef ", names_of(step.outputs[o]).result, " R; v", value + o, " = ls_round(",
                step.expressions[o], ", (R*)nullptr); }\n");
    }
    to += "    }\n";
    for (const DType dtype : step.outputs) {
      dtypes_.push_back(dtype);
      same_.push_back(of_same);
    }
  }

  void add_write(std::size_t w) {
    const ElementSteps::Write& write = steps_.writes[w];
    const TypeNames names = names_of(write.dtype);
    group_ += str("    ", pack(write.dtype), " q", w, ";\n");
    each_ += str("    q", w, ".e[e] = ", names.store, "((", names.computed, ")(v", write.value, "));\n");
    after_ += str("    ls_store((", names.stored, "*)a.out[", w, "] + first, q", w, ", is_whole, left);\n");
    add_address(str("a.out[", w, "]"));
  }

  void add_address(const std::string& pointer) {
    addresses_ += str(addresses_.empty() ? "" : " | ", "ls_word(", pointer, ")");
  }

  // Where the first of a group lies in what is repeated.
  std::string places_text() const {
    const std::size_t axes = walk_.extents.size(), strided = walk_.strides.size();
    std::string text = str("    I at[", strided, "] = {}, rest = first;\n");
    for (std::size_t axis = axes; axis-- > 0;) {
      text += axis > 0 ? str("    { const I here = rest % I(a.extents[", axis, "]); rest /= I(a.extents[",
                             axis, "]);\n")
                       : std::string("    { const I here = rest;\n");
      for (std::size_t r = 0; r < strided; ++r)
        text += str("      at[", r, "] += here * I(a.strides[", r, "][", axis, "]);\n");
      text += "    }\n";
    }
    return text;
  }

  const ElementSteps& steps_;
  const ElementWalk& walk_;
  std::size_t inputs_ = 0, strided_ = 0;  // so far
  std::vector<DType> dtypes_;             // by value
  std::vector<bool> same_;                // by value: for all elements
  std::string tables_, once_, group_, each_, after_, addresses_;
};

}  // namespace

ElementSource source_of(const ElementSteps& steps, const ElementWalk& walk) {
  const std::int64_t width = width_of(steps, walk);
  return {ElementText(steps, walk).text(width), width};
}

}  // namespace lockstep::internal::cuda

// graph/cuda/updates/merged_updates.cpp - the updates of many variables in few launches.
//
// The pointers of as many variables as fit travel in the arguments of a launch, so that a recorded launch needs no table that
// someone keeps. A block takes a chunk of one variable, which it finds by its own number: large and small variables share
// a card evenly.
#include "lockstep/graph/ops/merged/internal/merged_updates.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/cuda/updates/internal/update_formulas.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::int64_t kChunk = std::int64_t{16} << 10;  // elements of a block: a multiple of all vectors

// What kernels for some variables have in common.
struct Layout {
  std::size_t values;  // of a variable: itself and its slots
  std::size_t shared;  // inputs of all: the learning rate, the number of the step
  bool in_place;       // new values go where the old ones are

  // Of one variable: where values are read and written, its gradient, its number of elements.
  std::size_t words() const { return values * (in_place ? 1 : 2) + 2; }
  // The blocks before each variable take half a word.
  std::size_t most() const {
    constexpr std::size_t kOthers = 3;  // the decision, the number of variables, and a half that is left
    return 2 * (Arguments::kMost - kOthers - shared) / (2 * words() + 1);
  }
};

std::string args_text(const Layout& layout) {
  const std::size_t most = layout.most();
  std::string text = "struct Args {\n";
  text += str("  void* in[", most, "][", layout.values, "];\n");
  if (!layout.in_place) text += str("  void* out[", most, "][", layout.values, "];\n");
  text += str("  const void* gradient[", most, "];\n  long long count[", most, "];\n");
  text += str("  const void* shared[", layout.shared, "];\n");
  text += str("  const ls_word* decision;\n  long long variables;\n  unsigned first[", most, "];\n};\n");
  return text;
}

// New values from old ones, by the lines of the formula, as in the kernel of one variable.
struct Lines {
  std::string once;  // what is the same for all elements
  std::string each;
};

Lines lines_of(const UpdateFormula& formula, const NodeView& update, std::span<const TensorSpec> outputs) {
  Lines lines;
  for (const auto& [name, expression] : formula.lines) {
    const std::string text = with_attributes(expression, update);
    if (name == "rate" || name == "scale") {
      lines.once += str("  const double ", name, " = ", text, ";\n");
      continue;
    }
    const auto slot = std::ranges::find(formula.slots, name);
    const std::size_t output =
        slot == formula.slots.end() ? 0 : 1 + static_cast<std::size_t>(slot - formula.slots.begin());
    lines.each += str("    ", name, " = ls_round(", text, ", (", names_of(outputs[output].dtype).result,
                      "*)nullptr);\n");
  }
  return lines;
}

std::string source_of(const Layout& layout, const UpdateFormula& formula, const NodeView& update,
                      std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  std::vector<std::string> names = {"w"};
  names.insert(names.end(), formula.slots.begin(), formula.slots.end());
  const std::size_t lanes = 16 / size_of(dtype);  // elements of a vector
  const Lines lines = lines_of(formula, update, outputs);

  std::string text = kPrelude;
  text += str("typedef ", dtype == DType::kF64 ? "double" : "float", " A;\n");
  text += str("template <class T> struct alignas(16) Vector { T x[", lanes, "]; };\n");
  text += args_text(layout);
  text += "extern \"C\" __global__ void kernel(const __grid_constant__ Args a) {\n";
  text += "  if (a.decision != nullptr && *a.decision != ~ls_word(0)) return;\n";
  text += "  unsigned at = 0;\n";
  text += "  for (unsigned end = unsigned(a.variables); end - at > 1;) {\n";
  text += "    const unsigned middle = (at + end) / 2;\n";
  text += "    (a.first[middle] <= blockIdx.x ? at : end) = middle;\n  }\n";
  text += str("  const long long begin = (long long)(blockIdx.x - a.first[at]) * ", kChunk, ";\n");
  text += str("  const int count = int(a.count[at] - begin < ", kChunk, " ? a.count[at] - begin : ", kChunk,
              ");\n");
  text += "  ls_word places = 0;\n";
  const auto pointer = [&](const std::string& name, DType of, const std::string& from) {
    const char* const stored = names_of(of).stored;
    text += str("  ", stored, "* const p_", name, " = (", stored, "*)", from, " + begin;\n");
    text += str("  places |= (ls_word)p_", name, ";\n");
  };
  for (std::size_t i = 0; i < names.size(); ++i) {
    pointer(names[i], outputs[i].dtype, str("a.in[at][", i, "]"));
    if (!layout.in_place) pointer(names[i] + "_new", outputs[i].dtype, str("a.out[at][", i, "]"));
  }
  pointer("g", dtype, "a.gradient[at]");
  text += str("  const ", names_of(update.input(1).dtype).computed,
              " lr = ", load_text(update.input(1).dtype, "a.shared[0]", "0"), ";\n");
  if (layout.shared > 1)
    text += str("  const long long t = ", load_text(DType::kI64, "a.shared[1]", "0"), ";\n");
  text += lines.once;

  text += "  const auto update = [&](";
  for (const std::string& name : names) text += str("A& ", name, ", ");
  text += str("const A g) {\n", lines.each, "  };\n");
  // Values from memory, one update, and back: `from` and `to` say where, `place` which.
  const auto one = [&](const std::string& indent, const auto& from, const auto& to,
                       const std::string& place) {
    for (std::size_t i = 0; i < names.size(); ++i)
      text += str(indent, "A ", names[i], " = ", load_text(outputs[i].dtype, from(names[i]), place), ";\n");
    text += indent + "update(";
    for (const std::string& name : names) text += name + ", ";
    text += load_text(dtype, from("g"), place) + ");\n";
    for (std::size_t i = 0; i < names.size(); ++i)
      text += str(indent, store_text(outputs[i].dtype, to(names[i]), place, names[i]), ";\n");
  };
  const auto target = [&](const std::string& name) { return layout.in_place ? name : name + "_new"; };
  const auto vector_of = [](DType of) { return str("Vector<", names_of(of).stored, ">"); };
  text += str("  const int vectors = places % 16 == 0 ? count / ", lanes, " : 0;\n");
  text += "  for (int i = threadIdx.x; i < vectors; i += blockDim.x) {\n";
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string vector = vector_of(outputs[i].dtype);
    text += str("    ", vector, " v_", names[i], " = ((const ", vector, "*)p_", names[i], ")[i];\n");
  }
  text += str("    const ", vector_of(dtype), " v_g = ((const ", vector_of(dtype), "*)p_g)[i];\n");
  text += str("#pragma unroll\n    for (int e = 0; e < ", lanes, "; ++e) {\n");
  const auto in_vector = [](const std::string& name) { return str("v_", name, ".x"); };
  one("      ", in_vector, in_vector, "e");
  text += "    }\n";
  for (std::size_t i = 0; i < names.size(); ++i)
    text +=
        str("    ((", vector_of(outputs[i].dtype), "*)p_", target(names[i]), ")[i] = v_", names[i], ";\n");
  text += "  }\n";
  text += str("  for (int i = vectors * ", lanes, " + threadIdx.x; i < count; i += blockDim.x) {\n");
  one(
      "    ", [](const std::string& name) { return "p_" + name; },
      [&](const std::string& name) { return "p_" + target(name); }, "i");
  return text + "  }\n}\n";
}

class MergedKernel {
 public:
  MergedKernel(const UpdateFormula& formula, const NodeView& node, std::span<const TensorSpec> outputs)
      : merged_(node),
        apart_{merged_.variables(), merged_.shared(), false},
        in_place_{merged_.variables(), merged_.shared(), true},
        apart_kernel_(source(apart_, formula, node, outputs)),
        in_place_kernel_(source(in_place_, formula, node, outputs)) {
    for (std::size_t i = 0; i < merged_.size(); ++i)
      counts_.push_back(outputs[merged_.state(i, 0)].shape.num_elements());
  }

  void operator()(KernelContext& c) const {
    bool in_place = true;
    for (std::size_t i = 0; i < c.num_outputs(); ++i) in_place = in_place && c.input(i) == c.output(i);
    const Layout& layout = in_place ? in_place_ : apart_;
    for (std::size_t begin = 0; begin < merged_.size(); begin += layout.most())
      launch(c, layout, begin, std::min(begin + layout.most(), merged_.size()));
  }

 private:
  std::string source(const Layout& layout, const UpdateFormula& formula, const NodeView& node,
                     std::span<const TensorSpec> outputs) const {
    static const NodeView::VariableSpecs none = [](std::string_view) { return nullptr; };
    const std::vector<TensorSpec> inputs = merged_.inputs_of(0, node.inputs());
    return source_of(layout, formula, view_of(merged_.update(0), inputs, none),
                     outputs.first(merged_.variables()));
  }

  // The arguments lie as in the struct of the source, with nothing where variables are missing.
  void launch(KernelContext& c, const Layout& layout, std::size_t begin, std::size_t end) const {
    const std::size_t missing = layout.most() - (end - begin);
    Arguments arguments;
    const auto fill = [&](std::size_t words) {
      for (std::size_t i = 0; i < words; ++i) arguments.add(std::uint64_t{0});
    };
    for (std::size_t i = merged_.state(begin, 0); i < merged_.state(end, 0); ++i) arguments.add(c.input(i));
    fill(missing * layout.values);
    if (!layout.in_place) {
      for (std::size_t i = merged_.state(begin, 0); i < merged_.state(end, 0); ++i)
        arguments.add(c.output(i));
      fill(missing * layout.values);
    }
    for (std::size_t i = begin; i < end; ++i) arguments.add(c.input(merged_.operand(i)));
    fill(missing);
    for (std::size_t i = begin; i < end; ++i) arguments.add(counts_[i]);
    fill(missing);
    for (std::size_t i = 0; i < layout.shared; ++i) arguments.add(c.input(merged_.shared_input(i)));
    arguments.add(c.blocks().decision).add(static_cast<std::int64_t>(end - begin));
    std::uint64_t blocks = 0, pair = 0;
    for (std::size_t i = begin; i < end; ++i) {
      pair |= blocks << (i - begin) % 2 * 32;
      if ((i - begin) % 2 == 1 || i + 1 == end) {
        arguments.add(pair);
        pair = 0;
      }
      blocks += static_cast<std::uint64_t>((counts_[i] + kChunk - 1) / kChunk);
    }
    if (blocks == 0) return;
    const JitKernel& kernel = layout.in_place ? in_place_kernel_ : apart_kernel_;
    kernel.launch(*c.stream(), static_cast<unsigned>(blocks), kThreads, arguments);
  }

  MergedUpdates merged_;
  Layout apart_, in_place_;
  JitKernel apart_kernel_, in_place_kernel_;
  std::vector<std::int64_t> counts_;  // elements of each variable
};

}  // namespace

KernelFn merged_update_kernel(const UpdateFormula& formula, const NodeView& node,
                              std::span<const TensorSpec> outputs) {
  return MergedKernel(formula, node, outputs);
}

}  // namespace lockstep::internal::cuda

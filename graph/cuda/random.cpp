// graph/cuda/random.cpp - random tensors, with the bits of the CPU (core/kernels/random.cpp): Philox, and the same arithmetic.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/indices/internal/sorted_rows.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

// One thread makes one block: w[0] to w[3] are its words, `first` the number of its first element. The body stores elements by
// PUT(number in the block, value).
std::string draw_source(DType dtype, int per_block, const std::string& functions, const std::string& body) {
  return str(kPrelude, kDraw, R"(
typedef unsigned int u32;
struct Args { const void* in; void* out; const ls_word* run; ls_word key, replica; long long n; };
)",
             "typedef ", names_of(dtype).computed, " C;\n", functions,
             "#define PUT(at, value) if (first + (at) < a.n) ",
             store_text(dtype, "a.out", "first + (at)", "value"), "\n#define IN(at) ",
             load_text(dtype, "a.in", "first + (at)"), R"(
extern "C" __global__ void kernel(const Args a) {
  const ls_draw_key key(a.run, a.key, a.replica);
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long block = (long long)blockIdx.x * blockDim.x + threadIdx.x; block * )",
             per_block, R"( < a.n; block += step) {
    u32 w[4];
    ls_draw(w, key, block);
    const long long first = block * )",
             per_block, ";\n", body, "  }\n}\n");
}

std::uint64_t key_of(const NodeView& node) {
  return static_cast<std::uint64_t>(node.get<std::int64_t>("key"));
}

KernelFn draw_kernel(const std::string& source, int per_block, std::int64_t n, std::uint64_t key) {
  if (n == 0) return [](KernelContext&) {};
  return [kernel = JitKernel(source), per_block, n, key](KernelContext& c) {
    Arguments arguments;
    arguments.add(c.num_inputs() > 0 ? c.input(0) : nullptr)
        .add(static_cast<const void*>(c.output(0)))
        .add(c.blocks().run);
    arguments.add(key).add(static_cast<std::uint64_t>(static_cast<std::uint32_t>(c.replica()))).add(n);
    kernel.launch(*c.stream(), blocks_for((n + per_block - 1) / per_block, kThreads), kThreads, arguments);
  };
}

int per_block(DType dtype) { return dtype == DType::kF64 ? 2 : 4; }

// The value rounded to the dtype, and the next smaller one of the dtype.
struct Bound {
  double value, below;
};
Bound bound_of(DType dtype, double value) {
  return visit_dtype(dtype, [&]<class T>(T) -> Bound {
    if constexpr (std::is_floating_point_v<T>) {
      return {static_cast<double>(static_cast<T>(value)),
              static_cast<double>(std::nextafter(static_cast<T>(value), -INFINITY))};
    } else if constexpr (sizeof(T) == 2) {
      T at(static_cast<float>(value));
      const auto number = static_cast<double>(static_cast<float>(at));
      at.bits = (at.bits & 0x7FFFU) == 0
                    ? std::uint16_t{0x8001U}
                    : static_cast<std::uint16_t>((at.bits & 0x8000U) != 0 ? at.bits + 1 : at.bits - 1);
      return {number, static_cast<double>(static_cast<float>(at))};
    } else {
      return {};
    }
  });
}

KernelFn uniform_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const Bound low = bound_of(dtype, node.get<double>("low")),
              high = bound_of(dtype, node.get<double>("high"));
  std::string body =
      str("    const C from = C(", literal_of(low.value), "), last = C(", literal_of(high.value),
          "), top = C(", literal_of(high.below), "), span = last - from;\n");
  const std::string element = str("ls_round(from + span * unit, (", names_of(dtype).result, "*)nullptr)");
  if (dtype == DType::kF64) {
    body +=
        "    for (int i = 0; i < 2; ++i) {\n"
        "      const C unit = double(((ls_word(w[2 * i]) << 32) | w[2 * i + 1]) >> 11) * 0x1p-53;\n";
  } else {
    body += "    for (int i = 0; i < 4; ++i) {\n      const C unit = float(w[i] >> 8) * 0x1p-24f;\n";
  }
  body += str("      const C value = ", element, ";\n      PUT(i, value < last ? value : top);\n    }\n");
  return draw_kernel(draw_source(dtype, per_block(dtype), "", body), per_block(dtype),
                     outputs[0].shape.num_elements(), key_of(node));
}

// Constants of the series that the CPU computes with, rounded as there.
template <class C, std::size_t n>
std::string numbers_of(const char* name, const std::array<C, n>& terms) {
  std::string text = str("__device__ const ", sizeof(C) == 8 ? "double" : "float", " ", name, "[] = {");
  for (const C term : terms) {
    std::array<char, 48> number{};
    std::snprintf(number.data(), number.size(), sizeof(C) == 8 ? "%a, " : "%af, ", static_cast<double>(term));
    text += number.data();
  }
  return text + "};\n";
}
template <class C, std::size_t n>
std::string log_terms() {
  std::array<C, n> terms{};
  for (std::size_t i = 0; i < n; ++i) terms[i] = static_cast<C>(1.0L / static_cast<long double>(2 * i + 1));
  return numbers_of("log_terms", terms);
}
template <class C, std::size_t n>
std::string trigonometric_terms(const char* name, int odd) {
  std::array<C, n> terms{};
  long double factorial = 1;
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = static_cast<int>(2 * i) + odd;
    if (i > 0) factorial *= -static_cast<long double>(at * (at - 1));
    terms[i] = static_cast<C>(1 / factorial);
  }
  return numbers_of(name, terms);
}

constexpr const char* kNormal = R"(
template <int n> __device__ inline C polynomial(const C* terms, C x) {
  C sum = terms[n - 1];
  for (int i = n - 1; i-- > 0;) sum = sum * x + terms[i];
  return sum;
}
__device__ inline C log_of(C x) {
  const Bits shifted = BITS_OF(x) - kRootOfHalf;
  const C exponent = C(Signed(shifted) >> kMantissa);
  const Bits fraction = (shifted & ((Bits(1) << kMantissa) - 1)) + kRootOfHalf;
  const C f = OF_BITS(fraction) - C(1);
  const C s = f / (f + C(2));
  const C series = C(2) * s * polynomial<kLog>(log_terms, s * s);
  return exponent * C(0x1.62e4p-1) + (exponent * kLn2Low + series);
}
__device__ inline void box_muller(Bits radius_word, Bits angle_word, C& first, C& second) {
  const C radius = sqrt(C(-2) * log_of(C(radius_word | 1U) * kScale));
  const Bits quarter = (angle_word + (Bits(1) << (kBits - 3))) >> (kBits - 2);
  const C rest = C(Signed(angle_word - (quarter << (kBits - 2)))) * (kScale * C(4));
  const C x = rest * kQuarterTurn;
  const C sine = x * polynomial<kTrigonometric>(sine_terms, x * x), cosine = polynomial<kTrigonometric>(cosine_terms, x * x);
  const bool swapped = (quarter & 1U) != 0;
  const C along = swapped ? sine : cosine, across = swapped ? cosine : sine;
  first = radius * (((quarter + 1U) & 2U) != 0 ? -along : along);
  second = radius * ((quarter & 2U) != 0 ? -across : across);
}
)";

template <class C>
std::string constant(const char* name, long double value) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "const C %s = %a%s;\n", name,
                static_cast<double>(static_cast<C>(value)), sizeof(C) == 8 ? "" : "f");
  return text.data();
}

std::string normal_functions(DType dtype) {
  constexpr long double kLn2Low = 1.42860682030941723212e-6L,
                        kQuarter = 1.570796326794896619231321691639751442L;
  if (dtype == DType::kF64) {
    return str(
        "typedef ls_word Bits; typedef long long Signed;\n"
        "#define BITS_OF(x) ls_word(__double_as_longlong(x))\n#define OF_BITS(x) __longlong_as_double((long "
        "long)(x))\n"
        "const int kMantissa = 52, kLog = 12, kTrigonometric = 10, kBits = 64;\n"
        "const Bits kRootOfHalf = 0x3FE6A09E667F3BCDULL;\nconst C kScale = 0x1p-64;\n",
        constant<double>("kLn2Low", kLn2Low), constant<double>("kQuarterTurn", kQuarter),
        log_terms<double, 12>(), trigonometric_terms<double, 10>("sine_terms", 1),
        trigonometric_terms<double, 10>("cosine_terms", 0), kNormal);
  }
  return str(
      "typedef u32 Bits; typedef int Signed;\n"
      "#define BITS_OF(x) __float_as_uint(x)\n#define OF_BITS(x) __uint_as_float(x)\n"
      "const int kMantissa = 23, kLog = 5, kTrigonometric = 6, kBits = 32;\n"
      "const Bits kRootOfHalf = 0x3F3504F3U;\nconst C kScale = 0x1p-32f;\n",
      constant<float>("kLn2Low", kLn2Low), constant<float>("kQuarterTurn", kQuarter), log_terms<float, 5>(),
      trigonometric_terms<float, 6>("sine_terms", 1), trigonometric_terms<float, 6>("cosine_terms", 0),
      kNormal);
}

KernelFn normal_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const std::string words = dtype == DType::kF64
                                ? "(ls_word(w[0]) << 32) | w[1], (ls_word(w[2]) << 32) | w[3]"
                                : "w[2 * i], w[2 * i + 1]";
  const std::string body =
      str("    const C centre = C(", literal_of(node.get<double>("mean")), "), scale = C(",
          literal_of(node.get<double>("stddev")), ");\n    for (int i = 0; i < ", per_block(dtype) / 2,
          "; ++i) {\n      C one, two;\n      box_muller(", words,
          ", one, two);\n      PUT(2 * i, centre + scale * one);\n      PUT(2 * i + 1, centre + scale * "
          "two);\n    }\n");
  return draw_kernel(draw_source(dtype, per_block(dtype), normal_functions(dtype), body), per_block(dtype),
                     outputs[0].shape.num_elements(), key_of(node));
}

KernelFn integers_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::int64_t low = node.get<std::int64_t>("low"), high = node.get<std::int64_t>("high");
  const std::uint64_t span = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const std::string body =
      str("    for (int i = 0; i < 2; ++i) {\n"
          "      const ls_word word = (ls_word(w[2 * i]) << 32) | w[2 * i + 1];\n      PUT(i, ",
          static_cast<std::uint64_t>(low), "ULL + __umul64hi(word, ", span, "ULL));\n    }\n");
  return draw_kernel(draw_source(outputs[0].dtype, 2, "", body), 2, outputs[0].shape.num_elements(),
                     key_of(node));
}

// The CPU exchanges element i with element t(i), not before it, for i from 0 on (Fisher and Yates), so that result i is what lies at
// t(i) then. That is what the last exchange before with the same t brought there from its own place j, or t(i) itself if there is
// none; and what lay at j came from the last exchange before j with t = j, and so on: a few steps. Which exchanges those are is seen
// where all are sorted by t.
constexpr const char* kExchanges = R"(
struct Args { const long long* targets; const int* places; int* before; long long* out; long long n; };
extern "C" __global__ void kernel(const Args a) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long s = (long long)blockIdx.x * blockDim.x + threadIdx.x; s < a.n; s += step) {
    const long long target = a.targets[s];
)";
// The last exchange of each target; not one of an element with itself.
constexpr const char* kLastOfTarget = R"(
    if (s + 1 < a.n && a.targets[s + 1] == target) continue;
    if (a.places[s] != target) a.before[target] = a.places[s];
    else if (s > 0 && a.targets[s - 1] == target) a.before[target] = a.places[s - 1];
  }
}
)";
constexpr const char* kResult = R"(
    long long from = target;
    if (s > 0 && a.targets[s - 1] == target) {
      from = a.places[s - 1];
      while (a.before[from] >= 0) from = a.before[from];
    }
    a.out[a.places[s]] = from;
  }
}
)";

// Behind what sorting needs: for each element, the exchange that brought there what its own exchange finds.
std::size_t exchanges_at(std::int64_t n) {
  constexpr std::size_t kUnit = 256;
  return (SortedRows::room_for(n) + kUnit - 1) / kUnit * kUnit;
}

KernelFn permutation_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const std::int64_t n = outputs[0].shape[0];
  if (n == 0) return [](KernelContext&) {};
  const std::string body =
      "    for (int i = 0; i < 2; ++i) {\n"
      "      const ls_word word = (ls_word(w[2 * i]) << 32) | w[2 * i + 1];\n"
      "      PUT(i, first + i + (long long)__umul64hi(word, ls_word(a.n - first - i)));\n    }\n";
  return [draw = draw_kernel(draw_source(DType::kI64, 2, "", body), 2, n, key_of(node)),
          targets = SortedRows(outputs[0], n, false), last = JitKernel(str(kExchanges, kLastOfTarget)),
          result = JitKernel(str(kExchanges, kResult)), n](KernelContext& c) {
    draw(c);
    const SortedRows::Sorted sorted = targets.sort(c, c.output(0));
    void* const before = static_cast<std::byte*>(c.scratch()) + exchanges_at(n);
    c.stream()->fill(before, std::byte{0xFF}, static_cast<std::size_t>(n) * sizeof(std::int32_t));
    for (const JitKernel* const kernel : {&last, &result}) {
      Arguments arguments;
      arguments.add(sorted.rows).add(sorted.places).add(static_cast<const void*>(before));
      arguments.add(static_cast<const void*>(c.output(0))).add(n);
      kernel->launch(*c.stream(), blocks_for(n, kThreads), kThreads, arguments);
    }
  };
}

KernelFn dropout_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const DType dtype = outputs[0].dtype;
  const double rate = node.get<double>("rate");
  std::string body = "    for (int i = 0; i < 4; ++i) PUT(i, C(0));\n";
  if (rate < 1) {
    body = str("    const C scale = C(", literal_of(1 / (1 - rate)),
               ");\n    for (int i = 0; i < 4; ++i)\n      PUT(i, w[i] >= ",
               static_cast<std::uint32_t>(rate * 0x1p32), "U ? IN(i) * scale : C(0));\n");
  }
  return draw_kernel(draw_source(dtype, 4, "", body), 4, outputs[0].shape.num_elements(), key_of(node));
}

}  // namespace

void add_random_kernels(OpRegistry& registry) {
  registry.add_kernel("random_uniform", "cuda", uniform_kernel);
  registry.add_kernel("random_normal", "cuda", normal_kernel);
  registry.add_kernel("random_integers", "cuda", integers_kernel);
  registry.add_kernel("dropout", "cuda", dropout_kernel);
  KernelDef permutation(permutation_kernel);
  permutation.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    const std::int64_t n = outputs[0].shape[0];
    return Split{1, n == 0 ? 0 : exchanges_at(n) + static_cast<std::size_t>(n) * sizeof(std::int32_t), false};
  };
  registry.add_kernel("random_permutation", "cuda", std::move(permutation));
}

}  // namespace lockstep::internal::cuda

// graph/cuda/products/matmul.cpp - products of matrices, and batches of them, with what follows them: cuBLASLt, and a plain kernel for
// integers.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/elementwise.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"
#include "lockstep/graph/cuda/products/internal/product.h"
#include "lockstep/graph/cuda/rows/internal/reductions.h"
#include "lockstep/graph/ops/fused/internal/fused_matmul.h"
#include "lockstep/graph/ops/rules/internal/shape_rules.h"

namespace lockstep::internal::cuda {

namespace {

// The step between matrices, where there is one.
std::optional<std::int64_t> step_of(const std::vector<std::int64_t>& numbers) {
  const std::int64_t step = numbers.size() > 1 ? numbers[1] - numbers[0] : 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != static_cast<std::int64_t>(i) * step) return std::nullopt;
  }
  return step;
}

// One thread for each element of c.
JitKernel plain_product(const Product& product) {
  const std::string a = product.transpose_a ? "j * args.m + row" : "row * args.k + j";
  const std::string b = product.transpose_b ? "column * args.k + j" : "j * args.n + column";
  return JitKernel(str(kPrelude,
                       "struct Args { const void *a, *b; void* c; long long m, n, k; };\n"
                       "extern \"C\" __global__ void kernel(const Args args) {\n"
                       "  const long long step = (long long)gridDim.x * blockDim.x;\n"
                       "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < args.m * "
                       "args.n; i += step) {\n"
                       "    const long long row = i / args.n, column = i % args.n;\n"
                       "    ls_word sum = 0;\n"
                       "    for (long long j = 0; j < args.k; ++j)\n"
                       "      sum += ls_word(",
                       load_text(product.dtype, "args.a", a), ") * ls_word(",
                       load_text(product.dtype, "args.b", b), ");\n    ",
                       store_text(product.dtype, "args.c", "i", "sum"), ";\n  }\n}\n"));
}

// A node's products: one call for all matrices, or for each.
class Calls {
 public:
  Calls(const NodeView& node, const TensorSpec& result) : size_(size_of(result.dtype)) {
    const Shape& a = node.input(0).shape;
    const Shape& b = node.input(1).shape;
    const Shape& c = result.shape;
    product.dtype = result.dtype;
    product.tf32 = node.allows_tf32();
    product.transpose_a = transposes_a(node);
    product.transpose_b = transposes_b(node);
    product.m = c.dim(-2);
    product.n = c.dim(-1);
    product.k = a.dim(product.transpose_a ? -2 : -1);
    a_size_ = product.m * product.k;
    b_size_ = product.k * product.n;
    c_size_ = product.m * product.n;
    const Shape batch = batch_of(c);
    as_ = matrices_of(a, batch);
    bs_ = matrices_of(b, batch);
    const std::optional<std::int64_t> a_step = step_of(as_), b_step = step_of(bs_);
    // One matrix b for all: the rows of all matrices a are those of one.
    const bool is_joined = !product.transpose_a && as_.size() > 1 && a_step == 1 && b_step == 0;
    if (is_joined) {
      product.m *= static_cast<std::int64_t>(as_.size());
      as_.resize(1);
      bs_.resize(1);
    } else if (is_floating(product.dtype) && a_step && b_step &&
               as_.size() <= std::numeric_limits<std::int32_t>::max()) {
      product.batch = static_cast<std::int64_t>(as_.size());
      product.a_step = *a_step * a_size_;
      product.b_step = *b_step * b_size_;
      as_.resize(std::min<std::size_t>(as_.size(), 1));
    }
    if (as_.size() > 1) product.alignment = static_cast<std::uint32_t>(size_);  // one call for each matrix
  }

  // With the matrices a and b, and where in the result c begins, in bytes.
  template <class Call>
  void each(const KernelContext& context, const Call& call) const {
    for (std::size_t i = 0; i < as_.size(); ++i) {
      call(static_cast<const char*>(context.input(0)) + static_cast<std::size_t>(as_[i] * a_size_) * size_,
           static_cast<const char*>(context.input(1)) + static_cast<std::size_t>(bs_[i] * b_size_) * size_,
           i * static_cast<std::size_t>(c_size_) * size_);
    }
  }

  Product product;

 private:
  std::size_t size_;
  std::int64_t a_size_ = 0, b_size_ = 0, c_size_ = 0;  // elements
  std::vector<std::int64_t> as_, bs_;                  // the matrices of each call
};

KernelFn zeros(std::size_t bytes) {
  return [bytes](KernelContext& c) { c.stream()->fill(c.output(0), std::byte{0}, bytes); };
}

KernelFn product_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const auto bytes = static_cast<std::size_t>(num_bytes(outputs[0]));
  if (bytes == 0) return [](KernelContext&) {};
  const Calls calls(node, outputs[0]);
  const Product& product = calls.product;
  if (product.k == 0) return zeros(bytes);
  if (is_integer(product.dtype)) {
    return [kernel = plain_product(product), calls](KernelContext& context) {
      calls.each(context, [&](const void* x, const void* y, std::size_t at) {
        const Product& p = calls.product;
        Arguments arguments;
        arguments.add(x).add(y).add(static_cast<const void*>(static_cast<char*>(context.output(0)) + at));
        arguments.add(p.m).add(p.n).add(p.k);
        kernel.launch(*context.stream(), blocks_for(p.m * p.n, kThreads), kThreads, arguments);
      });
    };
  }
  return [multiply = FloatProduct(product), calls](KernelContext& context) {
    calls.each(context, [&](const void* x, const void* y, std::size_t at) {
      multiply.run(*context.stream(), x, y, static_cast<char*>(context.output(0)) + at, context.scratch());
    });
  };
}

// --- with what follows them

TensorArg result_arg(const KernelContext& c, std::size_t i) { return {c.output(i), &c.output_spec(i)}; }
// Kernels do not write their inputs.
TensorArg input_arg(const KernelContext& c, std::size_t i) {
  return {const_cast<void*>(c.input(i)),
          &c.input_spec(i)};  // NOLINT(cppcoreguidelines-pro-type-const-cast): see above
}

void run_part(const KernelFn& kernel, KernelContext& c, std::span<const TensorArg> from,
              const TensorArg& to) {
  KernelContext part(from, {&to, 1}, &c.run());
  part.set_shard(0, 1, c.scratch());
  part.set_stream(c.stream(), c.blocks());
  kernel(part);
}

// What follows a product, from the product in the result's memory; the other inputs are those of the node from 2 on.
KernelFn following_kernel(const NodeView& node, const AfterProduct& after, const TensorSpec& result) {
  std::vector<TensorSpec> reads = {result};
  for (std::size_t i = 2; i < node.num_inputs(); ++i) reads.push_back(node.input(i));
  const std::string value = after.bias ? "(x0 + x1)" : "x0", operand = str("x", after.operand() - 1);
  std::string text = value;
  switch (after.then) {
    case AfterProduct::Then::kNothing: break;
    case AfterProduct::Then::kRelu: text = str(value, " < T(0) ? T(0) : ", value); break;
    case AfterProduct::Then::kReluGrad: text = str(operand, " > T(0) ? ", value, " : T(0)"); break;
    case AfterProduct::Then::kAdd: text = str(value, " + ", operand); break;
  }
  return [kernel = make_element_kernel(reads, {&result, 1}, {text})](KernelContext& c) {
    std::array<TensorArg, 3> from;
    from[0] = result_arg(c, 0);
    for (std::size_t i = 2; i < c.num_inputs(); ++i) from.at(i - 1) = input_arg(c, i);
    run_part(kernel, c, std::span(from).first(c.num_inputs() - 1), result_arg(c, 0));
  };
}

// The sum along k of the matrix that `sums` names, to output 1.
KernelFn summing_kernel(const NodeView& node, const AfterProduct& after) {
  return [kernel = make_sum_kernel(node.input(after.summed()), after.summed_axes(node)),
          summed = after.summed()](KernelContext& c) {
    const TensorArg from = input_arg(c, summed);
    run_part(kernel, c, {&from, 1}, result_arg(c, 1));
  };
}

// Are sums left to cuBLASLt, beside the product? That costs about as much as a kernel of their own, but several times as much in
// 16 bits if rows are not aligned; with many rows it saves reading them again.
bool are_sums_free(const Product& product) {
  constexpr std::int64_t kManyRows = 4096, kAligned = 8;
  return size_of(product.dtype) == 2 && product.k >= kManyRows && product.m % kAligned == 0 &&
         product.n % kAligned == 0;
}

// cuBLASLt does it in one go, or the product alone, after which come kernels of our own; those are made in any case, so that
// they are the same on every card. The relu of a gradient is always one: cuBLASLt would want bits that are written by the forward
// product.
KernelFn fused_product_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const AfterProduct after = after_product(node);
  const bool has_sums = after.sums != AfterProduct::Sums::kNone;
  const KernelFn rest = has_sums ? summing_kernel(node, after) : following_kernel(node, after, outputs[0]);
  const auto bytes = static_cast<std::size_t>(num_bytes(outputs[0]));
  if (bytes == 0) return has_sums ? rest : [](KernelContext&) {};
  Calls calls(node, outputs[0]);
  Product& product = calls.product;
  if (product.k == 0) return one_after_another({zeros(bytes), rest});
  product.bias = after.bias;
  product.relu = after.then == AfterProduct::Then::kRelu;
  if (has_sums && are_sums_free(product))
    product.sums = after.sums == AfterProduct::Sums::kOfA ? Product::Sums::kOfA : Product::Sums::kOfB;
  const bool is_epilogue =
      after.then != AfterProduct::Then::kReluGrad && (!has_sums || product.sums != Product::Sums::kNone);
  if (!is_epilogue) product.bias = false;
  return [multiply = FloatProduct(product), calls, rest, after, has_sums, is_epilogue](KernelContext& c) {
    bool is_done = is_epilogue;
    calls.each(c, [&](const void* x, const void* y, std::size_t at) {
      FloatProduct::Matrices matrices{.a = x, .b = y, .c = static_cast<char*>(c.output(0)) + at};
      if (after.then == AfterProduct::Then::kAdd)
        matrices.added = static_cast<const char*>(c.input(after.operand())) + at;
      if (after.bias) matrices.bias = c.input(2);
      if (has_sums) matrices.sums = c.output(1);
      is_done = multiply.run(*c.stream(), matrices, c.scratch()) && is_done;
    });
    if (!is_done) rest(c);
  };
}

}  // namespace

void add_product_kernels(OpRegistry& registry) {
  KernelDef def(product_kernel);
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{1, is_floating(outputs[0].dtype) ? FloatProduct::kRoom : 0, false};
  };
  registry.add_kernel("matmul", "cuda", std::move(def));
  KernelDef fused(fused_product_kernel);
  fused.split = [](const NodeView& node, std::span<const TensorSpec>) {
    const AfterProduct after = after_product(node);
    if (after.sums == AfterProduct::Sums::kNone) return Split{1, FloatProduct::kRoom, false};
    const std::size_t room = sum_room(node.input(after.summed()).shape, after.summed_axes(node));
    return Split{1, std::max(FloatProduct::kRoom, room), false};
  };
  registry.add_kernel(kFusedMatmul, "cuda", std::move(fused));
}

}  // namespace lockstep::internal::cuda

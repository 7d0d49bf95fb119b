// graph/cuda/matmul.cpp - products of matrices, and batches of them: cuBLASLt, and a plain kernel for integers.
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/product.h"
#include "lockstep/graph/cuda/internal/types.h"
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

KernelFn product_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Shape& a = node.input(0).shape;
  const Shape& b = node.input(1).shape;
  const Shape& c = outputs[0].shape;
  Product product;
  product.dtype = outputs[0].dtype;
  product.tf32 = node.allows_tf32();
  product.transpose_a = node.get_or("transpose_a", false);
  product.transpose_b = node.get_or("transpose_b", false);
  product.m = c.dim(-2);
  product.n = c.dim(-1);
  product.k = a.dim(product.transpose_a ? -2 : -1);
  const auto bytes = static_cast<std::size_t>(num_bytes(outputs[0]));
  if (bytes == 0) return [](KernelContext&) {};
  if (product.k == 0)
    return
        [bytes](KernelContext& context) { context.stream()->fill(context.output(0), std::byte{0}, bytes); };
  const std::int64_t a_size = product.m * product.k, b_size = product.k * product.n,
                     c_size = product.m * product.n;
  const Shape batch = batch_of(c);
  std::vector<std::int64_t> as = matrices_of(a, batch), bs = matrices_of(b, batch);
  const std::optional<std::int64_t> a_step = step_of(as), b_step = step_of(bs);
  // One matrix b for all: the rows of all matrices a are those of one.
  const bool is_joined = !product.transpose_a && as.size() > 1 && a_step == 1 && b_step == 0;
  if (is_joined) {
    product.m *= static_cast<std::int64_t>(as.size());
    as.resize(1);
    bs.resize(1);
  } else if (is_floating(product.dtype) && a_step && b_step &&
             as.size() <= std::numeric_limits<std::int32_t>::max()) {
    product.batch = static_cast<std::int64_t>(as.size());
    product.a_step = *a_step * a_size;
    product.b_step = *b_step * b_size;
  }
  const std::size_t calls = product.batch > 1 ? 1 : as.size();
  if (calls > 1)
    product.alignment = static_cast<std::uint32_t>(size_of(product.dtype));  // one call for each matrix
  const auto each = [calls, as, bs, a_size, b_size, c_size, size = size_of(product.dtype)](
                        KernelContext& context, const auto& call) {
    for (std::size_t i = 0; i < calls; ++i) {
      call(static_cast<const char*>(context.input(0)) + static_cast<std::size_t>(as[i] * a_size) * size,
           static_cast<const char*>(context.input(1)) + static_cast<std::size_t>(bs[i] * b_size) * size,
           static_cast<char*>(context.output(0)) + i * static_cast<std::size_t>(c_size) * size);
    }
  };
  if (is_integer(product.dtype)) {
    return [kernel = plain_product(product), product, each](KernelContext& context) {
      each(context, [&](const void* x, const void* y, void* z) {
        Arguments arguments;
        arguments.add(x).add(y).add(z).add(product.m).add(product.n).add(product.k);
        kernel.launch(*context.stream(), blocks_for(product.m * product.n, kThreads), kThreads, arguments);
      });
    };
  }
  return [multiply = FloatProduct(product), each](KernelContext& context) {
    each(context, [&](const void* x, const void* y, void* z) {
      multiply.run(*context.stream(), x, y, z, context.scratch());
    });
  };
}

}  // namespace

void add_product_kernels(OpRegistry& registry) {
  KernelDef def(product_kernel);
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{1, is_floating(outputs[0].dtype) ? FloatProduct::kRoom : 0, false};
  };
  registry.add_kernel("matmul", "cuda", std::move(def));
}

}  // namespace lockstep::internal::cuda

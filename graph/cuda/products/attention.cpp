// graph/cuda/products/attention.cpp - attention, and what flows back through it.
#include "lockstep/graph/ops/fused/internal/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/products/internal/attention_source.h"

namespace lockstep::internal::cuda {

namespace {

// Where the addresses of a call are, and the rows that they begin.
struct Reached {
  std::uintptr_t bits = 0;  // of all addresses and steps, in bytes

  std::uint64_t at(const void* base, const AttentionRows& rows, std::int64_t size) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(rows.offset * size);
    bits |= address | static_cast<std::uintptr_t>(rows.batch * size) |
            static_cast<std::uintptr_t>(rows.head * size) | static_cast<std::uintptr_t>(rows.row * size);
    return address;
  }
};

void add_steps(Arguments& arguments, const AttentionRows& rows) {
  arguments.add(rows.batch).add(rows.head).add(rows.row);
}

// One of the kernels.
class Launch {
 public:
  Launch(AttentionPass pass, const Attention& attention, DType dtype)
      : attention_(attention),
        pass_(pass),
        size_(static_cast<std::int64_t>(size_of(dtype))),
        text_(text_of(attention, dtype)),
        aligned_(attention_source(pass, text_)),
        otherwise_(fits_tiles(text_) ? JitKernel(attention_source(pass, unaligned(text_))) : aligned_) {}

  void run(const KernelContext& c, const void* logs, const void* deltas) const {
    const Attention& a = attention_;
    const AttentionRows none;
    const bool is_forward = pass_ == AttentionPass::kForward, is_of_keys = pass_ == AttentionPass::kKeys;
    const AttentionRows& first = is_forward ? a.out : is_of_keys ? a.dk : a.dq;
    const AttentionRows& second = is_of_keys ? a.dv : none;
    Reached reached;
    Arguments arguments;
    for (const AttentionRows* rows : {&a.q, &a.k, &a.v})
      arguments.add(reached.at(c.input(rows->operand), *rows, size_));
    arguments.add(a.mask ? c.input(a.mask->operand) : nullptr);
    arguments.add(is_forward ? 0 : reached.at(c.input(a.out.operand), a.out, size_));
    arguments.add(is_forward ? 0 : reached.at(c.input(a.flow.operand), a.flow, size_));
    arguments.add(reached.at(c.output(first.operand), first, size_));
    arguments.add(is_of_keys ? reached.at(c.output(second.operand), second, size_) : 0);
    arguments.add(logs).add(deltas).add(static_cast<const void*>(c.blocks().run));
    arguments.add(a.heads).add(a.queries).add(a.keys).add(a.width).add(a.value_width);
    add_steps(arguments, a.q);
    add_steps(arguments, a.k);
    add_steps(arguments, a.v);
    add_steps(arguments, is_forward ? none : a.out);
    add_steps(arguments, is_forward ? none : a.flow);
    add_steps(arguments, first);
    add_steps(arguments, second);
    const AttentionMask mask = a.mask.value_or(AttentionMask{});
    arguments.add(mask.batch).add(mask.head).add(mask.row).add(mask.column);
    arguments.add(static_cast<std::uint64_t>(a.key.value_or(0)));
    arguments.add(static_cast<std::uint64_t>(static_cast<std::uint32_t>(c.replica())));
    const std::int64_t rows = is_of_keys ? a.keys : a.queries, pairs = a.batch * a.heads;
    if (!fits_tiles(text_)) {
      aligned_.launch(*c.stream(), static_cast<unsigned>(pairs * rows), kThreads, arguments);
      return;
    }
    const std::int64_t of_block = tiles_of(pass_, text_.width).rows();
    const JitKernel& kernel = reached.bits % kAccess == 0 ? aligned_ : otherwise_;
    kernel.launch(*c.stream(), static_cast<unsigned>(pairs * ((rows + of_block - 1) / of_block)),
                  AttentionTiles::kThreads, arguments);
  }

 private:
  static AttentionText text_of(const Attention& attention, DType dtype) {
    return {.dtype = dtype,
            .width = attention.width,
            .value_width = attention.value_width,
            .scale = attention.scale,
            .rate = attention.rate,
            .has_mask = attention.mask.has_value(),
            .has_keys = attention.keys > 0};
  }

  static AttentionText unaligned(AttentionText text) {
    text.is_aligned = false;
    return text;
  }

  Attention attention_;
  AttentionPass pass_;
  std::int64_t size_;  // of an element
  AttentionText text_;
  JitKernel aligned_, otherwise_;  // by what the addresses are
};

void fill_zeros(const KernelContext& c, std::size_t output) {
  const auto bytes = static_cast<std::size_t>(num_bytes(c.output_spec(output)));
  if (bytes > 0) c.stream()->fill(c.output(output), std::byte{0}, bytes);
}

// Blocks are counted in 31 bits, and rows of a head in tiles too.
void check_size(const Attention& a) {
  const std::int64_t rows = std::max(a.queries, a.keys);
  if (rows > kMostInWords || a.batch * a.heads > kMostInWords / std::max<std::int64_t>(rows, 1))
    NodeView::fail(
        str("has ", a.batch * a.heads, " heads of ", rows, " rows: more than a launch on a card has blocks"));
}

KernelFn attention_kernel(const NodeView& node, std::span<const TensorSpec>) {
  const Attention attention = attention_of(node);
  check_size(attention);
  if (attention.batch * attention.heads * attention.queries == 0) return [](KernelContext&) {};
  const DType dtype = node.input(0).dtype;
  return [launch = Launch(AttentionPass::kForward, attention, dtype)](KernelContext& c) {
    launch.run(c, c.output(1), nullptr);
  };
}

KernelFn attention_grad_kernel(const NodeView& node, std::span<const TensorSpec> outputs) {
  const Attention attention = attention_of(node);
  check_size(attention);
  const std::int64_t pairs = attention.batch * attention.heads;
  if (pairs * attention.queries == 0 || pairs * attention.keys == 0) {
    return [count = outputs.size()](KernelContext& c) {
      for (std::size_t i = 0; i < count; ++i) fill_zeros(c, i);
    };
  }
  const DType dtype = node.input(0).dtype;
  return [of_queries = Launch(AttentionPass::kQueries, attention, dtype),
          of_keys = Launch(AttentionPass::kKeys, attention, dtype), logs = attention.logs](KernelContext& c) {
    of_queries.run(c, c.input(logs), c.scratch());
    of_keys.run(c, c.input(logs), c.scratch());
  };
}

}  // namespace

void add_attention_kernels(OpRegistry& registry) {
  registry.add_kernel(kAttention, "cuda", attention_kernel);
  KernelDef grad(attention_grad_kernel);
  // The sum of out * flow of each row of queries.
  grad.split = [](const NodeView& node, std::span<const TensorSpec>) {
    const Attention a = attention_of(node);
    const std::size_t size = node.input(0).dtype == DType::kF64 ? sizeof(double) : sizeof(float);
    return Split{1, static_cast<std::size_t>(a.batch * a.heads * a.queries) * size, false};
  };
  registry.add_kernel(kAttentionGrad, "cuda", std::move(grad));
}

}  // namespace lockstep::internal::cuda

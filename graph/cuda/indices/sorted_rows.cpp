// graph/cuda/indices/sorted_rows.cpp - which rows of a tensor are named by indices, and where.
#include "lockstep/graph/cuda/indices/internal/sorted_rows.h"

#include <limits>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/indices/internal/sorting.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::size_t kUnit = 256;

std::size_t in_units(std::size_t bytes) { return (bytes + kUnit - 1) / kUnit * kUnit; }

// How the scratch memory is used: keys, sorted keys, places, sorted places, what sorting needs.
struct SortingRoom {
  std::size_t keys, places, sorting = 0;
  std::size_t bytes() const { return 2 * keys + 2 * places + sorting + kUnit; }
};

SortingRoom sorting_room(std::int64_t count) {
  if (count > std::numeric_limits<std::int32_t>::max())
    throw Error(ErrorCode::kUnimplemented, str(count, " indices of rows on a card; at most 2^31 - 1"));
  const auto n = static_cast<std::size_t>(count);
  SortingRoom room{in_units(n * sizeof(std::int64_t)), in_units(n * sizeof(std::int32_t))};
  const cudaError_t status = sort_by_key(nullptr, room.sorting, nullptr, nullptr, nullptr, nullptr,
                                         static_cast<std::int32_t>(count), nullptr);
  if (status != cudaSuccess)
    throw Error(ErrorCode::kInternal, str("the room that sorting needs: ", cudaGetErrorString(status)));
  return room;
}

std::string keys_source(DType indices, bool refuse) {
  return str(
      kPrelude,
      "struct Args { const void* indices; long long* keys; int* places; long long count, rows; ls_word* "
      "refusal; ls_word number; };\n"
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  const long long step = (long long)gridDim.x * blockDim.x;\n"
      "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += step) {\n"
      "    const long long row = ",
      load_text(indices, "a.indices", "i"), ";\n    const bool bad = row < 0 || row >= a.rows;\n",
      refuse ? "    if (bad) ls_refuse(a.refusal, a.number, i);\n" : "",
      "    a.keys[i] = bad ? a.rows : row;\n    a.places[i] = int(i);\n  }\n}\n");
}

}  // namespace

SortedRows::SortedRows(const TensorSpec& indices, std::int64_t rows, bool refuse)
    : count_(indices.shape.num_elements()),
      rows_(rows),
      refuse_(refuse),
      keys_(keys_source(indices.dtype, refuse)) {}

std::size_t SortedRows::room_for(std::int64_t count) { return count == 0 ? 0 : sorting_room(count).bytes(); }

SortedRows::Sorted SortedRows::sort(KernelContext& c, const void* indices) const {
  const SortingRoom sizes = sorting_room(count_);
  auto* at = static_cast<std::byte*>(c.scratch());
  if (const std::size_t over = reinterpret_cast<std::uintptr_t>(at) % kUnit; over != 0) at += kUnit - over;
  auto* const keys = reinterpret_cast<std::int64_t*>(at);
  auto* const sorted = reinterpret_cast<std::int64_t*>(at + sizes.keys);
  auto* const places = reinterpret_cast<std::int32_t*>(at + 2 * sizes.keys);
  auto* const order = reinterpret_cast<std::int32_t*>(at + 2 * sizes.keys + sizes.places);
  void* const room = at + 2 * sizes.keys + 2 * sizes.places;
  Arguments arguments;
  arguments.add(indices).add(static_cast<const void*>(keys)).add(static_cast<const void*>(places));
  arguments.add(count_).add(rows_).add(static_cast<const void*>(c.blocks().refusal)).add(c.blocks().number);
  keys_.launch(*c.stream(), blocks_for(count_, kThreads), kThreads, arguments);
  std::size_t needed = sizes.sorting;
  lockstep::cuda::check(sort_by_key(room, needed, keys, sorted, places, order,
                                    static_cast<std::int32_t>(count_), lockstep::cuda::native(*c.stream())),
                        *c.stream(), "sorting indices");
  return {sorted, order};
}

JitKernel row_kernel(const std::string& functions, const std::string& body, std::size_t inputs,
                     std::size_t outputs) {
  return JitKernel(str(
      kPrelude, functions, "struct Args { const void* in[", inputs, "]; void* out[", outputs,
      "]; const long long* rows; const int* places; long long count, limit, columns; const ls_word* "
      "decision; };\n"
      "#define LS_SAME(j) ((j) < a.count && a.rows[j] == row)\n"
      "#define LS_PLACE(j) (a.places[j] * a.columns + column)\n"
      "extern \"C\" __global__ void kernel(const Args a) {\n"
      "  if (a.decision != nullptr && *a.decision != ~ls_word(0)) return;\n"
      "  const long long step = (long long)gridDim.x * blockDim.x;\n"
      "  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < a.count * a.columns; i += "
      "step) {\n"
      "    const long long first = i / a.columns, column = i % a.columns, row = a.rows[first];\n"
      "    if (row >= a.limit || (first > 0 && a.rows[first - 1] == row)) continue;\n"
      "    const long long at = row * a.columns + column;\n",
      body, "  }\n}\n"));
}

void launch_rows(const JitKernel& kernel, KernelContext& c, const SortedRows& rows,
                 const SortedRows::Sorted& sorted, std::int64_t columns,
                 std::span<const std::size_t> inputs) {
  if (columns == 0) return;
  Arguments arguments;
  for (const std::size_t input : inputs) arguments.add(c.input(input));
  for (std::size_t i = 0; i < c.num_outputs(); ++i) arguments.add(static_cast<const void*>(c.output(i)));
  arguments.add(sorted.rows).add(sorted.places).add(rows.count()).add(rows.rows()).add(columns);
  arguments.add(c.blocks().decision);
  kernel.launch(*c.stream(), blocks_for(rows.count() * columns, kThreads), kThreads, arguments);
}

}  // namespace lockstep::internal::cuda

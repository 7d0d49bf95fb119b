// graph/cuda/matmul.cpp - products of matrices: cuBLASLt, and a plain kernel for integers.
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <cublasLt.h>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/kernel_set.h"
#include "lockstep/graph/cuda/internal/prelude.h"
#include "lockstep/graph/cuda/internal/types.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::size_t kWorkspaceAlignment = 256;
constexpr std::size_t kWorkspace = std::size_t{32}
                                   << 20;  // what cuBLASLt's best algorithms for large cards ask for

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
              str("cuBLASLt, ", what, ": ", cublasLtGetStatusName(status)));
}

// One for each card, made when it is first used.
cublasLtHandle_t handle_of(int card) {
  static auto* const handles = new std::array<cublasLtHandle_t, kMostCards>{};  // NOLINT: never destroyed
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  cublasLtHandle_t& handle = handles->at(static_cast<std::size_t>(card));
  if (handle == nullptr) check(cublasLtCreate(&handle), "a handle");
  return handle;
}

// What cuBLASLt makes, with what frees it.
template <class T, cublasStatus_t (*destroy)(T)>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (object_ != nullptr) static_cast<void>(destroy(object_));
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* place() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

// A product of row-major matrices, or of equally many of them: c = a b. cuBLASLt has the columns of a matrix one behind the other,
// so that it computes the transpose of c, which is b^T a^T, without moving anything.
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t batch = 1, a_step = 0, b_step = 0;  // elements from one matrix to the next; c's are dense
  std::uint32_t alignment = 16;                    // bytes, of what it is called with
  DType dtype = DType::kF32;
};

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

// The way in which cuBLASLt computes it on one card: chosen once, by its heuristic, from the shapes alone.
class Plan {
 public:
  Plan(const Product& product, int card) : handle_(handle_of(card)), is_f64_(product.dtype == DType::kF64) {
    const cudaDataType_t type = type_of(product.dtype);
    check(cublasLtMatmulDescCreate(operation_.place(), is_f64_ ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   is_f64_ ? CUDA_R_64F : CUDA_R_32F),
          "an operation");
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b);
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a);
    // As row-major matrices: b is [k, n], or [n, k]; a is [m, k], or [k, m].
    make_layout(b_, type, product.transpose_b ? product.k : product.n,
                product.transpose_b ? product.n : product.k, product.batch, product.b_step);
    make_layout(a_, type, product.transpose_a ? product.m : product.k,
                product.transpose_a ? product.k : product.m, product.batch, product.a_step);
    make_layout(c_, type, product.n, product.m, product.batch, product.m * product.n);
    Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
    check(cublasLtMatmulPreferenceCreate(preference.place()), "a preference");
    check(cublasLtMatmulPreferenceSetAttribute(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspace, sizeof kWorkspace),
          "the size of its memory");
    for (const cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      check(cublasLtMatmulPreferenceSetAttribute(preference.get(), which, &product.alignment,
                                                 sizeof product.alignment),
            "an alignment");
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                         preference.get(), 1, &choice_, &found),
          "the choice of an algorithm");
    if (found == 0) throw Error(ErrorCode::kUnimplemented, "cuBLASLt has no algorithm for a product");
  }

  void run(cudaStream_t stream, const void* a, const void* b, void* c, void* workspace) const {
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const void* const one = is_f64_ ? static_cast<const void*>(&one64) : &one32;
    const void* const zero = is_f64_ ? static_cast<const void*>(&zero64) : &zero32;
    check(cublasLtMatmul(handle_, operation_.get(), one, b, b_.get(), a, a_.get(), zero, c, c_.get(), c,
                         c_.get(), &choice_.algo, workspace, kWorkspace, stream),
          "a product");
  }

 private:
  using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

  void set_transposed(cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(operation_.get(), which, &operation, sizeof operation),
          "a transposition");
  }

  static void make_layout(Layout& layout, cudaDataType_t type, std::int64_t columns, std::int64_t rows,
                          std::int64_t batch, std::int64_t step) {
    check(cublasLtMatrixLayoutCreate(layout.place(), type, static_cast<std::uint64_t>(columns),
                                     static_cast<std::uint64_t>(rows), columns),
          "a layout");
    const auto count = static_cast<std::int32_t>(batch);
    check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                           sizeof count),
          "the size of a batch");
    check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                           sizeof step),
          "the step of a batch");
  }

  cublasLtHandle_t handle_;
  bool is_f64_;
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> operation_;
  Layout a_, b_, c_;
  cublasLtMatmulHeuristicResult_t choice_{};
};

// Plans by card, made when it is first used there.
class Plans {
 public:
  explicit Plans(const Product& product) : product_(product) {}
  const Plan& at(int card) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<Plan>& plan = plans_.at(static_cast<std::size_t>(card));
    if (plan == nullptr) plan = std::make_unique<Plan>(product_, card);
    return *plan;
  }

 private:
  const Product product_;
  std::mutex mutex_;
  std::array<std::unique_ptr<Plan>, kMostCards> plans_;
};

Shape batch_of(const Shape& shape) { return Shape(shape.dims().first(shape.rank() - 2)); }

// Where the matrices of an operand begin, in matrices, for each of the result.
std::vector<std::int64_t> matrices_of(const Shape& operand, const Shape& batch) {
  const Shape own = batch_of(operand);
  const std::size_t lead = batch.rank() - own.rank();
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(batch.num_elements()), 0);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    std::int64_t stride = 1;
    for (std::size_t axis = batch.rank(); axis-- > lead;) {
      if (own[axis - lead] > 1) numbers[i] += rest % batch[axis] * stride;
      rest /= batch[axis];
      stride *= own[axis - lead];
    }
  }
  return numbers;
}

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
  return [plans = std::make_shared<Plans>(product), each](KernelContext& context) {
    const cudaStream_t stream = lockstep::cuda::native(*context.stream());
    const Plan& plan = plans->at(lockstep::cuda::card_of(*context.stream()));
    auto* const room = static_cast<std::byte*>(context.scratch());
    const std::size_t over = reinterpret_cast<std::uintptr_t>(room) % kWorkspaceAlignment;
    void* const workspace = room + (over == 0 ? 0 : kWorkspaceAlignment - over);
    each(context, [&](const void* x, const void* y, void* z) { plan.run(stream, x, y, z, workspace); });
  };
}

}  // namespace

void add_product_kernels(OpRegistry& registry) {
  KernelDef def(product_kernel);
  def.split = [](const NodeView&, std::span<const TensorSpec> outputs) {
    return Split{1, is_floating(outputs[0].dtype) ? kWorkspace + kWorkspaceAlignment : 0, false};
  };
  registry.add_kernel("matmul", "cuda", std::move(def));
}

}  // namespace lockstep::internal::cuda

// graph/cuda/products/product.cpp - products of row-major matrices of floating values, by cuBLASLt.
#include "lockstep/graph/cuda/products/internal/product.h"

#include <array>
#include <cstddef>
#include <mutex>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/cuda/internal/jit.h"
#include "lockstep/graph/cuda/internal/toolkit_libraries.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::size_t kWorkspaceAlignment = 256;
constexpr std::size_t kWorkspace = std::size_t{32}
                                   << 20;  // what cuBLASLt's best algorithms for large cards ask for

void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
              str("cuBLASLt, ", what, ": ", CublasLt::get().GetStatusName(status)));
}

// One for each card, made when it is first used.
cublasLtHandle_t handle_of(int card) {
  static auto* const handles = new std::array<cublasLtHandle_t, kMostCards>{};  // NOLINT: never destroyed
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  cublasLtHandle_t& handle = handles->at(static_cast<std::size_t>(card));
  if (handle == nullptr) check(CublasLt::get().Create(&handle), "a handle");
  return handle;
}

// What cuBLASLt makes, with what frees it.
template <class T, auto CublasLt::*destroy>
class Owned {
 public:
  Owned() = default;
  ~Owned() {
    if (object_ != nullptr) static_cast<void>((CublasLt::get().*destroy)(object_));
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T* place() { return &object_; }
  T get() const { return object_; }

 private:
  T object_ = nullptr;
};

// The vector of an epilogue while an algorithm is chosen, which goes by its alignment alone.
const void* any_vector() {
  alignas(16) static constexpr std::array<std::byte, 16> kPlace{};
  return kPlace.data();
}

// cuBLASLt's matrix A is our b, and its rows are our columns.
cublasLtEpilogue_t epilogue_of(const Product& product) {
  if (product.sums == Product::Sums::kOfA) return CUBLASLT_EPILOGUE_BGRADB;
  if (product.sums == Product::Sums::kOfB) return CUBLASLT_EPILOGUE_BGRADA;
  if (product.bias) return product.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return product.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    case DType::kF64: return CUDA_R_64F;
    default: return CUDA_R_32F;
  }
}

}  // namespace

// cuBLASLt has the columns of a matrix one behind the other, so that it computes the transpose of c, which is b^T a^T, without
// moving anything.
// The way in which cuBLASLt computes it on one card: chosen once, by its heuristic, from the shapes alone.
class FloatProduct::Plan {
 public:
  Plan(const Product& product, int card)
      : product_(product), card_(card), handle_(handle_of(card)), is_f64_(product.dtype == DType::kF64) {
    const cudaDataType_t type = type_of(product.dtype);
    const bool in_tf32 = product.tf32 && product.dtype == DType::kF32;
    const cublasComputeType_t arithmetic = is_f64_   ? CUBLAS_COMPUTE_64F
                                           : in_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                     : CUBLAS_COMPUTE_32F;
    check(CublasLt::get().MatmulDescCreate(operation_.place(), arithmetic, is_f64_ ? CUDA_R_64F : CUDA_R_32F),
          "an operation");
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b);
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a);
    // As row-major matrices: b is [k, n], or [n, k]; a is [m, k], or [k, m].
    make_layout(b_, type, product.transpose_b ? product.k : product.n,
                product.transpose_b ? product.n : product.k, product.batch, product.b_step);
    make_layout(a_, type, product.transpose_a ? product.m : product.k,
                product.transpose_a ? product.k : product.m, product.batch, product.a_step);
    make_layout(c_, type, product.n, product.m, product.batch, product.m * product.n);
    Owned<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceDestroy> preference;
    check(CublasLt::get().MatmulPreferenceCreate(preference.place()), "a preference");
    check(CublasLt::get().MatmulPreferenceSetAttribute(
              preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace),
          "the size of its memory");
    for (const cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      check(CublasLt::get().MatmulPreferenceSetAttribute(preference.get(), which, &product.alignment,
                                                         sizeof product.alignment),
            "an alignment");
    const cublasLtEpilogue_t wanted = epilogue_of(product);
    const bool has_vector = product.bias || product.sums != Product::Sums::kNone;
    does_all_ = choose(preference.get(), wanted, has_vector);
    if (!does_all_ &&
        (wanted == CUBLASLT_EPILOGUE_DEFAULT || !choose(preference.get(), CUBLASLT_EPILOGUE_DEFAULT, false)))
      throw Error(ErrorCode::kUnimplemented, "cuBLASLt has no algorithm for a product");
    has_vector_ = does_all_ && has_vector;
  }

  bool run(cudaStream_t stream, const Matrices& m, void* workspace) const {
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const void* const one = is_f64_ ? static_cast<const void*>(&one64) : &one32;
    const void* const none = is_f64_ ? static_cast<const void*>(&zero64) : &zero32;
    const void* const added = does_all_ ? m.added : nullptr;
    std::unique_lock<std::mutex> lock(vector_mutex_, std::defer_lock);
    if (has_vector_) {
      lock.lock();
      set_vector(m.bias != nullptr ? m.bias : m.sums);
    }
    const cublasStatus_t status =
        CublasLt::get().Matmul(handle_, operation_.get(), one, m.b, b_.get(), m.a, a_.get(),
                               added != nullptr ? one : none, added != nullptr ? added : m.c, c_.get(), m.c,
                               c_.get(), &choice_.algo, workspace, kWorkspace, stream);
    // Its heuristic has epilogues that the call does not know.
    const bool is_refused = status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_NOT_SUPPORTED;
    if (is_refused && does_all_ && epilogue_of(product_) != CUBLASLT_EPILOGUE_DEFAULT) {
      plain().run(stream, {.a = m.a, .b = m.b, .c = m.c}, workspace);
      return false;
    }
    check(status, "a product");
    return does_all_;
  }

 private:
  using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutDestroy>;

  // The product alone.
  const Plan& plain() const {
    const std::lock_guard<std::mutex> lock(plain_mutex_);
    if (plain_ == nullptr) {
      Product alone = product_;
      alone.bias = alone.relu = false;
      alone.sums = Product::Sums::kNone;
      plain_ = std::make_unique<Plan>(alone, card_);
    }
    return *plain_;
  }

  // False: there is no algorithm that does this too.
  bool choose(cublasLtMatmulPreference_t preference, cublasLtEpilogue_t epilogue, bool has_vector) {
    check(CublasLt::get().MatmulDescSetAttribute(operation_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                                 sizeof epilogue),
          "what follows a product");
    set_vector(has_vector ? any_vector() : nullptr);
    int found = 0;
    const cublasStatus_t status = CublasLt::get().MatmulAlgoGetHeuristic(
        handle_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(), preference, 1, &choice_, &found);
    // Types and layouts that have no such algorithm are answered in more than one way.
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) check(status, "the choice of an algorithm");
    if (status != CUBLAS_STATUS_SUCCESS || found == 0 || choice_.state != CUBLAS_STATUS_SUCCESS) return false;
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
    // The heuristic proposes some that a call refuses.
    cublasLtMatmulHeuristicResult_t checked{};
    return CublasLt::get().MatmulAlgoCheck(handle_, operation_.get(), b_.get(), a_.get(), c_.get(), c_.get(),
                                           &choice_.algo, &checked) == CUBLAS_STATUS_SUCCESS;
  }

  void set_vector(const void* vector) const {
    check(CublasLt::get().MatmulDescSetAttribute(operation_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector,
                                                 sizeof vector),
          "a bias");
  }

  void set_transposed(cublasLtMatmulDescAttributes_t which, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(CublasLt::get().MatmulDescSetAttribute(operation_.get(), which, &operation, sizeof operation),
          "a transposition");
  }

  static void make_layout(Layout& layout, cudaDataType_t type, std::int64_t columns, std::int64_t rows,
                          std::int64_t batch, std::int64_t step) {
    check(CublasLt::get().MatrixLayoutCreate(layout.place(), type, static_cast<std::uint64_t>(columns),
                                             static_cast<std::uint64_t>(rows), columns),
          "a layout");
    const auto count = static_cast<std::int32_t>(batch);
    check(CublasLt::get().MatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                   sizeof count),
          "the size of a batch");
    check(CublasLt::get().MatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                   &step, sizeof step),
          "the step of a batch");
  }

  Product product_;
  int card_;
  cublasLtHandle_t handle_;
  bool is_f64_;
  Owned<cublasLtMatmulDesc_t, &CublasLt::MatmulDescDestroy> operation_;
  Layout a_, b_, c_;
  cublasLtMatmulHeuristicResult_t choice_{};
  bool does_all_ = false;  // not the product alone
  bool has_vector_ = false;
  mutable std::mutex plain_mutex_;
  mutable std::unique_ptr<Plan> plain_;  // once a call was refused
  mutable std::mutex vector_mutex_;      // the operation holds the address of the vector
};

// Plans by card, made when it is first used there.
class FloatProduct::Plans {
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

FloatProduct::FloatProduct(const Product& product) : plans_(std::make_shared<Plans>(product)) {}

void FloatProduct::run(Stream& stream, const void* a, const void* b, void* c, void* room, bool add) const {
  run(stream, Matrices{.a = a, .b = b, .c = c, .added = add ? c : nullptr}, room);
}

bool FloatProduct::run(Stream& stream, const Matrices& matrices, void* room) const {
  const cudaStream_t native = lockstep::cuda::native(stream);
  auto* const begin = static_cast<std::byte*>(room);
  const std::size_t over = reinterpret_cast<std::uintptr_t>(begin) % kWorkspaceAlignment;
  void* const workspace = begin + (over == 0 ? 0 : kWorkspaceAlignment - over);
  return plans_->at(lockstep::cuda::card_of(stream)).run(native, matrices, workspace);
}

}  // namespace lockstep::internal::cuda

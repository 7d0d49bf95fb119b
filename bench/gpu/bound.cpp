// bench/gpu/bound.cpp - the products of a step by cuBLASLt, each by the fastest algorithm that it proposes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <cublasLt.h>

#include "by_hand.h"
#include "card.h"
#include "lockstep/core/error.h"
#include "models.h"
#include "participants.h"
#include "support/measure.h"

namespace lockstep::bench {

namespace {

constexpr std::size_t kWorkspace = std::size_t{64} << 20U;
constexpr int kProposals = 8, kTrials = 5;

void check_blas(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorCode::kInternal, str("cuBLASLt, ", what, ": ", cublasLtGetStatusName(status)));
}

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T object) const { static_cast<void>(destroy(object)); }
};
template <class T, cublasStatus_t (*destroy)(T)>
using Owned = std::unique_ptr<T, Destroy<T, destroy>>;
using Handle = Owned<cublasLtHandle_t, cublasLtDestroy>;
using Operation = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// c[m, n] = op(a) op(b) of row-major matrices, so many times side by side.
struct Shape3 {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  std::int64_t count = 1;
};

// Forward, weight gradient and, unless nobody asks for it, input gradient of a dense layer.
void add_layer(std::vector<Shape3>& products, std::int64_t rows, std::int64_t in, std::int64_t out,
               bool wants_input = true) {
  products.push_back({rows, out, in});
  products.push_back({in, out, rows, true, false});
  if (wants_input) products.push_back({rows, in, out, false, true});
}

std::vector<Shape3> products_of(const Case& what, std::int64_t batch) {
  std::vector<Shape3> products;
  if (what.model == "mlp") {
    for (std::size_t l = 0; l + 1 < std::size(kMlpWidths); ++l)
      add_layer(products, batch, kMlpWidths[l], kMlpWidths[l + 1], l > 0);
    return products;
  }
  const auto [sequence, width, heads, qkv, out, in, back] = kBlock;
  const std::int64_t rows = batch * sequence, part = width / heads, count = batch * heads;
  // The gradient of what enters the first layer flows into the norm before it.
  add_layer(products, rows, width, 3 * width);
  add_layer(products, rows, width, width);
  add_layer(products, rows, width, 4 * width);
  add_layer(products, rows, 4 * width, width);
  products.push_back({sequence, sequence, part, false, true, count});   // scores
  products.push_back({sequence, part, sequence, false, false, count});  // weighted values
  products.push_back({sequence, part, sequence, true, false, count});   // gradients: of the values
  products.push_back({sequence, sequence, part, false, true, count});   // of the weights
  products.push_back({sequence, part, sequence, false, false, count});  // of the queries
  products.push_back({sequence, part, sequence, true, false, count});   // of the keys
  return products;
}

// Factors and results of all products lie in the same three places, where they are most likely to be in the cache.
struct Places {
  const void* a;
  const void* b;
  void* c;
  void* workspace;
};

// cuBLASLt has matrices column by column: it computes the transpose of c, which is op(b)^T op(a)^T.
class CardProduct {
 public:
  CardProduct(cublasLtHandle_t handle, const Shape3& shape, DType dtype, const Places& places,
              const CardStream& stream)
      : handle_(handle), places_(places) {
    const cudaDataType_t type = dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtMatmulDesc_t operation = nullptr;
    check_blas(cublasLtMatmulDescCreate(
                   &operation, dtype == DType::kBF16 ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32,
                   CUDA_R_32F),
               "an operation");
    operation_.reset(operation);
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b);
    set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a);
    a_ = layout(type, shape.transpose_a ? shape.k : shape.m, shape.transpose_a ? shape.m : shape.k,
                shape.count);
    b_ = layout(type, shape.transpose_b ? shape.n : shape.k, shape.transpose_b ? shape.k : shape.n,
                shape.count);
    c_ = layout(type, shape.m, shape.n, shape.count);
    choose(stream);
  }

  void put(cudaStream_t stream) const { check_blas(try_put(algorithm_, stream), "a product"); }

 private:
  void set_transposed(cublasLtMatmulDescAttributes_t which, bool transposed) const {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_blas(cublasLtMatmulDescSetAttribute(operation_.get(), which, &operation, sizeof operation),
               "a transposition");
  }

  // Of a row-major matrix.
  static Layout layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t count) {
    cublasLtMatrixLayout_t made = nullptr;
    check_blas(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(columns),
                                          static_cast<std::uint64_t>(rows), columns),
               "a layout");
    Layout owned(made);
    const auto many = static_cast<std::int32_t>(count);
    const std::int64_t step = rows * columns;
    check_blas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &many, sizeof many),
               "a number of matrices");
    check_blas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                                sizeof step),
               "a distance of matrices");
    return owned;
  }

  cublasStatus_t try_put(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, operation_.get(), &one, places_.b, b_.get(), places_.a, a_.get(), &zero,
                          places_.c, c_.get(), places_.c, c_.get(), &algorithm, places_.workspace, kWorkspace,
                          stream);
  }

  void choose(const CardStream& stream) {
    cublasLtMatmulPreference_t made = nullptr;
    check_blas(cublasLtMatmulPreferenceCreate(&made), "a preference");
    const Preference preference(made);
    check_blas(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &kWorkspace, sizeof kWorkspace),
               "the size of the workspace");
    std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals{};
    int found = 0;
    check_blas(cublasLtMatmulAlgoGetHeuristic(handle_, operation_.get(), b_.get(), a_.get(), c_.get(),
                                              c_.get(), made, kProposals, proposals.data(), &found),
               "the choice of an algorithm");
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < found; ++i) {
      const double seconds = time(proposals[static_cast<std::size_t>(i)].algo, stream);
      if (seconds >= best) continue;
      best = seconds;
      algorithm_ = proposals[static_cast<std::size_t>(i)].algo;
    }
    if (best == std::numeric_limits<double>::infinity())
      throw Error(ErrorCode::kUnimplemented, "cuBLASLt has no algorithm for a product");
  }

  // The quickest of a few runs; infinite if it does not run.
  double time(const cublasLtMatmulAlgo_t& algorithm, const CardStream& stream) const {
    double best = std::numeric_limits<double>::infinity();
    for (int trial = 0; trial <= kTrials; ++trial) {
      const double begin = now();
      if (try_put(algorithm, stream.get()) != CUBLAS_STATUS_SUCCESS) return best;
      stream.synchronize();
      if (trial > 0) best = std::min(best, now() - begin);  // the first one loads the kernel
    }
    return best;
  }

  cublasLtHandle_t handle_;
  Places places_;
  Operation operation_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
};

class Bound final : public Participant {
 public:
  Bound(const Case& what, std::int64_t batch) {
    const std::vector<Shape3> products = products_of(what, batch);
    std::int64_t largest = 0;
    for (const Shape3& p : products)
      largest = std::max({largest, p.count * p.m * p.k, p.count * p.k * p.n, p.count * p.m * p.n});
    const auto elements = static_cast<std::size_t>(largest);
    const std::size_t bytes = elements * (what.dtype == DType::kBF16 ? 2 : 4);
    for (std::unique_ptr<CardMemory>& place : memory_) place = std::make_unique<CardMemory>(bytes);
    for (std::uint32_t i = 0; i < 2; ++i)
      launch_fill(stream_.get(), memory_[i]->data(), elements, what.dtype == DType::kBF16, i + 1);
    check(cudaGetLastError(), "the launch of a fill");
    stream_.synchronize();

    cublasLtHandle_t handle = nullptr;
    check_blas(cublasLtCreate(&handle), "a handle");
    handle_.reset(handle);
    const Places places = {memory_[0]->data(), memory_[1]->data(), memory_[2]->data(), workspace_.data()};
    std::vector<std::unique_ptr<CardProduct>> all;
    for (const Shape3& shape : products)
      all.push_back(std::make_unique<CardProduct>(handle, shape, what.dtype, places, stream_));
    step_ = std::make_unique<CapturedGraph>(stream_, [&](cudaStream_t stream) {
      for (const std::unique_ptr<CardProduct>& product : all) product->put(stream);
    });
  }

  double run(std::size_t steps) override {
    step_->run(steps);
    return 0;
  }

  std::string plan() override {
    const Copy copy;
    copy.run(4);
    std::vector<double> seconds;
    for (int trial = 0; trial < 9; ++trial) {
      constexpr std::size_t kCopies = 40;  // 20 ms
      const double begin = now();
      copy.run(kCopies);
      seconds.push_back((now() - begin) / static_cast<double>(kCopies));
    }
    return str("copy_bytes_per_second=", static_cast<std::int64_t>(Copy::bytes() / spread(seconds).median));
  }

 private:
  CardStream stream_;
  CardMemory workspace_{kWorkspace};
  std::array<std::unique_ptr<CardMemory>, 3> memory_;
  Handle handle_;
  std::unique_ptr<CapturedGraph> step_;
};

}  // namespace

std::unique_ptr<Participant> make_bound(const std::string& what, std::int64_t batch, std::size_t) {
  return std::make_unique<Bound>(parse_case(what), batch);
}

}  // namespace lockstep::bench

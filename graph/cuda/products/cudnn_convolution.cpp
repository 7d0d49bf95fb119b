// graph/cuda/products/cudnn_convolution.cpp - convolutions by cuDNN, where it is there.
//
// Images are as cuDNN's NHWC. Filters are [kh, kw, c, out] here and [out, kh, kw, c] there: they are turned before, or after.
#include "lockstep/graph/cuda/products/internal/cudnn_convolution.h"

#ifdef LOCKSTEP_CUDNN

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include <cuda_runtime_api.h>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/graph/cuda/cudnn.h"
#include "lockstep/graph/cuda/internal/cudnn.h"

namespace lockstep::internal::cuda {

namespace {

constexpr std::size_t kMostWorkspace = std::size_t{512} << 20;
constexpr std::size_t kAlignment = 256;
constexpr int kMostWays = 16;

// One for each card, made when it is first used, and used by one thread at a time.
struct Handle {
  std::mutex mutex;
  cudnnHandle_t handle = nullptr;

  static Handle& of(int card) {
    static auto* const handles = new std::array<Handle, kMostCards>{};  // NOLINT: never destroyed
    return handles->at(static_cast<std::size_t>(card));
  }
  // With the mutex held. Makes the card that of the calling thread.
  cudnnHandle_t get(int card) {
    if (const cudaError_t status = cudaSetDevice(card); status != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      throw Error(ErrorCode::kUnavailable, str("cuDNN, card ", card, ": ", cudaGetErrorString(status)));
    }
    if (handle == nullptr) check_cudnn(CudnnLibrary::get().Create(&handle), "a handle");
    return handle;
  }
};

template <class T>
class Owned {
 public:
  using Create = cudnnStatus_t (*)(T*);
  using Destroy = cudnnStatus_t (*)(T);
  Owned(Create create, Destroy destroy) : destroy_(destroy) {
    check_cudnn(create(&object_), "a description");
  }
  ~Owned() { static_cast<void>(destroy_(object_)); }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  T get() const { return object_; }

 private:
  Destroy destroy_;
  T object_ = nullptr;
};

std::optional<cudnnDataType_t> type_of(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CUDNN_DATA_HALF;
    case DType::kBF16: return CUDNN_DATA_BFLOAT16;
    case DType::kF32: return CUDNN_DATA_FLOAT;
    case DType::kF64: return CUDNN_DATA_DOUBLE;
    default: return std::nullopt;
  }
}

constexpr const char* kTurnedFilter =
    "    const long long depth = a.kh * a.kw * a.c / a.groups;\n    PUT(i, X(i % depth * a.oc + i / "
    "depth));\n";
constexpr const char* kTurnedBack =
    "    const long long depth = a.kh * a.kw * a.c / a.groups;\n    PUT(i, X(i % a.oc * depth + i / "
    "a.oc));\n";

// Ways that sum products as they are: no transforms.
bool is_plain(cudnnConvolutionFwdAlgo_t way) {
  return way == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM ||
         way == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
}
bool is_plain(cudnnConvolutionBwdDataAlgo_t way) { return way == CUDNN_CONVOLUTION_BWD_DATA_ALGO_1; }
bool is_plain(cudnnConvolutionBwdFilterAlgo_t way) { return way == CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1; }

std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

class CudnnConvolution::Plan {
 public:
  Plan(ConvolutionPart part, const Windows& windows, DType dtype, bool tf32)
      : part_(part),
        windows_(windows),
        is_f64_(dtype == DType::kF64),
        is_exact_(is_f64_ || (dtype == DType::kF32 && !tf32)),
        filter_elements_(windows.rows.size * windows.columns.size * (windows.channels / windows.groups) *
                         windows.out_channels),
        filter_bytes_(rounded(static_cast<std::size_t>(filter_elements_) * size_of(dtype))),
        turn_(window_kernel(dtype, "", part == ConvolutionPart::kFilter ? kTurnedBack : kTurnedFilter)) {
    const cudnnDataType_t type = type_of(dtype).value();
    const kernels::WindowAxis &rows = windows.rows, &columns = windows.columns;
    const auto number = [](std::int64_t value) { return static_cast<int>(value); };
    check_cudnn(cudnn_.SetTensor4dDescriptor(images_.get(), CUDNN_TENSOR_NHWC, type, number(windows.images),
                                             number(windows.channels), number(rows.in), number(columns.in)),
                "images");
    check_cudnn(
        cudnn_.SetTensor4dDescriptor(results_.get(), CUDNN_TENSOR_NHWC, type, number(windows.images),
                                     number(windows.out_channels), number(rows.out), number(columns.out)),
        "results");
    check_cudnn(cudnn_.SetFilter4dDescriptor(
                    filter_.get(), type, CUDNN_TENSOR_NHWC, number(windows.out_channels),
                    number(windows.channels / windows.groups), number(rows.size), number(columns.size)),
                "a filter");
    check_cudnn(cudnn_.SetConvolution2dDescriptor(
                    how_.get(), number(rows.before), number(columns.before), number(rows.stride),
                    number(columns.stride), number(rows.dilation), number(columns.dilation),
                    CUDNN_CROSS_CORRELATION, is_f64_ ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
                "a convolution");
    const cudnnMathType_t math = is_exact_              ? CUDNN_FMA_MATH
                                 : dtype == DType::kF32 ? CUDNN_DEFAULT_MATH
                                                        : CUDNN_TENSOR_OP_MATH;
    check_cudnn(cudnn_.SetConvolutionMathType(how_.get(), math), "its arithmetic");
    check_cudnn(cudnn_.SetConvolutionGroupCount(how_.get(), number(windows.groups)), "its groups");
  }

  // Does it compute what cuDNN would make of it? Padding behind the last element is not the same as in front.
  bool fits() const {
    std::array<int, 4> extents{};
    if (cudnn_.GetConvolution2dForwardOutputDim(how_.get(), images_.get(), filter_.get(), extents.data(),
                                                &extents[1], &extents[2],
                                                &extents[3]) != CUDNN_STATUS_SUCCESS)
      return false;
    return extents[2] == windows_.rows.out && extents[3] == windows_.columns.out;
  }

  bool choose(int card) {
    Handle& handle = Handle::of(card);
    const std::lock_guard<std::mutex> lock(handle.mutex);
    const cudnnHandle_t own = handle.get(card);
    std::size_t bytes = 0;  // of the workspace
    switch (part_) {
      case ConvolutionPart::kResult:
        return choose_of<cudnnConvolutionFwdAlgoPerf_t>(
            way_forward_, bytes,
            [&](int* count, auto* ways) {
              return cudnn_.GetConvolutionForwardAlgorithm_v7(own, images_.get(), filter_.get(), how_.get(),
                                                              results_.get(), kMostWays, count, ways);
            },
            [&](auto way) {
              return cudnn_.GetConvolutionForwardWorkspaceSize(own, images_.get(), filter_.get(), how_.get(),
                                                               results_.get(), way, &bytes);
            });
      case ConvolutionPart::kImages:
        return choose_of<cudnnConvolutionBwdDataAlgoPerf_t>(
            way_images_, bytes,
            [&](int* count, auto* ways) {
              return cudnn_.GetConvolutionBackwardDataAlgorithm_v7(
                  own, filter_.get(), results_.get(), how_.get(), images_.get(), kMostWays, count, ways);
            },
            [&](auto way) {
              return cudnn_.GetConvolutionBackwardDataWorkspaceSize(own, filter_.get(), results_.get(),
                                                                    how_.get(), images_.get(), way, &bytes);
            });
      case ConvolutionPart::kFilter:
        return choose_of<cudnnConvolutionBwdFilterAlgoPerf_t>(
            way_filter_, bytes,
            [&](int* count, auto* ways) {
              return cudnn_.GetConvolutionBackwardFilterAlgorithm_v7(
                  own, images_.get(), results_.get(), how_.get(), filter_.get(), kMostWays, count, ways);
            },
            [&](auto way) {
              return cudnn_.GetConvolutionBackwardFilterWorkspaceSize(own, images_.get(), results_.get(),
                                                                      how_.get(), filter_.get(), way, &bytes);
            });
    }
    return false;
  }

  std::size_t room() const { return kAlignment + filter_bytes_ + workspace_; }

  void run(Stream& stream, const void* first, const void* second, void* out, void* room) const {
    auto* const begin = static_cast<std::byte*>(room);
    const std::size_t over = reinterpret_cast<std::uintptr_t>(begin) % kAlignment;
    std::byte* const filter = begin + (over == 0 ? 0 : kAlignment - over);
    std::byte* const workspace = filter + filter_bytes_;
    if (part_ != ConvolutionPart::kFilter)
      launch(turn_, stream, windows_, second, nullptr, filter, filter_elements_);
    put(stream, first, second, out, filter, workspace);
    if (part_ == ConvolutionPart::kFilter)
      launch(turn_, stream, windows_, filter, nullptr, out, filter_elements_);
  }

 private:
  // The first way that will do, as it is with the arithmetic that it was meant for: its workspace is that of the final
  // description, which may be another than the heuristic says.
  template <class Way, class Chosen, class Ask, class Size>
  bool choose_of(Chosen& chosen, const std::size_t& bytes, const Ask& ask, const Size& size) {
    std::array<Way, kMostWays> ways{};
    int count = 0;
    if (ask(&count, ways.data()) != CUDNN_STATUS_SUCCESS) return false;
    for (const Way& way : std::span(ways).first(static_cast<std::size_t>(count))) {
      if (way.status != CUDNN_STATUS_SUCCESS || way.determinism != CUDNN_DETERMINISTIC ||
          !is_plain(way.algo) || !allows(way.mathType))
        continue;
      check_cudnn(cudnn_.SetConvolutionMathType(how_.get(), is_exact_ ? CUDNN_FMA_MATH : way.mathType),
                  "its arithmetic");
      if (size(way.algo) != CUDNN_STATUS_SUCCESS || bytes > kMostWorkspace) continue;
      chosen = way.algo;
      workspace_ = rounded(bytes);
      return true;
    }
    return false;
  }

  // Conversion would round factors to 16 bits.
  bool allows(cudnnMathType_t math) const {
    if (math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) return false;
    return !is_exact_ || math != CUDNN_TENSOR_OP_MATH;
  }

  void put(Stream& stream, const void* first, const void* second, void* out, void* filter,
           void* workspace) const {
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    const void* const one = is_f64_ ? static_cast<const void*>(&one64) : &one32;
    const void* const zero = is_f64_ ? static_cast<const void*>(&zero64) : &zero32;
    const int card = lockstep::cuda::card_of(stream);
    const cudaStream_t native = lockstep::cuda::native(stream);
    Handle& handle = Handle::of(card);
    const std::lock_guard<std::mutex> lock(handle.mutex);
    const cudnnHandle_t own = handle.get(card);
    check_cudnn(cudnn_.SetStream(own, native), "its stream");
    switch (part_) {
      case ConvolutionPart::kResult:
        check_cudnn(
            cudnn_.ConvolutionForward(own, one, images_.get(), first, filter_.get(), filter, how_.get(),
                                      way_forward_, workspace, workspace_, zero, results_.get(), out),
            "a convolution");
        return;
      case ConvolutionPart::kImages:
        check_cudnn(
            cudnn_.ConvolutionBackwardData(own, one, filter_.get(), filter, results_.get(), first, how_.get(),
                                           way_images_, workspace, workspace_, zero, images_.get(), out),
            "the gradient of images");
        return;
      case ConvolutionPart::kFilter:
        check_cudnn(cudnn_.ConvolutionBackwardFilter(own, one, images_.get(), first, results_.get(), second,
                                                     how_.get(), way_filter_, workspace, workspace_, zero,
                                                     filter_.get(), filter),
                    "the gradient of a filter");
        return;
    }
  }

  const CudnnLibrary& cudnn_ = CudnnLibrary::get();
  const ConvolutionPart part_;
  const Windows windows_;
  const bool is_f64_;
  const bool is_exact_;  // factors are not rounded
  const std::int64_t filter_elements_;
  const std::size_t filter_bytes_;
  const JitKernel turn_;
  Owned<cudnnTensorDescriptor_t> images_{cudnn_.CreateTensorDescriptor, cudnn_.DestroyTensorDescriptor};
  Owned<cudnnTensorDescriptor_t> results_{cudnn_.CreateTensorDescriptor, cudnn_.DestroyTensorDescriptor};
  Owned<cudnnFilterDescriptor_t> filter_{cudnn_.CreateFilterDescriptor, cudnn_.DestroyFilterDescriptor};
  Owned<cudnnConvolutionDescriptor_t> how_{cudnn_.CreateConvolutionDescriptor,
                                           cudnn_.DestroyConvolutionDescriptor};
  cudnnConvolutionFwdAlgo_t way_forward_{};
  cudnnConvolutionBwdDataAlgo_t way_images_{};
  cudnnConvolutionBwdFilterAlgo_t way_filter_{};
  std::size_t workspace_ = 0;
};

// What was chosen, as long as somebody holds it, and for good what was left to others: a node's kernel and its room, which are
// asked for apart, are of one plan, whatever the heuristic says the second time.
class CudnnConvolution::Plans {
 public:
  static Plans& get() {
    static auto* const plans = new Plans;  // NOLINT: never destroyed
    return *plans;
  }

  std::shared_ptr<const Plan> find(ConvolutionPart part, const Windows& windows, DType dtype, bool tf32,
                                   int card) {
    const kernels::WindowAxis &rows = windows.rows, &columns = windows.columns;
    const Key key = {static_cast<std::int64_t>(part),
                     static_cast<std::int64_t>(dtype),
                     static_cast<std::int64_t>(tf32),
                     card,
                     windows.images,
                     windows.channels,
                     windows.out_channels,
                     windows.groups,
                     rows.in,
                     rows.out,
                     rows.size,
                     rows.stride,
                     rows.dilation,
                     rows.before,
                     columns.in,
                     columns.out,
                     columns.size,
                     columns.stride,
                     columns.dilation,
                     columns.before};
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto known = by_key_.find(key); known != by_key_.end()) {
      if (!known->second.is_plan) return nullptr;
      if (auto plan = known->second.plan.lock()) return plan;
    }
    std::shared_ptr<const Plan> plan = make(part, windows, dtype, tf32, card);
    if (by_key_.size() >= most_) forget();
    by_key_[key] = {plan != nullptr, plan};
    return plan;
  }

 private:
  using Key = std::array<std::int64_t, 20>;
  struct Entry {
    bool is_plan;
    std::weak_ptr<const Plan> plan;
  };

  static std::shared_ptr<const Plan> make(ConvolutionPart part, const Windows& windows, DType dtype,
                                          bool tf32, int card) {
    try {
      auto plan = std::make_shared<Plan>(part, windows, dtype, tf32);
      if (plan->fits() && plan->choose(card)) return plan;
    } catch (
        const Error&) {  // it is there and does not work, as beside another driver or with no memory left
    }
    return nullptr;
  }

  void forget() {
    std::erase_if(by_key_,
                  [](const auto& known) { return known.second.is_plan && known.second.plan.expired(); });
    most_ = std::max(kFew, 2 * by_key_.size());
  }

  static constexpr std::size_t kFew = 64;
  std::mutex mutex_;
  std::map<Key, Entry> by_key_;
  std::size_t most_ = kFew;  // entries, after which those of no plan that is held are looked for
};

std::optional<CudnnConvolution> CudnnConvolution::find(ConvolutionPart part, const Windows& windows,
                                                       DType dtype, bool tf32, int card) {
  if (card < 0 || card >= static_cast<int>(kMostCards) || !type_of(dtype) || !has_cudnn())
    return std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;  // elements of what it counts in int
  const kernels::WindowAxis &rows = windows.rows, &columns = windows.columns;
  const std::int64_t in = windows.images * rows.in * columns.in * windows.channels;
  const std::int64_t out = windows.images * rows.out * columns.out * windows.out_channels;
  if (in == 0 || out == 0 || in >= kMost || out >= kMost || rows.size * columns.size == 0)
    return std::nullopt;
  // Of 16 bits it fills channels up to eights first, which costs more than it saves.
  const bool in_eights = windows.channels % 8 == 0 && windows.out_channels % 8 == 0;
  if (size_of(dtype) == 2 && !in_eights) return std::nullopt;
  const std::shared_ptr<const Plan> plan = Plans::get().find(part, windows, dtype, tf32, card);
  return plan == nullptr ? std::nullopt : std::optional(CudnnConvolution(plan));
}

std::size_t CudnnConvolution::room() const { return plan_->room(); }

void CudnnConvolution::run(Stream& stream, const void* first, const void* second, void* out,
                           void* room) const {
  plan_->run(stream, first, second, out, room);
}

}  // namespace lockstep::internal::cuda

#else

namespace lockstep::internal::cuda {

class CudnnConvolution::Plan {};

std::optional<CudnnConvolution> CudnnConvolution::find(ConvolutionPart /*part*/, const Windows& /*windows*/,
                                                       DType /*dtype*/, bool /*tf32*/, int /*card*/) {
  return std::nullopt;
}

std::size_t CudnnConvolution::room() const { return 0; }

void CudnnConvolution::run(Stream& /*stream*/, const void* /*first*/, const void* /*second*/, void* /*out*/,
                           void* /*room*/) const {}

}  // namespace lockstep::internal::cuda

#endif

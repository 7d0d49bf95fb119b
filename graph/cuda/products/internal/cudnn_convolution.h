// graph/cuda/products/internal/cudnn_convolution.h - convolutions by cuDNN, where it is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/core/compute_device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/graph/cuda/products/internal/windows.h"

namespace lockstep::internal::cuda {

// What is computed of a convolution.
enum class ConvolutionPart : std::uint8_t { kResult, kImages, kFilter };

// How cuDNN computes it is chosen by its heuristic, from the shapes and the card, among the ways that give the same bits each time
// and add no more error than a sum of products. It is the same one for equal questions, as long as anybody holds it. Copies are the
// same convolution. Thread safety: any thread.
class CudnnConvolution {
 public:
  // For streams of this card (NodeView::card). None: cuDNN is not there, does not work, or has no such way.
  static std::optional<CudnnConvolution> find(ConvolutionPart part, const Windows& windows, DType dtype,
                                              bool tf32, int card);
  // Is it a copy of the other?
  bool is(const CudnnConvolution& other) const { return plan_ == other.plan_; }
  // Memory of the card that a call needs besides its arguments.
  std::size_t room() const;
  // Of a result: images and filter. Of the images' gradient: what flows back, and the filter. Of the filter's: the images, and
  // what flows back.
  void run(Stream& stream, const void* first, const void* second, void* out, void* room) const;

 private:
  class Plan;
  class Plans;
  explicit CudnnConvolution(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}
  std::shared_ptr<const Plan> plan_;
};

}  // namespace lockstep::internal::cuda

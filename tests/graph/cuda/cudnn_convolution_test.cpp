// Tests: graph/cuda/products/cudnn_convolution.cpp
// What is not left to cuDNN, on machines without a card too; tests/gpu/cudnn_test.cpp has the rest.
#include "lockstep/graph/cuda/products/internal/cudnn_convolution.h"

#include <gtest/gtest.h>

#include "lockstep/graph/cuda/internal/jit.h"

namespace lockstep::internal::cuda {
namespace {

TEST(CudnnConvolutions, AreNoneOnCardsThatAreNotThere) {
  const kernels::WindowAxis axis{.in = 14, .out = 14, .size = 3, .stride = 1, .dilation = 1, .before = 1};
  const Windows windows{.images = 8, .rows = axis, .columns = axis, .channels = 32, .out_channels = 64};
  const int most = static_cast<int>(kMostCards);
  for (const ConvolutionPart part :
       {ConvolutionPart::kResult, ConvolutionPart::kImages, ConvolutionPart::kFilter}) {
    for (const int card : {-1, most - 1, most})
      EXPECT_FALSE(CudnnConvolution::find(part, windows, DType::kF32, false, card)) << "card " << card;
  }
}

}  // namespace
}  // namespace lockstep::internal::cuda

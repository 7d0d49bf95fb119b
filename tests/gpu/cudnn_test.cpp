// Tests: graph/cuda/cudnn.cpp, graph/cuda/products/cudnn_convolution.cpp
// What cuDNN is asked for; that results are right is tested with all other convolutions (tests/graph/ops).
#include "lockstep/graph/cuda/cudnn.h"

#include <gtest/gtest.h>

#include "lockstep/graph/cuda/products/internal/cudnn_convolution.h"
#include "support/on_card.h"

namespace lockstep::internal::cuda {
namespace {

constexpr ConvolutionPart kParts[] = {ConvolutionPart::kResult, ConvolutionPart::kImages,
                                      ConvolutionPart::kFilter};

class Cudnn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!lockstep::testing::has_card()) GTEST_SKIP() << "this machine has no card";
    if (const Decision found = has_cudnn(); !found) GTEST_SKIP() << found.reason();
  }

  // 3 x 3, as many results as images have elements.
  static Windows windows() {
    const kernels::WindowAxis axis{.in = 14, .out = 14, .size = 3, .stride = 1, .dilation = 1, .before = 1};
    return {.images = 8, .rows = axis, .columns = axis, .channels = 32, .out_channels = 64};
  }
};

TEST_F(Cudnn, ConvolvesWhatCountsMost) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const ConvolutionPart part : kParts) {
      for (const bool tf32 : {false, true})
        EXPECT_TRUE(CudnnConvolution::find(part, windows(), dtype, tf32, 0))
            << dtype << ", part " << static_cast<int>(part);
    }
  }
}

TEST_F(Cudnn, AnswersEqualQuestionsAlike) {
  for (const ConvolutionPart part : kParts) {
    const auto first = CudnnConvolution::find(part, windows(), DType::kF32, true, 0),
               second = CudnnConvolution::find(part, windows(), DType::kF32, true, 0);
    ASSERT_TRUE(first && second);
    EXPECT_TRUE(first->is(*second));
    const auto exact = CudnnConvolution::find(part, windows(), DType::kF32, false, 0);
    ASSERT_TRUE(exact);
    EXPECT_FALSE(first->is(*exact));
  }
}

TEST_F(Cudnn, LeavesOthersAlone) {
  Windows behind = windows();  // padding behind the last row alone
  behind.rows.before = 0;
  Windows nothing = windows();
  nothing.images = 0;
  Windows odd = windows();
  odd.channels = 31;
  for (const ConvolutionPart part : kParts) {
    EXPECT_FALSE(CudnnConvolution::find(part, odd, DType::kF16, false, 0));
    EXPECT_FALSE(CudnnConvolution::find(part, behind, DType::kF32, false, 0));
    EXPECT_FALSE(CudnnConvolution::find(part, nothing, DType::kF32, false, 0));
    for (const DType dtype : {DType::kI32, DType::kI64, DType::kU8, DType::kBool})
      EXPECT_FALSE(CudnnConvolution::find(part, windows(), dtype, false, 0)) << dtype;
  }
}

}  // namespace
}  // namespace lockstep::internal::cuda

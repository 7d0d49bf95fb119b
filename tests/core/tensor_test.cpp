// Tests: core/tensor.cpp
#include "lockstep/core/tensor.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor counting(const Shape& shape) {
  Tensor result = Tensor::empty(DType::kF32, shape);
  std::iota(result.data<float>().begin(), result.data<float>().end(), 0.F);
  return result;
}

template <class F>
std::string message_of(F call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Tensor, DefaultHoldsNothing) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.use_count(), 0);
  EXPECT_FALSE(none.shares_memory_with(none));
  EXPECT_THROW(none.data<float>(), FailedPrecondition);
  EXPECT_THROW(none.item(), FailedPrecondition);
  EXPECT_THROW(none.slice(0, 0), FailedPrecondition);
  EXPECT_THROW(none.reshape({1}), FailedPrecondition);
  EXPECT_FALSE(none.clone().defined());
  EXPECT_TRUE(none.bit_equal(Tensor()));
  EXPECT_FALSE(none.bit_equal(Tensor::scalar(0.F)));
  EXPECT_EQ(str(none), "(no tensor)");
}

TEST(Tensor, IsAlignedForEveryDTypeAndSize) {
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t n : {0, 1, 3, 1000}) {
      const Tensor tensor = Tensor::empty(dtype, {n});
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 64, 0U);
      EXPECT_EQ(tensor.num_bytes(), static_cast<std::size_t>(n) * size_of(dtype));
    }
  }
}

TEST(Tensor, OfNoElementsIsDefined) {
  const Tensor tensor = Tensor::empty(DType::kF32, {3, 0});
  EXPECT_TRUE(tensor.defined());
  EXPECT_EQ(tensor.num_elements(), 0);
  EXPECT_TRUE(tensor.data<float>().empty());
  EXPECT_TRUE(tensor.clone().bit_equal(tensor));
  EXPECT_EQ(tensor.slice(1, 3).shape(), (Shape{2, 0}));
  EXPECT_EQ(tensor.reshape({0, 7}).num_elements(), 0);
}

TEST(Tensor, NeedsAKnownShape) { EXPECT_THROW(Tensor::empty(DType::kF32, {kUnknown}), FailedPrecondition); }

TEST(Tensor, ZerosAreZeroInEveryDType) {
  for (const DType dtype : kAllDTypes) {
    const Tensor tensor = Tensor::zeros(dtype, {3, 5});
    const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
    for (std::size_t i = 0; i < tensor.num_bytes(); ++i) ASSERT_EQ(bytes[i], 0) << dtype;
  }
  EXPECT_EQ(Tensor::zeros({2}).dtype(), DType::kF32);
}

TEST(Tensor, FullConvertsItsValue) {
  for (const DType dtype : kAllDTypes) {
    EXPECT_EQ(Tensor::full(dtype, {1}, 1.0).item(), 1.0) << dtype;
    EXPECT_EQ(Tensor::full(dtype, {}, 0.0).item(), 0.0) << dtype;
  }
  EXPECT_EQ(Tensor::full(DType::kI32, {}, -2.9).item(), -2.0);
  EXPECT_EQ(Tensor::full(DType::kU8, {}, 255.5).item(), 255.0);
  EXPECT_EQ(Tensor::full(DType::kU8, {}, -0.5).item(), 0.0);
  EXPECT_EQ(Tensor::full(DType::kBool, {}, 0.25).item(), 1.0);
  EXPECT_EQ(Tensor::full(DType::kF16, {}, 2049.0).item(), 2048.0);
  EXPECT_EQ(Tensor::full(DType::kI64, {}, -0x1p63).item(), -0x1p63);
  EXPECT_THAT(Tensor::full(DType::kI32, {3}, 7).data<std::int32_t>(), ElementsAre(7, 7, 7));
}

TEST(Tensor, FullRefusesWhatAnIntegerCannotHold) {
  EXPECT_THROW(Tensor::full(DType::kU8, {}, 256), InvalidArgument);
  EXPECT_THROW(Tensor::full(DType::kU8, {}, -1), InvalidArgument);
  EXPECT_THROW(Tensor::full(DType::kI32, {}, 0x1p31), InvalidArgument);
  EXPECT_THROW(Tensor::full(DType::kI64, {}, 0x1p63), InvalidArgument);
  EXPECT_THROW(Tensor::full(DType::kI64, {}, NAN), InvalidArgument);
  EXPECT_THROW(Tensor::full(DType::kI32, {}, INFINITY), InvalidArgument);
}

TEST(Tensor, FromCopiesItsValues) {
  std::vector<float> values = {1, 2, 3, 4};
  const Tensor tensor = Tensor::from({2, 2}, std::span<const float>(values));
  values[0] = 9;
  EXPECT_THAT(tensor.data<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(tensor.spec(), (TensorSpec{DType::kF32, {2, 2}}));
  EXPECT_THAT(Tensor::from({2}, {true, false}).data<bool>(), ElementsAre(true, false));
}

TEST(Tensor, FromNeedsAsManyValuesAsTheShapeHas) {
  EXPECT_THROW(Tensor::from({2, 2}, {1.F, 2.F, 3.F}), InvalidArgument);
  EXPECT_THAT(message_of([] {
                Tensor::from({2, 2}, {1.F, 2.F, 3.F});
              }),
              HasSubstr("f32[2,2] needs 4 values, got 3"));
}

TEST(Tensor, DataIsOfItsDTypeOnly) {
  Tensor tensor = Tensor::zeros({2});
  EXPECT_THROW(tensor.data<double>(), InvalidArgument);
  EXPECT_THROW(std::as_const(tensor).data<std::int32_t>(), InvalidArgument);
  EXPECT_THAT(message_of([&] { tensor.data<double>(); }),
              HasSubstr("asked for elements of f64, but the tensor is f32[2]"));
}

TEST(Tensor, ItemIsTheOnlyElement) {
  EXPECT_EQ(Tensor::scalar(std::int64_t{-5}).item(), -5.0);
  EXPECT_EQ(Tensor::scalar(F16(1.5F)).item(), 1.5);
  EXPECT_EQ(Tensor::scalar(BF16(1.5F)).item(), 1.5);
  EXPECT_EQ(Tensor::scalar(true).item(), 1.0);
  EXPECT_EQ(Tensor::from({1, 1}, {3.0}).item(), 3.0);
  EXPECT_THROW(Tensor::zeros({2}).item(), InvalidArgument);
  EXPECT_THROW(Tensor::zeros({0}).item(), InvalidArgument);
}

TEST(Tensor, CopiesShareAndClonesDoNot) {
  Tensor tensor = counting({3});
  Tensor copy = tensor;
  const Tensor clone = tensor.clone();
  copy.data<float>()[0] = 42;
  EXPECT_EQ(tensor.data<float>()[0], 42.F);
  EXPECT_EQ(clone.data<float>()[0], 0.F);
  EXPECT_TRUE(tensor.shares_memory_with(copy));
  EXPECT_FALSE(tensor.shares_memory_with(clone));
  EXPECT_EQ(tensor.use_count(), 2);
}

TEST(Tensor, SlicesShareMemory) {
  Tensor tensor = counting({4, 2});
  Tensor rows = tensor.slice(1, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 2}));
  EXPECT_THAT(rows.data<float>(), ElementsAre(2, 3, 4, 5));
  rows.data<float>()[0] = -1;
  EXPECT_EQ(tensor.data<float>()[2], -1.F);
  EXPECT_TRUE(rows.shares_memory_with(tensor));
}

TEST(Tensor, SlicesOfSlicesCountFromTheSlice) {
  const Tensor tensor = counting({6, 2});
  EXPECT_THAT(tensor.slice(1, 5).slice(2, 4).data<float>(), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(tensor.slice(1, 5).slice(2, 4).slice(1, 2).reshape({2, 1}).data<float>(), ElementsAre(8, 9));
  EXPECT_EQ(tensor.slice(6, 6).num_elements(), 0);
  EXPECT_THROW(tensor.slice(1, 5).slice(3, 5), InvalidArgument);
}

TEST(Tensor, SlicesKeepTheDataAlive) {
  Tensor row;
  {
    const Tensor tensor = counting({4, 2});
    row = tensor.slice(3, 4);
  }
  EXPECT_THAT(row.data<float>(), ElementsAre(6, 7));
  EXPECT_EQ(row.use_count(), 1);
}

TEST(Tensor, SliceRefusesRowsThatAreNotThere) {
  const Tensor tensor = counting({4, 2});
  EXPECT_THROW(tensor.slice(-1, 2), InvalidArgument);
  EXPECT_THROW(tensor.slice(3, 2), InvalidArgument);
  EXPECT_THROW(tensor.slice(0, 5), InvalidArgument);
  EXPECT_THROW(Tensor::scalar(1.F).slice(0, 1), InvalidArgument);
  EXPECT_THAT(message_of([&] { tensor.slice(0, 5); }),
              HasSubstr("rows [0, 5) of f32[4,2]: expected 0 <= begin <= end <= 4"));
}

TEST(Tensor, ReshapeKeepsElementsAndMemory) {
  const Tensor tensor = counting({2, 3});
  const Tensor other = tensor.reshape({3, 1, 2});
  EXPECT_TRUE(other.shares_memory_with(tensor));
  EXPECT_EQ(other.raw(), tensor.raw());
  EXPECT_THROW(tensor.reshape({4}), InvalidArgument);
  EXPECT_THROW(tensor.reshape({kUnknown, 3}), InvalidArgument);
  EXPECT_THAT(message_of([&] { tensor.reshape({4}); }), HasSubstr("f32[2,3] has 6 elements, [4] has 4"));
}

TEST(Tensor, AssignCopiesIntoTheSameMemory) {
  Tensor target = Tensor::zeros({2, 2});
  const void* before = target.raw();
  target.assign(counting({2, 2}));
  EXPECT_EQ(target.raw(), before);
  EXPECT_THAT(target.data<float>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THROW(target.assign(counting({4})), InvalidArgument);
  EXPECT_THROW(target.assign(Tensor::zeros(DType::kF64, {2, 2})), InvalidArgument);
  EXPECT_THROW(target.assign(Tensor()), FailedPrecondition);
}

TEST(Tensor, AssignWorksBetweenSlicesThatOverlap) {
  Tensor tensor = counting({5});
  Tensor target = tensor.slice(1, 5);
  target.assign(tensor.slice(0, 4));
  EXPECT_THAT(tensor.data<float>(), ElementsAre(0, 0, 1, 2, 3));
}

TEST(Tensor, BitEqualComparesSpecAndBytes) {
  const Tensor tensor = Tensor::from({2}, {0.F, NAN});
  EXPECT_TRUE(tensor.bit_equal(tensor.clone())) << "NaN has equal bits";
  EXPECT_FALSE(tensor.bit_equal(Tensor::from({2}, {-0.F, NAN})));
  EXPECT_FALSE(tensor.bit_equal(tensor.reshape({2, 1})));
  EXPECT_FALSE(Tensor::zeros(DType::kF32, {2}).bit_equal(Tensor::zeros(DType::kI32, {2})));
}

TEST(Tensor, TakesItsMemoryFromThePoolAndGivesItBack) {
  const auto pool = std::make_shared<MemoryPool>();
  {
    const Tensor tensor = Tensor::empty(DType::kF64, {10}, pool);
    EXPECT_EQ(pool->stats().live_bytes, 80);
    const Tensor part = tensor.slice(2, 4);
    EXPECT_EQ(pool->stats().live_bytes, 80);
  }
  EXPECT_EQ(pool->stats().live_bytes, 0);
  EXPECT_THROW(Tensor::empty(DType::kF32, {1}, nullptr), InvalidArgument);
}

TEST(Tensor, KeepsItsPoolAlive) {
  auto pool = std::make_shared<MemoryPool>();
  const std::weak_ptr<MemoryPool> watch = pool;
  Tensor tensor = Tensor::empty(DType::kF32, {10}, std::move(pool));
  EXPECT_FALSE(watch.expired());
  tensor = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(TensorView, UsesTheCallersMemory) {
  std::vector<float> memory = {1, 2, 3};
  Tensor view = Tensor::view(DType::kF32, {3}, memory.data());
  EXPECT_EQ(view.raw(), memory.data());
  view.data<float>()[1] = 7;
  EXPECT_EQ(memory[1], 7.F);
}

TEST(TensorView, ReleasesOnceWithTheLastHandle) {
  std::vector<float> memory(4);
  int released = 0;
  Tensor view = Tensor::view(DType::kF32, {4}, memory.data(), [&] { ++released; });
  Tensor part = view.slice(1, 2);
  view = Tensor();
  EXPECT_EQ(released, 0);
  std::thread([last = std::move(part)]() mutable { last = Tensor(); }).join();
  part = Tensor();
  EXPECT_EQ(released, 1);
}

TEST(TensorView, DoesNotReleaseWhatItRefuses) {
  int released = 0;
  const auto release = [&released] { ++released; };
  alignas(8) std::byte memory[16] = {};
  EXPECT_THROW(Tensor::view(DType::kF32, {kUnknown}, memory, release), FailedPrecondition);
  EXPECT_THROW(Tensor::view(DType::kF32, {2}, nullptr, release), InvalidArgument);
  EXPECT_THROW(Tensor::view(DType::kF32, {2}, memory + 1, release), InvalidArgument);
  EXPECT_EQ(released, 0);
}

TEST(TensorView, OfNothingIsDefinedAndReleased) {
  int released = 0;
  {
    const Tensor view = Tensor::view(DType::kF32, {0}, nullptr, [&] { ++released; });
    EXPECT_TRUE(view.defined());
    EXPECT_TRUE(view.bit_equal(Tensor::zeros({0})));
    EXPECT_EQ(view.slice(0, 0).raw(), nullptr);
  }
  EXPECT_EQ(released, 1);
}

TEST(Tensor, PrintsSpecAndContents) {
  EXPECT_EQ(str(Tensor::from({2, 2}, {1.F, 2.F, 3.F, 4.5F})), "f32[2,2] {1, 2, 3, 4.5}");
  EXPECT_EQ(str(Tensor::scalar(std::uint8_t{65})), "u8[] {65}");
  EXPECT_EQ(str(Tensor::from({2}, {true, false})), "bool[2] {true, false}");
  EXPECT_EQ(str(Tensor::scalar(BF16(0.5F))), "bf16[] {0.5}");
  EXPECT_EQ(str(Tensor::zeros({0})), "f32[0] {}");
  EXPECT_THAT(str(Tensor::zeros({100})), ::testing::EndsWith("0, ...}"));
}

}  // namespace
}  // namespace lockstep

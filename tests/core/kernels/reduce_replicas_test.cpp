// Tests: core/kernels/reduce_replicas.cpp
#include "lockstep/core/kernels/reduce_replicas.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random_tensors.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;

// One element, in the words of the header.
template <class T>
T reduced(ReplicaReduce op, const std::vector<T>& values) {
  if constexpr (std::is_integral_v<T>) {
    auto total = static_cast<std::uint64_t>(values[0]);
    for (std::size_t i = 1; i < values.size(); ++i) {
      const auto x = static_cast<std::uint64_t>(values[i]);
      switch (op) {
        case ReplicaReduce::kProd: total *= x; break;
        case ReplicaReduce::kMin: total = values[i] < static_cast<T>(total) ? x : total; break;
        case ReplicaReduce::kMax: total = values[i] > static_cast<T>(total) ? x : total; break;
        default: total += x; break;
      }
    }
    return static_cast<T>(total);
  } else {
    using W = std::conditional_t<std::is_same_v<T, double>, double, float>;
    W total = static_cast<W>(values[0]);
    for (std::size_t i = 1; i < values.size(); ++i) {
      const W x = static_cast<W>(values[i]);
      switch (op) {
        case ReplicaReduce::kProd: total = total * x; break;
        case ReplicaReduce::kMin: total = x < total ? x : total; break;
        case ReplicaReduce::kMax: total = x > total ? x : total; break;
        default: total = total + x; break;
      }
    }
    if (op == ReplicaReduce::kMean) total = total / static_cast<W>(values.size());
    return static_cast<T>(total);
  }
}

struct Arrays {
  Arrays(DType dtype, std::size_t count, std::int64_t elements, Dice& dice) {
    for (std::size_t i = 0; i < count; ++i) tensors.push_back(random_tensor(dtype, {elements}, dice));
  }
  std::vector<const void*> read() const {
    std::vector<const void*> all;
    for (const Tensor& t : tensors) all.push_back(t.raw());
    return all;
  }
  std::vector<void*> write() {
    std::vector<void*> all;
    for (Tensor& t : tensors) all.push_back(t.raw());
    return all;
  }
  std::vector<Tensor> tensors;
};

Tensor expected(ReplicaReduce op, const Arrays& in) {
  Tensor out = Tensor::empty(in.tensors[0].dtype(), in.tensors[0].shape());
  visit_dtype(out.dtype(), [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, bool>) {
      for (std::int64_t i = 0; i < out.num_elements(); ++i) {
        std::vector<T> values;
        for (const Tensor& t : in.tensors) values.push_back(t.data<T>()[static_cast<std::size_t>(i)]);
        out.data<T>()[static_cast<std::size_t>(i)] = reduced(op, values);
      }
    }
  });
  return out;
}

class ReduceReplicas : public ::testing::TestWithParam<DType> {};

TEST_P(ReduceReplicas, EqualsTheElementsOneByOneToTheBit) {
  const DType dtype = GetParam();
  Dice dice(1);
  for (const ReplicaReduce op : kAllReplicaReduces) {
    if (!can_reduce(op, dtype)) continue;
    for (const std::size_t inputs : {1U, 2U, 3U, 4U, 5U, 8U}) {
      for (const std::int64_t elements : {1, 3, 15, 64, 65, 1031}) {
        Arrays in(dtype, inputs, elements, dice);
        Tensor out = Tensor::full(dtype, {elements}, 7);
        reduce_replicas(op, dtype, in.read(), out.raw(), 0, elements);
        EXPECT_TRUE(out.bit_equal(expected(op, in)))
            << to_string(op) << ' ' << dtype << ' ' << inputs << " inputs of " << elements;
      }
    }
  }
}

TEST_P(ReduceReplicas, BitsDoNotDependOnTheCuts) {
  const DType dtype = GetParam();
  constexpr std::int64_t kElements = 2000;
  Dice dice(2);
  for (const std::size_t inputs : {2U, 7U}) {
    Arrays in(dtype, inputs, kElements, dice);
    Tensor whole = Tensor::full(dtype, {kElements}, 7);
    reduce_replicas(ReplicaReduce::kSum, dtype, in.read(), whole.raw(), 0, kElements);
    for (int trial = 0; trial < 5; ++trial) {
      Tensor out = Tensor::full(dtype, {kElements}, 7);
      const std::vector<std::int64_t> cuts = random_cuts(kElements, dice);
      for (std::size_t i = 1; i < cuts.size(); ++i)
        reduce_replicas(ReplicaReduce::kSum, dtype, in.read(), out.raw(), cuts[i - 1], cuts[i]);
      EXPECT_TRUE(out.bit_equal(whole));
    }
  }
}

// Far into long arrays another loop runs than at their beginning.
TEST_P(ReduceReplicas, BitsDoNotDependOnTheLength) {
  const DType dtype = GetParam();
  constexpr std::int64_t kElements = 1'200'001, kLast = 1003;
  Dice dice(6);
  for (const std::size_t inputs : {2U, 4U, 8U}) {
    const Arrays few(dtype, inputs, kLast, dice);
    std::vector<Tensor> many;
    std::vector<const void*> in;
    for (const Tensor& t : few.tensors) {
      many.push_back(Tensor::zeros(dtype, {kElements}));
      std::memcpy(many.back().slice(kElements - kLast, kElements).raw(), t.raw(),
                  static_cast<std::size_t>(num_bytes(t.spec())));
      in.push_back(many.back().raw());
    }
    for (const ReplicaReduce op : {ReplicaReduce::kSum, ReplicaReduce::kMean}) {
      if (!can_reduce(op, dtype)) continue;
      Tensor out = Tensor::zeros(dtype, {kElements});
      reduce_replicas(op, dtype, in, out.raw(), kElements - kLast - 50, kElements);
      EXPECT_TRUE(out.slice(kElements - kLast, kElements).bit_equal(expected(op, few)))
          << to_string(op) << ' ' << inputs;
    }
  }
}

TEST_P(ReduceReplicas, WritesNothingOutsideItsRange) {
  const DType dtype = GetParam();
  Dice dice(3);
  Arrays in(dtype, 3, 100, dice);
  const Tensor before = Tensor::full(dtype, {100}, 7);
  Tensor out = before.clone();
  reduce_replicas(ReplicaReduce::kSum, dtype, in.read(), out.raw(), 13, 90);
  EXPECT_TRUE(out.slice(0, 13).bit_equal(before.slice(0, 13)));
  EXPECT_TRUE(out.slice(90, 100).bit_equal(before.slice(90, 100)));
  EXPECT_TRUE(out.slice(13, 90).bit_equal(expected(ReplicaReduce::kSum, in).slice(13, 90)));
}

TEST_P(ReduceReplicas, EveryInputMayBeAnOutput) {
  const DType dtype = GetParam();
  Dice dice(4);
  for (const std::size_t inputs : {1U, 2U, 4U, 6U}) {
    Arrays in(dtype, inputs, 1100, dice);
    const Tensor right = expected(ReplicaReduce::kSum, in);
    reduce_replicas(ReplicaReduce::kSum, dtype, in.read(), in.write(), 0, 1100);
    for (const Tensor& t : in.tensors) EXPECT_TRUE(t.bit_equal(right)) << inputs;
  }
}

TEST_P(ReduceReplicas, TheLastInputMayBeTheOnlyOutput) {
  const DType dtype = GetParam();
  Dice dice(5);
  Arrays in(dtype, 3, 999, dice);
  const Tensor right = expected(ReplicaReduce::kProd, in);
  const Tensor first = in.tensors[0].clone();
  reduce_replicas(ReplicaReduce::kProd, dtype, in.read(), in.tensors[2].raw(), 0, 999);
  EXPECT_TRUE(in.tensors[2].bit_equal(right));
  EXPECT_TRUE(in.tensors[0].bit_equal(first));
}

INSTANTIATE_TEST_SUITE_P(DTypes, ReduceReplicas,
                         ::testing::Values(DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kI32,
                                           DType::kI64, DType::kU8),
                         [](const auto& of) { return std::string(to_string(of.param)); });

TEST(ReduceReplicasNumbers, ShortFloatsRoundOnceAtTheEnd) {
  // 1 + 2^-9 + 2^-9 in bf16 (8 digits): each addend alone is rounded away, the exact sum is not.
  const BF16 one(1.0F), little(0x1p-9F);
  const void* in[] = {&one, &little, &little, &little, &little};
  BF16 out;
  reduce_replicas(ReplicaReduce::kSum, DType::kBF16, in, &out, 0, 1);
  EXPECT_EQ(static_cast<float>(out), 1.0F + 0x1p-7F);
}

TEST(ReduceReplicasNumbers, IntegersWrapAround) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max(), one = 1;
  const void* in[] = {&most, &one};
  std::int32_t out = 0;
  reduce_replicas(ReplicaReduce::kSum, DType::kI32, in, &out, 0, 1);
  EXPECT_EQ(out, std::numeric_limits<std::int32_t>::min());
}

TEST(ReduceReplicasNumbers, NaNWinsWhereverItStands) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
  for (const ReplicaReduce op : kAllReplicaReduces) {
    for (std::size_t place = 0; place < 3; ++place) {
      std::vector<const void*> in(3, &one);
      in[place] = &nan;
      float out = 0;
      reduce_replicas(op, DType::kF32, in, &out, 0, 1);
      EXPECT_TRUE(std::isnan(out)) << to_string(op) << " at " << place;
    }
  }
}

TEST(ReduceReplicasNumbers, ZerosAreOrderedBySign) {
  const float plus = 0.0F, minus = -0.0F;
  for (const auto& in : {std::vector<const void*>{&plus, &minus}, std::vector<const void*>{&minus, &plus}}) {
    float out = 1;
    reduce_replicas(ReplicaReduce::kMax, DType::kF32, in, &out, 0, 1);
    EXPECT_FALSE(std::signbit(out));
    reduce_replicas(ReplicaReduce::kMin, DType::kF32, in, &out, 0, 1);
    EXPECT_TRUE(std::signbit(out));
  }
}

TEST(ReduceReplicasNumbers, TheMeanIsTheSumAndOneDivision) {
  const float a = 0.1F, b = 0.2F, c = 0.7F;
  const void* in[] = {&a, &b, &c};
  float out = 0;
  reduce_replicas(ReplicaReduce::kMean, DType::kF32, in, &out, 0, 1);
  const float sum = (a + b) + c;
  EXPECT_EQ(out, sum / 3.0F);
}

std::string refusal(ReplicaReduce op, DType dtype, std::vector<const void*> in, std::int64_t begin,
                    std::int64_t end) {
  std::int64_t out = 42;
  try {
    reduce_replicas(op, dtype, in, &out, begin, end);
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(out, 42);
    return error.message();
  }
  return "accepted";
}

TEST(ReduceReplicasNumbers, RefusesWhatHasNoMeaning) {
  const std::int64_t x = 0;
  EXPECT_THAT(refusal(ReplicaReduce::kMean, DType::kI32, {&x, &x}, 0, 1), HasSubstr("mean of i32"));
  EXPECT_THAT(refusal(ReplicaReduce::kSum, DType::kBool, {&x, &x}, 0, 1), HasSubstr("bool"));
  EXPECT_THAT(refusal(ReplicaReduce::kSum, DType::kI64, {}, 0, 1), HasSubstr("at least one input"));
  EXPECT_THAT(refusal(ReplicaReduce::kSum, DType::kI64, {&x, &x}, 1, 0), HasSubstr("begin <= end"));
  EXPECT_EQ(refusal(ReplicaReduce::kSum, DType::kI64, {&x, &x}, 0, 0), "accepted");
}

}  // namespace
}  // namespace lockstep::kernels

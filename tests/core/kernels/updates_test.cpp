// Tests: core/kernels/updates.cpp
// The updates against the formulas of the header, written out once more in double, over several steps.
#include "lockstep/core/kernels/updates.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/core/tensor.h"
#include "support/random_tensors.h"

namespace lockstep {
namespace {

using kernels::kMaxSlots;
using kernels::slot_dtype;
using kernels::UpdateArgs;
using kernels::UpdateKind;
using kernels::UpdateRule;

constexpr UpdateKind kAllKinds[] = {UpdateKind::kSgd,
                                    UpdateKind::kMomentum,
                                    UpdateKind::kAdagrad,
                                    UpdateKind::kRmsProp,
                                    UpdateKind::kRmsPropMomentum,
                                    UpdateKind::kRmsPropCentered,
                                    UpdateKind::kAdam,
                                    UpdateKind::kAdamW};

UpdateRule rule_of(UpdateKind kind) {
  UpdateRule rule;
  rule.kind = kind;
  rule.learning_rate = 0.125;
  rule.momentum = 0.75;
  rule.decay = 0.875;
  rule.beta1 = 0.8;
  rule.beta2 = 0.95;
  rule.epsilon = 1e-3;
  rule.weight_decay = 0.25;
  return rule;
}

// A variable and its slots.
struct State {
  Tensor w;
  std::vector<Tensor> slots;

  State(UpdateKind kind, Tensor variable) : w(std::move(variable)) {
    for (std::size_t i = 0; i < kernels::num_slots(kind); ++i) {
      slots.push_back(Tensor::full(slot_dtype(w.dtype()), w.shape(), 0.5));
    }
  }
  State clone() const {
    State copy = *this;
    copy.w = w.clone();
    for (Tensor& slot : copy.slots) slot = slot.clone();
    return copy;
  }
  // From the memory of `from` to this one's, which may be the same.
  UpdateArgs args(const State& from, const Tensor& gradient) {
    UpdateArgs args;
    args.variable = from.w.raw();
    args.new_variable = w.raw();
    args.gradient = gradient.raw();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      args.slots[i] = from.slots[i].raw();
      args.new_slots[i] = slots[i].raw();
    }
    return args;
  }
  void expect_same(const State& other) const {
    EXPECT_TRUE(w.bit_equal(other.w)) << w << " and " << other.w;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      EXPECT_TRUE(slots[i].bit_equal(other.slots[i])) << "slot " << i;
    }
  }
};

// The formulas of core/kernels/updates.h for one element.
struct Scalar {
  double w = 0;
  double s[kMaxSlots] = {0.5, 0.5, 0.5};

  void step(const UpdateRule& r, double g) {
    const double lr = r.learning_rate;
    const auto t = static_cast<double>(r.step);
    switch (r.kind) {
      case UpdateKind::kSgd: w = w - lr * g; break;
      case UpdateKind::kMomentum:
        s[0] = r.momentum * s[0] + g;
        w = w - lr * (r.nesterov ? g + r.momentum * s[0] : s[0]);
        break;
      case UpdateKind::kAdagrad:
        s[0] = s[0] + g * g;
        w = w - lr * g / (std::sqrt(s[0]) + r.epsilon);
        break;
      case UpdateKind::kRmsProp:
        s[0] = r.decay * s[0] + (1 - r.decay) * g * g;
        w = w - lr * g / std::sqrt(s[0] + r.epsilon);
        break;
      case UpdateKind::kRmsPropMomentum:
        s[0] = r.decay * s[0] + (1 - r.decay) * g * g;
        s[1] = r.momentum * s[1] + lr * g / std::sqrt(s[0] + r.epsilon);
        w = w - s[1];
        break;
      case UpdateKind::kRmsPropCentered:
        s[0] = r.decay * s[0] + (1 - r.decay) * g * g;
        s[1] = r.decay * s[1] + (1 - r.decay) * g;
        s[2] = r.momentum * s[2] + lr * g / std::sqrt(s[0] - s[1] * s[1] + r.epsilon);
        w = w - s[2];
        break;
      case UpdateKind::kAdamW: w = w - lr * r.weight_decay * w; [[fallthrough]];
      case UpdateKind::kAdam:
        s[0] = r.beta1 * s[0] + (1 - r.beta1) * g;
        s[1] = r.beta2 * s[1] + (1 - r.beta2) * g * g;
        w = w - lr * (s[0] / (1 - std::pow(r.beta1, t))) /
                    (std::sqrt(s[1] / (1 - std::pow(r.beta2, t))) + r.epsilon);
        break;
    }
  }
};

double tolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 1e-13;
    case DType::kF32: return 1e-5;
    case DType::kF16: return 4e-3;
    default: return 4e-2;
  }
}

class Updates : public ::testing::TestWithParam<UpdateKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Updates, ::testing::ValuesIn(kAllKinds));

TEST_P(Updates, FollowTheirFormulaOverSeveralSteps) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool nesterov : {false, true}) {
      Dice dice(7);
      const std::int64_t n = 37;
      State state(GetParam(), random_tensor(dtype, {n}, dice));
      std::vector<Scalar> expected(n);
      for (std::int64_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(i)].w = element(state.w, i);
      UpdateRule rule = rule_of(GetParam());
      rule.nesterov = nesterov;
      for (rule.step = 1; rule.step <= 5; ++rule.step) {
        const Tensor g = random_tensor(dtype, {n}, dice);
        kernels::update(rule, dtype, state.args(state, g), 0, n);
        for (std::int64_t i = 0; i < n; ++i) {
          Scalar& one = expected[static_cast<std::size_t>(i)];
          one.step(rule, element(g, i));
          ASSERT_NEAR(element(state.w, i), one.w, tolerance(dtype) * (1 + std::abs(one.w)))
              << dtype << ", element " << i << ", step " << rule.step;
          for (std::size_t s = 0; s < state.slots.size(); ++s) {
            const double bound = std::max(tolerance(slot_dtype(dtype)), 0.0) * (1 + std::abs(one.s[s]));
            ASSERT_NEAR(element(state.slots[s], i), one.s[s], bound) << dtype << ", slot " << s;
          }
        }
      }
    }
  }
}

TEST_P(Updates, GiveTheSameBitsHoweverTheyAreCutAndWhereverTheyWrite) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    Dice dice(11);
    const std::int64_t n = 300;
    const State before(GetParam(), random_tensor(dtype, {n}, dice));
    const Tensor g = random_tensor(dtype, {n}, dice);
    const UpdateRule rule = rule_of(GetParam());
    State whole = before.clone();
    kernels::update(rule, dtype, whole.args(whole, g), 0, n);
    State cut = before.clone();
    for (std::int64_t begin = 0; begin < n;) {
      const std::int64_t end = std::min(n, begin + dice.roll(20));
      kernels::update(rule, dtype, cut.args(cut, g), begin, end);
      begin = end;
    }
    cut.expect_same(whole);
    State elsewhere(GetParam(), Tensor::zeros(dtype, {n}));
    kernels::update(rule, dtype, elsewhere.args(before, g), 0, n);
    elsewhere.expect_same(whole);
  }
}

// Rows by the dense formula on the rows that are named, gradients of rows named twice added in order.
State expected_rows(const UpdateRule& rule, const State& before, std::span<const std::int64_t> indices,
                    const Tensor& g) {
  State after = before.clone();
  const std::int64_t columns = before.w.num_elements() / before.w.shape()[0];
  std::map<std::int64_t, Tensor> sums;
  visit_dtype(before.w.dtype(), [&]<class T>(T) {
    if constexpr (std::is_floating_point_v<T>) {
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const Tensor row = g.slice(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
        auto [found, fresh] = sums.try_emplace(indices[i]);
        if (fresh) found->second = Tensor::zeros(row.dtype(), row.shape());
        for (std::int64_t c = 0; c < columns; ++c) {
          found->second.data<T>()[static_cast<std::size_t>(c)] += row.data<T>()[static_cast<std::size_t>(c)];
        }
      }
    }
  });
  for (const auto& [row, sum] : sums) {
    if (row < 0 || row >= before.w.shape()[0]) continue;
    State one = before;  // rows of the same memory as `after`
    one.w = after.w.slice(row, row + 1);
    for (std::size_t i = 0; i < one.slots.size(); ++i) one.slots[i] = after.slots[i].slice(row, row + 1);
    kernels::update(rule, before.w.dtype(), one.args(one, sum), 0, columns);
  }
  return after;
}

TEST_P(Updates, OfRowsAreTheDenseOnesOnTheRowsTouched) {
  struct Case {
    Shape shape;
    std::vector<std::int64_t> indices;
  };
  const std::vector<Case> cases = {{{6, 5}, {4, 0, 4, 2, 4}},
                                   {{6, 5}, {}},
                                   {{6, 5}, {5}},
                                   {{3}, {2, 2, 0}},
                                   {{4, 700}, {1, 3, 1}},
                                   {{3, 2, 4}, {0, 2}},
                                   {{3, 0}, {1, 1}},
                                   {{6, 5}, {-1, 3, 6, 1'000'000}},
                                   {{500, 3}, {499, 0, 7, 499, 130, 255, 7}}};
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    for (const Case& c : cases) {
      Dice dice(3);
      const State before(GetParam(), random_tensor(dtype, c.shape, dice));
      const auto count = static_cast<std::int64_t>(c.indices.size());
      const Tensor g = random_tensor(dtype, c.shape.with_dim(0, count), dice);
      UpdateRule rule = rule_of(GetParam());
      rule.step = 3;
      const State expected = expected_rows(rule, before, c.indices, g);
      kernels::SparseRows rows{c.indices.data(), count, c.shape[0], before.w.num_elements() / c.shape[0]};
      for (const std::int64_t shards : {1, 2, 3, 8}) {
        for (const bool in_place : {true, false}) {
          State after = in_place ? before.clone() : State(GetParam(), Tensor::zeros(dtype, c.shape));
          std::vector<std::int64_t> order(c.indices.size());
          const UpdateArgs args = after.args(in_place ? after : before, g);
          for (std::int64_t shard = shards; shard-- > 0;) {
            kernels::update_rows(rule, dtype, rows, args, shard, shards, order.data());
          }
          after.expect_same(expected);
        }
      }
    }
  }
}

TEST(Updates, OfRowsSumSixteenBitGradientsBeforeTheyRound) {
  // 1 + 1/256 + 1/256: beside 1 a bf16 holds no 1/256, so that sums in bf16 would stay 1.
  Tensor w = Tensor::full(DType::kBF16, {2, 1}, 0);
  Tensor g = Tensor::full(DType::kBF16, {3, 1}, 1.0 / 256);
  g.data<BF16>()[0] = BF16(1.0F);
  const std::int64_t indices[] = {1, 1, 1};
  std::int64_t order[3];
  UpdateRule rule;
  rule.learning_rate = -1;
  UpdateArgs args;
  args.variable = args.new_variable = w.raw();
  args.gradient = g.raw();
  kernels::update_rows(rule, DType::kBF16, {indices, 3, 2, 1}, args, 0, 1, order);
  EXPECT_EQ(element(w, 0), 0);
  EXPECT_EQ(element(w, 1), 1 + 2.0 / 256);
}

TEST(Updates, TakeAStepNumberBelowOneForTheFirst) {
  for (const std::int64_t step : {0, -5}) {
    float w = 1, m = 0, v = 0, w1 = 1, m1 = 0, v1 = 0;
    const float g = 0.5F;
    UpdateRule rule = rule_of(UpdateKind::kAdam);
    UpdateArgs args{&w, {&m, &v, nullptr}, &g, &w, {&m, &v, nullptr}};
    rule.step = step;
    kernels::update(rule, DType::kF32, args, 0, 1);
    rule.step = 1;
    kernels::update(rule, DType::kF32, {&w1, {&m1, &v1, nullptr}, &g, &w1, {&m1, &v1, nullptr}}, 0, 1);
    EXPECT_EQ(w, w1);
    EXPECT_TRUE(std::isfinite(w));
  }
}

TEST(Updates, OfCenteredRmsPropDoNotTakeRootsOfRoundingErrors) {
  // Equal gradients for ever: the variance is zero, and the rounding of it may be below.
  float w = 0, s = 0, mean = 0, m = 0;
  const float g = 0.1F;
  UpdateRule rule = rule_of(UpdateKind::kRmsPropCentered);
  rule.epsilon = 1e-12;
  for (int i = 0; i < 2000; ++i) {
    kernels::update(rule, DType::kF32, {&w, {&s, &mean, &m}, &g, &w, {&s, &mean, &m}}, 0, 1);
    ASSERT_FALSE(std::isnan(w)) << "step " << i;
  }
}

}  // namespace
}  // namespace lockstep

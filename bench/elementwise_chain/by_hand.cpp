// The rival: one loop in vector instructions, the widest that the processor has.
#include "chain.h"

#undef HWY_TARGET_INCLUDE
// NOLINTNEXTLINE(readability-identifier-naming)
#define HWY_TARGET_INCLUDE "elementwise_chain/by_hand.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace lockstep::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
constexpr std::size_t kUnroll = 4;  // vectors, so that one's latency is another's work

// in[i] through all twelve, for whole blocks of vectors and then by vectors; the last few elements take their
// own way, so that nothing beyond the ends is touched.
template <class Ops>
void each(std::span<const float> x, std::span<float> y, const Ops& ops) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d), n = x.size();
  std::size_t i = 0;
  for (; i + kUnroll * lanes <= n; i += kUnroll * lanes) {
    const auto v0 = ops(d, hn::LoadU(d, &x[i])), v1 = ops(d, hn::LoadU(d, &x[i + lanes]));
    const auto v2 = ops(d, hn::LoadU(d, &x[i + 2 * lanes])), v3 = ops(d, hn::LoadU(d, &x[i + 3 * lanes]));
    hn::StoreU(v0, d, &y[i]);
    hn::StoreU(v1, d, &y[i + lanes]);
    hn::StoreU(v2, d, &y[i + 2 * lanes]);
    hn::StoreU(v3, d, &y[i + 3 * lanes]);
  }
  for (; i + lanes <= n; i += lanes) hn::StoreU(ops(d, hn::LoadU(d, &x[i])), d, &y[i]);
  const hn::CappedTag<float, 1> one;
  for (; i < n; ++i) hn::StoreU(ops(one, hn::LoadU(one, &x[i])), one, &y[i]);
}

void cheap(std::span<const float> x, std::span<float> y) {
  each(x, y, [](auto d, auto v) HWY_ATTR {
    const auto line = hn::Add(hn::Mul(v, hn::Set(d, 1.5F)), hn::Set(d, 0.25F));
    auto a = hn::Abs(hn::Sub(hn::Max(line, hn::Zero(d)), hn::Set(d, 0.5F)));
    a = hn::Min(a, hn::Set(d, 4.0F));
    a = hn::Max(hn::Neg(hn::Mul(hn::Mul(a, a), v)), hn::Set(d, -8.0F));
    return hn::Mul(hn::Add(a, v), hn::Set(d, 0.75F));
  });
}

void curved(std::span<const float> x, std::span<float> y) {
  each(x, y, [](auto d, auto v) HWY_ATTR {
    const auto one = hn::Set(d, 1.0F);
    const auto line = hn::Add(hn::Mul(v, hn::Set(d, 1.5F)), hn::Set(d, 0.25F));
    auto a = hn::Tanh(d, hn::Sub(hn::Max(line, hn::Zero(d)), hn::Set(d, 0.5F)));
    a = hn::Min(a, hn::Set(d, 4.0F));
    a = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Neg(hn::Mul(hn::Mul(a, a), v)))));
    a = hn::Max(a, hn::Set(d, -8.0F));
    return hn::Mul(hn::Add(a, v), hn::Set(d, 0.75F));
  });
}

}  // namespace lockstep::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lockstep::bench {

HWY_EXPORT(cheap);
HWY_EXPORT(curved);

void chain_by_hand(Chain chain, std::span<const float> x, std::span<float> y) {
  if (chain == Chain::kCheap) {
    HWY_DYNAMIC_DISPATCH(cheap)(x, y);
  } else {
    HWY_DYNAMIC_DISPATCH(curved)(x, y);
  }
}

}  // namespace lockstep::bench

#endif

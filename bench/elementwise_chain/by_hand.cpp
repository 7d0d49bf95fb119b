// The rival: a plain loop that the compiler vectorises, but for the curves.
#include <cmath>

#include "chain.h"

namespace lockstep::bench {
namespace {

// In the words that g++ turns into vector instructions: for the other ones it keeps a branch.
#if defined(__aarch64__)
float larger(float a, float b) { return std::fmax(a, b); }
float smaller(float a, float b) { return std::fmin(a, b); }
#else
float larger(float a, float b) { return a > b ? a : b; }
float smaller(float a, float b) { return a < b ? a : b; }
#endif

}  // namespace

void chain_by_hand(Chain chain, std::span<const float> x, std::span<float> y) {
  const float* __restrict in = x.data();
  float* __restrict out = y.data();
  const std::size_t n = x.size();
  if (chain == Chain::kCheap) {
    for (std::size_t i = 0; i < n; ++i) {
      const float v = in[i];
      float a = std::abs(larger(v * 1.5F + 0.25F, 0.0F) - 0.5F);
      a = smaller(a, 4.0F);
      a = larger(-(a * a * v), -8.0F);
      out[i] = (a + v) * 0.75F;
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      const float v = in[i];
      float a = std::tanh(larger(v * 1.5F + 0.25F, 0.0F) - 0.5F);
      a = smaller(a, 4.0F);
      a = larger(1.0F / (1.0F + std::exp(-(a * a * v))), -8.0F);
      out[i] = (a + v) * 0.75F;
    }
  }
}

}  // namespace lockstep::bench

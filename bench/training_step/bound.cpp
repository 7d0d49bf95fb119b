// bench/training_step/bound.cpp - the products of a step of the MLP, by BLAS: no step that uses this BLAS is
// faster.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "participants.h"
#include "support/data.h"

extern "C" {
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc, std::size_t, std::size_t);
// Weak: null where the BLAS is another one, which then has the threads its environment says.
__attribute__((weak)) void openblas_set_num_threads(int threads);
}

namespace lockstep::bench {
namespace {

constexpr std::array<int, 4> kWidths = {784, 512, 512, 10};
constexpr std::size_t kLayers = kWidths.size() - 1;

// C[m,n] = op(A) op(B), row-major; BLAS, which is column-major, computes the transposed product.
void product(char transpose_a, char transpose_b, int m, int n, int k, const float* a, int lda, const float* b,
             int ldb, float* c) {
  const float one = 1, zero = 0;
  sgemm_(&transpose_b, &transpose_a, &n, &m, &k, &one, b, &ldb, a, &lda, &zero, c, &n, 1, 1);
}

class Products {
 public:
  explicit Products(int batch) : batch_(batch) {
    for (std::size_t l = 0; l <= kLayers; ++l) {
      activations_.push_back(numbers(batch * kWidths[l]));
      deltas_.push_back(numbers(batch * kWidths[l]));
    }
    for (std::size_t l = 0; l < kLayers; ++l) {
      weights_.push_back(numbers(kWidths[l] * kWidths[l + 1]));
      gradients_.push_back(numbers(kWidths[l] * kWidths[l + 1]));
    }
  }

  // Part `part` of `parts`: these rows of the batch, and these rows of each weight gradient.
  void run(int part, int parts) {
    const int first = batch_ * part / parts;
    const int rows = batch_ * (part + 1) / parts - first;
    for (std::size_t l = 0; l < kLayers; ++l) {
      const int in = kWidths[l], out = kWidths[l + 1];
      product('N', 'N', rows, out, in, &activations_[l][at(first, in)], in, weights_[l].data(), out,
              &activations_[l + 1][at(first, out)]);
    }
    for (std::size_t l = kLayers; l-- > 0;) {
      const int in = kWidths[l], out = kWidths[l + 1];
      const int from = in * part / parts;
      const int to = in * (part + 1) / parts;
      product('T', 'N', to - from, out, batch_, &activations_[l][at(from, 1)], in, deltas_[l + 1].data(), out,
              &gradients_[l][at(from, out)]);
      // Nobody asks for the gradient of the input.
      if (l == 0) break;
      product('N', 'T', rows, in, out, &deltas_[l + 1][at(first, out)], out, weights_[l].data(), out,
              &deltas_[l][at(first, in)]);
    }
  }

 private:
  static std::size_t at(int row, int width) {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(width);
  }
  // Small, so that products of products stay ordinary numbers.
  std::vector<float> numbers(int count) {
    std::vector<float> out(static_cast<std::size_t>(count));
    fill_uniform(out, ++seed_, 0.05F);
    return out;
  }

  int batch_;
  std::uint32_t seed_ = 0;
  std::vector<std::vector<float>> activations_, deltas_, weights_, gradients_;
};

void blas_threads(std::size_t threads) {
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(static_cast<int>(threads));
}

class BlasBound final : public Participant {
 public:
  BlasBound(int batch, std::size_t threads) : products_(batch) { blas_threads(threads); }
  double run(std::size_t steps) override {
    for (std::size_t s = 0; s < steps; ++s) products_.run(0, 1);
    return 0;
  }

 private:
  Products products_;
};

// The second half runs on a thread of its own, which the steps of one call meet after each step, spinning:
// the cheapest way two threads can agree.
class HalvesBound final : public Participant {
 public:
  explicit HalvesBound(int batch) : products_(batch) { blas_threads(1); }

  double run(std::size_t steps) override {
    std::atomic<std::size_t> mine = 0, other = 0;
    const auto half = [&](int part, std::atomic<std::size_t>& me, const std::atomic<std::size_t>& him) {
      for (std::size_t s = 1; s <= steps; ++s) {
        products_.run(part, 2);
        me.store(s, std::memory_order_release);
        while (him.load(std::memory_order_acquire) < s) {
        }
      }
    };
    std::thread second([&] { half(1, other, mine); });
    half(0, mine, other);
    second.join();
    return 0;
  }

 private:
  Products products_;
};

}  // namespace

std::unique_ptr<Participant> make_blas_bound(const std::string& model, std::int64_t batch,
                                             std::size_t threads) {
  if (model != "mlp") return nullptr;
  return std::make_unique<BlasBound>(static_cast<int>(batch), threads);
}

std::unique_ptr<Participant> make_halves_bound(const std::string& model, std::int64_t batch, std::size_t) {
  if (model != "mlp") return nullptr;
  return std::make_unique<HalvesBound>(static_cast<int>(batch));
}

}  // namespace lockstep::bench

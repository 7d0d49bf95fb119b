#include <functional>
#include <vector>

#include "rival.h"
#include "support/measure.h"

namespace lockstep::bench {
namespace {

class Sequential final : public Rival {
 public:
  BuildTimes build(const Shape& shape, const Body& body, std::span<Slot> slots) override {
    const double begin = now();
    calls_.clear();
    calls_.reserve(shape.nodes());
    for (std::size_t n = 0; n < shape.nodes(); ++n) {
      with_body(body, slots[n], [&](auto function) { calls_.emplace_back(function); });
    }
    return {now() - begin, 0};
  }

  void run(std::size_t times) override {
    for (std::size_t t = 0; t < times; ++t) {
      for (const std::function<void()>& call : calls_) call();
    }
  }

 private:
  std::vector<std::function<void()>> calls_;
};

}  // namespace

std::unique_ptr<Rival> make_sequential() { return std::make_unique<Sequential>(); }

}  // namespace lockstep::bench

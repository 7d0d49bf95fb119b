// An input that stops in the middle of an epoch, and goes on at the same element in another iterator.
//
//   images ─┐
//           ├─ from_slices ─ shuffle ─ repeat ─ batch ─ map ─ prefetch ──► b0 b1 b2 b3 │ b4 b5 ...
//   labels ─┘                                                                          save
//                                                                    another iterator: restore ► b4 b5 ...
//
// Prefetch has read further than b3 by then; what is saved is the position after the last batch that was handed out.
#include <cstdint>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

// The same input on any number of threads, with any prefetch.
Dataset<Tensor, Tensor> input(unsigned threads, std::int64_t prefetched) {
  Tensor images = Tensor::empty(DType::kF32, {100, 4, 4});
  Tensor labels = Tensor::empty(DType::kI64, {100});
  std::iota(images.data<float>().begin(), images.data<float>().end(), 0.F);
  std::iota(labels.data<std::int64_t>().begin(), labels.data<std::int64_t>().end(), 0);
  const auto scale = [](const Tensor& x, Tensor y) {
    Tensor scaled = x.clone();
    for (float& pixel : scaled.data<float>()) pixel /= 1600;
    return std::tuple(scaled, y);
  };
  return datasets::from_slices(images, labels)
      .shuffle(100, {.seed = 7})
      .repeat(2)
      .batch(8)
      .map(scale, {.threads = threads})
      .prefetch(prefetched);
}

}  // namespace

int main() {
  std::vector<std::tuple<Tensor, Tensor>> uninterrupted;
  for (auto [x, y] : input(1, 1)) uninterrupted.emplace_back(x, y);
  std::cout << uninterrupted.size() << " batches of " << input(1, 1).element_spec() << '\n';

  auto first = input(2, 5).iterator();
  for (int i = 0; i < 4; ++i) static_cast<void>(first.next());
  auto failed = first.next();  // a step that fails gives its batch back
  first.give_back(*std::move(failed));
  const std::string state = first.save();

  auto second = input(3, 2).iterator();
  second.restore(state);
  std::size_t at = 4;
  bool same = true;
  while (auto batch = second.next()) {
    const auto& [x, y] = uninterrupted.at(at++);
    same = same && std::get<0>(*batch).bit_equal(x) && std::get<1>(*batch).bit_equal(y);
  }
  same = same && at == uninterrupted.size();
  std::cout << (same ? "same elements" : "OTHER elements") << '\n';
  return same ? 0 : 1;
}

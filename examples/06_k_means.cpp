// k-means: the whole algorithm is one graph, with a loop inside it.
//
//   points [n,2] --+--> distances [n,k] --> argmin --> segment_sum --> centres [k,2] --+
//                  |        ^                                                          |
//                  |        +----------------- while they still move ------------------+
//
#include <iomanip>
#include <iostream>
#include <random>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

// |x - c|^2 = |x|^2 - 2 x.c + |c|^2 for every point and centre.
Value distances(const Value& points, const Value& centres) {
  return sum(square(points), {1}, true) - 2.0 * matmul(points, centres, false, true) +
         sum(square(centres), {1});
}

Value nearest(const Value& points, const Value& centres) { return argmin(distances(points, centres), 1); }

// The mean of the points that are nearest to each centre; a centre without points stays.
Value moved(const Value& points, const Value& centres, std::int64_t k) {
  const Value owner = nearest(points, centres);
  const Value total = segment_sum(points, owner, k);
  const Value count = segment_sum(ones_like(sum(points, {1}, true)), owner, k);
  return where(count > 0.0, total / maximum(count, 1.0), centres);
}

Graph k_means(std::int64_t k) {
  GraphBuilder b;
  const Value points = b.placeholder("points", DType::kF64, {kUnknown, 2});
  const Value start = b.placeholder("start", DType::kF64, {k, 2});
  const Value trips = b.constant(std::int64_t{0});
  const Value shift = b.constant(1.0);
  const std::vector<Value> end = while_loop(
      std::vector<Value>{start, shift, trips}, [](std::span<const Value> now) { return now[1] > 1e-9; },
      [&](std::span<const Value> now) -> std::vector<Value> {
        const Value next = moved(points, now[0], k);
        return {next, sum(square(next - now[0])), now[2] + 1};
      },
      LoopOptions{.max_trips = 100});
  b.result(end[0]);
  b.result(end[2]);
  b.result(segment_sum(ones_like(sum(points, {1})), nearest(points, end[0]), k));
  return b.finish();
}

}  // namespace

int main() {
  constexpr std::int64_t kPoints = 3000;
  const double homes[3][2] = {{0, 0}, {6, 1}, {2, 5}};
  std::mt19937_64 bits(7);
  const auto uniform = [&] { return static_cast<double>(bits() >> 11U) * 0x1p-53; };
  Tensor points = Tensor::empty(DType::kF64, {kPoints, 2});
  for (std::size_t i = 0; i < kPoints; ++i) {
    for (std::size_t axis = 0; axis < 2; ++axis) {
      points.data<double>()[2 * i + axis] = homes[i % 3][axis] + uniform() + uniform() + uniform() - 1.5;
    }
  }
  const Program program = compile(optimize(k_means(3)), Runtime());
  const std::vector<Tensor> found =
      program.run({{"points", points}, {"start", Tensor::from<double>({3, 2}, {1, 0, 1, 1, 2, 1})}});
  std::cout << "still after " << found[1].item() << " moves\n" << std::fixed << std::setprecision(2);
  for (std::size_t i = 0; i < 3; ++i) {
    std::cout << "centre (" << found[0].data<double>()[2 * i] << ", " << found[0].data<double>()[2 * i + 1]
              << ") of " << std::setprecision(0) << found[2].data<double>()[i] << " points\n"
              << std::setprecision(2);
  }
}

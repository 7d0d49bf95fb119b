// Tests: core/kernels/place.cpp, core/kernels/strided.cpp
#include "lockstep/core/kernels/strided.h"

#include <gtest/gtest.h>

#include "lockstep/core/kernels/place.h"
#include "lockstep/core/random.h"

namespace lockstep::kernels {
namespace {

using Ints = std::vector<std::int64_t>;

template <class T>
std::vector<T> counting(std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i * 37 + i / 251);
  return values;
}

std::int64_t product(const Ints& extents) {
  std::int64_t n = 1;
  for (const std::int64_t extent : extents) n *= extent;
  return n;
}

// Calls f with every index of a tensor of these extents, row-major.
template <class F>
void for_each_index(const Ints& extents, F&& f) {
  Ints index(extents.size(), 0);
  for (std::int64_t n = product(extents); n > 0; --n) {
    f(index);
    for (std::size_t i = extents.size(); i-- > 0;) {
      if (++index[i] < extents[i]) break;
      index[i] = 0;
    }
  }
}

std::int64_t dot(const Ints& a, const Ints& b) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The copy against one element at a time, whole and in `pieces`.
template <class T>
void check_copy(const Ints& extents, const Ints& in_strides, std::int64_t start, const Ints& out_strides,
                std::int64_t in_size, std::int64_t out_size) {
  const std::vector<T> in = counting<T>(in_size);
  std::vector<T> expected(static_cast<std::size_t>(out_size), T{99});
  for_each_index(extents, [&](const Ints& index) {
    expected[static_cast<std::size_t>(dot(index, out_strides))] =
        in[static_cast<std::size_t>(start + dot(index, in_strides))];
  });
  const StridedCopy copy(sizeof(T), extents, in_strides, out_strides);
  for (const std::int64_t pieces : {1, 2, 3, 7}) {
    std::vector<T> out(static_cast<std::size_t>(out_size), T{99});
    for (std::int64_t i = 0; i < pieces; ++i) {
      copy.run(in.data() + start, out.data(), copy.units() * i / pieces, copy.units() * (i + 1) / pieces);
    }
    EXPECT_EQ(out, expected) << Shape(std::span<const std::int64_t>(extents)) << " in " << pieces
                             << " pieces of " << sizeof(T) << " bytes";
  }
}

void check_all_sizes(const Ints& extents, const Ints& in_strides, std::int64_t start, const Ints& out_strides,
                     std::int64_t in_size, std::int64_t out_size) {
  check_copy<std::uint8_t>(extents, in_strides, start, out_strides, in_size, out_size);
  check_copy<std::uint16_t>(extents, in_strides, start, out_strides, in_size, out_size);
  check_copy<std::uint32_t>(extents, in_strides, start, out_strides, in_size, out_size);
  check_copy<std::uint64_t>(extents, in_strides, start, out_strides, in_size, out_size);
}

void check_transpose(const Shape& in, const Ints& perm) {
  const Ints dense = dense_strides(in);
  Ints extents, strides;
  for (const std::int64_t axis : perm) {
    extents.push_back(in[static_cast<std::size_t>(axis)]);
    strides.push_back(dense[static_cast<std::size_t>(axis)]);
  }
  const Shape out{std::span<const std::int64_t>(extents)};
  check_all_sizes(extents, strides, 0, dense_strides(out), in.num_elements(), in.num_elements());
}

TEST(StridedCopy, TransposesAnyShape) {
  check_transpose({}, {});
  check_transpose({7}, {0});
  check_transpose({5, 9}, {1, 0});
  check_transpose({64, 64}, {1, 0});
  check_transpose({300, 131}, {1, 0});
  check_transpose({1, 40}, {1, 0});
  check_transpose({3, 17, 33}, {0, 2, 1});
  check_transpose({3, 17, 33}, {2, 1, 0});
  check_transpose({3, 17, 33}, {1, 2, 0});
  check_transpose({2, 16, 4, 8}, {0, 2, 1, 3});
  check_transpose({2, 5, 6, 7}, {3, 1, 0, 2});
  check_transpose({0, 4}, {1, 0});
}

TEST(StridedCopy, RepeatsWalksBackAndSteps) {
  check_all_sizes({3, 5}, {0, 1}, 0, {5, 1}, 5, 15);    // a row repeated
  check_all_sizes({3, 5}, {1, 0}, 0, {5, 1}, 3, 15);    // a column repeated
  check_all_sizes({70, 2}, {0, 0}, 0, {2, 1}, 1, 140);  // one element
  check_all_sizes({6, 5}, {-5, -1}, 29, {5, 1}, 30, 30);
  check_all_sizes({4, 3}, {14, 2}, 1, {3, 1}, 60, 12);  // every other element of every other row
  check_all_sizes({4, 3}, {3, 1}, 0, {10, 2}, 12, 40);  // into a larger tensor
  check_all_sizes({2, 0, 3}, {3, 3, 1}, 0, {3, 3, 1}, 1, 1);
}

// Place against one element at a time, whole and in pieces.
template <class T>
void check_place(const Shape& in, const Shape& out, const Ints& offsets, const Ints& steps) {
  const std::vector<T> source = counting<T>(in.num_elements());
  std::vector<T> expected(static_cast<std::size_t>(out.num_elements()), T{7});
  const Ints out_strides = dense_strides(out), in_strides = dense_strides(in);
  for_each_index({in.dims().begin(), in.dims().end()}, [&](const Ints& index) {
    Ints to = index;
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = offsets[i] + index[i] * steps[i];
    expected[static_cast<std::size_t>(dot(to, out_strides))] =
        source[static_cast<std::size_t>(dot(index, in_strides))];
  });
  const T fill{7};
  const Place place(sizeof(T), in, out, offsets, steps, &fill);
  for (const std::int64_t pieces : {1, 2, 3, 11}) {
    std::vector<T> result(static_cast<std::size_t>(out.num_elements()), T{99});
    for (std::int64_t i = 0; i < pieces; ++i) {
      place.run(source.data(), result.data(), out.num_elements() * i / pieces,
                out.num_elements() * (i + 1) / pieces);
    }
    EXPECT_EQ(result, expected) << in << " into " << out << " in " << pieces << " pieces";
  }
}

TEST(Place, PutsATensorIntoALargerOne) {
  const auto check = [](const Shape& in, const Shape& out, const Ints& offsets, const Ints& steps) {
    check_place<std::uint8_t>(in, out, offsets, steps);
    check_place<std::uint16_t>(in, out, offsets, steps);
    check_place<std::uint32_t>(in, out, offsets, steps);
    check_place<std::uint64_t>(in, out, offsets, steps);
  };
  check({}, {}, {}, {});
  check({3}, {8}, {2}, {1});
  check({3}, {8}, {0}, {3});
  check({3}, {8}, {7}, {-3});
  check({2, 3}, {4, 7}, {1, 2}, {1, 1});
  check({2, 3}, {4, 3}, {1, 0}, {1, 1});
  check({2, 3, 4}, {5, 3, 4}, {0, 0, 0}, {2, 1, 1});
  check({2, 3, 4}, {2, 9, 4}, {0, 8, 3}, {1, -4, -1});
  check({2, 3, 4}, {2, 9, 9}, {1, 0, 0}, {-1, 4, 2});
  check({0, 3}, {4, 3}, {2, 0}, {1, 1});
  check({0}, {0}, {0}, {1});
  check({2, 2}, {2, 2}, {0, 0}, {1, 1});
}

}  // namespace
}  // namespace lockstep::kernels

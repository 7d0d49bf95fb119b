// Tests: io/formats/array_rows.cpp, io/formats/idx_rows.cpp
#include "lockstep/io/formats/array_rows.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/files/npy.h"
#include "lockstep/io/files/npz.h"
#include "support/packed.h"
#include "support/record_files.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using testing::big_endian_bytes;
using ::testing::ElementsAre;
using testing::error_of;
using testing::gzip_of;
using ::testing::HasSubstr;
using testing::write_to;

using namespace std::string_literals;

// By the definition on MNIST's page: two zeros, the type, the number of axes, the axes, the elements.
std::string idx_of(unsigned type, const std::vector<std::uint64_t>& dims, const std::string& elements) {
  std::string bytes = "\0\0"s + static_cast<char>(type) + static_cast<char>(dims.size());
  for (const std::uint64_t dim : dims) bytes += big_endian_bytes(dim, 4);
  return bytes + elements;
}

template <class T>
std::vector<T> rows_of(const ArrayRows& rows, std::int64_t first, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count * rows.row().shape.num_elements()));
  EXPECT_EQ(rows.row().dtype, dtype_of<T>);
  rows.read(first, count, values.data());
  return values;
}

class ArrayRowsTest : public ::testing::Test {
 protected:
  std::unique_ptr<ArrayRows> idx(const std::string& bytes, const ReadLimits& limits = {}) {
    return open_idx_rows(write_to(folder_ / "f", bytes), limits);
  }
  std::string failure(const std::string& bytes, const ReadLimits& limits = {}) {
    return error_of([&] { idx(bytes, limits); });
  }
  TemporaryFolder folder_;
};

TEST_F(ArrayRowsTest, ReadsIdxOfBytes) {
  const std::string bytes = idx_of(8, {3, 2, 2}, "abcdefghijkl");
  for (const std::string& file : {bytes, gzip_of(bytes)}) {
    const auto rows = idx(file);
    EXPECT_EQ(rows->rows(), 3);
    EXPECT_EQ(rows->row(), (TensorSpec{DType::kU8, {2, 2}}));
    EXPECT_THAT(rows_of<std::uint8_t>(*rows, 1, 2), ElementsAre('e', 'f', 'g', 'h', 'i', 'j', 'k', 'l'));
    EXPECT_THAT(rows_of<std::uint8_t>(*rows, 0, 1), ElementsAre('a', 'b', 'c', 'd'));
    EXPECT_THAT(rows_of<std::uint8_t>(*rows, 3, 0), ElementsAre());
  }
}

TEST_F(ArrayRowsTest, ReadsEveryTypeOfIdx) {
  const auto number = [](std::int64_t value, unsigned bytes) {
    return big_endian_bytes(static_cast<std::uint64_t>(value), bytes);
  };
  EXPECT_THAT(rows_of<std::int32_t>(*idx(idx_of(9, {2}, number(-5, 1) + number(127, 1))), 0, 2),
              ElementsAre(-5, 127));
  EXPECT_THAT(rows_of<std::int32_t>(*idx(idx_of(11, {2}, number(-300, 2) + number(7, 2))), 0, 2),
              ElementsAre(-300, 7));
  EXPECT_THAT(rows_of<std::int32_t>(*idx(idx_of(12, {2}, number(-70000, 4) + number(7, 4))), 0, 2),
              ElementsAre(-70000, 7));
  const std::string singles = big_endian_bytes(std::bit_cast<std::uint32_t>(1.5F), 4) +
                              big_endian_bytes(std::bit_cast<std::uint32_t>(-0.25F), 4);
  EXPECT_THAT(rows_of<float>(*idx(idx_of(13, {2}, singles)), 0, 2), ElementsAre(1.5F, -0.25F));
  const std::string doubles = big_endian_bytes(std::bit_cast<std::uint64_t>(1e300), 8);
  EXPECT_THAT(rows_of<double>(*idx(idx_of(14, {1}, doubles)), 0, 1), ElementsAre(1e300));
}

// More elements than its piece of a buffer holds.
TEST_F(ArrayRowsTest, ConvertsLongRows) {
  std::string elements;
  for (std::int64_t i = 0; i < 100000; ++i)
    elements += big_endian_bytes(static_cast<std::uint64_t>(i % 1000 - 500), 2);
  const std::string bytes = idx_of(11, {4, 25000}, elements);
  for (const std::string& file : {bytes, gzip_of(bytes)}) {
    const auto values = rows_of<std::int32_t>(*idx(file), 1, 3);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<std::int32_t>((i + 25000) % 1000) - 500);
  }
}

TEST_F(ArrayRowsTest, RefusesDamagedIdx) {
  const std::string good = idx_of(8, {3, 2}, "abcdef");
  EXPECT_THAT(failure(""), HasSubstr("inside its header"));
  EXPECT_THAT(failure(good.substr(0, 7)), HasSubstr("it ends after 7 bytes, inside its header"));
  EXPECT_THAT(failure("\1" + good.substr(1)), HasSubstr("it does not begin with two zeros"));
  EXPECT_THAT(failure(idx_of(10, {1}, "a")), HasSubstr("its type 10 is none of"));
  EXPECT_THAT(failure(good + "g"), HasSubstr("its header says [3,2] elements of 1 byte, and 7 bytes follow"));
  EXPECT_THAT(failure(good.substr(0, good.size() - 1)), HasSubstr("and 5 bytes follow"));
  EXPECT_THAT(failure(gzip_of(good + "g")), HasSubstr("and more than 6 bytes follow"));
  EXPECT_THAT(failure(gzip_of(good.substr(0, good.size() - 1))), HasSubstr("5 bytes follow"));
  EXPECT_THAT(failure(idx_of(8, {4294967295U, 4294967295U, 4294967295U}, "")), HasSubstr("DataLoss"));
  EXPECT_THAT(failure(idx_of(14, {4294967295U, 268435455U}, "")), HasSubstr("DataLoss"));
  EXPECT_THAT(failure(idx_of(8, {}, "a")), HasSubstr("and no rows"));
  EXPECT_THAT(
      failure(gzip_of(idx_of(8, {2000}, std::string(2000, 'a'))), {.base_bytes = 100, .bytes_per_byte = 1}),
      HasSubstr("InvalidArgument"));
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_THAT(failure(gzip_of(good).substr(0, gzip_of(good).size() - i - 1)), HasSubstr("DataLoss"));
}

TEST_F(ArrayRowsTest, RefusesRowsThatAreNotThere) {
  const auto rows = idx(idx_of(8, {3, 2}, "abcdef"));
  char to[8];
  EXPECT_THAT(error_of([&] { rows->read(2, 2, to); }),
              HasSubstr("rows 2 to 2 + 2 are asked for, and it has 3"));
  EXPECT_THAT(error_of([&] { rows->read(-1, 1, to); }), HasSubstr("InvalidArgument"));
  EXPECT_THAT(error_of([&] { rows->read(1, -1, to); }), HasSubstr("InvalidArgument"));
  EXPECT_THAT(error_of([&] { rows->read(4, 0, to); }), HasSubstr("InvalidArgument"));
}

Tensor counted_tensor(DType dtype, const Shape& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  auto* const bytes = static_cast<char*>(tensor.raw());
  for (std::size_t i = 0; i < tensor.num_bytes(); ++i)
    bytes[i] = static_cast<char>(dtype == DType::kBool ? i % 2 : i % 50);
  return tensor;
}

void expect_rows(const ArrayRows& rows, const Tensor& wanted) {
  ASSERT_EQ(rows.rows(), wanted.shape()[0]);
  for (std::int64_t first = 0; first < rows.rows(); ++first) {
    const std::int64_t count = std::min<std::int64_t>(2, rows.rows() - first);
    Tensor piece = Tensor::empty(wanted.dtype(), rows.row().shape.with_inserted(0, count));
    rows.read(first, count, piece.raw());
    EXPECT_TRUE(piece.bit_equal(wanted.slice(first, first + count)));
  }
}

TEST_F(ArrayRowsTest, ReadsNumPysArraysOfEveryDtype) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{5, 3}, Shape{4}, Shape{0, 2}, Shape{3, 0}, Shape{2, 2, 2}}) {
      const Tensor tensor = counted_tensor(dtype, shape);
      write_to(folder_ / "a.npy", write_npy(tensor));
      expect_rows(*open_npy_rows(folder_ / "a.npy"), tensor);
      for (const bool deflate : {false, true}) {
        write_to(folder_ / "a.npz",
                 write_npz({{"x", tensor}, {"y", Tensor::scalar(1.F)}}, {.deflate = deflate}));
        expect_rows(*open_npz_rows(folder_ / "a.npz", "x"), tensor);
      }
    }
  }
}

std::string npy_with(const std::string& header, const std::string& elements) {
  return "\x93NUMPY\x01\x00"s + static_cast<char>(header.size()) + '\0' + header + elements;
}

TEST_F(ArrayRowsTest, ConvertsOtherOrders) {
  write_to(folder_ / "big.npy", npy_with("{'descr': '>i4', 'fortran_order': False, 'shape': (2, 1), }",
                                         big_endian_bytes(70000, 4) + big_endian_bytes(5, 4)));
  EXPECT_THAT(rows_of<std::int32_t>(*open_npy_rows(folder_ / "big.npy"), 0, 2), ElementsAre(70000, 5));
  write_to(folder_ / "fortran.npy",
           npy_with("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", "adbecf"));
  EXPECT_THAT(rows_of<std::uint8_t>(*open_npy_rows(folder_ / "fortran.npy"), 0, 2),
              ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
}

TEST_F(ArrayRowsTest, RefusesDamagedNumPyFiles) {
  write_to(folder_ / "a.npy", write_npy(Tensor::zeros({2, 2})).substr(0, 140));
  EXPECT_THAT(error_of([&] { open_npy_rows(folder_ / "a.npy"); }),
              HasSubstr("a.npy: this is no whole .npy file"));
  write_to(folder_ / "a.npy", write_npy(Tensor::scalar(1.F)));
  EXPECT_THAT(error_of([&] { open_npy_rows(folder_ / "a.npy"); }), HasSubstr("and no rows"));
  write_to(folder_ / "a.npz", write_npz({{"x", Tensor::zeros({2})}}));
  EXPECT_THAT(error_of([&] { open_npz_rows(folder_ / "a.npz", "y"); }), HasSubstr("NotFound"));
  write_to(folder_ / "b.npy",
           npy_with("{'descr': '|b1', 'fortran_order': False, 'shape': (3,), }", "\0\1\2"s));
  const auto rows = open_npy_rows(folder_ / "b.npy");
  bool to[3];
  rows->read(0, 2, to);
  EXPECT_THAT(error_of([&] { rows->read(2, 1, to); }),
              HasSubstr("b.npy: this is no whole .npy file: an element of its bools"));
}

TEST_F(ArrayRowsTest, AreReadByManyThreads) {
  const Tensor tensor = counted_tensor(DType::kI32, {64, 10});
  write_to(folder_ / "a.npy", write_npy(tensor));
  const auto rows = open_npy_rows(folder_ / "a.npy");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { expect_rows(*rows, tensor); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep

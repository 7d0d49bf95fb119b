// Tests: io/files/files.cpp, io/files/npy.cpp, io/files/npz.cpp
// .npy and .npz: what is written reads back, what NumPy writes is read, what is damaged or hostile is
// refused.
#include "lockstep/io/files/npy.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/io/files/files.h"
#include "lockstep/io/files/npz.h"
#include "support/sanitizers.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

// A version 1.0 file with this header and these bytes of data.
std::string npy(std::string header, std::string_view data) {
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xFFU);
  bytes += static_cast<char>(header.size() >> 8U);
  return bytes + header + std::string(data);
}

std::string header(std::string_view descr, std::string_view shape, bool fortran = false) {
  return str("{'descr': '", descr, "', 'fortran_order': ", fortran ? "True" : "False", ", 'shape': ", shape,
             ", }");
}

// The code and message of what reading throws; empty where it does not.
template <class Read>
std::string refusal(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    return str(to_string(error.code()), ": ", error.message());
  }
  return {};
}

TEST(Npy, EveryDtypeAndRankReadsBackBitByBit) {
  for (const DType dtype : kAllDTypes) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{5}, Shape{2, 3}, Shape{2, 0, 3}, Shape{1, 2, 3, 2}}) {
      Tensor tensor = Tensor::zeros(dtype, shape);
      auto* const bytes = static_cast<unsigned char*>(tensor.raw());
      for (std::size_t i = 0; i < tensor.num_bytes(); ++i)
        bytes[i] = static_cast<unsigned char>(dtype == DType::kBool ? i % 2 : i * 37 + 1);
      const std::string file = write_npy(tensor);
      const Tensor back = read_npy(file);
      EXPECT_TRUE(back.bit_equal(tensor)) << tensor.spec();
      EXPECT_EQ((file.size() - tensor.num_bytes()) % 64, 0U) << "the data is aligned";
      EXPECT_EQ(write_npy(back), file);
    }
  }
}

TEST(Npy, ReadsWhatNumPyWrites) {
  struct Case {
    std::string descr, shape;
    bool fortran;
    std::string_view data;
    Tensor expected;
  };
  using namespace std::string_view_literals;
  const std::vector<Case> cases = {
      {"<f4", "(2,)", false, "\0\0\x80\x3f\0\0\0\xc0"sv, Tensor::from({2}, {1.0F, -2.0F})},
      {">f4", "(2,)", false, "\x3f\x80\0\0\xc0\0\0\0"sv, Tensor::from({2}, {1.0F, -2.0F})},
      {">i8", "()", false, "\0\0\0\0\0\0\1\2"sv, Tensor::scalar(std::int64_t{258})},
      {"<i4", "(2, 3)", true, "\0\0\0\0\3\0\0\0\1\0\0\0\4\0\0\0\2\0\0\0\5\0\0\0"sv,
       Tensor::from<std::int32_t>({2, 3}, {0, 1, 2, 3, 4, 5})},
      {">i4", "(2, 2)", true, "\0\0\0\0\0\0\0\2\0\0\0\1\0\0\0\3"sv,
       Tensor::from<std::int32_t>({2, 2}, {0, 1, 2, 3})},
      {"|u1", "(1, 2)", false, "\7\xff"sv, Tensor::from<std::uint8_t>({1, 2}, {7, 255})},
      {"|b1", "(2,)", false, "\1\0"sv, Tensor::from<bool>({2}, {true, false})},
      {"<f2", "(1,)", false, "\0\x3c"sv, Tensor::from({1}, {F16(1.0F)})},
      {"<V2", "(1,)", false, "\x80\x3f"sv, Tensor::from({1}, {BF16(1.0F)})},
      {"|V2", "(1,)", false, "\x80\x3f"sv, Tensor::from({1}, {BF16(1.0F)})},
  };
  for (const Case& c : cases) {
    const Tensor read = read_npy(npy(header(c.descr, c.shape, c.fortran), c.data));
    EXPECT_TRUE(read.bit_equal(c.expected)) << c.descr << c.shape << ": " << read;
  }
  // Version 2 has a longer length; entries in any order, other quotes and blanks are Python all the same.
  std::string second = npy("{ \"shape\" : ( 1 , ), 'fortran_order':False , 'descr':'|u1'}", "\x05");
  second[6] = '\2';
  second.insert(10, 2, '\0');
  EXPECT_TRUE(read_npy(second).bit_equal(Tensor::from<std::uint8_t>({1}, {5})));
}

TEST(Npy, RefusesWhatIsNoTensorOrNotWhole) {
  struct Case {
    std::string bytes, refusal;
  };
  std::string huge = npy(header("<f4", "(1,)"), "");
  huge[6] = '\2';
  huge.insert(10, "\x00\x10", 2);
  std::string unknown_version = npy(header("<f4", "()"), "\0\0\0\0");
  unknown_version[6] = '\7';
  const std::vector<Case> cases = {
      {"", "DataLoss: this is no whole .npy file: it does not begin as one"},
      {"PK\3\4", "does not begin as one"},
      {std::string("\x93NUMPY\1", 7), "ends after 7 bytes"},
      {unknown_version, "InvalidArgument: the .npy file has format version 7"},
      {huge, "at most 65536 are read"},
      {npy(header("<f4", "(3,)"), std::string(4, '\0')), "f32[3], 12 bytes, and 4 follow"},
      {npy(header("<f4", "()"), std::string(5, '\0')), "f32[], 4 bytes, and 5 follow"},
      {npy(header("<f8", "(1000000000000,)"), ""), "8000000000000 bytes, and 0 follow"},
      {npy(header("<f8", "(4000000000, 4000000000, 4000000000)"), ""), "InvalidArgument"},
      {npy(header("<f4", "(99999999999999999999,)"), ""), "a dimension in its header is no number"},
      {npy(header("<f4", "(-1,)"), ""), "a dimension in its header is no number"},
      {npy(header("|O", "(1,)"), "\x80\4"), "InvalidArgument: the .npy file holds pickled Python objects"},
      {npy(header("O", "(1,)"), "\x80\4"), "pickled Python objects"},
      {npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "\0\0\0\0"),
       "structured array"},
      {npy(header("<c8", "(1,)"), std::string(8, '\0')), "dtype '<c8'; f2, f4"},
      {npy(header("<U3", "(1,)"), std::string(12, '\0')), "convert it with astype()"},
      {npy(header("|b1", "(1,)"), "\2"), "neither 0 nor 1"},
      {npy("{'descr': '<f4', 'shape': (), }", "\0\0\0\0"), "lacks one of"},
      {npy("{'descr': '<f4', 'descr': '<f4'}", ""), "an entry 'descr' that does not belong there"},
      {npy("{'descr': '<f4", ""), "a string of its header does not end"},
      {npy("{'fortran_order': Maybe}", ""), "neither True nor False"},
      {npy(header("<f4", "()") + " 1", ""), "something behind the dictionary"},
      {npy("[1]", ""), "expected '{'"},
  };
  for (const Case& c : cases) EXPECT_THAT(refusal([&] { read_npy(c.bytes); }), HasSubstr(c.refusal));
  const std::string whole = write_npy(Tensor::from({2, 2}, {1.0F, 2.0F, 3.0F, 4.0F}));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(refusal([&] { read_npy(std::string_view(whole).substr(0, size)); }), "") << size;
  EXPECT_THAT(refusal([] { write_npy(Tensor()); }), HasSubstr("empty tensor handle"));
}

std::map<std::string, Tensor> samples() {
  return {{"w/bias", Tensor::from({3}, {1.0F, 2.0F, 3.0F})},
          {"step", Tensor::scalar(std::int64_t{7})},
          {"large", Tensor::full(DType::kF64, {64, 64}, 0.5)}};
}

TEST(Npz, StoredAndDeflatedFilesReadBack) {
  for (const bool deflate : {false, true}) {
    const std::string file = write_npz(samples(), {.deflate = deflate});
    const std::map<std::string, Tensor> back = read_npz(file);
    ASSERT_EQ(back.size(), 3U);
    for (const auto& [name, tensor] : samples()) EXPECT_TRUE(back.at(name).bit_equal(tensor)) << name;
    EXPECT_EQ(write_npz(back, {.deflate = deflate}), file) << "equal tensors give equal bytes";
    EXPECT_EQ(file.size() < 4096, deflate) << file.size();
  }
  EXPECT_TRUE(read_npz(write_npz({})).empty());
}

TEST(Npz, FilesAreReadAsTheirBytesAre) {
  const std::string folder = ::testing::TempDir();
  const std::string packed = str(folder, "/lockstep_load_", getpid(), ".npz");
  for (const bool deflate : {false, true}) {
    write_file_whole(packed, write_npz(samples(), {.deflate = deflate}));
    const std::map<std::string, Tensor> back = load_npz(packed);
    ASSERT_EQ(back.size(), 3U);
    for (const auto& [name, tensor] : samples()) EXPECT_TRUE(back.at(name).bit_equal(tensor)) << name;
  }
  const std::string plain = str(folder, "/lockstep_load_", getpid(), ".npy");
  write_file_whole(plain, write_npy(samples().at("large")));
  EXPECT_TRUE(load_npy(plain).bit_equal(samples().at("large")));
  EXPECT_THAT(refusal([&] { load_npy(plain, {.file_bytes = 100}); }),
              HasSubstr("more than the limit of 100;"));
  EXPECT_THAT(refusal([&] { load_npz(packed, {.file_bytes = 100}); }),
              HasSubstr("more than the limit of 100;"));
  EXPECT_THAT(refusal([&] { load_npy("/dev/zero"); }), HasSubstr("ReadLimits::base_bytes"));
  EXPECT_THAT(refusal([&] { load_npz("/dev/zero"); }), HasSubstr("ReadLimits::base_bytes"));
  EXPECT_EQ(refusal([&] { load_npz(plain); }),
            str("DataLoss: ", plain, ": this is no whole .npz file: its list of entries is missing"));
  EXPECT_EQ(refusal([&] { load_npy(packed); }),
            str("DataLoss: ", packed, ": this is no whole .npy file: it does not begin as one"));
  std::filesystem::remove(packed);
  EXPECT_THAT(refusal([&] { load_npz(packed); }), HasSubstr("NotFound"));
  // What is no plain file has no place to read again from.
  EXPECT_THAT(refusal([&] { load_npz("/dev/null"); }), HasSubstr("it is too short"));
  std::filesystem::remove(plain);
}

// The most memory that the process has had since it asked to forget; empty where the system does not count
// it.
std::optional<std::size_t> peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  }
  return {};
}
bool forget_peak() { return static_cast<bool>(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

TEST(Npz, ReadingAFileTakesTheMemoryOfItsArraysOnce) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
  if (!forget_peak() || !peak_bytes()) GTEST_SKIP() << "the system does not count the most memory used";
  constexpr std::int64_t kSide = 1024;
  constexpr std::size_t kBytes = kSide * kSide * sizeof(double);  // 8 MiB each
  const std::string path = str(::testing::TempDir(), "/lockstep_peak_", getpid());
  const auto grown_by = [&](const auto& load) {
    forget_peak();
    const std::size_t before = *peak_bytes();
    load();
    return static_cast<double>(*peak_bytes() - before) / kBytes;
  };
  for (const bool deflate : {false, true}) {
    write_file_whole(path, write_npz({{"a", Tensor::full(DType::kF64, {kSide, kSide}, 1.0)},
                                      {"b", Tensor::full(DType::kF64, {kSide, kSide}, 2.0)}},
                                     {.deflate = deflate}));
    EXPECT_LT(grown_by([&] { EXPECT_EQ(load_npz(path).size(), 2U); }), 2.2) << "two arrays";
  }
  const std::string fortran =
      npy(header("<f8", str("(", kSide, ", ", kSide, ")"), true), std::string(kBytes, '\0'));
  write_file_whole(path, fortran);
  EXPECT_LT(grown_by([&] { EXPECT_EQ(load_npy(path).num_bytes(), kBytes); }), 1.2);
  std::filesystem::remove(path);
}

TEST(Npz, NoTruncationAndNoFlippedBitOfTheDataPasses) {
  for (const bool deflate : {false, true}) {
    const Tensor tensor = Tensor::from({4}, {1.0F, 2.0F, 3.0F, 4.0F});
    const std::string file = write_npz({{"x", tensor}}, {.deflate = deflate});
    for (std::size_t size = 0; size < file.size(); ++size)
      EXPECT_NE(refusal([&] { read_npz(std::string_view(file).substr(0, size)); }), "") << size;
    // Behind the local header lies what the checksum covers.
    const std::size_t begin = 30 + std::string_view("x.npy").size();
    const std::size_t end = file.rfind("PK\1\2");
    for (std::size_t bit = begin * 8; bit < end * 8; ++bit) {
      std::string flipped = file;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      std::map<std::string, Tensor> read;
      const std::string refused = refusal([&] { read = read_npz(flipped); });
      // The last byte of what is deflated may have bits that mean nothing.
      if (deflate && bit / 8 + 1 == end && refused.empty()) {
        EXPECT_TRUE(read.at("x").bit_equal(tensor)) << bit;
      } else {
        EXPECT_THAT(refused, HasSubstr("DataLoss")) << bit;
      }
    }
    // Elsewhere a flip may go unnoticed (times, versions), but nothing crashes.
    for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
      std::string flipped = file;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      refusal([&] { read_npz(flipped); });
    }
  }
}

TEST(Npz, HostileFilesAreRefusedBeforeMemoryIsTaken) {
  const std::string file = write_npz({{"x", Tensor::zeros({1024, 1024})}}, {.deflate = true});
  EXPECT_THAT(refusal([&] { read_npz(file, {.base_bytes = 1 << 20, .bytes_per_byte = 0}); }),
              HasSubstr("more than 1048576 bytes of memory, the limit for a file of"));
  EXPECT_THAT(refusal([&] { read_npz(file, {.file_bytes = 100}); }),
              HasSubstr("more than the limit of 100;"));
  const std::size_t central = file.rfind("PK\1\2");
  const auto with = [&](std::size_t at, std::string_view bytes) {
    std::string changed = file;
    changed.replace(at, bytes.size(), bytes);
    return changed;
  };
  using namespace std::string_view_literals;
  // Sizes, flags, methods and places that lie.
  EXPECT_THAT(refusal([&] { read_npz(with(central + 24, "\xfe\xff\xff\xff"sv)); }),
              HasSubstr("claims 4294967294 bytes"));
  EXPECT_THAT(refusal([&] { read_npz(with(central + 24, "\x80\x00\x41\x00"sv)); }),
              HasSubstr("does not unpack"));
  EXPECT_THAT(refusal([&] { read_npz(with(central + 20, "\xff\xff\xff\x7f"sv)); }), HasSubstr("DataLoss"));
  EXPECT_THAT(refusal([&] { read_npz(with(central + 8, "\1\0"sv)); }), HasSubstr("encrypted"));
  EXPECT_THAT(refusal([&] { read_npz(with(central + 10, "\xe\0"sv)); }), HasSubstr("packed by method 14"));
  EXPECT_THAT(refusal([&] { read_npz(with(central + 42, "\xff\xff\0\0"sv)); }), HasSubstr("DataLoss"));
  EXPECT_THAT(refusal([&] { read_npz(with(central + 46, "y.txt"sv)); }),
              HasSubstr("'y.txt' of the .npz file is no array"));
  // Two entries of one name.
  const std::string two = write_npz({{"a", Tensor::scalar(1.0F)}, {"b", Tensor::scalar(2.0F)}});
  std::string twins = two;
  twins[two.rfind("b.npy")] = 'a';
  EXPECT_THAT(refusal([&] { read_npz(twins); }), HasSubstr("two entries 'a.npy'"));
}

// A small file that asks for much, in each of the ways there are.
TEST(Npz, MemoryAndWorkAreInProportionToTheFile) {
  // 70 MiB of zeros, deflated.
  const std::string zeros = write_npz({{"x", Tensor::zeros(DType::kU8, {70 << 20})}}, {.deflate = true});
  ASSERT_LT(zeros.size(), 100'000U);
  EXPECT_THAT(
      refusal([&] { read_npz(zeros); }),
      HasSubstr("whoever trusts it raises ReadLimits::base_bytes in C++, --read-limit on the command line"));
  EXPECT_EQ(read_npz(zeros, {.base_bytes = 71 << 20}).size(), 1U);
  EXPECT_EQ(read_npz(zeros, ReadLimits::unlimited()).size(), 1U);
  // One tensor that many entries of the list claim.
  const std::string one = write_npz({{"a", Tensor::full(DType::kF64, {1000}, 1.5)}});
  const std::size_t central = one.rfind("PK\1\2"), end = one.rfind("PK\5\6");
  std::string shared = one.substr(0, central);
  for (char name = 'a'; name <= 'c'; ++name) {
    std::string entry = one.substr(central, end - central);
    entry[46] = name;
    shared += entry;
  }
  std::string tail = one.substr(end);
  tail[8] = tail[10] = 3;
  EXPECT_THAT(refusal([&] { read_npz(shared + tail); }), HasSubstr("its entries overlap"));
  // Many entries of hardly anything: each takes memory beside its bytes.
  std::map<std::string, Tensor> many;
  for (int i = 0; i < 1000; ++i) many.emplace(str(i), Tensor::zeros(DType::kU8, {0}));
  const std::string list = write_npz(many, {.deflate = true});
  EXPECT_THAT(refusal([&] { read_npz(list, {.base_bytes = 0, .bytes_per_byte = 2}); }),
              HasSubstr("bytes of memory, the limit"));
  EXPECT_EQ(read_npz(list).size(), 1000U);
}

TEST(Npy, MemoryIsWithinTheLimits) {
  const std::string file = write_npy(Tensor::zeros({1000}));
  EXPECT_THAT(refusal([&] { read_npy(file, {.file_bytes = 4000}); }), HasSubstr("ReadLimits::file_bytes"));
  EXPECT_THAT(refusal([&] { read_npy(file, {.base_bytes = 3999, .bytes_per_byte = 0}); }),
              HasSubstr("ReadLimits::base_bytes"));
  EXPECT_EQ(read_npy(file, {.base_bytes = 4000, .bytes_per_byte = 0}).num_bytes(), 4000U);
}

// A name of a file is shown in messages, and must not speak to the terminal.
TEST(Npz, NamesAreQuotedWithoutControlCharacters) {
  const std::string file = write_npz({{"x\x1b[2J", Tensor::scalar(1.0F)}});
  std::string renamed = file;
  renamed.replace(renamed.rfind(".npy"), 4, "\xc2\x9bQ\n");
  EXPECT_THAT(refusal([&] { read_npz(renamed); }),
              HasSubstr("entry 'x\\x1b[2J\\u009bQ\\n' of the .npz file is no array"));
  EXPECT_THAT(refusal([&] { read_npy(npy(header("\x1b]0;t\x07", "()"), "")); }),
              HasSubstr("has dtype '\\x1b]0;t\\x07'"));
}

}  // namespace
}  // namespace lockstep

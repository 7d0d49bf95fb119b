// io/formats/idx_rows.cpp - the rows of IDX files: their header, and big-endian elements.
//
//   0, 0, type (1 byte), number of axes (1 byte), one u32 for each axis, the elements in row-major order
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/tensor.h"
#include "lockstep/io/formats/array_rows.h"
#include "lockstep/io/formats/internal/byte_stream.h"
#include "lockstep/io/formats/internal/memory_rows.h"

namespace lockstep {
namespace {

using internal::ByteStream;
using internal::InputFile;

struct IdxType {
  unsigned mark;
  std::size_t bytes;  // of an element in the file
  DType dtype;        // of the tensor
};
constexpr std::array<IdxType, 6> kIdxTypes = {{{0x08, 1, DType::kU8},
                                               {0x09, 1, DType::kI32},
                                               {0x0B, 2, DType::kI32},
                                               {0x0C, 4, DType::kI32},
                                               {0x0D, 4, DType::kF32},
                                               {0x0E, 8, DType::kF64}}};

struct IdxHeader {
  IdxType type = kIdxTypes[0];
  TensorSpec spec;
  std::uint64_t elements = 0;
  std::uint64_t begin = 0;  // of the elements
  std::uint64_t bytes() const { return elements * type.bytes; }
};

[[noreturn]] void damaged_idx(const ByteStream& stream, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, str(stream.path().string(), ": this is no whole IDX file: ", what));
}

std::uint32_t big_endian_u32(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8U | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

IdxHeader read_idx_header(ByteStream& stream) {
  const std::string_view start = stream.peek(4 + 255 * 4);
  if (start.size() < 4) damaged_idx(stream, str("it ends after ", start.size(), " bytes, inside its header"));
  if (start[0] != 0 || start[1] != 0) damaged_idx(stream, "it does not begin with two zeros");
  const unsigned mark = static_cast<unsigned char>(start[2]);
  const auto type = std::ranges::find(kIdxTypes, mark, &IdxType::mark);
  if (type == kIdxTypes.end())
    damaged_idx(stream, str("byte 2: its type ", mark, " is none of 8, 9, 11, 12, 13 and 14"));
  const std::size_t rank = static_cast<unsigned char>(start[3]);
  IdxHeader header{.type = *type, .spec = {}, .begin = 4 + 4 * std::uint64_t{rank}};
  if (start.size() < header.begin)
    damaged_idx(stream, str("it ends after ", start.size(), " bytes, inside its header"));
  std::vector<std::int64_t> dims;
  for (std::size_t axis = 0; axis < rank; ++axis) dims.push_back(big_endian_u32(start, 4 + 4 * axis));
  try {
    header.spec = {type->dtype, Shape{std::span<const std::int64_t>(dims)}};
  } catch (const InvalidArgument& error) {
    damaged_idx(stream, error.message());
  }
  header.elements = static_cast<std::uint64_t>(header.spec.shape.num_elements());
  stream.skip(static_cast<std::size_t>(header.begin));
  const std::uint64_t left = stream.most_left();
  // 62 bits are enough for the elements: there is room for their bytes if there are so few.
  const bool too_many = header.elements > left || header.bytes() > left;
  if (too_many || (!stream.is_packed() && header.bytes() != left)) {
    damaged_idx(stream,
                str("its header says ", header.spec.shape, " elements of ", counted(type->bytes, "byte"),
                    ", and ", stream.is_packed() ? "at most " : "", counted(left, "byte"), " follow"));
  }
  return header;
}

template <class From, class To>
void widen(const char* from, To* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::array<char, sizeof(From)> bytes{};
    std::reverse_copy(from + i * sizeof(From), from + (i + 1) * sizeof(From), bytes.begin());
    From value;
    std::memcpy(&value, bytes.data(), sizeof value);
    to[i] = static_cast<To>(value);  // NOLINT(bugprone-signed-char-misuse): i8 has a sign
  }
}

// Elements as they lie in the file become those of a tensor.
void convert_idx(unsigned mark, const char* from, char* to, std::size_t count) {
  switch (mark) {
    case 0x08: std::memcpy(to, from, count); return;
    case 0x09: widen<signed char>(from, reinterpret_cast<std::int32_t*>(to), count); return;
    case 0x0B: widen<std::int16_t>(from, reinterpret_cast<std::int32_t*>(to), count); return;
    case 0x0C: widen<std::int32_t>(from, reinterpret_cast<std::int32_t*>(to), count); return;
    case 0x0D: widen<float>(from, reinterpret_cast<float*>(to), count); return;
    default: widen<double>(from, reinterpret_cast<double*>(to), count); return;
  }
}

constexpr std::size_t kIdxPiece = std::size_t{64} << 10U;

// Pulls `elements` elements by pull(char* to, std::size_t bytes), through a small buffer.
template <class Pull>
void pull_idx(const IdxType& type, std::uint64_t elements, char* to, const Pull& pull) {
  if (type.mark == 0x08) return pull(to, static_cast<std::size_t>(elements));
  std::string piece(kIdxPiece, '\0');
  for (std::uint64_t left = elements; left > 0;) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, kIdxPiece / type.bytes));
    pull(piece.data(), count * type.bytes);
    convert_idx(type.mark, piece.data(), to, count);
    to += count * size_of(type.dtype);
    left -= count;
  }
}

// A plain IDX file.
class IdxRows final : public internal::CheckedRows {
 public:
  IdxRows(const std::filesystem::path& path, const IdxHeader& header)
      : CheckedRows(path, header.spec),
        file_(path),
        header_(header),
        row_elements_(static_cast<std::uint64_t>(row().shape.num_elements())) {}

 private:
  void read_rows(std::int64_t first, std::int64_t count, char* to) const override {
    std::uint64_t at = header_.begin + static_cast<std::uint64_t>(first) * row_elements_ * header_.type.bytes;
    pull_idx(header_.type, static_cast<std::uint64_t>(count) * row_elements_, to,
             [&](char* piece, std::size_t bytes) {
               file_.read_at(at, piece, bytes);
               at += bytes;
             });
  }

  InputFile file_;
  IdxHeader header_;
  std::uint64_t row_elements_;
};

// The elements of a packed file. What it claims is checked against what it may hold, and unpacked twice: first
// to count.
Tensor unpack_idx(ByteStream& stream, const IdxHeader& header, const ReadLimits& limits) {
  const auto wanted = static_cast<std::uint64_t>(num_bytes(header.spec));
  if (wanted > limits.memory_for(stream.file_bytes())) {
    throw InvalidArgument(
        str(stream.path().string(), ": it unpacks to ", header.spec, ", ", wanted, " bytes, more than ",
            limits.memory_for(stream.file_bytes()), ", the limit for a file of ", stream.file_bytes(),
            " bytes; unpack it with gunzip, or raise ReadLimits::base_bytes in C++, --read-limit on "
            "the command line"));
  }
  std::uint64_t there = 0;
  for (std::string_view some = stream.peek(1); !some.empty() && there <= header.bytes();
       some = stream.peek(1)) {
    there += some.size();
    stream.skip(some.size());
  }
  if (there != header.bytes()) {
    damaged_idx(stream,
                str("its header says ", header.spec.shape, " elements of ",
                    counted(header.type.bytes, "byte"), ", and ", there > header.bytes() ? "more than " : "",
                    counted(std::min(there, header.bytes()), "byte"), " follow"));
  }
  stream.seek(header.begin);
  Tensor tensor = Tensor::empty(header.spec.dtype, header.spec.shape);
  pull_idx(header.type, header.elements, static_cast<char*>(tensor.raw()), [&](char* to, std::size_t bytes) {
    if (stream.read(to, bytes) < bytes) damaged_idx(stream, "it became shorter while it was read");
  });
  return tensor;
}

}  // namespace

std::unique_ptr<ArrayRows> open_idx_rows(const std::filesystem::path& path, const ReadLimits& limits) {
  ByteStream stream(path, Compression::kAuto, ByteStream::begins_as_text);
  const IdxHeader header = read_idx_header(stream);
  if (!stream.is_packed()) return std::make_unique<IdxRows>(path, header);
  return std::make_unique<internal::MemoryRows>(path, unpack_idx(stream, header, limits));
}

}  // namespace lockstep

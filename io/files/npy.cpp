// io/files/npy.cpp - tensors in NumPy's .npy format.
#include "lockstep/io/files/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/files/internal/npy_reader.h"
#include "lockstep/io/files/internal/raw_blocks.h"

namespace lockstep {

namespace {

using internal::PullBytes;

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = std::size_t{1} << 16U;
constexpr std::size_t kDataAlignment = 64;

struct Spelling {
  std::string_view kind;  // without the mark of the byte order
  DType dtype;
};
constexpr std::array<Spelling, 8> kSpellings = {{{"f2", DType::kF16},
                                                 {"V2", DType::kBF16},
                                                 {"f4", DType::kF32},
                                                 {"f8", DType::kF64},
                                                 {"i4", DType::kI32},
                                                 {"i8", DType::kI64},
                                                 {"u1", DType::kU8},
                                                 {"b1", DType::kBool}}};

[[noreturn]] void damaged_npy(const std::string& what) {
  throw Error(ErrorCode::kDataLoss, str("this is no whole .npy file: ", what));
}

// The header: a dictionary in Python's notation with exactly three known entries.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  struct Header {
    std::string descr;
    bool fortran = false;
    std::vector<std::int64_t> shape;
  };

  Header read() {
    std::optional<std::string> descr;
    std::optional<bool> fortran;
    std::optional<std::vector<std::int64_t>> shape;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !descr) {
        descr = dtype();
      } else if (key == "fortran_order" && !fortran) {
        fortran = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        damaged_npy(str("its header has an entry '", printable(key), "' that does not belong there"));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (at_ != text_.size()) damaged_npy("there is something behind the dictionary of its header");
    if (!descr || !fortran || !shape)
      damaged_npy("its header lacks one of 'descr', 'fortran_order' and 'shape'");
    return {*std::move(descr), *fortran, *std::move(shape)};
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) damaged_npy(str("expected '", c, "' at byte ", at_, " of its header"));
  }
  std::string string() {
    skip_blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') damaged_npy(str("expected a string at byte ", at_, " of its header"));
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) damaged_npy("a string of its header does not end");
    const std::string_view inside = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return std::string(inside);
  }
  std::string dtype() {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == '[') {
      throw InvalidArgument(
          "the .npy file holds a structured array, which is no tensor; save its fields one by one");
    }
    return string();
  }
  bool boolean() {
    skip_blanks();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    damaged_npy("'fortran_order' of its header is neither True nor False");
  }
  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> dims;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::int64_t dim = -1;
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), dim);
      if (error != std::errc() || dim < 0) damaged_npy("a dimension in its header is no number");
      at_ += static_cast<std::size_t>(end - begin);
      dims.push_back(dim);
      if (dims.size() > Shape::kMaxRank)
        damaged_npy(str("it has more than ", Shape::kMaxRank, " dimensions"));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return dims;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

struct Encoding {
  DType dtype = DType::kF32;
  bool swap = false;
};

Encoding encoding_of(std::string_view descr) {
  std::string_view kind = descr;
  char order = '|';
  if (!kind.empty() && std::string_view("<>|=").find(kind.front()) != std::string_view::npos) {
    order = kind.front();
    kind.remove_prefix(1);
  }
  if (kind.starts_with('O')) {
    throw InvalidArgument(
        "the .npy file holds pickled Python objects; reading those would run code, so they are refused. Save "
        "an array "
        "of numbers");
  }
  for (const Spelling& spelling : kSpellings) {
    if (spelling.kind != kind) continue;
    const bool foreign = std::endian::native == std::endian::little ? order == '>' : order == '<';
    return {spelling.dtype, foreign && size_of(spelling.dtype) > 1};
  }
  throw InvalidArgument(
      str("the .npy file has dtype '", printable(descr),
          "'; f2, f4, f8, i4, i8, u1, b1 and V2 (bf16) can be read: convert it with astype()"));
}

// Converts Fortran order (the first index runs fastest) to C order (the last index does).
void pull_fortran(const PullBytes& pull, char* to, const Shape& shape, std::size_t size) {
  const std::size_t rank = shape.rank();
  std::vector<std::int64_t> index(rank, 0);
  std::vector<std::size_t> stride(rank, size);
  for (std::size_t d = rank - 1; d-- > 0;) stride[d] = stride[d + 1] * static_cast<std::size_t>(shape[d + 1]);
  std::array<char, 64 * 1024> part{};
  const auto per_part = static_cast<std::int64_t>(part.size() / size);
  std::size_t target = 0;
  for (std::int64_t left = shape.num_elements(); left > 0;) {
    const std::int64_t count = std::min(left, per_part);
    pull(part.data(), static_cast<std::size_t>(count) * size);
    left -= count;
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(to + target, part.data() + static_cast<std::size_t>(i) * size, size);
      for (std::size_t d = 0; d < rank; ++d) {
        target += stride[d];
        if (++index[d] < shape[d]) break;
        target -= stride[d] * static_cast<std::size_t>(shape[d]);
        index[d] = 0;
      }
    }
  }
}

}  // namespace

void internal::check_bytes(std::uint64_t size, std::string_view what, const ReadLimits& limits) {
  if (size <= limits.file_bytes) return;
  throw InvalidArgument(
      str("the ", what, " file has ", size, " bytes, more than the limit of ", limits.file_bytes,
          "; whoever trusts it raises ReadLimits::file_bytes in C++, --read-limit on the command "
          "line"));
}

void internal::check_memory(std::uint64_t wanted, std::uint64_t size, std::string_view what,
                            const ReadLimits& limits) {
  if (wanted <= limits.memory_for(size)) return;
  throw InvalidArgument(
      str("the ", what, " file would take more than ", limits.memory_for(size),
          " bytes of memory, the limit for a file of ", size,
          "; whoever trusts it raises ReadLimits::base_bytes in C++, --read-limit on the command "
          "line"));
}

internal::NpyLayout internal::pull_npy_header(std::uint64_t size, const PullBytes& pull) {
  std::array<char, 12> start{};
  pull(start.data(), static_cast<std::size_t>(std::min<std::uint64_t>(size, kMagic.size())));
  if (!std::string_view(start.data(), start.size()).starts_with(kMagic))
    damaged_npy("it does not begin as one");
  if (size < start.size()) damaged_npy(str("it ends after ", size, " bytes, inside its header"));
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(start[i]));
  };
  pull(start.data() + kMagic.size(), 1);
  const std::size_t version = byte(kMagic.size());
  if (version < 1 || version > 3) {
    throw InvalidArgument(str("the .npy file has format version ", version, "; 1, 2 and 3 are known"));
  }
  const std::size_t begin = version == 1 ? 10 : 12;
  pull(start.data() + kMagic.size() + 1, begin - kMagic.size() - 1);
  std::size_t length = byte(8) | (byte(9) << 8U);
  if (version > 1) length |= (byte(10) << 16U) | (byte(11) << 24U);
  if (length > kMaxHeader)
    damaged_npy(str("its header claims ", length, " bytes; at most ", kMaxHeader, " are read"));
  if (length > size - begin) damaged_npy("it ends inside its header");
  std::string text(length, '\0');
  pull(text.data(), length);
  const HeaderReader::Header header = HeaderReader(text).read();
  const Encoding encoding = encoding_of(header.descr);

  const TensorSpec spec{encoding.dtype, Shape{std::span<const std::int64_t>(header.shape)}};
  const auto wanted = static_cast<std::uint64_t>(num_bytes(spec));
  if (size - begin - length != wanted) {
    damaged_npy(
        str("its header says ", spec, ", ", wanted, " bytes, and ", size - begin - length, " follow"));
  }
  return {spec, header.fortran && spec.shape.rank() > 1, encoding.swap, begin + length};
}

void internal::finish_npy_elements(const NpyLayout& layout, char* to, std::size_t bytes) {
  const std::size_t size = size_of(layout.spec.dtype);
  if (layout.swap) {
    for (char* element = to; element != to + bytes; element += size) std::reverse(element, element + size);
  }
  if (layout.spec.dtype == DType::kBool && !are_truth_values({to, bytes}))
    damaged_npy("an element of its bools is neither 0 nor 1");
}

Tensor internal::pull_npy(std::uint64_t size, const PullBytes& pull, const ReadLimits& limits) {
  const NpyLayout layout = pull_npy_header(size, pull);
  const std::uint64_t wanted = size - layout.begin;
  check_memory(wanted, size, ".npy", limits);
  Tensor tensor = Tensor::empty(layout.spec.dtype, layout.spec.shape);
  if (wanted == 0) return tensor;
  auto* const to = static_cast<char*>(tensor.raw());
  if (layout.fortran) {
    pull_fortran(pull, to, layout.spec.shape, size_of(layout.spec.dtype));
  } else {
    pull(to, static_cast<std::size_t>(wanted));
  }
  finish_npy_elements(layout, to, static_cast<std::size_t>(wanted));
  return tensor;
}

Tensor read_npy(std::string_view bytes, const ReadLimits& limits) {
  internal::check_bytes(bytes.size(), ".npy", limits);
  const auto pull = [&](char* to, std::size_t count) {
    bytes.copy(to, count);
    bytes.remove_prefix(count);
  };
  return internal::pull_npy(bytes.size(), pull, limits);
}

Tensor load_npy(const std::filesystem::path& path, const ReadLimits& limits) {
  using internal::InputFile;
  InputFile file(path, InputFile::Accepts::kAnything);
  if (!file.is_plain() || file.position() != 0) {
    const std::string bytes = file.read_rest(limits);
    return internal::read_naming(file, [&] { return read_npy(bytes, limits); });
  }
  file.check_size(limits);
  const auto pull = [&](char* to, std::size_t count) { file.read(to, count); };
  return internal::read_naming(file, [&] { return internal::pull_npy(file.size(), pull, limits); });
}

std::string write_npy(const Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument("an empty tensor handle cannot be written as .npy");
  const auto spelling = std::ranges::find(kSpellings, tensor.dtype(), &Spelling::dtype);
  LOCKSTEP_CHECK(spelling != kSpellings.end());
  const std::size_t size = size_of(tensor.dtype());
  std::string header =
      str("{'descr': '", size == 1 ? '|' : '<', spelling->kind, "', 'fortran_order': False, 'shape': (");
  for (const std::int64_t dim : tensor.shape().dims()) header += str(dim, ",");
  header += "), }";
  const std::size_t unpadded = kMagic.size() + 4 + header.size() + 1;
  header.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  header += '\n';

  std::string bytes(kMagic);
  bytes.reserve(kMagic.size() + 4 + header.size() + tensor.num_bytes());
  bytes += '\1';
  bytes += '\0';
  bytes += static_cast<char>(header.size() & 0xFFU);
  bytes += static_cast<char>((header.size() >> 8U) & 0xFFU);
  bytes += header;
  const std::size_t begin = bytes.size();
  bytes.append(static_cast<const char*>(tensor.host().raw()), tensor.num_bytes());
  if (std::endian::native == std::endian::big && size > 1) {
    for (auto at = bytes.begin() + static_cast<std::ptrdiff_t>(begin); at != bytes.end();
         at += static_cast<std::ptrdiff_t>(size)) {
      std::reverse(at, at + static_cast<std::ptrdiff_t>(size));
    }
  }
  return bytes;
}

}  // namespace lockstep

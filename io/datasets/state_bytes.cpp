// io/datasets/state_bytes.cpp - numbers of variable length: seven bits a byte, the lowest first.
#include "lockstep/io/datasets/internal/state_bytes.h"

#include "lockstep/core/error.h"

namespace lockstep::internal {

void StateWriter::number(std::uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) text_.push_back(static_cast<char>((value & 0x7FU) | 0x80U));
  text_.push_back(static_cast<char>(value));
}

void StateWriter::bytes(std::string_view value) {
  number(value.size());
  text_ += value;
}

std::uint64_t StateReader::number(std::uint64_t most, std::string_view what) {
  std::uint64_t value = 0;
  for (unsigned shift = 0;; shift += 7) {
    if (rest_.empty()) damaged_state(str("it ends before ", what));
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) damaged_state(str(what, " has more than 64 bits"));
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80U) break;
  }
  if (value > most) damaged_state(str(what, " is ", value, ", and can be ", most, " at most"));
  return value;
}

std::string_view StateReader::bytes(std::string_view what) {
  const auto size = static_cast<std::size_t>(number(kMostStateBytes, what));
  if (size > rest_.size())
    damaged_state(str(what, " claims ", size, " bytes, and ", rest_.size(), " are left"));
  const std::string_view value = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return value;
}

void damaged_state(std::string_view what) {
  throw Error(ErrorCode::kDataLoss, str("the state of a dataset's iterator is damaged: ", what,
                                        "; begin the epoch anew, or restore another one"));
}

}  // namespace lockstep::internal

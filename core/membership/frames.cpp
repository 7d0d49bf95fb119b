// core/membership/frames.cpp - messages in a stream of bytes, each sealed with a secret.
#include "lockstep/core/membership/internal/frames.h"

#include <span>

#include "lockstep/core/membership/internal/fields.h"

namespace lockstep::internal {
namespace {

constexpr std::size_t kLength = 4;

// Equal in a time that does not depend on where they differ.
bool are_equal_texts(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  return difference == 0;
}

}  // namespace

std::string Seal::next(std::string_view message) {
  if (!key_) return {};
  const Sha256Hash hash = HmacSha256(*key_).add(FieldWriter().add(number_++).take()).add(message).hash();
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as characters
  return {reinterpret_cast<const char*>(hash.data()), kBytes};
}

std::string FrameWriter::frame(std::string_view message) {
  const std::string seal = seal_.next(message);
  std::string frame = FieldWriter().add(static_cast<std::uint32_t>(message.size() + seal.size())).take();
  frame += message;
  frame += seal;
  return frame;
}

std::optional<std::string> FrameReader::next() {
  const std::string_view rest = std::string_view(bytes_).substr(taken_);
  if (rest.size() < kLength) return std::nullopt;
  const std::size_t length = FieldReader(rest.substr(0, kLength)).number<std::uint32_t>();
  const std::size_t seal = seal_.is_used() ? Seal::kBytes : 0;
  if (length > (seal_.is_used() ? kMostFromMembers : kMostFromStrangers))
    throw NotUnderstood("a message is too long");
  if (length < seal) throw NotUnderstood("a message has no seal");
  if (rest.size() < kLength + length) return std::nullopt;
  std::string message(rest.substr(kLength, length - seal));
  if (!are_equal_texts(rest.substr(kLength + length - seal, seal), seal_.next(message)))
    throw NotUnderstood("a message has a wrong seal");
  taken_ += kLength + length;
  if (taken_ == bytes_.size()) {
    bytes_.clear();
    taken_ = 0;
  } else if (taken_ > (1 << 16)) {
    bytes_.erase(0, taken_);
    taken_ = 0;
  }
  return message;
}

}  // namespace lockstep::internal

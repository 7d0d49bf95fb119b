// core/membership/fields.cpp - numbers and texts as bytes, and back.
#include "lockstep/core/membership/internal/fields.h"

namespace lockstep::internal {

std::string_view FieldReader::next(std::size_t bytes) {
  if (rest_.size() < bytes) throw NotUnderstood("a message ends too early");
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

std::string_view FieldReader::text(std::size_t most) {
  const auto length = number<std::uint32_t>();
  if (length > most) throw NotUnderstood("a text in a message is too long");
  return next(length);
}

void FieldReader::end() const {
  if (!rest_.empty()) throw NotUnderstood("a message is longer than it should be");
}

}  // namespace lockstep::internal

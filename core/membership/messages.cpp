// core/membership/messages.cpp - what the hub and its guests say to each other.
#include "lockstep/core/membership/internal/messages.h"

#include <array>
#include <cstdio>
#include <span>
#include <utility>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/membership/internal/fields.h"
#include "lockstep/core/membership/internal/frames.h"

namespace lockstep::internal {
namespace {

struct Shape {
  std::size_t numbers = 0, texts = 0;
};
constexpr std::size_t kAny = 1 << 20;

constexpr Shape shape_of(MessageKind kind) {
  switch (kind) {
    case MessageKind::kChallenge: return {1, 2};
    case MessageKind::kJoin: return {4, 5};
    case MessageKind::kRefuse: return {2, 1};
    case MessageKind::kWelcome: return {0, 1};
    case MessageKind::kMissing: return {0, 1};
    case MessageKind::kRoster: return {0, kAny};
    case MessageKind::kBeat: return {3, 1};
    case MessageKind::kPut: return {1, 2};
    case MessageKind::kTaken: return {2, 0};
    case MessageKind::kLook: return {2, 1};
    case MessageKind::kValue: return {2, 1};
    case MessageKind::kClaim: return {1, 2};
    case MessageKind::kAgreed: return {0, 1};
    case MessageKind::kAskText: return {0, 1};
    case MessageKind::kText: return {0, 2};
    case MessageKind::kDiffer: return {1, 2};
    case MessageKind::kVerdict: return {2, 1};
    case MessageKind::kHeard: return {0, 0};
    case MessageKind::kLeave: return {0, 0};
    case MessageKind::kLeft: return {1, 0};
    case MessageKind::kStatus: return {0, 1};
  }
  throw NotUnderstood("a message of an unknown kind");
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const Sha256Hash& hash) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as characters
  return {reinterpret_cast<const char*>(hash.data()), hash.size()};
}

}  // namespace

std::string Message::encode() const {
  FieldWriter out;
  out.add(static_cast<std::uint8_t>(kind));
  out.add(static_cast<std::uint32_t>(texts.size()));
  for (const std::int64_t number : numbers) out.add(number);
  for (const std::string& text : texts) out.add(text);
  return out.take();
}

Message Message::decode(std::string_view bytes) {
  FieldReader in(bytes);
  Message message{.kind = static_cast<MessageKind>(in.number<std::uint8_t>())};
  const Shape shape = shape_of(message.kind);
  const std::size_t texts = in.number<std::uint32_t>();
  if (shape.texts == kAny ? texts > kAny : texts != shape.texts)
    throw NotUnderstood("a message with a wrong number of texts");
  for (std::size_t i = 0; i < shape.numbers; ++i) message.numbers.push_back(in.number<std::int64_t>());
  for (std::size_t i = 0; i < texts; ++i) message.texts.emplace_back(in.text(kMostFromMembers));
  in.end();
  return message;
}

SessionKeys session_keys(std::string_view secret, std::string_view hub_nonce, std::string_view guest_nonce) {
  const auto key = [&](std::string_view of) {
    return HmacSha256(bytes_of(secret))
        .add(FieldWriter().add(of).add(hub_nonce).add(guest_nonce).take())
        .hash();
  };
  return {key("of the hub"), key("of the guest"), text_of(key("welcome"))};
}

std::string proof(std::string_view secret, std::string_view hub_nonce, const Message& join) {
  Message claims = join;
  claims.texts.back().clear();  // where the proof goes
  return text_of(HmacSha256(bytes_of(secret))
                     .add(FieldWriter().add(std::string_view("join")).add(hub_nonce).take())
                     .add(claims.encode())
                     .hash());
}

std::string shown(std::string_view text, std::size_t most) { return printable(text.substr(0, most)); }

std::string seconds_text(std::chrono::nanoseconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", std::chrono::duration<double>(time).count());
  return text.data();
}

}  // namespace lockstep::internal

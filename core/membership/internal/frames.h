// core/membership/internal/frames.h - messages in a stream of bytes, each sealed with a secret.
//
//   FrameWriter out;                      FrameReader in;
//   socket.send(out.frame(message));      in.feed(socket.receive());
//   out.seal_with(key);                   while (auto message = in.next()) ...
//
// A frame is the length of what follows (4 bytes, little-endian), the message, and the seal: the first 16 bytes of the HMAC-SHA256
// of the frame's number on this connection and the message. Before a key is known there is no seal. So nobody without the key can
// change, repeat, leave out or reorder messages unseen, once the key is there.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/base/export.h"
#include "lockstep/core/base/sha256.h"

namespace lockstep::internal {

constexpr std::size_t kMostFromStrangers = 4 << 10;  // bytes of a message
constexpr std::size_t kMostFromMembers = 32 << 20;

class Seal {
 public:
  void use(const Sha256Hash& key) { key_ = key; }
  bool is_used() const { return key_.has_value(); }
  static constexpr std::size_t kBytes = 16;
  std::string next(std::string_view message);  // of the next message

 private:
  std::optional<Sha256Hash> key_;
  std::uint64_t number_ = 0;
};

class LOCKSTEP_API FrameWriter {
 public:
  // From the next frame on.
  void seal_with(const Sha256Hash& key) { seal_.use(key); }
  std::string frame(std::string_view message);

 private:
  Seal seal_;
};

class LOCKSTEP_API FrameReader {
 public:
  void expect_seals_with(const Sha256Hash& key) { seal_.use(key); }
  void feed(std::string_view bytes) { bytes_ += bytes; }
  // The next message, if all of it is there. Throws NotUnderstood if it is too long, or its seal is wrong.
  std::optional<std::string> next();

 private:
  Seal seal_;
  std::string bytes_;
  std::size_t taken_ = 0;  // of bytes_
};

}  // namespace lockstep::internal

// Tests: core/membership/frames.cpp, core/membership/fields.cpp, core/membership/messages.cpp
#include "lockstep/core/membership/internal/frames.h"

#include <cstdint>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/core/membership/internal/fields.h"
#include "lockstep/core/membership/internal/messages.h"

namespace lockstep::internal {
namespace {

TEST(Fields, ComeBackAsTheyWere) {
  const std::string text("a\0b", 3);
  const std::string bytes = FieldWriter()
                                .add(std::uint8_t{200})
                                .add(std::numeric_limits<std::int64_t>::min())
                                .add(text)
                                .add(std::uint32_t{1})
                                .take();
  FieldReader in(bytes);
  EXPECT_EQ(in.number<std::uint8_t>(), 200);
  EXPECT_EQ(in.number<std::int64_t>(), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(in.text(3), text);
  EXPECT_THROW(in.end(), NotUnderstood);
  EXPECT_EQ(in.number<std::uint32_t>(), 1U);
  EXPECT_NO_THROW(in.end());
  EXPECT_THROW(in.number<std::uint8_t>(), NotUnderstood);
}

TEST(Fields, TextsAreBounded) {
  const std::string bytes = FieldWriter().add(std::string_view("hello")).take();
  EXPECT_THROW(FieldReader(bytes).text(4), NotUnderstood);
  EXPECT_THROW(FieldReader(std::string_view(bytes).substr(0, 8)).text(5), NotUnderstood);
}

TEST(Messages, ComeBackAsTheyWere) {
  const Message beat{.kind = MessageKind::kBeat, .numbers = {1, -1, 3}, .texts = {"what"}};
  const Message back = Message::decode(beat.encode());
  EXPECT_EQ(back.kind, beat.kind);
  EXPECT_EQ(back.numbers, beat.numbers);
  EXPECT_EQ(back.texts, beat.texts);
}

// Each prefix, and each message with another byte, is refused or has the shape of its kind.
TEST(Messages, NothingElseIsUnderstood) {
  const std::string bytes =
      Message{.kind = MessageKind::kClaim, .numbers = {5}, .texts = {"subject", "hash"}}.encode();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    EXPECT_THROW(Message::decode(std::string_view(bytes).substr(0, i)), NotUnderstood) << i;
  EXPECT_THROW(Message::decode(bytes + "x"), NotUnderstood);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string other = bytes;
      other[i] = static_cast<char>(value);
      try {
        const Message message = Message::decode(other);
        if (message.kind == MessageKind::kClaim) {
          EXPECT_EQ(message.numbers.size(), 1U);
          EXPECT_EQ(message.texts.size(), 2U);
        }
      } catch (const NotUnderstood&) {
      }
    }
  }
}

TEST(Frames, ComeInWhateverPieces) {
  FrameWriter out;
  FrameReader in;
  std::string bytes = out.frame("one") + out.frame("") + out.frame(std::string(1000, 'x'));
  std::vector<std::string> messages;
  for (const char byte : bytes) {
    in.feed(std::string_view(&byte, 1));
    while (const auto message = in.next()) messages.push_back(*message);
  }
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[0], "one");
  EXPECT_EQ(messages[1], "");
  EXPECT_EQ(messages[2], std::string(1000, 'x'));
}

TEST(Frames, OfStrangersAreShort) {
  FrameReader in;
  in.feed(FieldWriter().add(std::uint32_t{kMostFromStrangers + 1}).take());
  EXPECT_THROW(in.next(), NotUnderstood);
}

TEST(Frames, SealsTellWhoWroteThemAndInWhichOrder) {
  const Sha256Hash key = Sha256().add("key").hash(), other = Sha256().add("other").hash();
  const auto first_message = [](const Sha256Hash& of_reader, const std::string& bytes) {
    FrameReader in;
    in.expect_seals_with(of_reader);
    in.feed(bytes);
    return in.next();
  };
  FrameWriter out;
  out.seal_with(key);
  const std::string one = out.frame("one"), two = out.frame("two");
  EXPECT_EQ(first_message(key, one), "one");
  EXPECT_THROW(first_message(other, one), NotUnderstood);
  EXPECT_THROW(first_message(key, two), NotUnderstood);  // it is the second
  EXPECT_THROW(first_message(key, FrameWriter().frame("one")), NotUnderstood);
  EXPECT_THROW(first_message(key, FrameWriter().frame("a message without a seal")), NotUnderstood);
  FrameReader in;
  in.expect_seals_with(key);
  in.feed(one + one);
  EXPECT_EQ(in.next(), "one");
  EXPECT_THROW(in.next(), NotUnderstood);  // once more
}

}  // namespace
}  // namespace lockstep::internal

// tools/terminal.cpp - the command's output, without anything in it that a terminal obeys.
#include "terminal.h"

#include <algorithm>
#include <iostream>
#include <ostream>
#include <streambuf>
#include <string>
#include <utility>

#include <unistd.h>

#include "lockstep/core/base/printable.h"

namespace lockstep::tools {

namespace {

// The number of bytes at the end that may begin a UTF-8 sequence whose rest is still to come.
std::size_t unfinished(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return 0;
    if (byte < 0xC0) continue;  // inside a sequence
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    return length > back ? back : 0;
  }
  return 0;
}

class EscapingBuffer final : public std::streambuf {
 public:
  explicit EscapingBuffer(std::streambuf& to) : to_(to) {}
  EscapingBuffer(const EscapingBuffer&) = delete;
  EscapingBuffer& operator=(const EscapingBuffer&) = delete;
  ~EscapingBuffer() override { put(std::exchange(begun_, {})); }

  std::streambuf& plain() { return to_; }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char one = traits_type::to_char_type(c);
    return xsputn(&one, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    begun_.append(text, static_cast<std::size_t>(size));
    const std::size_t whole = begun_.size() - unfinished(begun_);
    const bool done = put(std::string_view(begun_).substr(0, whole));
    begun_.erase(0, whole);
    return done ? size : 0;
  }
  int sync() override { return to_.pubsync(); }

 private:
  bool put(std::string_view text) {
    const std::string shown = printable(text, "\n\t");
    return to_.sputn(shown.data(), static_cast<std::streamsize>(shown.size())) ==
           static_cast<std::streamsize>(shown.size());
  }

  std::streambuf& to_;
  std::string begun_;
};

// The buffer that the stream writes to, without escaping.
std::streambuf* plain_buffer(const std::ostream& stream) {
  auto* const escaping = dynamic_cast<EscapingBuffer*>(stream.rdbuf());
  return escaping == nullptr ? stream.rdbuf() : &escaping->plain();
}

}  // namespace

struct SafeOutput::Streams {
  EscapingBuffer out{*std::cout.rdbuf()}, err{*std::cerr.rdbuf()};
};

SafeOutput::SafeOutput() : streams_(std::make_unique<Streams>()) {
  std::cout.rdbuf(&streams_->out);
  std::cerr.rdbuf(&streams_->err);
}

SafeOutput::~SafeOutput() {
  std::cout.rdbuf(&streams_->out.plain());
  std::cerr.rdbuf(&streams_->err.plain());
}

void write_data(std::string_view bytes) {
  const auto size = static_cast<std::streamsize>(bytes.size());
  if (isatty(STDOUT_FILENO) != 0) {
    std::cout.write(bytes.data(), size);
  } else if (plain_buffer(std::cout)->sputn(bytes.data(), size) != size) {
    std::cout.setstate(std::ios::badbit);
  }
}

std::ostream& plain_standard_error() {
  static std::ostream stream(plain_buffer(std::cerr));
  return stream;
}

}  // namespace lockstep::tools

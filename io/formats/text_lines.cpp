// io/formats/text_lines.cpp - the lines of text files.
#include "lockstep/io/formats/text_lines.h"

#include <string>

#include "lockstep/core/error.h"
#include "lockstep/io/formats/internal/line_scanner.h"
#include "lockstep/io/formats/internal/stream_reader.h"

namespace lockstep {
namespace {

class TextLineReader final : public internal::StreamReader {
 public:
  TextLineReader(const std::filesystem::path& path, const TextLineOptions& options)
      : StreamReader(path, options.compression, internal::ByteStream::begins_as_text),
        line_bytes_(options.line_bytes) {}

 private:
  bool read_record(std::string& line) override {
    line.clear();
    const internal::LineEnd end = internal::append_line(stream(), line, line_bytes_);
    if (end == internal::LineEnd::kTooLong) {
      throw InvalidArgument(str(stream().path().string(), ": line ", position().records + 1,
                                " has more than ", line_bytes_,
                                " bytes; raise TextLineOptions::line_bytes if this is text"));
    }
    return end != internal::LineEnd::kNothing;
  }

  std::size_t line_bytes_;
};

}  // namespace

std::unique_ptr<RecordReader> open_text_lines(const std::filesystem::path& path,
                                              const TextLineOptions& options) {
  return std::make_unique<TextLineReader>(path, options);
}

}  // namespace lockstep

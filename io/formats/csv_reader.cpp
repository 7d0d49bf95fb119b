// io/formats/csv_reader.cpp - the records of CSV files: lines, joined where a quoted field holds their ends.
#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"
#include "lockstep/io/formats/csv.h"
#include "lockstep/io/formats/internal/csv_fields.h"
#include "lockstep/io/formats/internal/line_scanner.h"
#include "lockstep/io/formats/internal/stream_reader.h"

namespace lockstep {
namespace {

using internal::ByteStream;
using internal::LineEnd;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool has_odd_quotes(std::string_view text) {
  bool odd = false;
  for (const char* at = text.data();
       (at = static_cast<const char*>(
            std::memchr(at, '"', static_cast<std::size_t>(text.data() + text.size() - at)))) != nullptr;
       ++at)
    odd = !odd;
  return odd;
}

// The lines of the file, joined to records. It counts lines from where it began.
class CsvLines {
 public:
  CsvLines(bool blank_is_record, std::size_t most) : blank_is_record_(blank_is_record), most_(most) {}

  enum class Found : std::uint8_t { kEnd, kRecord, kTooLong, kOpenQuote };
  Found next(ByteStream& stream, std::string& record) {
    LineEnd end = LineEnd::kNothing;
    do {
      record.clear();
      begin_ = lines_;
      end = internal::append_line(stream, record, most_);
      if (end == LineEnd::kNothing) return Found::kEnd;
      if (end == LineEnd::kTooLong) return Found::kTooLong;
      ++lines_;
    } while (record.empty() && !blank_is_record_);
    for (bool open = has_odd_quotes(record); open;) {
      if (end == LineEnd::kNothing || end == LineEnd::kFile) return Found::kOpenQuote;
      record += end == LineEnd::kReturnAndNewline ? "\r\n" : "\n";
      const Found closing = append_to_quote(stream, record);
      if (closing != Found::kRecord) return closing;
      const std::size_t before = record.size();
      end = internal::append_line(stream, record, most_);
      if (end == LineEnd::kTooLong) return Found::kTooLong;
      ++lines_;
      open = has_odd_quotes(std::string_view(record).substr(before));
    }
    return Found::kRecord;
  }

  void restart() { begin_ = lines_ = 0; }
  std::uint64_t begin() const { return begin_; }  // lines before the last record
  std::uint64_t lines() const { return lines_; }

 private:
  // The text up to the next quote, lines and all.
  Found append_to_quote(ByteStream& stream, std::string& record) {
    while (true) {
      std::string_view seen = stream.peek(1);
      if (seen.empty()) return Found::kOpenQuote;
      const std::size_t quote = seen.find('"');
      if (quote != std::string_view::npos) seen = seen.substr(0, quote + 1);
      if (record.size() + seen.size() > most_) return Found::kTooLong;
      record += seen;
      lines_ += static_cast<std::uint64_t>(std::ranges::count(seen, '\n'));
      stream.skip(seen.size());
      if (quote != std::string_view::npos) return Found::kRecord;
    }
  }

  bool blank_is_record_;
  std::size_t most_;
  std::uint64_t begin_ = 0, lines_ = 0;
};

// A CsvReader that is a StreamReader, too: it passes everything on.
class CsvFile final : public CsvReader {
 public:
  CsvFile(const std::filesystem::path& path, std::size_t columns, const CsvOptions& options)
      : records_(path, columns, options) {}

  bool next(std::string& record) override { return records_.next(record); }
  ReadPosition position() const override { return records_.position(); }
  void seek(const ReadPosition& position) override { records_.seek(position); }
  std::uint64_t bytes_read() const override { return records_.bytes_read(); }
  const std::filesystem::path& path() const override { return records_.path(); }
  std::uint64_t line() const override { return records_.line(); }
  std::string header() { return records_.header(); }

 private:
  class Records final : public internal::StreamReader {
   public:
    Records(const std::filesystem::path& path, std::size_t columns, const CsvOptions& options)
        : StreamReader(path, options.compression, ByteStream::begins_as_text),
          lines_(columns == 1, options.record_bytes) {
      if (stream().peek(kByteOrderMark.size()).starts_with(kByteOrderMark))
        stream().skip(kByteOrderMark.size());
      begin_here();
    }

    const std::filesystem::path& path() const { return stream().path(); }
    // The first record, which is passed over; empty if there is none.
    std::string header() {
      std::string text;
      if (!read_record(text)) return {};
      begin_here();
      first_line_ = lines_.lines();
      return text;
    }
    std::uint64_t line() const {
      if (seek_offset_ > 0) {
        lines_before_ = newlines_before(seek_offset_);
        seek_offset_ = 0;
      }
      return lines_before_ + lines_.begin() + 1;
    }

   private:
    void moved() override {
      lines_.restart();
      lines_before_ = first_line_;
      seek_offset_ = position().records == 0 ? 0 : position().offset;
    }
    std::uint64_t newlines_before(std::uint64_t offset) const {
      ByteStream again(path(), stream().compression(), ByteStream::begins_as_text);
      std::uint64_t lines = 0;
      while (again.offset() < offset) {
        std::string_view some = again.peek(1);
        some = some.substr(
            0, static_cast<std::size_t>(std::min<std::uint64_t>(some.size(), offset - again.offset())));
        if (some.empty()) break;
        for (const char c : some) lines += c == '\n' ? 1U : 0U;
        again.skip(some.size());
      }
      return lines;
    }

    bool read_record(std::string& record) override {
      switch (lines_.next(stream(), record)) {
        case CsvLines::Found::kEnd: return false;
        case CsvLines::Found::kRecord: return true;
        case CsvLines::Found::kTooLong:
          throw InvalidArgument(
              str(path().string(), ":", line(),
                  ": the record is longer than CsvOptions::record_bytes; raise it if this is a CSV "
                  "file and no quote is left open here"));
        case CsvLines::Found::kOpenQuote: break;
      }
      throw Error(ErrorCode::kDataLoss,
                  str(path().string(), ":", line(), ": a quote of the record does not end"));
    }

    CsvLines lines_;
    std::uint64_t first_line_ = 0;            // lines of the header
    mutable std::uint64_t lines_before_ = 0;  // those that lines_ does not count
    mutable std::uint64_t seek_offset_ = 0;   // not 0: they are still to be counted, up to here
  };

  Records records_;
};

void check_csv_header(const CsvReader& reader, const std::string& text, const CsvSchema& schema) {
  const std::vector<std::string> names = split_csv_record(text, schema.delimiter(), {.reader = &reader});
  const std::vector<CsvColumn>& columns = schema.columns();
  const std::string place = internal::csv_line_name({.reader = &reader}, 0);
  for (std::size_t i = 0; i < std::min(names.size(), columns.size()); ++i) {
    if (names[i] == columns[i].name) continue;
    throw InvalidArgument(str(place, ": column ", i + 1, " is called '", printable(names[i]), "', and '",
                              printable(columns[i].name),
                              "' is declared; declare all columns in the order of the "
                              "file, or set CsvOptions::header to false if this is no header"));
  }
  if (names.size() == columns.size()) return;
  throw InvalidArgument(
      str(place, ": the header has ", counted(names.size(), "column"), ", and the schema ", columns.size()));
}

}  // namespace

std::unique_ptr<CsvReader> open_csv(const std::filesystem::path& path, const CsvSchema& schema,
                                    const CsvOptions& options) {
  auto file = std::make_unique<CsvFile>(path, schema.columns().size(), options);
  if (options.header) check_csv_header(*file, file->header(), schema);
  return file;
}

std::vector<std::string> read_csv_header(const std::filesystem::path& path, char delimiter,
                                         const CsvOptions& options) {
  CsvFile file(path, 2, options);
  return split_csv_record(file.header(), delimiter, {.reader = &file});
}

}  // namespace lockstep

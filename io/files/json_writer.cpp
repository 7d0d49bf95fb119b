// io/files/json_writer.cpp - JSON piece by piece: the writer puts the commas.
#include "lockstep/io/files/internal/json_writer.h"

#include <utility>

#include "lockstep/io/files/internal/json_text.h"

namespace lockstep::internal {

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  out_ += '"';
  out_ += name;
  out_ += style_ == Style::kSpaced ? "\": " : "\":";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view value) {
  separate();
  if (style_ == Style::kSpaced) {
    out_ += json_quoted(value);
  } else {
    append_json(out_, value);
  }
  needs_comma_ = depth_ > 0;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view value) {
  separate();
  out_ += value;
  needs_comma_ = depth_ > 0;
  return *this;
}

JsonWriter& JsonWriter::new_line() {
  needs_line_ = true;
  return *this;
}

JsonWriter& JsonWriter::begin(char open) {
  separate();
  out_ += open;
  needs_comma_ = false;
  ++depth_;
  return *this;
}

JsonWriter& JsonWriter::end(char close) {
  if (std::exchange(needs_line_, false)) out_ += '\n';
  out_ += close;
  --depth_;
  needs_comma_ = depth_ > 0;  // after the outermost value another text begins
  return *this;
}

void JsonWriter::separate() {
  const bool line = std::exchange(needs_line_, false);
  if (needs_comma_) out_ += line || style_ == Style::kDense ? "," : ", ";
  if (line) out_ += '\n';
}

}  // namespace lockstep::internal

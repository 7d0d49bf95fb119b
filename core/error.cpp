// core/error.cpp - the three ways to say no: Error, Decision and LOCKSTEP_CHECK.
#include "lockstep/core/error.h"

#include <exception>
#include <new>

namespace lockstep {
namespace {

std::string describe_place(const ErrorPlace& place) {
  std::string text;
  const auto add = [&text](const std::string& part) {
    if (!text.empty()) text += ' ';
    text += part;
  };
  if (!place.node.empty()) add("node '" + place.node + "'");
  if (!place.op.empty()) add(place.called && place.node.empty() ? place.op : "op " + place.op);
  if (!place.device.empty()) add("on " + place.device);
  if (place.replica >= 0) add("in replica " + std::to_string(place.replica));
  if (!place.made_at.empty()) add("made at " + place.made_at);
  if (!place.file.empty()) {
    add((place.called ? "called at " : "made at ") + place.file);
    if (place.line != 0) text.append(":").append(std::to_string(place.line));
  }
  return text;
}

std::string compose(ErrorCode code, const std::string& message, const ErrorPlace& place) {
  std::string text(to_string(code));
  text += ": ";
  text += message;
  const std::string where = describe_place(place);
  if (!where.empty()) text += " (" + where + ")";
  return text;
}

void describe_nested(const std::exception& error, std::string& text) {
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    text += ": caused by: ";
    text += cause.what();
    describe_nested(cause, text);
  } catch (...) {
    text += ": caused by: something that is not a std::exception";
  }
}

}  // namespace

ErrorPlace place_of_call(std::string_view call, const SourceSite& site) {
  ErrorPlace place{{}, std::string(call), {}, site.file, site.line, -1};
  place.called = true;
  return place;
}

ErrorCode code_of(const std::exception& error, ErrorCode otherwise) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return ours->code();
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? ErrorCode::kOutOfMemory : otherwise;
}

std::string message_of(const std::exception& error) {
  if (const auto* ours = dynamic_cast<const Error*>(&error)) return ours->message();
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "there is not enough memory";
  return error.what();
}

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "InvalidArgument";
    case ErrorCode::kFailedPrecondition: return "FailedPrecondition";
    case ErrorCode::kNotFound: return "NotFound";
    case ErrorCode::kUnavailable: return "Unavailable";
    case ErrorCode::kDeadlineExceeded: return "DeadlineExceeded";
    case ErrorCode::kDataLoss: return "DataLoss";
    case ErrorCode::kCancelled: return "Cancelled";
    case ErrorCode::kUnimplemented: return "Unimplemented";
    case ErrorCode::kOutOfMemory: return "OutOfMemory";
    case ErrorCode::kInternal: break;
  }
  return "Internal";
}

Error::Error(ErrorCode code, std::string message, ErrorPlace place)
    : std::runtime_error(compose(code, message, place)),
      code_(code),
      message_(std::move(message)),
      place_(std::move(place)) {}
Error::~Error() = default;

void Error::add_call(std::string_view call, const SourceSite& site) {
  if (!place_.file.empty() || !site.known()) return;
  ErrorPlace place = place_;
  place.file = site.file;
  place.line = site.line;
  place.called = true;
  if (place.node.empty() && place.op.empty()) place.op = call;
  static_cast<std::runtime_error&>(*this) = std::runtime_error(compose(code_, message_, place));
  place_ = std::move(place);
}

InvalidArgument::InvalidArgument(std::string message, ErrorPlace place)
    : Error(ErrorCode::kInvalidArgument, std::move(message), std::move(place)) {}
InvalidArgument::~InvalidArgument() = default;

RefusedData::RefusedData(std::string message, std::int64_t position, ErrorPlace place)
    : InvalidArgument(std::move(message), std::move(place)), position_(position) {}
RefusedData::~RefusedData() = default;
RefusedData RefusedData::within_piece(std::int64_t begin) const {
  return {message(), begin + position_, place()};
}

FailedPrecondition::FailedPrecondition(std::string message, ErrorPlace place)
    : Error(ErrorCode::kFailedPrecondition, std::move(message), std::move(place)) {}
FailedPrecondition::~FailedPrecondition() = default;

NotFound::NotFound(std::string message, ErrorPlace place)
    : Error(ErrorCode::kNotFound, std::move(message), std::move(place)) {}
NotFound::~NotFound() = default;

void throw_error(ErrorCode code, std::string message, ErrorPlace place) {
  switch (code) {
    case ErrorCode::kInvalidArgument: throw InvalidArgument(std::move(message), std::move(place));
    case ErrorCode::kFailedPrecondition: throw FailedPrecondition(std::move(message), std::move(place));
    case ErrorCode::kNotFound: throw NotFound(std::move(message), std::move(place));
    default: throw Error(code, std::move(message), std::move(place));
  }
}

std::string describe(const std::exception& error) {
  std::string text = error.what();
  describe_nested(error, text);
  return text;
}

namespace detail {

void check_failed(const char* condition, const char* file, std::uint32_t line, const std::string& message) {
  throw Error(ErrorCode::kInternal, str("check failed: ", condition, message.empty() ? "" : ": ", message,
                                        " (", file, ":", line, "); this is a bug in Lockstep"));
}

}  // namespace detail
}  // namespace lockstep

// core/error.h - the three ways to say no: Error, Decision and LOCKSTEP_CHECK.
//
//   Error            thrown for failures that a caller can act on: a code, a message that says what was
//                    expected, what came and what to do, and, if they apply, the node and the user's source
//                    line
//   Decision         a yes, or a no with its reason: the answer when code asks "can you?"
//   LOCKSTEP_CHECK   for bugs of our own: throws Error with kInternal, never aborts
//
// Out of memory is std::bad_alloc or, if a node, a pass or a tensor ran out of it, an Error with kOutOfMemory
// that names the node or the pass.
//
// Thread safety: all are plain values.
#pragma once

#include <cstdint>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/base/export.h"
#include "lockstep/core/source_site.h"

namespace lockstep {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,     // the call is wrong whatever the state
  kFailedPrecondition,  // the call is wrong in this state
  kNotFound,
  kUnavailable,  // a participant or a device is gone, or a thread cannot be started
  kDeadlineExceeded,
  kDataLoss,
  kCancelled,
  kUnimplemented,
  kInternal,     // a bug of ours
  kOutOfMemory,  // an allocation failed; a smaller request, or the same one later, may succeed
};

// "InvalidArgument", "FailedPrecondition", ...
LOCKSTEP_API std::string_view to_string(ErrorCode code);

// Where an error applies. Empty strings and unknown sites mean "not applicable".
struct ErrorPlace {
  std::string node;    // hierarchical node name
  std::string op;      // op name
  std::string device;  // canonical device name
  std::string file;    // the user's source line
  std::uint32_t line = 0;
  int replica = -1;
  bool called = false;  // the line is that of a call, and `op` the function; false: of what was made there
  std::string made_at = {};  // of a variable whose method was called: "model.cpp:9"
};

// The place of a call that was refused: "reduce()".
LOCKSTEP_API ErrorPlace place_of_call(std::string_view call, const SourceSite& site);

class LOCKSTEP_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string message, ErrorPlace place = {});
  ~Error() override;
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;

  ErrorCode code() const { return code_; }
  // The message alone; what() adds the code and the place:
  //   InvalidArgument: matmul: inner dimensions differ: f32[2,3] x f32[4,5] (node 'layer_1/matmul' op matmul made at model.cpp:42)
  const std::string& message() const { return message_; }
  const ErrorPlace& place() const { return place_; }
  // Names the call that the error leaves by, unless it has a source line already.
  void add_call(std::string_view call, const SourceSite& site);

 private:
  ErrorCode code_;
  std::string message_;
  ErrorPlace place_;
};

// Kinds that callers tend to catch by type.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  explicit InvalidArgument(std::string message, ErrorPlace place = {});
  ~InvalidArgument() override;
};
// Data that a kernel refuses, such as an index out of range. Kernels of devices cannot throw: they leave word of the position
// (DeviceBlocks::refused).
class LOCKSTEP_API RefusedData : public InvalidArgument {
 public:
  // `position`: of the first element that is refused, among those that the op looks at.
  RefusedData(std::string message, std::int64_t position, ErrorPlace place = {});
  ~RefusedData() override;
  std::int64_t position() const { return position_; }
  // What refused it has looked at a piece that begins at this element.
  RefusedData within_piece(std::int64_t begin) const;

 private:
  std::int64_t position_;
};
class LOCKSTEP_API FailedPrecondition : public Error {
 public:
  explicit FailedPrecondition(std::string message, ErrorPlace place = {});
  ~FailedPrecondition() override;
};
class LOCKSTEP_API NotFound : public Error {
 public:
  explicit NotFound(std::string message, ErrorPlace place = {});
  ~NotFound() override;
};

// Throws the class that goes with the code, so that handlers that catch by type catch it.
[[noreturn]] LOCKSTEP_API void throw_error(ErrorCode code, std::string message, ErrorPlace place = {});

// code_of(): the code of an Error, kOutOfMemory for std::bad_alloc, `otherwise` for other exceptions.
// message_of(): the message to go with it, for callers that add where it came from.
LOCKSTEP_API ErrorCode code_of(const std::exception& error, ErrorCode otherwise);
LOCKSTEP_API std::string message_of(const std::exception& error);

// Returns what `body` returns. An error that leaves it without a source line gets that of the call:
//
//   return named_call("erase()", site, [&] { return erase_group(name); });
template <class F>
auto named_call(std::string_view call, const SourceSite& site, const F& body) -> decltype(body()) {
  try {
    return body();
  } catch (Error& error) {
    error.add_call(call, site);
    throw;
  }
}

// The text of an exception and of everything nested in it, innermost last, joined by ": caused by: ".
LOCKSTEP_API std::string describe(const std::exception& error);

// Joins its arguments with operator<<: str("expected ", n, " inputs"). Numbers look the same whatever the
// global locale.
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return std::move(out).str();
}

// "1 slot", "2 slots"; the plural is given if it is not the noun with an s: counted(n, "axis", "axes").
template <class Number>
std::string counted(Number number, std::string_view noun, std::string_view plural = {}) {
  if (number == 1) return str(number, " ", noun);
  return plural.empty() ? str(number, " ", noun, "s") : str(number, " ", plural);
}

// A yes, or a no that says why.
class Decision {
 public:
  static Decision yes() { return Decision(true, {}); }
  static Decision no(std::string reason) { return Decision(false, std::move(reason)); }
  explicit operator bool() const { return yes_; }
  const std::string& reason() const { return reason_; }

 private:
  Decision(bool yes, std::string reason) : yes_(yes), reason_(std::move(reason)) {}
  bool yes_;
  std::string reason_;
};

namespace detail {
[[noreturn]] LOCKSTEP_API void check_failed(const char* condition, const char* file, std::uint32_t line,
                                            const std::string& message);
}

}  // namespace lockstep

// Checks what only a bug in Lockstep can break; the optional arguments after the condition are joined by
// str().
#define LOCKSTEP_CHECK(condition, ...)                                                  \
  do {                                                                                  \
    if (!(condition)) [[unlikely]] {                                                    \
      ::lockstep::detail::check_failed(#condition, __FILE__, __LINE__,                  \
                                       ::lockstep::str("" __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                   \
  } while (false)

// core/source_site.h - the place in the user's source where something was made.
//
// Functions that create graph nodes take a SourceSite defaulted to SourceSite::current(), which is evaluated
// at the call, so that errors can name the caller's line. (std::source_location is missing in clang 14 over
// libstdc++ 12.) The strings are not owned: they are literals, or live in the graph that interned them.
// Thread safety: a plain value.
#pragma once

#include <cstdint>

namespace lockstep {

struct SourceSite {
  const char* file = "";
  const char* function = "";
  std::uint32_t line = 0;  // 0: unknown

  static constexpr SourceSite current(const char* file = __builtin_FILE(),
                                      const char* function = __builtin_FUNCTION(),
                                      std::uint32_t line = static_cast<std::uint32_t>(__builtin_LINE())) {
    return SourceSite{file, function, line};
  }
  constexpr bool known() const { return line != 0; }
};

}  // namespace lockstep

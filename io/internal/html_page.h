// io/internal/html_page.h - io/html/page.js and page.css as text; the source is generated when the build is configured.
#pragma once

#include <string_view>

namespace lockstep::internal {

extern const std::string_view kPageJs;
extern const std::string_view kPageCss;

}  // namespace lockstep::internal

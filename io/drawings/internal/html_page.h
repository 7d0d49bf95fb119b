// io/drawings/internal/html_page.h - the files of io/html as text; the source is generated when the build is
// configured.
#pragma once

#include <string_view>

namespace lockstep::internal {

// One script, in this order.
extern const std::string_view kPageJs;
extern const std::string_view kPageDrawingJs;
extern const std::string_view kPageDetailsJs;
extern const std::string_view kPageSearchJs;
extern const std::string_view kPageInputJs;
extern const std::string_view kPageCss;

}  // namespace lockstep::internal

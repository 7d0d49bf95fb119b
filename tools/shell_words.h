// tools/shell_words.h - text that a shell reads back as one word.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::tools {

// In single quotes, whatever it holds.
std::string single_quoted(std::string_view text);
// In quotes only if it needs them: "step.lks", "'my step.lks'".
std::string shell_word(std::string_view text);

}  // namespace lockstep::tools

// Numbers as text, and text that is shown. NOTES: no iostreams: if libstdc++ is linked statically,
// printing a number through a stream crashes in a process that has another libstdc++.
#pragma once

#include <string>
#include <vector>

namespace mdcg {

// The shortest text that reads back as `value`, or `digits` significant digits of it.
std::string number_text(double value, int digits = 0);

// Replaces everything that a terminal would act on by escapes such as "\x1b": control characters,
// marks that reorder or hide text, and bytes that are not UTF-8. mdcg/errors.py has the same
// ranges.
std::string printable(const std::string& text);

// The parts of a text between separators; a separator at the end begins no part.
std::vector<std::string> split_at(const std::string& text, char separator);

}  // namespace mdcg

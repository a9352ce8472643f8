// The programs of csrc/kernels, which the build embeds (csrc/kernels/embed.py).
#pragma once

#include <string>

namespace mdcg {

// The text of csrc/kernels/FILE with its includes. Throws std::logic_error if there is none.
const char* kernel_source(const std::string& file);

}  // namespace mdcg

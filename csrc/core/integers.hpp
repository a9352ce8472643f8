// Conversions between integers whose values are known to fit, and division that rounds up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mdcg {

constexpr std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
constexpr std::int32_t narrow(std::int64_t n) { return static_cast<std::int32_t>(n); }
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

}  // namespace mdcg

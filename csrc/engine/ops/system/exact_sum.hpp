// Sums of doubles that do not depend on their order.
#pragma once

#include <cmath>
#include <cstdint>

namespace mdcg {

// A sum as two integers, of 2^-20 and of 2^-58. They fit into 64 bits for up to 2^24 numbers whose
// absolute values add up to less than 2^22.
struct ExactSum {
    std::int64_t high = 0, low = 0;

    void add(double x) {
        const std::int64_t part = std::llrint(x * 0x1p20);
        high += part;
        low += std::llrint((x - static_cast<double>(part) * 0x1p-20) * 0x1p58);
    }
    double value() const {
        return static_cast<double>(high) * 0x1p-20 + static_cast<double>(low) * 0x1p-58;
    }
};

}  // namespace mdcg

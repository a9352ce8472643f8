// Checks of indices that a host passes.
#pragma once

#include <cstdint>
#include <string>

#include "engine/error.hpp"

namespace mdcg {

// Throws EngineError (ErrorKind::argument) naming the first of `index` [count] that is negative or
// not less than `limit`.
inline void check_range(const std::int32_t* index, std::int64_t count, std::int64_t limit,
                        const std::string& name) {
    for (std::int64_t i = 0; i < count; ++i)
        if (index[i] < 0 || index[i] >= limit)
            bad_argument(name + "[" + std::to_string(i) + "] is " + std::to_string(index[i]) +
                         ", expected 0 <= " + name + " < " + std::to_string(limit));
}

}  // namespace mdcg

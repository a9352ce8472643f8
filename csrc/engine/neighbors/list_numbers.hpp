// How a list of edges is known again.
#pragma once

#include <atomic>
#include <cstdint>

namespace mdcg {

// Of the edges of a list, and of their shifts. 0: none, or such as never were.
struct ListNumbers {
    std::int64_t edges = 0, shifts = 0;
};

// A number that no other list of this process has.
inline std::int64_t next_list_number() {
    static std::atomic<std::int64_t> number{0};
    return ++number;
}

}  // namespace mdcg

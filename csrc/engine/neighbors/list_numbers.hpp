// Numbers that identify lists of edges.
#pragma once

#include <atomic>
#include <cstdint>

namespace mdcg {

// Identifies a list of edges and its shifts. Numbers are 0 where there is no list.
struct ListNumbers {
    std::int64_t edges = 0, shifts = 0;
};

// Returns a number that no other list of this process has.
inline std::int64_t next_list_number() {
    static std::atomic<std::int64_t> number{0};
    return ++number;
}

}  // namespace mdcg

// Sums of what is before each item, and stable sorts, on a device; the same for the same input.
#pragma once

#include <cstdint>

#include "engine/cuda/kernels.hpp"

namespace mdcg {

class CudaSort {
public:
    explicit CudaSort(CudaKernels& kernels);

    // One block sums up to so many items, and sorts up to ALONE_TILE of them. Tests set this.
    static std::int64_t most_alone;

    // Items of work that either of the two takes for that many items.
    static std::int64_t work_items(std::int64_t count);

    // values[i] becomes the sum of those before it; values[count] that of all. `values` and `work`
    // begin at multiples of 16 bytes, and so does the `work` of a sort.
    void sum(const DeviceStream& stream, std::int32_t* values, std::int64_t count,
             std::int32_t* work) const;

    struct Sort {
        std::int64_t count;
        int bits;                    // of the keys, the lowest
        const std::uint32_t* keys;   // left as they are, unless they are the spare ones
        const std::int32_t* values;  // null: first_value, first_value + 1, ..
        std::int32_t first_value;
        std::uint32_t* sorted_keys;  // null: not wanted, if spare_keys alone will do
        std::int32_t* sorted_values;
        std::uint32_t* spare_keys;  // [count]
        std::int32_t *spare_values, *work;
    };
    // Values by their keys, those of equal keys in the order given.
    void sort(const DeviceStream& stream, const Sort& sort) const;

    // Bits of the numbers below `count`.
    static int bits(std::int64_t count);

private:
    CudaFunction scan_all_, scan_tiles_, add_totals_, counts_, scatter_, digit_sort_;
};

}  // namespace mdcg

// Prefix sums and stable sorts on a device. Results depend on the input alone.
#pragma once

#include <cstdint>

#include "engine/cuda/kernels.hpp"

namespace mdcg {

class CudaSort {
public:
    explicit CudaSort(CudaKernels& kernels);

    // Most items that one block sums alone; it sorts at most ALONE_TILE of them. Tests set this.
    static std::int64_t most_alone;

    // Items of `work` that a sum or a sort of `count` items needs.
    static std::int64_t work_items(std::int64_t count);

    // values[i] becomes the sum of the values before it, and values[count] the sum of all. `values`
    // and `work` begin at multiples of 16 bytes, also in sorts.
    void sum(const DeviceStream& stream, std::int32_t* values, std::int64_t count,
             std::int32_t* work) const;

    struct Sort {
        std::int64_t count;
        int bits;                    // lowest bits of the keys, by which values are sorted
        const std::uint32_t* keys;   // [count] not changed, unless they are spare_keys
        const std::int32_t* values;  // null: first_value, first_value + 1, ..
        std::int32_t first_value;
        std::uint32_t* sorted_keys;  // null: not wanted, where spare_keys are enough
        std::int32_t* sorted_values;
        std::uint32_t* spare_keys;  // [count]
        std::int32_t *spare_values, *work;
    };
    // Sorts values by their keys, stably.
    void sort(const DeviceStream& stream, const Sort& sort) const;

    // Bits that hold all numbers below `count`.
    static int bits(std::int64_t count);

private:
    CudaFunction scan_all_, scan_tiles_, add_totals_, counts_, scatter_, digit_sort_;
};

}  // namespace mdcg

// Arguments of kernels/sort.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int SORT_TILE = 2048;     // items that a block sorts
constexpr int ALONE_TILE = 8192;    // items that a block of SCAN_THREADS sorts alone
constexpr int SCAN_TILE = 16384;    // items that a block sums
constexpr int SCAN_THREADS = 1024;  // threads of such a block

// Replaces each item by the sum of all items before it; the total follows the last one.
struct ScanArguments {
    int* values;  // [count + 1], begins at a multiple of 16 bytes
    Long count;
    int* totals;  // [tiles + 1], begins at a multiple of 16 bytes
};
static_assert(sizeof(ScanArguments) == 24);

// One digit of a stable sort.
struct SortArguments {
    Long count, tiles;
    const unsigned* keys;            // [count]
    const int* values;               // [count]; null: first_value, first_value + 1, ..
    int* counts;                     // [digits][tiles] items; after the scan, where they begin
    unsigned* out_keys;              // [count]
    int* out_values;                 // [count]
    int shift, digits, first_value;  // digits: a power of two up to 256
};
static_assert(sizeof(SortArguments) == 72);

}  // namespace mdcg

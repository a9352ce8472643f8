#include "kernels/common.cuh"
#include "kernels/sort.hpp"

// Items of a block that one of its warps sorts.
constexpr int WARP_ITEMS = 256;
static_assert(SORT_TILE / WARP_ITEMS == 256 / 32 && ALONE_TILE / WARP_ITEMS == SCAN_THREADS / 32);
constexpr int SCAN_ITEMS = SCAN_TILE / SCAN_THREADS;
static_assert(SCAN_THREADS == 32 * 32, "a lane for the sum of each warp");

INLINE int scan_tile(const ScanArguments& p, Long tile, int before) {
    __shared__ int sums[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Long first = tile * SCAN_TILE + threadIdx.x * SCAN_ITEMS;
    const bool whole = first + SCAN_ITEMS <= p.count;
    typedef PackOf<int> Four;
    Four v[SCAN_ITEMS / 4];
#pragma unroll
    for (int j = 0; j < SCAN_ITEMS / 4; ++j) {
        if (whole) {
            v[j] = ((const Four*)(p.values + first))[j];
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            v[j].v[i] = first + 4 * j + i < p.count ? p.values[first + 4 * j + i] : 0;
    }
    int sum = 0;
#pragma unroll
    for (int j = 0; j < SCAN_ITEMS; ++j) sum += v[j / 4].v[j % 4];
    const int up = lane_prefix_sum(sum);
    __syncthreads();  // sums of the tile before have been read
    if (lane == 31) sums[warp] = up;
    __syncthreads();
    // `warps` is the sum of all items before the tile and of the warps up to number `lane`.
    const int warps = before + lane_prefix_sum(sums[lane]);
    const int warps_before = __shfl_sync(0xffffffffu, warps, max(warp - 1, 0));
    int at = (warp > 0 ? warps_before : before) + up - sum;
#pragma unroll
    for (int j = 0; j < SCAN_ITEMS; ++j) {
        const int item = v[j / 4].v[j % 4];
        v[j / 4].v[j % 4] = at;
        at += item;
    }
#pragma unroll
    for (int j = 0; j < SCAN_ITEMS / 4; ++j) {
        if (whole) {
            ((Four*)(p.values + first))[j] = v[j];
            continue;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (first + 4 * j + i < p.count) p.values[first + 4 * j + i] = v[j].v[i];
    }
    return __shfl_sync(0xffffffffu, warps, 31);
}

// Launched with one block.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) scan_all(const ScanArguments p) {
    int total = 0;
    for (Long tile = 0; tile * SCAN_TILE < p.count; ++tile) total = scan_tile(p, tile, total);
    if (threadIdx.x == 0) p.values[p.count] = total;
}

extern "C" __global__ void __launch_bounds__(SCAN_THREADS) scan_tiles(const ScanArguments p) {
    const int total = scan_tile(p, blockIdx.x, 0);
    if (threadIdx.x == 0) p.totals[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(256) add_totals(const ScanArguments p) {
    const Long i = thread_number();
    if (i < p.count) p.values[i] += p.totals[i / SCAN_TILE];
    if (i == p.count) p.values[i] = p.totals[(p.count + SCAN_TILE - 1) / SCAN_TILE];
}

INLINE int digit_of(const SortArguments& p, unsigned key) {
    return int(key >> p.shift & unsigned(p.digits - 1));
}

extern "C" __global__ void __launch_bounds__(256) digit_counts(const SortArguments p) {
    __shared__ int counts[256];
    counts[threadIdx.x] = 0;
    __syncthreads();
    const Long first = Long(blockIdx.x) * SORT_TILE + threadIdx.x;
    unsigned key[SORT_TILE / 256];
#pragma unroll
    for (int j = 0; j < SORT_TILE / 256; ++j)
        if (first + 256 * j < p.count) key[j] = p.keys[first + 256 * j];
#pragma unroll
    for (int j = 0; j < SORT_TILE / 256; ++j)
        if (first + 256 * j < p.count) atomicAdd(&counts[digit_of(p, key[j])], 1);
    __syncthreads();
    if (int(threadIdx.x) < p.digits)
        p.counts[threadIdx.x * p.tiles + blockIdx.x] = counts[threadIdx.x];
}

// Returns how many of the block's items have a digit below threadIdx.x. warp_counts[w][d] is how
// many items of warp w have digit d.
template <int WARPS>
INLINE int items_before(const int (*warp_counts)[256]) {
    __shared__ int sums[8];
    const bool counts = threadIdx.x < 256;
    int sum = 0;
    for (int w = 0; w < WARPS && counts; ++w) sum += warp_counts[w][threadIdx.x];
    const int up = lane_prefix_sum(sum);
    if (counts && threadIdx.x % 32 == 31) sums[threadIdx.x / 32] = up;
    __syncthreads();
    int before = up - sum;
    for (int w = 0; w < int(threadIdx.x) / 32 && counts; ++w) before += sums[w];
    return before;
}

// ALONE: one block has all items.
template <int WARPS, bool ALONE>
INLINE void scatter(const SortArguments& p) {
    __shared__ int next[WARPS][256];  // where each warp's next item of a digit goes
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Long first = Long(blockIdx.x * WARPS + warp) * WARP_ITEMS + lane;
    unsigned key[WARP_ITEMS / 32];
    int value[WARP_ITEMS / 32];
#pragma unroll
    for (int j = 0; j < WARP_ITEMS / 32; ++j) {
        const Long item = first + 32 * j;
        if (item >= p.count) continue;
        key[j] = p.keys[item];
        value[j] = p.values ? p.values[item] : p.first_value + int(item);
    }
    for (int d = lane; d < 256; d += 32) next[warp][d] = 0;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < WARP_ITEMS / 32; ++j)
        if (first + 32 * j < p.count) atomicAdd(&next[warp][digit_of(p, key[j])], 1);
    __syncthreads();
    const int before = ALONE ? items_before<WARPS>(next) : 0;
    if (int(threadIdx.x) < p.digits) {
        int at = ALONE ? before : p.counts[threadIdx.x * p.tiles + blockIdx.x];
        for (int w = 0; w < WARPS; ++w) {
            const int count = next[w][threadIdx.x];
            next[w][threadIdx.x] = at;
            at += count;
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < WARP_ITEMS / 32; ++j) {
        const bool there = first + 32 * j < p.count;
        const int digit = there ? digit_of(p, key[j]) : 0;
        unsigned same = __ballot_sync(0xffffffffu, there);
        for (int bit = 1; bit < p.digits; bit *= 2) {
            const unsigned set = __ballot_sync(0xffffffffu, (digit & bit) != 0);
            same &= digit & bit ? set : ~set;
        }
        const unsigned lower = same & ((1u << lane) - 1);
        if (there) {
            const int at = next[warp][digit] + __popc(lower);
            if (p.out_keys) p.out_keys[at] = key[j];
            p.out_values[at] = value[j];
        }
        __syncwarp();
        if (there && lower == 0) next[warp][digit] += __popc(same);
        __syncwarp();
    }
}

extern "C" __global__ void __launch_bounds__(256) digit_scatter(const SortArguments p) {
    scatter<256 / 32, false>(p);
}

// Launched with one block.
extern "C" __global__ void __launch_bounds__(SCAN_THREADS) digit_sort(const SortArguments p) {
    scatter<SCAN_THREADS / 32, true>(p);
}

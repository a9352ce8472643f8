#include "engine/cuda/sort.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "kernels/sort.hpp"

namespace mdcg {

namespace {

// The same values as in kernels/sort.cuh.
constexpr int SORT_THREADS = 256, DIGIT_BITS = 8;

// Rounds up to whole accesses of 16 bytes, so that what follows is aligned.
std::int64_t aligned(std::int64_t items) { return ceil_div(items, std::int64_t(4)) * 4; }

}  // namespace

CudaSort::CudaSort(CudaKernels& kernels)
    : scan_all_(kernels.fixed("sort.cuh", "scan_all")),
      scan_tiles_(kernels.fixed("sort.cuh", "scan_tiles")),
      add_totals_(kernels.fixed("sort.cuh", "add_totals")),
      counts_(kernels.fixed("sort.cuh", "digit_counts")),
      scatter_(kernels.fixed("sort.cuh", "digit_scatter")),
      digit_sort_(kernels.fixed("sort.cuh", "digit_sort")) {}

std::int64_t CudaSort::most_alone = 4 * SCAN_TILE;

std::int64_t CudaSort::work_items(std::int64_t count) {
    const std::int64_t counts = aligned((ceil_div(count, SORT_TILE) << DIGIT_BITS) + 1);
    return counts + ceil_div(std::max(counts, count), SCAN_TILE) + 1;
}

int CudaSort::bits(std::int64_t count) {
    int found = 1;
    while (std::int64_t(1) << found < count) ++found;
    return found;
}

void CudaSort::sum(const DeviceStream& stream, std::int32_t* values, std::int64_t count,
                   std::int32_t* work) const {
    const ScanArguments arguments{values, count, work};
    if (count <= most_alone) {
        scan_all_.launch(stream, 1, SCAN_THREADS, arguments);
        return;
    }
    const std::int64_t tiles = ceil_div(count, SCAN_TILE);
    scan_tiles_.launch(stream, tiles, SCAN_THREADS, arguments);
    scan_all_.launch(stream, 1, SCAN_THREADS, ScanArguments{work, tiles, nullptr});
    add_totals_.launch(stream, ceil_div(count + 1, SORT_THREADS), SORT_THREADS, arguments);
}

// Earlier digits alternate between two buffers; the last one writes the sorted items.
void CudaSort::sort(const DeviceStream& stream, const Sort& s) const {
    if (s.count == 0) return;
    const int passes = static_cast<int>(ceil_div(s.bits, DIGIT_BITS));
    SortArguments a{};
    a.count = s.count;
    a.tiles = ceil_div(s.count, SORT_TILE);
    a.keys = s.keys;
    a.values = s.values;
    a.first_value = s.first_value;
    a.counts = s.work;
    for (int pass = 0; pass < passes; ++pass) {
        const bool spare = (passes - pass) % 2 == 0;
        const int width = static_cast<int>(ceil_div(s.bits - a.shift, passes - pass));
        a.digits = 1 << width;
        a.out_keys = spare ? s.spare_keys : s.sorted_keys;
        a.out_values = spare ? s.spare_values : s.sorted_values;
        if (s.count <= std::min<std::int64_t>(most_alone, ALONE_TILE)) {
            digit_sort_.launch(stream, 1, SCAN_THREADS, a);
        } else {
            const std::int64_t counts = a.tiles * a.digits;
            counts_.launch(stream, a.tiles, SORT_THREADS, a);
            sum(stream, a.counts, counts, a.counts + aligned(counts + 1));
            scatter_.launch(stream, a.tiles, SORT_THREADS, a);
        }
        a.shift += width;
        a.keys = a.out_keys;
        a.values = a.out_values;
    }
}

}  // namespace mdcg

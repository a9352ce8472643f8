#include "kernels/cell_list.hpp"
#include "kernels/common.cuh"
#include "kernels/wraps.cuh"

// The shift by no cell: three zeros of 10 bits each, each plus 512.
constexpr int CENTER = 512 << 20 | 512 << 10 | 512;

// Bins are numbered in blocks of 4 x 4 x 4, so that atoms next to each other have near numbers.
INLINE int number_of_bin(const CellArguments& p, const int* at) {
    const int tile = ((at[2] >> 2) * p.tiles[1] + (at[1] >> 2)) * p.tiles[0] + (at[0] >> 2);
    return tile << 6 | (at[2] & 3) << 4 | (at[1] & 3) << 2 | (at[0] & 3);
}

INLINE void bin_of_number(const CellArguments& p, int number, int* at) {
    const int tile = number >> 6;
    at[0] = tile % p.tiles[0] << 2 | (number & 3);
    at[1] = tile / p.tiles[0] % p.tiles[1] << 2 | (number >> 2 & 3);
    at[2] = tile / p.tiles[0] / p.tiles[1] << 2 | (number >> 4 & 3);
}

// Also copies positions, types and the cell from the host, and clears the number of edges.
extern "C" __global__ void __launch_bounds__(256) find_bins(const CellArguments p) {
    const Long i = thread_number();
    if (i < 9) p.cell[i] = p.given_cell[i];
    if (i == 0) *p.total = 0;
    if (i < p.num_nodes) p.given_types[i] = p.host_types[i];
    if (i >= p.num_points) return;
    if (p.point_image != nullptr) {
        p.point_node[i] = p.host_node[i];
        p.point_image[i] = p.host_image[i];
    }
    double given[3];
    int at[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) p.given[3 * i + k] = given[k] = p.host_given[3 * i + k];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        double along =
            given[0] * p.inverse[k] + given[1] * p.inverse[3 + k] + given[2] * p.inverse[6 + k];
        int wraps = 0;
        if (p.periodic[k]) {
            const double whole = floor(along);
            along -= whole;
            wraps = int(whole);
        }
        p.given_wraps[3 * i + k] = wraps;
        at[k] = min(max(int((along - p.low[k]) * p.scale[k]), 0), p.bins[k] - 1);
    }
    p.key[i] = unsigned(number_of_bin(p, at)) + (i < p.num_local ? 0u : unsigned(p.outer_bins));
}

INLINE void place_point(const CellArguments& p, Long i) {
    const Long from = 3 * Long(p.sorted[i]);
#pragma unroll
    for (int k = 0; k < 3; ++k)
        p.places[3 * i + k] = unwrapped(p.given[from + k], p.given_wraps + from, p.cell, k);
}

// Writes where the points of each bin begin, and the positions of the sorted points.
extern "C" __global__ void __launch_bounds__(256) place_points(const CellArguments p) {
    const Long i = thread_number();
    if (i < p.num_points) place_point(p, i);
    if (i > p.num_bins + p.outer_bins) return;
    Long low = 0, high = p.num_points;
    while (low < high) {
        const Long middle = (low + high) / 2;
        if (p.sorted_key[middle] < unsigned(i))
            low = middle + 1;
        else
            high = middle;
    }
    p.bin_ptr[i] = int(low);
}

// Numbers nodes, local ones first. A warp divides GROUPED_POINTS neighbouring points, in the order
// of bins, into groups. A group begins with the first point that has no node yet. Then the point
// whose squared distances from the points of the group have the smallest sum is added, until the
// group is full. Distances ignore periodic images. If no groups are wanted, nodes are in the order
// of bins.
extern "C" __global__ void __launch_bounds__(32) number_nodes(const CellArguments p) {
    constexpr int OWN = GROUPED_POINTS / 32;  // points of a lane
    const int lane = threadIdx.x;
    const Long local_blocks = (p.num_local + GROUPED_POINTS - 1) / GROUPED_POINTS;
    const bool outer = blockIdx.x >= local_blocks;
    const Long first = outer ? p.num_local + (blockIdx.x - local_blocks) * GROUPED_POINTS
                             : Long(blockIdx.x) * GROUPED_POINTS;
    const int count = int(min(Long(GROUPED_POINTS), (outer ? p.num_points : p.num_local) - first));
    float at[OWN][3], square[OWN] = {};  // sums of squared distances from the group, Å^2
    int number[OWN];                     // number of its node; -1: none yet
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int point = 32 * i + lane;
        number[i] = point < count ? -1 : count;
#pragma unroll
        for (int k = 0; k < 3; ++k)
            at[i][k] = point < count
                           ? float(p.places[3 * (first + point) + k] - p.places[3 * first + k])
                           : 0.0f;
    }
    const int group = max(int(p.group), 1);
    int left = 0;  // how many points the group still lacks
    for (int node = 0; node < count; ++node) {
        const bool begins = left == 0;
        left = begins ? group - 1 : left - 1;
        // the sum of squared distances in 24 bits, and the number of the point in 8
        unsigned best = ~0u;
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            if (begins) square[i] = 0;
            const unsigned key = (__float_as_uint(square[i]) & ~0xffu) | unsigned(32 * i + lane);
            if (number[i] < 0) best = min(best, key);
        }
        const int found = int(__reduce_min_sync(0xffffffffu, best) & 0xff);
        float own[3] = {};
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            if (i != found / 32) continue;
            if (lane == found % 32) number[i] = node;
#pragma unroll
            for (int k = 0; k < 3; ++k) own[k] = at[i][k];
        }
#pragma unroll
        for (int k = 0; k < 3; ++k) own[k] = __shfl_sync(0xffffffffu, own[k], found % 32);
#pragma unroll
        for (int i = 0; i < OWN; ++i)
#pragma unroll
            for (int k = 0; k < 3; ++k) square[i] += (at[i][k] - own[k]) * (at[i][k] - own[k]);
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int point = 32 * i + lane;
        if (point >= count) continue;
        const Long node = first + number[i];
        const int given = p.sorted[first + point];
        p.order[node] = given;
        p.point_node[given] = int(node);
        p.types[node] = p.given_types[given];
    }
}

INLINE int stencil_bins(const CellArguments& p) {
    return (2 * p.stencil[0] + 1) * (2 * p.stencil[1] + 1) * (2 * p.stencil[2] + 1);
}

// The bin of the stencil that a lane searches, and the shift of the cell it is in.
struct Bin {
    int first, end, image;
    double shift[3];
};

INLINE Bin look_up(const CellArguments& p, const int* at, int number) {
    Bin found = {};
    int cells[3], where[3];
    const int bins_of_stencil = stencil_bins(p);
    const bool outer = number >= bins_of_stencil;
    number -= outer ? bins_of_stencil : 0;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const int width = 2 * p.stencil[k] + 1;
        const int b = at[k] + number % width - p.stencil[k];
        number /= width;
        cells[k] = !p.periodic[k] ? 0 : b >= 0 ? b / p.bins[k] : -((p.bins[k] - 1 - b) / p.bins[k]);
        where[k] = b - cells[k] * p.bins[k];
        if (where[k] < 0 || where[k] >= p.bins[k]) return found;
    }
    const Long bin = number_of_bin(p, where) + (outer ? p.outer_bins : 0);
    found.first = p.bin_ptr[bin];
    found.end = p.bin_ptr[bin + 1];
    // the shift that is added to pos[receiver] - pos[sender]
    found.image = (512 - cells[0]) << 20 | (512 - cells[1]) << 10 | (512 - cells[2]);
#pragma unroll
    for (int k = 0; k < 3; ++k)
        found.shift[k] = fma(double(cells[2]), p.cell[6 + k],
                             fma(double(cells[1]), p.cell[3 + k], cells[0] * p.cell[k]));
    return found;
}

// A warp finds the points around a receiver: each lane has a bin, and searches 32 of its points at
// a time. Products are summed by fma alone, so that counting and writing agree to the last bit.
template <bool WRITE>
INLINE void search(const CellArguments& p, int receiver, int lane) {
    const int given = p.sorted[receiver];
    if (given >= p.num_local) return;
    const int row = p.point_node[given];
    int at[3];
    bin_of_number(p, int(p.sorted_key[receiver]), at);
    const double* const own = p.places + 3 * Long(receiver);
    const double x = own[0], y = own[1], z = own[2];
    const int bins = stencil_bins(p) * (p.outer_bins > 0 ? 2 : 1);
    int edges = WRITE ? p.row_ptr[row] : 0;
    for (int begin = 0; begin < bins; begin += 32) {
        Bin bin = {};
        if (begin + lane < bins) bin = look_up(p, at, begin + lane);
        while (__any_sync(0xffffffffu, bin.first < bin.end)) {
            const int end = min(bin.end, bin.first + 32);
            unsigned near = 0;
            for (int j = bin.first; j < end; ++j) {
                const double* const other = p.places + 3 * Long(j);
                const double dx = other[0] + bin.shift[0] - x, dy = other[1] + bin.shift[1] - y,
                             dz = other[2] + bin.shift[2] - z;
                const double square = fma(dz, dz, fma(dy, dy, dx * dx));
                const bool itself = j == receiver && bin.image == CENTER;
                if (square < p.square && !itself) near |= 1u << (j - bin.first);
            }
            const int up = lane_prefix_sum(__popc(near));
            if (WRITE) {
                int to = edges + up - __popc(near);
                for (unsigned rest = near; rest != 0; rest &= rest - 1, ++to) {
                    const int found = p.sorted[bin.first + __ffs(int(rest)) - 1];
                    p.sender[to] = p.point_node[found];
                    p.image[to] = p.point_image != nullptr ? p.point_image[found] : bin.image;
                }
            }
            edges += __shfl_sync(0xffffffffu, up, 31);
            bin.first = max(bin.first, end);
        }
    }
    if (WRITE || lane > 0) return;
    p.row_ptr[row] = edges;
    atomicAdd(p.total, (unsigned long long)(edges));
}

extern "C" __global__ void __launch_bounds__(256) count_edges(const CellArguments p) {
    const Long receiver = thread_number() / 32;
    if (receiver < p.num_points) search<false>(p, int(receiver), threadIdx.x % 32);
}

extern "C" __global__ void __launch_bounds__(256) write_edges(const CellArguments p) {
    const Long receiver = thread_number() / 32;
    if (receiver < p.num_points) search<true>(p, int(receiver), threadIdx.x % 32);
}

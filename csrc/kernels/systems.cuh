// Neighbours and sums of many small systems at once. All pairs of a system are tested.
#include "kernels/cutoff.cuh"
#include "kernels/systems.hpp"

// Finds the system of each node, and moves nodes into its cell.
extern "C" __global__ void __launch_bounds__(256) place_nodes(const SystemArguments p) {
    const Long n = thread_number();
    if (n >= p.num_nodes) return;
    int low = 0, high = int(p.num_systems);
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        (p.first_node[middle] <= n ? low : high) = middle;
    }
    p.system[n] = low;
    const double* const from = p.given + 3 * n;
    double at[3] = {from[0], from[1], from[2]};
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        const double* const inverse = p.inverse + 9 * Long(low) + k;
        const double* const cell = p.cell + 9 * Long(low) + 3 * k;
        const double cells =
            floor(from[0] * inverse[0] + from[1] * inverse[3] + from[2] * inverse[6]);
#pragma unroll
        for (int c = 0; c < 3; ++c) at[c] -= cells * cell[c];
    }
#pragma unroll
    for (int c = 0; c < 3; ++c) p.positions[3 * n + c] = at[c];
}

// A warp tests a receiver against the nodes of its system and all their images. Products are summed
// by fma alone, so that counting and writing agree to the last bit.
template <bool WRITE>
INLINE void search(const SystemArguments& p, Long receiver, int lane) {
    const int system = p.system[receiver];
    const int first = p.first_node[system], nodes = p.first_node[system + 1] - first;
    const double* const cell = p.cell + 9 * Long(system);
    int widths[3], steps[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        steps[k] = p.steps[3 * system + k];
        widths[k] = 2 * steps[k] + 1;
    }
    const int images = widths[0] * widths[1] * widths[2];
    const double* const own = p.positions + 3 * receiver;
    const double x = own[0], y = own[1], z = own[2];
    const Long rounds = (Long(nodes) * images + 31) / 32;
    int image = lane / nodes, node = lane % nodes;
    const int more_images = 32 / nodes, more_nodes = 32 % nodes;
    int edges = WRITE ? p.row_ptr[receiver] : 0;
    for (Long round = 0; round < rounds; ++round) {
        const double a = image % widths[0] - steps[0];
        const double b = image / widths[0] % widths[1] - steps[1];
        const double c = image / widths[0] / widths[1] - steps[2];
        double shift[3];
#pragma unroll
        for (int d = 0; d < 3; ++d)
            shift[d] = fma(c, cell[6 + d], fma(b, cell[3 + d], a * cell[d]));
        bool near = false;
        if (image < images) {
            const double* const other = p.positions + 3 * Long(first + node);
            const double dx = other[0] + shift[0] - x, dy = other[1] + shift[1] - y,
                         dz = other[2] + shift[2] - z;
            const bool itself = first + node == receiver && a == 0 && b == 0 && c == 0;
            near = fma(dz, dz, fma(dy, dy, dx * dx)) < p.square && !itself;
        }
        const unsigned found = __ballot_sync(0xffffffffu, near);
        if (WRITE && near) {
            const Long to = edges + __popc(found & ((1u << lane) - 1));
            p.sender[to] = first + node;
#pragma unroll
            for (int d = 0; d < 3; ++d) p.shift[3 * to + d] = -shift[d];
        }
        edges += __popc(found);
        image += more_images;
        node += more_nodes;
        if (node >= nodes) {
            node -= nodes;
            ++image;
        }
    }
    if (WRITE || lane > 0) return;
    p.row_ptr[receiver] = edges;
    atomicAdd(p.total, (unsigned long long)(edges));
}

extern "C" __global__ void __launch_bounds__(256) count_pairs(const SystemArguments p) {
    const Long receiver = thread_number() / 32;
    if (receiver < p.num_nodes) search<false>(p, receiver, threadIdx.x % 32);
}

extern "C" __global__ void __launch_bounds__(256) write_pairs(const SystemArguments p) {
    const Long receiver = thread_number() / 32;
    if (receiver < p.num_nodes) search<true>(p, receiver, threadIdx.x % 32);
}

// Column c of the rows of a system, summed by a warp.
INLINE double sum_of_nodes(const double* rows, int width, int c, Long begin, Long end) {
    double sum = 0;
    for (Long n = begin + int(threadIdx.x) % 32; n < end; n += 32) sum += rows[n * width + c];
    return warp_sum(sum);
}

extern "C" __global__ void __launch_bounds__(256) sum_systems(const SystemSumArguments p) {
    const Long s = thread_number() / 32;
    if (s >= p.num_systems) return;
    const Long begin = p.first_node[s], end = p.first_node[s + 1];
    const bool writes = threadIdx.x % 32 == 0;
    const double energy = sum_of_nodes(p.energies, 1, 0, begin, end);
    bool finite = isfinite(energy);
    if (writes) p.energy[s] = energy;
    for (int c = 0; c < 3; ++c) {
        const double place = sum_of_nodes(p.positions, 3, c, begin, end);
        const double force = p.forces != nullptr ? sum_of_nodes(p.forces, 3, c, begin, end) : 0.0;
        finite = finite && isfinite(place) && isfinite(force);
    }
    for (int c = 0; c < 9 && p.virials != nullptr; ++c) {
        const double virial = sum_of_nodes(p.virials, 9, c, begin, end);
        finite = finite && isfinite(virial);
        if (writes) p.virial[9 * s + c] = virial;
    }
    if (writes) p.finite[s] = finite;
}

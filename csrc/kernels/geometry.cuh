#include "kernels/common.cuh"
#include "kernels/geometry.hpp"

// pos[receiver] - pos[sender] + shift of an edge, Å.
INLINE void edge_vector(const double* positions, const EdgeShifts& shifts, int sender, int receiver,
                        Long edge, double* v) {
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        v[k] = positions[3 * Long(receiver) + k] - positions[3 * Long(sender) + k];
        if (shifts.shift) v[k] += shifts.shift[3 * edge + k];
    }
    if (!shifts.image) return;
    const int image = shifts.image[edge];
    if (!shifts.packed) {
#pragma unroll
        for (int k = 0; k < 3; ++k) v[k] += shifts.table[3 * image + k];
        return;
    }
    const double a = (image >> 20) - 512, b = (image >> 10 & 1023) - 512, c = (image & 1023) - 512;
#pragma unroll
    for (int k = 0; k < 3; ++k)
        v[k] += a * shifts.table[k] + b * shifts.table[3 + k] + c * shifts.table[6 + k];
}

// One edge; whether it is shorter than r_max.
INLINE bool measure(const GeometryArguments<T>& p, int receiver, int edge) {
    double v[3];
    edge_vector(p.positions, p.shifts, p.sender[edge], receiver, edge, v);
    const double square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
    // shorter lengths overflow in their inverse powers
    if (!(square >= 1e-12)) atomicMax(p.failures, edge + 1);
    double r = sqrt(square);
    if (r < 1e-8) r = 1e-8;
    const bool live = r < p.r_max;
    p.length[edge] = live ? r : DEAD;
    const double inverse = live ? p.sign / r : 0.0;
#pragma unroll
    for (int k = 0; k < 3; ++k) p.unit[3 * Long(edge) + k] = live ? T(v[k] * inverse) : T(0);
    return live;
}

// Sorts a receiver's live edges by length, equal ones by number. More than fit stay as they are.
constexpr int SORTED = 256;
INLINE void sort_by_length(const GeometryArguments<T>& p, int first, int count, int lane,
                           unsigned long long* keys) {
    if (count > SORTED) {
        for (int i = lane; i < count; i += 32) p.by_length[first + i] = p.live[first + i];
        return;
    }
    int size = 32;
    while (size < count) size *= 2;
    for (int i = lane; i < size; i += 32) {
        keys[i] = ~0ull;
        if (i >= count) continue;
        const int edge = p.live[first + i];
        const unsigned bits = __float_as_uint(float(p.length[edge]));  // positive: in order
        keys[i] = (unsigned long long)bits << 32 | unsigned(edge);
    }
    for (int run = 2; run <= size; run *= 2)
        for (int step = run / 2; step > 0; step /= 2) {
            __syncwarp();
            for (int i = lane; i < size / 2; i += 32) {
                const int low = 2 * i - (i & (step - 1)), high = low + step;
                const unsigned long long a = keys[low], b = keys[high];
                if ((a > b) == ((low & run) == 0)) {
                    keys[low] = b;
                    keys[high] = a;
                }
            }
        }
    __syncwarp();
    for (int i = lane; i < count; i += 32) p.by_length[first + i] = int(unsigned(keys[i]));
}

// A warp per receiver: lists its live edges, in order.
extern "C" __global__ void __launch_bounds__(256) geometry(const GeometryArguments<T> p) {
    __shared__ unsigned long long keys[8][SORTED];
    const Long receiver = thread_number() / 32;
    const int lane = threadIdx.x % 32;
    if (receiver >= p.num_local) return;
    const int first = p.row_ptr[receiver], end = p.row_ptr[receiver + 1];
    int count = 0;
    for (int at = first; at < end; at += 32) {
        const int edge = at + lane;
        const bool live = edge < end && measure(p, int(receiver), edge);
        const unsigned found = __ballot_sync(0xffffffffu, live);
        if (live) p.live[first + count + __popc(found & ((1u << lane) - 1))] = edge;
        count += __popc(found);
    }
    if (lane == 0) p.num_live[receiver] = count;
    __syncwarp();
    sort_by_length(p, first, count, lane, keys[threadIdx.x / 32]);
}

// One edge at one of its ends: adds to the force and to the six parts of the virial.
template <bool VIRIAL>
INLINE void add_edge(const AssembleArguments<T>& p, Long edge, double sign, double* sums) {
    double g[3], v[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        g[k] = double(p.gradient[3 * edge + k]);
        for (Long part = 1; part < p.parts; ++part)
            g[k] += double(p.gradient[3 * (part * p.num_edges + edge) + k]);
        sums[k] -= sign * g[k];
    }
    if (!VIRIAL) return;
    edge_vector(p.positions, p.shifts, p.sender[edge], p.receiver[edge], edge, v);
    int i = 3;
    // symmetric: what is not vanishes in the sum over all nodes
#pragma unroll
    for (int c = 0; c < 3; ++c)
#pragma unroll
        for (int d = c; d < 3; ++d) sums[i++] -= 0.25 * (v[c] * g[d] + v[d] * g[c]);
}

// A warp per node: its edges as a receiver, then those as a sender, in a fixed order.
template <bool VIRIAL>
INLINE void assemble_node(const AssembleArguments<T>& p, Long node, int lane) {
    constexpr int COUNT = VIRIAL ? 9 : 3;
    double sums[COUNT] = {};
    if (node < p.num_local) {
        const int end = p.row_ptr[node + 1];
#pragma unroll 4
        for (int s = p.row_ptr[node] + lane; s < end; s += 32) add_edge<VIRIAL>(p, s, 1.0, sums);
    }
    const int end = p.sender_ptr[node + 1];
#pragma unroll 4
    for (int i = p.sender_ptr[node] + lane; i < end; i += 32)
        add_edge<VIRIAL>(p, p.by_sender[i], -1.0, sums);
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
        for (int bit = 16; bit > 0; bit /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], bit);
    if (lane > 0) return;
#pragma unroll
    for (int k = 0; k < 3; ++k) p.forces[3 * node + k] = sums[k];
    if (!VIRIAL) return;
    int i = 3;
#pragma unroll
    for (int c = 0; c < 3; ++c)
#pragma unroll
        for (int d = c; d < 3; ++d) {
            const double value = sums[i++];
            p.virials[9 * node + 3 * c + d] = value;
            p.virials[9 * node + 3 * d + c] = value;
        }
}

extern "C" __global__ void __launch_bounds__(128) assemble(const AssembleArguments<T> p) {
    const Long node = thread_number() / 32;
    if (node >= p.num_nodes) return;
    if (p.virials)
        assemble_node<true>(p, node, threadIdx.x % 32);
    else
        assemble_node<false>(p, node, threadIdx.x % 32);
}

#include "kernels/common.cuh"
#include "kernels/geometry.hpp"

// Edges that a lane loads at a time, so that it waits for memory once for all of them.
constexpr int AHEAD = 4;

// pos[receiver] - pos[sender] + shift of AHEAD edges, Å.
INLINE void edge_vectors(const double* __restrict__ positions, const EdgeShifts& shifts,
                         const int* sender, const int* receiver, const Long* edge, double (*v)[3]) {
#pragma unroll
    for (int a = 0; a < AHEAD; ++a)
#pragma unroll
        for (int k = 0; k < 3; ++k)
            v[a][k] = positions[3 * Long(receiver[a]) + k] - positions[3 * Long(sender[a]) + k];
    if (shifts.shift)
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
#pragma unroll
            for (int k = 0; k < 3; ++k) v[a][k] += shifts.shift[3 * edge[a] + k];
    if (!shifts.image) return;
    int image[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) image[a] = shifts.image[edge[a]];
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
        const double* const t = shifts.table;
        if (!shifts.packed) {
#pragma unroll
            for (int k = 0; k < 3; ++k) v[a][k] += t[3 * image[a] + k];
            continue;
        }
        const double x = (image[a] >> 20) - 512, y = (image[a] >> 10 & 1023) - 512;
        const double z = (image[a] & 1023) - 512;
#pragma unroll
        for (int k = 0; k < 3; ++k) v[a][k] += x * t[k] + y * t[3 + k] + z * t[6 + k];
    }
}

// Writes the length and the direction of an edge. Returns the length; DEAD if it is at least r_max.
INLINE double measure(const GeometryArguments<T>& p, Long edge, const double* v) {
    const double square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
    // shorter lengths overflow in their inverse powers
    if (!(square >= 1e-12)) atomicMax(p.failures, int(edge) + 1);
    double r = sqrt(square);
    if (r < 1e-8) r = 1e-8;
    const bool active = r < p.r_max;
    const double inverse = active ? p.sign / r : 0.0;
    r = active ? r : DEAD;
    p.length[edge] = r;
#pragma unroll
    for (int k = 0; k < 3; ++k) p.unit[3 * edge + k] = active ? T(v[k] * inverse) : T(0);
    return r;
}

// Lists the active pairs of the group that begins with `receiver`, and marks their rows.
// StepResults::begin has cleared the marks.
INLINE void list_pairs(const GeometryArguments<T>& p, Long receiver, int lane) {
    const Long last = receiver + p.group < p.num_local ? receiver + p.group : p.num_local;
    const int first = p.row_ptr[receiver], end = p.row_ptr[last];
    int count = 0;
    for (int at = first; at < end; at += 32 * AHEAD) {
        int edge[AHEAD], row[AHEAD];
        bool active[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int i = min(at + 32 * a + lane, end - 1);
            edge[a] = p.by_group[i];
            row[a] = at + 32 * a + lane < end ? p.pair_row[i] : -1;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) active[a] = row[a] >= 0 && p.length[edge[a]] < DEAD;
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const unsigned found = __ballot_sync(0xffffffffu, active[a]);
            if (active[a]) {
                const int place = first + count + __popc(found & ((1u << lane) - 1));
                p.active_pairs[place] = edge[a];
                p.active_pair_row[place] = row[a];
                p.active_rows[row[a]] = 1;
            }
            count += __popc(found);
        }
    }
    if (lane == 0) p.num_pairs[receiver / p.group] = count;
}

// A warp per receiver lists its active edges twice: by number, and by length (or by the sender's
// type, then length). A receiver with more than SORTED edges has the first list twice. A block has
// whole groups.
constexpr int SORTED = 256;
struct alignas(16) Keys {
    unsigned v[4];
};
// Keys order active edges by the type modulo 128, 17 bits of the length and 8 of the number.
INLINE unsigned key_of(const GeometryArguments<T>& p, Long edge, double length, int number) {
    const unsigned type = p.sender_type != nullptr ? unsigned(p.sender_type[edge]) : 0;
    const auto place = unsigned(float(length) * (131071.0f / float(p.r_max)));
    return type << 25 | place << 8 | unsigned(number);
}
extern "C" __global__ void __launch_bounds__(256) geometry(const GeometryArguments<T> p) {
    __shared__ Keys all_keys[8][SORTED / 4];
    const int receiver = int(thread_number() / 32), lane = threadIdx.x % 32;
    const bool inside = receiver < p.num_local;
    Keys* const own_keys = all_keys[threadIdx.x / 32];
    unsigned* const keys = reinterpret_cast<unsigned*>(own_keys);
    const int first = inside ? p.row_ptr[receiver] : 0, end = inside ? p.row_ptr[receiver + 1] : 0;
    int count = 0;
    for (int at = first; at < end; at += 32 * AHEAD) {
        Long edge[AHEAD];
        int sender[AHEAD], receivers[AHEAD];
        double v[AHEAD][3];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) edge[a] = min(at + 32 * a + lane, end - 1);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) sender[a] = p.sender[edge[a]], receivers[a] = receiver;
        edge_vectors(p.positions, p.shifts, sender, receivers, edge, v);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const bool there = at + 32 * a + lane < end;
            const double r = there ? measure(p, edge[a], v[a]) : DEAD;
            const unsigned found = __ballot_sync(0xffffffffu, r < DEAD);
            const int place = count + __popc(found & ((1u << lane) - 1));
            count += __popc(found);
            if (r >= DEAD) continue;
            p.active[first + place] = int(edge[a]);
            if (place < SORTED) keys[place] = key_of(p, edge[a], r, place);
        }
    }
    if (inside && lane == 0) p.num_active[receiver] = count;
    if (count <= SORTED && count + lane < (count + 3) / 4 * 4) keys[count + lane] = ~0u;
    __syncwarp();
    for (int i = lane; i < count; i += 32) {
        int rank = i;
        if (count <= SORTED) {
            rank = 0;  // the number of smaller keys
            const unsigned own = keys[i];
#pragma unroll 4
            for (int k = 0; k < count; k += 4) {
                const Keys some = own_keys[k / 4];
#pragma unroll
                for (int j = 0; j < 4; ++j) rank += some.v[j] < own;
            }
        }
        p.by_length[first + rank] = p.active[first + i];
    }
    if (p.group == 0) return;
    __syncthreads();  // lengths of the group's edges
    if (inside && receiver % p.group == 0) list_pairs(p, receiver, lane);
}

// Adds the contributions of edges begin, begin + 32 and so on to the force and to the six parts of
// the virial of the node at one of their ends. `begin` counts edges, or entries of `list` if there
// is one.
template <bool VIRIAL>
INLINE void add_edges(const AssembleArguments<T>& p, int begin, int end, const int* list,
                      double sign, double* sums) {
    for (int at = begin; at < end; at += 32 * AHEAD) {
        Long edge[AHEAD];
        bool there[AHEAD];
        double g[AHEAD][3] = {};
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int number = min(at + 32 * a, end - 1);
            there[a] = at + 32 * a < end;
            edge[a] = list ? list[number] : number;
        }
#pragma unroll 1
        for (Long part = 0; part < p.parts; ++part) {
            const T* const from = p.gradient + 3 * part * p.num_edges;
#pragma unroll
            for (int a = 0; a < AHEAD; ++a)
#pragma unroll
                for (int k = 0; k < 3; ++k)
                    g[a][k] += there[a] ? double(from[3 * edge[a] + k]) : 0.0;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
#pragma unroll
            for (int k = 0; k < 3; ++k) sums[k] -= sign * g[a][k];
        if (!VIRIAL) continue;
        int sender[AHEAD], receiver[AHEAD];
        double v[AHEAD][3];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
            sender[a] = p.sender[edge[a]], receiver[a] = p.receiver[edge[a]];
        edge_vectors(p.positions, p.shifts, sender, receiver, edge, v);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            int i = 3;
            // only the symmetric part: the rest vanishes in the sum over all nodes
#pragma unroll
            for (int c = 0; c < 3; ++c)
#pragma unroll
                for (int d = c; d < 3; ++d)
                    sums[i++] -= 0.25 * (v[a][c] * g[a][d] + v[a][d] * g[a][c]);
        }
    }
}

// A warp per node adds the edges that it receives, then those that it sends, in a fixed order.
template <bool VIRIAL>
INLINE void assemble_node(const AssembleArguments<T>& p, Long node, int lane) {
    constexpr int COUNT = VIRIAL ? 9 : 3;
    double sums[COUNT] = {};
#pragma unroll 1
    for (int sends = node < p.num_local ? 0 : 1; sends < 2; ++sends) {
        const int* const row_ptr = sends ? p.sender_ptr : p.row_ptr;
        add_edges<VIRIAL>(p, row_ptr[node] + lane, row_ptr[node + 1], sends ? p.by_sender : nullptr,
                          sends ? -1.0 : 1.0, sums);
    }
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

extern "C" __global__ void __launch_bounds__(128) add_own_forces(const OwnForceArguments a) {
    const Long n = thread_number();
    if (n >= a.num_local) return;
    for (int k = 0; k < 3; ++k) a.forces[3 * n + k] += a.own_forces[3 * n + k];
    if (a.virials == nullptr) return;
    const double* const v = a.own_virials + 6 * n;
    const double rows[9] = {v[0], v[3], v[4], v[3], v[1], v[5], v[4], v[5], v[2]};
    for (int i = 0; i < 9; ++i) a.virials[9 * n + i] += rows[i];
}

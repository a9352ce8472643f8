// ---- the table, where it has all edges of a tile ------------------------------------------------
#pragma once
#include "kernels/radial_network.cuh"

// First row of an edge, and what its three steps count, in the value and in its derivative.
struct TableLookup {
    int row[EDGES];
    T basis[3][EDGES], slope[3][EDGES];
    int missing;  // an edge is too short
};

// Uniform over the block: may the table be used?
INLINE bool look_up(const RadialArguments<T>& p, TableLookup& lookup) {
    if (KNOTS == 0) return false;
    if (threadIdx.x == 0) lookup.missing = 0;
    __syncthreads();
    for (int s = threadIdx.x; s < EDGES; s += THREADS) {
        const Long number = Long(blockIdx.x) * EDGES + s;
        const Long edge = p.first + (number < p.num_edges ? number : p.num_edges - 1);
        const Long pair = Long(p.receiver_type[edge]) * p.num_types + p.sender_type[edge];
        const double r = p.length[edge], root = sqrt(r);
        const TableEntry found = p.places[pair];
        const bool active = number < p.num_edges && r < p.numbers[BASIS + (TYPED_R_MAX ? pair : 0)];
        const double place = active ? (root - found.first) * found.inverse_step : 0.0;
        if (place < 0) lookup.missing = 1;
        int i = place > 0 ? int(place) : 0;
        if (i > found.intervals - 1) i = found.intervals - 1;
        lookup.row[s] = active ? found.row + i : 0;
        const double t = place - i, u = 1.0 - t;
        // sum_j b[j] c[j] = c[0] + sum_j (b[j+1] + .. + b[3]) (c[j+1] - c[j]): b sum to one
        const double b[3] = {(3 * t * t * t - 6 * t * t + 4) / 6,
                             (3 * u * u * u - 6 * u * u + 4) / 6, t * t * t / 6};
        const double d[3] = {t * (3 * t - 4) / 2, -u * (3 * u - 4) / 2, t * t / 2};
        const double by_length = active ? found.inverse_step / (2 * root) : 0.0;
        double value = 0, derivative = 0;
#pragma unroll
        for (int j = 2; j >= 0; --j) {
            value += b[j];
            derivative += d[j];
            lookup.basis[j][s] = active ? T(value) : T(0);
            lookup.slope[j][s] = T(derivative * by_length);
        }
    }
    __syncthreads();
    return lookup.missing == 0;
}

// Four columns of the rows from `row` on: the first, and by how much the next three differ.
INLINE void table_rows(const RadialArguments<T>& p, int row, int column, Quad& first,
                       Quad (&step)[3]) {
    const Long at = ((column / ALIGN) * p.table_rows + row) * ALIGN + column % ALIGN;
    first = *(const Quad*)(p.table + at);
#pragma unroll
    for (int j = 0; j < 3; ++j) step[j] = *(const Quad*)(p.steps + at + j * ALIGN);
}

INLINE void table_forward(const RadialArguments<T>& p, const TableLookup& lookup) {
    const Long begin = Long(blockIdx.x) * EDGES, rest = p.num_edges - begin;
    constexpr int QUADS = STRIDE / 4;
    for (int i = threadIdx.x; i < EDGES * QUADS; i += THREADS) {
        const int s = i / QUADS, column = i % QUADS * 4;
        if (s >= rest) break;
        Quad value, step[3];
        table_rows(p, lookup.row[s], column, value, step);
#pragma unroll
        for (int j = 0; j < 3; ++j)
#pragma unroll
            for (int k = 0; k < 4; ++k) value.v[k] += lookup.basis[j][s] * step[j].v[k];
        *(Quad*)(p.hidden + (begin + s) * STRIDE + column) = value;
    }
}

// Eight threads per edge.
INLINE void table_backward(const RadialArguments<T>& p, const TableLookup& lookup) {
    const Long begin = Long(blockIdx.x) * EDGES, rest = p.num_edges - begin;
    const int lane = threadIdx.x % 8;
    for (int s = threadIdx.x / 8; s < EDGES; s += THREADS / 8) {
        T total = 0;
        if (s < rest)
            for (int column = 4 * lane; column < STRIDE; column += 32) {
                Quad value, step[3];
                table_rows(p, lookup.row[s], column, value, step);
                const Quad d = *(const Quad*)(p.d_hidden + (begin + s) * STRIDE + column);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    T slope = 0;
#pragma unroll
                    for (int j = 0; j < 3; ++j) slope += lookup.slope[j][s] * step[j].v[k];
                    if (column + k < LAST + CONSTANT) total += d.v[k] * slope;
                }
            }
#pragma unroll
        for (int bit = 4; bit > 0; bit /= 2) total += __shfl_xor_sync(0xffffffffu, total, bit);
        if (lane == 0 && s < rest) p.d_length[begin + s] = double(total);
    }
}

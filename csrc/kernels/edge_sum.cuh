#include "kernels/cutoff.cuh"
#include "kernels/edge_sum.hpp"
// needs table_entry.hpp, which edge_sum.hpp includes
#include "kernels/table_column.cuh"

// Defined before: DEGREE of the polynomials of the table.
typedef TableColumn<DEGREE, T> Column;

struct SummedEdge {
    double cut, cut_slope;  // cutoff of the output; 0: not shorter than the r_max of its types
    Long edge, row;         // row: of the table
    T z;                    // position within the interval
    double by_length;       // derivative of z
};

INLINE SummedEdge look_at(const EdgeSumArguments<T>& p, Long receiver, Long number) {
    SummedEdge found = {0, 0, p.active[number], 0, T(0), 0};
    const Long pair = p.types[receiver] * p.num_types + p.sender_type[found.edge];
    const TableEntry entry = p.places[pair];
    const double r_max = p.r_max[p.typed ? pair : 0], r = p.length[found.edge];
    const double root = sqrt(r), place = root * entry.inverse_step + entry.offset;
    if (!(r < r_max && place < entry.intervals)) return found;
    const int interval = int(place);
    found.row = entry.row + interval;
    found.z = T(2 * (place - interval) - 1);
    found.by_length = entry.inverse_step / root;
    found.cut = 1;
    if (p.power != 0) {
        polynomial_cutoff(p.power, 0, r / r_max, found.cut, found.cut_slope);
        found.cut_slope /= r_max;
    }
    return found;
}

// Activated output number o of an edge, and its derivative by the length.
INLINE double output(const EdgeSumArguments<T>& p, const SummedEdge& e, Long o, double& slope) {
    T value, by_z;
    const auto item = [&](int i) {
        return p.table[((e.row * Column::PAIRS + i / 2) * p.columns + o) * 2 + i % 2];
    };
    Column::evaluate(e.z, item, value, by_z);
    const double s = value;
    slope = by_z * e.by_length;
    if (!p.tanh_square) return s;
    const double found = tanh(s * s);
    slope *= 2 * s * (1 - found * found);
    return found;
}

// A warp per receiver; it also sets the padding of the row to zero.
extern "C" __global__ void __launch_bounds__(128) edge_sums(const EdgeSumArguments<T> p) {
    const Long receiver = thread_number() / 32;
    const int lane = threadIdx.x % 32;
    if (receiver >= p.num_receivers) return;
    const Long begin = p.row_ptr[receiver], end = begin + p.num_active[receiver];
    for (Long o = 0; o < p.outputs; ++o) {
        double total = 0, slope;
        for (Long i = begin + lane; i < end; i += 32) {
            const SummedEdge e = look_at(p, receiver, i);
            if (e.cut != 0) total += e.cut * output(p, e, o, slope);
        }
        total = warp_sum(total);
        if (lane == 0) p.out[receiver * p.width + o] = T(total);
    }
    for (Long o = p.outputs + lane; o < p.width; o += 32) p.out[receiver * p.width + o] = T(0);
}

// A warp per receiver, a lane per edge.
extern "C" __global__ void __launch_bounds__(128) edge_sum_gradients(const EdgeSumArguments<T> p) {
    const Long receiver = thread_number() / 32;
    if (receiver >= p.num_receivers) return;
    const Long begin = p.row_ptr[receiver], end = begin + p.num_active[receiver];
    const T* const d_out = p.d_out + receiver * p.width;
    for (Long i = begin + threadIdx.x % 32; i < end; i += 32) {
        const SummedEdge e = look_at(p, receiver, i);
        if (e.cut == 0 && e.cut_slope == 0) continue;
        double along = 0;
        for (Long o = 0; o < p.outputs; ++o) {
            double slope;
            const double value = output(p, e, o, slope);
            along += double(d_out[o]) * (value * e.cut_slope + e.cut * slope);
        }
#pragma unroll
        for (int k = 0; k < 3; ++k)
            p.edge_gradient[3 * e.edge + k] += T(p.sign * along * p.unit[3 * e.edge + k]);
    }
}

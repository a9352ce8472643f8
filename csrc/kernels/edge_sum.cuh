#include "kernels/cutoff.cuh"
#include "kernels/edge_sum.hpp"

struct SummedEdge {
    double cut, cut_slope;  // outside of the activation; 0: dead
    Long edge;
};

INLINE SummedEdge look_at(const EdgeSumArguments<T>& p, Long number) {
    SummedEdge found = {0, 0, p.first + number};
    const Long pair = p.receiver_type[found.edge] * p.num_types + p.sender_type[found.edge];
    const double r_max = p.r_max[p.typed ? pair : 0], r = p.length[found.edge];
    if (!(r < r_max)) return found;
    found.cut = 1;
    if (p.power != 0) {
        polynomial_cutoff(p.power, r / r_max, found.cut, found.cut_slope);
        found.cut_slope /= r_max;
    }
    return found;
}

// act(s) of one output, by all lanes of a warp.
INLINE double output(const EdgeSumArguments<T>& p, Long number, int o, int lane, double& slope) {
    double s = 0;
    for (int k = lane; k < p.units; k += 32)
        s += double(p.hidden[number * p.stride + k]) * p.last[k * p.outputs + o];
    s = warp_sum(s);
    const double value = p.tanh_square ? tanh(s * s) : s;
    slope = p.tanh_square ? 2 * s * (1 - value * value) : 1.0;
    return value;
}

// A warp per edge.
extern "C" __global__ void __launch_bounds__(128) edge_values(const EdgeSumArguments<T> p) {
    const Long number = thread_number() / 32;
    const int lane = threadIdx.x % 32;
    if (number >= p.num_edges) return;
    const SummedEdge found = look_at(p, number);
    for (int o = 0; o < p.outputs; ++o) {
        double slope;
        const double value = output(p, number, o, lane, slope);
        if (lane == 0) p.values[number * p.outputs + o] = found.cut != 0 ? found.cut * value : 0.0;
    }
}

// A warp per receiver; also what pads its row.
extern "C" __global__ void __launch_bounds__(128) receiver_sums(const EdgeSumArguments<T> p) {
    const Long number = thread_number() / 32;
    const int lane = threadIdx.x % 32;
    if (number >= p.num_receivers) return;
    const Long node = p.first_receiver + number;
    const Long begin = p.row_ptr[node] - p.first, end = p.row_ptr[node + 1] - p.first;
    for (int o = 0; o < p.outputs; ++o) {
        double total = 0;
        for (Long s = begin + lane; s < end; s += 32) total += p.values[s * p.outputs + o];
        total = warp_sum(total);
        if (lane == 0) p.out[node * p.width + o] = T(total);
    }
    for (Long o = p.outputs + lane; o < p.width; o += 32) p.out[node * p.width + o] = T(0);
}

// A warp per edge: gradients of hidden numbers, and of the length through the outer cutoff.
extern "C" __global__ void __launch_bounds__(128) edge_gradients(const EdgeSumArguments<T> p) {
    const Long number = thread_number() / 32;
    const int lane = threadIdx.x % 32;
    if (number >= p.num_edges) return;
    const SummedEdge found = look_at(p, number);
    const bool dead = found.cut == 0 && found.cut_slope == 0;
    const T* const d_out = p.d_out + p.receiver[found.edge] * p.width;
    T* const row = p.d_hidden + number * p.stride;
    double along = 0;
    for (int o = 0; o < p.outputs; ++o) {
        double slope;
        const double value = output(p, number, o, lane, slope), g = double(d_out[o]);
        along += g * value * found.cut_slope;
        const double steep = dead ? 0.0 : g * found.cut * slope;
        for (int k = lane; k < p.stride; k += 32) {
            const T before = o > 0 ? row[k] : T(0);
            const T more = k < p.units ? T(steep * p.last[k * p.outputs + o]) : T(0);
            row[k] = before + more;
        }
    }
    if (dead || lane >= 3 || found.cut_slope == 0) return;
    p.edge_gradient[3 * found.edge + lane] += T(p.sign * along * p.unit[3 * found.edge + lane]);
}

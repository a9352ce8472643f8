#include "kernels/cutoff.cuh"
#include "kernels/pair_energy.hpp"

INLINE bool pair_energy(const PairArguments<T>& p, Long edge, double& energy, double& slope) {
    const Long pair = p.receiver_type[edge] * p.num_types + p.sender_type[edge];
    return p.repulsion.at(pair, p.length[edge], energy, slope);
}

// A warp per receiver.
extern "C" __global__ void __launch_bounds__(128) pair_energies(const PairArguments<T> p) {
    const Long node = thread_number() / 32;
    const int lane = threadIdx.x % 32;
    if (node >= p.num_nodes) return;
    double total = 0, energy, slope;
    for (Long s = p.row_ptr[node] + lane; s < p.row_ptr[node + 1]; s += 32)
        if (pair_energy(p, s, energy, slope)) total += energy;
    total = warp_sum(total);
    if (lane == 0) p.energies[node] += total;
}

extern "C" __global__ void __launch_bounds__(128) pair_gradients(const PairArguments<T> p) {
    for (Long s = thread_number(); s < p.num_edges; s += thread_count()) {
        double energy, slope;
        if (!pair_energy(p, s, energy, slope)) continue;
        if (p.weights != nullptr) slope *= p.weights[p.receiver[s]];
#pragma unroll
        for (int k = 0; k < 3; ++k)
            p.edge_gradient[3 * s + k] += T(p.sign * slope * double(p.unit[3 * s + k]));
    }
}

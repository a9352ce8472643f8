// Pairs of the dispersion. Defined before: REFERENCES_USED, the largest number of references of a
// type, and ZERO_DAMPING, which is false for the damping of Becke and Johnson.
#include "kernels/each_point.cuh"

// Energy of an atom; with `gradient` also its force, and the derivatives by its weights.
template <bool gradient>
INLINE void dispersion(const DispersionArguments<T>& a) {
    const Long node = blockIdx.x;
    const int type = a.types[node];
    const Vector at = place_of(a.points, node);
    const T* const own = a.rows + node * a.width;
    ForceSum<double> force;
    double found[1 + REFERENCES_USED] = {};  // energy, derivatives by weights
    for (int slot = 0; slot < a.points.slots; ++slot) {
        const int other = a.points.slot_type[slot];
        const PairDamping d = a.damping[type * a.num_types + other];
        const double* const c6 =
            a.c6 + (Long(type) * MAX_REFERENCES * a.num_types + other) * MAX_REFERENCES;
        const Long step = Long(a.num_types) * MAX_REFERENCES;  // from one reference to the next
        double strength[REFERENCES_USED], sums[REFERENCES_USED];
#pragma unroll
        for (int b = 0; b < REFERENCES_USED; ++b) {
            strength[b] = sums[b] = 0;
#pragma unroll
            for (int r = 0; r < REFERENCES_USED; ++r)
                strength[b] += double(own[r]) * c6[r * step + b];
        }
        each_point(a.points, slot, at, a.cutoff, [&](int p, const Vector& v, double square) {
            double w[REFERENCES_USED];
#pragma unroll
            for (int b = 0; b < REFERENCES_USED; ++b) w[b] = a.weights[b * a.count + p];
            double slope;
            const double g = damped_powers<ZERO_DAMPING>(d, square, slope);
            double c = 0;
#pragma unroll
            for (int b = 0; b < REFERENCES_USED; ++b) {
                sums[b] += g * w[b];
                c += strength[b] * w[b];
            }
            if (!gradient) return;
            force.add(v.x, v.y, v.z, c * slope);
        });
#pragma unroll
        for (int b = 0; b < REFERENCES_USED; ++b) {
            found[0] -= strength[b] * sums[b];
#pragma unroll
            for (int r = 0; gradient && r < REFERENCES_USED; ++r)
                found[1 + r] -= c6[r * step + b] * sums[b];
        }
    }
    block_sums(found);
    const int i = threadIdx.x;
    if (i == 0) a.energies[node] += 0.5 * found[0];
    if (!gradient) return;
    store_force(force, a.forces, a.virials, node);
    double mine = 0;
#pragma unroll
    for (int b = 0; b < REFERENCES_USED; ++b)
        if (i == b) mine = found[1 + b];
    if (i < a.width) a.gradient[node * a.width + i] = T(mine);
}

extern "C" __global__ void __launch_bounds__(POINT_THREADS)
    dispersion_energy(const DispersionArguments<T> a) {
    dispersion<false>(a);
}

extern "C" __global__ void __launch_bounds__(POINT_THREADS)
    dispersion_gradient(const DispersionArguments<T> a) {
    dispersion<true>(a);
}

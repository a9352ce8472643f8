// Positions of points, and coordination numbers of atoms for the dispersion.
#include "kernels/each_point.cuh"

extern "C" __global__ void __launch_bounds__(256) place_points(const PlaceArguments a) {
    const Long p = thread_number();
    if (p >= a.count) return;
    const double* const at = a.positions + 3 * Long(a.node[p]);
    a.x[p] = at[0] + a.offset[3 * p];
    a.y[p] = at[1] + a.offset[3 * p + 1];
    a.z[p] = at[2] + a.offset[3 * p + 2];
}

template <typename N>
INLINE void gather_numbers(const GatherPointsArguments<N>& a) {
    const Long p = thread_number();
    if (p >= a.count) return;
    const N* const row = a.rows + Long(a.node[p]) * a.width;
    for (int b = 0; b < a.numbers; ++b) a.out[b * a.count + p] = double(row[b]);
}

extern "C" __global__ void __launch_bounds__(256) gather_points(const GatherPointsArguments<T> a) {
    gather_numbers(a);
}

extern "C" __global__ void __launch_bounds__(256)
    gather_point_slopes(const GatherPointsArguments<double> a) {
    gather_numbers(a);
}

extern "C" __global__ void __launch_bounds__(256) take_column(const ColumnArguments<T> a) {
    const Long n = thread_number();
    if (n >= a.count) return;
    double* const out = a.out + n * a.out_width;
    out[0] = double(a.rows[n * a.width]);
    for (int k = 1; k < a.out_width; ++k) out[k] = 0;
}

// How much a neighbour counts: 1 / (1 + exp(-steepness (radius / r - 1))).
struct PairCount {
    double radius, steepness;  // radius: sum of both covalent radii
    double far;                // squared distance beyond which a neighbour counts less than 1e-5

    INLINE PairCount(double sum, double k) : radius(sum), steepness(k) {
        const double ratio = 1 - 11.5 / k;
        far = ratio > 0 ? sum * sum / (ratio * ratio) : 1e300;
    }
    // `change` is the derivative by r, divided by r.
    INLINE double near(double square, double& change) const {
        return neighbour_count(radius, steepness, square, change);
    }
    // Nearly all pairs are far. Single precision is then exact to 1e-11 of one neighbour.
    INLINE float of_far(float square, float& change) const {
        const float k = float(steepness), inverse = rsqrtf(square);
        const float ratio = float(radius) * inverse;
        const float decay = expf(k - k * ratio);
        const float count = __fdividef(1.0f, 1.0f + decay);
        change = -k * ratio * (decay * count) * count * (inverse * inverse);
        return count;
    }
};

extern "C" __global__ void __launch_bounds__(POINT_THREADS)
    coordination_forward(const CoordinationArguments<T> a) {
    const Long node = blockIdx.x;
    const Vector at = place_of(a.points, node);
    double total[1] = {0};
    float far = 0;
    for (int slot = 0; slot < a.points.slots; ++slot) {
        const PairCount pair(a.radii[a.types[node]] + a.radii[a.points.slot_type[slot]],
                             a.steepness);
        each_point(a.points, slot, at, a.cutoff, [&](int, const Vector&, double square) {
            double change;
            float far_change;
            if (square > pair.far)
                far += pair.of_far(float(square), far_change);
            else
                total[0] += pair.near(square, change);
        });
    }
    total[0] += double(far);
    block_sums(total);
    const int i = threadIdx.x;
    if (i < a.width) a.out[node * a.width + i] = i == 0 ? T(total[0]) : T(0);
}

extern "C" __global__ void __launch_bounds__(POINT_THREADS)
    coordination_backward(const CoordinationArguments<T> a) {
    const Long node = blockIdx.x;
    const Vector at = place_of(a.points, node);
    const double own = a.slopes[a.points.own[node]];
    ForceSum<double> sum;
    ForceSum<float> far;
    for (int slot = 0; slot < a.points.slots; ++slot) {
        const PairCount pair(a.radii[a.types[node]] + a.radii[a.points.slot_type[slot]],
                             a.steepness);
        each_point(a.points, slot, at, a.cutoff, [&](int p, const Vector& v, double square) {
            const double slope = own + a.slopes[p];
            if (square > pair.far) {
                float change;
                pair.of_far(float(square), change);
                far.add(float(v.x), float(v.y), float(v.z), float(slope) * change);
            } else {
                double change;
                pair.near(square, change);
                sum.add(v.x, v.y, v.z, slope * change);
            }
        });
    }
#pragma unroll
    for (int i = 0; i < 9; ++i) sum.v[i] += double(far.v[i]);
    store_force(sum, a.forces, a.virials, node);
}

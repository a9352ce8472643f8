// Operations that see all atoms and images within a long cutoff. A warp has an atom, and its lanes
// neighbouring points.
#include "kernels/cutoff.cuh"
#include "kernels/points.hpp"

struct Vector {
    double x, y, z;
};

INLINE int box_of(const PointSet& s, int k, double at) {
    const double box = floor((at - s.origin[k]) / s.edge[k]);
    return int(fmin(fmax(box, 0.0), double(s.boxes[k] - 1)));
}

// How far a place is at least from a box along one direction.
INLINE double gap(const PointSet& s, int k, int box, double at) {
    const double low = s.origin[k] + box * s.edge[k];
    return fmax(0.0, fmax(low - at, at - low - s.edge[k]));
}

// Calls body(point, v, square) for the points of a slot within the cutoff of an atom, v from the
// point to the atom; all lanes of a warp together.
template <typename Body>
INLINE void each_point(const PointSet& s, int slot, const Vector& at, double cutoff,
                       const Body& body) {
    const double reach = cutoff + s.slack, limit = cutoff * cutoff;
    const int y0 = box_of(s, 1, at.y - reach), y1 = box_of(s, 1, at.y + reach);
    const int z0 = box_of(s, 2, at.z - reach), z1 = box_of(s, 2, at.z + reach);
    for (int z = z0; z <= z1; ++z)
        for (int y = y0; y <= y1; ++y) {
            const double dy = gap(s, 1, y, at.y), dz = gap(s, 2, z, at.z);
            const double rest = reach * reach - dy * dy - dz * dz;
            if (rest < 0) continue;
            const double half = sqrt(rest);
            const int* const row =
                s.first + ((Long(slot) * s.boxes[2] + z) * s.boxes[1] + y) * s.boxes[0];
            const int begin = row[box_of(s, 0, at.x - half)];
            const int end = row[box_of(s, 0, at.x + half) + 1];
            for (int p = begin + int(threadIdx.x) % 32; p < end; p += 32) {
                const Vector v = {at.x - s.x[p], at.y - s.y[p], at.z - s.z[p]};
                const double square = v.x * v.x + v.y * v.y + v.z * v.z;
                if (square <= limit && square > 0) body(p, v, square);
            }
        }
}

INLINE Vector place_of(const PointSet& s, Long node) {
    const int p = s.own[node];
    return {s.x[p], s.y[p], s.z[p]};
}

// Sums of what pairs exert on an atom: slope is dE/dr / r.
struct ForceSum {
    double f[3], v[6];  // xx yy zz xy xz yz

    INLINE void clear() {
        for (int i = 0; i < 3; ++i) f[i] = 0;
        for (int i = 0; i < 6; ++i) v[i] = 0;
    }
    INLINE void add(const Vector& d, double slope) {
        const double x = slope * d.x, y = slope * d.y, z = slope * d.z;
        f[0] += x, f[1] += y, f[2] += z;
        v[0] += x * d.x, v[1] += y * d.y, v[2] += z * d.z;
        v[3] += x * d.y, v[4] += x * d.z, v[5] += y * d.z;
    }
    // Of all lanes, into the rows of a node.
    INLINE void store(double* forces, double* virials, Long node) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const double total = warp_sum(f[i]);
            if (lane == 0) forces[3 * node + i] -= total;
        }
#pragma unroll
        for (int i = 0; i < 6; ++i) {
            const double total = warp_sum(v[i]);
            if (lane == 0) virials[6 * node + i] -= 0.5 * total;
        }
    }
};

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
    if (n < a.count) a.out[n] = double(a.rows[n * a.width]);
}

extern "C" __global__ void __launch_bounds__(256) add_point_forces(const PointForceArguments a) {
    const Long n = thread_number();
    if (n >= a.num_local) return;
    for (int k = 0; k < 3; ++k) a.forces[3 * n + k] += a.point_forces[3 * n + k];
    if (a.virials == nullptr) return;
    const double* const v = a.point_virials + 6 * n;
    const double rows[9] = {v[0], v[3], v[4], v[3], v[1], v[5], v[4], v[5], v[2]};
    for (int i = 0; i < 9; ++i) a.virials[9 * n + i] += rows[i];
}

// 1 / (1 + exp(-steepness (radius / r - 1))); `change` is its derivative by r, divided by r.
INLINE double counted(double radius, double steepness, double square, double& change) {
    const double ratio = radius / sqrt(square);
    const double decay = exp(steepness - steepness * ratio);
    const double count = 1.0 / (1.0 + decay);
    change = -steepness * ratio * decay * count * count / square;
    return count;
}

extern "C" __global__ void __launch_bounds__(128)
    coordination_forward(const CoordinationArguments<T> a) {
    const Long node = thread_number() / 32;
    if (node >= a.num_local) return;
    const Vector at = place_of(a.points, node);
    double total = 0;
    for (int slot = 0; slot < a.points.slots; ++slot) {
        const double radius = a.radii[a.types[node]] + a.radii[a.points.slot_type[slot]];
        each_point(a.points, slot, at, a.cutoff, [&](int, const Vector&, double square) {
            double change;
            total += counted(radius, a.steepness, square, change);
        });
    }
    total = warp_sum(total);
    const int lane = threadIdx.x % 32;
    if (lane < a.width) a.out[node * a.width + lane] = lane == 0 ? T(total) : T(0);
}

extern "C" __global__ void __launch_bounds__(128)
    coordination_backward(const CoordinationArguments<T> a) {
    const Long node = thread_number() / 32;
    if (node >= a.num_local) return;
    const Vector at = place_of(a.points, node);
    const double own = a.slopes[a.points.own[node]];
    ForceSum sum;
    sum.clear();
    for (int slot = 0; slot < a.points.slots; ++slot) {
        const double radius = a.radii[a.types[node]] + a.radii[a.points.slot_type[slot]];
        each_point(a.points, slot, at, a.cutoff, [&](int p, const Vector& v, double square) {
            double change;
            counted(radius, a.steepness, square, change);
            sum.add(v, (own + a.slopes[p]) * change);
        });
    }
    sum.store(a.forces, a.virials, node);
}

// Weights of a coordination number, relative to the nearest reference: the exponentials of all may
// be too small for a double.
INLINE void reference_weights(const double* references, double steepness, double cn,
                              double* weights) {
    double nearest = 1e300, total = 0;
#pragma unroll
    for (int a = 0; a < REFERENCES; ++a)
        if (references[a] >= 0)
            nearest = fmin(nearest, (cn - references[a]) * (cn - references[a]));
#pragma unroll
    for (int a = 0; a < REFERENCES; ++a) {
        const double square = (cn - references[a]) * (cn - references[a]);
        weights[a] = references[a] >= 0 ? exp(-steepness * (square - nearest)) : 0.0;
        total += weights[a];
    }
#pragma unroll
    for (int a = 0; a < REFERENCES; ++a) weights[a] /= total;
}

extern "C" __global__ void __launch_bounds__(256)
    reference_weights_forward(const ReferenceArguments<T> a) {
    const Long n = thread_number();
    if (n >= a.count) return;
    double weights[REFERENCES];
    reference_weights(a.references + REFERENCES * a.types[n], a.steepness,
                      double(a.x[n * a.x_width]), weights);
    T* const out = a.out + n * a.out_width;
#pragma unroll
    for (int b = 0; b < REFERENCES; ++b) out[b] = T(weights[b]);
    for (int b = REFERENCES; b < a.out_width; ++b) out[b] = T(0);
}

extern "C" __global__ void __launch_bounds__(256)
    reference_weights_backward(const ReferenceArguments<T> a) {
    const Long n = thread_number();
    if (n >= a.count) return;
    const double* const references = a.references + REFERENCES * a.types[n];
    const double cn = double(a.x[n * a.x_width]);
    const T* const g = a.g + n * a.out_width;
    double weights[REFERENCES], mean = 0, slope = 0;
    reference_weights(references, a.steepness, cn, weights);
#pragma unroll
    for (int b = 0; b < REFERENCES; ++b)
        mean -= weights[b] * 2 * a.steepness * (cn - references[b]);
#pragma unroll
    for (int b = 0; b < REFERENCES; ++b)
        slope += double(g[b]) * weights[b] * (-2 * a.steepness * (cn - references[b]) - mean);
    T* const dx = a.dx + n * a.x_width;
    dx[0] = (a.add ? dx[0] : T(0)) + T(slope);
    for (int b = 1; b < a.x_width && !a.add; ++b) dx[b] = T(0);
}

// Energy of an atom; with `gradient` its force and the derivatives by its weights as well.
template <bool gradient>
INLINE void dispersion(const DispersionArguments<T>& a) {
    const Long node = thread_number() / 32;
    if (node >= a.num_local) return;
    const int lane = threadIdx.x % 32, type = a.types[node];
    const Vector at = place_of(a.points, node);
    const T* const own = a.rows + node * a.width;
    ForceSum force;
    force.clear();
    double energy = 0, slope = 0;  // slope of lane b: by weight b
    for (int slot = 0; slot < a.points.slots; ++slot) {
        const int other = a.points.slot_type[slot];
        const DampingOfPair d = a.damping[type * a.num_types + other];
        const double* const c6 =
            a.c6 + (Long(type) * REFERENCES * a.num_types + other) * REFERENCES;
        const Long step = Long(a.num_types) * REFERENCES;  // from one reference to the next
        double strength[REFERENCES], sums[REFERENCES];
#pragma unroll
        for (int b = 0; b < REFERENCES; ++b) {
            strength[b] = sums[b] = 0;
            for (int r = 0; r < REFERENCES; ++r) strength[b] += double(own[r]) * c6[r * step + b];
        }
        each_point(a.points, slot, at, a.cutoff, [&](int p, const Vector& v, double square) {
            const double r4 = square * square, r6 = r4 * square, r8 = r4 * r4;
            double low = r6 + d.a6, high = r8 + d.a8, r_8 = 0;
            if (d.p6 != 0 || d.p8 != 0) {
                r_8 = 1.0 / r8;
                low += d.p6 * r_8;
                high += d.p8 * r_8;
            }
            const double inverse = 1.0 / (low * high);
            const double below = inverse * high, above = inverse * low;
            const double g = d.s6 * below + d.s8 * above;
            double c = 0;
#pragma unroll
            for (int b = 0; b < REFERENCES; ++b) {
                const double w = a.weights[b * a.count + p];
                sums[b] += g * w;
                c += strength[b] * w;
            }
            if (!gradient) return;
            double low_slope = 6 * r4, high_slope = 8 * r6;  // d/dr / r
            if (r_8 != 0) {
                low_slope -= 8 * d.p6 * r_8 / square;
                high_slope -= 8 * d.p8 * r_8 / square;
            }
            force.add(v,
                      c * (d.s6 * below * below * low_slope + d.s8 * above * above * high_slope));
        });
#pragma unroll
        for (int b = 0; b < REFERENCES; ++b) {
            sums[b] = warp_sum(sums[b]);
            energy -= strength[b] * sums[b];
            if (gradient && lane < REFERENCES) slope -= c6[lane * step + b] * sums[b];
        }
    }
    if (lane == 0) a.energies[node] += 0.5 * energy;
    if (!gradient) return;
    force.store(a.forces, a.virials, node);
    if (lane < a.width) a.gradient[node * a.width + lane] = lane < REFERENCES ? T(slope) : T(0);
}

extern "C" __global__ void __launch_bounds__(128)
    dispersion_energy(const DispersionArguments<T> a) {
    dispersion<false>(a);
}

extern "C" __global__ void __launch_bounds__(128)
    dispersion_gradient(const DispersionArguments<T> a) {
    dispersion<true>(a);
}

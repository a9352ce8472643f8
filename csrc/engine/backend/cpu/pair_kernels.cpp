// The functions of PairKernels, compiled once per instruction set, x86-64-v<MDCG_SIMD_LEVEL>.
#include "engine/backend/cpu/lanes.hpp"

// NOTES: included after exponential() and square_root(), which its functions call.
#include "engine/backend/cpu/pair_kernels.hpp"

namespace mdcg {
namespace {

using V = DoubleVector;

// A vector of pairs: the vectors from the points to the atom, and which pairs count.
struct Pairs {
    V x, y, z, square;
    Int64Vector counts;
    Pairs(const PairRun& run, std::int64_t i) {
        x = run.at[0] - load<V>(run.x + i);
        y = run.at[1] - load<V>(run.y + i);
        z = run.at[2] - load<V>(run.z + i);
        square = x * x + y * y + z * z;
        Int64Vector lane;
        for (int l = 0; l < lanes<double>; ++l) lane[l] = l;
        counts = (lane < run.count - i) & (square <= run.cutoff_square) & (square > 0.0);
        square = counts ? square : V{} + 1.0;
    }
    V only(V v) const { return counts ? v : V{}; }
};

struct ForceSum {
    V fx{}, fy{}, fz{}, xx{}, yy{}, zz{}, xy{}, xz{}, yz{};
    void add(const Pairs& p, V slope) {
        const V x = slope * p.x, y = slope * p.y, z = slope * p.z;
        fx += x, fy += y, fz += z;
        xx += x * p.x, yy += y * p.y, zz += z * p.z;
        xy += x * p.y, xz += x * p.z, yz += y * p.z;
    }
    void into(PairForce& out) const {
        const V parts[6] = {xx, yy, zz, xy, xz, yz};
        out.force[0] += sum(fx), out.force[1] += sum(fy), out.force[2] += sum(fz);
        for (int i = 0; i < 6; ++i) out.virial[i] += 0.5 * sum(parts[i]);
    }
};

double coordination(const PairRun& run, double radius, double steepness) {
    V total{};
    for (std::int64_t i = 0; i < run.count; i += lanes<double>) {
        const Pairs p(run, i);
        V change;
        total += p.only(neighbour_count(radius, steepness, p.square, change));
    }
    return sum(total);
}

void coordination_force(const PairRun& run, double radius, double steepness, double slope,
                        const double* slopes, PairForce& force) {
    ForceSum total;
    for (std::int64_t i = 0; i < run.count; i += lanes<double>) {
        const Pairs p(run, i);
        V change;
        neighbour_count(radius, steepness, p.square, change);
        total.add(p, p.only((slope + load<V>(slopes + i)) * change));
    }
    total.into(force);
}

template <int references, bool forces, bool zero>
void dispersion_of(const PairRun& run, const PairDamping& d, const double* const* weights,
                   const double* c6, double* sums, PairForce* force) {
    V found[references] = {};
    ForceSum total;
    for (std::int64_t i = 0; i < run.count; i += lanes<double>) {
        const Pairs p(run, i);
        V slope;
        const V g = p.only(damped_powers<zero>(d, p.square, slope));
        V strength{};
        for (int b = 0; b < references; ++b) {
            const V w = load<V>(weights[b] + i);
            found[b] += g * w;
            if (forces) strength += c6[b] * w;
        }
        if (forces) total.add(p, p.only(strength * slope));
    }
    for (int b = 0; b < references; ++b) sums[b] += sum(found[b]);
    if (forces) total.into(*force);
}

template <int references>
void dispersion_with(const PairRun& run, const PairDamping& d, const double* const* weights,
                     const double* c6, double* sums, PairForce* force) {
    const bool zero = d.p6 != 0 || d.p8 != 0;
    if (force != nullptr)
        zero ? dispersion_of<references, true, true>(run, d, weights, c6, sums, force)
             : dispersion_of<references, true, false>(run, d, weights, c6, sums, force);
    else
        zero ? dispersion_of<references, false, true>(run, d, weights, c6, sums, force)
             : dispersion_of<references, false, false>(run, d, weights, c6, sums, force);
}

void dispersion(const PairRun& run, const PairDamping& d, int references,
                const double* const* weights, const double* c6, double* sums, PairForce* force) {
    using Function = void (*)(const PairRun&, const PairDamping&, const double* const*,
                              const double*, double*, PairForce*);
    static constexpr Function functions[] = {
        &dispersion_with<1>, &dispersion_with<2>, &dispersion_with<3>, &dispersion_with<4>,
        &dispersion_with<5>, &dispersion_with<6>, &dispersion_with<7>};
    functions[references - 1](run, d, weights, c6, sums, force);
}

}  // namespace

template <int level>
PairKernels pair_kernels() {
    return {&coordination, &coordination_force, &dispersion};
}
template PairKernels pair_kernels<MDCG_SIMD_LEVEL>();

}  // namespace mdcg

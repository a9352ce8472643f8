// Charges and dipoles in each other's fields; csrc/engine/ops/system/reciprocal.hpp has the
// formulas. The sums over atoms and over waves are those of kernels/ewald.cuh.
#include "kernels/common.cuh"
#include "kernels/multipoles.hpp"

// Where the derivative by two directions is in a potential; 4 less in a row of virials.
INLINE int second(int d, int e) { return d == e ? 4 + d : 6 + d + e; }

template <typename N>
INLINE N sum_of_lanes(N value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}

// Charge and dipole of a channel.
template <typename Row>
INLINE void load_moment(const MultipoleRows<Row>& x, Long atom, int channel, double (&m)[4]) {
    const Row* const row = x.rows + atom * x.width + channel;
    m[0] = double(row[0]);
    for (int d = 0; d < 3; ++d) m[1 + d] = x.vectors ? double(row[x.vectors + d * x.stride]) : 0.0;
}

// A thread has a channel of an atom.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_moments(const MomentArguments<T> a) {
    const Long number = thread_number();
    if (number >= a.channels * a.padded) return;
    const int channel = int(number / a.padded);
    const Long atom = number % a.padded;
    const double* const factor = a.factors + 2 * (channel % a.receivers);
    double m[4] = {};
    if (atom < a.num_atoms) load_moment(a.x, atom, channel, m);
    double size = 0;
    for (int i = 0; i < 4; ++i) {
        const T moment = T(m[i] * factor[i > 0]);
        a.moments[(4 * Long(channel) + i) * a.padded + atom] = moment;
        size += fabs(double(moment)) * (i > 0 ? a.longest : 1.0);
    }
    if (a.total == nullptr) return;
    if (!(size < MAX_CHARGE)) size = MAX_CHARGE;
    const Long total = sum_of_lanes(Long(ceil(TOTAL_UNITS * size)));
    if (threadIdx.x % 32 == 0) atomicAdd((unsigned long long*)a.total, (unsigned long long)total);
}

// A thread has a pair of waves of all receivers of a channel.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_amplitudes(const AmplitudeArguments<T> a) {
    const Long number = thread_number();
    if (number == 0 && a.failures != nullptr && double(a.total[0]) >= TOTAL_UNITS * MAX_CHARGE)
        a.failures[0] = 1;
    if (number >= a.channels / a.receivers * a.num_pairs) return;
    const Long first = number / a.num_pairs, pair = number % a.num_pairs;
    double total[2][2] = {};  // of n3 = m and -m
    for (int w = 0; w < a.receivers; ++w) {
        const Long channel = first * a.receivers + w;
        double found[2][2] = {};
        for (int part = 0; part < a.parts; ++part) {
            const Long* const sums = a.sums + 4 * ((channel * a.parts + part) * a.num_pairs + pair);
            double s[4];
            for (int i = 0; i < 4; ++i) s[i] = double(sums[i]) / CHARGE_UNITS;
            const double value[2][2] = {{s[0] - s[1], s[2] + s[3]}, {s[0] + s[1], s[3] - s[2]}};
            for (int back = 0; back < 2; ++back) {
                if (part == 0) {
                    for (int i = 0; i < 2; ++i) found[back][i] += value[back][i];
                    continue;
                }
                const double k = a.vectors[3 * (2 * pair + back) + part - 1];
                found[back][0] -= k * value[back][1];
                found[back][1] += k * value[back][0];
            }
        }
        for (int back = 0; back < 2; ++back) {
            const Long wave = 2 * pair + back;
            const bool exists = a.weights[wave] != 0;
            const double* const k = a.vectors + 3 * wave;
            const double square = k[0] * k[0] + k[1] * k[1] + k[2] * k[2];
            const double damped = exists ? exp(-0.5 * a.widths[w] * square) : 0.0;
            for (int i = 0; i < 2; ++i) {
                const double value = exists ? found[back][i] : 0.0;
                a.amplitudes[2 * (channel * 2 * a.num_pairs + wave) + i] = value;
                total[back][i] += damped * value;
            }
        }
    }
    if (a.combined == nullptr) return;
    for (int back = 0; back < 2; ++back)
        for (int i = 0; i < 2; ++i)
            a.combined[2 * (first * 2 * a.num_pairs + 2 * pair + back) + i] = total[back][i];
}

// A thread has a pair of waves.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_factors(const MultipoleFactors<T> a) {
    const Long pair = thread_number();
    if (pair >= a.num_pairs) return;
    double f[2][2];  // real and imaginary part, for n3 = m and -m
    for (int back = 0; back < 2; ++back) {
        const Long wave = 2 * pair + back;
        const double* const k = a.vectors + 3 * wave;
        const double square = k[0] * k[0] + k[1] * k[1] + k[2] * k[2];
        const double weight = a.weights[wave] * exp(-0.5 * a.variance * square);
        const double re = weight * a.amplitudes[2 * wave];
        const double im = -weight * a.amplitudes[2 * wave + 1];
        f[back][0] = a.direction < 0 ? re : k[a.direction] * im;
        f[back][1] = a.direction < 0 ? im : -k[a.direction] * re;
    }
    for (int part = 0; part < 2; ++part) {
        a.factors[4 * pair + part] = T(f[0][part] + f[1][part]);
        a.factors[4 * pair + 2 + part] = T(f[0][part] - f[1][part]);
    }
}

// A thread has an atom. With factors of a direction, slopes of the sum are second derivatives.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_collect(const CollectArguments<T> a) {
    const Long atom = thread_number();
    if (atom >= a.num_atoms) return;
    double sum[4] = {};
    for (Long part = 0; part < a.num_parts; ++part)
        for (int v = 0; v < 4; ++v) sum[v] += a.fields[(4 * part + v) * a.padded + atom];
    if (a.direction < 0) a.potentials[atom] = sum[0];
    for (int d = 0; d < 3; ++d) {
        const double* const row = a.inverse + 3 * d;
        const double slope =
            6.283185307179586477 * (sum[1] * row[0] + sum[2] * row[1] + sum[3] * row[2]);
        if (a.direction < 0)
            a.potentials[(1 + d) * a.padded + atom] = -slope;
        else if (d >= a.direction)
            a.potentials[second(a.direction, d) * a.padded + atom] = slope;
    }
}

// A thread has an atom.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_fields(const FieldArguments<T> a) {
    const Long atom = thread_number();
    if (atom >= a.num_atoms) return;
    T* const row = a.out.rows + atom * a.out.width;
    for (int j = 0; j < a.out.width; ++j) row[j] = 0;
    for (int channel = 0; channel < a.channels; ++channel) {
        const double* const factor = a.factors + 2 * (channel % a.receivers);
        const double* const own = a.owns + 2 * (channel % a.receivers);
        double m[4];
        load_moment(a.x, atom, channel / a.receivers, m);
        for (int i = 0; i < (a.out.vectors ? 4 : 1); ++i) {
            const double potential = a.potentials[(10 * Long(channel) + i) * a.padded + atom];
            const int item = i == 0 ? channel : a.out.vectors + (i - 1) * a.out.stride + channel;
            row[item] = T(factor[i > 0] * potential + own[i > 0] * m[i]);
        }
    }
}

// A thread has an atom. A strain turns no dipole, but slopes change.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_forces(const MultipoleForces<T> a) {
    const Long atom = thread_number();
    if (atom >= a.num_atoms) return;
    double energy = 0, force[3] = {}, virial[6] = {};
    for (int channel = 0; channel < a.channels; ++channel) {
        double m[4], at[10];
        for (int i = 0; i < 4; ++i) {
            m[i] = double(a.moments[(4 * Long(channel) + i) * a.padded + atom]);
            at[i] = a.potentials[(10 * Long(channel) + i) * a.padded + atom];
            energy += 0.5 * m[i] * at[i];
        }
        if (a.forces == nullptr) continue;
        for (int i = 4; i < 10 && a.dipoles; ++i)
            at[i] = a.potentials[(10 * Long(channel) + i) * a.padded + atom];
        for (int d = 0; d < 3; ++d) {
            force[d] -= m[0] * at[1 + d];
            for (int e = 0; e < 3 && a.dipoles; ++e) {
                force[d] -= m[1 + e] * at[second(d, e)];
                virial[second(d, e) - 4] += (d == e ? 1.0 : 0.5) * at[1 + d] * m[1 + e];
            }
        }
    }
    if (a.energies != nullptr) a.energies[atom] += energy;
    for (int d = 0; d < 3 && a.forces != nullptr; ++d) a.forces[3 * atom + d] += force[d];
    for (int i = 0; i < 6 && a.virials != nullptr; ++i) a.virials[6 * atom + i] += virial[i];
}

// A thread has an atom.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_gradient(const GradientArguments<T> a) {
    const Long atom = thread_number();
    if (atom >= a.num_atoms) return;
    T* const row = a.gradient.rows + atom * a.gradient.width;
    for (int j = 0; j < a.gradient.width && a.gradient.rows != nullptr && !a.add; ++j) row[j] = 0;
    double energy = 0;
    for (int channel = 0; channel < a.channels; ++channel) {
        double sum[4] = {};
        for (int w = 0; w < a.receivers; ++w) {
            double m[4];
            load_moment(a.other, atom, channel * a.receivers + w, m);
            for (int i = 0; i < 4; ++i) {
                sum[i] += a.owns[2 * w + (i > 0)] * m[i];
                energy += 0.5 * a.owns[2 * w + (i > 0)] * m[i] * m[i];
            }
        }
        if (a.gradient.rows == nullptr) continue;
        for (int i = 0; i < (a.gradient.vectors ? 4 : 1); ++i) {
            sum[i] += a.factors[i > 0] * a.potentials[(10 * Long(channel) + i) * a.padded + atom];
            row[i == 0 ? channel : a.gradient.vectors + (i - 1) * a.gradient.stride + channel] +=
                T(sum[i]);
        }
    }
    if (a.energies != nullptr) a.energies[atom] += energy;
}

// Minus the derivative of sum_k w Re(B A*) by a strain at fixed phases and moments. A block has
// VIRIAL_WAVES waves of a channel.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    multipole_virial(const MultipoleVirial<T> a) {
    __shared__ double parts[MULTIPOLE_THREADS / 32][6];
    const Long channel = blockIdx.x / a.num_blocks, block = blockIdx.x % a.num_blocks;
    const double width = a.widths[channel % a.receivers];
    const double* const mine = a.mine + 2 * channel * a.num_waves;
    const double* const all = a.all + 2 * (channel / a.receivers) * a.num_waves;
    double virial[6] = {};
    for (int i = threadIdx.x; i < VIRIAL_WAVES; i += MULTIPOLE_THREADS) {
        const Long wave = block * VIRIAL_WAVES + i;
        if (wave >= a.num_waves || a.weights[wave] == 0) continue;
        const double* const k = a.vectors + 3 * wave;
        const double square = k[0] * k[0] + k[1] * k[1] + k[2] * k[2];
        const double energy =
            a.factor * a.weights[wave] * exp(-0.5 * width * square) *
            (mine[2 * wave] * all[2 * wave] + mine[2 * wave + 1] * all[2 * wave + 1]);
        const double along = energy * (a.variance + width + 2 / square);
        for (int d = 0; d < 3; ++d) {
            virial[d] += energy - along * k[d] * k[d];
            virial[3 + d] -= along * k[d / 2] * k[1 + (d + 1) / 2];
        }
    }
    for (int i = 0; i < 6; ++i) {
        virial[i] = sum_of_lanes(virial[i]);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][i] = virial[i];
    }
    __syncthreads();
    if (threadIdx.x >= 6) return;
    double sum = 0;
    for (int w = 0; w < MULTIPOLE_THREADS / 32; ++w) sum += parts[w][threadIdx.x];
    a.sums[6 * Long(blockIdx.x) + threadIdx.x] = sum;
}

// One warp adds the sums of all blocks in a fixed order.
extern "C" __global__ void __launch_bounds__(32) multipole_add_virial(const MultipoleVirial<T> a) {
    for (int i = 0; i < 6; ++i) {
        double sum = 0;
        for (Long b = threadIdx.x; b < a.channels * a.num_blocks; b += 32) sum += a.sums[6 * b + i];
        sum = sum_of_lanes(sum);
        if (threadIdx.x == 0) a.virials[i] += sum;
    }
}

// -- open systems --------------------------------------------------------------------------------

// The charges of the points of an atom.
INLINE void point_charges(const PointArguments<T>& a, const T* moments, Long atom,
                          double (&charges)[4]) {
    double moment[4] = {};
    for (int i = 0; i < a.pairs.points; ++i) moment[i] = double(moments[i * a.padded + atom]);
    a.pairs.charges(moment, charges);
}

INLINE void store_point_potentials(const PointArguments<T>& a, Long channel, Long atom,
                                   double (&sums)[4]) {
    for (int p = 0; p < 4; ++p) sums[p] = sum_of_lanes(sums[p]);
    if (threadIdx.x % 32 > 0) return;
    double found[4];
    a.pairs.slopes(sums, found);
    double* const out = a.potentials + 10 * channel * a.padded + atom;
    for (int p = 0; p < 4; ++p) out[p * a.padded] = found[p];
}

// A warp has a channel of an atom, and lanes share the other atoms.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    point_potentials(const PointArguments<T> a) {
    const Long number = thread_number() / 32;
    if (number >= a.channels * a.num_atoms) return;
    const Long channel = number / a.num_atoms, atom = number % a.num_atoms;
    const T* const moments = a.moments + 4 * (channel / a.receivers) * a.padded;
    const GaussianPair both = a.pairs.gaussians(a.variance + a.widths[channel % a.receivers]);
    double sums[4] = {}, slope[3], charges[4];
    for (Long other = threadIdx.x % 32; other < a.num_atoms; other += 32) {
        if (other == atom) continue;
        point_charges(a, moments, other, charges);
        for (int p = 0; p < a.pairs.points; ++p)
            for (int q = 0; q < a.pairs.points; ++q)
                sums[p] += charges[q] * a.pairs.pair(both, a.positions + 3 * atom,
                                                     a.positions + 3 * other, p, q, slope);
    }
    store_point_potentials(a, channel, atom, sums);
}

// A warp has an atom: forces, and potentials of the slopes of all receivers.
extern "C" __global__ void __launch_bounds__(MULTIPOLE_THREADS)
    point_slopes(const PointArguments<T> a) {
    const Long atom = thread_number() / 32;
    if (atom >= a.num_atoms) return;
    double force[3] = {};
    for (int c = 0; c < a.channels / a.receivers; ++c) {
        const T* const moments = a.moments + 4 * Long(c) * a.padded;
        double sums[4] = {}, own[4], charges[4], own_slopes[4], slopes[4], slope[3];
        point_charges(a, moments, atom, own);
        for (int w = 0; w < a.receivers; ++w) {
            const T* const of_channel = a.slopes + 4 * Long(c * a.receivers + w) * a.padded;
            const GaussianPair both = a.pairs.gaussians(a.variance + a.widths[w]);
            point_charges(a, of_channel, atom, own_slopes);
            for (Long other = threadIdx.x % 32; other < a.num_atoms; other += 32) {
                if (other == atom) continue;
                point_charges(a, moments, other, charges);
                point_charges(a, of_channel, other, slopes);
                for (int p = 0; p < a.pairs.points; ++p)
                    for (int q = 0; q < a.pairs.points; ++q) {
                        sums[p] += slopes[q] * a.pairs.pair(both, a.positions + 3 * atom,
                                                            a.positions + 3 * other, p, q, slope);
                        const double both = own[p] * slopes[q] + own_slopes[p] * charges[q];
                        for (int d = 0; d < 3; ++d) force[d] -= both * slope[d];
                    }
            }
        }
        store_point_potentials(a, c, atom, sums);
    }
    for (int d = 0; d < 3; ++d) force[d] = sum_of_lanes(force[d]);
    if (threadIdx.x % 32 > 0 || a.forces == nullptr) return;
    const double* const at = a.positions + 3 * atom;
    for (int d = 0; d < 3; ++d) {
        a.forces[3 * atom + d] += force[d];
        const int e = d / 2, f = 1 + (d + 1) / 2;  // xy, xz, yz
        a.virials[6 * atom + d] += at[d] * force[d];
        a.virials[6 * atom + 3 + d] += 0.5 * (at[e] * force[f] + at[f] * force[e]);
    }
}

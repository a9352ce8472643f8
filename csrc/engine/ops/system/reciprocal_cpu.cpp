// Potentials and energies of charges and dipoles on CPUs.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/integers.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/cpu_op.hpp"
#include "engine/ops/system/multipole_waves.hpp"
#include "engine/ops/system/reciprocal.hpp"
#include "kernels/gaussian_pairs.hpp"

namespace mdcg {

namespace {

using Moments = std::vector<std::vector<Moment>>;  // [channel][num_local]

// Numbers of a channel of a value: a scalar, and a vector if the value has any.
template <typename T>
Moment read(const T* row, const Rows& rows, int channel) {
    Moment found{static_cast<double>(row[channel])};
    for (std::size_t d = 0; d < 3 && rows.blocks.size() > 1; ++d)
        found[1 + d] = static_cast<double>(
            row[rows.blocks[1].offset + static_cast<int>(d) * rows.blocks[1].stride + channel]);
    return found;
}
template <typename T, typename Store>
void write(T* row, const Rows& rows, int channel, const Moment& moment, const Store& store) {
    store(row[channel], moment[0]);
    for (std::size_t d = 0; d < 3 && rows.blocks.size() > 1; ++d)
        store(row[rows.blocks[1].offset + static_cast<int>(d) * rows.blocks[1].stride + channel],
              moment[1 + d]);
}
Moment times(const Moment& moment, const ByDegree& factor) {
    return {factor[0] * moment[0], factor[1] * moment[1], factor[1] * moment[2],
            factor[1] * moment[3]};
}

// Pairs of points of an open system.
struct OpenPairs : PointPairs {
    OpenPairs(const MultipoleSpec& spec, bool displaced)
        : PointPairs{spec.gaussians.factor / (2 * TWO_PI), spec.offset, displaced ? 4 : 1} {}

    Moments at_points(const Moments& moments) const {
        Moments found = moments;
        for (std::size_t c = 0; c < moments.size(); ++c)
            for (std::size_t n = 0; n < moments[c].size(); ++n) charges(moments[c][n], found[c][n]);
        return found;
    }
    Moment from_points(const Moment& sums) const {
        Moment found;
        slopes(sums, found);
        return found;
    }
    // Calls body(j, a, b, u, du) for the interactions u of points a of atom n and b of every other
    // atom j, where du is the derivative by the position of n.
    template <typename Body>
    void each(const double* positions, Range nodes, std::int64_t n, double sum_of_squares,
              const Body& body) const {
        const GaussianPair both = gaussians(sum_of_squares);
        Vector3 slope;
        for (std::int64_t j = nodes.begin; j < nodes.end; ++j)
            for (int a = 0; a < points && j != n; ++a)
                for (int b = 0; b < points; ++b) {
                    const double u = pair(both, positions + 3 * n, positions + 3 * j, a, b, slope);
                    body(j, a, b, u, slope);
                }
    }
};

// What both operations share.
template <typename T>
class CpuMultipoles : public CpuOp<T> {
protected:
    explicit CpuMultipoles(const MultipoleSpec& spec) : spec_(spec) {}

    static MultipoleWaves::Atoms atoms(const Worker<T>& worker, Range nodes) {
        return {worker.positions, nodes, worker.threads};
    }
    Moments sources(const Worker<T>& worker, Range nodes) const {
        Moments found(size(spec_.channels), std::vector<Moment>(size(nodes.end)));
        for (int c = 0; c < spec_.channels; ++c)
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
                found[size(c)][size(n)] =
                    times(read(worker.value(spec_.x, n), spec_.x.rows, c), spec_.source);
        return found;
    }
    // Adds the derivative by a moment, source included.
    void add_gradient(const Worker<T>& worker, std::int64_t n, int channel,
                      const Moment& slope) const {
        write(worker.gradient(spec_.x, n), spec_.x.rows, channel, times(slope, spec_.source),
              [](T& to, double value) { to += static_cast<T>(value); });
    }
    void start_gradient(const Worker<T>& worker, Range nodes) const {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) worker.started_gradient(spec_.x, n);
    }
    // Adds to the virial minus the derivative of sum_k w Re(B A*) by a strain, where B is of the
    // atoms of this process and the mean square of both widths is `variance`.
    void add_virial(const Worker<T>& worker, const Amplitudes& mine, const Amplitudes& weighted,
                    double variance) const {
        for (std::size_t i = 0; i < waves_.count(); ++i) {
            if (waves_.weight(i) == 0) continue;
            const double energy = (mine[i] * std::conj(weighted[i])).real();
            const double along = energy * (2 * variance + 2 / waves_.square(i));
            const Vector3& k = waves_.vector(i);
            for (std::size_t a = 0; a < 3; ++a)
                for (std::size_t b = 0; b < 3; ++b)
                    worker.virial[3 * a + b] += (a == b ? energy : 0.0) - along * k[a] * k[b];
        }
    }
    // Adds the force on a moment in a potential. A strain turns no dipole, but slopes change.
    static void add_force(const Worker<T>& worker, std::int64_t n, const Moment& moment,
                          const Potential& at, std::array<double, 9>& virial) {
        static constexpr std::size_t PART[3][3] = {{4, 7, 8}, {7, 5, 9}, {8, 9, 6}};
        for (std::size_t a = 0; a < 3; ++a) {
            double slope = moment[0] * at[1 + a];
            for (std::size_t b = 0; b < 3; ++b) {
                slope += moment[1 + b] * at[PART[a][b]];
                virial[3 * a + b] += 0.5 * (at[1 + a] * moment[1 + b] + at[1 + b] * moment[1 + a]);
            }
            worker.forces[size(3 * n) + a] -= slope;
        }
    }
    Amplitudes times_weights(const Amplitudes& amplitudes, double variance) const {
        Amplitudes found(amplitudes);
        for (std::size_t i = 0; i < found.size(); ++i)
            found[i] *= waves_.weight(i) * std::exp(-0.5 * variance * waves_.square(i));
        return found;
    }
    // Forces in an open system, and the symmetric part of their virial.
    static void add_open_virial(const Worker<T>& worker, Range nodes,
                                const std::vector<Vector3>& forces) {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            for (std::size_t a = 0; a < 3; ++a) {
                worker.forces[size(3 * n) + a] += forces[size(n)][a];
                for (std::size_t b = 0; b < 3; ++b) {
                    const double part =
                        0.5 * worker.positions[size(3 * n) + a] * forces[size(n)][b];
                    worker.virial[3 * a + b] += part;
                    worker.virial[3 * b + a] += part;
                }
            }
    }

    const MultipoleSpec& spec_;
    // Waves are kept while the cell is the same. The rest passes from forward to backward.
    mutable MultipoleWaves waves_;
    mutable bool periodic_ = false;
    mutable Moments sources_;
};

template <typename T>
class CpuReciprocalField : public CpuMultipoles<T> {
public:
    explicit CpuReciprocalField(const ReciprocalFieldSpec& spec)
        : CpuMultipoles<T>(spec), field_(spec), pairs_(spec, spec.dipoles || spec.slopes) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        periodic_ = field_.is_periodic(worker.cell, worker.periodic);
        sources_ = this->sources(worker, nodes);
        potentials_.assign(num_outputs(), {});
        if (periodic_)
            find_periodic(worker, nodes);
        else
            find_open(worker, nodes);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* const row = worker.value(field_.out, n);
            std::fill_n(row, field_.out.rows.width, T(0));
            each_output([&](int c, std::size_t w, int channel) {
                const Receiver& to = field_.receivers[w];
                const Potential& at = potentials_[size(channel)][size(n)];
                const Moment found = times({at[0], at[1], at[2], at[3]}, to.scale);
                const Moment own = times(own_moment(worker, n, c), own_factor(to));
                Moment total;
                for (std::size_t i = 0; i < 4; ++i) total[i] = found[i] + own[i];
                write(row, field_.out.rows, channel, total,
                      [](T& out, double value) { out = static_cast<T>(value); });
            });
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        if (field_.x.needs_gradient) this->start_gradient(worker, nodes);
        // what the potentials are multiplied with, and own parts
        Moments slopes(num_outputs(), std::vector<Moment>(size(nodes.end)));
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            each_output([&](int c, std::size_t w, int channel) {
                const Receiver& to = field_.receivers[w];
                const Moment g = read(worker.gradient(field_.out, n), field_.out.rows, channel);
                slopes[size(channel)][size(n)] = times(g, to.scale);
                if (!field_.x.needs_gradient) return;
                write(worker.gradient(field_.x, n), field_.x.rows, c, times(g, own_factor(to)),
                      [](T& sum, double value) { sum += static_cast<T>(value); });
            });
        if (periodic_)
            add_periodic(worker, nodes, slopes);
        else
            add_open(worker, nodes, slopes);
    }

private:
    using CpuMultipoles<T>::waves_;
    using CpuMultipoles<T>::periodic_;
    using CpuMultipoles<T>::sources_;

    std::size_t num_outputs() const { return size(field_.channels) * field_.receivers.size(); }
    // Calls body(channel of x, number of the receiver, channel of out).
    template <typename Body>
    void each_output(const Body& body) const {
        for (int c = 0; c < field_.channels; ++c)
            for (std::size_t w = 0; w < field_.receivers.size(); ++w)
                body(c, w, c * static_cast<int>(field_.receivers.size()) + static_cast<int>(w));
    }
    Moment own_moment(const Worker<T>& worker, std::int64_t n, int channel) const {
        return read(worker.value(field_.x, n), field_.x.rows, channel);
    }
    // The factor of an atom's own moment. The sum over waves contains the own part.
    ByDegree own_factor(const Receiver& to) const {
        const double sign =
            periodic_ ? (field_.own_removed ? -1.0 : 0.0) : (field_.own_removed ? 0.0 : 1.0);
        return {sign * to.own[0], sign * to.own[1]};
    }
    static double variance(const Receiver& to) { return to.sigma * to.sigma; }
    bool needs_second() const { return field_.dipoles || field_.slopes; }

    // -- periodic cells --------------------------------------------------------------------------

    void find_periodic(const Worker<T>& worker, Range nodes) const {
        waves_.update(worker.cell, field_.gaussians, worker.waves_cell);
        const auto atoms = this->atoms(worker, nodes);
        std::int64_t total = 0;
        amplitudes_ = waves_.amplitudes(atoms, sources_, field_.dipoles, total);
        waves_.share(amplitudes_, total, worker.communicator);
        each_output([&](int c, std::size_t w, int channel) {
            waves_.potentials(
                atoms, this->times_weights(amplitudes_[size(c)], variance(field_.receivers[w])),
                worker.with_gradient && needs_second(), potentials_[size(channel)]);
        });
    }

    void add_periodic(const Worker<T>& worker, Range nodes, const Moments& slopes) const {
        const auto atoms = this->atoms(worker, nodes);
        const double sigma = field_.gaussians.sigma;
        std::int64_t total = 0;
        std::vector<Amplitudes> mine = waves_.amplitudes(atoms, slopes, field_.slopes, total);
        std::vector<Amplitudes> sums(size(field_.channels), Amplitudes(waves_.count()));
        std::array<double, 9> virial{};
        each_output([&](int c, std::size_t w, int channel) {
            const double width = variance(field_.receivers[w]);
            this->add_virial(worker, mine[size(channel)],
                             this->times_weights(amplitudes_[size(c)], width),
                             0.5 * (sigma * sigma + width));
            for (std::size_t i = 0; i < waves_.count(); ++i)
                sums[size(c)][i] +=
                    std::exp(-0.5 * width * waves_.square(i)) * mine[size(channel)][i];
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
                this->add_force(worker, n, slopes[size(channel)][size(n)],
                                potentials_[size(channel)][size(n)], virial);
        });
        waves_.share(sums, total, worker.communicator);
        std::vector<Potential> found;
        for (int c = 0; c < field_.channels; ++c) {
            waves_.potentials(atoms, this->times_weights(sums[size(c)], 0.0), field_.dipoles,
                              found);
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
                const Potential& at = found[size(n)];
                this->add_force(worker, n, sources_[size(c)][size(n)], at, virial);
                if (field_.x.needs_gradient)
                    this->add_gradient(worker, n, c, {at[0], at[1], at[2], at[3]});
            }
        }
        for (std::size_t i = 0; i < 9; ++i) worker.virial[i] += virial[i];
    }

    // -- open systems ----------------------------------------------------------------------------

    double sum_of_squares(std::size_t w) const {
        const double sigma = field_.gaussians.sigma;
        return sigma * sigma + variance(field_.receivers[w]);
    }

    void find_open(const Worker<T>& worker, Range nodes) const {
        field_.expect_one_process(worker.communicator, nodes.end - nodes.begin);
        const Moments charges = pairs_.at_points(sources_);
        for (std::vector<Potential>& found : potentials_) found.assign(size(nodes.end), {});
        share(worker.threads, nodes.end - nodes.begin, [&](std::int64_t i, int) {
            const std::int64_t n = nodes.begin + i;
            for (std::size_t w = 0; w < field_.receivers.size(); ++w) {
                Moments sums(size(field_.channels), std::vector<Moment>(1));
                pairs_.each(worker.positions, nodes, n, sum_of_squares(w),
                            [&](std::int64_t j, int a, int b, double u, const Vector3&) {
                                for (std::size_t c = 0; c < charges.size(); ++c)
                                    sums[c][0][size(a)] += u * charges[c][size(j)][size(b)];
                            });
                for (std::size_t c = 0; c < charges.size(); ++c) {
                    const Moment found = pairs_.from_points(sums[c][0]);
                    std::copy(found.begin(), found.end(),
                              potentials_[c * field_.receivers.size() + w][size(n)].begin());
                }
            }
        });
    }

    void add_open(const Worker<T>& worker, Range nodes, const Moments& slopes) const {
        const Moments charges = pairs_.at_points(sources_), weights = pairs_.at_points(slopes);
        std::vector<Vector3> forces(size(nodes.end));
        share(worker.threads, nodes.end - nodes.begin, [&](std::int64_t i, int) {
            const std::int64_t n = nodes.begin + i;
            Moments sums(size(field_.channels), std::vector<Moment>(1));
            Vector3& force = forces[size(n)];
            for (std::size_t w = 0; w < field_.receivers.size(); ++w)
                pairs_.each(worker.positions, nodes, n, sum_of_squares(w),
                            [&](std::int64_t j, int a, int b, double u, const Vector3& du) {
                                double both = 0;
                                for (std::size_t c = 0; c < charges.size(); ++c) {
                                    const auto& h = weights[c * field_.receivers.size() + w];
                                    sums[c][0][size(a)] += u * h[size(j)][size(b)];
                                    both += charges[c][size(n)][size(a)] * h[size(j)][size(b)] +
                                            charges[c][size(j)][size(b)] * h[size(n)][size(a)];
                                }
                                for (std::size_t d = 0; d < 3; ++d) force[d] -= both * du[d];
                            });
            for (int c = 0; c < field_.channels && field_.x.needs_gradient; ++c)
                this->add_gradient(worker, n, c, pairs_.from_points(sums[size(c)][0]));
        });
        this->add_open_virial(worker, nodes, forces);
    }

    const ReciprocalFieldSpec& field_;
    const OpenPairs pairs_;
    mutable std::vector<Amplitudes> amplitudes_;              // [channels] of all processes
    mutable std::vector<std::vector<Potential>> potentials_;  // [channels of out][num_local]
};

template <typename T>
class CpuReciprocalEnergy : public CpuMultipoles<T> {
public:
    explicit CpuReciprocalEnergy(const ReciprocalEnergySpec& spec)
        : CpuMultipoles<T>(spec), energy_(spec), pairs_(spec, spec.dipoles) {}

    // With forces, the backward pass computes energies, too, because one pass gives both.
    void forward(Worker<T>& worker, Range nodes) const override {
        if (!worker.with_gradient) run(worker, nodes);
    }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes); }

private:
    using CpuMultipoles<T>::waves_;
    using CpuMultipoles<T>::sources_;

    void run(Worker<T>& worker, Range nodes) const {
        if (worker.with_gradient && energy_.x.needs_gradient) this->start_gradient(worker, nodes);
        sources_ = this->sources(worker, nodes);
        const bool periodic = energy_.is_periodic(worker.cell, worker.periodic);
        periodic ? run_periodic(worker, nodes) : run_open(worker, nodes);
        // the sum over waves contains own parts, that over pairs does not
        const double sign =
            periodic ? (energy_.own_removed ? -1.0 : 0.0) : (energy_.own_removed ? 0.0 : 1.0);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            for (int c = 0; c < energy_.channels; ++c) {
                const Moment own = read(worker.value(energy_.x, n), energy_.x.rows, c);
                const Moment slope = times(own, {sign * energy_.own[0], sign * energy_.own[1]});
                worker.energies[n] += 0.5 * product(own, slope);
                if (worker.with_gradient && energy_.x.needs_gradient)
                    write(worker.gradient(energy_.x, n), energy_.x.rows, c, slope,
                          [](T& sum, double value) { sum += static_cast<T>(value); });
            }
    }

    static double product(const Moment& a, const Moment& b) {
        return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
    }
    // Adds the energy of an atom in the potential of all, and gradients of its moments.
    void add(Worker<T>& worker, std::int64_t n, int channel, const Moment& at) const {
        worker.energies[n] += 0.5 * product(sources_[size(channel)][size(n)], at);
        if (worker.with_gradient && energy_.x.needs_gradient)
            this->add_gradient(worker, n, channel, at);
    }

    void run_periodic(Worker<T>& worker, Range nodes) const {
        waves_.update(worker.cell, energy_.gaussians, worker.waves_cell);
        const auto atoms = this->atoms(worker, nodes);
        const double variance = energy_.gaussians.sigma * energy_.gaussians.sigma;
        std::int64_t total = 0;
        const std::vector<Amplitudes> mine =
            waves_.amplitudes(atoms, sources_, energy_.dipoles, total);
        std::vector<Amplitudes> all = mine;
        waves_.share(all, total, worker.communicator);
        std::vector<Potential> found;
        std::array<double, 9> virial{};
        for (int c = 0; c < energy_.channels; ++c) {
            Amplitudes weighted = this->times_weights(all[size(c)], variance);
            waves_.potentials(atoms, weighted, worker.with_gradient && energy_.dipoles, found);
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
                const Potential& at = found[size(n)];
                add(worker, n, c, {at[0], at[1], at[2], at[3]});
                if (worker.with_gradient)
                    this->add_force(worker, n, sources_[size(c)][size(n)], at, virial);
            }
            if (!worker.with_gradient) continue;
            for (std::complex<double>& value : weighted) value *= 0.5;
            this->add_virial(worker, mine[size(c)], weighted, variance);
        }
        for (std::size_t i = 0; i < 9 && worker.with_gradient; ++i) worker.virial[i] += virial[i];
    }

    void run_open(Worker<T>& worker, Range nodes) const {
        energy_.expect_one_process(worker.communicator, nodes.end - nodes.begin);
        const Moments charges = pairs_.at_points(sources_);
        const double sum_of_squares = 2 * energy_.gaussians.sigma * energy_.gaussians.sigma;
        std::vector<Vector3> forces(size(nodes.end));
        share(worker.threads, nodes.end - nodes.begin, [&](std::int64_t i, int) {
            const std::int64_t n = nodes.begin + i;
            for (int c = 0; c < energy_.channels; ++c) {
                const std::vector<Moment>& q = charges[size(c)];
                Moment sums{};
                pairs_.each(worker.positions, nodes, n, sum_of_squares,
                            [&](std::int64_t j, int a, int b, double u, const Vector3& du) {
                                const double charge = q[size(j)][size(b)];
                                sums[size(a)] += u * charge;
                                for (std::size_t d = 0; d < 3; ++d)
                                    forces[size(n)][d] -= q[size(n)][size(a)] * charge * du[d];
                            });
                add(worker, n, c, pairs_.from_points(sums));
            }
        });
        if (worker.with_gradient) this->add_open_virial(worker, nodes, forces);
    }

    const ReciprocalEnergySpec& energy_;
    const OpenPairs pairs_;
};

const RegisterOp<ReciprocalFieldSpec, CpuReciprocalField> field_on_cpus{"reciprocal_field"};
const RegisterOp<ReciprocalEnergySpec, CpuReciprocalEnergy> energy_on_cpus{"reciprocal_energy"};

}  // namespace

}  // namespace mdcg

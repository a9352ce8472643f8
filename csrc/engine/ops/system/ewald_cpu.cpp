// Long-range energies on CPUs.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/text.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/communicator.hpp"
#include "engine/cpu_op.hpp"
#include "engine/error.hpp"
#include "engine/graph.hpp"
#include "engine/ops/system/ewald.hpp"
#include "engine/ops/system/particle_mesh_cpu.hpp"
#include "kernels/gaussian_pairs.hpp"
#include "kernels/particle_mesh.hpp"

namespace mdcg {

namespace {

// The charges of some atoms and their waves.
struct Tile {
    std::int64_t begin, end;
    std::vector<double> tables[6];  // cosines, then sines of each direction
    alignas(64) double charges[WAVE_TILE] = {};

    WaveTile waves() const {
        return {{tables[0].data(), tables[1].data(), tables[2].data()},
                {tables[3].data(), tables[4].data(), tables[5].data()}};
    }
};

template <typename T>
class CpuEwald : public CpuOp<T> {
public:
    explicit CpuEwald(const EwaldSpec& spec) : spec_(spec) {}

    // With forces, the backward pass computes energies, too, because one pass gives both.
    void forward(Worker<T>& worker, Range nodes) const override {
        if (!worker.with_gradient) run(worker, nodes);
    }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes); }

private:
    void run(Worker<T>& worker, Range nodes) const {
        if (spec_.is_periodic(worker.cell, worker.periodic)) return periodic(worker, nodes);
        isolated(worker, nodes);
    }

    double charge(const Worker<T>& worker, std::int64_t node) const {
        return static_cast<double>(*worker.value(spec_.x, node));
    }

    // Adds the energy of a node; `potential` is dE/dq.
    void add_energy(Worker<T>& worker, std::int64_t node, double potential) const {
        worker.energies[node] += 0.5 * charge(worker, node) * potential;
        if (worker.with_gradient && spec_.x.needs_gradient)
            *worker.started_gradient(spec_.x, node) += static_cast<T>(potential);
    }

    // Calls body(number of the tile, thread) for tiles of nodes, which threads share.
    template <typename Body>
    static void each_tile(const Worker<T>& worker, Range nodes, const Body& body) {
        FirstError error;
        share_in_turns(worker.threads, ceil_div(nodes.end - nodes.begin, WAVE_TILE), 1,
                       [&](std::int64_t tile, int thread) {
                           if (error.failed()) return;
                           try {
                               if (thread == 0) poll_interrupt();
                               body(tile, thread);
                           } catch (...) {
                               error.keep();
                           }
                       });
        error.rethrow();
    }

    // -- periodic cells --------------------------------------------------------------------------

    bool uses_mesh() const { return ParticleMesh::is_worthwhile(waves_, MESH_PAIRS_CPU); }

    void fill(Tile& tile, const Worker<T>& worker, Range nodes, std::int64_t number) const {
        tile.begin = nodes.begin + number * WAVE_TILE;
        tile.end = std::min(nodes.end, tile.begin + WAVE_TILE);
        std::uint64_t phases[3][WAVE_TILE] = {};
        std::fill_n(tile.charges, WAVE_TILE, 0.0);
        for (std::int64_t n = tile.begin; n < tile.end; ++n) {
            const auto a = size(n - tile.begin);
            const auto found = waves_.phases(worker.positions + 3 * n);
            for (std::size_t d = 0; d < 3; ++d) phases[d][a] = found[d];
            tile.charges[a] = charge(worker, n);
        }
        for (std::size_t d = 0; d < 3; ++d) {
            const int count = waves_.bound(d) + 1;
            tile.tables[d].resize(size(count * WAVE_TILE));
            tile.tables[3 + d].resize(size(count * WAVE_TILE));
            simd<double>().wave_powers(phases[d], count, tile.tables[d].data(),
                                       tile.tables[3 + d].data());
        }
    }

    // Finds the sums of the nodes of this process. Results are the same for every number of
    // threads, because integers are added.
    void find_sums(const Worker<T>& worker, Range nodes) const {
        if (uses_mesh()) {
            charges_.resize(size(nodes.end - nodes.begin));
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
                charges_[size(n - nodes.begin)] = charge(worker, n);
            return mesh_.find_sums(waves_, nodes.end - nodes.begin,
                                   worker.positions + 3 * nodes.begin, charges_.data(),
                                   worker.threads, sums_);
        }
        for (std::vector<std::int64_t>& sums : sums_of_thread_) sums.assign(sums_.size(), 0);
        each_tile(worker, nodes, [&](std::int64_t number, int thread) {
            Tile& tile = tiles_[size(thread)];
            fill(tile, worker, nodes, number);
            simd<double>().wave_sums(tile.waves(), tile.charges, waves_.columns().data(),
                                     static_cast<std::int64_t>(waves_.columns().size()),
                                     sums_of_thread_[size(thread)].data());
        });
        for (const std::vector<std::int64_t>& sums : sums_of_thread_)
            for (std::size_t i = 0; i < sums.size(); ++i) sums_[i] += sums[i];
    }

    // Whether the charges of this process are so large that their sums do not fit into integers.
    bool too_large(const Worker<T>& worker, Range nodes, std::int64_t& total) const {
        double sum = 0;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) sum += std::abs(charge(worker, n));
        const bool large = !(sum < MAX_CHARGE);
        total = large ? static_cast<std::int64_t>(MAX_CHARGE) : std::llrint(std::ceil(sum));
        return large;
    }

    void periodic(Worker<T>& worker, Range nodes) const {
        waves_.update(worker.cell, spec_.charges, worker.waves_cell);
        tiles_.resize(size(std::max(worker.threads, 1)));
        sums_of_thread_.resize(tiles_.size());
        sums_.assign(size(4 * waves_.num_pairs()), 0);
        std::int64_t total = 0;
        if (!too_large(worker, nodes, total)) find_sums(worker, nodes);
        own_sums_ = sums_;
        if (worker.communicator != nullptr) {
            sums_.push_back(total);
            worker.communicator->sum(sums_.data(), static_cast<std::int64_t>(sums_.size()));
            total = sums_.back();
            sums_.pop_back();
        }
        if (!(static_cast<double>(total) < MAX_CHARGE)) charges_too_large();
        find_factors();
        add_fields(worker, nodes);
        if (worker.with_gradient) add_virial(worker);
    }

    // S of the waves n3 = m and -m of a pair.
    using Amplitudes = std::array<std::array<double, 2>, 2>;
    static Amplitudes amplitudes(const std::vector<std::int64_t>& sums, std::int64_t pair) {
        const std::int64_t* s = &sums[size(4 * pair)];
        const auto real = [](std::int64_t sum) { return static_cast<double>(sum) / CHARGE_UNITS; };
        return {{{real(s[0] - s[1]), real(s[2] + s[3])}, {real(s[0] + s[1]), real(s[3] - s[2])}}};
    }

    void find_factors() const {
        factors_.resize(size(4 * waves_.num_pairs()));
        for (std::int64_t i = 0; i < waves_.num_pairs(); ++i) {
            const Amplitudes s = amplitudes(sums_, i);
            const double* w = &waves_.weights()[size(2 * i)];
            for (std::size_t part = 0; part < 2; ++part) {
                const double sign = part == 0 ? 1 : -1;  // the factor is conjugate
                const double up = sign * w[0] * s[0][part], down = sign * w[1] * s[1][part];
                factors_[size(4 * i) + part] = up + down;
                factors_[size(4 * i) + 2 + part] = up - down;
            }
        }
    }

    void add_fields(Worker<T>& worker, Range nodes) const {
        if (uses_mesh()) mesh_.find_potentials(waves_, factors_, worker.threads);
        each_tile(worker, nodes, [&](std::int64_t number, int thread) {
            if (uses_mesh()) {
                const std::int64_t begin = nodes.begin + number * WAVE_TILE;
                for (std::int64_t n = begin; n < std::min(nodes.end, begin + WAVE_TILE); ++n) {
                    const auto found = mesh_.field(n - nodes.begin);
                    add_field(worker, n, found.real, found.slopes);
                }
                return;
            }
            Tile& tile = tiles_[size(thread)];
            fill(tile, worker, nodes, number);
            alignas(64) double real[WAVE_TILE], slopes[3 * WAVE_TILE];
            simd<double>().wave_fields(tile.waves(), waves_.columns().data(),
                                       static_cast<std::int64_t>(waves_.columns().size()),
                                       factors_.data(), real, slopes);
            for (std::int64_t n = tile.begin; n < tile.end; ++n) {
                const auto a = size(n - tile.begin);
                const double along[3] = {slopes[a], slopes[WAVE_TILE + a],
                                         slopes[2 * WAVE_TILE + a]};
                add_field(worker, n, real[a], along);
            }
        });
    }

    // Adds energy and force of a node from the sums of re(t) and n im(t).
    void add_field(Worker<T>& worker, std::int64_t node, double real,
                   const double (&slopes)[3]) const {
        const double q = charge(worker, node);
        add_energy(worker, node, 2 * real - (spec_.own_removed ? 2 * spec_.own * q : 0.0));
        if (!worker.with_gradient) return;
        const Vector3 field = waves_.vector(slopes[0], slopes[1], slopes[2]);
        for (std::size_t d = 0; d < 3; ++d) worker.forces[size(3 * node) + d] += 2 * q * field[d];
    }

    // The part of the atoms of this process in minus the derivative by a strain.
    void add_virial(Worker<T>& worker) const {
        for (const WaveColumn& column : waves_.columns())
            for (int i = 0; i < column.count; ++i) {
                const std::int64_t pair = column.first + i;
                const Amplitudes all = amplitudes(sums_, pair), mine = amplitudes(own_sums_, pair);
                for (std::size_t sign = 0; sign < 2; ++sign) {
                    const double weight = waves_.weights()[size(2 * pair) + sign];
                    if (weight == 0) continue;
                    const int m = column.from + i;
                    const Vector3 k = waves_.vector(column.n1, column.n2, sign == 0 ? m : -m);
                    const double square = k[0] * k[0] + k[1] * k[1] + k[2] * k[2];
                    const double energy =
                        weight * (mine[sign][0] * all[sign][0] + mine[sign][1] * all[sign][1]);
                    const double along =
                        energy * (spec_.charges.sigma * spec_.charges.sigma + 2 / square);
                    for (std::size_t a = 0; a < 3; ++a)
                        for (std::size_t b = 0; b < 3; ++b)
                            worker.virial[3 * a + b] +=
                                (a == b ? energy : 0.0) - along * k[a] * k[b];
                }
            }
    }

    // -- open systems ----------------------------------------------------------------------------

    void isolated(Worker<T>& worker, Range nodes) const {
        spec_.expect_one_process(worker.communicator, nodes.end - nodes.begin);
        const double unit = spec_.charges.factor / TWO_PI;
        const GaussianPair pair{1 / (std::sqrt(2.0) * spec_.charges.sigma), 0.0};
        own_forces_.resize(size(3 * nodes.end));
        each_tile(worker, nodes, [&](std::int64_t number, int) {
            const std::int64_t begin = nodes.begin + number * WAVE_TILE;
            for (std::int64_t n = begin; n < std::min(nodes.end, begin + WAVE_TILE); ++n) {
                const double* at = worker.positions + 3 * n;
                double potential = 0;
                Vector3 field{};
                for (std::int64_t j = nodes.begin; j < nodes.end; ++j) {
                    if (j == n) continue;
                    const double* other = worker.positions + 3 * j;
                    const Vector3 v{at[0] - other[0], at[1] - other[1], at[2] - other[2]};
                    const double square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
                    const double q = charge(worker, j);
                    double by_r;
                    potential += q * pair.value(square, by_r);
                    for (std::size_t d = 0; d < 3; ++d) field[d] -= q * by_r * v[d];
                }
                const double q = charge(worker, n);
                add_energy(worker, n,
                           unit * potential + (spec_.own_removed ? 0.0 : 2 * spec_.own * q));
                for (std::size_t d = 0; d < 3 && worker.with_gradient; ++d) {
                    own_forces_[size(3 * n) + d] = unit * q * field[d];
                    worker.forces[size(3 * n) + d] += unit * q * field[d];
                }
            }
        });
        if (!worker.with_gradient) return;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            for (std::size_t a = 0; a < 3; ++a)
                for (std::size_t b = 0; b < 3; ++b)
                    worker.virial[3 * a + b] +=
                        worker.positions[size(3 * n) + a] * own_forces_[size(3 * n) + b];
    }

    const EwaldSpec& spec_;
    // Waves are kept while the cell is the same. Threads change only their own tile.
    mutable Waves waves_;
    mutable CpuParticleMesh mesh_{WINDOW_POINTS<T>};
    mutable std::vector<double> charges_;                            // [num_local], for the mesh
    mutable std::vector<Tile> tiles_;                                // [threads]
    mutable std::vector<std::vector<std::int64_t>> sums_of_thread_;  // [threads][pair][4]
    mutable std::vector<std::int64_t> sums_, own_sums_;              // [pair][4] in CHARGE_UNITS
    mutable std::vector<double> factors_;     // [pair][4]; see WaveKernels::wave_fields
    mutable std::vector<double> own_forces_;  // [num_local][3] of an open system
};

const RegisterOp<EwaldSpec, CpuEwald> registered{"ewald"};

}  // namespace

}  // namespace mdcg

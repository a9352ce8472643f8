#include <algorithm>
#include <array>

#include "engine/ops/pair/dispersion.hpp"
#include "engine/ops/pair/points_cpu.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuDispersion : public CpuOp<T> {
public:
    explicit CpuDispersion(const DispersionSpec& spec) : spec_(spec) {
        const auto types = size(spec.num_types);
        references_.assign(types, 1);
        for (std::size_t i = 0; i < spec.c6.size(); ++i) {
            const auto b = static_cast<int>(i % MAX_REFERENCES);
            int& most = references_[i / MAX_REFERENCES % types];
            if (spec.c6[i] != 0) most = std::max(most, b + 1);
        }
    }

    // One pass gives energies and forces, so the energies of a step with forces come with these.
    void forward(Worker<T>& worker, Range nodes) const override {
        if (!worker.with_gradient) run(worker, nodes, false);
    }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, true); }

private:
    using Row = std::array<double, MAX_REFERENCES>;

    void run(Worker<T>& worker, Range nodes, bool backward) const;
    // sum_a weight_a C6_ab of the types, by b.
    Row strengths(const T* weights, std::int64_t type, std::int64_t other) const {
        Row found{};
        const double* c6 =
            &spec_.c6[size((type * MAX_REFERENCES * spec_.num_types + other) * MAX_REFERENCES)];
        for (std::size_t a = 0; a < MAX_REFERENCES; ++a)
            for (std::size_t b = 0; b < MAX_REFERENCES; ++b)
                found[b] += static_cast<double>(weights[a]) *
                            c6[a * size(spec_.num_types) * MAX_REFERENCES + b];
        return found;
    }

    const DispersionSpec& spec_;
    std::vector<int> references_;                         // [T] how many a type has
    mutable std::vector<std::vector<double>> of_points_;  // of one evaluation
};

template <typename T>
void CpuDispersion<T>::run(Worker<T>& worker, Range nodes, bool backward) const {
    if (worker.energy_weights != nullptr) refuse_energy_weights();
    gather_points(worker, MAX_REFERENCES, spec_.x.rows.width, worker.value(spec_.x), of_points_);
    const std::int64_t types = spec_.num_types;
    each_atom(worker, nodes, spec_.cutoff, [&](std::int64_t n, const auto& visit) {
        const T* const own = worker.value(spec_.x, n);
        const std::int64_t type = worker.types[n];
        thread_local std::vector<Row> c6, sums;
        c6.resize(size(types));
        sums.assign(size(types), Row{});
        for (std::int64_t t = 0; t < types; ++t) c6[size(t)] = strengths(own, type, t);
        PairForce force;
        visit([&](int other, std::int64_t begin, const PairRun& run) {
            const double* weights[MAX_REFERENCES];
            for (std::size_t b = 0; b < MAX_REFERENCES; ++b)
                weights[b] = of_points_[b].data() + begin;
            simd<double>().dispersion(run, spec_.damping[size(type * types + other)],
                                      references_[size(other)], weights, c6[size(other)].data(),
                                      sums[size(other)].data(), backward ? &force : nullptr);
        });
        double energy = 0;
        for (std::size_t t = 0; t < sums.size(); ++t)
            for (std::size_t b = 0; b < MAX_REFERENCES; ++b) energy -= c6[t][b] * sums[t][b];
        worker.energies[n] += 0.5 * energy;
        if (!backward) return;
        add_force(worker, n, force);
        if (!spec_.x.needs_gradient) return;
        T* const gradient = worker.started_gradient(spec_.x, n);
        for (std::int64_t t = 0; t < types; ++t)
            for (std::int64_t a = 0; a < MAX_REFERENCES; ++a) {
                const double* row =
                    &spec_.c6[size(((type * MAX_REFERENCES + a) * types + t) * MAX_REFERENCES)];
                double sum = 0;
                for (std::size_t b = 0; b < MAX_REFERENCES; ++b) sum += row[b] * sums[size(t)][b];
                gradient[a] -= static_cast<T>(sum);
            }
    });
}

const RegisterOp<DispersionSpec, CpuDispersion> registered{"dispersion"};

}  // namespace

}  // namespace mdcg

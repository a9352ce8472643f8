#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "engine/graph.hpp"
#include "engine/ops/cpu.hpp"
#include "engine/ops/pair_energy.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuPairEnergy : public CpuOp<T> {
public:
    explicit CpuPairEnergy(const PairEnergySpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, false); }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, true); }

private:
    void run(Worker<T>& worker, Range nodes, bool backward) const;

    const PairEnergySpec& spec_;
};

template <typename T>
void CpuPairEnergy<T>::run(Worker<T>& worker, Range nodes, bool backward) const {
    const Graph& graph = *worker.graph;
    for (std::int64_t node = nodes.begin; node < nodes.end; ++node) {
        const auto row = size(node);
        double energy = 0;
        for (std::int64_t e = graph.row_ptr[row]; e < graph.row_ptr[row + 1]; ++e) {
            const auto at = size(e);
            const auto pair =
                size(worker.types[node] * spec_.num_types + worker.types[graph.sender[at]]);
            const double* v = graph.vec.data() + 3 * at;
            const double r = std::max(std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), 1e-8);
            if (!(r < spec_.r_max[pair])) continue;
            double c, c_slope;
            polynomial_cutoff(spec_.power, r / spec_.r_max[pair], c, c_slope);
            double screen = 0, screen_slope = 0;
            for (std::size_t k = 0; k < spec_.coefficients.size(); ++k) {
                const double decay = spec_.exponents[k] / spec_.a[pair];
                const double term = spec_.coefficients[k] * std::exp(-decay * r);
                screen += term;
                screen_slope -= decay * term;
            }
            const double scale = spec_.factor[pair] / r;
            if (!backward) {
                energy += scale * screen * c;
                continue;
            }
            const double slope =
                scale * worker.energy_weight(node) *
                (screen_slope * c + screen * c_slope / spec_.r_max[pair] - screen * c / r);
            for (std::size_t k = 0; k < 3; ++k)
                worker.edge_gradient[3 * at + k] += static_cast<T>(slope * v[k] / r);
        }
        if (!backward) worker.energies[node] += energy;
    }
}

const RegisterOp<PairEnergySpec, CpuPairEnergy> registered{"pair_energy"};

}  // namespace

}  // namespace mdcg

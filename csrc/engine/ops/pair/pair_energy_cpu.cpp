#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "engine/cpu_op.hpp"
#include "engine/graph.hpp"
#include "engine/ops/pair/pair_energy.hpp"

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
    const ScreenedRepulsion repulsion{spec_.factor.data(),
                                      spec_.a.data(),
                                      spec_.r_max.data(),
                                      spec_.coefficients.data(),
                                      spec_.exponents.data(),
                                      static_cast<Long>(spec_.exponents.size()),
                                      spec_.power};
    for (std::int64_t node = nodes.begin; node < nodes.end; ++node) {
        const auto row = size(node);
        double energy = 0;
        for (std::int64_t e = graph.row_ptr[row]; e < graph.row_ptr[row + 1]; ++e) {
            const auto at = size(e);
            const auto pair =
                size(worker.types[node] * spec_.num_types + worker.types[graph.sender[at]]);
            const double* v = graph.vec.data() + 3 * at;
            const double r = std::max(std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), 1e-8);
            double pair_energy, slope;
            if (!repulsion.at(static_cast<Long>(pair), r, pair_energy, slope)) continue;
            if (!backward) {
                energy += pair_energy;
                continue;
            }
            slope *= worker.energy_weight(node);
            for (std::size_t k = 0; k < 3; ++k)
                worker.edge_gradient[3 * at + k] += static_cast<T>(slope * v[k] / r);
        }
        if (!backward) worker.energies[node] += energy;
    }
}

const RegisterOp<PairEnergySpec, CpuPairEnergy> registered{"pair_energy"};

}  // namespace

}  // namespace mdcg

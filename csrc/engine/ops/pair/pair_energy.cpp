// Energies of pairs: screened nuclear repulsion (Ziegler, Biersack, Littmark), with a cutoff,
//     E_i += sum_e factor / r * sum_k c_k exp(-x_k r / a) * cutoff(r / r_max);
// factor, a and r_max are given by types of receiver and sender [T][T] (r_max may be one number).
#include "kernels/pair_energy.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/edges/radial.hpp"
#include "engine/graph.hpp"

namespace mdcg {

namespace {

struct PairEnergySpec : OpSpec {
    std::vector<double> factor, a, r_max;  // [T][T]
    std::vector<double> coefficients, exponents;
    double power = 0;

    explicit PairEnergySpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::receivers;
        if (fields.text("kind") != "zbl")
            fields.fail("kind", "'" + fields.text("kind") + "'", "zbl");
        const std::int64_t n = num_types;
        factor = fields.values<double>("factor", {n, n}, Content::constants);
        a = fields.values<double>("a", {n, n}, Content::constants);
        r_max = read_cutoffs(fields, given.info);
        r_max.resize(a.size(), r_max[0]);  // to [T][T], if it is one number
        coefficients = fields.numbers("coefficients");
        exponents = fields.numbers("exponents");
        if (coefficients.size() > limits::MAX_SCREENING_TERMS)
            fields.fail("coefficients", std::to_string(coefficients.size()) + " numbers",
                        "at most " + std::to_string(limits::MAX_SCREENING_TERMS));
        if (coefficients.size() != exponents.size())
            fields.fail("exponents", std::to_string(exponents.size()) + " numbers",
                        std::to_string(coefficients.size()) + ", as many as coefficients");
        power = fields.number("p");
        check_cutoff_power(fields, power);
        for (const double length : a)
            if (!(length > 0)) fields.fail("a", number_text(length), "lengths over 0");
    }
};

template <typename T>
class CpuPairEnergy : public CpuOp<T> {
public:
    explicit CpuPairEnergy(const PairEnergySpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, false); }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, true); }

private:
    void run(Worker<T>& worker, Range nodes, bool backward) const {
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

    const PairEnergySpec& spec_;
};

constexpr int PAIR_ENERGY_THREADS = 128;

template <typename T>
class CudaPairEnergy : public CudaOp<T> {
public:
    explicit CudaPairEnergy(const PairEnergySpec& spec) : spec_(spec) {
        for (const auto* part :
             {&spec.factor, &spec.a, &spec.r_max, &spec.coefficients, &spec.exponents})
            numbers_.insert(numbers_.end(), part->begin(), part->end());
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        energies_ = kernels.fixed("pair_energy.cuh", "pair_energies");
        gradients_ = kernels.fixed("pair_energy.cuh", "pair_gradients");
        on_device_.upload(numbers_, stream);
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        energies_.cover(*worker.stream, 32 * worker.edges->num_local, PAIR_ENERGY_THREADS,
                        arguments(worker));
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        gradients_.cover(*worker.stream, worker.edges->num_edges, PAIR_ENERGY_THREADS,
                         arguments(worker));
    }

private:
    PairArguments<T> arguments(const CudaWorker<T>& worker) const {
        const DeviceEdges& graph = *worker.edges;
        const double* const numbers = on_device_.data();
        const std::int64_t pairs = std::int64_t(spec_.num_types) * spec_.num_types;
        const auto terms = static_cast<std::int64_t>(spec_.exponents.size());
        return {graph.num_local,
                graph.num_edges,
                spec_.num_types,
                graph.row_ptr,
                graph.sender_type,
                graph.receiver_type,
                graph.length,
                static_cast<const T*>(graph.unit),
                {numbers, numbers + pairs, numbers + 2 * pairs, numbers + 3 * pairs,
                 numbers + 3 * pairs + terms, terms, spec_.power},
                spec_.flip_edges ? -1.0 : 1.0,
                worker.energies,
                worker.edge_gradient,
                graph.receiver,
                worker.energy_weights};
    }

    const PairEnergySpec& spec_;
    std::vector<double> numbers_;  // factor, a, r_max [T][T]; coefficients, exponents [terms]
    DeviceArray<double> on_device_;
    CudaFunction energies_, gradients_;
};

const RegisterOp<PairEnergySpec, CpuPairEnergy, CudaPairEnergy> registered{"pair_energy"};

}  // namespace

}  // namespace mdcg

#include <vector>

#include "engine/cuda/cuda_op.hpp"
#include "engine/ops/pair/pair_energy.hpp"
#include "kernels/pair_energy.hpp"

namespace mdcg {

namespace {

constexpr int THREADS = 128;

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
        energies_.launch(*worker.stream, (32 * worker.edges->num_local + THREADS - 1) / THREADS,
                         THREADS, arguments(worker));
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        gradients_.launch(*worker.stream, (worker.edges->num_edges + THREADS - 1) / THREADS,
                          THREADS, arguments(worker));
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

const RegisterOp<PairEnergySpec, CudaPairEnergy> registered{"pair_energy"};

}  // namespace

}  // namespace mdcg

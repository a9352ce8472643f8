// Energies of pairs: screened nuclear repulsion, as csrc/engine/layers/pair_energy.cpp has it.
#include <vector>

#include "engine/cuda/worker.hpp"
#include "engine/registry.hpp"

namespace mdcg {

namespace {

const char* const TEXT =
#include "engine/cuda/text/cutoff.cuh"
#include "engine/cuda/text/pair_energy.cuh"
    ;

constexpr int THREADS = 128;

// As text/pair_energy.cuh has it.
template <typename T>
struct PairArguments {
    std::int64_t num_nodes, num_slots, num_types, terms;
    const std::int32_t *row_ptr, *sender_type, *receiver_type;
    const double* length;
    const T* unit;
    const double *factor, *a, *r_max, *coefficients, *exponents;
    double power, sign;
    double* energies;
    T* edge_gradient;
};

template <typename T>
class CudaPairEnergy : public CudaLayer<T> {
public:
    explicit CudaPairEnergy(const LayerSpec& spec) {
        const Fields& fields = spec.fields;
        if (fields.text("kind") != "zbl")
            fields.fail("kind", "'" + fields.text("kind") + "'", "zbl");
        types_ = spec.info.num_types();
        const std::int64_t n = types_;
        const std::vector<double> factor = fields.values<double>("factor", {n, n});
        const std::vector<double> a = fields.values<double>("a", {n, n});
        std::vector<double> r_max;
        if (fields.is_text("r_max"))
            r_max = fields.values<double>("r_max", {n, n});
        else
            r_max.assign(static_cast<std::size_t>(n * n), fields.number("r_max"));
        const std::vector<double> coefficients = fields.numbers("coefficients");
        const std::vector<double> exponents = fields.numbers("exponents");
        if (coefficients.size() != exponents.size())
            fields.fail("exponents", std::to_string(exponents.size()) + " numbers",
                        std::to_string(coefficients.size()) + ", as many as coefficients");
        terms_ = static_cast<std::int64_t>(coefficients.size());
        power_ = fields.number("p");
        for (std::size_t i = 0; i < a.size(); ++i)
            if (!(a[i] > 0) || !(r_max[i] > 0)) fields.fail("a and r_max must be over 0");
        for (const auto& part : {factor, a, r_max, coefficients, exponents})
            numbers_.insert(numbers_.end(), part.begin(), part.end());
        flip_ = spec.info.flip_edges;
    }

    Walk forward_walk() const override { return Walk::receivers; }
    Walk backward_walk() const override { return Walk::receivers; }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {}; }
    std::vector<Operand*> outputs() override { return {}; }

    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        energies_ = kernels.fixed(TEXT, "pair_energies");
        gradients_ = kernels.fixed(TEXT, "pair_gradients");
        memory_ = std::make_unique<CudaMemory>(kernels.device());
        memory_->reserve(numbers_.size() * sizeof(double));
        memory_->upload(numbers_.data(), numbers_.size() * sizeof(double), stream);
        stream.synchronize();
    }
    void enqueue_forward(CudaWorker<T>& worker, Range) const override {
        energies_.launch(*worker.stream, (32 * worker.edges->num_local + THREADS - 1) / THREADS,
                         THREADS, arguments(worker));
    }
    void enqueue_backward(CudaWorker<T>& worker, Range) const override {
        gradients_.launch(*worker.stream, (worker.edges->num_slots + THREADS - 1) / THREADS,
                          THREADS, arguments(worker));
    }

private:
    PairArguments<T> arguments(const CudaWorker<T>& worker) const {
        const CudaGraph& graph = *worker.edges;
        const double* const numbers = memory_->template as<const double>();
        const std::int64_t pairs = types_ * types_;
        return {graph.num_local,
                graph.num_slots,
                types_,
                terms_,
                graph.row_ptr,
                graph.sender_type,
                graph.receiver_type,
                graph.length,
                static_cast<const T*>(graph.unit),
                numbers,
                numbers + pairs,
                numbers + 2 * pairs,
                numbers + 3 * pairs,
                numbers + 3 * pairs + terms_,
                power_,
                flip_ ? -1.0 : 1.0,
                worker.energies,
                worker.edge_gradient};
    }

    std::int64_t types_, terms_;
    double power_;
    bool flip_;
    std::vector<double> numbers_;  // factor, a, r_max [T][T]; coefficients, exponents [terms]
    std::unique_ptr<CudaMemory> memory_;
    CudaFunction energies_, gradients_;
};

template <typename T>
std::unique_ptr<Layer<T>> make_pair_energy(const LayerSpec& spec) {
    return std::make_unique<CudaPairEnergy<T>>(spec);
}

const RegisterCudaLayer registered{"pair_energy", &make_pair_energy<float>,
                                   &make_pair_energy<double>};

}  // namespace

}  // namespace mdcg

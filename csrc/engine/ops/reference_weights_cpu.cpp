#include <array>
#include <cmath>
#include <limits>

#include "core/integers.hpp"
#include "engine/ops/cpu.hpp"
#include "engine/ops/reference_weights.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuReferenceWeights : public CpuOp<T> {
public:
    explicit CpuReferenceWeights(const ReferenceWeightsSpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* const out = worker.value(spec_.out, n);
            std::fill_n(out, spec_.out.rows.width, T(0));
            const auto weights = weights_of(worker, n);
            for (std::size_t a = 0; a < weights.size(); ++a) out[a] = static_cast<T>(weights[a]);
        }
    }

    // dw_a/dcn = w_a (s_a - sum_b w_b s_b), where s_a is the derivative of the exponent.
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const auto weights = weights_of(worker, n);
            const T* const gradient = worker.gradient(spec_.out, n);
            const double* const of = references(worker, n);
            const auto cn = static_cast<double>(*worker.value(spec_.x, n));
            double mean = 0, slope = 0;
            for (std::size_t a = 0; a < weights.size(); ++a)
                if (weights[a] > 0) mean -= weights[a] * 2 * spec_.steepness * (cn - of[a]);
            for (std::size_t a = 0; a < weights.size(); ++a)
                if (weights[a] > 0)
                    slope += static_cast<double>(gradient[a]) * weights[a] *
                             (-2 * spec_.steepness * (cn - of[a]) - mean);
            *worker.started_gradient(spec_.x, n) += static_cast<T>(slope);
        }
    }

private:
    using Weights = std::array<double, MAX_REFERENCES>;

    const double* references(const Worker<T>& worker, std::int64_t n) const {
        return &spec_.references[size(worker.types[n]) * MAX_REFERENCES];
    }
    // Relative to the nearest reference: the exponentials of all may be too small for a double.
    Weights weights_of(const Worker<T>& worker, std::int64_t n) const {
        const double* const of = references(worker, n);
        const auto cn = static_cast<double>(*worker.value(spec_.x, n));
        double nearest = std::numeric_limits<double>::infinity(), total = 0;
        const auto square = [&](std::size_t a) { return (cn - of[a]) * (cn - of[a]); };
        Weights weights{};
        for (std::size_t a = 0; a < weights.size(); ++a)
            if (of[a] >= 0) nearest = std::min(nearest, square(a));
        for (std::size_t a = 0; a < weights.size(); ++a) {
            if (of[a] >= 0) weights[a] = std::exp(-spec_.steepness * (square(a) - nearest));
            total += weights[a];
        }
        for (double& weight : weights) weight /= total;
        return weights;
    }

    const ReferenceWeightsSpec& spec_;
};

const RegisterOp<ReferenceWeightsSpec, CpuReferenceWeights> registered{"reference_weights"};

}  // namespace

}  // namespace mdcg

#include "engine/ops/system/total_charge.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/cpu_op.hpp"
#include "engine/error.hpp"
#include "engine/ops/system/exact_sum.hpp"
#include "kernels/ewald.hpp"

namespace mdcg {

TotalChargeSpec::TotalChargeSpec(const LayerEntry& given) : WaveSpec(given) {
    joins_systems = false;
    expect_same_irreps(x, out);
    if (x.rows.blocks[0].mul != 2 || x.rows.blocks[0].l != 0)
        fields.fail("x", irreps_text(x.rows), "2x0e, or 2x0e and vectors");
    if (irreps_text(weights.rows) != "2x0e")
        fields.fail("weights", irreps_text(weights.rows), "2x0e");
    charge_ = input_number(fields.text("charge"));
    spin_ = input_number(fields.text("spin"));
}

namespace {

template <typename T>
class CpuTotalCharge : public CpuOp<T> {
public:
    explicit CpuTotalCharge(const TotalChargeSpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        const auto sums = sum<4>(worker, nodes, [&](std::int64_t n) {
            const T *q = worker.value(spec_.x, n), *f = worker.value(spec_.weights, n);
            return std::array<double, 4>{q[0], q[1], f[0], f[1]};
        });
        for (int s = 0; s < 2; ++s) {
            const auto spin = static_cast<std::size_t>(s);
            missing_[spin] = spec_.total(s, worker.inputs) - sums[spin];
            is_zero_[spin] = sums[2 + spin] == 0;
            weight_[spin] = is_zero_[spin] ? 1.0 : sums[2 + spin];
        }
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* const out = worker.value(spec_.out, n);
            std::copy_n(worker.value(spec_.x, n), spec_.x.rows.width, out);
            for (std::size_t s = 0; s < 2; ++s)
                out[s] +=
                    static_cast<T>(worker.value(spec_.weights, n)[s] / weight_[s] * missing_[s]);
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        // the derivative by the missing charge, times the sum of the weights
        const auto sums = sum<2>(worker, nodes, [&](std::int64_t n) {
            const T *g = worker.gradient(spec_.out, n), *f = worker.value(spec_.weights, n);
            return std::array<double, 2>{double(g[0]) * f[0], double(g[1]) * f[1]};
        });
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T* const g = worker.gradient(spec_.out, n);
            if (spec_.x.needs_gradient) {
                T* const d = worker.started_gradient(spec_.x, n);
                for (int i = 0; i < spec_.x.rows.width; ++i) d[i] += g[i];
                for (std::size_t s = 0; s < 2; ++s) d[s] -= static_cast<T>(sums[s] / weight_[s]);
            }
            if (!spec_.weights.needs_gradient) continue;
            T* const d = worker.started_gradient(spec_.weights, n);
            for (std::size_t s = 0; s < 2; ++s) {
                const double mean = is_zero_[s] ? 0.0 : sums[s] / weight_[s];
                d[s] += static_cast<T>((double(g[s]) - mean) * missing_[s] / weight_[s]);
            }
        }
    }

private:
    // Sums over the atoms of all processes. Throws EngineError, on all of them, if the numbers are
    // too large.
    template <std::size_t count, typename Numbers>
    static std::array<double, count> sum(const Worker<T>& worker, Range nodes,
                                         const Numbers& numbers) {
        std::array<std::int64_t, 2 * count + 1> sums{};
        std::array<ExactSum, count> found;
        double size = 0;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            for (const double number : numbers(n)) size += std::abs(number);
        if (!(size < MAX_CHARGE)) {
            sums.back() = static_cast<std::int64_t>(MAX_CHARGE);
        } else {
            sums.back() = std::llrint(std::ceil(size));
            for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
                const auto of_node = numbers(n);
                for (std::size_t i = 0; i < count; ++i) found[i].add(of_node[i]);
            }
        }
        for (std::size_t i = 0; i < count; ++i) {
            sums[2 * i] = found[i].high;
            sums[2 * i + 1] = found[i].low;
        }
        if (worker.communicator != nullptr)
            worker.communicator->sum(sums.data(), static_cast<std::int64_t>(sums.size()));
        if (!(static_cast<double>(sums.back()) < MAX_CHARGE)) charges_too_large();
        std::array<double, count> totals;
        for (std::size_t i = 0; i < count; ++i)
            totals[i] = ExactSum{sums[2 * i], sums[2 * i + 1]}.value();
        return totals;
    }

    const TotalChargeSpec& spec_;
    // From the forward pass to the backward pass, for each spin:
    mutable std::array<double, 2> missing_{};  // charge
    mutable std::array<double, 2> weight_{};   // sum of weights, or 1
    mutable std::array<bool, 2> is_zero_{};    // whether the sum is 0
};

const RegisterOp<TotalChargeSpec, CpuTotalCharge> registered{"total_charge"};

}  // namespace

}  // namespace mdcg

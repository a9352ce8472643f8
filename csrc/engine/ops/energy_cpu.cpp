#include "core/integers.hpp"
#include "engine/ops/cpu.hpp"
#include "engine/ops/energy.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuEnergy : public CpuOp<T> {
public:
    explicit CpuEnergy(const EnergySpec& spec) : spec_(spec) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const auto type = size(worker.types[n]);
            const T value = worker.value(spec_.x, n)[spec_.channel];
            worker.energies[n] +=
                spec_.scale[type] * static_cast<double>(value) + spec_.shift[type];
        }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            worker.started_gradient(spec_.x, n)[spec_.channel] +=
                static_cast<T>(spec_.scale[size(worker.types[n])] * worker.energy_weight(n));
    }

private:
    const EnergySpec& spec_;
};

const RegisterOp<EnergySpec, CpuEnergy> registered{"energy"};

}  // namespace

}  // namespace mdcg

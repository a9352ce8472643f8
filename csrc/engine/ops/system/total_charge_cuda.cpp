// Charges that are shifted to the total of the system, on devices.
#include <memory>

#include "engine/communicator.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/error.hpp"
#include "engine/ops/system/total_charge.hpp"
#include "kernels/total_charge.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaTotalCharge : public CudaOp<T> {
public:
    explicit CudaTotalCharge(const TotalChargeSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        sums_ = kernels.fixed("total_charge.cuh", "charge_sums");
        fill_ = kernels.fixed("total_charge.cuh", "fill_charges");
        memory_ = std::make_unique<DeviceMemory>(kernels.device());
        shared_ = std::make_unique<PinnedMemory>(kernels.device());
    }
    void forward(CudaWorker<T>& worker, Range) const override { run(worker, false); }
    void backward(CudaWorker<T>& worker, Range) const override { run(worker, true); }

private:
    static constexpr int THREADS = 128;
    static constexpr std::size_t BYTES = 8 * CHARGE_SUM_ITEMS;

    void run(CudaWorker<T>& worker, bool backward) const {
        const DeviceStream& stream = *worker.stream;
        memory_->reserve(2 * BYTES);  // keeps the sums of the forward pass
        TotalChargeArguments<T> a{};
        a.num_atoms = worker.edges->num_local;
        a.x = worker.value(spec_.x);
        a.weights = worker.value(spec_.weights);
        a.out = worker.value(spec_.out);
        a.width = spec_.x.rows.width;
        a.weight_width = spec_.weights.rows.width;
        a.add_x = spec_.x.accumulate;
        a.add_weights = spec_.weights.accumulate;
        for (int s = 0; s < 2; ++s) a.wanted[s] = spec_.total(s, worker.inputs);
        a.sums = memory_->template as<Long>();
        a.slopes = a.sums + CHARGE_SUM_ITEMS;
        if (backward) {
            a.g = worker.gradient(spec_.out);
            a.dx = worker.wanted_gradient(spec_.x);
            a.d_weights = worker.wanted_gradient(spec_.weights);
        }
        Long* const sums = backward ? a.slopes : a.sums;
        clear_on_device(sums, BYTES, stream);
        sums_.cover(stream, a.num_atoms, THREADS, a);
        if (worker.communicator == nullptr)
            a.failures = worker.failures + 1;
        else
            share(worker, sums);
        fill_.cover(stream, a.num_atoms, THREADS, a);
    }

    // Adds the sums of all processes on the host.
    void share(const CudaWorker<T>& worker, Long* sums) const {
        shared_->grow(BYTES);
        auto* const found = shared_->template as<std::int64_t>();
        copy_to_host(found, sums, BYTES, *worker.stream);
        worker.stream->synchronize();
        worker.communicator->sum(found, CHARGE_SUM_ITEMS);
        if (!(static_cast<double>(found[2 * CHARGE_SUMS]) < TOTAL_UNITS * MAX_CHARGE))
            charges_too_large();
        copy_to_device(sums, found, BYTES, *worker.stream);
    }

    const TotalChargeSpec& spec_;
    CudaFunction sums_, fill_;
    std::unique_ptr<DeviceMemory> memory_;  // sums, then slopes
    std::unique_ptr<PinnedMemory> shared_;
};

const RegisterOp<TotalChargeSpec, CudaTotalCharge> registered{"total_charge"};

}  // namespace

}  // namespace mdcg

#include "engine/ops/energy.hpp"
#include "engine/ops/node_layer_cuda.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaEnergy : public CudaOp<T> {
public:
    explicit CudaEnergy(const EnergySpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_ = kernels.fixed(NODE_KERNELS, "energy_forward");
        backward_ = kernels.fixed(NODE_KERNELS, "energy_backward");
        scale_.upload(spec_.scale, stream);
        shift_.upload(spec_.shift, stream);
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        EnergyArguments<T> arguments = common(worker, nodes);
        arguments.x = worker.value(spec_.x, nodes.begin);
        arguments.energies = worker.energies + nodes.begin;
        forward_.launch(*worker.stream, thread_blocks(arguments.count), NODE_THREADS, arguments);
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        EnergyArguments<T> arguments = common(worker, nodes);
        arguments.dx = worker.gradient(spec_.x, nodes.begin);
        if (worker.energy_weights != nullptr)
            arguments.weights = worker.energy_weights + nodes.begin;
        backward_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }

private:
    EnergyArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        EnergyArguments<T> arguments{};
        arguments.scale = scale_.data();
        arguments.shift = shift_.data();
        arguments.types = worker.types + nodes.begin;
        arguments.count = nodes.end - nodes.begin;
        arguments.width = spec_.x.rows.width;
        arguments.channel = static_cast<std::int32_t>(spec_.channel);
        arguments.add = spec_.x.accumulate ? 1 : 0;
        return arguments;
    }

    const EnergySpec& spec_;
    CudaArray<double> scale_, shift_;
    CudaFunction forward_, backward_;
};

const RegisterOp<EnergySpec, CudaEnergy> registered{"energy"};

}  // namespace

}  // namespace mdcg

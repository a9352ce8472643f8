// E_i += scale * x[channel] + shift, in double.
#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

namespace {

// As in text/nodes.cuh.
template <typename T>
struct EnergyArguments {
    const T* x;
    T* dx;
    double* energies;
    const double *scale, *shift;
    const std::int32_t* types;
    std::int64_t count;
    std::int32_t width, channel, add;
};

template <typename T>
class CudaEnergy : public CudaLayer<T> {
public:
    explicit CudaEnergy(const LayerSpec& spec) : x_(spec.operand("x")), fields_(spec, x_) {}
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {}; }

    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        forward_ = kernels.fixed(node_text(), "energy_forward");
        backward_ = kernels.fixed(node_text(), "energy_backward");
        scale_.upload(fields_.scale, stream);
        shift_.upload(fields_.shift, stream);
    }
    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        EnergyArguments<T> arguments = common(worker, nodes);
        arguments.x = value_rows(worker, x_, nodes);
        arguments.energies = worker.energies + nodes.begin;
        forward_.launch(*worker.stream, thread_blocks(arguments.count), NODE_THREADS, arguments);
    }
    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        EnergyArguments<T> arguments = common(worker, nodes);
        arguments.dx = gradient_rows(worker, x_, nodes);
        backward_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }

private:
    EnergyArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        EnergyArguments<T> arguments{};
        arguments.scale = scale_.data();
        arguments.shift = shift_.data();
        arguments.types = worker.types + nodes.begin;
        arguments.count = nodes.end - nodes.begin;
        arguments.width = x_.rows.width;
        arguments.channel = static_cast<std::int32_t>(fields_.channel);
        arguments.add = x_.accumulate ? 1 : 0;
        return arguments;
    }

    Operand x_;
    EnergyFields fields_;
    CudaArray<double> scale_, shift_;
    CudaFunction forward_, backward_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<CudaEnergy<T>>(spec);
}
const RegisterCudaLayer registered{"energy", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg

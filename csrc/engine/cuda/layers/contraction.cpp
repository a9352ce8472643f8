// Symmetric contraction on a device: a thread per node and channel, generated from the polynomials.
#include <memory>
#include <vector>

#include "engine/cuda/pass_kernel.hpp"
#include "engine/cuda/worker.hpp"
#include "engine/layers/contraction_parts.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaContraction : public CudaLayer<T> {
public:
    explicit CudaContraction(const LayerSpec& spec)
        : x_(spec.operand("x")),
          out_(spec.operand("out")),
          parts_(ContractionParts<T>::read(spec, x_, out_)),
          forward_(spec.fields, "forward", widths()),
          backward_(spec.fields, "backward", widths()) {}

    std::vector<int> kept() const override { return {x_.id}; }
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        forward_.prepare(kernels);
        backward_.prepare(kernels);
        const std::size_t bytes = parts_.coefficients.size() * sizeof(T);
        coefficients_ = std::make_shared<CudaMemory>(stream.device());
        coefficients_->reserve(bytes);
        coefficients_->upload(parts_.coefficients.data(), bytes, stream);
    }

    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        CudaArguments arguments = this->arguments(worker, nodes);
        arguments.set(CudaArgument::out, worker.value(out_) + nodes.begin * out_.rows.width);
        forward_.launch(*worker.stream, arguments);
    }

    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        CudaArguments arguments = this->arguments(worker, nodes);
        arguments.set(CudaArgument::g, worker.gradient(out_) + nodes.begin * out_.rows.width);
        arguments.set(CudaArgument::dx, worker.gradient(x_) + nodes.begin * x_.rows.width);
        arguments.set(CudaArgument::n_adds, std::int64_t(x_.accumulate ? 1 : 0));
        backward_.launch(*worker.stream, arguments);
    }

private:
    std::vector<std::pair<const char*, std::int64_t>> widths() const {
        return {{"x", x_.rows.width}, {"w", parts_.width}, {"out", out_.rows.width}};
    }

    CudaArguments arguments(const CudaWorker<T>& worker, Range nodes) const {
        CudaArguments arguments;
        using A = CudaArgument;
        arguments.set(A::n_rows, nodes.end - nodes.begin);
        arguments.set(A::n_types, parts_.num_types);
        arguments.set(A::types, worker.types + nodes.begin);
        arguments.set(A::x, worker.value(x_) + nodes.begin * x_.rows.width);
        arguments.set(A::w, coefficients_->data());
        return arguments;
    }

    Operand x_, out_;
    ContractionParts<T> parts_;
    CudaPassKernel forward_, backward_;
    std::shared_ptr<CudaMemory> coefficients_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<CudaContraction<T>>(spec);
}
const RegisterCudaLayer registered{"contraction", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg

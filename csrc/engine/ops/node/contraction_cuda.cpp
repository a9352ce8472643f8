// A thread per node and channel, generated from the polynomials.
#include <memory>
#include <vector>

#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/pass_kernel.hpp"
#include "engine/ops/node/contraction.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaContraction : public CudaOp<T> {
public:
    explicit CudaContraction(const ContractionSpec& spec)
        : spec_(spec),
          x_(spec.x),
          out_(spec.out),
          coefficients_(spec.coefficients<T>()),
          forward_(spec, "forward", widths()),
          backward_(spec, "backward", widths()) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_.prepare(kernels);
        backward_.prepare(kernels);
        const std::size_t bytes = coefficients_.size() * sizeof(T);
        on_device_ = std::make_shared<DeviceMemory>(stream.device());
        on_device_->reserve(bytes);
        on_device_->upload(coefficients_.data(), bytes, stream);
    }

    void forward(CudaWorker<T>& worker, Range nodes) const override {
        CudaArguments arguments = this->arguments(worker, nodes);
        arguments.set(CudaArgument::out, worker.value(out_, nodes.begin));
        forward_.launch(*worker.stream, arguments);
    }

    void backward(CudaWorker<T>& worker, Range nodes) const override {
        CudaArguments arguments = this->arguments(worker, nodes);
        arguments.set(CudaArgument::g, worker.gradient(out_, nodes.begin));
        arguments.set(CudaArgument::dx, worker.gradient(x_, nodes.begin));
        arguments.set(CudaArgument::n_adds, std::int64_t(x_.accumulate ? 1 : 0));
        backward_.launch(*worker.stream, arguments);
    }

private:
    std::vector<std::pair<const char*, std::int64_t>> widths() const {
        return {{"x", x_.rows.width}, {"w", spec_.width}, {"out", out_.rows.width}};
    }

    CudaArguments arguments(const CudaWorker<T>& worker, Range nodes) const {
        CudaArguments arguments;
        using A = CudaArgument;
        arguments.set(A::n_rows, nodes.end - nodes.begin);
        arguments.set(A::n_types, spec_.num_sets);
        arguments.set(A::types, worker.types + nodes.begin);
        arguments.set(A::x, worker.value(x_, nodes.begin));
        arguments.set(A::w, on_device_->data());
        return arguments;
    }

    const ContractionSpec& spec_;
    const Operand &x_, &out_;
    AlignedArray<T> coefficients_;
    CudaPassKernel forward_, backward_;
    std::shared_ptr<DeviceMemory> on_device_;
};

const RegisterOp<ContractionSpec, CudaContraction> registered{"contraction"};

}  // namespace

}  // namespace mdcg

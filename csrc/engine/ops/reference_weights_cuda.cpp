#include "core/integers.hpp"
#include "engine/ops/cuda.hpp"
#include "engine/ops/reference_weights.hpp"
#include "kernels/points.hpp"

namespace mdcg {

namespace {

constexpr const char* TEXT = "points.cuh";
constexpr int THREADS = 256;
static_assert(REFERENCES == MAX_REFERENCES);

template <typename T>
class CudaReferenceWeights : public CudaOp<T> {
public:
    explicit CudaReferenceWeights(const ReferenceWeightsSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        forward_ = kernels.fixed(TEXT, "reference_weights_forward");
        backward_ = kernels.fixed(TEXT, "reference_weights_backward");
        references_.upload(spec_.references, stream);
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        ReferenceArguments<T> arguments = common(worker, nodes);
        arguments.out = worker.value(spec_.out, nodes.begin);
        forward_.launch(*worker.stream, ceil_div(arguments.count, THREADS), THREADS, arguments);
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        ReferenceArguments<T> arguments = common(worker, nodes);
        arguments.g = worker.gradient(spec_.out, nodes.begin);
        arguments.dx = worker.gradient(spec_.x, nodes.begin);
        backward_.launch(*worker.stream, ceil_div(arguments.count, THREADS), THREADS, arguments);
    }

private:
    ReferenceArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        ReferenceArguments<T> out{};
        out.x = worker.value(spec_.x, nodes.begin);
        out.references = references_.data();
        out.types = worker.types + nodes.begin;
        out.steepness = spec_.steepness;
        out.count = nodes.end - nodes.begin;
        out.x_width = spec_.x.rows.width;
        out.out_width = spec_.out.rows.width;
        out.add = spec_.x.accumulate ? 1 : 0;
        return out;
    }

    const ReferenceWeightsSpec& spec_;
    CudaArray<double> references_;
    CudaFunction forward_, backward_;
};

const RegisterOp<ReferenceWeightsSpec, CudaReferenceWeights> registered{"reference_weights"};

}  // namespace

}  // namespace mdcg

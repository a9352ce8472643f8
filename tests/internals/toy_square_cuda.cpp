#include "engine/cuda/cuda_op.hpp"
#include "toy_square.hpp"

namespace mdcg {

namespace {

// One declaration for host and device; an operation of the engine has it in csrc/kernels.
#define SHARED(...) __VA_ARGS__ const char* const SHARED_TEXT = #__VA_ARGS__

SHARED(template <typename T> struct ToySquareArguments {
    const T* x;
    T* out;
    const T* g;
    T* dx;
    long long items;
    T factor;
    int add;
};);

// In front of a file of the engine, which these kernels do not use.
const char* const KERNELS = R"(
extern "C" __global__ void toy_square_forward(ToySquareArguments<Item> a) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.items) a.out[i] = a.factor * a.x[i] * a.x[i];
}
extern "C" __global__ void toy_square_backward(ToySquareArguments<Item> a) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a.items) a.dx[i] = (a.add ? a.dx[i] : Item(0)) + 2 * a.factor * a.x[i] * a.g[i];
}
)";

template <typename T>
class CudaToySquare : public CudaOp<T> {
public:
    explicit CudaToySquare(const ToySquareSpec& spec) : spec_(spec) {}

    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        const std::string text = std::string("typedef ") + (sizeof(T) == 4 ? "float" : "double") +
                                 " Item;\n" + SHARED_TEXT + "\n" + KERNELS;
        forward_ = kernels.fixed("row_sums.cuh", "toy_square_forward", text);
        backward_ = kernels.fixed("row_sums.cuh", "toy_square_backward", text);
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        ToySquareArguments<T> arguments = common(worker, nodes);
        arguments.out = worker.value(spec_.out, nodes.begin);
        forward_.launch(*worker.stream, (arguments.items + 255) / 256, 256, arguments);
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        ToySquareArguments<T> arguments = common(worker, nodes);
        arguments.g = worker.gradient(spec_.out, nodes.begin);
        arguments.dx = worker.gradient(spec_.x, nodes.begin);
        arguments.add = spec_.x.accumulate;
        backward_.launch(*worker.stream, (arguments.items + 255) / 256, 256, arguments);
    }

private:
    ToySquareArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        ToySquareArguments<T> arguments{};
        arguments.x = worker.value(spec_.x, nodes.begin);
        arguments.items = (nodes.end - nodes.begin) * spec_.x.rows.width;
        arguments.factor = static_cast<T>(spec_.factor_of(worker));
        return arguments;
    }
    const ToySquareSpec& spec_;
    CudaFunction forward_, backward_;
};

const RegisterOp<ToySquareSpec, CudaToySquare> toy_square_cuda{"toy_square"};

}  // namespace

}  // namespace mdcg

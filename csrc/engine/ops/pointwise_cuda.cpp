#include "engine/ops/node_layer_cuda.hpp"
#include "engine/ops/pointwise.hpp"

namespace mdcg {

namespace {

// Row times the number of its type.
template <typename T>
class CudaScale : public CudaOp<T> {
public:
    explicit CudaScale(const ScaleSpec& spec)
        : x_(spec.x), out_(spec.out), factor_(spec.fields.read<T>(spec.factor)) {}
    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        run_ = kernels.fixed(NODE_KERNELS, "scale");
        device_factor_.upload(factor_, stream);
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, worker.value(x_, nodes.begin), worker.value(out_, nodes.begin), false);
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, worker.gradient(out_, nodes.begin), worker.gradient(x_, nodes.begin),
            x_.accumulate);
    }

private:
    void run(CudaWorker<T>& worker, Range nodes, const T* x, T* out, bool add) const {
        const std::int64_t count = nodes.end - nodes.begin;
        const ScaleArguments<T> arguments{
            x,     out,           device_factor_.data(), worker.types + nodes.begin,
            count, x_.rows.width, factor_.size() > 1,    add};
        run_.launch(*worker.stream, warp_blocks(count), NODE_THREADS, arguments);
    }
    const Operand &x_, &out_;
    std::vector<T> factor_;
    CudaArray<T> device_factor_;
    CudaFunction run_;
};

// out = x / (density * beta + alpha)
template <typename T>
class CudaNormalize : public CudaOp<T> {
public:
    explicit CudaNormalize(const NormalizeSpec& spec) : spec_(spec), x_(spec.x) {}
    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        forward_ = kernels.fixed(NODE_KERNELS, "normalize_forward");
        backward_ = kernels.fixed(NODE_KERNELS, "normalize_backward");
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        NormalizeArguments<T> arguments = common(worker, nodes);
        arguments.out = worker.value(spec_.out, nodes.begin);
        forward_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        NormalizeArguments<T> arguments = common(worker, nodes);
        arguments.g = worker.gradient(spec_.out, nodes.begin);
        arguments.dx = worker.wanted_gradient(x_, nodes.begin);
        arguments.d_density = worker.wanted_gradient(spec_.density, nodes.begin);
        backward_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }

private:
    NormalizeArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        NormalizeArguments<T> arguments{};
        arguments.x = worker.value(x_, nodes.begin);
        arguments.density = worker.value(spec_.density, nodes.begin);
        arguments.count = nodes.end - nodes.begin;
        arguments.width = x_.rows.width;
        arguments.density_width = spec_.density.rows.width;
        arguments.add_x = x_.accumulate;
        arguments.add_density = spec_.density.accumulate;
        arguments.alpha = spec_.alpha;
        arguments.beta = spec_.beta;
        return arguments;
    }
    const NormalizeSpec& spec_;
    const Operand& x_;
    CudaFunction forward_, backward_;
};

// out = x * y, item by item.
template <typename T>
class CudaItemProduct : public CudaOp<T> {
public:
    explicit CudaItemProduct(const ProductSpec& spec) : x_(spec.x), y_(spec.y), out_(spec.out) {}
    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        forward_ = kernels.fixed(NODE_KERNELS, "product_forward");
        backward_ = kernels.fixed(NODE_KERNELS, "product_backward");
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        ProductArguments<T> arguments = common(worker, nodes);
        arguments.out = worker.value(out_, nodes.begin);
        forward_.launch(*worker.stream, thread_blocks(arguments.items / pack_items<T>()),
                        NODE_THREADS, arguments);
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        ProductArguments<T> arguments = common(worker, nodes);
        arguments.g = worker.gradient(out_, nodes.begin);
        arguments.dx = worker.wanted_gradient(x_, nodes.begin);
        arguments.dy = worker.wanted_gradient(y_, nodes.begin);
        backward_.launch(*worker.stream, thread_blocks(arguments.items / pack_items<T>()),
                         NODE_THREADS, arguments);
    }

private:
    ProductArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        ProductArguments<T> arguments{};
        arguments.x = worker.value(x_, nodes.begin);
        arguments.y = worker.value(y_, nodes.begin);
        arguments.items = (nodes.end - nodes.begin) * x_.rows.width;
        arguments.add_x = x_.accumulate;
        arguments.add_y = y_.accumulate;
        return arguments;
    }
    const Operand &x_, &y_, &out_;
    CudaFunction forward_, backward_;
};

template <typename T>
class CudaSum : public CudaOp<T> {
public:
    explicit CudaSum(const SumSpec& spec) : x_(spec.inputs), out_(spec.out) {}
    void prepare(CudaKernels& kernels, const DeviceStream&) override {
        forward_ = kernels.fixed(NODE_KERNELS, "sum_forward");
        backward_ = kernels.fixed(NODE_KERNELS, "sum_backward");
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, forward_, worker.value(out_, nodes.begin),
            [&](const Operand& x) { return worker.value(x, nodes.begin); });
    }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, backward_, worker.gradient(out_, nodes.begin),
            [&](const Operand& x) { return worker.wanted_gradient(x, nodes.begin); });
    }

private:
    // In launches of SUM_TERMS; terms whose rows are null are left out.
    template <typename RowsOf>
    void run(CudaWorker<T>& worker, Range nodes, const CudaFunction& function, T* sum,
             const RowsOf& rows_of) const {
        SumArguments<T> arguments{};
        arguments.sum = sum;
        arguments.items = (nodes.end - nodes.begin) * out_.rows.width;
        const std::int64_t blocks = thread_blocks(arguments.items / pack_items<T>());
        const auto flush = [&] {
            if (arguments.num_terms == 0) return;
            function.launch(*worker.stream, blocks, NODE_THREADS, arguments);
            arguments.num_terms = 0;
            arguments.add_sum = 1;
        };
        for (const Operand& x : x_) {
            T* const rows = rows_of(x);
            if (rows == nullptr) continue;
            if (arguments.num_terms == SUM_TERMS) flush();
            const auto k = static_cast<std::size_t>(arguments.num_terms++);
            arguments.term[k] = rows;
            arguments.add[k] = x.accumulate;
        }
        flush();
    }
    const std::deque<Operand>& x_;
    const Operand& out_;
    CudaFunction forward_, backward_;
};

const RegisterOp<ScaleSpec, CudaScale> scale{"scale"};
const RegisterOp<NormalizeSpec, CudaNormalize> normalize{"normalize"};
const RegisterOp<ProductSpec, CudaItemProduct> product{"product"};
const RegisterOp<SumSpec, CudaSum> sum{"sum"};

}  // namespace

}  // namespace mdcg

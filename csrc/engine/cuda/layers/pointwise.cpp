// Layers that treat every node by itself: scale, normalize, product, sum.
#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

namespace {

// Arguments are as in text/nodes.cuh.

template <typename T>
struct ScaleArguments {
    const T* x;
    T* out;
    const T* factor;
    const std::int32_t* types;
    std::int64_t count;
    std::int32_t width, typed, add;
};

// Row times the number of its type.
template <typename T>
class CudaScale : public CudaUnaryLayer<T> {
public:
    explicit CudaScale(const LayerSpec& spec)
        : CudaUnaryLayer<T>(spec), factor_(one_or_by_type<T>(spec, "factor")) {
        expect_same_irreps(spec.fields, this->x_, this->out_);
    }
    std::vector<int> kept() const override { return {}; }
    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        run_ = kernels.fixed(node_text(), "scale");
        device_factor_.upload(factor_, stream);
    }
    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, value_rows(worker, this->x_, nodes),
            value_rows(worker, this->out_, nodes), false);
    }
    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, gradient_rows(worker, this->out_, nodes),
            gradient_rows(worker, this->x_, nodes), this->x_.accumulate);
    }

private:
    void run(CudaWorker<T>& worker, Range nodes, const T* x, T* out, bool add) const {
        const std::int64_t count = nodes.end - nodes.begin;
        const ScaleArguments<T> arguments{x,
                                          out,
                                          device_factor_.data(),
                                          worker.types + nodes.begin,
                                          count,
                                          this->x_.rows.width,
                                          factor_.size() > 1,
                                          add};
        run_.launch(*worker.stream, warp_blocks(count), NODE_THREADS, arguments);
    }
    std::vector<T> factor_;
    CudaArray<T> device_factor_;
    CudaFunction run_;
};

template <typename T>
struct NormalizeArguments {
    const T *x, *density;
    T* out;
    const T* g;
    T *dx, *d_density;
    std::int64_t count;
    std::int32_t width, density_width, add_x, add_density;
    double alpha, beta;
};

// out = x / (density * beta + alpha)
template <typename T>
class CudaNormalize : public CudaUnaryLayer<T> {
public:
    explicit CudaNormalize(const LayerSpec& spec)
        : CudaUnaryLayer<T>(spec), fields_(spec, this->x_, this->out_) {}
    std::vector<int> kept() const override { return {this->x_.id, fields_.density.id}; }
    std::vector<Operand*> inputs() override { return {&this->x_, &fields_.density}; }
    void prepare_device(CudaKernels& kernels, const CudaStream&) override {
        forward_ = kernels.fixed(node_text(), "normalize_forward");
        backward_ = kernels.fixed(node_text(), "normalize_backward");
    }
    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        NormalizeArguments<T> arguments = common(worker, nodes);
        arguments.out = value_rows(worker, this->out_, nodes);
        forward_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }
    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        NormalizeArguments<T> arguments = common(worker, nodes);
        arguments.g = gradient_rows(worker, this->out_, nodes);
        arguments.dx = wanted_rows(worker, this->x_, nodes);
        arguments.d_density = wanted_rows(worker, fields_.density, nodes);
        backward_.launch(*worker.stream, warp_blocks(arguments.count), NODE_THREADS, arguments);
    }

private:
    NormalizeArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        NormalizeArguments<T> arguments{};
        arguments.x = value_rows(worker, this->x_, nodes);
        arguments.density = value_rows(worker, fields_.density, nodes);
        arguments.count = nodes.end - nodes.begin;
        arguments.width = this->x_.rows.width;
        arguments.density_width = fields_.density.rows.width;
        arguments.add_x = this->x_.accumulate;
        arguments.add_density = fields_.density.accumulate;
        arguments.alpha = fields_.alpha;
        arguments.beta = fields_.beta;
        return arguments;
    }
    NormalizeFields fields_;
    CudaFunction forward_, backward_;
};

template <typename T>
struct ProductArguments {
    const T *x, *y;
    T* out;
    const T* g;
    T *dx, *dy;
    std::int64_t items;
    std::int32_t add_x, add_y;
};

// out = x * y, item by item.
template <typename T>
class CudaItemProduct : public CudaUnaryLayer<T> {
public:
    explicit CudaItemProduct(const LayerSpec& spec)
        : CudaUnaryLayer<T>(spec), y_(product_factor(spec, this->x_, this->out_)) {}
    std::vector<int> kept() const override { return {this->x_.id, y_.id}; }
    std::vector<Operand*> inputs() override { return {&this->x_, &y_}; }
    void prepare_device(CudaKernels& kernels, const CudaStream&) override {
        forward_ = kernels.fixed(node_text(), "product_forward");
        backward_ = kernels.fixed(node_text(), "product_backward");
    }
    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        ProductArguments<T> arguments = common(worker, nodes);
        arguments.out = value_rows(worker, this->out_, nodes);
        forward_.launch(*worker.stream, thread_blocks(arguments.items / pack_items<T>()),
                        NODE_THREADS, arguments);
    }
    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        ProductArguments<T> arguments = common(worker, nodes);
        arguments.g = gradient_rows(worker, this->out_, nodes);
        arguments.dx = wanted_rows(worker, this->x_, nodes);
        arguments.dy = wanted_rows(worker, y_, nodes);
        backward_.launch(*worker.stream, thread_blocks(arguments.items / pack_items<T>()),
                         NODE_THREADS, arguments);
    }

private:
    ProductArguments<T> common(const CudaWorker<T>& worker, Range nodes) const {
        ProductArguments<T> arguments{};
        arguments.x = value_rows(worker, this->x_, nodes);
        arguments.y = value_rows(worker, y_, nodes);
        arguments.items = (nodes.end - nodes.begin) * this->x_.rows.width;
        arguments.add_x = this->x_.accumulate;
        arguments.add_y = y_.accumulate;
        return arguments;
    }
    Operand y_;
    CudaFunction forward_, backward_;
};

constexpr std::size_t MAX_TERMS = 8;
template <typename T>
struct SumArguments {
    T* sum;
    T* term[MAX_TERMS];
    std::int32_t add[MAX_TERMS];
    std::int64_t items;
    std::int32_t num_terms, add_sum;
};

template <typename T>
class CudaSum : public CudaLayer<T> {
public:
    explicit CudaSum(const LayerSpec& spec)
        : out_(spec.operand("out")), x_(sum_terms(spec, out_)) {}
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override {
        std::vector<Operand*> all;
        for (Operand& x : x_) all.push_back(&x);
        return all;
    }
    std::vector<Operand*> outputs() override { return {&out_}; }
    void prepare_device(CudaKernels& kernels, const CudaStream&) override {
        forward_ = kernels.fixed(node_text(), "sum_forward");
        backward_ = kernels.fixed(node_text(), "sum_backward");
    }
    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, forward_, value_rows(worker, out_, nodes),
            [&](const Operand& x) { return value_rows(worker, x, nodes); });
    }
    void enqueue_backward(CudaWorker<T>& worker, Range nodes) const override {
        run(worker, nodes, backward_, gradient_rows(worker, out_, nodes),
            [&](const Operand& x) { return wanted_rows(worker, x, nodes); });
    }

private:
    // In launches of MAX_TERMS; terms whose rows are null are left out.
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
            if (arguments.num_terms == static_cast<std::int32_t>(MAX_TERMS)) flush();
            const auto k = static_cast<std::size_t>(arguments.num_terms++);
            arguments.term[k] = rows;
            arguments.add[k] = x.accumulate;
        }
        flush();
    }
    Operand out_;
    std::vector<Operand> x_;
    CudaFunction forward_, backward_;
};

template <template <typename> class L, typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<L<T>>(spec);
}
const RegisterCudaLayer scale{"scale", &make<CudaScale, float>, &make<CudaScale, double>};
const RegisterCudaLayer normalize{"normalize", &make<CudaNormalize, float>,
                                  &make<CudaNormalize, double>};
const RegisterCudaLayer product{"product", &make<CudaItemProduct, float>,
                                &make<CudaItemProduct, double>};
const RegisterCudaLayer sum{"sum", &make<CudaSum, float>, &make<CudaSum, double>};

}  // namespace

}  // namespace mdcg

// out[n] = table[type of n]
#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

namespace {

// As in text/nodes.cuh.
template <typename T>
struct TypeRowsArguments {
    T* out;
    const T* table;
    const std::int32_t* types;
    std::int64_t count;
    std::int32_t width;
};

template <typename T>
class CudaTypeRows : public CudaLayer<T> {
public:
    explicit CudaTypeRows(const LayerSpec& spec)
        : out_(spec.operand("out")), table_(type_table<T>(spec, out_)) {}
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        run_ = kernels.fixed(node_text(), "type_rows");
        device_table_.upload(table_, stream);
        table_ = {};
    }
    void enqueue_forward(CudaWorker<T>& worker, Range nodes) const override {
        const std::int64_t count = nodes.end - nodes.begin;
        const TypeRowsArguments<T> arguments{value_rows(worker, out_, nodes), device_table_.data(),
                                             worker.types + nodes.begin, count, out_.rows.width};
        run_.launch(*worker.stream, warp_blocks(count), NODE_THREADS, arguments);
    }
    void enqueue_backward(CudaWorker<T>&, Range) const override {}

private:
    Operand out_;
    std::vector<T> table_;  // [types][width], until it is on the device
    CudaArray<T> device_table_;
    CudaFunction run_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<CudaTypeRows<T>>(spec);
}
const RegisterCudaLayer registered{"type_rows", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg

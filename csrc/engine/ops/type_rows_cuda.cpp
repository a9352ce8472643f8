#include "engine/ops/node_layer_cuda.hpp"
#include "engine/ops/type_rows.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaTypeRows : public CudaOp<T> {
public:
    explicit CudaTypeRows(const TypeRowsSpec& spec) : out_(spec.out), table_(spec.rows<T>()) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        run_ = kernels.fixed(NODE_KERNELS, "type_rows");
        device_table_.upload(table_, stream);
        table_ = {};
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        const std::int64_t count = nodes.end - nodes.begin;
        const TypeRowsArguments<T> arguments{worker.value(out_, nodes.begin), device_table_.data(),
                                             worker.types + nodes.begin, count, out_.rows.width};
        run_.launch(*worker.stream, warp_blocks(count), NODE_THREADS, arguments);
    }
    void backward(CudaWorker<T>&, Range) const override {}

private:
    const Operand& out_;
    std::vector<T> table_;  // [types][width], until it is on the device
    CudaArray<T> device_table_;
    CudaFunction run_;
};

const RegisterOp<TypeRowsSpec, CudaTypeRows> registered{"type_rows"};

}  // namespace

}  // namespace mdcg

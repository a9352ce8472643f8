// The convolution on a device: kernels that read a table of the radial network, or sums by type of
// the sender where nothing else of it matters. Only where no table is possible, from weights of
// edges.
#include <memory>
#include <vector>

#include "engine/cuda/cuda_op.hpp"
#include "engine/ops/conv/conv.hpp"
#include "engine/ops/conv/conv_table_cuda.hpp"
#include "engine/ops/conv/conv_types_cuda.hpp"
#include "engine/ops/conv/conv_weights_cuda.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaConv : public CudaOp<T> {
public:
    explicit CudaConv(const ConvSpec& spec) : spec_(spec) {
        if (!spec.x.present()) x_table_ = spec.x_table<T>();
        if (!spec.radial.has_table()) {
            weights_ = std::make_unique<CudaWeightsConv<T>>(spec);
            return;
        }
        table_ = std::make_unique<CudaTableConv<T>>(spec);
        // sums cost as the hidden units, other kernels as the weights of an edge do
        if (CudaTypeSums<T>::possible(spec) && spec.description.weights.width > spec.hidden_stride)
            types_ = std::make_unique<CudaTypeSums<T>>(spec);
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        kernels_ = &kernels;
        if (!spec_.x.present()) {
            const std::size_t bytes = x_table_.size() * sizeof(T);
            device_table_ = std::make_shared<DeviceMemory>(stream.device());
            device_table_->reserve(bytes);
            device_table_->upload(x_table_.data(), bytes, stream);
        }
        if (weights_) return weights_->prepare(kernels, stream);
        if (types_)
            types_->prepare(kernels, stream);
        else
            prepare_table(kernels);
    }
    void prepare_all(CudaKernels& kernels, const DeviceStream& stream) override {
        prepare(kernels, stream);
        if (table_ && !table_prepared_) prepare_table(kernels);
    }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        if (weights_) return;
        by_type_ = types_ && types_->on_new_list(graph, stream);
        if (by_type_) return;
        if (!table_prepared_) {
            prepare_table(*kernels_);
            kernels_->load();
        }
        table_->on_new_list(graph, stream);
    }
    bool fuses_next_op(const CudaWorker<T>&) const override {
        return by_type_ && types_->composed();
    }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        if (by_type_) return types_->scratch_bytes(graph);
        return table_ ? table_->scratch_bytes(graph) : weights_->scratch_bytes(graph);
    }
    EdgeOrder edge_order() const override {
        if (!table_) return EdgeOrder::any;
        return spec_.radial.symmetric() ? EdgeOrder::paired : EdgeOrder::single;
    }
    bool by_sender_type() const override { return table_ && spec_.radial.depends_on_sender(); }
    bool needs_chunks() const override { return spec_.sender.needs_gradient; }
    int gradient_streams() const override {
        return table_ && !by_type_ ? table_->gradient_streams() : 1;
    }
    void forward(CudaWorker<T>& worker, Range) const override {
        T* const out = worker.value(spec_.out);
        if (by_type_) return types_->forward(worker);
        if (table_) return table_->forward(worker, features(worker), !spec_.x.present(), out);
        weights_->forward(worker, features(worker), !spec_.x.present(), out);
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        const DeviceEdges& graph = *worker.edges;
        const bool writes = table_ && !by_type_ && graph.num_edges > 0;  // every row of dx
        for (const Operand* operand : {&spec_.x, &spec_.sender, &spec_.receiver})
            if (operand->needs_gradient && !operand->accumulate && !writes)
                clear_on_device(
                    worker.gradient(*operand),
                    static_cast<std::size_t>(graph.num_local * operand->rows.width) * sizeof(T),
                    *worker.stream);
        if (graph.num_edges == 0) return;
        if (by_type_) return types_->backward(worker);
        const T* const gradient = worker.gradient(spec_.out);
        const bool by_type = !spec_.x.present();
        if (table_)
            return table_->backward(worker, features(worker), by_type, gradient,
                                    spec_.x.needs_gradient ? worker.gradient(spec_.x) : nullptr,
                                    spec_.x.accumulate);
        weights_->backward(worker, features(worker), by_type, gradient);
    }

private:
    void prepare_table(CudaKernels& kernels) {
        table_->prepare(kernels);
        table_prepared_ = true;
    }
    const T* features(const CudaWorker<T>& worker) const {
        return spec_.x.present() ? worker.value(spec_.x) : device_table_->template as<const T>();
    }

    const ConvSpec& spec_;
    std::unique_ptr<CudaTableConv<T>> table_;      // or
    std::unique_ptr<CudaWeightsConv<T>> weights_;  // null where there is a table
    std::unique_ptr<CudaTypeSums<T>> types_;       // for lists with senders of few types
    bool by_type_ = false;                         // the list is one
    CudaKernels* kernels_ = nullptr;
    bool table_prepared_ = false;
    AlignedArray<T> x_table_;  // by type, where x is absent
    std::shared_ptr<DeviceMemory> device_table_;
};

const RegisterOp<ConvSpec, CudaConv> registered{"conv"};

}  // namespace

}  // namespace mdcg

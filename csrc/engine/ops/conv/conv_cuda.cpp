#include "engine/ops/conv/conv_cuda.hpp"

#include <memory>

#include "engine/ops/conv/type_sums.hpp"

namespace mdcg {

namespace {

// The convolution on a device. If sums by type are possible, they serve most lists, so the other
// kernels are loaded only when a list needs them.
template <typename T>
class CudaConv : public CudaOp<T> {
public:
    explicit CudaConv(const ConvSpec& spec)
        : general_(spec.radial.has_table() ? make_table_conv<T>(spec)
                                           : make_weights_conv<T>(spec)) {
        // the cost of sums grows with the hidden units, the cost of other kernels with the weights
        if (spec.radial.has_table() && sums_by_type<T>(spec) &&
            spec.description.weights.width > spec.hidden_stride)
            by_type_ = make_type_sums<T>(spec);
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        kernels_ = &kernels;
        if (by_type_) return by_type_->prepare(kernels, stream);
        prepare_general(stream);
    }
    void prepare_all(CudaKernels& kernels, const DeviceStream& stream) override {
        prepare(kernels, stream);
        if (!prepared_) prepare_general(stream);
    }
    void on_new_inputs(const DeviceStream& stream) override {
        if (prepared_) general_->on_new_inputs(stream);
        if (by_type_) by_type_->on_new_inputs(stream);
    }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        op_ = by_type_ && graph.pairs.sender_types().size() <= MAX_SUMMED_TYPES ? by_type_.get()
                                                                                : general_.get();
        if (op_ == general_.get() && !prepared_) {
            prepare_general(stream);
            kernels_->load();
        }
        op_->on_new_list(graph, stream);
    }
    EdgeOrder edge_order() const override { return general_->edge_order(); }
    bool by_sender_type() const override { return general_->by_sender_type(); }
    std::int64_t pair_row_bytes() const override { return general_->pair_row_bytes(); }
    bool takes_halves() const override { return !by_type_ && general_->takes_halves(); }

    bool fuses_next_op(const CudaWorker<T>& worker) const override {
        return op_->fuses_next_op(worker);
    }
    int gradient_streams() const override { return op_->gradient_streams(); }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        return op_->scratch_bytes(graph);
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override { op_->forward(worker, nodes); }
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        op_->backward(worker, nodes);
    }

private:
    void prepare_general(const DeviceStream& stream) {
        general_->prepare(*kernels_, stream);
        prepared_ = true;
    }

    std::unique_ptr<CudaOp<T>> general_;  // for all lists
    std::unique_ptr<CudaOp<T>> by_type_;  // for lists with senders of few types, or null
    CudaOp<T>* op_ = nullptr;             // for the current list
    CudaKernels* kernels_ = nullptr;
    bool prepared_ = false;  // general_ is prepared
};

const RegisterOp<ConvSpec, CudaConv> registered{"conv"};

}  // namespace

}  // namespace mdcg

// The convolution on a device: sums by type of the sender where nothing else of it matters; fused
// kernels where the radial network has a table; else, and where an edge is too short for it, chunk
// by chunk: weights of a chunk's edges from their lengths, then generated kernels that read them.
// The backward pass makes them again.
#include <memory>
#include <vector>

#include "engine/cuda/edges/edge_functions.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/cuda/pass_kernel.hpp"
#include "engine/edges/layout.hpp"
#include "engine/ops/conv.hpp"
#include "engine/ops/conv_table_cuda.hpp"
#include "engine/ops/conv_types_cuda.hpp"
#include "engine/ops/cuda.hpp"
#include "engine/ops/sender_sums_cuda.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaConv : public CudaOp<T> {
public:
    explicit CudaConv(const ConvSpec& spec)
        : spec_(spec),
          edges_(spec.radial, spec.description.l_max, spec.normalization, spec.flip_edges),
          forward_(spec, "forward", widths()),
          backward_(spec, "backward", widths()) {
        if (!spec.x.present()) x_table_ = spec.x_table<T>();
        if (CudaTableConv<T>::possible(spec)) fused_ = std::make_unique<CudaTableConv<T>>(spec);
        can_fuse_ = fused_ != nullptr;
        // sums cost as the hidden units, fused kernels as the weights of an edge do
        const bool less = spec.description.weights.width > spec.hidden_stride;
        if (CudaTypeSums<T>::possible(spec) && (less || !fused_))
            types_ = std::make_unique<CudaTypeSums<T>>(spec);
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override;
    void prepare_exact(CudaKernels& kernels, const DeviceStream& stream) override;
    void prepare_all(CudaKernels& kernels, const DeviceStream& stream) override {
        prepare(kernels, stream);
        if (types_) types_->prepare_all(kernels, stream);
        if (!others_) prepare_others(kernels, stream);
        prepare_exact(kernels, stream);
    }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override;
    bool fuses_next_op(const CudaWorker<T>& worker) const override {
        return sums_types(worker) && types_->composed();
    }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        if (by_type_) return types_->scratch_bytes(graph, edges_);
        return can_fuse_ ? fused_->scratch_bytes(graph) : chunk_bytes(graph);
    }
    EdgeOrder edge_order() const override {
        if (fused_ == nullptr) return EdgeOrder::any;
        return spec_.radial.symmetric() ? EdgeOrder::paired : EdgeOrder::single;
    }
    bool by_sender_type() const override {
        return fused_ != nullptr && spec_.radial.depends_on_sender();
    }
    bool needs_chunks() const override { return spec_.sender.needs_gradient; }
    int gradient_streams() const override {
        return can_fuse_ && !by_type_ ? fused_->gradient_streams() : 1;
    }
    void forward(CudaWorker<T>& worker, Range nodes) const override;
    void backward(CudaWorker<T>& worker, Range nodes) const override;

private:
    using Ends = typename CudaEdgeFunctions<T>::Ends;
    // The buffers of one chunk. Gradients of weights and hidden units overwrite
    // their values: each thread reads a value before it writes the gradient, and no other thread
    // reads that value.
    struct Scratch {
        T *harmonics, *hidden, *weights, *d_harmonics, *dx;
        char* work;
        std::size_t bytes;
    };
    Scratch lay_out(char* start, const DeviceEdges& graph, bool backward) const;
    std::vector<std::pair<const char*, std::int64_t>> widths() const {
        const int l = spec_.description.l_max + 1;
        return {{"x", spec_.description.x.width},
                {"y", l * l},
                {"w", spec_.description.weights.width},
                {"out", spec_.description.out.width}};
    }
    std::size_t chunk_bytes(const DeviceEdges& graph) const {
        return lay_out(nullptr, graph, true).bytes;
    }
    bool sums_types(const CudaWorker<T>& worker) const {
        return by_type_ && !(worker.exact && types_->from_table());
    }
    bool fuses(const CudaWorker<T>& worker) const { return can_fuse_ && !worker.exact; }
    // What lists need that cannot be summed by type.
    void prepare_others(CudaKernels& kernels, const DeviceStream& stream);
    void prepare_edges(CudaKernels& kernels, const DeviceStream& stream);
    const T* features(const CudaWorker<T>& worker) const {
        return spec_.x.present() ? worker.value(spec_.x) : device_table_->template as<const T>();
    }
    Ends ends(const CudaWorker<T>& worker, bool gradients) const;
    // Harmonics and weights of a chunk, and arguments that both passes share.
    CudaArguments fill(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends,
                       const Scratch& scratch) const;

    const ConvSpec& spec_;
    std::unique_ptr<CudaTableConv<T>> fused_;
    std::unique_ptr<CudaTypeSums<T>> types_;
    bool by_type_ = false;  // the list can be summed by type
    bool can_fuse_ = false;
    CudaKernels* kernels_ = nullptr;
    // Kernels of the other ways are there.
    bool others_ = false, chunked_ = false, edges_prepared_ = false;
    CudaEdgeFunctions<T> edges_;
    CudaPassKernel forward_, backward_;
    CudaGemm<T> gemm_;
    CudaMatrix<T> last_, last_t_;  // [units][weights], [weights][units]
    CudaSenderSums<T> sums_;
    AlignedArray<T> x_table_;  // by type, where x is absent
    std::shared_ptr<DeviceMemory> device_table_;
};

template <typename T>
void CudaConv<T>::prepare(CudaKernels& kernels, const DeviceStream& stream) {
    if (!spec_.x.present()) {
        const std::size_t bytes = x_table_.size() * sizeof(T);
        device_table_ = std::make_shared<DeviceMemory>(stream.device());
        device_table_->reserve(bytes);
        device_table_->upload(x_table_.data(), bytes, stream);
    }
    kernels_ = &kernels;
    if (types_) {
        types_->prepare(kernels, stream);
        if (!types_->from_table()) prepare_edges(kernels, stream);
    } else {
        prepare_others(kernels, stream);
    }
}

template <typename T>
void CudaConv<T>::on_new_list(const DeviceEdges& graph, const DeviceStream& stream) {
    by_type_ = types_ && types_->on_new_list(graph, stream);
    if (!by_type_ && !others_) {
        prepare_others(*kernels_, stream);
        kernels_->load();
    }
    if (by_type_ && !types_->from_table() && !edges_prepared_) {
        prepare_edges(*kernels_, stream);
        kernels_->load();
    }
    if (!by_type_ && fused_) {
        can_fuse_ = fused_->on_new_list(graph, stream);
        if (!can_fuse_ && !chunked_) {
            prepare_exact(*kernels_, stream);
            kernels_->load();
        }
    }
    if (edges_prepared_) edges_.on_new_list(graph, stream);
}

template <typename T>
void CudaConv<T>::prepare_others(CudaKernels& kernels, const DeviceStream& stream) {
    others_ = true;
    if (fused_ && !fused_->available(kernels)) fused_.reset();
    can_fuse_ = fused_ != nullptr;
    if (fused_)
        fused_->prepare(kernels);
    else
        prepare_exact(kernels, stream);
}

template <typename T>
void CudaConv<T>::prepare_edges(CudaKernels& kernels, const DeviceStream& stream) {
    if (!edges_prepared_) edges_.prepare(kernels, stream);
    edges_prepared_ = true;
}

template <typename T>
void CudaConv<T>::prepare_exact(CudaKernels& kernels, const DeviceStream& stream) {
    if (chunked_) return;
    chunked_ = true;
    prepare_edges(kernels, stream);
    forward_.prepare(kernels);
    backward_.prepare(kernels);
    gemm_ = CudaGemm<T>(kernels);
    sums_ = CudaSenderSums<T>(kernels);
    const int width = static_cast<int>(spec_.description.weights.width);
    const AlignedArray<T> last = spec_.last_layer<T>();
    const T* const w2_t = last.data();
    const std::int64_t stride = spec_.hidden_stride;
    last_ = gemm_.matrix(w2_t, 1, 0, spec_.units, width, 1, stride, stream);
    last_t_ = gemm_.matrix(w2_t, 1, 0, width, spec_.units, stride, 1, stream);
}

template <typename T>
typename CudaConv<T>::Scratch CudaConv<T>::lay_out(char* start, const DeviceEdges& graph,
                                                   bool backward) const {
    Scratch s{};
    const std::int64_t edges = graph.longest_chunk;
    Layout layout(start);
    const std::int64_t harmonics = edges * edges_.harmonics_width();
    const std::int64_t hidden = edges * edges_.hidden_stride();
    const std::int64_t weights = edges * spec_.description.weights.width;
    layout.take(s.harmonics, harmonics);
    layout.take(s.hidden, hidden);
    layout.take(s.weights, weights);
    if (backward) {
        layout.take(s.d_harmonics, harmonics);
        if (spec_.x.present()) layout.take(s.dx, edges * spec_.description.x.width);
        layout.take(s.work, static_cast<std::int64_t>(edges_.work_bytes(edges)));
    }
    s.bytes = layout.bytes();
    return s;
}

template <typename T>
typename CudaConv<T>::Ends CudaConv<T>::ends(const CudaWorker<T>& worker, bool gradients) const {
    Ends ends;
    if (spec_.sender.present()) {
        ends.sender = worker.value(spec_.sender);
        ends.sender_width = spec_.sender.rows.width;
        if (gradients && spec_.sender.needs_gradient) ends.d_sender = worker.gradient(spec_.sender);
    }
    if (spec_.receiver.present()) {
        ends.receiver = worker.value(spec_.receiver);
        ends.receiver_width = spec_.receiver.rows.width;
        if (gradients && spec_.receiver.needs_gradient)
            ends.d_receiver = worker.gradient(spec_.receiver);
    }
    return ends;
}

template <typename T>
CudaArguments CudaConv<T>::fill(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends,
                                const Scratch& s) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t width = spec_.description.weights.width;
    if (chunk.num_edges > 0) {
        edges_.forward(worker, chunk, ends, s.work, s.harmonics, s.hidden);
        gemm_.run(*worker.stream, chunk.num_edges, 1, s.hidden, edges_.hidden_stride(), 0, last_,
                  s.weights, width, 0, false);
    }
    CudaArguments arguments;
    using A = CudaArgument;
    // the chunk's first edge is first in memory
    const std::int64_t first = chunk.first_edge;
    arguments.set(A::order, graph.identity);
    arguments.set(A::row_ptr, graph.row_ptr + chunk.first_receiver);
    arguments.set(A::n_rows, std::int64_t(chunk.num_receivers));
    arguments.set(A::y, s.harmonics - first * edges_.harmonics_width());
    arguments.set(A::w, s.weights - first * width);
    arguments.set(A::sender, spec_.x.present() ? graph.sender : graph.sender_type);
    arguments.set(A::x, features(worker));
    return arguments;
}

template <typename T>
void CudaConv<T>::forward(CudaWorker<T>& worker, Range nodes) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t width = spec_.out.rows.width;
    T* const out = worker.value(spec_.out);
    if (sums_types(worker)) return types_->forward(worker, edges_);
    if (fuses(worker)) return fused_->forward(worker, features(worker), !spec_.x.present(), out);
    if (forward_.zeroes(CudaArgument::out) || graph.num_edges == 0)
        clear_on_device(out, static_cast<std::size_t>(nodes.end * width) * sizeof(T),
                        *worker.stream);
    if (graph.num_edges == 0) return;
    const Scratch s =
        lay_out(worker.device_scratch(lay_out(nullptr, graph, false).bytes), graph, false);
    const Ends ends = this->ends(worker, false);
    for (const CudaChunk& chunk : graph.chunks) {
        CudaArguments arguments = fill(worker, chunk, ends, s);
        arguments.set(CudaArgument::out, out + chunk.first_receiver * width);
        forward_.launch(*worker.stream, arguments);
    }
}

template <typename T>
void CudaConv<T>::backward(CudaWorker<T>& worker, Range) const {
    const DeviceEdges& graph = *worker.edges;
    const DeviceStream& stream = *worker.stream;
    const bool fused = graph.num_edges > 0 && !sums_types(worker) && fuses(worker);
    for (const Operand* operand : {&spec_.x, &spec_.sender, &spec_.receiver})
        if (operand->needs_gradient && !operand->accumulate && !fused)
            clear_on_device(
                worker.gradient(*operand),
                static_cast<std::size_t>(graph.num_local * operand->rows.width) * sizeof(T),
                stream);
    if (graph.num_edges == 0) return;
    if (sums_types(worker)) return types_->backward(worker, edges_);
    if (fused)
        return fused_->backward(
            worker, features(worker), !spec_.x.present(), worker.gradient(spec_.out),
            spec_.x.needs_gradient ? worker.gradient(spec_.x) : nullptr, spec_.x.accumulate);
    const std::int64_t width = spec_.description.weights.width;
    const std::int64_t harmonics = edges_.harmonics_width(), hidden = edges_.hidden_stride();
    const Scratch s = lay_out(worker.device_scratch(chunk_bytes(graph)), graph, true);
    const Ends ends = this->ends(worker, true);
    using A = CudaArgument;
    const std::int64_t x_width = spec_.description.x.width, out_width = spec_.out.rows.width;
    const auto clear_result = [&](A name, T* rows, std::int64_t items) {
        if (backward_.zeroes(name))
            clear_on_device(rows, static_cast<std::size_t>(items) * sizeof(T), stream);
    };
    for (std::size_t range = 0; range < graph.ranges.size(); ++range)
        for (std::size_t c = graph.ranges[range].first_chunk; c < graph.ranges[range].end_chunk;
             ++c) {
            const CudaChunk& chunk = graph.chunks[c];
            const std::int64_t first = chunk.first_edge, edges = chunk.num_edges;
            if (edges == 0) continue;
            CudaArguments arguments = fill(worker, chunk, ends, s);
            clear_result(A::dy, s.d_harmonics, edges * harmonics);
            clear_result(A::dx, s.dx, edges * x_width);
            arguments.set(A::place, graph.identity);
            arguments.set(A::g, worker.gradient(spec_.out) + chunk.first_receiver * out_width);
            arguments.set(A::dx, s.dx != nullptr ? s.dx - first * x_width : nullptr);
            arguments.set(A::dy, s.d_harmonics - first * harmonics);
            arguments.set(A::dw, s.weights - first * width);
            backward_.launch(stream, arguments);
            gemm_.run(stream, edges, 1, s.weights, width, 0, last_t_, s.hidden, hidden, 0, false);
            edges_.backward(worker, chunk, ends, s.work, s.d_harmonics, s.hidden);
            if (spec_.x.needs_gradient)
                sums_.run(stream, graph, range, chunk, s.dx, x_width, worker.gradient(spec_.x));
        }
}

const RegisterOp<ConvSpec, CudaConv> registered{"conv"};

}  // namespace

}  // namespace mdcg

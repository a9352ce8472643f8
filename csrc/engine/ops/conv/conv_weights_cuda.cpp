#include "engine/ops/conv/conv_weights_cuda.hpp"

#include "engine/edges/layout.hpp"

namespace mdcg {

template <typename T>
CudaPassKernel::Widths CudaWeightsConv<T>::widths(const ConvSpec& spec) {
    const int l = spec.description.l_max + 1;
    return {{"x", spec.description.x.width},
            {"y", l * l},
            {"w", spec.description.weights.width},
            {"out", spec.description.out.width}};
}

template <typename T>
CudaWeightsConv<T>::CudaWeightsConv(const ConvSpec& spec)
    : spec_(spec),
      edges_(spec.radial, spec.description.l_max, spec.normalization, spec.flip_edges),
      forward_(spec, "forward", widths(spec)),
      backward_(spec, "backward", widths(spec)) {}

template <typename T>
void CudaWeightsConv<T>::prepare(CudaKernels& kernels, const DeviceStream& stream) {
    edges_.prepare(kernels, stream);
    forward_.prepare(kernels);
    backward_.prepare(kernels);
    gemm_ = CudaGemm<T>(kernels);
    sums_ = CudaSenderSums<T>(kernels);
    const int width = static_cast<int>(spec_.description.weights.width);
    const AlignedArray<T> last = spec_.last_layer<T>();
    const std::int64_t stride = spec_.hidden_stride;
    last_ = gemm_.matrix(last.data(), 1, 0, spec_.units, width, 1, stride, stream);
    last_t_ = gemm_.matrix(last.data(), 1, 0, width, spec_.units, stride, 1, stream);
}

template <typename T>
typename CudaWeightsConv<T>::Scratch CudaWeightsConv<T>::lay_out(char* start,
                                                                 const DeviceEdges& graph) const {
    Scratch s{};
    const std::int64_t edges = graph.longest_chunk;
    Layout layout(start);
    layout.take(s.harmonics, edges * edges_.harmonics_width());
    layout.take(s.hidden, edges * edges_.hidden_stride());
    layout.take(s.weights, edges * spec_.description.weights.width);
    layout.take(s.d_harmonics, edges * edges_.harmonics_width());
    if (spec_.x.present()) layout.take(s.dx, edges * spec_.description.x.width);
    layout.take(s.work, static_cast<std::int64_t>(edges_.work_bytes(edges)));
    s.bytes = layout.bytes();
    return s;
}

template <typename T>
typename CudaWeightsConv<T>::Ends CudaWeightsConv<T>::ends(const CudaWorker<T>& worker,
                                                           bool gradients) const {
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
CudaArguments CudaWeightsConv<T>::fill(CudaWorker<T>& worker, const CudaChunk& chunk,
                                       const Ends& ends, const Scratch& s, bool backward,
                                       const T* x, bool by_type) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t width = spec_.description.weights.width;
    if (chunk.num_edges > 0) {
        edges_.forward(worker, chunk, ends, backward ? s.work : nullptr, s.harmonics, s.hidden);
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
    arguments.set(A::sender, by_type ? graph.sender_type : graph.sender);
    arguments.set(A::x, x);
    return arguments;
}

template <typename T>
void CudaWeightsConv<T>::forward(CudaWorker<T>& worker, const T* x, bool by_type, T* out) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t width = spec_.out.rows.width;
    if (forward_.zeroes(CudaArgument::out) || graph.num_edges == 0)
        clear_on_device(out, static_cast<std::size_t>(graph.num_local * width) * sizeof(T),
                        *worker.stream);
    if (graph.num_edges == 0) return;
    const Scratch s = lay_out(worker.device_scratch(scratch_bytes(graph)), graph);
    const Ends ends = this->ends(worker, false);
    for (const CudaChunk& chunk : graph.chunks) {
        CudaArguments arguments = fill(worker, chunk, ends, s, false, x, by_type);
        arguments.set(CudaArgument::out, out + chunk.first_receiver * width);
        forward_.launch(*worker.stream, arguments);
    }
}

template <typename T>
void CudaWeightsConv<T>::backward(CudaWorker<T>& worker, const T* x, bool by_type,
                                  const T* gradient) const {
    const DeviceEdges& graph = *worker.edges;
    const DeviceStream& stream = *worker.stream;
    const std::int64_t width = spec_.description.weights.width;
    const std::int64_t harmonics = edges_.harmonics_width(), hidden = edges_.hidden_stride();
    const std::int64_t x_width = spec_.description.x.width, out_width = spec_.out.rows.width;
    const Scratch s = lay_out(worker.device_scratch(scratch_bytes(graph)), graph);
    const Ends ends = this->ends(worker, true);
    using A = CudaArgument;
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
            CudaArguments arguments = fill(worker, chunk, ends, s, true, x, by_type);
            clear_result(A::dy, s.d_harmonics, edges * harmonics);
            clear_result(A::dx, s.dx, edges * x_width);
            arguments.set(A::place, graph.identity);
            arguments.set(A::g, gradient + chunk.first_receiver * out_width);
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

template class CudaWeightsConv<float>;
template class CudaWeightsConv<double>;

}  // namespace mdcg

#include "engine/cuda/layers/conv_table.hpp"

namespace mdcg {

template <typename T>
bool CudaTableConv<T>::possible(const LayerSpec& spec, const ConvParts<T>& parts) {
    return (parts.radial.knots > 0 || sizeof(T) == 8) && !parts.sender.present() &&
           !parts.receiver.present() && CudaPassKernel::there(spec.fields, "table_forward") &&
           CudaPassKernel::there(spec.fields, "table_backward");
}

template <typename T>
std::vector<std::pair<const char*, std::int64_t>> CudaTableConv<T>::widths(
    const ConvParts<T>& parts) {
    return {{"x", parts.description.x.width},
            {"w", parts.description.weights.width},
            {"out", parts.description.out.width}};
}

template <typename T>
CudaTableConv<T>::CudaTableConv(const LayerSpec& spec, const ConvParts<T>& parts)
    : x_width_(parts.description.x.width),
      out_width_(parts.description.out.width),
      flip_(parts.flip),
      num_types_(spec.info.num_types()),
      forward_(spec.fields, "table_forward", widths(parts)),
      backward_(spec.fields, "table_backward", widths(parts)) {
    const int degree = forward_.degree();
    if (degree % 2 != (degree > 0) || backward_.degree() != degree ||
        (degree > 0) != (parts.radial.knots == 0))
        spec.fields.fail(
            "its CUDA kernels are not those of its radial network: convert the model "
            "again");
    if (degree == 0)
        table_ = std::make_unique<CudaPowerTable<T>>(parts.radial, parts.description.weights);
    else
        exact_ = std::make_unique<CudaExactTable>(parts.radial, parts.description.weights, degree);
}

template <typename T>
bool CudaTableConv<T>::take_list(const CudaGraph& graph, const CudaStream& stream) {
    if (table_)
        table_->take_list(graph, stream);
    else
        exact_->take_list(graph, stream);
    return !exact_ || exact_->there();
}

template <typename T>
void CudaTableConv<T>::prepare(CudaKernels& kernels) {
    forward_.prepare(kernels);
    backward_.prepare(kernels);
    sums_ = CudaSenderSums<T>(kernels);
}

template <typename T>
std::size_t CudaTableConv<T>::scratch_bytes(const CudaGraph& graph) const {
    if (!backward_.uses(CudaArgument::dx)) return 0;
    return static_cast<std::size_t>(graph.longest_chunk * slot_bytes());
}

template <typename T>
CudaArguments CudaTableConv<T>::arguments(const CudaWorker<T>& worker, const T* x, bool by_type,
                                          std::int64_t first_receiver,
                                          std::int64_t receivers) const {
    const CudaGraph& graph = *worker.edges;
    CudaArguments found;
    using A = CudaArgument;
    found.set(A::n_rows, receivers);
    found.set(A::n_types, std::int64_t(num_types_));
    found.set(A::n_flip, std::int64_t(flip_));
    found.set(A::row_ptr, graph.row_ptr + first_receiver);
    found.set(A::live, graph.by_length);
    found.set(A::num_live, graph.num_live + first_receiver);
    found.set(A::sender, by_type ? graph.sender_type : graph.sender);
    found.set(A::sender_type, graph.sender_type);
    found.set(A::types, graph.types + first_receiver);
    found.set(A::unit, graph.unit);
    found.set(A::length, graph.length);
    if (exact_) found.set(A::n_knots, std::int64_t(exact_->knots()));
    found.set(A::places, exact_ ? exact_->places() : table_->places());
    found.set(A::table, exact_ ? static_cast<const void*>(exact_->data()) : table_->data());
    found.set(A::short_edges, worker.short_edges);
    found.set(A::x, x);
    return found;
}

template <typename T>
void CudaTableConv<T>::forward(CudaWorker<T>& worker, const T* x, bool by_type, T* out) const {
    const std::int64_t receivers = worker.edges->num_local;
    if (forward_.zeroes(CudaArgument::out))
        clear_on_device(out, static_cast<std::size_t>(receivers * out_width_) * sizeof(T),
                        *worker.stream);
    CudaArguments arguments = this->arguments(worker, x, by_type, 0, receivers);
    arguments.set(CudaArgument::out, out);
    forward_.launch(*worker.stream, arguments);
}

template <typename T>
void CudaTableConv<T>::backward(CudaWorker<T>& worker, const T* x, bool by_type, const T* gradient,
                                T* dx) const {
    const CudaGraph& graph = *worker.edges;
    using A = CudaArgument;
    if (!backward_.uses(A::dx)) {
        CudaArguments arguments = this->arguments(worker, x, by_type, 0, graph.num_local);
        arguments.set(A::g, gradient);
        arguments.set(A::de, worker.edge_gradient);
        backward_.launch(*worker.stream, arguments);
        return;
    }
    T* const rows = reinterpret_cast<T*>(worker.device_scratch(scratch_bytes(graph)));
    for (std::size_t c = 0; c < graph.chunks.size(); ++c) {
        const CudaChunk& chunk = graph.chunks[c];
        if (chunk.num_slots == 0) continue;
        if (backward_.zeroes(A::dx))
            clear_on_device(rows, static_cast<std::size_t>(chunk.num_slots * slot_bytes()),
                            *worker.stream);
        CudaArguments arguments =
            this->arguments(worker, x, by_type, chunk.first_receiver, chunk.num_receivers);
        arguments.set(A::g, gradient + chunk.first_receiver * out_width_);
        arguments.set(A::de, worker.edge_gradient);
        arguments.set(A::place, graph.place);
        arguments.set(A::dx, rows);
        backward_.launch(*worker.stream, arguments);
        if (dx != nullptr) sums_.run(worker, c, rows, x_width_, dx);
    }
}

template class CudaTableConv<float>;
template class CudaTableConv<double>;

}  // namespace mdcg

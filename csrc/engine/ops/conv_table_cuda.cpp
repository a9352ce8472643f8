#include "engine/ops/conv_table_cuda.hpp"

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Up to these numbers of receivers and of items in their rows, two blocks share the edges of each
// receiver in the forward pass, since one block for each would leave multiprocessors idle. Both add
// to rows that were cleared before; for more items, that takes as long as it saves. The order of
// sums depends on these numbers, so they are the same on all devices.
constexpr std::int64_t MOST_SHARED_RECEIVERS = 256, MOST_SHARED_ITEMS = std::int64_t(1) << 19;

}  // namespace

template <typename T>
bool CudaTableConv<T>::possible(const ConvSpec& spec) {
    return (spec.radial.knots > 0 || sizeof(T) == 8) && !spec.sender.present() &&
           !spec.receiver.present();
}

template <typename T>
CudaPassKernel::Widths CudaTableConv<T>::widths(const ConvSpec& spec) {
    return {{"x", spec.description.x.width},
            {"w", spec.description.weights.width},
            {"out", spec.description.out.width}};
}

template <typename T>
CudaTableConv<T>::CudaTableConv(const ConvSpec& spec)
    : spec_(spec),
      x_width_(spec.description.x.width),
      out_width_(spec.description.out.width),
      flip_(spec.flip_edges),
      num_types_(spec.num_types),
      forward_(spec, "table_forward", widths(spec)),
      backward_(spec, "table_backward", widths(spec)) {}

template <typename T>
bool CudaTableConv<T>::take_list(const DeviceEdges& graph, const DeviceStream& stream) {
    forward_table_->take_list(graph, stream);
    if (!forward_table_->available()) return false;
    if (backward_table_ != forward_table_) backward_table_->take_list(graph, stream);
    if (graph.chunks.size() > 1 && summed_ == nullptr)
        summed_ = std::make_unique<DeviceEvent>(stream.device());
    return true;
}

template <typename T>
void CudaTableConv<T>::prepare(CudaKernels& kernels) {
    forward_.prepare(kernels);
    backward_.prepare(kernels);
    const RadialSpec& radial = spec_.radial;
    const WeightColumns& weights = spec_.description.weights;
    const bool single = sizeof(T) == 4;
    const auto usable = [](int degree) {
        return degree >= Table::SPLINE_DEGREE && degree % 2 == 1;
    };
    const int wanted = single ? Table::SPLINE_DEGREE : forward_.degree();
    if (!usable(forward_.degree()) || backward_.degree() != wanted)
        kernels.file().package().fail(
            "has kernels for another kind of radial network: make the file again");
    forward_table_ = std::make_shared<Table>(radial, weights, forward_.degree(),
                                             single ? Table::VALUES : Table::EXACT);
    backward_table_ = single ? std::make_shared<Table>(radial, weights) : forward_table_;
    sums_ = CudaSenderSums<T>(kernels);
    multiprocessors_ = kernels.multiprocessors();
}

template <typename T>
std::size_t CudaTableConv<T>::scratch_bytes(const DeviceEdges& graph) const {
    if (!backward_.uses(CudaArgument::dx)) return 0;
    const std::int64_t buffers = graph.chunks.size() == 1 ? 1 : 2;
    return static_cast<std::size_t>(buffers * graph.longest_chunk * edge_bytes());
}

template <typename T>
CudaArguments CudaTableConv<T>::arguments(const CudaWorker<T>& worker, const Table& table,
                                          const T* x, bool by_type, std::int64_t first_receiver,
                                          std::int64_t receivers, std::int64_t parts) const {
    const DeviceEdges& graph = *worker.edges;
    CudaArguments found;
    using A = CudaArgument;
    found.set(A::n_rows, receivers * parts);
    found.set(A::n_parts, parts);
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
    found.set(A::places, table.places());
    found.set(A::table, table.data());
    found.set(A::short_edges, worker.short_edges);
    found.set(A::x, x);
    return found;
}

template <typename T>
void CudaTableConv<T>::forward(CudaWorker<T>& worker, const T* x, bool by_type, T* out) const {
    const std::int64_t receivers = worker.edges->num_local;
    const bool shared = receivers <= MOST_SHARED_RECEIVERS &&
                        receivers * out_width_ <= MOST_SHARED_ITEMS &&
                        forward_.uses(CudaArgument::n_parts);
    if (shared || forward_.zeroes(CudaArgument::out))
        clear_on_device(out, static_cast<std::size_t>(receivers * out_width_) * sizeof(T),
                        *worker.stream);
    CudaArguments arguments =
        this->arguments(worker, *forward_table_, x, by_type, 0, receivers, shared ? 2 : 1);
    arguments.set(CudaArgument::out, out);
    forward_.launch(*worker.lanes, arguments);
}

template <typename T>
void CudaTableConv<T>::backward(CudaWorker<T>& worker, const T* x, bool by_type, const T* gradient,
                                T* dx) const {
    const DeviceEdges& graph = *worker.edges;
    using A = CudaArgument;
    const auto edges_of = [&](const CudaChunk& chunk) {
        CudaArguments found = arguments(worker, *backward_table_, x, by_type, chunk.first_receiver,
                                        chunk.num_receivers,
                                        blocks_per_receiver(chunk.num_receivers, multiprocessors_));
        found.set(A::g, gradient + chunk.first_receiver * out_width_);
        found.set(A::de, worker.edge_gradient);
        found.set(A::n_de, graph.gradient_parts() > 1 ? 3 * graph.num_edges : 0);
        return found;
    };
    const auto launch = [&](const DeviceStream& stream, const CudaArguments& arguments) {
        if (graph.gradient_parts() > 1)
            backward_.launch(*worker.lanes, arguments);
        else
            backward_.launch(stream, arguments);
    };
    if (!backward_.uses(A::dx)) {
        CudaChunk all{};
        all.num_receivers = narrow(graph.num_local);
        return launch(*worker.stream, edges_of(all));
    }
    T* const rows = reinterpret_cast<T*>(worker.device_scratch(scratch_bytes(graph)));
    // Chunks take turns on two lanes, each with a buffer of rows: while blocks of one chunk end,
    // those of the next begin, and sums of rows, which wait for memory, run beside kernels that
    // compute.
    const bool turns = graph.chunks.size() > 1;
    if (turns) worker.lanes->fork(2);
    bool summed = false, odd = true;
    for (std::size_t c = 0; c < graph.chunks.size(); ++c) {
        const CudaChunk& chunk = graph.chunks[c];
        if (chunk.num_edges == 0) continue;
        odd = turns && !odd;
        const DeviceStream& stream = (*worker.lanes)[odd ? 1 : 0];
        T* const buffer = rows + (odd ? graph.longest_chunk * x_width_ : 0);
        if (backward_.zeroes(A::dx))
            clear_on_device(buffer, static_cast<std::size_t>(chunk.num_edges * edge_bytes()),
                            stream);
        CudaArguments arguments = edges_of(chunk);
        arguments.set(A::place, graph.place);
        arguments.set(A::dx, buffer);
        launch(stream, arguments);
        if (dx == nullptr) continue;
        if (summed) summed_->wait(stream);  // chunks are added in their order
        sums_.run(stream, graph, c, buffer, x_width_, dx);
        if (turns) summed_->record(stream);
        summed = turns;
    }
    if (turns) worker.lanes->join(2);
}

template class CudaTableConv<float>;
template class CudaTableConv<double>;

}  // namespace mdcg

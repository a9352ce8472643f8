#include "engine/ops/conv/conv_table_cuda.hpp"

#include <algorithm>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Teams of warps that share the edges of a receiver in kernels of the forward pass that can have
// so many. The order of sums depends on it, so it is the same on all devices.
int groups_per_receiver(std::int64_t receivers) {
    if (receivers >= DeviceEdges::fewest_filling) return 1;
    return receivers > 512 ? 2 : 4;
}

// Blocks of the backward pass that share the pairs of a group: together as many as an H100 holds,
// by estimate, so that a few groups still fill a device. Where there are several kernels, at least
// two, because smaller blocks of the longest kernel leave less of the device idle before blocks of
// others begin. The number is the same on all devices, because the order of sums over the pairs of
// a group depends on it. Gradients of pairs do not: one block computes all of a pair.
std::int64_t blocks_per_group(const DeviceEdges& graph, const ReceiverRange& range,
                              const CudaPassKernel& kernels) {
    constexpr std::int64_t MULTIPROCESSORS = 132, kMaxIntervals = 16;
    const std::int64_t groups = ceil_div(range.num_receivers, graph.group);
    const std::int64_t resident = MULTIPROCESSORS * kernels.resident();
    if (groups == 0 || groups >= resident) return 1;
    return std::clamp<std::int64_t>(resident / groups, std::min(kernels.count(), 2), kMaxIntervals);
}

// Rows that the backward pass keeps of a range: its receivers' own, and those of its pairs.
std::int64_t rows_of(const DeviceEdges& graph, const ReceiverRange& range,
                     const CudaPassKernel& kernels) {
    return range.num_receivers * blocks_per_group(graph, range, kernels) + range.num_rows;
}

std::int64_t most_rows(const DeviceEdges& graph, const CudaPassKernel& kernels) {
    std::int64_t most = 0;
    for (const ReceiverRange& range : graph.ranges)
        most = std::max(most, rows_of(graph, range, kernels));
    return most;
}

}  // namespace

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
void CudaTableConv<T>::on_new_list(const DeviceEdges& graph, const DeviceStream& stream) {
    forward_table_->on_new_list(graph, stream);
    backward_table_->on_new_list(graph, stream);
    while (graph.ranges.size() > summed_.size() && summed_.size() < 2)
        summed_.push_back(std::make_unique<DeviceEvent>(stream.device()));
}

template <typename T>
void CudaTableConv<T>::prepare(CudaKernels& kernels) {
    forward_.prepare(kernels);
    backward_.prepare(kernels);
    const auto table = [&](const CudaPassKernel& kernel, bool slopes) {
        if (!Table::possible(kernel.degree()) || kernel.singles() != TABLE_SINGLES<T>)
            kernels.file().package().fail(
                "has kernels for another kind of radial network: make the file again");
        return std::make_unique<Table>(spec_.name, spec_.radial, spec_.description.weights,
                                       TableContent::kWeights, kernel.degree(),
                                       Table::limit(spec_.radial, slopes));
    };
    forward_table_ = table(forward_, false);
    backward_table_ = table(backward_, true);
    sums_ = CudaSenderSums<T>(kernels);
}

template <typename T>
std::size_t CudaTableConv<T>::scratch_bytes(const DeviceEdges& graph) const {
    if (!spec_.x.present()) return 0;
    // before there is a list: two buffers, each of as many rows as a chunk has edges
    if (graph.chunks.empty())
        return static_cast<std::size_t>(2 * graph.longest_chunk * row_bytes());
    const std::int64_t buffers = graph.ranges.size() == 1 ? 1 : 2;
    return static_cast<std::size_t>(buffers * most_rows(graph, backward_) * row_bytes());
}

template <typename T>
CudaArguments CudaTableConv<T>::arguments(const CudaWorker<T>& worker, const Table& table,
                                          const T* x, bool by_type) const {
    const DeviceEdges& graph = *worker.edges;
    CudaArguments found;
    using A = CudaArgument;
    found.set(A::n_types, std::int64_t(num_types_));
    found.set(A::n_flip, std::int64_t(flip_));
    found.set(A::row_ptr, graph.row_ptr);
    found.set(A::active, graph.by_length);
    found.set(A::num_active, graph.num_active);
    found.set(A::sender, by_type ? graph.sender_type : graph.sender);
    found.set(A::sender_type, graph.sender_type);
    found.set(A::types, graph.types);
    found.set(A::unit, graph.unit);
    found.set(A::length, graph.length);
    found.set(A::places, table.places());
    found.set(A::table, table.data());
    found.set(A::x, x);
    return found;
}

template <typename T>
void CudaTableConv<T>::forward(CudaWorker<T>& worker, const T* x, bool by_type, T* out) const {
    const std::int64_t receivers = worker.edges->num_local;
    if (forward_.zeroes(CudaArgument::out))
        clear_on_device(out, static_cast<std::size_t>(receivers * out_width_) * sizeof(T),
                        *worker.stream);
    CudaArguments arguments = this->arguments(worker, *forward_table_, x, by_type);
    arguments.set(CudaArgument::n_rows, receivers);
    arguments.set(CudaArgument::out, out);
    worker.streams->fork(forward_.streams());
    forward_.launch(*worker.streams, arguments, groups_per_receiver(receivers));
    worker.streams->join(forward_.streams());
}

template <typename T>
CudaArguments CudaTableConv<T>::pair_arguments(const CudaWorker<T>& worker, const T* x,
                                               bool by_type, const T* gradient,
                                               const ReceiverRange& range) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t parts = blocks_per_group(graph, range, backward_);
    CudaArguments found = arguments(worker, *backward_table_, x, by_type);
    using A = CudaArgument;
    found.set(A::n_rows, ceil_div(range.num_receivers, graph.group) * parts);
    found.set(A::n_parts, parts);
    found.set(A::row_ptr, graph.row_ptr + range.first_receiver);
    found.set(A::active, graph.active_pairs);
    found.set(A::num_active, graph.num_pairs + range.first_receiver / graph.group);
    found.set(A::n_group, graph.group);
    found.set(A::n_first, range.first_receiver);
    found.set(A::n_local, graph.num_local);
    found.set(A::receiver, graph.receiver);
    found.set(A::node, graph.sender);
    found.set(A::one_way, graph.one_way);
    found.set(A::place, graph.active_pair_row);
    found.set(A::g, gradient);
    found.set(A::de, worker.edge_gradient);
    found.set(A::n_de, graph.gradient_streams > 1 ? 3 * graph.num_edges : 0);
    return found;
}

template <typename T>
void CudaTableConv<T>::backward(CudaWorker<T>& worker, const T* x, bool by_type, const T* gradient,
                                T* dx, bool add) const {
    const DeviceEdges& graph = *worker.edges;
    using A = CudaArgument;
    KernelStreams& streams = *worker.streams;
    const int num_streams = backward_.streams();
    if (!spec_.x.present()) {
        ReceiverRange all;
        all.num_receivers = graph.num_local;
        streams.fork(num_streams);
        backward_.launch(streams, pair_arguments(worker, x, by_type, gradient, all));
        return streams.join(num_streams);
    }
    const std::int64_t most = most_rows(graph, backward_);
    T* const buffers = reinterpret_cast<T*>(worker.device_scratch(scratch_bytes(graph)));
    const auto clear = [&](T* from, std::int64_t count) {
        clear_on_device(from, static_cast<std::size_t>(count * row_bytes()), *worker.stream);
    };
    // If there are several ranges, their rows are summed on a stream of their own while kernels of
    // the next range compute. Ranges take turns with two buffers; a buffer is used again only after
    // its rows have been summed. Apart from that, streams of kernels do not wait for each other
    // between ranges, unless rows must be cleared first: a short kernel begins the next range while
    // the last blocks of longer ones still run.
    const bool turns = graph.ranges.size() > 1;
    const int sums_stream = turns ? num_streams : 0;
    if (dx != nullptr && !add && turns) {
        clear(dx, graph.num_local);
        add = true;
    }
    streams.fork(num_streams);
    for (std::size_t number = 0; number < graph.ranges.size(); ++number) {
        const ReceiverRange& range = graph.ranges[number];
        const std::int64_t parts = blocks_per_group(graph, range, backward_);
        T* const own = buffers + (number % 2 == 1 ? most * x_width_ : 0);
        // addresses of what row 0 and receiver 0 would have
        T* const pair_rows = own + (range.num_receivers * parts - range.first_row) * x_width_;
        CudaArguments arguments = pair_arguments(worker, x, by_type, gradient, range);
        arguments.set(A::dx, pair_rows);
        arguments.set(A::own, own - range.first_receiver * parts * x_width_);
        for (int stream = 0; stream < num_streams && number > 1; ++stream)
            summed_[number % 2]->wait(streams[stream]);
        if (backward_.zeroes(A::dx)) {
            clear(own, rows_of(graph, range, backward_));
            streams.fork(num_streams);
        }
        backward_.launch(streams, arguments);
        streams.join(num_streams, sums_stream);
        const DeviceStream& stream = streams[sums_stream];
        if (dx != nullptr)
            sums_.run(stream, graph, number, pair_rows, {own, parts}, x_width_, dx, add);
        if (turns) summed_[number % 2]->record(stream);
    }
    if (turns) streams.join(num_streams + 1);
}

template class CudaTableConv<float>;
template class CudaTableConv<double>;

}  // namespace mdcg

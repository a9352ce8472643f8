#include "engine/ops/conv_table_cuda.hpp"

#include <algorithm>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Teams of warps that share the edges of a receiver in kernels of the forward pass that can have
// so many. The order of sums depends on it, so it is the same on all devices.
int teams_per_receiver(std::int64_t receivers) {
    if (receivers >= DeviceEdges::fewest_filling) return 1;
    return receivers > 512 ? 2 : 4;
}

// Blocks of the backward pass that share the pairs of a group: together as many as an H100 holds,
// by estimate, so that a few groups still fill a device. Where there are several kernels, at least
// two, because smaller blocks of the longest kernel leave less of the device idle before blocks of
// others begin. The number is the same on all devices, because the order of sums over the pairs of
// a group depends on it. Gradients of pairs do not: one block computes all of a pair.
std::int64_t blocks_per_group(const DeviceEdges& graph, const CudaSpan& span,
                              const CudaPassKernel& kernels) {
    constexpr std::int64_t MULTIPROCESSORS = 132, MOST = 16;
    const std::int64_t groups = ceil_div(span.num_receivers, graph.group);
    const std::int64_t resident = MULTIPROCESSORS * kernels.resident();
    if (groups == 0 || groups >= resident) return 1;
    return std::clamp<std::int64_t>(resident / groups, std::min(kernels.count(), 2), MOST);
}

// Rows that the backward pass keeps of a span: its receivers' own, and those of its pairs.
std::int64_t rows_of(const DeviceEdges& graph, const CudaSpan& span,
                     const CudaPassKernel& kernels) {
    return span.num_receivers * blocks_per_group(graph, span, kernels) + span.num_rows;
}

std::int64_t most_rows(const DeviceEdges& graph, const CudaPassKernel& kernels) {
    std::int64_t most = 0;
    for (const CudaSpan& span : graph.spans) most = std::max(most, rows_of(graph, span, kernels));
    return most;
}

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
    backward_table_->take_list(graph, stream);
    if (!backward_table_->available()) return false;
    while (graph.spans.size() > summed_.size() && summed_.size() < 2)
        summed_.push_back(std::make_unique<DeviceEvent>(stream.device()));
    return true;
}

template <typename T>
void CudaTableConv<T>::prepare(CudaKernels& kernels) {
    forward_.prepare(kernels);
    backward_.prepare(kernels);
    const RadialSpec& radial = spec_.radial;
    const WeightColumns& weights = spec_.description.weights;
    const bool single = sizeof(T) == 4;
    const auto usable = [](const CudaPassKernel& kernel) {
        return Table::possible(kernel.degree()) && kernel.singles() == TABLE_SINGLES<T>;
    };
    if (!usable(forward_) || !usable(backward_) ||
        (single && backward_.degree() != Table::SPLINE_DEGREE))
        kernels.file().package().fail(
            "has kernels for another kind of radial network: make the file again");
    forward_table_ = std::make_unique<Table>(radial, weights, forward_.degree(), Table::VALUES);
    backward_table_ =
        single ? std::make_unique<Table>(radial, weights)
               : std::make_unique<Table>(radial, weights, backward_.degree(), Table::EXACT);
    sums_ = CudaSenderSums<T>(kernels);
}

template <typename T>
std::size_t CudaTableConv<T>::scratch_bytes(const DeviceEdges& graph) const {
    if (!backward_.uses(CudaArgument::dx)) return 0;
    // before there is a list: two buffers, each of as many rows as a chunk has edges
    if (graph.chunks.empty())
        return static_cast<std::size_t>(2 * graph.longest_chunk * row_bytes());
    const std::int64_t buffers = graph.spans.size() == 1 ? 1 : 2;
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
    found.set(A::live, graph.by_length);
    found.set(A::num_live, graph.num_live);
    found.set(A::sender, by_type ? graph.sender_type : graph.sender);
    found.set(A::sender_type, graph.sender_type);
    found.set(A::types, graph.types);
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
    if (forward_.zeroes(CudaArgument::out))
        clear_on_device(out, static_cast<std::size_t>(receivers * out_width_) * sizeof(T),
                        *worker.stream);
    CudaArguments arguments = this->arguments(worker, *forward_table_, x, by_type);
    arguments.set(CudaArgument::n_rows, receivers);
    arguments.set(CudaArgument::out, out);
    worker.lanes->fork(forward_.lanes());
    forward_.launch(*worker.lanes, arguments, teams_per_receiver(receivers));
    worker.lanes->join(forward_.lanes());
}

template <typename T>
CudaArguments CudaTableConv<T>::pair_arguments(const CudaWorker<T>& worker, const T* x,
                                               bool by_type, const T* gradient,
                                               const CudaSpan& span) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t parts = blocks_per_group(graph, span, backward_);
    CudaArguments found = arguments(worker, *backward_table_, x, by_type);
    using A = CudaArgument;
    found.set(A::n_rows, ceil_div(span.num_receivers, graph.group) * parts);
    found.set(A::n_parts, parts);
    found.set(A::row_ptr, graph.row_ptr + span.first_receiver);
    found.set(A::live, graph.live_pairs);
    found.set(A::num_live, graph.num_pairs + span.first_receiver / graph.group);
    found.set(A::n_group, graph.group);
    found.set(A::n_first, span.first_receiver);
    found.set(A::n_local, graph.num_local);
    found.set(A::receiver, graph.receiver);
    found.set(A::node, graph.sender);
    found.set(A::one_way, graph.one_way);
    found.set(A::place, graph.live_pair_row);
    found.set(A::g, gradient);
    found.set(A::de, worker.edge_gradient);
    found.set(A::n_de, graph.gradient_lanes > 1 ? 3 * graph.num_edges : 0);
    return found;
}

template <typename T>
void CudaTableConv<T>::backward(CudaWorker<T>& worker, const T* x, bool by_type, const T* gradient,
                                T* dx, bool add) const {
    const DeviceEdges& graph = *worker.edges;
    using A = CudaArgument;
    Lanes& lanes = *worker.lanes;
    const int kernel_lanes = backward_.lanes();
    if (!backward_.uses(A::dx)) {
        CudaSpan all;
        all.num_receivers = graph.num_local;
        lanes.fork(kernel_lanes);
        backward_.launch(lanes, pair_arguments(worker, x, by_type, gradient, all));
        return lanes.join(kernel_lanes);
    }
    const std::int64_t most = most_rows(graph, backward_);
    T* const buffers = reinterpret_cast<T*>(worker.device_scratch(scratch_bytes(graph)));
    const auto clear = [&](T* from, std::int64_t count) {
        clear_on_device(from, static_cast<std::size_t>(count * row_bytes()), *worker.stream);
    };
    // If there are several spans, their rows are summed on a lane of their own while kernels of the
    // next span compute. Spans take turns with two buffers; a buffer is used again only after its
    // rows have been summed. Apart from that, lanes of kernels do not wait for each other between
    // spans, unless rows must be cleared first: a short kernel begins the next span while the last
    // blocks of longer ones still run.
    const bool turns = graph.spans.size() > 1;
    const int sums_lane = turns ? kernel_lanes : 0;
    if (dx != nullptr && !add && turns) {
        clear(dx, graph.num_local);
        add = true;
    }
    lanes.fork(kernel_lanes);
    for (std::size_t number = 0; number < graph.spans.size(); ++number) {
        const CudaSpan& span = graph.spans[number];
        const std::int64_t parts = blocks_per_group(graph, span, backward_);
        T* const own = buffers + (number % 2 == 1 ? most * x_width_ : 0);
        // addresses of what row 0 and receiver 0 would have
        T* const pair_rows = own + (span.num_receivers * parts - span.first_row) * x_width_;
        CudaArguments arguments = pair_arguments(worker, x, by_type, gradient, span);
        arguments.set(A::dx, pair_rows);
        arguments.set(A::own, own - span.first_receiver * parts * x_width_);
        for (int lane = 0; lane < kernel_lanes && number > 1; ++lane)
            summed_[number % 2]->wait(lanes[lane]);
        if (backward_.zeroes(A::dx)) {
            clear(own, rows_of(graph, span, backward_));
            lanes.fork(kernel_lanes);
        }
        backward_.launch(lanes, arguments);
        lanes.join(kernel_lanes, sums_lane);
        const DeviceStream& stream = lanes[sums_lane];
        if (dx != nullptr)
            sums_.run(stream, graph, number, pair_rows, {own, parts}, x_width_, dx, add);
        if (turns) summed_[number % 2]->record(stream);
    }
    if (turns) lanes.join(kernel_lanes + 1);
}

template class CudaTableConv<float>;
template class CudaTableConv<double>;

}  // namespace mdcg

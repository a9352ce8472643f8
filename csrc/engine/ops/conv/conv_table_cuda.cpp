// Convolutions whose kernels evaluate the weights of their edges from a table of lengths. The
// backward pass takes each edge together with its reverse (DeviceEdges), and writes rows for the
// senders and the receivers of each group.
#include <algorithm>
#include <vector>

#include "core/integers.hpp"
#include "engine/cuda/edges/polynomial_table.hpp"
#include "engine/ops/conv/conv_cuda.hpp"
#include "engine/ops/conv/sender_sums_cuda.hpp"

namespace mdcg {

namespace {

// Groups of warps that share the edges of a receiver in the forward pass, if the kernel can have so
// many. The order of sums depends on this number, so it is the same on all devices.
int groups_per_receiver(std::int64_t receivers) {
    if (receivers >= DeviceEdges::fewest_filling) return 1;
    return receivers > 512 ? 2 : 4;
}

// Blocks of the backward pass that share the pairs of a group. In total there are about as many
// blocks as an H100 holds, so that few groups still fill a device. With several kernels, at least
// two blocks share a group, because smaller blocks of the longest kernel leave less of the device
// idle before blocks of other kernels begin. The number is the same on all devices, because the
// order of sums over the pairs of a group depends on it. (Gradients of a pair do not depend on it,
// because one block computes the whole pair.)
std::int64_t blocks_per_group(const DeviceEdges& graph, const ReceiverRange& range,
                              const CudaPassKernel& kernels) {
    constexpr std::int64_t MULTIPROCESSORS = 132, MAX_BLOCKS = 16;
    const std::int64_t groups = ceil_div(range.num_receivers, graph.group);
    const std::int64_t resident = MULTIPROCESSORS * kernels.resident();
    if (groups == 0 || groups >= resident) return 1;
    return std::clamp<std::int64_t>(resident / groups, std::min(kernels.count(), 2), MAX_BLOCKS);
}

template <typename T>
class CudaTableConv : public CudaOp<T> {
    using Table = PolynomialTable<T>;
    using A = CudaArgument;

public:
    explicit CudaTableConv(const ConvSpec& spec)
        : spec_(spec),
          x_width_(spec.description.x.width),
          features_(spec),
          forward_(spec, "table_forward", widths(spec)),
          backward_(spec, "table_backward", widths(spec)) {}

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
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
        features_.prepare(stream);
    }
    void on_new_inputs(const DeviceStream& stream) override { features_.prepare(stream); }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        forward_table_->on_new_list(graph, stream);
        backward_table_->on_new_list(graph, stream);
        while (graph.ranges.size() > summed_.size() && summed_.size() < 2)
            summed_.push_back(std::make_unique<DeviceEvent>(stream.device()));
    }
    int gradient_streams() const override { return backward_.streams(); }
    EdgeOrder edge_order() const override {
        return spec_.radial.symmetric() ? EdgeOrder::paired : EdgeOrder::single;
    }
    bool by_sender_type() const override { return spec_.radial.depends_on_sender(); }
    std::int64_t pair_row_bytes() const override { return spec_.x.present() ? bytes(x_width_) : 0; }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        const std::int64_t buffers = graph.ranges.size() == 1 ? 1 : 2;
        return spec_.x.present() ? size(buffers * most_rows(graph) * bytes(x_width_)) : 0;
    }

    bool takes_halves() const override { return spec_.x.present(); }

    // Every row of `out` is written.
    void forward(CudaWorker<T>& worker, Range nodes) const override {
        const DeviceEdges& graph = *worker.edges;
        const std::int64_t first = nodes.begin, receivers = nodes.end - nodes.begin;
        T* const out = worker.value(spec_.out, first);
        if (forward_.zeroes(A::out))
            clear_on_device(out, size(receivers * bytes(spec_.out.rows.width)), *worker.stream);
        CudaArguments arguments = this->arguments(worker, *forward_table_);
        arguments.set(A::n_rows, receivers);
        arguments.set(A::row_ptr, graph.row_ptr + first);
        arguments.set(A::num_active, graph.num_active + first);
        arguments.set(A::types, graph.types + first);  // of receivers
        arguments.set(A::out, out);
        worker.streams->fork(forward_.streams());
        forward_.launch(*worker.streams, arguments, groups_per_receiver(graph.num_local));
        worker.streams->join(forward_.streams());
    }

    // Adds to the gradients of x, or writes them for local nodes unless spec_.x.accumulate.
    void backward(CudaWorker<T>& worker, Range nodes) const override {
        const DeviceEdges& graph = *worker.edges;
        KernelStreams& streams = *worker.streams;
        const int num_streams = backward_.streams();
        T* const dx = worker.wanted_gradient(spec_.x);
        const bool turns = graph.ranges.size() > 1;
        bool add = spec_.x.accumulate;
        if (dx != nullptr && !add && (turns || graph.num_edges == 0)) {
            if (nodes.begin == 0)
                clear_on_device(dx, size(graph.num_local * bytes(x_width_)), *worker.stream);
            add = true;
        }
        if (graph.num_edges == 0) return;
        if (!spec_.x.present()) {
            ReceiverRange all;
            all.num_receivers = narrow(graph.num_local);
            streams.fork(num_streams);
            backward_.launch(streams, pair_arguments(worker, all));
            return streams.join(num_streams);
        }
        const auto range_from = [&](std::int64_t node) {
            std::size_t number = 0;
            while (number < graph.ranges.size() && graph.ranges[number].first_receiver < node)
                ++number;
            return number;
        };
        const std::size_t begin = range_from(nodes.begin), end = range_from(nodes.end);
        if (begin == end) return;
        const std::int64_t most = most_rows(graph);
        T* const buffers = reinterpret_cast<T*>(worker.device_scratch(scratch_bytes(graph)));
        // If there are several ranges, their rows are summed on a stream of their own while kernels
        // of the next range compute. Ranges take turns with two buffers; a buffer is used again
        // only after its rows have been summed. Apart from that, streams of kernels do not wait for
        // each other between ranges, unless rows must be cleared first: a short kernel begins the
        // next range while the last blocks of longer ones still run.
        const int sums_stream = turns ? num_streams : 0;
        streams.fork(num_streams);
        for (std::size_t number = begin; number < end; ++number) {
            const ReceiverRange& range = graph.ranges[number];
            const std::int64_t parts = blocks_per_group(graph, range, backward_);
            T* const own = buffers + (number % 2 == 1 ? most * x_width_ : 0);
            // addresses that row 0 and receiver 0 of the list would have
            T* const pair_rows = own + (range.num_receivers * parts - range.first_row) * x_width_;
            CudaArguments arguments = pair_arguments(worker, range);
            arguments.set(A::dx, pair_rows);
            arguments.set(A::own, own - range.first_receiver * parts * x_width_);
            for (int stream = 0; stream < num_streams && number > begin + 1; ++stream)
                summed_[number % 2]->wait(streams[stream]);
            if (backward_.zeroes(A::dx)) {
                clear_on_device(own, size(rows_of(graph, range) * bytes(x_width_)), *worker.stream);
                streams.fork(num_streams);
            }
            backward_.launch(streams, arguments);
            streams.join(num_streams, sums_stream);
            const DeviceStream& stream = streams[sums_stream];
            if (dx != nullptr)
                sums_.add_pairs(stream, graph, number, pair_rows, {own, parts}, x_width_, dx, add);
            if (turns) summed_[number % 2]->record(stream);
        }
        if (turns) streams.join(num_streams + 1);
    }

private:
    static std::int64_t bytes(std::int64_t items) {
        return items * static_cast<std::int64_t>(sizeof(T));
    }
    static CudaPassKernel::Widths widths(const ConvSpec& spec) {
        return {{"x", spec.description.x.width},
                {"w", spec.description.weights.width},
                {"out", spec.description.out.width}};
    }
    // Rows that the backward pass keeps of a range: its receivers' own, and those of its pairs.
    std::int64_t rows_of(const DeviceEdges& graph, const ReceiverRange& range) const {
        return range.num_receivers * blocks_per_group(graph, range, backward_) + range.num_rows;
    }
    std::int64_t most_rows(const DeviceEdges& graph) const {
        std::int64_t most = 0;
        for (const ReceiverRange& range : graph.ranges)
            most = std::max(most, rows_of(graph, range));
        return most;
    }

    CudaArguments arguments(const CudaWorker<T>& worker, const Table& table) const {
        const DeviceEdges& graph = *worker.edges;
        CudaArguments found;
        features_.set(found, worker);
        found.set(A::n_types, std::int64_t(spec_.num_types));
        found.set(A::n_flip, std::int64_t(spec_.flip_edges));
        found.set(A::row_ptr, graph.row_ptr);
        found.set(A::active, graph.by_length);
        found.set(A::num_active, graph.num_active);
        found.set(A::sender_type, graph.sender_type);
        found.set(A::types, graph.types);
        found.set(A::unit, graph.unit);
        found.set(A::length, graph.length);
        found.set(A::places, table.places());
        found.set(A::table, table.data());
        return found;
    }

    CudaArguments pair_arguments(const CudaWorker<T>& worker, const ReceiverRange& range) const {
        const DeviceEdges& graph = *worker.edges;
        const std::int64_t parts = blocks_per_group(graph, range, backward_);
        CudaArguments found = arguments(worker, *backward_table_);
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
        found.set(A::g, worker.gradient(spec_.out));
        found.set(A::de, worker.edge_gradient);
        found.set(A::n_de, graph.gradient_streams > 1 ? 3 * graph.num_edges : 0);
        return found;
    }

    const ConvSpec& spec_;
    std::int64_t x_width_;
    ConvFeatures<T> features_;
    CudaPassKernel forward_, backward_;
    // The forward table needs no derivatives. It has fewer, longer intervals and polynomials of a
    // higher degree: edges are sorted by length, so the next one is often in the same interval.
    std::unique_ptr<Table> forward_table_, backward_table_;
    CudaSenderSums<T> sums_;
    std::vector<std::unique_ptr<DeviceEvent>>
        summed_;  // recorded when the rows of a buffer are summed
};

}  // namespace

template <typename T>
std::unique_ptr<CudaOp<T>> make_table_conv(const ConvSpec& spec) {
    return std::make_unique<CudaTableConv<T>>(spec);
}
template std::unique_ptr<CudaOp<float>> make_table_conv(const ConvSpec&);
template std::unique_ptr<CudaOp<double>> make_table_conv(const ConvSpec&);

}  // namespace mdcg

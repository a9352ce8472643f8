#include <vector>

#include "engine/cuda/edges/edge_functions.hpp"
#include "engine/edges/layout.hpp"
#include "engine/ops/cuda.hpp"
#include "engine/ops/edge_sum.hpp"
#include "kernels/edge_sum.hpp"

namespace mdcg {

namespace {

constexpr int THREADS = 128;

template <typename T>
class CudaEdgeSum : public CudaOp<T> {
public:
    explicit CudaEdgeSum(const EdgeSumSpec& spec)
        : spec_(spec),
          out_(spec.out),
          functions_(spec.inner, -1, "", spec.flip_edges),
          numbers_(spec.radial.last()) {
        numbers_.insert(numbers_.end(), spec.radial.r_max.begin(), spec.radial.r_max.end());
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        functions_.prepare(kernels, stream);
        values_ = kernels.fixed("edge_sum.cuh", "edge_values");
        sums_ = kernels.fixed("edge_sum.cuh", "receiver_sums");
        gradients_ = kernels.fixed("edge_sum.cuh", "edge_gradients");
        on_device_.upload(numbers_, stream);
    }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        return lay_out(nullptr, graph.longest_chunk).bytes;
    }

    void forward(CudaWorker<T>& worker, Range) const override {
        const Scratch s = scratch(worker);
        for (const CudaChunk& chunk : worker.edges->chunks) {
            functions_.forward(worker, chunk, {}, nullptr, nullptr, s.hidden);
            const EdgeSumArguments<T> a = arguments(worker, chunk, s);
            launch(values_, worker, chunk.num_edges, a);
            launch(sums_, worker, chunk.num_receivers, a);
        }
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        const Scratch s = scratch(worker);
        for (const CudaChunk& chunk : worker.edges->chunks) {
            functions_.forward(worker, chunk, {}, s.work, nullptr, s.hidden);
            launch(gradients_, worker, chunk.num_edges, arguments(worker, chunk, s));
            functions_.backward(worker, chunk, {}, s.work, nullptr, s.d_hidden);
        }
    }

private:
    struct Scratch {
        T *hidden, *d_hidden;
        double* values;
        char* work;
        std::size_t bytes;
    };
    Scratch lay_out(char* start, std::int64_t edges) const {
        Scratch s;
        Layout layout(start);
        layout.take(s.hidden, edges * functions_.hidden_stride());
        layout.take(s.d_hidden, edges * functions_.hidden_stride());
        layout.take(s.values, edges * out_.rows.blocks[0].mul);
        layout.take(s.work, static_cast<std::int64_t>(functions_.work_bytes(edges)));
        s.bytes = layout.bytes();
        return s;
    }
    Scratch scratch(CudaWorker<T>& worker) const {
        const std::int64_t edges = worker.edges->longest_chunk;
        return lay_out(worker.device_scratch(lay_out(nullptr, edges).bytes), edges);
    }
    // A warp for each item.
    static void launch(const CudaFunction& function, const CudaWorker<T>& worker,
                       std::int64_t items, const EdgeSumArguments<T>& a) {
        function.launch(*worker.stream, (32 * items + THREADS - 1) / THREADS, THREADS, a);
    }
    EdgeSumArguments<T> arguments(const CudaWorker<T>& worker, const CudaChunk& chunk,
                                  const Scratch& s) const {
        const DeviceEdges& graph = *worker.edges;
        const RadialSpec& spec = spec_.radial;
        EdgeSumArguments<T> a{};
        a.first = chunk.first_edge;
        a.num_edges = chunk.num_edges;
        a.first_receiver = chunk.first_receiver;
        a.num_receivers = chunk.num_receivers;
        a.num_types = spec.num_types;
        a.typed = spec.r_max.size() > 1;
        a.tanh_square = spec_.tanh_square;
        a.row_ptr = graph.row_ptr;
        a.receiver = graph.receiver;
        a.sender_type = graph.sender_type;
        a.receiver_type = graph.receiver_type;
        a.length = graph.length;
        a.unit = static_cast<const T*>(graph.unit);
        a.power = spec.functions.cutoff_on_basis ? 0.0 : spec.functions.cutoff_power;
        a.sign = spec_.flip_edges ? -1.0 : 1.0;
        a.hidden = s.hidden;
        a.stride = functions_.hidden_stride();
        a.units = spec.units();
        a.outputs = out_.rows.blocks[0].mul;
        a.width = out_.rows.width;
        a.last = on_device_.data();
        a.r_max = a.last + a.units * a.outputs;
        a.values = s.values;
        a.out = worker.value(out_);
        a.d_out = worker.with_gradient ? worker.gradient(out_) : nullptr;
        a.d_hidden = s.d_hidden;
        a.edge_gradient = worker.edge_gradient;
        return a;
    }

    const EdgeSumSpec& spec_;
    const Operand& out_;
    CudaEdgeFunctions<T> functions_;
    std::vector<double> numbers_;  // last layer [units][outputs], r_max
    CudaArray<double> on_device_;
    CudaFunction values_, sums_, gradients_;
};

const RegisterOp<EdgeSumSpec, CudaEdgeSum> registered{"edge_sum"};

}  // namespace

}  // namespace mdcg

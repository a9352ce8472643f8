// Sums of a radial function over the neighbours, as csrc/engine/layers/edge_sum.cpp has them.
#include <vector>

#include "engine/cuda/edges/edge_functions.hpp"
#include "engine/edges/layout.hpp"
#include "engine/registry.hpp"

namespace mdcg {

namespace {

const char* const TEXT =
#include "engine/cuda/text/cutoff.cuh"
#include "engine/cuda/text/edge_sum.cuh"
    ;

constexpr int THREADS = 128;

// As text/edge_sum.cuh has it.
template <typename T>
struct EdgeSumArguments {
    std::int64_t first, num_slots, first_receiver, num_receivers, num_types, typed, tanh_square;
    const std::int32_t *row_ptr, *receiver, *sender_type, *receiver_type;
    const double* length;
    const T* unit;
    const double* r_max;
    double power, sign;
    const T* hidden;
    const double* last;
    std::int64_t stride, units, outputs, width;
    double* values;
    T* out;
    const T* d_out;
    T *d_hidden, *edge_gradient;
};

template <typename T>
class CudaEdgeSum : public CudaLayer<T> {
public:
    explicit CudaEdgeSum(const LayerSpec& spec)
        : out_(spec.operand("out")),
          spec_(read(spec, out_)),
          functions_(inner(spec_), -1, "", spec.info.flip_edges) {
        const std::string activation = spec.fields.text("activation", "none");
        if (activation != "none" && activation != "tanh_square")
            spec.fields.fail("activation", "'" + activation + "'", "tanh_square or none");
        tanh_square_ = activation == "tanh_square";
        flip_ = spec.info.flip_edges;
        numbers_ = spec_.last();
        numbers_.insert(numbers_.end(), spec_.r_max.begin(), spec_.r_max.end());
    }

    Walk forward_walk() const override { return Walk::receivers; }
    Walk backward_walk() const override { return Walk::receivers; }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

    void prepare_device(CudaKernels& kernels, const CudaStream& stream) override {
        functions_.prepare(kernels, stream);
        values_ = kernels.fixed(TEXT, "slot_values");
        sums_ = kernels.fixed(TEXT, "receiver_sums");
        gradients_ = kernels.fixed(TEXT, "slot_gradients");
        memory_ = std::make_unique<CudaMemory>(kernels.device());
        memory_->reserve(numbers_.size() * sizeof(double));
        memory_->upload(numbers_.data(), numbers_.size() * sizeof(double), stream);
        stream.synchronize();
    }
    std::size_t scratch_bytes(const CudaGraph& graph) const override {
        return lay_out(nullptr, graph.longest_chunk).bytes;
    }

    void enqueue_forward(CudaWorker<T>& worker, Range) const override {
        const Scratch s = scratch(worker);
        for (const CudaChunk& chunk : worker.edges->chunks) {
            functions_.forward(worker, chunk, {}, nullptr, nullptr, s.hidden);
            const EdgeSumArguments<T> a = arguments(worker, chunk, s);
            launch(values_, worker, chunk.num_slots, a);
            launch(sums_, worker, chunk.num_receivers, a);
        }
    }
    void enqueue_backward(CudaWorker<T>& worker, Range) const override {
        const Scratch s = scratch(worker);
        for (const CudaChunk& chunk : worker.edges->chunks) {
            functions_.forward(worker, chunk, {}, s.work, nullptr, s.hidden);
            launch(gradients_, worker, chunk.num_slots, arguments(worker, chunk, s));
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
    static RadialSpec read(const LayerSpec& spec, const Operand& out) {
        if (out.rows.blocks.size() != 1 || out.rows.blocks[0].l != 0)
            spec.fields.fail("out", "a value of other irreps", "scalars, one per output");
        const Fields radial = spec.fields.object("radial");
        RadialSpec found = RadialSpec::read(radial, spec.info, out.rows.blocks[0].mul);
        if (!found.sender_value.empty() || !found.receiver_value.empty())
            radial.fail("edge_sum sees features of nodes, expected tables by type");
        return found;
    }
    // Without the cutoff outside of the activation, and exact.
    static RadialSpec inner(RadialSpec spec) {
        spec.knots = 0;
        if (!spec.functions.cutoff_on_basis) spec.functions.cutoff_power = 0;
        spec.functions.cutoff_on_basis = true;
        return spec;
    }
    Scratch lay_out(char* start, std::int64_t slots) const {
        Scratch s;
        Layout layout(start);
        layout.take(s.hidden, slots * functions_.hidden_stride());
        layout.take(s.d_hidden, slots * functions_.hidden_stride());
        layout.take(s.values, slots * out_.rows.blocks[0].mul);
        layout.take(s.work, static_cast<std::int64_t>(functions_.work_bytes(slots)));
        s.bytes = layout.bytes();
        return s;
    }
    Scratch scratch(CudaWorker<T>& worker) const {
        const std::int64_t slots = worker.edges->longest_chunk;
        return lay_out(worker.device_scratch(lay_out(nullptr, slots).bytes), slots);
    }
    // A warp for each item.
    static void launch(const CudaFunction& function, const CudaWorker<T>& worker,
                       std::int64_t items, const EdgeSumArguments<T>& a) {
        function.launch(*worker.stream, (32 * items + THREADS - 1) / THREADS, THREADS, a);
    }
    EdgeSumArguments<T> arguments(const CudaWorker<T>& worker, const CudaChunk& chunk,
                                  const Scratch& s) const {
        const CudaGraph& graph = *worker.edges;
        const RadialSpec& spec = spec_;
        EdgeSumArguments<T> a{};
        a.first = chunk.first_slot;
        a.num_slots = chunk.num_slots;
        a.first_receiver = chunk.first_receiver;
        a.num_receivers = chunk.num_receivers;
        a.num_types = spec.num_types;
        a.typed = spec.r_max.size() > 1;
        a.tanh_square = tanh_square_;
        a.row_ptr = graph.row_ptr;
        a.receiver = graph.receiver;
        a.sender_type = graph.sender_type;
        a.receiver_type = graph.receiver_type;
        a.length = graph.length;
        a.unit = static_cast<const T*>(graph.unit);
        a.power = spec.functions.cutoff_on_basis ? 0.0 : spec.functions.cutoff_power;
        a.sign = flip_ ? -1.0 : 1.0;
        a.hidden = s.hidden;
        a.stride = functions_.hidden_stride();
        a.units = spec.units();
        a.outputs = out_.rows.blocks[0].mul;
        a.width = out_.rows.width;
        a.last = memory_->template as<const double>();
        a.r_max = a.last + a.units * a.outputs;
        a.values = s.values;
        a.out = worker.value(out_);
        a.d_out = worker.with_gradient ? worker.gradient(out_) : nullptr;
        a.d_hidden = s.d_hidden;
        a.edge_gradient = worker.edge_gradient;
        return a;
    }

    Operand out_;
    RadialSpec spec_;
    CudaEdgeFunctions<T> functions_;
    bool tanh_square_, flip_;
    std::vector<double> numbers_;  // last layer [units][outputs], r_max
    std::unique_ptr<CudaMemory> memory_;
    CudaFunction values_, sums_, gradients_;
};

template <typename T>
std::unique_ptr<Layer<T>> make_edge_sum(const LayerSpec& spec) {
    return std::make_unique<CudaEdgeSum<T>>(spec);
}

const RegisterCudaLayer registered{"edge_sum", &make_edge_sum<float>, &make_edge_sum<double>};

}  // namespace

}  // namespace mdcg

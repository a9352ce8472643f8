// Convolutions that no table can serve. Hidden units, weights and gradients of edges take much
// memory, so slices of receivers are computed one after the other. The backward pass computes the
// weights again.
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/integers.hpp"
#include "engine/cuda/edges/radial_text.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/layout.hpp"
#include "engine/error.hpp"
#include "engine/ops/conv/conv_cuda.hpp"
#include "engine/ops/conv/sender_sums_cuda.hpp"
#include "kernels/harmonics.hpp"
#include "kernels/radial.hpp"

namespace mdcg {

namespace {

constexpr int ROW_SUM_THREADS = 128;
constexpr int STAGED_BYTES = 44 * 1024;  // shared memory for rows of harmonics
// Scratch memory for the edges of a slice. A slice must have enough receivers to fill all
// multiprocessors with blocks.
template <typename T>
constexpr std::size_t SLICE_BYTES = std::size_t(1) << (sizeof(T) == 4 ? 29 : 30);
constexpr std::int64_t SLICE_STEP = 8192;  // edges
constexpr int GFX_SHARED_BYTES = 65536;

template <typename T>
class CudaWeightsConv : public CudaOp<T> {
    using A = CudaArgument;

public:
    explicit CudaWeightsConv(const ConvSpec& spec)
        : spec_(spec),
          text_(spec.radial),
          harmonics_width_((spec.description.l_max + 1) * (spec.description.l_max + 1)),
          features_(spec),
          forward_(spec, "forward", widths()),
          backward_(spec, "backward", widths()) {
        const std::int64_t row = (harmonics_width_ | 1) * static_cast<std::int64_t>(sizeof(T));
        while (threads_ > 32 && threads_ * row > STAGED_BYTES) threads_ /= 2;
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const std::string defines = "#define L_MAX " + std::to_string(spec_.description.l_max) +
                                    "\n#define THREADS " + std::to_string(threads_) + "\n";
        harmonics_ = kernels.fixed("harmonics.cuh", "harmonics", defines);
        to_vectors_ = kernels.fixed("harmonics.cuh", "to_vectors", defines);
        if (is_gfx(kernels.compute_capability()) && text_.block_bytes > GFX_SHARED_BYTES)
            throw EngineError(ErrorKind::unsupported,
                              "a radial network is too wide for AMD's devices, whose blocks have "
                              "64 KiB of shared memory: use device cpu");
        const auto radial = [&](const char* name, int shared_bytes) {
            return kernels.fixed("radial.cuh", name, text_.defines, shared_bytes);
        };
        radial_forward_ = radial("radial_forward", text_.shared_bytes);
        radial_backward_ = radial("radial_backward", text_.shared_bytes);
        sum_rows_ = radial("sum_rows", 0);
        network_.upload(text_.weights, stream);
        numbers_.upload(text_.numbers, stream);
        factors_.upload(harmonic_factors<T>(spec_.description.l_max, spec_.normalization), stream);
        forward_.prepare(kernels);
        backward_.prepare(kernels);
        features_.prepare(stream);
        sums_ = CudaSenderSums<T>(kernels);
        gemm_ = CudaGemm<T>(kernels);
        const int width = static_cast<int>(weights_width());
        const AlignedArray<T> last = spec_.last_layer<T>();
        const std::int64_t stride = spec_.hidden_stride;
        last_ = gemm_.matrix(last.data(), 1, 0, spec_.units, width, 1, stride, stream);
        last_t_ = gemm_.matrix(last.data(), 1, 0, width, spec_.units, stride, 1, stream);
    }

    void on_new_inputs(const DeviceStream& stream) override { features_.prepare(stream); }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        const auto step = static_cast<std::int64_t>(lay_out(nullptr, SLICE_STEP).bytes);
        const std::int64_t steps =
            std::max<std::int64_t>(static_cast<std::int64_t>(SLICE_BYTES<T>) / step, 1);
        slices_ = graph.divided(std::min(steps * SLICE_STEP, DeviceEdges::most_range_edges));
        std::int64_t longest = 0;
        for (const ReceiverRange& slice : slices_)
            longest = std::max<std::int64_t>(longest, slice.num_edges);
        if (longest > longest_) {
            std::vector<std::int32_t> numbers(size(longest));
            std::iota(numbers.begin(), numbers.end(), 0);
            rows_.upload(numbers, stream);
        }
        longest_ = longest;
    }
    std::size_t scratch_bytes(const DeviceEdges&) const override {
        return lay_out(nullptr, longest_).bytes;
    }

    void forward(CudaWorker<T>& worker, Range) const override {
        const DeviceEdges& graph = *worker.edges;
        const std::int64_t width = spec_.out.rows.width;
        T* const out = worker.value(spec_.out);
        if (forward_.zeroes(A::out) || graph.num_edges == 0)
            clear(worker, out, graph.num_local * width);
        if (graph.num_edges == 0) return;
        for (const ReceiverRange& slice : slices_) {
            const Scratch s = scratch(worker);
            CudaArguments arguments = make_weights(worker, slice, s, nullptr);
            arguments.set(A::out, out + slice.first_receiver * width);
            forward_.launch(*worker.stream, arguments);
        }
    }

    void backward(CudaWorker<T>& worker, Range) const override {
        const DeviceEdges& graph = *worker.edges;
        const DeviceStream& stream = *worker.stream;
        const std::int64_t x_width = spec_.description.x.width;
        for (const Operand* operand : {&spec_.x, &spec_.sender, &spec_.receiver})
            if (operand->needs_gradient && !operand->accumulate)
                clear(worker, worker.gradient(*operand), graph.num_local * operand->rows.width);
        for (const ReceiverRange& slice : slices_) {
            if (slice.num_edges == 0) continue;
            const Scratch s = scratch(worker);
            CudaArguments arguments = make_weights(worker, slice, s, s.kept);
            if (backward_.zeroes(A::dy))
                clear(worker, s.d_harmonics, slice.num_edges * harmonics_width_);
            if (backward_.zeroes(A::dx)) clear(worker, s.dx, slice.num_edges * x_width);
            arguments.set(A::place, rows_.data() - slice.first_edge);
            arguments.set(A::g, worker.gradient(spec_.out, slice.first_receiver));
            arguments.set(A::dx, s.dx);
            arguments.set(A::dy, s.d_harmonics);
            arguments.set(A::dw, s.weights);
            backward_.launch(stream, arguments);
            gemm_.run(stream, slice.num_edges, 1, s.weights, weights_width(), 0, last_t_, s.hidden,
                      text_.hidden_stride, 0, false);
            add_gradients(worker, slice, s);
            if (spec_.x.needs_gradient)
                sums_.add_edges(stream, graph, slice, s.dx, x_width, worker.gradient(spec_.x));
        }
    }

private:
    // Buffers of the edges of a slice. Gradients of weights and hidden units overwrite their
    // values: each thread reads a value before it writes the gradient, and no other thread reads
    // that value.
    struct Scratch {
        T* harmonics;      // [edges][harmonics_width_]
        T* hidden;         // [edges][hidden_stride]
        T* weights;        // [edges][weights_width()]
        T* d_harmonics;    // [edges][harmonics_width_]
        T* dx;             // [edges][width of x], or null
        T* kept;           // [tiles of edges][kept_items] what the backward pass of hidden reads
        T* d_first;        // [edges][first_stride], or null: gradients of the first layer
        double* d_length;  // [edges]
        std::size_t bytes;
    };
    Scratch lay_out(char* start, std::int64_t edges) const {
        Scratch s{};
        Layout layout(start);
        layout.take(s.harmonics, edges * harmonics_width_);
        layout.take(s.hidden, edges * text_.hidden_stride);
        layout.take(s.weights, edges * weights_width());
        layout.take(s.d_harmonics, edges * harmonics_width_);
        if (spec_.x.present()) layout.take(s.dx, edges * spec_.description.x.width);
        layout.take(s.kept, ceil_div(edges, text_.edges) * text_.kept_items);
        if (spec_.sender.needs_gradient || spec_.receiver.needs_gradient)
            layout.take(s.d_first, edges * text_.first_stride);
        layout.take(s.d_length, edges);
        s.bytes = layout.bytes();
        return s;
    }
    Scratch scratch(const CudaWorker<T>& worker) const {
        return lay_out(worker.device_scratch(lay_out(nullptr, longest_).bytes), longest_);
    }
    std::int64_t weights_width() const { return spec_.description.weights.width; }
    CudaPassKernel::Widths widths() const {
        return {{"x", spec_.description.x.width},
                {"y", harmonics_width_},
                {"w", weights_width()},
                {"out", spec_.description.out.width}};
    }
    static void clear(const CudaWorker<T>& worker, T* rows, std::int64_t items) {
        clear_on_device(rows, size(items) * sizeof(T), *worker.stream);
    }

    HarmonicsArguments<T> harmonics_arguments(const CudaWorker<T>& worker,
                                              const ReceiverRange& slice) const {
        HarmonicsArguments<T> a{};
        a.first = slice.first_edge;
        a.num_edges = slice.num_edges;
        a.unit = static_cast<const T*>(worker.edges->unit);
        a.length = worker.edges->length;
        a.factors = factors_.data();
        a.edge_gradient = worker.edge_gradient;
        a.sign = spec_.flip_edges ? -1.0 : 1.0;
        return a;
    }
    RadialArguments<T> radial_arguments(const CudaWorker<T>& worker,
                                        const ReceiverRange& slice) const {
        const DeviceEdges& graph = *worker.edges;
        const BasisFunctions& functions = spec_.radial.functions;
        RadialArguments<T> a{};
        a.first = slice.first_edge;
        a.num_edges = slice.num_edges;
        a.num_types = spec_.num_types;
        a.sender = graph.sender;
        a.receiver = graph.receiver;
        a.sender_type = graph.sender_type;
        a.receiver_type = graph.receiver_type;
        a.length = graph.length;
        a.numbers = numbers_.data();
        a.basis_factor = functions.factor;
        a.a = functions.a;
        a.p = functions.p;
        a.q = functions.q;
        a.cutoff = functions.cutoff_start != 0 ? functions.cutoff_start : functions.cutoff_power;
        a.weights = network_.data();
        if (spec_.sender.present()) a.sender_rows = worker.value(spec_.sender);
        if (spec_.receiver.present()) a.receiver_rows = worker.value(spec_.receiver);
        a.sender_width = spec_.sender.rows.width;
        a.receiver_width = spec_.receiver.rows.width;
        return a;
    }

    // Fills harmonics and weights; returns the arguments that both passes share. `kept` null: no
    // backward pass follows.
    CudaArguments make_weights(const CudaWorker<T>& worker, const ReceiverRange& slice,
                               const Scratch& s, T* kept) const {
        const DeviceEdges& graph = *worker.edges;
        if (slice.num_edges > 0) {
            HarmonicsArguments<T> directions = harmonics_arguments(worker, slice);
            directions.harmonics = s.harmonics;
            harmonics_.cover(*worker.stream, slice.num_edges, threads_, directions);
            RadialArguments<T> radial = radial_arguments(worker, slice);
            radial.kept = kept;
            radial.hidden = s.hidden;
            radial_forward_.launch(*worker.stream, ceil_div(slice.num_edges, text_.edges),
                                   text_.threads, radial, text_.shared_bytes);
            gemm_.run(*worker.stream, slice.num_edges, 1, s.hidden, text_.hidden_stride, 0, last_,
                      s.weights, weights_width(), 0, false);
        }
        CudaArguments arguments;
        features_.set(arguments, worker);
        arguments.set(A::order, rows_.data() - slice.first_edge);
        arguments.set(A::row_ptr, graph.row_ptr + slice.first_receiver);
        arguments.set(A::n_rows, slice.num_receivers);
        arguments.set(A::y, s.harmonics);
        arguments.set(A::w, s.weights);
        return arguments;
    }

    // Adds to gradients of edge vectors, and of the rows of nodes that the radial network reads.
    void add_gradients(const CudaWorker<T>& worker, const ReceiverRange& slice,
                       const Scratch& s) const {
        const DeviceEdges& graph = *worker.edges;
        const DeviceStream& stream = *worker.stream;
        RadialArguments<T> radial = radial_arguments(worker, slice);
        radial.kept = s.kept;
        radial.d_hidden = s.hidden;
        radial.d_length = s.d_length;
        radial.d_first = s.d_first;
        radial_backward_.launch(stream, ceil_div(slice.num_edges, text_.edges), text_.threads,
                                radial, text_.shared_bytes);
        const auto add = [&](SumRowsArguments<T> a) {
            sum_rows_.cover(stream, a.count * a.width, ROW_SUM_THREADS, a);
        };
        const Long width = text_.first_stride;
        if (spec_.sender.needs_gradient)
            add({graph.num_nodes, 0, graph.sender_ptr, graph.by_sender,
                 worker.gradient(spec_.sender), slice.first_edge, slice.num_edges, s.d_first,
                 width});
        if (spec_.receiver.needs_gradient)
            add({slice.num_receivers, slice.first_receiver, graph.row_ptr + slice.first_receiver,
                 nullptr, worker.gradient(spec_.receiver), slice.first_edge, slice.num_edges,
                 s.d_first, width});
        HarmonicsArguments<T> vectors = harmonics_arguments(worker, slice);
        vectors.d_harmonics = s.d_harmonics;
        vectors.d_length = s.d_length;
        to_vectors_.cover(stream, slice.num_edges, threads_, vectors);
    }

    const ConvSpec& spec_;
    RadialText<T> text_;
    std::int64_t harmonics_width_;
    int threads_ = 128;  // threads per block of the kernels of harmonics
    ConvFeatures<T> features_;
    CudaPassKernel forward_, backward_;
    CudaFunction harmonics_, to_vectors_, radial_forward_, radial_backward_, sum_rows_;
    DeviceArray<T> network_, factors_;  // see RadialText, harmonic_factors
    DeviceArray<double> numbers_;       // see RadialText
    CudaGemm<T> gemm_;
    CudaMatrix<T> last_, last_t_;  // [units][weights], [weights][units]
    CudaSenderSums<T> sums_;
    std::vector<ReceiverRange> slices_;
    std::int64_t longest_ = 0;        // edges of a slice
    DeviceArray<std::int32_t> rows_;  // [longest_] 0, 1, 2, ..: rows of the edges of a slice
};

}  // namespace

template <typename T>
std::unique_ptr<CudaOp<T>> make_weights_conv(const ConvSpec& spec) {
    return std::make_unique<CudaWeightsConv<T>>(spec);
}
template std::unique_ptr<CudaOp<float>> make_weights_conv(const ConvSpec&);
template std::unique_ptr<CudaOp<double>> make_weights_conv(const ConvSpec&);

}  // namespace mdcg

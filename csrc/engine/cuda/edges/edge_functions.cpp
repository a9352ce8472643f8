#include "engine/cuda/edges/edge_functions.hpp"

#include <algorithm>
#include <vector>

#include "core/integers.hpp"
#include "engine/cuda/edges/radial_text.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/layout.hpp"
#include "kernels/harmonics.hpp"
#include "kernels/radial.hpp"

namespace mdcg {

namespace {

constexpr int ROW_SUM_THREADS = 128;
constexpr int STAGED_BYTES = 44 * 1024;  // of shared memory, for rows of harmonics

template <typename N>
void upload(DeviceMemory& memory, const std::vector<N>& source, const DeviceStream& stream) {
    memory.reserve(std::max<std::size_t>(1, source.size()) * sizeof(N));
    if (!source.empty()) memory.upload(source.data(), source.size() * sizeof(N), stream);
}

}  // namespace

template <typename T>
struct CudaEdgeFunctions<T>::Impl {
    Impl(const RadialSpec& s, int l, const std::string& normalization, bool f)
        : spec(s), text(spec), l_max(l), flip(f), factors(harmonic_factors<T>(l, normalization)) {
        const std::int64_t row = (width() | 1) * static_cast<std::int64_t>(sizeof(T));
        while (threads > 32 && threads * row > STAGED_BYTES) threads /= 2;
    }

    std::int64_t width() const { return std::int64_t(l_max + 1) * (l_max + 1); }
    std::int64_t tiles(std::int64_t edges) const { return ceil_div(edges, text.edges); }

    struct Work {
        T *kept, *d_sender, *d_receiver;
        double* d_length;
        std::size_t bytes;
    };
    Work lay_out(char* start, std::int64_t edges) const {
        Work w;
        Layout layout(start);
        layout.take(w.kept, tiles(edges) * text.kept_items);
        layout.take(w.d_sender, text.sender_rows ? edges * text.first_stride : 0);
        layout.take(w.d_receiver, text.receiver_rows ? edges * text.first_stride : 0);
        layout.take(w.d_length, edges);
        w.bytes = layout.bytes();
        return w;
    }
    HarmonicsArguments<T> harmonics_arguments(const CudaWorker<T>& worker,
                                              const CudaChunk& chunk) const {
        HarmonicsArguments<T> arguments{};
        arguments.first = chunk.first_edge;
        arguments.num_edges = chunk.num_edges;
        arguments.unit = static_cast<const T*>(worker.edges->unit);
        arguments.length = worker.edges->length;
        arguments.factors = factors_there->template as<const T>();
        arguments.edge_gradient = worker.edge_gradient;
        arguments.sign = flip ? -1.0 : 1.0;
        return arguments;
    }
    RadialArguments<T> radial_arguments(const CudaWorker<T>& worker, const CudaChunk& chunk,
                                        const Ends& ends) const {
        const DeviceEdges& graph = *worker.edges;
        const BasisFunctions& functions = spec.functions;
        RadialArguments<T> arguments{};
        arguments.first = chunk.first_edge;
        arguments.num_edges = chunk.num_edges;
        arguments.num_types = spec.num_types;
        arguments.sender = graph.sender;
        arguments.receiver = graph.receiver;
        arguments.sender_type = graph.sender_type;
        arguments.receiver_type = graph.receiver_type;
        arguments.length = graph.length;
        arguments.numbers = numbers->template as<const double>();
        arguments.basis_factor = functions.factor;
        arguments.a = functions.a;
        arguments.p = functions.p;
        arguments.q = functions.q;
        arguments.power = functions.cutoff_power;
        arguments.weights = weights->template as<const T>();
        arguments.sender_rows = ends.sender;
        arguments.receiver_rows = ends.receiver;
        arguments.sender_width = ends.sender_width;
        arguments.receiver_width = ends.receiver_width;
        arguments.place = graph.place;
        return arguments;
    }

    RadialSpec spec;
    RadialText<T> text;
    int l_max;
    bool flip;
    std::vector<T> factors;
    int threads = 128;  // of the harmonics' blocks
    std::shared_ptr<DeviceMemory> weights, numbers, factors_there;
    CudaFunction harmonics, to_vectors, radial_forward, radial_backward, sum_rows;
};

template <typename T>
CudaEdgeFunctions<T>::CudaEdgeFunctions(const RadialSpec& spec, int l_max,
                                        const std::string& normalization, bool flip)
    : impl_(std::make_shared<Impl>(spec, l_max, normalization, flip)) {}

template <typename T>
void CudaEdgeFunctions<T>::prepare(CudaKernels& kernels, const DeviceStream& stream) {
    Impl& m = *impl_;
    const std::string defines = "#define L_MAX " + std::to_string(m.l_max) + "\n#define THREADS " +
                                std::to_string(m.threads) + "\n";
    m.harmonics = kernels.fixed("harmonics.cuh", "harmonics", defines);
    m.to_vectors = kernels.fixed("harmonics.cuh", "to_vectors", defines);
    const auto radial = [&](const char* name, int shared_bytes) {
        return kernels.fixed("radial.cuh", name, m.text.defines, shared_bytes);
    };
    m.radial_forward = radial("radial_forward", m.text.shared_bytes);
    m.radial_backward = radial("radial_backward", m.text.shared_bytes);
    m.sum_rows = radial("sum_rows", 0);
    for (auto* memory : {&m.weights, &m.numbers, &m.factors_there})
        *memory = std::make_shared<DeviceMemory>(kernels.device());
    upload(*m.weights, m.text.weights, stream);
    upload(*m.numbers, m.text.numbers, stream);
    upload(*m.factors_there, m.factors, stream);
    stream.synchronize();
}

template <typename T>
std::int64_t CudaEdgeFunctions<T>::harmonics_width() const {
    return impl_->width();
}

template <typename T>
std::int64_t CudaEdgeFunctions<T>::hidden_stride() const {
    return impl_->text.hidden_stride;
}

template <typename T>
std::size_t CudaEdgeFunctions<T>::work_bytes(std::int64_t edges) const {
    return impl_->lay_out(nullptr, edges).bytes;
}

template <typename T>
void CudaEdgeFunctions<T>::forward(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends,
                                   char* work, T* harmonics, T* hidden) const {
    const Impl& m = *impl_;
    HarmonicsArguments<T> directions = m.harmonics_arguments(worker, chunk);
    directions.harmonics = harmonics;
    m.harmonics.launch(*worker.stream, ceil_div(chunk.num_edges, m.threads), m.threads, directions);
    RadialArguments<T> arguments = m.radial_arguments(worker, chunk, ends);
    if (work != nullptr) arguments.kept = m.lay_out(work, chunk.num_edges).kept;
    arguments.hidden = hidden;
    m.radial_forward.launch(*worker.stream, m.tiles(chunk.num_edges), m.text.threads, arguments,
                            m.text.shared_bytes);
}

template <typename T>
void CudaEdgeFunctions<T>::backward(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends,
                                    char* work, const T* d_harmonics, T* d_hidden) const {
    const Impl& m = *impl_;
    const DeviceEdges& graph = *worker.edges;
    const typename Impl::Work w = m.lay_out(work, chunk.num_edges);
    RadialArguments<T> arguments = m.radial_arguments(worker, chunk, ends);
    arguments.kept = w.kept;
    arguments.d_hidden = d_hidden;
    arguments.d_length = w.d_length;
    arguments.d_sender = ends.d_sender != nullptr ? w.d_sender : nullptr;
    arguments.d_receiver = ends.d_receiver != nullptr ? w.d_receiver : nullptr;
    m.radial_backward.launch(*worker.stream, m.tiles(chunk.num_edges), m.text.threads, arguments,
                             m.text.shared_bytes);
    const auto sum = [&](SumRowsArguments<T> a) {
        a.width = m.text.first_stride;
        m.sum_rows.launch(*worker.stream, ceil_div(a.count * a.width, ROW_SUM_THREADS),
                          ROW_SUM_THREADS, a);
    };
    if (ends.d_sender != nullptr) {
        // chunks cover the receivers in order
        const auto found = std::upper_bound(
            graph.chunks.begin(), graph.chunks.end(), chunk.first_receiver,
            [](std::int32_t r, const CudaChunk& c) { return r < c.first_receiver; });
        const auto number = found - graph.chunks.begin() - 1;
        // ranges are chunks: see CudaOp::needs_chunks
        const ReceiverRange& range = graph.ranges.at(static_cast<std::size_t>(number));
        sum({range.num_senders, graph.range_sender + range.first_sender, 0,
             graph.range_sender_ptr + graph.first_pointer(size(number)), 0, w.d_sender,
             ends.d_sender, 0});
    }
    if (ends.d_receiver != nullptr)
        sum({chunk.num_receivers, nullptr, chunk.first_receiver,
             graph.row_ptr + chunk.first_receiver, chunk.first_edge, w.d_receiver, ends.d_receiver,
             0});
    HarmonicsArguments<T> vectors = m.harmonics_arguments(worker, chunk);
    vectors.d_harmonics = d_harmonics;
    vectors.d_length = w.d_length;
    m.to_vectors.launch(*worker.stream, ceil_div(chunk.num_edges, m.threads), m.threads, vectors);
}

template class CudaEdgeFunctions<float>;
template class CudaEdgeFunctions<double>;

}  // namespace mdcg

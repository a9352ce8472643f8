// Sums by type (type_sums.hpp) on devices, from a table of hidden units.
#include <algorithm>
#include <string>
#include <vector>

#include "core/integers.hpp"
#include "engine/cuda/edges/polynomial_table.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/ops/conv/conv_cuda.hpp"
#include "engine/ops/conv/type_sums.hpp"
#include "kernels/type_sums.hpp"

namespace mdcg {

namespace {

constexpr int WARPS = TYPE_SUM_THREADS / 32;
constexpr std::int64_t MOST_GRADIENT_PARTS = 4;
constexpr std::int64_t DEVICE_SUM_BYTES = std::int64_t(256) << 20;  // sums at a time

template <typename T>
class CudaTypeSums : public CudaOp<T> {
public:
    explicit CudaTypeSums(const ConvSpec& spec)
        : spec_(spec),
          matrices_(spec),
          table_(spec.name, spec.radial, hidden_columns(spec.radial, spec.hidden_stride),
                 TableContent::kUnits, PolynomialTable<T>::UNITS_DEGREE,
                 PolynomialTable<T>::limit(spec.radial, true)) {
        std::vector<char> degrees(size(spec.description.l_max) + 1, 0);
        for (const std::size_t number : matrices_.blocks()) {
            const Block& block = matrices_.block(number);
            degrees[size(block.l)] = 1;
            blocks_.push_back({block, number, {}, {}});
        }
        unused_ = std::count(degrees.begin(), degrees.end(), 0) > 0;
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const int l_max = spec_.description.l_max;
        const bool few = has_few_harmonics(), single = sizeof(T) == 4;
        const int lanes = few && single ? 16 : 32;
        std::string defines;
        const auto define = [&](const char* name, std::int64_t value) {
            defines += std::string("#define ") + name + " " + std::to_string(value) + "\n";
        };
        define("L_MAX", l_max);
        define("UNITS", spec_.hidden_stride);
        define("DEGREE", table_.degree());
        define("EACH", units_at_once(false) / 32);
        define("LANES", lanes);
        define("OWN", units_at_once(true) / lanes);
        // blocks that a multiprocessor must have registers for
        define("GRADIENT_BLOCKS", !few ? 4 : single ? 8 : 3);
        define("MAX_TYPES", static_cast<std::int64_t>(MAX_SUMMED_TYPES));
        sums_ = kernels.fixed("type_sums.cuh", "type_sums", defines);
        shared_sums_ = kernels.fixed("type_sums.cuh", "type_sums_shared", defines);
        gradient_ = kernels.fixed("type_sums.cuh", "type_sums_gradient", defines);
        gemm_ = CudaGemm<T>(kernels);
        multiprocessors_ = kernels.multiprocessors();
        factors_.upload(harmonic_factors<T>(l_max, spec_.normalization), stream);
    }

    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        std::vector<std::int32_t> present = graph.pairs.sender_types();
        table_.on_new_list(graph, stream);
        if (present == present_) return;
        present_ = std::move(present);
        std::vector<std::int32_t> number(size(spec_.num_types), -1);
        for (std::size_t i = 0; i < present_.size(); ++i) number[size(present_[i])] = narrow(i);
        number_.upload(number, stream);
        upload_matrices(stream);
    }
    void on_new_inputs(const DeviceStream& stream) override {
        matrices_.load_tensors();
        if (!present_.empty()) upload_matrices(stream);
    }
    bool fuses_next_op(const CudaWorker<T>&) const override { return matrices_.composed(); }
    std::size_t scratch_bytes(const DeviceEdges& graph) const override {
        return size(receivers_at_once(graph) * width() * depth()) * sizeof(T);
    }

    void forward(CudaWorker<T>& worker, Range) const override {
        const DeviceEdges& graph = *worker.edges;
        const std::int64_t out_width = matrices_.out().rows.width;
        T* const out = worker.value(matrices_.out());
        if (matrices_.has_gaps() || present_.empty())
            clear_on_device(out, size(graph.num_local * out_width) * sizeof(T), *worker.stream);
        if (present_.empty()) return;
        const auto tasks = static_cast<std::int64_t>(present_.size()) *
                           ceil_div(spec_.hidden_stride, units_at_once(false));
        walk(worker, [&](const TypeSumArguments<T>& arguments, std::int64_t count) {
            if (graph.num_local < DeviceEdges::fewest_filling)
                launch(shared_sums_, WARPS, tasks, *worker.stream, arguments, count);
            else
                launch(sums_, 1, tasks, *worker.stream, arguments, count);
            std::vector<CudaProduct<T>> products;
            for (const Part& part : blocks_) {
                CudaProduct<T> p;
                p.rows = count;
                p.batch = 2 * part.block.l + 1;
                p.a = arguments.sums;
                p.a_width = width() * depth();
                p.parts.push_back(
                    {part.block.l * part.block.l * depth(), depth(), part.matrix.rows(), 0});
                p.matrix = &part.matrix;
                p.columns = part.matrix.stride();
                p.c = out + arguments.first_receiver * out_width + part.block.offset;
                p.c_width = out_width;
                p.c_step = part.block.stride;
                products.push_back(p);
            }
            gemm_.run(*worker.stream, products);
        });
    }

    // Adds to worker.edge_gradient.
    void backward(CudaWorker<T>& worker, Range) const override {
        const DeviceStream& stream = *worker.stream;
        const std::int64_t out_width = matrices_.out().rows.width;
        const T* const gradient = worker.gradient(matrices_.out());
        if (present_.empty()) return;
        walk(worker, [&](const TypeSumArguments<T>& arguments, std::int64_t count) {
            if (unused_)
                clear_on_device(arguments.sums, size(count * width() * depth()) * sizeof(T),
                                stream);
            // blocks of the same degree add to the same sums, one after the other
            std::vector<std::size_t> seen(size(spec_.description.l_max) + 1, 0);
            std::vector<std::vector<CudaProduct<T>>> rounds;
            for (const Part& part : blocks_) {
                CudaProduct<T> p;
                p.rows = count;
                p.batch = 2 * part.block.l + 1;
                p.a = gradient + arguments.first_receiver * out_width;
                p.a_width = out_width;
                p.parts.push_back({part.block.offset, part.block.stride, part.block.mul, 0});
                p.matrix = &part.transposed;
                p.columns = part.transposed.stride();
                p.c = arguments.sums + part.block.l * part.block.l * depth();
                p.c_width = width() * depth();
                p.c_step = depth();
                const std::size_t round = seen[size(part.block.l)]++;
                p.add = round > 0;
                if (round == rounds.size()) rounds.emplace_back();
                rounds[round].push_back(p);
            }
            for (const auto& products : rounds) gemm_.run(stream, products);
            launch(gradient_, 1, MOST_GRADIENT_PARTS, stream, arguments, count);
        });
    }

private:
    // A block of the rows that are written, its number, and its matrix [types, units][channels].
    struct Part {
        Block block;
        std::size_t number;
        CudaMatrix<T> matrix, transposed;
    };

    // For the types that are present.
    void upload_matrices(const DeviceStream& stream) {
        const int rows = static_cast<int>(depth());
        for (Part& part : blocks_) {
            const std::vector<T> matrix = matrices_.matrix(present_, part.number);
            const int mul = part.block.mul;
            part.matrix = gemm_.matrix(matrix.data(), 1, 0, rows, mul, mul, 1, stream);
            part.transposed = gemm_.matrix(matrix.data(), 1, 0, mul, rows, 1, mul, stream);
        }
        stream.synchronize();
    }

    int width() const { return (spec_.description.l_max + 1) * (spec_.description.l_max + 1); }
    std::int64_t depth() const {  // depth of the matrices
        return static_cast<std::int64_t>(present_.size()) * spec_.hidden_stride;
    }
    // Whether the harmonics of an edge are few enough for a lane to take several of its units.
    bool has_few_harmonics() const { return spec_.description.l_max <= 3; }
    // Units that a warp takes at a time. In float64 lanes take several in the gradient only:
    // forward, they also hold the units of the edges that are loaded ahead.
    std::int64_t units_at_once(bool gradient) const {
        const bool several = has_few_harmonics() && (sizeof(T) == 4 || gradient);
        return several && spec_.hidden_stride > 32 ? 64 : 32;
    }
    // Receivers whose sums, [receivers][width()][depth()], are in scratch memory at once.
    std::int64_t receivers_at_once(const DeviceEdges& graph) const {
        const auto bytes = static_cast<std::int64_t>(sizeof(T));
        const std::int64_t row = std::max<std::int64_t>(1, width() * depth());
        return std::min(graph.num_local, std::max<std::int64_t>(1, DEVICE_SUM_BYTES / bytes / row));
    }

    // Calls body(arguments, count) for consecutive groups of receivers that fit into the scratch
    // memory.
    template <typename Body>
    void walk(const CudaWorker<T>& worker, const Body& body) const {
        const DeviceEdges& graph = *worker.edges;
        const std::int64_t most = receivers_at_once(graph);
        TypeSumArguments<T> found{};
        found.num_types = spec_.num_types;
        found.num_present = static_cast<std::int32_t>(present_.size());
        found.row_ptr = graph.row_ptr;
        found.num_active = graph.num_active;
        found.active = graph.active;
        found.receiver_types = graph.types;
        found.sender_type = graph.sender_type;
        found.number = number_.data();
        found.length = graph.length;
        found.unit = static_cast<const T*>(graph.unit);
        found.factors = factors_.data();
        found.table = table_.data();
        found.places = table_.places();
        found.sums = reinterpret_cast<T*>(worker.device_scratch(scratch_bytes(graph)));
        found.edge_gradient = worker.edge_gradient;
        found.sign = spec_.flip_edges ? -1.0 : 1.0;
        for (std::int64_t at = 0; at < graph.num_local; at += most) {
            found.first_receiver = narrow(at);
            body(found, std::min(most, graph.num_local - at));
        }
    }

    // Launches `share` warps for each receiver, or up to `most_parts` times as many if there are
    // few receivers.
    void launch(const CudaFunction& kernel, int share, std::int64_t most_parts,
                const DeviceStream& stream, TypeSumArguments<T> arguments,
                std::int64_t receivers) const {
        constexpr std::int64_t RESIDENT = 12;  // warps of a multiprocessor, which hide latency
        const std::int64_t wanted = RESIDENT * multiprocessors_ / (receivers * share);
        const std::int64_t parts = std::clamp<std::int64_t>(wanted, 1, most_parts);
        arguments.receivers = narrow(receivers);
        arguments.parts = narrow(parts);
        kernel.cover(stream, 32 * receivers * parts * share, TYPE_SUM_THREADS, arguments);
    }

    const ConvSpec& spec_;
    TypeMatrices<T> matrices_;
    PolynomialTable<T> table_;           // tabulated hidden units
    std::vector<std::int32_t> present_;  // types
    std::vector<Part> blocks_;
    bool unused_ = false;  // harmonics without a path
    CudaFunction sums_, shared_sums_, gradient_;
    CudaGemm<T> gemm_;
    int multiprocessors_ = 1;
    DeviceArray<std::int32_t> number_;  // [types] position in present_, or -1
    DeviceArray<T> factors_;            // factors of the harmonics
};

}  // namespace

template <typename T>
std::unique_ptr<CudaOp<T>> make_type_sums(const ConvSpec& spec) {
    return std::make_unique<CudaTypeSums<T>>(spec);
}
template std::unique_ptr<CudaOp<float>> make_type_sums(const ConvSpec&);
template std::unique_ptr<CudaOp<double>> make_type_sums(const ConvSpec&);

}  // namespace mdcg

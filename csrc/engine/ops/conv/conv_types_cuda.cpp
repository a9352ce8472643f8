#include "engine/ops/conv/conv_types_cuda.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/layout.hpp"

namespace mdcg {

namespace {

constexpr int WARPS = TYPE_SUM_THREADS / 32;
constexpr std::int64_t MOST_GRADIENT_PARTS = 4;
constexpr std::int64_t DEVICE_SUM_BYTES = std::int64_t(256) << 20;  // of sums at a time, about

}  // namespace

template <typename T>
CudaTypeSums<T>::CudaTypeSums(const ConvSpec& spec)
    : spec_(spec),
      num_types_(spec.num_types),
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

template <typename T>
void CudaTypeSums<T>::prepare(CudaKernels& kernels, const DeviceStream& stream) {
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
    // blocks of a multiprocessor, whose registers must suffice
    define("GRADIENT_BLOCKS", !few ? 4 : single ? 8 : 3);
    define("MAX_TYPES", static_cast<std::int64_t>(MAX_SUMMED_TYPES));
    sums_ = kernels.fixed("type_sums.cuh", "type_sums", defines);
    shared_sums_ = kernels.fixed("type_sums.cuh", "type_sums_shared", defines);
    gradient_ = kernels.fixed("type_sums.cuh", "type_sums_gradient", defines);
    gemm_ = CudaGemm<T>(kernels);
    multiprocessors_ = kernels.multiprocessors();
    const std::vector<T> factors = harmonic_factors<T>(l_max, spec_.normalization);
    number_ = std::make_unique<DeviceMemory>(stream.device());
    number_->reserve(size(num_types_) * sizeof(std::int32_t));
    factors_ = std::make_unique<DeviceMemory>(stream.device());
    factors_->reserve(factors.size() * sizeof(T));
    factors_->upload(factors.data(), factors.size() * sizeof(T), stream);
    stream.synchronize();
}

template <typename T>
bool CudaTypeSums<T>::on_new_list(const DeviceEdges& graph, const DeviceStream& stream) {
    std::vector<std::int32_t> present = graph.pairs.sender;
    std::sort(present.begin(), present.end());
    present.erase(std::unique(present.begin(), present.end()), present.end());
    if (present.size() > MAX_SUMMED_TYPES) return false;
    table_.on_new_list(graph, stream);
    if (present == present_) return true;
    present_ = std::move(present);
    std::vector<std::int32_t> number(size(num_types_), -1);
    for (std::size_t i = 0; i < present_.size(); ++i)
        number[size(present_[i])] = static_cast<std::int32_t>(i);
    number_->upload(number.data(), number.size() * sizeof(number[0]), stream);
    make_matrices(stream);
    stream.synchronize();
    return true;
}

template <typename T>
void CudaTypeSums<T>::make_matrices(const DeviceStream& stream) {
    const int rows = static_cast<int>(depth());
    for (Part& part : blocks_) {
        const std::vector<T> matrix = matrices_.matrix(present_, part.number);
        const int mul = part.block.mul;
        part.matrix = gemm_.matrix(matrix.data(), 1, 0, rows, mul, mul, 1, stream);
        part.transposed = gemm_.matrix(matrix.data(), 1, 0, mul, rows, 1, mul, stream);
    }
}

template <typename T>
typename CudaTypeSums<T>::Scratch CudaTypeSums<T>::lay_out(char* start,
                                                           const DeviceEdges& graph) const {
    Scratch s{};
    Layout layout(start);
    const std::int64_t row = width() * depth();
    const auto bytes = static_cast<std::int64_t>(sizeof(T));
    s.receivers = std::min(
        graph.num_local,
        std::max<std::int64_t>(1, DEVICE_SUM_BYTES / bytes / std::max<std::int64_t>(1, row)));
    layout.take(s.sums, s.receivers * row);
    s.bytes = layout.bytes();
    return s;
}

template <typename T>
std::size_t CudaTypeSums<T>::scratch_bytes(const DeviceEdges& graph) const {
    return lay_out(nullptr, graph).bytes;
}

template <typename T>
TypeSumArguments<T> CudaTypeSums<T>::arguments(const CudaWorker<T>& worker,
                                               const Scratch& scratch) const {
    const DeviceEdges& graph = *worker.edges;
    TypeSumArguments<T> found{};
    found.num_types = num_types_;
    found.num_present = static_cast<std::int32_t>(present_.size());
    found.row_ptr = graph.row_ptr;
    found.num_active = graph.num_active;
    found.active = graph.active;
    found.receiver_types = graph.types;
    found.sender_type = graph.sender_type;
    found.number = number_->template as<std::int32_t>();
    found.length = graph.length;
    found.unit = static_cast<const T*>(graph.unit);
    found.factors = factors_->template as<T>();
    found.table = table_.data();
    found.places = table_.places();
    found.sums = scratch.sums;
    found.edge_gradient = worker.edge_gradient;
    found.sign = spec_.flip_edges ? -1.0 : 1.0;
    return found;
}

template <typename T>
template <typename Body>
void CudaTypeSums<T>::walk(CudaWorker<T>& worker, const Body& body) const {
    const DeviceEdges& graph = *worker.edges;
    const Scratch scratch = lay_out(worker.device_scratch(scratch_bytes(graph)), graph);
    TypeSumArguments<T> arguments = this->arguments(worker, scratch);
    for (std::int64_t at = 0; at < graph.num_local; at += scratch.receivers) {
        arguments.first_receiver = static_cast<std::int32_t>(at);
        body(scratch, arguments, std::min(scratch.receivers, graph.num_local - at));
    }
}

template <typename T>
void CudaTypeSums<T>::launch(const CudaFunction& kernel, int share, std::int64_t most_parts,
                             const DeviceStream& stream, TypeSumArguments<T> arguments,
                             std::int64_t receivers) const {
    constexpr std::int64_t RESIDENT = 12;  // warps of a multiprocessor, which hide latency
    const std::int64_t wanted = RESIDENT * multiprocessors_ / (receivers * share);
    const std::int64_t parts = std::clamp<std::int64_t>(wanted, 1, most_parts);
    arguments.receivers = narrow(receivers);
    arguments.parts = narrow(parts);
    kernel.launch(stream, ceil_div(receivers * parts * share, WARPS), TYPE_SUM_THREADS, arguments);
}

template <typename T>
void CudaTypeSums<T>::forward(CudaWorker<T>& worker) const {
    const DeviceEdges& graph = *worker.edges;
    const std::int64_t out_width = matrices_.out().rows.width;
    T* const out = worker.value(matrices_.out());
    if (matrices_.has_gaps() || present_.empty())
        clear_on_device(out, size(graph.num_local * out_width) * sizeof(T), *worker.stream);
    if (present_.empty()) return;
    const auto tasks = static_cast<std::int64_t>(present_.size()) *
                       ceil_div(spec_.hidden_stride, units_at_once(false));
    walk(worker,
         [&](const Scratch& scratch, const TypeSumArguments<T>& arguments, std::int64_t count) {
             if (graph.num_local < DeviceEdges::fewest_filling)
                 launch(shared_sums_, WARPS, tasks, *worker.stream, arguments, count);
             else
                 launch(sums_, 1, tasks, *worker.stream, arguments, count);
             std::vector<CudaProduct<T>> products;
             for (const Part& part : blocks_) {
                 CudaProduct<T> p;
                 p.rows = count;
                 p.batch = 2 * part.block.l + 1;
                 p.a = scratch.sums;
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

template <typename T>
void CudaTypeSums<T>::backward(CudaWorker<T>& worker) const {
    const DeviceStream& stream = *worker.stream;
    const std::int64_t out_width = matrices_.out().rows.width;
    const T* const gradient = worker.gradient(matrices_.out());
    if (present_.empty()) return;
    walk(worker,
         [&](const Scratch& scratch, const TypeSumArguments<T>& arguments, std::int64_t count) {
             if (unused_)
                 clear_on_device(scratch.sums, size(count * width() * depth()) * sizeof(T), stream);
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
                 p.c = scratch.sums + part.block.l * part.block.l * depth();
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

template class CudaTypeSums<float>;
template class CudaTypeSums<double>;

}  // namespace mdcg

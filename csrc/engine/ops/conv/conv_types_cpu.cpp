#include "engine/ops/conv/conv_types_cpu.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/layout.hpp"

namespace mdcg {

namespace {

constexpr std::int64_t BLOCK = 128;                          // edges at a time
constexpr std::int64_t SUM_BYTES = std::int64_t(128) << 10;  // approximate bytes of sums at a time
constexpr std::int64_t FEWEST = 8;  // receivers at a time: a product of fewer rows is slow

std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }

}  // namespace

template <typename T>
bool CpuTypeSums<T>::possible(const ConvSpec& spec) {
    // the cost of sums grows with the hidden units, the cost of other kernels with the weights
    return sums_by_type<T>(spec) && spec.description.weights.width > spec.hidden_stride;
}

template <typename T>
CpuTypeSums<T>::CpuTypeSums(const ConvSpec& spec)
    : spec_(spec),
      l_max_(spec.description.l_max),
      stride_(spec.hidden_stride),
      matrices_(spec),
      factors_(harmonic_factors<T>(l_max_, spec.normalization)),
      radial_(spec.radial) {
    if (spec.radial.has_table() && !spec.radial.exact)
        table_ = std::make_unique<RadialTable<T>>(spec.radial, hidden_columns(spec.radial, stride_),
                                                  TableContent::kUnits);
}

// Compares multiply-adds: if receivers have few edges, or senders many types, weights per edge are
// cheaper.
template <typename T>
bool CpuTypeSums<T>::pays(const Graph& graph, std::int64_t types) const {
    constexpr std::int64_t FROM_TABLE = TABLE_STEPS<T> + 4;  // steps per weight: spline, and use
    const std::int64_t of_weight = table_ ? FROM_TABLE : stride_;
    return graph.num_local * types * stride_ * matrices_.out().rows.features +
               graph.num_edges * width() * stride_ <=
           graph.num_edges * spec_.description.weights.width * of_weight;
}

template <typename T>
bool CpuTypeSums<T>::begin(const Graph& graph) {
    seen_.assign(size(spec_.num_types), 0);
    for (std::int64_t n = 0; n < graph.num_nodes; ++n) seen_[size(graph.types[size(n)])] = 1;
    const auto count = std::count(seen_.begin(), seen_.end(), 1);
    if (size(count) > MAX_SUMMED_TYPES || !pays(graph, count)) return false;
    has_tables_ = table_ && table_->require(graph.types.data(), graph.receiver.data(),
                                            graph.sender.data(), graph.num_edges, graph.num_nodes);
    if (seen_ == known_) return true;
    known_.clear();  // in case memory runs out below
    present_.clear();
    for (int type = 0; type < spec_.num_types; ++type)
        if (seen_[size(type)]) present_.push_back(type);
    number_.assign(size(spec_.num_types), -1);
    for (std::size_t i = 0; i < present_.size(); ++i)
        number_[size(present_[i])] = static_cast<std::int32_t>(i);
    const int rows = narrow(depth());
    parts_.clear();
    for (const std::size_t number : matrices_.blocks()) {
        const Block& block = matrices_.block(number);
        const std::vector<T> matrix = matrices_.matrix(present_, number);
        parts_.push_back({block, PackedMatrix<T>(matrix.data(), rows, block.mul, block.mul, 1),
                          PackedMatrix<T>(matrix.data(), block.mul, rows, 1, block.mul)});
    }
    known_ = seen_;
    return true;
}

// Lays out scratch memory for receivers with up to `longest` edges.
template <typename T>
typename CpuTypeSums<T>::Scratch CpuTypeSums<T>::lay_out(char* start, std::int64_t longest) const {
    Scratch s;
    Layout layout(start);
    const std::int64_t w = padded(width());
    s.edges.take(layout, BLOCK);
    layout.take(s.list, longest);
    layout.take(s.harmonics, width() * BLOCK);
    layout.take(s.d_harmonics, width() * BLOCK);
    layout.take(s.d_unit, 3 * BLOCK);
    layout.take(s.hidden, BLOCK * stride_);
    layout.take(s.d_hidden, BLOCK * stride_);
    layout.take(s.slope_row, BLOCK * stride_);
    layout.take(s.basis, TABLE_STEPS<T> * BLOCK);
    layout.take(s.slope, TABLE_STEPS<T> * BLOCK);
    layout.take(s.rows, BLOCK * w);
    layout.take(s.d_rows, BLOCK * w);
    layout.take(s.packed, std::max(BLOCK, w) * stride_);
    s.receivers =
        std::max(FEWEST, SUM_BYTES / static_cast<std::int64_t>(sizeof(T)) / (width() * depth()));
    layout.take(s.sums, s.receivers * width() * depth());
    layout.take(s.knot, BLOCK);
    layout.take(s.work, static_cast<std::int64_t>(radial_.work_bytes(BLOCK)));
    s.bytes = layout.bytes();
    return s;
}

template <typename T>
typename CpuTypeSums<T>::Scratch CpuTypeSums<T>::scratch_of(Worker<T>& worker, Range nodes) const {
    const auto& row_ptr = worker.graph->row_ptr;
    std::int64_t longest = 1;
    for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
        longest = std::max<std::int64_t>(longest, row_ptr[size(n + 1)] - row_ptr[size(n)]);
    longest = padded(longest);
    return lay_out(worker.scratch(lay_out(nullptr, longest).bytes), longest);
}

// Sorts the edges of a receiver by type of the sender, stably.
template <typename T>
void CpuTypeSums<T>::sort_edges(const Worker<T>& worker, std::int64_t node,
                                std::int32_t* list) const {
    const Graph& graph = *worker.graph;
    const std::int64_t begin = graph.row_ptr[size(node)], end = graph.row_ptr[size(node + 1)];
    const auto number = [&](std::int64_t e) {
        return size(number_[size(worker.types[graph.sender[size(e)]])]);
    };
    std::int32_t first[MAX_SUMMED_TYPES + 1] = {};
    for (std::int64_t e = begin; e < end; ++e) ++first[number(e) + 1];
    for (std::size_t t = 0; t < present_.size(); ++t) first[t + 1] += first[t];
    for (std::int64_t e = begin; e < end; ++e) list[first[number(e)]++] = narrow(e);
}

template <typename T>
bool CpuTypeSums<T>::fill(const Worker<T>& worker, Scratch& s, std::int64_t first,
                          std::int64_t count, bool backward) const {
    s.edges.capacity = padded(count);
    s.edges.gather(*worker.graph, worker.types, s.list + first, 0, count, spec_.flip_edges);
    simd<T>().harmonics(l_max_, factors_.data(), s.edges.capacity, s.edges.unit, s.harmonics);
    if (has_tables_ && table_->look_up(s.edges.radial(), s.knot, s.basis, s.slope)) {
        simd<T>().look_up({s.edges.count, stride_ / row_align<T>(), table_->rows(),
                           s.edges.capacity, table_->data(), table_->steps(), s.knot, s.basis,
                           s.slope, s.hidden, backward ? s.slope_row : nullptr});
        return true;
    }
    radial_.forward(s.edges.radial(), {}, {}, s.work, s.hidden, backward);
    return false;
}

template <typename T>
template <typename Body>
void CpuTypeSums<T>::each_segment(const EdgeBlock<T>& edges, const Body& body) const {
    for (std::int64_t begin = 0, end = 0; begin < edges.count; begin = end) {
        const std::int32_t type = edges.sender_type[begin];
        while (end < edges.count && edges.sender_type[end] == type) ++end;
        body(number_[size(type)] * stride_, begin, end - begin);
    }
}

template <typename T>
void CpuTypeSums<T>::add_sums(const Worker<T>& worker, Scratch& s, std::int64_t node,
                              T* sums) const {
    constexpr int A = row_align<T>();
    const auto& row_ptr = worker.graph->row_ptr;
    const std::int64_t edges = row_ptr[size(node + 1)] - row_ptr[size(node)];
    sort_edges(worker, node, s.list);
    for (std::int64_t first = 0; first < edges; first += BLOCK) {
        fill(worker, s, first, std::min(BLOCK, edges - first), false);
        each_segment(s.edges, [&](std::int64_t column, std::int64_t begin, std::int64_t count) {
            for (std::int64_t panel = 0; panel < stride_ / A; ++panel)
                for (std::int64_t e = 0; e < count; ++e)
                    std::copy_n(s.hidden + (begin + e) * stride_ + panel * A, A,
                                s.packed + (panel * count + e) * A);
            simd<T>().gemm_panels(width(), count, stride_ / A, s.harmonics + begin,
                                  s.edges.capacity, s.packed, count * A, sums + column, depth(),
                                  nullptr, true);
        });
    }
}

template <typename T>
template <typename Body>
void CpuTypeSums<T>::each_group(Worker<T>& worker, Range nodes, const Body& body) const {
    if (present_.empty()) return;
    Scratch s = scratch_of(worker, nodes);
    for (std::int64_t begin = nodes.begin; begin < nodes.end; begin += s.receivers) {
        const std::int64_t count = std::min(s.receivers, nodes.end - begin);
        std::fill(s.sums, s.sums + count * width() * depth(), T(0));
        body(s, begin, count);
    }
}

template <typename T>
void CpuTypeSums<T>::forward(Worker<T>& worker, Range nodes) const {
    const std::int64_t out_width = matrices_.out().rows.width, row = width() * depth();
    T* const out = worker.value(matrices_.out());
    if (matrices_.has_gaps() || present_.empty())
        std::fill(out + nodes.begin * out_width, out + nodes.end * out_width, T(0));
    each_group(worker, nodes, [&](Scratch& s, std::int64_t begin, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) add_sums(worker, s, begin + i, s.sums + i * row);
        for (const Part& part : parts_)
            for (int m = 0; m < part.block.dim(); ++m)
                simd<T>().gemm(count, s.sums + (part.block.l * part.block.l + m) * depth(), row,
                               part.matrix,
                               out + begin * out_width + part.block.offset + m * part.block.stride,
                               out_width, nullptr, false);
    });
}

template <typename T>
void CpuTypeSums<T>::add_gradients(const Worker<T>& worker, Scratch& s, std::int64_t node,
                                   const T* sums) const {
    constexpr int A = row_align<T>();
    const SimdTable<T>& kernels = simd<T>();
    const auto& row_ptr = worker.graph->row_ptr;
    const std::int64_t edges = row_ptr[size(node + 1)] - row_ptr[size(node)];
    const std::int64_t panels = (width() + A - 1) / A, wide = panels * A;
    sort_edges(worker, node, s.list);
    for (std::int64_t first = 0; first < edges; first += BLOCK) {
        const bool table = fill(worker, s, first, std::min(BLOCK, edges - first), true);
        const std::int64_t capacity = s.edges.capacity;
        std::fill(s.d_hidden, s.d_hidden + capacity * stride_, T(0));
        std::fill(s.d_harmonics, s.d_harmonics + width() * capacity, T(0));
        each_segment(s.edges, [&](std::int64_t column, std::int64_t begin, std::int64_t count) {
            const T* const own = sums + column;
            // gradients of units: harmonics of an edge times gradients of the sums
            for (std::int64_t e = 0; e < count; ++e)
                for (int lm = 0; lm < width(); ++lm)
                    s.rows[e * wide + lm] = s.harmonics[lm * capacity + begin + e];
            for (std::int64_t panel = 0; panel < stride_ / A; ++panel)
                for (int lm = 0; lm < width(); ++lm)
                    std::copy_n(own + lm * depth() + panel * A, A,
                                s.packed + (panel * width() + lm) * A);
            kernels.gemm_panels(count, width(), stride_ / A, s.rows, wide, s.packed, width() * A,
                                s.d_hidden + begin * stride_, stride_, nullptr, false);
            // gradients of harmonics: units of an edge times gradients of the sums
            for (std::int64_t panel = 0; panel < panels; ++panel)
                for (std::int64_t k = 0; k < stride_; ++k)
                    for (int a = 0; a < A; ++a) {
                        const std::int64_t lm = panel * A + a;
                        s.packed[(panel * stride_ + k) * A + a] =
                            lm < width() ? own[lm * depth() + k] : T(0);
                    }
            kernels.gemm_panels(count, stride_, panels, s.hidden + begin * stride_, stride_,
                                s.packed, stride_ * A, s.d_rows, wide, nullptr, false);
            for (int lm = 0; lm < width(); ++lm)
                for (std::int64_t e = 0; e < count; ++e)
                    s.d_harmonics[lm * capacity + begin + e] = s.d_rows[e * wide + lm];
        });
        if (table)
            for (std::int64_t e = 0; e < s.edges.count; ++e)
                s.edges.d_length[e] = static_cast<double>(
                    kernels.dot(stride_, s.d_hidden + e * stride_, s.slope_row + e * stride_));
        else
            radial_.backward(s.edges.radial(), {}, {}, s.work, s.d_hidden, s.edges.d_length);
        kernels.harmonics_gradient(l_max_, factors_.data(), capacity, s.edges.unit, s.d_harmonics,
                                   s.d_unit);
        s.edges.scatter(s.d_unit, spec_.flip_edges, worker.edge_gradient);
    }
}

template <typename T>
void CpuTypeSums<T>::backward(Worker<T>& worker, Range nodes) const {
    const std::int64_t out_width = matrices_.out().rows.width, row = width() * depth();
    const T* const gradient = worker.gradient(matrices_.out());
    each_group(worker, nodes, [&](Scratch& s, std::int64_t begin, std::int64_t count) {
        for (const Part& part : parts_)
            for (int m = 0; m < part.block.dim(); ++m)
                simd<T>().gemm(
                    count, gradient + begin * out_width + part.block.offset + m * part.block.stride,
                    out_width, part.transposed,
                    s.sums + (part.block.l * part.block.l + m) * depth(), row, nullptr, true);
        for (std::int64_t i = 0; i < count; ++i)
            add_gradients(worker, s, begin + i, s.sums + i * row);
    });
}

template class CpuTypeSums<float>;
template class CpuTypeSums<double>;

}  // namespace mdcg

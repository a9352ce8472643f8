#include <algorithm>
#include <memory>
#include <string>

#include "core/integers.hpp"
#include "core/shared_library.hpp"
#include "engine/cpu_op.hpp"
#include "engine/edges/edge_block.hpp"
#include "engine/edges/harmonics.hpp"
#include "engine/edges/radial.hpp"
#include "engine/edges/radial_table.hpp"
#include "engine/error.hpp"
#include "engine/kernels/kernel_store.hpp"
#include "engine/ops/conv/conv_generic.hpp"
#include "engine/ops/conv/conv_types_cpu.hpp"
#include "engine/ops/conv/conv_weights_cpu.hpp"

namespace mdcg {

namespace {

// A generated kernel. `info` null: there is none, and the generic kernel runs.
template <typename T>
struct GeneratedConv {
    const ConvInfo* info = nullptr;
    ConvFunction<T> forward = nullptr, backward = nullptr;
};

template <typename T>
class CpuConv : public CpuOp<T> {
public:
    explicit CpuConv(const ConvSpec& spec);

    void prepare(KernelStore& kernels) override;
    void on_new_inputs() override {
        if (!x_.present()) x_table_ = spec_.x_table<T>();
        if (types_) types_->load_tensors();
    }
    void begin(const Graph& graph) override {
        by_type_ = types_ && types_->begin(graph);
        if (table_ && !by_type_)
            has_tables_ = table_->require(graph.types.data(), graph.receiver.data(),
                                          graph.sender.data(), graph.num_edges, graph.num_nodes);
    }
    bool fuses_next_op(const Worker<T>&) const override { return by_type_ && types_->composed(); }
    void forward(Worker<T>& worker, Range nodes) const override;
    void backward(Worker<T>& worker, Range nodes) const override;

private:
    struct Scratch {
        EdgeBlock<T> edges;
        T *harmonics, *d_harmonics, *d_unit, *hidden, *d_hidden, *basis, *slope, *d_length;
        std::int32_t* knot;
        char *work, *kernel;
        std::size_t bytes;
    };
    Scratch lay_out(char* start) const;
    RadialRows<T> rows(const Worker<T>& worker, const Operand& operand, const std::int32_t* node,
                       bool gradient) const;
    // Makes the block that forward and backward share, without its weights.
    ConvBlock<T> fill(const Worker<T>& worker, Scratch& scratch) const;
    EdgeWeights<T> weights(const Worker<T>& worker, Scratch& scratch, bool backward) const;

    const ConvSpec& spec_;
    const Operand &x_, &sender_, &receiver_, &out_;
    int l_max_;
    AlignedArray<T> x_table_;            // by type, if x is absent
    PackedMatrix<T> last_, transposed_;  // the last layer of the radial network, padded
    std::vector<T> factors_;
    Radial<T> radial_;
    std::unique_ptr<RadialTable<T>> table_;
    std::unique_ptr<CpuTypeSums<T>> types_;
    bool by_type_ = false;     // edges of the list are summed by type
    bool has_tables_ = false;  // for all pairs of types of the list
    GenericConv<T> generic_;
    GeneratedConv<T> generated_;
    std::int64_t capacity_, kernel_bytes_;
};

template <typename T>
CpuConv<T>::CpuConv(const ConvSpec& spec)
    : spec_(spec),
      x_(spec.x),
      sender_(spec.sender),
      receiver_(spec.receiver),
      out_(spec.out),
      l_max_(spec.description.l_max),
      factors_(harmonic_factors<T>(l_max_, spec.normalization)),
      radial_(spec.radial),
      generic_(spec),
      capacity_(generic_.info().edges),
      kernel_bytes_(generic_.info().scratch_bytes) {
    const AlignedArray<T> last = spec.last_layer<T>();
    const std::int64_t width = spec.description.weights.width, stride = spec.hidden_stride;
    last_ = PackedMatrix<T>(last.data(), narrow(stride), narrow(width), 1, stride);
    transposed_ = PackedMatrix<T>(last.data(), narrow(width), narrow(stride), stride, 1);
    if (!x_.present()) x_table_ = spec.x_table<T>();
    if (CpuTypeSums<T>::possible(spec)) types_ = std::make_unique<CpuTypeSums<T>>(spec);
    if (spec.radial.has_table() && !spec.radial.exact)
        table_ = std::make_unique<RadialTable<T>>(spec.radial, spec.description.weights,
                                                  TableContent::kWeights);
}

template <typename T>
void CpuConv<T>::prepare(KernelStore& kernels) {
    const SharedLibrary* library = kernels.load(spec_.index, spec_.name, {"mdcg_conv_info"});
    if (library == nullptr) return;
    const auto* info = static_cast<const ConvInfo*>(library->symbol("mdcg_conv_info"));
    const ConvInfo& own = generic_.info();
    if (info->abi != own.abi || info->item_bytes != own.item_bytes || info->edges < 16 ||
        info->edges % 16 != 0 || info->edges > 4096 || info->scratch_bytes < 0 ||
        info->scratch_bytes > (std::int64_t(1) << 30) || info->x_width != own.x_width ||
        info->out_width != own.out_width || info->weight_width != own.weight_width)
        throw EngineError(ErrorKind::compiler,
                          spec_.name +
                              ": its kernel was made for another layer or another version of "
                              "mdcg: make the kernels again (python -m mdcg kernels)");
    const auto function = [&](const char* symbol) {
        return reinterpret_cast<ConvFunction<T>>(library->symbol(symbol));
    };
    GeneratedConv<T> found;
    found.info = info;
    found.forward = function("mdcg_conv_forward");
    found.backward = function("mdcg_conv_backward");
    generated_ = found;
    capacity_ = info->edges;
    kernel_bytes_ = std::max(info->scratch_bytes, own.scratch_bytes);
}

template <typename T>
typename CpuConv<T>::Scratch CpuConv<T>::lay_out(char* start) const {
    Scratch s;
    Layout layout(start);
    const std::int64_t n = capacity_, harmonics = (l_max_ + 1) * (l_max_ + 1);
    s.edges.take(layout, n);
    layout.take(s.harmonics, harmonics * n);
    layout.take(s.d_harmonics, harmonics * n);
    layout.take(s.d_unit, 3 * n);
    layout.take(s.hidden, n * radial_.hidden_stride());
    layout.take(s.d_hidden, n * radial_.hidden_stride());
    layout.take(s.basis, TABLE_STEPS<T> * n);
    layout.take(s.slope, TABLE_STEPS<T> * n);
    layout.take(s.d_length, n);
    layout.take(s.knot, n);
    layout.take(s.work, static_cast<std::int64_t>(radial_.work_bytes(n)));
    layout.take(s.kernel, kernel_bytes_);
    s.bytes = layout.bytes();
    return s;
}

template <typename T>
RadialRows<T> CpuConv<T>::rows(const Worker<T>& worker, const Operand& operand,
                               const std::int32_t* node, bool gradient) const {
    if (!operand.present()) return {};
    return {node, worker.value(operand),
            gradient && operand.needs_gradient ? worker.gradient(operand) : nullptr,
            operand.rows.width};
}

template <typename T>
ConvBlock<T> CpuConv<T>::fill(const Worker<T>& worker, Scratch& s) const {
    const EdgeBlock<T>& edges = s.edges;
    simd<T>().harmonics(l_max_, factors_.data(), capacity_, edges.unit, s.harmonics);
    for (int row = 0; row < (l_max_ + 1) * (l_max_ + 1); ++row)
        std::fill(s.harmonics + row * capacity_ + edges.count, s.harmonics + (row + 1) * capacity_,
                  T(0));
    ConvBlock<T> block{};
    block.num_edges = edges.count;
    block.sender = x_.present() ? edges.sender : edges.sender_type;
    block.receiver = edges.receiver;
    block.harmonics = s.harmonics;
    block.x = x_.present() ? worker.value(x_) : x_table_.data();
    block.scratch = s.kernel;
    return block;
}

template <typename T>
EdgeWeights<T> CpuConv<T>::weights(const Worker<T>& worker, Scratch& s, bool backward) const {
    const EdgeBlock<T>& edges = s.edges;
    EdgeWeights<T> found;
    found.width = spec_.description.weights.width;
    if (has_tables_ && table_->look_up(edges.radial(), s.knot, s.basis, s.slope)) {
        found.table = table_->data();
        found.steps = table_->steps();
        found.table_rows = table_->rows();
        found.knot = s.knot;
        found.basis = s.basis;
        found.slope = s.slope;
        found.capacity = capacity_;
        return found;
    }
    radial_.forward(edges.radial(), rows(worker, sender_, edges.sender, false),
                    rows(worker, receiver_, edges.receiver, false), s.work, s.hidden, backward);
    if (backward) std::fill_n(s.d_hidden, capacity_ * spec_.hidden_stride, T(0));
    found.hidden = s.hidden;
    found.d_hidden = s.d_hidden;
    found.last = &last_;
    found.transposed = &transposed_;
    return found;
}

template <typename T>
void CpuConv<T>::forward(Worker<T>& worker, Range nodes) const {
    const Graph& graph = *worker.graph;
    T* out = worker.value(out_);
    if (by_type_) return types_->forward(worker, nodes);
    std::fill(out + nodes.begin * out_.rows.width, out + nodes.end * out_.rows.width, T(0));
    Scratch s = lay_out(worker.scratch(lay_out(nullptr).bytes));
    const std::int64_t end = graph.row_ptr[size(nodes.end)];
    for (std::int64_t e = graph.row_ptr[size(nodes.begin)]; e < end; e += capacity_) {
        s.edges.gather(graph, worker.types, nullptr, e, std::min(capacity_, end - e),
                       spec_.flip_edges);
        ConvBlock<T> block = fill(worker, s);
        const EdgeWeights<T> weights = this->weights(worker, s, false);
        weights.connect(block);
        block.out = out;
        generated_.info != nullptr ? generated_.forward(&block)
                                   : generic_.forward(block, capacity_);
    }
}

template <typename T>
void CpuConv<T>::backward(Worker<T>& worker, Range nodes) const {
    const Graph& graph = *worker.graph;
    if (by_type_) return types_->backward(worker, nodes);
    const std::int64_t local_end = std::min(nodes.end, graph.num_local);
    for (const Operand* operand : {&x_, &sender_, &receiver_}) {
        if (!operand->needs_gradient || operand->accumulate || nodes.begin >= local_end) continue;
        T* const rows = worker.gradient(*operand);
        std::fill(rows + nodes.begin * operand->rows.width, rows + local_end * operand->rows.width,
                  T(0));
    }
    const std::int32_t* list = nullptr;
    std::int64_t begin, end;
    if (spec_.backward_space() == IterationSpace::sender_blocks) {
        const auto number = size(nodes.begin / graph.nodes_per_block);
        list = graph.block_edge.data();
        begin = graph.block_ptr[number];
        end = graph.block_ptr[number + 1];
    } else {
        begin = graph.row_ptr[size(nodes.begin)];
        end = graph.row_ptr[size(nodes.end)];
    }
    Scratch s = lay_out(worker.scratch(lay_out(nullptr).bytes));
    const SimdTable<T>& kernels = simd<T>();
    for (std::int64_t e = begin; e < end; e += capacity_) {
        s.edges.gather(graph, worker.types, list == nullptr ? nullptr : list + e, e,
                       std::min(capacity_, end - e), spec_.flip_edges);
        ConvBlock<T> block = fill(worker, s);
        const EdgeWeights<T> weights = this->weights(worker, s, true);
        weights.connect(block);
        block.g = worker.gradient(out_);
        block.dx = x_.present() && x_.needs_gradient ? worker.gradient(x_) : nullptr;
        block.d_harmonics = s.d_harmonics;
        block.d_length = s.d_length;
        generated_.info != nullptr ? generated_.backward(&block)
                                   : generic_.backward(block, capacity_);
        if (weights.table != nullptr)
            for (std::int64_t i = 0; i < s.edges.count; ++i)
                s.edges.d_length[i] = static_cast<double>(s.d_length[i]);
        else
            radial_.backward(s.edges.radial(), rows(worker, sender_, s.edges.sender, true),
                             rows(worker, receiver_, s.edges.receiver, true), s.work, s.d_hidden,
                             s.edges.d_length);
        kernels.harmonics_gradient(l_max_, factors_.data(), capacity_, s.edges.unit, s.d_harmonics,
                                   s.d_unit);
        s.edges.scatter(s.d_unit, spec_.flip_edges, worker.edge_gradient);
    }
}

const RegisterOp<ConvSpec, CpuConv> registered{"conv"};

}  // namespace

}  // namespace mdcg

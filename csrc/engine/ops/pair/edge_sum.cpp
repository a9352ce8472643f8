// Densities: sums of a radial function over the neighbours,
//     out_i = sum_e act(radial(e)), or, if the cutoff is on the weights,
//     out_i = sum_e cutoff act(radial(e)).
#include "kernels/edge_sum.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/integers.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/edges/polynomial_table.hpp"
#include "engine/edges/edge_block.hpp"
#include "engine/edges/radial.hpp"
#include "engine/error.hpp"
#include "engine/rows.hpp"

namespace mdcg {

namespace {

struct EdgeSumSpec : OpSpec {
    const Operand& out = output("out");
    RadialSpec radial;  // from the manifest
    RadialSpec inner;   // without the cutoff that multiplies the activation
    bool tanh_square = false;

    explicit EdgeSumSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::receivers;
        if (out.rows.blocks.size() != 1 || out.rows.blocks[0].l != 0)
            fields.fail("out", "a value of other irreps", "scalars, one per output");
        const Fields from = fields.object("radial");
        radial = RadialSpec::read(from, given.info, out.rows.blocks[0].mul);
        if (!radial.sender_value.empty() || !radial.receiver_value.empty())
            from.fail("edge_sum sees features of nodes, expected tables by type");
        if (!radial.functions.cutoff_on_basis && radial.functions.cutoff_start != 0)
            from.fail("the cutoff of an edge_sum is xplor on its weights, expected on its basis");
        inner = radial;
        inner.functions.cutoff_on_basis = true;
        if (!radial.functions.cutoff_on_basis) inner.functions.cutoff_power = 0;
        const std::string activation = fields.text("activation", "none");
        if (activation != "none" && activation != "tanh_square")
            fields.fail("activation", "'" + activation + "'", "tanh_square or none");
        tanh_square = activation == "tanh_square";
    }
};

template <typename T>
class CpuEdgeSum : public CpuOp<T> {
public:
    explicit CpuEdgeSum(const EdgeSumSpec& spec)
        : spec_(spec), out_(spec.out), radial_(spec.inner), last_(spec.inner.last()) {}

    void forward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, false); }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, true); }

private:
    static constexpr std::int64_t CAPACITY = 64;
    void run(Worker<T>& worker, Range nodes, bool backward) const {
        const Graph& graph = *worker.graph;
        const std::int64_t width = out_.rows.width, stride = radial_.hidden_stride();
        const int outputs = out_.rows.blocks[0].mul, units = radial_.units();
        EdgeBlock<T> edges;
        T *hidden, *d_hidden;
        char* work;
        const auto lay_out = [&](char* start) {
            Layout layout(start);
            edges.take(layout, CAPACITY);
            layout.take(hidden, CAPACITY * stride);
            layout.take(d_hidden, CAPACITY * stride);
            layout.take(work, static_cast<std::int64_t>(radial_.work_bytes(CAPACITY)));
            return layout.bytes();
        };
        lay_out(worker.scratch(lay_out(nullptr)));
        const RadialSpec& spec = spec_.radial;
        const bool outside = !spec.functions.cutoff_on_basis && spec.functions.cutoff_power != 0;
        if (!backward)
            std::fill(worker.value(out_) + nodes.begin * width,
                      worker.value(out_) + nodes.end * width, T(0));
        const std::int64_t end = graph.row_ptr[size(nodes.end)];
        for (std::int64_t e = graph.row_ptr[size(nodes.begin)]; e < end; e += CAPACITY) {
            edges.gather(graph, worker.types, nullptr, e, std::min(CAPACITY, end - e),
                         spec_.flip_edges);
            radial_.forward(edges.radial(), {}, {}, work, hidden);
            std::fill_n(d_hidden, CAPACITY * stride, T(0));
            for (std::int64_t i = 0; i < edges.count; ++i) {
                const double r_max = spec.pair_r_max(edges.receiver_type[i], edges.sender_type[i]);
                const double r = edges.length[i];
                if (!(r < r_max)) continue;
                double c = 1, c_slope = 0;
                if (outside)
                    polynomial_cutoff(spec.functions.cutoff_power, 0, r / r_max, c, c_slope);
                c_slope /= r_max;
                T* out = (backward ? worker.gradient(out_) : worker.value(out_)) +
                         edges.receiver[i] * width;
                for (int o = 0; o < outputs; ++o) {
                    double s = 0;
                    for (int k = 0; k < units; ++k)
                        s += static_cast<double>(hidden[i * stride + k]) *
                             last_[size(k) * size(outputs) + size(o)];
                    const double value = spec_.tanh_square ? std::tanh(s * s) : s;
                    if (!backward) {
                        out[o] += static_cast<T>(c * value);
                        continue;
                    }
                    const double slope = spec_.tanh_square ? 2 * s * (1 - value * value) : 1.0;
                    const double g = static_cast<double>(out[o]);
                    edges.d_length[i] += g * value * c_slope;
                    for (int k = 0; k < units; ++k)
                        d_hidden[i * stride + k] += static_cast<T>(
                            g * c * slope * last_[size(k) * size(outputs) + size(o)]);
                }
            }
            if (!backward) continue;
            radial_.backward(edges.radial(), {}, {}, work, d_hidden, edges.d_length);
            edges.scatter(nullptr, spec_.flip_edges, worker.edge_gradient);
        }
    }

    const EdgeSumSpec& spec_;
    const Operand& out_;
    Radial<T> radial_;
    std::vector<double> last_;
};

constexpr int EDGE_SUM_THREADS = 128;

template <typename T>
class CudaEdgeSum : public CudaOp<T> {
public:
    explicit CudaEdgeSum(const EdgeSumSpec& spec)
        : spec_(spec),
          out_(spec.out),
          columns_(columns(spec.out.rows.blocks[0].mul)),
          table_(spec.name, spec.inner, columns_, TableContent::kWeights, Table::UNITS_DEGREE,
                 Table::limit(spec.inner, true)) {
        if (!spec.inner.has_table())
            throw EngineError(ErrorKind::unsupported,
                              spec.name +
                                  ": its radial network is not smooth, and GPUs need a table of "
                                  "it: use device cpu");
    }

    void prepare(CudaKernels& kernels, const DeviceStream& stream) override {
        const std::string defines = "#define DEGREE " + std::to_string(table_.degree()) + "\n";
        sums_ = kernels.fixed("edge_sum.cuh", "edge_sums", defines);
        gradients_ = kernels.fixed("edge_sum.cuh", "edge_sum_gradients", defines);
        r_max_.upload(spec_.radial.r_max, stream);
    }
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream) override {
        table_.on_new_list(graph, stream);
    }
    void forward(CudaWorker<T>& worker, Range) const override { launch(sums_, worker); }
    void backward(CudaWorker<T>& worker, Range) const override { launch(gradients_, worker); }

private:
    using Table = PolynomialTable<T>;
    static WeightColumns columns(int outputs) {
        WeightColumns found;
        for (int k = 0; k < outputs; ++k) found.columns.push_back(k);
        found.width = ceil_div(outputs, row_align<T>()) * row_align<T>();
        return found;
    }
    // A warp for each receiver.
    void launch(const CudaFunction& function, const CudaWorker<T>& worker) const {
        const DeviceEdges& graph = *worker.edges;
        const RadialSpec& spec = spec_.radial;
        EdgeSumArguments<T> a{};
        a.num_receivers = graph.num_local;
        a.num_types = spec.num_types;
        a.typed = spec.r_max.size() > 1;
        a.tanh_square = spec_.tanh_square;
        a.row_ptr = graph.row_ptr;
        a.num_active = graph.num_active;
        a.active = graph.active;
        a.types = graph.types;
        a.sender_type = graph.sender_type;
        a.length = graph.length;
        a.unit = static_cast<const T*>(graph.unit);
        a.r_max = r_max_.data();
        a.power = spec.functions.cutoff_on_basis ? 0.0 : spec.functions.cutoff_power;
        a.sign = spec_.flip_edges ? -1.0 : 1.0;
        a.table = table_.data();
        a.places = table_.places();
        a.outputs = out_.rows.blocks[0].mul;
        a.columns = columns_.width;
        a.width = out_.rows.width;
        a.out = worker.value(out_);
        a.d_out = worker.with_gradient ? worker.gradient(out_) : nullptr;
        a.edge_gradient = worker.edge_gradient;
        function.cover(*worker.stream, 32 * graph.num_local, EDGE_SUM_THREADS, a);
    }

    const EdgeSumSpec& spec_;
    const Operand& out_;
    WeightColumns columns_;
    Table table_;
    DeviceArray<double> r_max_;
    CudaFunction sums_, gradients_;
};

const RegisterOp<EdgeSumSpec, CpuEdgeSum, CudaEdgeSum> registered{"edge_sum"};

}  // namespace

}  // namespace mdcg

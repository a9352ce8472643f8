#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "engine/cpu_op.hpp"
#include "engine/edges/edge_block.hpp"
#include "engine/ops/pair/edge_sum.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuEdgeSum : public CpuOp<T> {
public:
    explicit CpuEdgeSum(const EdgeSumSpec& spec)
        : spec_(spec), out_(spec.out), radial_(spec.inner), last_(spec.inner.last()) {}

    void forward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, false); }
    void backward(Worker<T>& worker, Range nodes) const override { run(worker, nodes, true); }

private:
    static constexpr std::int64_t CAPACITY = 64;
    void run(Worker<T>& worker, Range nodes, bool backward) const;

    const EdgeSumSpec& spec_;
    const Operand& out_;
    Radial<T> radial_;
    std::vector<double> last_;
};

template <typename T>
void CpuEdgeSum<T>::run(Worker<T>& worker, Range nodes, bool backward) const {
    const Graph& graph = *worker.graph;
    const std::int64_t width = out_.rows.width, stride = radial_.hidden_stride();
    const int outputs = out_.rows.blocks[0].mul, units = radial_.units();
    EdgeBlock<T> edges;
    T *hidden, *d_hidden;
    double *cutoff, *cutoff_slope;
    char* work;
    const auto lay_out = [&](char* start) {
        Layout layout(start);
        edges.take(layout, CAPACITY);
        layout.take(hidden, CAPACITY * stride);
        layout.take(d_hidden, CAPACITY * stride);
        layout.take(cutoff, CAPACITY);
        layout.take(cutoff_slope, CAPACITY);
        layout.take(work, static_cast<std::int64_t>(radial_.work_bytes(CAPACITY)));
        return layout.bytes();
    };
    lay_out(worker.scratch(lay_out(nullptr)));
    const RadialSpec& spec = spec_.radial;
    const bool outside = !spec.functions.cutoff_on_basis && spec.functions.cutoff_power != 0;
    if (!backward)
        std::fill(worker.value(out_) + nodes.begin * width, worker.value(out_) + nodes.end * width,
                  T(0));
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
            if (outside) polynomial_cutoff(spec.functions.cutoff_power, r / r_max, c, c_slope);
            c_slope /= r_max;
            T* out =
                (backward ? worker.gradient(out_) : worker.value(out_)) + edges.receiver[i] * width;
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
                    d_hidden[i * stride + k] +=
                        static_cast<T>(g * c * slope * last_[size(k) * size(outputs) + size(o)]);
            }
        }
        if (!backward) continue;
        radial_.backward(edges.radial(), {}, {}, work, d_hidden, edges.d_length);
        edges.scatter(nullptr, spec_.flip_edges, worker.edge_gradient);
    }
}

const RegisterOp<EdgeSumSpec, CpuEdgeSum> registered{"edge_sum"};

}  // namespace

}  // namespace mdcg

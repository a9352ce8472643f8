// Sums of a radial function over the neighbours: densities.
#include <algorithm>
#include <cmath>

#include "engine/edges/edge_block.hpp"
#include "engine/edges/radial.hpp"
#include "engine/error.hpp"
#include "engine/registry.hpp"

namespace mdcg {

namespace {

// out_i = sum_e cutoff act(radial(e)), where the cutoff is on the weights; else sum_e
// act(radial(e)).
template <typename T>
class EdgeSum : public Layer<T> {
public:
    explicit EdgeSum(const LayerSpec& spec)
        : out_(spec.operand("out")), read_(read(spec, out_)), radial_(read_.inner) {
        const std::string activation = spec.fields.text("activation", "none");
        if (activation != "none" && activation != "tanh_square")
            spec.fields.fail("activation", "'" + activation + "'", "tanh_square or none");
        tanh_square_ = activation == "tanh_square";
        flip_ = spec.info.flip_edges;
        last_ = read_.inner.last();
    }

    Walk forward_walk() const override { return Walk::receivers; }
    Walk backward_walk() const override { return Walk::receivers; }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {}; }
    std::vector<Operand*> outputs() override { return {&out_}; }

    void forward(Worker<T>& worker, Range nodes) const override { walk(worker, nodes, false); }
    void backward(Worker<T>& worker, Range nodes) const override { walk(worker, nodes, true); }

private:
    static constexpr std::int64_t CAPACITY = 64;
    struct Read {
        RadialSpec spec;   // as the manifest has it
        RadialSpec inner;  // without the cutoff outside of the activation
    };
    static Read read(const LayerSpec& spec, const Operand& out) {
        if (out.rows.blocks.size() != 1 || out.rows.blocks[0].l != 0)
            spec.fields.fail("out", "a value of other irreps", "scalars, one per output");
        Read found;
        const Fields radial = spec.fields.object("radial");
        found.spec = RadialSpec::read(radial, spec.info, out.rows.blocks[0].mul);
        if (!found.spec.sender_value.empty() || !found.spec.receiver_value.empty())
            radial.fail("edge_sum sees features of nodes, expected tables by type");
        found.inner = found.spec;
        found.inner.functions.cutoff_on_basis = true;
        if (!found.spec.functions.cutoff_on_basis) found.inner.functions.cutoff_power = 0;
        return found;
    }
    void walk(Worker<T>& worker, Range nodes, bool backward) const;

    Operand out_;
    Read read_;
    Radial<T> radial_;
    std::vector<double> last_;
    bool tanh_square_, flip_;
};

template <typename T>
void EdgeSum<T>::walk(Worker<T>& worker, Range nodes, bool backward) const {
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
    const RadialSpec& spec = read_.spec;
    const bool outside = !spec.functions.cutoff_on_basis && spec.functions.cutoff_power != 0;
    if (!backward)
        std::fill(worker.value(out_) + nodes.begin * width, worker.value(out_) + nodes.end * width,
                  T(0));
    const std::int64_t end = graph.row_ptr[static_cast<std::size_t>(nodes.end)];
    for (std::int64_t e = graph.row_ptr[static_cast<std::size_t>(nodes.begin)]; e < end;
         e += CAPACITY) {
        edges.gather(graph, worker.types, nullptr, e, std::min(CAPACITY, end - e), flip_);
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
                         last_[static_cast<std::size_t>(k) * static_cast<std::size_t>(outputs) +
                               static_cast<std::size_t>(o)];
                const double value = tanh_square_ ? std::tanh(s * s) : s;
                if (!backward) {
                    out[o] += static_cast<T>(c * value);
                    continue;
                }
                const double slope = tanh_square_ ? 2 * s * (1 - value * value) : 1.0;
                const double g = static_cast<double>(out[o]);
                edges.d_length[i] += g * value * c_slope;
                for (int k = 0; k < units; ++k)
                    d_hidden[i * stride + k] += static_cast<T>(
                        g * c * slope *
                        last_[static_cast<std::size_t>(k) * static_cast<std::size_t>(outputs) +
                              static_cast<std::size_t>(o)]);
            }
        }
        if (!backward) continue;
        radial_.backward(edges.radial(), {}, {}, work, d_hidden, edges.d_length);
        edges.scatter(nullptr, flip_, worker.edge_gradient);
    }
}

template <typename T>
std::unique_ptr<Layer<T>> make_edge_sum(const LayerSpec& spec) {
    return std::make_unique<EdgeSum<T>>(spec);
}

const RegisterLayer registered{"edge_sum", &make_edge_sum<float>, &make_edge_sum<double>};

}  // namespace

}  // namespace mdcg

// Scalars through activations; other blocks times activations of scalars.
#include "engine/layers/node_layer.hpp"

namespace mdcg {

namespace {

template <typename T>
class Gate : public UnaryLayer<T> {
public:
    explicit Gate(const LayerSpec& spec) : UnaryLayer<T>(spec) {
        std::vector<int> writers(out_.rows.blocks.size(), 0);
        for (const Fields& entry : spec.fields.objects("scalars")) {
            scalars_.push_back({block_index(entry, "in", x_.rows),
                                block_index(entry, "out", out_.rows), function(entry)});
            check(entry, scalars_.back().in, scalars_.back().out, writers);
            if (x_.rows.blocks[scalars_.back().in].l != 0)
                entry.fail("is a block of vectors, expected scalars");
        }
        for (const Fields& entry : spec.fields.objects("gated")) {
            Gated gated{block_index(entry, "gate", x_.rows), 0, block_index(entry, "in", x_.rows),
                        block_index(entry, "out", out_.rows), function(entry)};
            check(entry, gated.in, gated.out, writers);
            const Block& gate = x_.rows.blocks[gated.gate];
            const Block& in = x_.rows.blocks[gated.in];
            if (gate.l != 0 || gate.mul < in.mul)
                entry.fail("has the gate " + block_text(gate) + " for " + block_text(in) +
                           ", expected scalars, at least as many");
            gated.gate_offset =
                entry.has("gate_offset")
                    ? static_cast<int>(entry.integer("gate_offset", 0, gate.mul - in.mul))
                    : 0;
            longest_ = std::max(longest_, in.stride);
            gated_.push_back(gated);
        }
        for (const Scalar& scalar : scalars_)
            longest_ = std::max(longest_, x_.rows.blocks[scalar.in].stride);
        for (std::size_t b = 0; b < writers.size(); ++b)
            if (writers[b] != 1)
                spec.fields.fail("writes block " + std::to_string(b) + " of out " +
                                 std::to_string(writers[b]) + " times, expected once");
    }

    std::vector<int> kept() const override { return {x_.id}; }

    void forward(Worker<T>& worker, Range nodes) const override {
        T* act = buffer(worker);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T* x = this->x(worker, n);
            T* out = this->out(worker, n);
            for (const Scalar& s : scalars_) {
                const Block &in = x_.rows.blocks[s.in], &to = out_.rows.blocks[s.out];
                simd<T>().activate(s.f.kind, in.mul, s.f.factor, x + in.offset, out + to.offset,
                                   nullptr);
                std::fill(out + to.offset + to.mul, out + to.offset + to.stride, T(0));
            }
            for (const Gated& g : gated_) {
                const Block &in = x_.rows.blocks[g.in], &to = out_.rows.blocks[g.out];
                activate_gate(g, x, act, nullptr);
                for (int m = 0; m < in.dim(); ++m) {
                    const T* from = x + in.offset + static_cast<std::ptrdiff_t>(m) * in.stride;
                    T* target = out + to.offset + static_cast<std::ptrdiff_t>(m) * to.stride;
                    std::copy_n(from, in.stride, target);
                    simd<T>().multiply(in.stride, act, target);
                }
            }
        }
    }

    void backward(Worker<T>& worker, Range nodes) const override {
        T* act = buffer(worker);
        T *slope = act + longest_, *sum = slope + longest_;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T *x = this->x(worker, n), *g = this->dout(worker, n);
            T* dx = this->dx(worker, n);
            for (const Scalar& s : scalars_) {
                const Block &in = x_.rows.blocks[s.in], &to = out_.rows.blocks[s.out];
                simd<T>().activate(s.f.kind, in.mul, s.f.factor, x + in.offset, act, slope);
                for (int u = 0; u < in.mul; ++u) dx[in.offset + u] += g[to.offset + u] * slope[u];
            }
            for (const Gated& gated : gated_) {
                const Block &in = x_.rows.blocks[gated.in], &to = out_.rows.blocks[gated.out];
                activate_gate(gated, x, act, slope);
                std::fill(sum, sum + in.mul, T(0));
                for (int m = 0; m < in.dim(); ++m) {
                    const T* from = x + in.offset + static_cast<std::ptrdiff_t>(m) * in.stride;
                    const T* dy = g + to.offset + static_cast<std::ptrdiff_t>(m) * to.stride;
                    T* d = dx + in.offset + static_cast<std::ptrdiff_t>(m) * in.stride;
                    for (int u = 0; u < in.mul; ++u) {
                        sum[u] += from[u] * dy[u];
                        d[u] += act[u] * dy[u];
                    }
                }
                T* d = dx + x_.rows.blocks[gated.gate].offset + gated.gate_offset;
                for (int u = 0; u < in.mul; ++u) d[u] += sum[u] * slope[u];
            }
        }
    }

private:
    using UnaryLayer<T>::x_;
    using UnaryLayer<T>::out_;

    struct Function {
        Activation kind;
        T factor;
    };
    struct Scalar {
        std::size_t in, out;
        Function f;
    };
    struct Gated {
        std::size_t gate;
        int gate_offset;
        std::size_t in, out;
        Function f;
    };

    static Function function(const Fields& entry) {
        return {parse_activation(entry.text("activation", "none")),
                static_cast<T>(entry.number("factor", 1.0))};
    }

    void check(const Fields& entry, std::size_t in, std::size_t out,
               std::vector<int>& writers) const {
        const Block &from = x_.rows.blocks[in], &to = out_.rows.blocks[out];
        if (from.mul != to.mul || from.l != to.l)
            entry.fail("goes from " + block_text(from) + " to " + block_text(to) +
                       ", expected one shape");
        ++writers[out];
    }

    T* buffer(Worker<T>& worker) const {
        return reinterpret_cast<T*>(
            worker.scratch(3 * static_cast<std::size_t>(longest_) * sizeof(T)));
    }

    // Activations of the channels that gate a block, zero in the padding.
    void activate_gate(const Gated& g, const T* x, T* act, T* slope) const {
        const Block& in = x_.rows.blocks[g.in];
        simd<T>().activate(g.f.kind, in.mul, g.f.factor,
                           x + x_.rows.blocks[g.gate].offset + g.gate_offset, act, slope);
        std::fill(act + in.mul, act + in.stride, T(0));
    }

    std::vector<Scalar> scalars_;
    std::vector<Gated> gated_;
    int longest_ = row_align<T>();
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Gate<T>>(spec);
}
const RegisterLayer registered{"gate", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg

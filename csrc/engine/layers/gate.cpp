// Scalars through activations; other blocks times activations of scalars.
#include "engine/layers/node_fields.hpp"

namespace mdcg {

namespace {

template <typename T>
class Gate : public UnaryLayer<T> {
public:
    explicit Gate(const LayerSpec& spec) : UnaryLayer<T>(spec), fields_(spec, x_.rows, out_.rows) {
        for (const GateFields::Scalar& scalar : fields_.scalars)
            longest_ = std::max(longest_, x_.rows.blocks[scalar.in].stride);
        for (const GateFields::Gated& gated : fields_.gated)
            longest_ = std::max(longest_, x_.rows.blocks[gated.in].stride);
    }

    std::vector<int> kept() const override { return {x_.id}; }

    void forward(Worker<T>& worker, Range nodes) const override {
        T* act = buffer(worker);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T* x = this->x(worker, n);
            T* out = this->out(worker, n);
            for (const GateFields::Scalar& s : fields_.scalars) {
                const Block &in = x_.rows.blocks[s.in], &to = out_.rows.blocks[s.out];
                simd<T>().activate(s.f.kind, in.mul, factor(s.f), x + in.offset, out + to.offset,
                                   nullptr);
                std::fill(out + to.offset + to.mul, out + to.offset + to.stride, T(0));
            }
            for (const GateFields::Gated& g : fields_.gated) {
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
            for (const GateFields::Scalar& s : fields_.scalars) {
                const Block &in = x_.rows.blocks[s.in], &to = out_.rows.blocks[s.out];
                simd<T>().activate(s.f.kind, in.mul, factor(s.f), x + in.offset, act, slope);
                for (int u = 0; u < in.mul; ++u) dx[in.offset + u] += g[to.offset + u] * slope[u];
            }
            for (const GateFields::Gated& gated : fields_.gated) {
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

    static T factor(const GateFields::Function& f) { return static_cast<T>(f.factor); }

    T* buffer(Worker<T>& worker) const {
        return reinterpret_cast<T*>(
            worker.scratch(3 * static_cast<std::size_t>(longest_) * sizeof(T)));
    }

    // Activations of the channels that gate a block, zero in the padding.
    void activate_gate(const GateFields::Gated& g, const T* x, T* act, T* slope) const {
        const Block& in = x_.rows.blocks[g.in];
        simd<T>().activate(g.f.kind, in.mul, factor(g.f),
                           x + x_.rows.blocks[g.gate].offset + g.gate_offset, act, slope);
        std::fill(act + in.mul, act + in.stride, T(0));
    }

    GateFields fields_;
    int longest_ = row_align<T>();
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Gate<T>>(spec);
}
const RegisterLayer registered{"gate", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg

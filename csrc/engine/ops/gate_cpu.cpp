#include "core/integers.hpp"
#include "engine/ops/cpu.hpp"
#include "engine/ops/gate.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuGate : public CpuOp<T> {
public:
    explicit CpuGate(const GateSpec& spec) : spec_(spec), x_(spec.x), out_(spec.out) {
        for (const GateSpec::Scalar& scalar : spec.scalars)
            longest_ = std::max(longest_, x_.rows.blocks[scalar.in].stride);
        for (const GateSpec::Gated& gated : spec.gated)
            longest_ = std::max(longest_, x_.rows.blocks[gated.in].stride);
    }

    void forward(Worker<T>& worker, Range nodes) const override {
        T* act = buffer(worker);
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T* x = worker.value(x_, n);
            T* out = worker.value(out_, n);
            for (const GateSpec::Scalar& s : spec_.scalars) {
                const Block &in = x_.rows.blocks[s.in], &to = out_.rows.blocks[s.out];
                simd<T>().activate(s.f.kind, in.mul, factor(s.f), x + in.offset, out + to.offset,
                                   nullptr);
                std::fill(out + to.offset + to.mul, out + to.offset + to.stride, T(0));
            }
            for (const GateSpec::Gated& g : spec_.gated) {
                const Block &in = x_.rows.blocks[g.in], &to = out_.rows.blocks[g.out];
                activate_gate(g, x, act, nullptr);
                for (int m = 0; m < in.dim(); ++m) {
                    const T* from = x + in.offset + std::int64_t(m) * in.stride;
                    T* target = out + to.offset + std::int64_t(m) * to.stride;
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
            const T *x = worker.value(x_, n), *g = worker.gradient(out_, n);
            T* dx = worker.started_gradient(x_, n);
            for (const GateSpec::Scalar& s : spec_.scalars) {
                const Block &in = x_.rows.blocks[s.in], &to = out_.rows.blocks[s.out];
                simd<T>().activate(s.f.kind, in.mul, factor(s.f), x + in.offset, act, slope);
                for (int u = 0; u < in.mul; ++u) dx[in.offset + u] += g[to.offset + u] * slope[u];
            }
            for (const GateSpec::Gated& gated : spec_.gated) {
                const Block &in = x_.rows.blocks[gated.in], &to = out_.rows.blocks[gated.out];
                activate_gate(gated, x, act, slope);
                std::fill(sum, sum + in.mul, T(0));
                for (int m = 0; m < in.dim(); ++m) {
                    const T* from = x + in.offset + std::int64_t(m) * in.stride;
                    const T* dy = g + to.offset + std::int64_t(m) * to.stride;
                    T* d = dx + in.offset + std::int64_t(m) * in.stride;
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
    static T factor(const GateSpec::Function& f) { return static_cast<T>(f.factor); }

    T* buffer(Worker<T>& worker) const {
        return reinterpret_cast<T*>(worker.scratch(3 * size(longest_) * sizeof(T)));
    }

    // Activations of the channels that gate a block, zero in the padding.
    void activate_gate(const GateSpec::Gated& g, const T* x, T* act, T* slope) const {
        const Block& in = x_.rows.blocks[g.in];
        simd<T>().activate(g.f.kind, in.mul, factor(g.f),
                           x + x_.rows.blocks[g.gate].offset + g.gate_offset, act, slope);
        std::fill(act + in.mul, act + in.stride, T(0));
    }

    const GateSpec& spec_;
    const Operand &x_, &out_;
    int longest_ = row_align<T>();
};

const RegisterOp<GateSpec, CpuGate> registered{"gate"};

}  // namespace

}  // namespace mdcg

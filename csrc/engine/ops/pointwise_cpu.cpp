#include "engine/backend/cpu/simd.hpp"
#include "engine/ops/cpu.hpp"
#include "engine/ops/pointwise.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuScale : public CpuOp<T> {
public:
    explicit CpuScale(const ScaleSpec& spec)
        : x_(spec.x), out_(spec.out), factor_(spec.fields.read<T>(spec.factor)) {}
    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().scale(x_.rows.width, factor(worker, n), worker.value(x_, n),
                            worker.value(out_, n));
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().add_scaled(x_.rows.width, factor(worker, n), worker.gradient(out_, n),
                                 worker.started_gradient(x_, n));
    }

private:
    T factor(const Worker<T>& worker, std::int64_t n) const {
        return factor_[factor_.size() > 1 ? static_cast<std::size_t>(worker.types[n]) : 0];
    }
    const Operand &x_, &out_;
    std::vector<T> factor_;
};

template <typename T>
class CpuNormalize : public CpuOp<T> {
public:
    explicit CpuNormalize(const NormalizeSpec& spec)
        : x_(spec.x),
          density_(spec.density),
          out_(spec.out),
          alpha_(static_cast<T>(spec.alpha)),
          beta_(static_cast<T>(spec.beta)) {}
    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            simd<T>().scale(x_.rows.width, factor(worker, n), worker.value(x_, n),
                            worker.value(out_, n));
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = x_.rows.width;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const T s = factor(worker, n);
            const T* g = worker.gradient(out_, n);
            if (x_.needs_gradient)
                simd<T>().add_scaled(width, s, g, worker.started_gradient(x_, n));
            if (density_.needs_gradient)
                worker.started_gradient(density_, n)[0] -=
                    beta_ * s * s * simd<T>().dot(width, worker.value(x_, n), g);
        }
    }

private:
    T factor(const Worker<T>& worker, std::int64_t n) const {
        return T(1) / (beta_ * worker.value(density_, n)[0] + alpha_);
    }
    const Operand &x_, &density_, &out_;
    T alpha_, beta_;
};

template <typename T>
class CpuProduct : public CpuOp<T> {
public:
    explicit CpuProduct(const ProductSpec& spec) : x_(spec.x), y_(spec.y), out_(spec.out) {}
    void forward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t width = y_.rows.width;
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* out = worker.value(out_, n);
            std::copy_n(worker.value(x_, n), width, out);
            simd<T>().multiply(width, worker.value(y_, n), out);
        }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            if (x_.needs_gradient) add(worker, n, x_, y_);
            if (y_.needs_gradient) add(worker, n, y_, x_);
        }
    }

private:
    void add(const Worker<T>& worker, std::int64_t n, const Operand& to, const Operand& by) const {
        const std::int64_t width = to.rows.width;
        T* d = worker.gradient(to, n);
        const T *g = worker.gradient(out_, n), *other = worker.value(by, n);
        for (std::int64_t i = 0; i < width; ++i)
            d[i] = (to.accumulate ? d[i] : T(0)) + g[i] * other[i];
    }
    const Operand &x_, &y_, &out_;
};

template <typename T>
class CpuSum : public CpuOp<T> {
public:
    explicit CpuSum(const SumSpec& spec) : x_(spec.inputs), out_(spec.out) {}
    void forward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t first = nodes.begin, count = (nodes.end - first) * out_.rows.width;
        T* out = worker.value(out_, first);
        std::copy_n(worker.value(x_[0], first), count, out);
        for (std::size_t i = 1; i < x_.size(); ++i)
            simd<T>().add_scaled(count, T(1), worker.value(x_[i], first), out);
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        const std::int64_t first = nodes.begin, count = (nodes.end - first) * out_.rows.width;
        const T* g = worker.gradient(out_, first);
        for (const Operand& x : x_) {
            if (!x.needs_gradient) continue;
            T* d = worker.gradient(x, first);
            if (x.accumulate)
                simd<T>().add_scaled(count, T(1), g, d);
            else
                std::copy_n(g, count, d);
        }
    }

private:
    const std::deque<Operand>& x_;
    const Operand& out_;
};

const RegisterOp<ScaleSpec, CpuScale> scale{"scale"};
const RegisterOp<NormalizeSpec, CpuNormalize> normalize{"normalize"};
const RegisterOp<ProductSpec, CpuProduct> product{"product"};
const RegisterOp<SumSpec, CpuSum> sum{"sum"};

}  // namespace

}  // namespace mdcg
